//! The first look at a request: what is ambiguous goes no further.
//!
//! The engine accepts more than an origin should ever see. What is refused here is
//! refused before anything is routed, keyed or forwarded, and the connection is
//! closed, because nobody knows where the next request would begin.

use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderValue, Method, Version};
use pingora::http::RequestHeader;
use pingora::proxy::Session;

use crate::config::settings::Limits;
use crate::fields::authority::is_authority;
use crate::http2::Unfit;

/// A refusal: the status, the word for metrics, and the sentence for the client.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status.
    pub status: u16,
    /// For metrics.
    pub reason: &'static str,
    /// For the client.
    pub message: &'static str,
}

/// The methods that most resources have; a 405 has to name some (RFC 9110 §15.5.6).
pub const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";
/// The longest method; no registered one is half as long.
const METHOD: usize = 32;

const fn refuse(status: u16, reason: &'static str, message: &'static str) -> Result<(), Refusal> {
    Err(Refusal { status, reason, message })
}

/// Checks a request and brings its target to origin form.
pub fn check(session: &mut Session, limits: &Limits) -> Result<(), Refusal> {
    let raw = session.as_downstream().as_http1().map(|http| http.get_headers_raw_bytes());
    let request = session.req_header_mut();
    if let Some(raw) = &raw {
        raw_head(raw, request, limits)?;
    }
    if request.version == Version::HTTP_2 {
        http2(request, limits)?;
    }
    head(request, limits)?;
    let Some(Absolute { authority, target }) = origin_form(request, limits)? else { return Ok(()) };
    if !request.headers.contains_key(HOST)
        && let Ok(host) = HeaderValue::from_bytes(&authority)
    {
        // An HTTP/1.0 client may say it in the target alone.
        let _ = request.insert_header(HOST, host);
    }
    if request.set_raw_path(&target).is_err() {
        return refuse(400, "target", "the request target cannot be read");
    }
    Ok(())
}

/// What only the bytes show: the parser takes bare line feeds, drops a length beside a coding, and changes targets.
fn raw_head(raw: &[u8], request: &RequestHeader, limits: &Limits) -> Result<(), Refusal> {
    if raw.len() as u64 > limits.head.0 {
        return refuse(431, "head-size", "the request head is too long");
    }
    let bare = raw.iter().enumerate().any(|(at, byte)| *byte == b'\n' && (at == 0 || raw[at - 1] != b'\r'));
    if bare {
        return refuse(400, "bare-lf", "a line of the request head does not end with CR LF");
    }
    if written_target(raw) != Some(request.raw_path()) {
        return refuse(400, "target", "the request line is not a method, a target and a version");
    }
    if request.headers.contains_key(TRANSFER_ENCODING) {
        let name = b"\ncontent-length";
        let both = raw.windows(name.len() + 1).any(|window| {
            window[..name.len()].eq_ignore_ascii_case(name) && matches!(window[name.len()], b':' | b' ' | b'\t')
        });
        if both {
            return refuse(400, "two-framings", "Content-Length and Transfer-Encoding exclude each other");
        }
    }
    Ok(())
}

/// What a request of HTTP/2 may be wrong in although its frames are not.
fn http2(request: &RequestHeader, limits: &Limits) -> Result<(), Refusal> {
    // As many bytes as the same head would have had in HTTP/1.1.
    let fields: usize = request.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if (fields + request.raw_path().len()) as u64 > limits.head.0 {
        return refuse(431, "head-size", "the request head is too long");
    }
    if let Some(Unfit(message)) = request.extensions.get() {
        return refuse(400, "target", message);
    }
    let plain = request.raw_path().starts_with(b"/") || request.raw_path() == b"*";
    if !plain && request.method != Method::CONNECT {
        return refuse(400, "target", "a request target begins with /");
    }
    Ok(())
}

/// The target as the client wrote it: the parser escapes what no target has, takes a fragment off, and takes blanks for
/// a part of it.
fn written_target(raw: &[u8]) -> Option<&[u8]> {
    let start = raw.iter().position(|byte| !matches!(byte, b'\r' | b'\n'))?;
    let line = raw[start..].split(|byte| *byte == b'\r').next()?;
    let mut words = line.split(|byte| *byte == b' ');
    let (_method, target, _version) = (words.next()?, words.next()?, words.next()?);
    words.next().is_none().then_some(target)
}

/// Whether a request with this head gets past the guard, as far as the head alone tells.
pub fn admits(request: &RequestHeader, limits: &Limits) -> bool {
    head(request, limits).and_then(|()| origin_form(request, limits)).is_ok()
}

fn head(request: &RequestHeader, limits: &Limits) -> Result<(), Refusal> {
    let fields = &request.headers;
    if fields.len() > usize::from(limits.fields) {
        return refuse(431, "field-count", "the request has too many fields");
    }
    if request.method.as_str().len() > METHOD {
        return refuse(501, "method", "no method is as long as this one");
    }
    if request.method == Method::CONNECT || request.method == Method::TRACE {
        return refuse(405, "method", "CONNECT and TRACE are not for this server");
    }
    if !request.method.as_str().bytes().all(|byte| byte.is_ascii_uppercase() || matches!(byte, b'-' | b'_')) {
        return refuse(400, "method", "methods are written in capitals");
    }
    let mut hosts = fields.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (_, Some(_)) => return refuse(400, "host", "there is more than one Host"),
        (None, _) if request.version != Version::HTTP_10 && request.version != Version::HTTP_09 => {
            return refuse(400, "host", "there is no Host");
        }
        (Some(host), _) if !is_authority(host.as_bytes()) => return refuse(400, "host", "Host names no host"),
        _ => {}
    }
    let mut lengths = fields.get_all(CONTENT_LENGTH).iter();
    let length = lengths.next();
    if lengths.next().is_some()
        || length.is_some_and(|value| value.is_empty() || !value.as_bytes().iter().all(u8::is_ascii_digit))
    {
        return refuse(400, "content-length", "there is more than one Content-Length, or it is no number");
    }
    let mut codings = fields.get_all(TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next()
        && (codings.next().is_some() || !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
    {
        return refuse(501, "transfer-encoding", "the only transfer coding here is chunked");
    }
    let tunnel = fields.get_all(UPGRADE).iter().any(|value| !value.as_bytes().eq_ignore_ascii_case(b"h2c"));
    let content = fields.contains_key(TRANSFER_ENCODING) || length.is_some_and(|value| value.as_bytes() != b"0");
    if tunnel && content {
        // Where the content ends and the tunnel begins is not for two readers to guess.
        return refuse(400, "upgrade-content", "a request for an upgrade has no content here");
    }
    Ok(())
}

/// A target in absolute form, taken apart.
#[derive(Debug, PartialEq, Eq)]
struct Absolute {
    authority: Vec<u8>,
    target: Vec<u8>,
}

/// The target in origin form, if it has to change; absolute form was matched with Host by the engine.
fn origin_form(request: &RequestHeader, limits: &Limits) -> Result<Option<Absolute>, Refusal> {
    let raw = request.raw_path();
    let wrong = |message| Refusal { status: 400, reason: "target", message };
    let changed = if raw.starts_with(b"/") {
        None
    } else if raw == b"*" && request.method == Method::OPTIONS {
        return Ok(None);
    } else {
        let after = ["http://", "https://"]
            .iter()
            .find_map(|scheme| {
                raw.get(..scheme.len())
                    .filter(|start| start.eq_ignore_ascii_case(scheme.as_bytes()))
                    .map(|_| &raw[scheme.len()..])
            })
            .ok_or_else(|| wrong("a request target begins with /"))?;
        let end = after.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(after.len());
        let (authority, path) = after.split_at(end);
        if !is_authority(authority) {
            return Err(wrong("the request target names no host"));
        }
        let mut target = path.to_vec();
        if !target.starts_with(b"/") {
            target.insert(0, b'/');
        }
        Some(Absolute { authority: authority.to_vec(), target })
    };
    let target = changed.as_ref().map_or(raw, |changed| &changed.target);
    if target.len() as u64 > limits.target.0 {
        return Err(Refusal { status: 414, reason: "target-size", message: "the request target is too long" });
    }
    if !target.iter().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'\\' | b'#')) {
        return Err(wrong("the request target has a character that must be percent-encoded"));
    }
    let forbidden = |window: &[u8]| window[0] == b'%' && matches!(&window[1..], b"00" | b"0a" | b"0A" | b"0d" | b"0D");
    // In a path they have no meaning that two readers share; in a query, a line break is text.
    let path = target.split(|byte| *byte == b'?').next().unwrap_or(target);
    if path.windows(3).any(forbidden) {
        return Err(wrong("the path of the request target has an encoded control character"));
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, target: &str, lines: &[(&'static str, &str)]) -> RequestHeader {
        let mut head = RequestHeader::build(method, target.as_bytes(), None).unwrap();
        for (name, value) in lines {
            head.append_header(*name, *value).unwrap();
        }
        head
    }

    #[test]
    fn heads() {
        let host = ("host", "a.test");
        for (why, request, expected) in [
            ("plain", request("GET", "/", &[host]), Ok(())),
            ("no host", request("GET", "/", &[]), Err((400, "host"))),
            ("two hosts", request("GET", "/", &[host, ("host", "b.test")]), Err((400, "host"))),
            (
                "two lengths",
                request("POST", "/", &[host, ("content-length", "5"), ("content-length", "5")]),
                Err((400, "content-length")),
            ),
            (
                "a list of lengths",
                request("POST", "/", &[host, ("content-length", "5, 5")]),
                Err((400, "content-length")),
            ),
            ("a signed length", request("POST", "/", &[host, ("content-length", "+5")]), Err((400, "content-length"))),
            (
                "gzip, chunked",
                request("POST", "/", &[host, ("transfer-encoding", "gzip, chunked")]),
                Err((501, "transfer-encoding")),
            ),
            (
                "two codings",
                request("POST", "/", &[host, ("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")]),
                Err((501, "transfer-encoding")),
            ),
            ("chunked", request("POST", "/", &[host, ("transfer-encoding", "Chunked")]), Ok(())),
            ("an empty length", request("POST", "/", &[host, ("content-length", "")]), Err((400, "content-length"))),
            ("an empty host", request("GET", "/", &[("host", "")]), Err((400, "host"))),
            ("who asks whom", request("GET", "/", &[("host", "u@a.test")]), Err((400, "host"))),
            ("a tunnel", request("GET", "/", &[host, ("upgrade", "websocket")]), Ok(())),
            (
                "a tunnel with content",
                request("GET", "/", &[host, ("upgrade", "websocket"), ("content-length", "5")]),
                Err((400, "upgrade-content")),
            ),
            (
                "a tunnel without any",
                request("GET", "/", &[host, ("upgrade", "websocket"), ("content-length", "0")]),
                Ok(()),
            ),
            ("HTTP/2, if we like", request("POST", "/", &[host, ("upgrade", "h2c"), ("content-length", "5")]), Ok(())),
            ("a long method", request(&"M".repeat(33), "/", &[host]), Err((501, "method"))),
            ("TRACE", request("TRACE", "/", &[host]), Err((405, "method"))),
            ("small letters", request("get", "/", &[host]), Err((400, "method"))),
        ] {
            let got = head(&request, &Limits::default()).map_err(|refusal| (refusal.status, refusal.reason));
            assert_eq!(got, expected, "{why}");
        }
    }

    #[test]
    fn raw_heads() {
        let chunked = request("POST", "/", &[("transfer-encoding", "chunked")]);
        let plain = request("POST", "/", &[]);
        for (raw, request, expected) in [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", &plain, None),
            ("GET / HTTP/1.1\r\nHost: a\n\r\n", &plain, Some("bare-lf")),
            ("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", &plain, None),
            ("GET /#f HTTP/1.1\r\nHost: a\r\n\r\n", &plain, Some("target")),
            ("\r\nGET /#f HTTP/1.1\r\nHost: a\r\n\r\n", &plain, Some("target")),
            ("GET / x HTTP/1.1\r\nHost: a\r\n\r\n", &plain, Some("target")),
            ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", &plain, Some("target")),
            (
                "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
                &chunked,
                Some("two-framings"),
            ),
            ("POST / HTTP/1.1\r\nX-Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", &chunked, None),
        ] {
            assert_eq!(
                raw_head(raw.as_bytes(), request, &Limits::default()).err().map(|refusal| refusal.reason),
                expected,
                "{raw:?}"
            );
        }
        let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(32 << 10));
        assert_eq!(raw_head(long.as_bytes(), &plain, &Limits::default()).unwrap_err().status, 431);
    }

    #[test]
    fn targets() {
        let long = format!("/{}", "a".repeat(8 << 10));
        for (method, target, expected) in [
            ("GET", "/a?b", Ok(None)),
            ("GET", "/it's,(fine);v=1/~u/@me:$!*", Ok(None)),
            ("OPTIONS", "*", Ok(None)),
            ("GET", "*", Err(400)),
            ("GET", "http://a.test/x?y", Ok(Some("a.test/x?y"))),
            ("GET", "HTTP://a.test", Ok(Some("a.test/"))),
            ("GET", "http://a.test?y", Ok(Some("a.test/?y"))),
            ("GET", "http:///x", Err(400)),
            ("GET", "http://u@a.test/", Err(400)),
            ("GET", "ftp://a.test/", Err(400)),
            ("GET", "/a\\b", Err(400)),
            ("GET", "/a%00b", Err(400)),
            ("GET", "/a%0Db", Err(400)),
            ("GET", "/a?q=one%0D%0Atwo", Ok(None)),
            ("GET", long.as_str(), Err(414)),
        ] {
            let got = origin_form(&request(method, target, &[]), &Limits::default()).map_err(|refusal| refusal.status);
            let got = got.map(|absolute| absolute.map(|Absolute { authority, target }| [authority, target].concat()));
            assert_eq!(got, expected.map(|target: Option<&str>| target.map(|t| t.as_bytes().to_vec())), "{target:.40}");
        }
    }
}
