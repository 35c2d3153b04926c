//! Lines of access logs: any bytes are a line or say what is missing, and what a server writes is read as it was meant.

use arbitrary::{Arbitrary, Unstructured};
use headwall::fuzzing::Line;
use http::header::{REFERER, USER_AGENT};

#[derive(Debug, Arbitrary)]
struct Request {
    seconds: u32,
    target: Vec<u8>,
    agent: Vec<u8>,
    status: u16,
    bytes: u32,
    json: bool,
}

/// A line; and one that is written from the same bytes.
pub fn run(data: &[u8]) {
    if let Ok(line) = Line::parse(data) {
        assert!(line.status == 0 || (100..600).contains(&line.status));
        assert!(line.bytes <= 1 << 50 && line.at <= 10_000_000_000 * 1_000_000_000);
        assert!(!line.method.as_str().is_empty());
        let absolute =
            |scheme: &str| line.target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
        assert!(line.host.is_none() || !absolute("http://") || line.target.starts_with('/'), "{line:?}");
        assert!(line.weight() >= line.target.len());
        line.wall();
    }
    if let Ok(request) = Request::arbitrary(&mut Unstructured::new(data)) {
        written(&request);
    }
}

/// As nginx escapes what is in quotes.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' | 0..=0x1f | 0x7f.. => out.push_str(&format!("\\x{byte:02X}")),
            other => out.push(char::from(other)),
        }
    }
    out
}

fn written(request: &Request) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (target, agent) = (format!("/{}", text(&request.target)), text(&request.agent));
    let status = 100 + request.status % 500;
    let at = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(request.seconds.into());
    // `Sun, 06 Nov 1994 08:49:37 GMT`
    let date = httpdate::fmt_http_date(at);
    let (day, month, year, time) = (&date[5..7], &date[8..11], &date[12..16], &date[17..25]);
    let line = match request.json {
        true => format!(
            "{{\"ts\":{}.25,\"method\":\"GET\",\"uri\":{},\"status\":{status},\"bytes\":{},\"http_user_agent\":{}}}",
            request.seconds,
            json(&target),
            request.bytes,
            json(&agent),
        ),
        false => format!(
            "192.0.2.1 - - [{day}/{month}/{year}:{time} +0000] \"GET {} HTTP/1.1\" {status} {} \"-\" \"{}\"",
            escaped(&target),
            request.bytes,
            escaped(&agent),
        ),
    };
    let read = Line::parse(line.as_bytes()).unwrap_or_else(|why| panic!("{line}: {why}"));
    // Nobody writes a `-` that he means.
    let field = |name| read.request.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_bytes().to_vec());
    assert_eq!((read.status, read.bytes, read.target.as_str()), (status, request.bytes.into(), &*target), "{line}");
    assert_eq!(read.at / 1_000_000_000, u64::from(request.seconds), "{line}");
    assert_eq!(field(REFERER), None);
    let legal = http::HeaderValue::from_bytes(agent.as_bytes()).is_ok() && !matches!(&*agent, "" | "-");
    assert_eq!(field(USER_AGENT), legal.then(|| agent.into_bytes()), "{line}");
}

fn json(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            letter if (letter as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", letter as u32)),
            letter => out.push(letter),
        }
    }
    out + "\""
}
