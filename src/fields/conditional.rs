//! Entity tags and the conditions that name them (RFC 9110 §8.8.3 and §13.1).

use std::time::SystemTime;

use http::header::{AsHeaderName, DATE, ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, LAST_MODIFIED};
use http::{HeaderMap, Method};
use pingora::http::{RequestHeader, ResponseHeader};

use super::{date, members};

fn opaque(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// Whether two tags name the same content, weak tags allowed (§8.8.3.2).
pub fn weakly_equal(a: &[u8], b: &[u8]) -> bool {
    opaque(a) == opaque(b)
}

/// Whether two tags name the same bytes (§8.8.3.2).
pub fn strongly_equal(a: &[u8], b: &[u8]) -> bool {
    a == b && !a.starts_with(b"W/")
}

/// Whether a list such as `If-Match: "a", "b"` or `*` names `tag`; `None` when the field is absent.
///
/// `tag` is `None` when there is no current representation; `*` then names nothing.
pub fn names(
    fields: &HeaderMap,
    name: impl AsHeaderName + Copy,
    tag: Option<&[u8]>,
    equal: fn(&[u8], &[u8]) -> bool,
) -> Option<bool> {
    fields.get(name)?;
    Some(tag.is_some_and(|tag| members(fields, name).any(|member| member == b"*" || equal(member, tag))))
}

/// Whether the client has this response already (RFC 9111 §4.3.2): `If-None-Match` by weak comparison, and
/// only without that field `If-Modified-Since`, against the response's own date where it has no `Last-Modified`.
pub fn not_modified(request: &RequestHeader, response: &ResponseHeader, now: SystemTime) -> bool {
    let fields = &response.headers;
    if response.status != 200 || !matches!(request.method, Method::GET | Method::HEAD) {
        return false;
    }
    let tag = fields.get(ETAG).map(|tag| tag.as_bytes());
    if let Some(named) = names(&request.headers, &IF_NONE_MATCH, tag, weakly_equal) {
        // A star names whatever there is, with a tag or without.
        return named || members(&request.headers, &IF_NONE_MATCH).any(|member| member == b"*");
    }
    let Some(since) = date::of(&request.headers, IF_MODIFIED_SINCE, now) else { return false };
    let modified = match fields.contains_key(LAST_MODIFIED) {
        true => date::of(fields, LAST_MODIFIED, now),
        false => date::of(fields, DATE, now),
    };
    modified.is_some_and(|modified| since >= modified)
}

/// Whether `If-Range` allows a part of this response to be sent (§13.1.5): a strong tag or an exact date.
pub fn if_range_holds(request: &HeaderMap, response: &HeaderMap) -> bool {
    let Some(condition) = request.get(IF_RANGE) else { return true };
    let condition = condition.as_bytes().trim_ascii();
    if condition.ends_with(b"\"") {
        response.get(ETAG).is_some_and(|tag| strongly_equal(tag.as_bytes(), condition))
    } else {
        response.get(LAST_MODIFIED).is_some_and(|date| date.as_bytes() == condition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::fields;

    #[test]
    fn comparison_is_strong_or_weak() {
        for (condition, tag, strong, weak) in [
            ("\"a\"", "\"a\"", true, true),
            ("W/\"a\"", "\"a\"", false, true),
            ("W/\"a\"", "W/\"a\"", false, true),
            ("\"b\", \"a\"", "\"a\"", true, true),
            ("\"a,b\"", "\"a\"", false, false),
            ("*", "\"a\"", true, true),
            ("\"b\"", "\"a\"", false, false),
        ] {
            let request = fields(&format!("if-match: {condition}"));
            assert_eq!(names(&request, "if-match", Some(tag.as_bytes()), strongly_equal), Some(strong), "{condition}");
            assert_eq!(names(&request, "if-match", Some(tag.as_bytes()), weakly_equal), Some(weak), "{condition}");
        }
        assert_eq!(names(&fields("if-match: *"), "if-match", None, strongly_equal), Some(false));
        assert_eq!(names(&fields(""), "if-match", None, strongly_equal), None);
    }

    #[test]
    fn who_has_it_already() {
        let now = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_800_000_000);
        let (before, same, after) =
            ("Sun, 06 Nov 1994 08:49:36 GMT", "Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:38 GMT");
        let tag = "etag: \"a\"";
        let modified = format!("last-modified: {same}\ndate: {after}");
        let dated = format!("date: {same}");
        for (why, request, response, expected) in [
            ("weak comparison", "if-none-match: W/\"a\"".into(), tag, true),
            ("one of several", "if-none-match: \"b\", \"a\"".into(), tag, true),
            ("on another line", "if-none-match: \"b\"\nif-none-match: \"a\"".into(), tag, true),
            ("none of them", "if-none-match: \"b\"".into(), tag, false),
            ("whatever there is", "if-none-match: *".into(), "", true),
            ("no tag to compare", "if-none-match: \"a\"".into(), "", false),
            ("the tag decides alone", format!("if-none-match: \"b\"\nif-modified-since: {after}"), &modified, false),
            ("modified then", format!("if-modified-since: {same}"), &modified, true),
            ("modified before", format!("if-modified-since: {after}"), &modified, true),
            ("modified since", format!("if-modified-since: {before}"), &modified, false),
            ("no date", "if-modified-since: yesterday".into(), &modified, false),
            ("generated then", format!("if-modified-since: {same}"), &dated, true),
            ("generated since", format!("if-modified-since: {before}"), &dated, false),
            ("no date to compare", format!("if-modified-since: {same}"), "last-modified: x\ndate: y", false),
            ("nothing asked", String::new(), tag, false),
        ] {
            let mut head = RequestHeader::build("GET", b"/", None).unwrap();
            for (name, value) in &fields(&request) {
                head.append_header(name, value).unwrap();
            }
            let mut stored = ResponseHeader::build(200, None).unwrap();
            for (name, value) in &fields(response) {
                stored.append_header(name, value).unwrap();
            }
            assert_eq!(not_modified(&head, &stored, now), expected, "{why}");
            stored.set_status(404).unwrap();
            assert!(!not_modified(&head, &stored, now), "{why}, for a 404");
        }
    }

    #[test]
    fn if_range_wants_the_very_same_bytes() {
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        let stored = fields(&format!("etag: \"v1\"\nlast-modified: {date}"));
        for (condition, expected) in [
            ("\"v1\"", true),
            ("W/\"v1\"", false),
            ("\"v0\"", false),
            (date, true),
            ("Sun, 06 Nov 1994 08:49:38 GMT", false),
        ] {
            assert_eq!(if_range_holds(&fields(&format!("if-range: {condition}")), &stored), expected, "{condition}");
        }
        assert!(!if_range_holds(&fields("if-range: W/\"v1\""), &fields("etag: W/\"v1\"")));
        assert!(if_range_holds(&fields(""), &stored));
    }
}
