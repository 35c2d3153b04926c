//! `Connection` and framing: what is meant for one connection goes no further, and what stays stays as it is.

use headwall::fields::connection::{frames, one_framing, strip, strip_named};
use headwall::{RequestHeader, ResponseHeader};
use http::HeaderName;

use super::input::{head, joined, plain_members, values};

/// Two bytes choose the status, the rest is a head.
pub fn run(data: &[u8]) {
    let Some((status, data)) = data.split_first_chunk::<2>() else { return };
    let status = [200, 204, 304, 101, 206, 500][usize::from(status[0]) % 6];
    let fields = head(data);
    request(&fields);
    response(status, &fields);
}

fn named(fields: &http::HeaderMap) -> Vec<HeaderName> {
    let list = joined(fields, "connection");
    plain_members(&list).into_iter().filter_map(|name| HeaderName::from_bytes(name).ok()).collect()
}

fn request(fields: &http::HeaderMap) {
    let mut request = RequestHeader::build("GET", b"/", None).unwrap();
    for (name, value) in fields {
        request.append_header(name, value).unwrap();
    }
    strip_named(&mut request);
    let quoted = joined(fields, "connection").contains(&b'"');
    let kept = |name: &HeaderName| {
        frames(name.as_str())
            || ["close", "forwarded", "host", "http2-settings"].contains(&name.as_str())
            || ["x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"].contains(&name.as_str())
    };
    let named = named(fields);
    for name in fields.keys().filter(|name| *name != "connection" && !quoted) {
        let gone = named.contains(name) && !kept(name);
        let expected = if gone { Vec::new() } else { values(fields, name.as_str()) };
        assert_eq!(values(&request.headers, name.as_str()), expected, "{name} of {fields:?}");
    }
    let once = request.headers.clone();
    strip_named(&mut request);
    assert_eq!(request.headers, once, "two times is once");
}

fn response(status: u16, fields: &http::HeaderMap) {
    let mut response = ResponseHeader::build(status, None).unwrap();
    for (name, value) in fields {
        response.append_header(name, value).unwrap();
    }
    if one_framing(&mut response) {
        let (lengths, codings) =
            (values(&response.headers, "content-length"), values(&response.headers, "transfer-encoding"));
        assert!(lengths.len() <= 1 && codings.len() <= 1, "{:?}", response.headers);
        assert!(codings.iter().all(|coding| coding.eq_ignore_ascii_case(b"chunked")), "{codings:?}");
        assert!(status != 204 || (lengths.is_empty() && codings.is_empty()));
    }
    strip(&mut response);
    for name in ["keep-alive", "proxy-connection", "te", "trailer", "proxy-authenticate"] {
        assert!(!response.headers.contains_key(name), "{name}");
    }
    if status != 101 {
        assert!(!response.headers.contains_key("connection") && !response.headers.contains_key("upgrade"));
    }
    let once = response.headers.clone();
    strip(&mut response);
    assert_eq!(response.headers, once, "two times is once");
}
