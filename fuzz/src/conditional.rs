//! Entity tags and conditions: a list names a tag where a reader of the grammar finds it there, and nowhere else.

use std::time::SystemTime;

use headwall::fields::conditional::{if_range_holds, names, not_modified, strongly_equal, weakly_equal};
use headwall::{RequestHeader, ResponseHeader};
use http::header::{ETAG, IF_NONE_MATCH, IF_RANGE};

use super::input::{joined, lines};

/// The members of a list of entity tags (RFC 9110 §8.8.3), read letter by letter; `None` where it is no such list.
fn tags(list: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (mut found, mut rest) = (Vec::new(), list);
    loop {
        while let Some(b',' | b' ' | b'\t') = rest.first() {
            rest = &rest[1..];
        }
        if rest.is_empty() {
            return Some(found);
        }
        let quote = if rest.starts_with(b"W/") { 2 } else { 0 };
        let inside = rest.get(quote..)?.strip_prefix(b"\"")?;
        let length = inside.iter().position(|byte| *byte == b'"')?;
        let end = quote + length + 2;
        found.push(rest[..end].to_vec());
        rest = &rest[end..];
        let next = rest.trim_ascii_start();
        if !next.is_empty() && !next.starts_with(b",") {
            return None;
        }
    }
}

/// The tag of what is stored, a line end, and the lines of the condition.
pub fn run(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (tag, condition) = (&data[..end], data.get(end + 1..).unwrap_or_default());
    let fields = lines("if-none-match", condition);
    let list = joined(&fields, "if-none-match");
    let weak = names(&fields, &IF_NONE_MATCH, Some(tag), weakly_equal);
    let strong = names(&fields, &IF_NONE_MATCH, Some(tag), strongly_equal);
    assert_eq!(weak.is_some(), !fields.is_empty());
    assert!(strong != Some(true) || weak == Some(true), "what is the same byte for byte is weakly the same");
    // Some readers take a backslash for an escape, so servers write none (§8.8.3).
    let well_formed =
        tags(tag).is_some_and(|tags| tags.len() == 1) && tag.trim_ascii() == tag && !tag.starts_with(b",");
    let known: Option<Vec<_>> = fields.get_all(&IF_NONE_MATCH).iter().map(|line| tags(line.as_bytes())).collect();
    if let Some(known) = known.filter(|_| well_formed && !data.contains(&b'\\') && !fields.is_empty()) {
        let known = known.concat();
        let opaque = |tag: &[u8]| tag.strip_prefix(b"W/").unwrap_or(tag).to_vec();
        assert_eq!(weak, Some(known.iter().any(|one| opaque(one) == opaque(tag))), "{list:?} and {tag:?}");
        let same = |one: &Vec<u8>| one == tag && !tag.starts_with(b"W/");
        assert_eq!(strong, Some(known.iter().any(same)), "{list:?} and {tag:?}");
    }
    let mut request = RequestHeader::build("GET", b"/", None).unwrap();
    for value in fields.get_all(&IF_NONE_MATCH) {
        request.append_header(IF_NONE_MATCH, value).unwrap();
    }
    let mut response = ResponseHeader::build(200, None).unwrap();
    if response.insert_header(ETAG, tag).is_err() {
        return;
    }
    if !fields.is_empty() {
        let any = list.split(|byte| *byte == b',').any(|member| member.trim_ascii() == b"*");
        let not = not_modified(&request, &response, SystemTime::now());
        assert!(not == (weak == Some(true)) || any, "{list:?} and {tag:?}");
        request.set_method(http::Method::POST);
        assert!(!not_modified(&request, &response, SystemTime::now()));
    }
    let mut ranged = http::HeaderMap::new();
    for value in fields.get_all(&IF_NONE_MATCH).iter().take(1) {
        ranged.insert(IF_RANGE, value.clone());
    }
    if if_range_holds(&ranged, &response.headers) && !ranged.is_empty() {
        assert_eq!(ranged[IF_RANGE].as_bytes().trim_ascii(), tag, "a part of something else");
        assert!(!tag.starts_with(b"W/"), "a weak tag does not name the bytes");
    }
}
