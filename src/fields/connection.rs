//! Fields that are meant for one connection only (RFC 9110 §7.6.1).

use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue};
use pingora::http::{RequestHeader, ResponseHeader};

use super::members;

/// Fields that never travel further, whether `Connection` names them or not.
const SINGLE_HOP: &[&str] = &[
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-connection",
    "te",
    "trailer",
    "upgrade",
];

/// Whether changing this field would break the message or its connection.
pub fn frames(name: &str) -> bool {
    let framing = |known: &&str| known.eq_ignore_ascii_case(name);
    SINGLE_HOP.iter().chain(&["content-length", "transfer-encoding"]).any(framing)
}

/// Whether this names no transfer coding that there is (RFC 9112 §7), so that nothing has been done to the content.
pub fn is_no_coding(name: &[u8]) -> bool {
    let registered = ["chunked", "compress", "deflate", "gzip", "x-compress", "x-gzip"];
    let token = !name.is_empty() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte));
    // What only looks like a coding is somebody's trick.
    let like = |known: &&str| name.windows(known.len()).any(|part| part.eq_ignore_ascii_case(known.as_bytes()));
    token && !registered.iter().any(like)
}

/// Whether the origin frames its content in the one way that we and everybody after us read alike
/// (RFC 9112 §6). Takes off what a response without content must not have, and repetitions.
pub fn one_framing(response: &mut ResponseHeader) -> bool {
    if response.status == 204 {
        response.remove_header(&CONTENT_LENGTH);
        response.remove_header(&TRANSFER_ENCODING);
    }
    let mut codings = response.headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next().map(|coding| coding.as_bytes()), codings.next()) {
        (None, _) => {}
        (Some(only), None) if only.eq_ignore_ascii_case(b"chunked") => {}
        (Some(only), None) if is_no_coding(only) && !response.headers.contains_key(CONTENT_LENGTH) => {
            // The content then is all up to the end of the connection (RFC 9112 §6.3).
            response.remove_header(&TRANSFER_ENCODING);
        }
        _ => return false,
    }
    // Equal lengths, more than once, count as one (RFC 9110 §8.6); the engine has refused unequal ones.
    let mut lengths = members(&response.headers, CONTENT_LENGTH);
    if let (Some(first), Some(_)) = (lengths.next(), lengths.next()) {
        let Ok(length) = HeaderValue::from_bytes(first) else { return false };
        drop(lengths);
        return response.insert_header(CONTENT_LENGTH, length).is_ok();
    }
    true
}

/// Removes what was meant for the connection to the origin only.
///
/// `Transfer-Encoding` stays: the engine frames the message with it. A 101 keeps
/// `Connection` and `Upgrade`, which are its whole point.
pub fn strip(response: &mut ResponseHeader) {
    let switching = response.status == 101;
    if response.headers.contains_key(CONNECTION) {
        let named: Vec<HeaderName> = members(&response.headers, CONNECTION)
            .filter_map(|name| HeaderName::from_bytes(name).ok())
            .filter(|name| !matches!(name.as_str(), "transfer-encoding" | "content-length" | "upgrade"))
            .collect();
        for name in named {
            response.remove_header(&name);
        }
    }
    for name in SINGLE_HOP {
        if !(switching && matches!(*name, "connection" | "upgrade")) {
            response.remove_header(*name);
        }
    }
}

/// Removes from a request what its `Connection` names, so that nobody here reads a field that the origin does not
/// get: no route, no plugin, no key. What is removed is named no more, so that it does not take along what a plugin
/// puts in its place.
///
/// The fields of the connection itself stay for the engine, and so do the names that it refuses, and what shows that
/// somebody speaks for others: who does cannot hide it.
pub fn strip_named(request: &mut RequestHeader) {
    let others = ["close", "forwarded", "host", "http2-settings"];
    let told = ["x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];
    let stays = |name: &str| frames(name) || others.contains(&name) || told.contains(&name);
    let named = |option: &[u8]| HeaderName::from_bytes(option).ok().filter(|name| !stays(name.as_str()));
    let gone: Vec<HeaderName> = members(&request.headers, CONNECTION).filter_map(named).collect();
    if gone.is_empty() {
        return;
    }
    let kept: Vec<_> = members(&request.headers, CONNECTION).filter(|option| named(option).is_none()).collect();
    let kept = HeaderValue::from_bytes(&kept.join(&b", "[..])).ok().filter(|kept| !kept.is_empty());
    request.remove_header(&CONNECTION);
    if let Some(kept) = kept {
        let _ = request.insert_header(CONNECTION, kept);
    }
    for name in gone {
        request.remove_header(&name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_request_names_goes_before_anybody_reads_it() {
        for (connection, left) in [
            ("close, RSC, Accept-Language", &["connection: close"][..]),
            ("rsc", &["accept-language: de"]),
            ("keep-alive, Upgrade", &["accept-language: de", "connection: keep-alive, Upgrade", "rsc: 1"]),
            // The engine refuses these.
            ("Host, rsc", &["accept-language: de", "connection: Host"]),
            ("(, rsc", &["accept-language: de", "connection: ("]),
            ("Forwarded, rsc", &["accept-language: de", "connection: Forwarded"]),
        ] {
            let mut head = RequestHeader::build("GET", b"/", None).unwrap();
            for (name, value) in [("connection", connection), ("rsc", "1"), ("accept-language", "de")] {
                head.append_header(name, value).unwrap();
            }
            strip_named(&mut head);
            let line = |(name, value): (&HeaderName, &HeaderValue)| format!("{name}: {}", value.to_str().unwrap());
            let mut lines: Vec<_> = head.headers.iter().map(line).collect();
            lines.sort();
            assert_eq!(lines, left, "{connection}");
        }
    }

    fn stripped(status: u16, lines: &[(&'static str, &'static str)]) -> Vec<String> {
        let mut head = ResponseHeader::build(status, None).unwrap();
        for (name, value) in lines {
            head.append_header(*name, *value).unwrap();
        }
        strip(&mut head);
        let mut left: Vec<_> = head.headers.keys().map(ToString::to_string).collect();
        left.sort();
        left
    }

    #[test]
    fn what_is_named_goes_and_framing_stays() {
        let lines = [
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("trailer", "x"),
            ("transfer-encoding", "chunked"),
            ("x-keep", "1"),
        ];
        assert_eq!(stripped(200, &lines), ["transfer-encoding", "x-keep"]);
        assert_eq!(
            stripped(200, &[("connection", "transfer-encoding"), ("transfer-encoding", "chunked")]),
            ["transfer-encoding"]
        );
    }

    #[test]
    fn there_is_one_framing() {
        for (status, lines, fits, left) in [
            (200, &[("content-length", "5")][..], true, Some("5")),
            (200, &[("content-length", "5, 5")], true, Some("5")),
            (200, &[("content-length", "5"), ("content-length", "5")], true, Some("5")),
            (200, &[("transfer-encoding", "Chunked")], true, None),
            (200, &[("transfer-encoding", "gzip, chunked")], false, None),
            (200, &[("transfer-encoding", "gzip")], false, None),
            (200, &[("transfer-encoding", "xchunked")], false, None),
            (200, &[("transfer-encoding", "chunked;q=1")], false, None),
            (200, &[("transfer-encoding", "identity")], true, None),
            (200, &[("transfer-encoding", "identity"), ("content-length", "5")], false, Some("5")),
            (200, &[("transfer-encoding", "gzip"), ("transfer-encoding", "chunked")], false, None),
            (204, &[("content-length", "5"), ("transfer-encoding", "chunked")], true, None),
        ] {
            let mut head = ResponseHeader::build(status, None).unwrap();
            for (name, value) in lines {
                head.append_header(*name, *value).unwrap();
            }
            assert_eq!(one_framing(&mut head), fits, "{lines:?}");
            assert_eq!(head.headers.get(CONTENT_LENGTH).map(|v| v.to_str().unwrap()), left, "{lines:?}");
        }
    }

    #[test]
    fn a_101_keeps_its_upgrade() {
        assert_eq!(
            stripped(101, &[("connection", "upgrade"), ("upgrade", "websocket"), ("keep-alive", "x")]),
            ["connection", "upgrade"]
        );
    }
}
