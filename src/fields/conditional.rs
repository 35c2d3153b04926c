//! Entity tags and the conditions that name them (RFC 9110 §8.8.3 and §13.1).

use http::HeaderMap;
use http::header::{AsHeaderName, ETAG, IF_RANGE, LAST_MODIFIED};

use super::members;

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
