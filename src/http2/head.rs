//! The head of a request as HTTP/2 brings it, in the form that everything behind knows.
//!
//! `Host` stands for `:authority` and the target is what `:path` says, so that the guard, the key, plugins and the origin
//! see the same as for HTTP/1.1. What contradicts itself stays so that the guard sees it: two hosts are two lines of `Host`.

use bytes::{Bytes, BytesMut};
use http::header::{COOKIE, HOST};
use http::request::Parts;
use http::{HeaderValue, Method};
use pingora::http::{RequestHeader, ResponseHeader};

/// Why a request that HTTP/2 allows is none for us; an extension of its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unfit(pub &'static str);

/// The head.
pub fn read(mut parts: Parts) -> RequestHeader {
    // In HTTP/1.1 blanks around a value are no part of it; in HTTP/2 there must not be any.
    for value in parts.headers.values_mut() {
        let trimmed = value.as_bytes().trim_ascii();
        if trimmed.len() < value.len()
            && let Ok(trimmed) = HeaderValue::from_bytes(trimmed)
        {
            *value = trimmed;
        }
    }
    let (method, uri) = (parts.method.clone(), parts.uri.clone());
    let mut head = RequestHeader::from(parts);
    if let Some(authority) = uri.authority() {
        name_host(&mut head, authority.as_str());
    }
    join_cookies(&mut head);
    if uri.scheme().is_some_and(|scheme| !matches!(scheme.as_str(), "http" | "https")) {
        head.extensions_mut().insert(Unfit("the scheme is neither http nor https"));
    }
    let target = match uri.path_and_query() {
        Some(target) if method != Method::CONNECT => target.as_str(),
        _ => uri.authority().map_or("/", |authority| authority.as_str()),
    };
    if head.set_raw_path(target.as_bytes()).is_err() {
        head.extensions_mut().insert(Unfit("the request target cannot be read"));
    }
    head
}

/// The one host that `:authority` and `Host` agree on, or both.
fn name_host(head: &mut RequestHeader, authority: &str) {
    let mut lines = head.headers.get_all(HOST).iter();
    let one = lines.next().is_none_or(|line| line.as_bytes().eq_ignore_ascii_case(authority.as_bytes()));
    let alone = one && lines.next().is_none();
    let Ok(host) = HeaderValue::from_str(authority) else { return };
    let _ = if alone { head.insert_header(HOST, host) } else { head.append_header(HOST, host).map(|_| ()) };
}

/// Crumbs become the one line that they were cut from (RFC 9113 §8.2.3).
fn join_cookies(head: &mut RequestHeader) {
    let crumbs: Vec<_> = head.headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if crumbs.len() < 2 {
        return;
    }
    let line = HeaderValue::from_bytes(&crumbs.join(&b"; "[..]));
    if let Ok(line) = line {
        let _ = head.insert_header(COOKIE, line);
    }
}

/// The same head in HTTP/1.1, for exchanges that the engine begins on behalf of this one.
pub fn as_http1(head: &RequestHeader) -> Bytes {
    let mut wire = BytesMut::with_capacity(512);
    for part in [head.method.as_str().as_bytes(), b" ", head.raw_path(), b" HTTP/1.1\r\n"] {
        wire.extend_from_slice(part);
    }
    head.header_to_h1_wire(&mut wire);
    wire.extend_from_slice(b"\r\n");
    wire.freeze()
}

/// What a field must not be in HTTP/2 (RFC 9113 §8.2.2) is taken off a response.
pub fn strip(head: &mut ResponseHeader) {
    for name in ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"] {
        head.remove_header(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(uri: &str, fields: &[(&str, &str)]) -> RequestHeader {
        let mut request = http::Request::builder().uri(uri);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        read(request.body(()).unwrap().into_parts().0)
    }

    fn lines(head: &RequestHeader, name: &str) -> Vec<String> {
        head.headers.get_all(name).iter().map(|line| line.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn hosts() {
        for (why, uri, given, expected) in [
            ("from :authority", "http://a.test/x?y", &[][..], &["a.test"][..]),
            ("both the same", "http://a.test/x?y", &["A.Test"], &["a.test"]),
            ("they differ", "http://a.test/x?y", &["b.test"], &["b.test", "a.test"]),
            ("two of them", "http://a.test/x?y", &["a.test", "a.test"], &["a.test", "a.test", "a.test"]),
            ("from Host alone", "/x?y", &["b.test"], &["b.test"]),
            ("none", "/x?y", &[], &[]),
        ] {
            let given: Vec<_> = given.iter().map(|host| ("host", *host)).collect();
            let head = head(uri, &given);
            assert_eq!(lines(&head, "host"), expected, "{why}");
            assert_eq!(head.raw_path(), b"/x?y", "{why}");
            assert!(head.uri.authority().is_none(), "{why}: the key must not see two hosts");
        }
    }

    #[test]
    fn crumbs_are_one_line() {
        let crumbs = [("cookie", "a=1"), ("x", "y"), ("cookie", "b=2; c=3"), ("cookie", "d=4")];
        assert_eq!(lines(&head("http://a.test/", &crumbs), "cookie"), ["a=1; b=2; c=3; d=4"]);
        assert_eq!(lines(&head("http://a.test/", &[("cookie", "a=1")]), "cookie"), ["a=1"]);
    }

    #[test]
    fn blanks_around_a_value_are_no_part_of_it() {
        for (value, expected) in [(" a b\t", "a b"), ("a", "a"), (" ", "")] {
            assert_eq!(lines(&head("http://a.test/", &[("x", value)]), "x"), [expected]);
        }
    }

    #[test]
    fn schemes() {
        for (uri, unfit) in [("http://a.test/", false), ("https://a.test/", false), ("ftp://a.test/", true)] {
            assert_eq!(head(uri, &[]).extensions.get::<Unfit>().is_some(), unfit, "{uri}");
        }
    }

    #[test]
    fn the_same_in_http_1() {
        let head = head("http://a.test/x?y", &[("accept", "*/*")]);
        assert_eq!(as_http1(&head), "GET /x?y HTTP/1.1\r\naccept: */*\r\nHost: a.test\r\n\r\n");
    }
}
