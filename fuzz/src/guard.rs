//! The request guard, behind the engine's own reading: a head that is admitted has one meaning, and a strict reader of
//! the same bytes finds that very one.

use std::io::Cursor;

use headwall::fuzzing::{admit, admits};
use pingora::proxy::Session;
use tokio::runtime::Runtime;

thread_local! {
    static RUNTIME: Runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
}

/// A head as a strict reader takes it: no line that does not end with CR LF, no blank that the grammar does not have,
/// but for what the engine does to a target.
struct Head<'a> {
    method: &'a [u8],
    target: Vec<u8>,
    version: u8,
    fields: Vec<(Vec<u8>, &'a [u8])>,
}

fn strict(data: &[u8]) -> Result<Head<'_>, &'static str> {
    let mut data = data;
    // One empty line before a request is passed over (RFC 9112 §2.2).
    while let Some(rest) = data.strip_prefix(b"\r\n") {
        data = rest;
    }
    let end = data.windows(4).position(|four| four == b"\r\n\r\n").ok_or("no end")?;
    let head = &data[..end];
    if head.iter().enumerate().any(|(at, byte)| *byte == b'\n' && (at == 0 || head[at - 1] != b'\r')) {
        return Err("a bare line feed");
    }
    let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let first = lines.next().unwrap_or_default();
    let (method, rest) = first.split_at(first.iter().position(|byte| *byte == b' ').ok_or("one word")?);
    let (target, version) = rest.split_at(rest.iter().rposition(|byte| *byte == b' ').ok_or("two words")?);
    let (target, version) = (target.get(1..).ok_or("two words")?, &version[1..]);
    let version = match version {
        b"HTTP/1.1" => 1,
        b"HTTP/1.0" => 0,
        _ => return Err("no version"),
    };
    let mut fields = Vec::new();
    for text in lines {
        let colon = text.iter().position(|byte| *byte == b':').ok_or("no colon")?;
        let name = text[..colon].to_ascii_lowercase();
        let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
        if name.is_empty() || !name.iter().all(token) {
            return Err("no field name");
        }
        let value = text[colon + 1..].trim_ascii();
        if value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n')) {
            return Err("a control character in a value");
        }
        fields.push((name, value));
    }
    Ok(Head { method, target: escaped(target), version, fields })
}

/// Where there is a blank or a control character in a target, the engine escapes all that no target has.
fn escaped(target: &[u8]) -> Vec<u8> {
    if !target.iter().any(|byte| matches!(byte, 0..=b' ' | 0x7f)) {
        return target.to_vec();
    }
    let odd = |byte: u8| matches!(byte, 0..=b' ' | b'<' | b'>' | b'"' | 0x7f..);
    let escape = |byte: &u8| if odd(*byte) { format!("%{byte:02X}").into_bytes() } else { vec![*byte] };
    target.iter().flat_map(escape).collect()
}

impl Head<'_> {
    fn all(&self, name: &str) -> Vec<&[u8]> {
        self.fields.iter().filter(|(known, _)| known == name.as_bytes()).map(|(_, value)| *value).collect()
    }

    /// The target in origin form, and the host that it names if it was in another one.
    fn origin_form(&self) -> (Vec<u8>, Option<&[u8]>) {
        let lower = self.target.to_ascii_lowercase();
        let Some(after) = [&b"http://"[..], b"https://"].iter().find_map(|scheme| lower.strip_prefix(*scheme)) else {
            return (self.target.to_vec(), None);
        };
        let rest = &self.target[self.target.len() - after.len()..];
        let (host, path) = rest.split_at(rest.iter().position(|byte| b"/?".contains(byte)).unwrap_or(rest.len()));
        let path = if path.starts_with(b"/") { path.to_vec() } else { [b"/", path].concat() };
        (path, Some(host))
    }
}

/// The bytes of a connection.
pub fn run(data: &[u8]) {
    RUNTIME.with(|runtime| runtime.block_on(judge(data)));
}

async fn judge(data: &[u8]) {
    let mut session = Session::new_h1(Box::new(Cursor::new(data.to_vec())));
    if !matches!(session.downstream_session.read_request().await, Ok(true)) {
        return;
    }
    if !admit(&mut session) {
        return;
    }
    let request = session.req_header().clone();
    let shown = || String::from_utf8_lossy(&data[..data.len().min(400)]).into_owned();
    assert!(admits(&session), "admitted once and not twice: {:?}", shown());

    let target = request.raw_path();
    let star = target == b"*" && request.method == http::Method::OPTIONS;
    assert!(star || target.starts_with(b"/"), "{:?}", shown());
    assert!(target.iter().all(|byte| byte.is_ascii_graphic() && !b"\\#".contains(byte)), "{:?}", shown());
    assert!(target.len() <= 8 << 10 && request.headers.len() <= 100);
    assert!(!matches!(request.method, http::Method::TRACE | http::Method::CONNECT));

    let head = strict(data).unwrap_or_else(|why| panic!("admitted, and a strict reader says: {why}: {:?}", shown()));
    assert_eq!(request.method.as_str().as_bytes(), head.method, "{:?}", shown());
    let (origin_form, named) = head.origin_form();
    assert_eq!(target, origin_form, "{:?}", shown());
    assert_eq!(request.version == http::Version::HTTP_11, head.version == 1, "{:?}", shown());
    let hosts = head.all("host");
    assert!(hosts.len() <= 1 && (hosts.len() == 1 || head.version == 0), "{:?}", shown());
    let legal = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-:[]".contains(byte);
    assert!(hosts.iter().all(|host| !host.is_empty() && host.iter().all(legal)), "{:?}", shown());
    let (lengths, codings) = (head.all("content-length"), head.all("transfer-encoding"));
    assert!(lengths.len() + codings.len() <= 1, "more than one framing: {:?}", shown());
    assert!(lengths.iter().all(|length| !length.is_empty() && length.iter().all(u8::is_ascii_digit)), "{:?}", shown());
    assert!(codings.iter().all(|coding| coding.eq_ignore_ascii_case(b"chunked")), "{:?}", shown());
    assert!(codings.is_empty() || head.version == 1, "{:?}", shown());
    for (name, value) in &head.fields {
        let name = std::str::from_utf8(name).unwrap();
        let there = request.headers.get_all(name).iter().any(|known| known.as_bytes() == *value);
        assert!(there, "{name} is there, and not as it was written: {:?}", shown());
    }
    // A client of HTTP/1.0 may name the host in the target alone.
    let told = named.filter(|_| hosts.is_empty());
    assert_eq!(request.headers.len(), head.fields.len() + usize::from(told.is_some()), "{:?}", shown());
    if let Some(host) = told {
        assert!(request.headers["host"].as_bytes().eq_ignore_ascii_case(host), "{:?}", shown());
    }
}
