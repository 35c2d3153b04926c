//! Which fields name the very bytes of a representation (RFC 9110 §8.8.1).

use std::time::{Duration, SystemTime};

use http::header::{CONTENT_ENCODING, DATE, ETAG, LAST_MODIFIED};
use http::{HeaderMap, HeaderValue};

use super::date;

/// Between a change and a response whose date then names the bytes (§8.8.2.2).
const A_WHILE: Duration = Duration::from_secs(60);

/// The tag, if it is a strong one.
pub fn strong_tag(fields: &HeaderMap) -> Option<&HeaderValue> {
    fields.get(ETAG).filter(|tag| tag.as_bytes().starts_with(b"\""))
}

/// The date of the last change, if the response was made a while after it. What a year of two digits means
/// depends on today.
pub fn strong_date(fields: &HeaderMap, today: SystemTime) -> Option<&HeaderValue> {
    let (modified, made) = (date::of(fields, LAST_MODIFIED, today)?, date::of(fields, DATE, today)?);
    fields.get(LAST_MODIFIED).filter(|_| made.duration_since(modified).is_ok_and(|since| since >= A_WHILE))
}

/// Whether something names the bytes for certain.
pub fn strong(fields: &HeaderMap, today: SystemTime) -> bool {
    strong_tag(fields).is_some() || strong_date(fields, today).is_some()
}

/// Whether two heads name the same bytes for certain.
pub fn same(one: &HeaderMap, other: &HeaderMap, today: SystemTime) -> bool {
    // A weak tag says too little, but what it says counts beside a date; and two codings of a file have one date.
    let dated = || {
        strong_date(one, today).is_some()
            && strong_date(one, today) == strong_date(other, today)
            && one.get(CONTENT_ENCODING) == other.get(CONTENT_ENCODING)
    };
    one.get(ETAG) == other.get(ETAG) && (strong_tag(one).is_some() || dated())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::fields;

    #[test]
    fn what_names_the_same_bytes() {
        let (old, date) = ("last-modified: Mon, 30 Nov 2020 00:00:00 GMT", "date: Tue, 01 Dec 2020 00:00:00 GMT");
        for (one, other, expected) in [
            ("etag: \"a\"", "etag: \"a\"", true),
            ("etag: \"a\"", "etag: \"b\"", false),
            ("etag: W/\"a\"", "etag: W/\"a\"", false),
            ("etag: \"a\"", "", false),
            ("", "", false),
            (&format!("{old}\n{date}"), &format!("{old}\n{date}"), true),
            (&format!("{old}\n{date}\netag: W/\"a\""), &format!("{old}\n{date}\netag: W/\"a\""), true),
            (&format!("{old}\n{date}\netag: W/\"a\""), &format!("{old}\n{date}\netag: W/\"b\""), false),
            (old, old, false),
            (&format!("{old}\n{date}\ncontent-encoding: gzip"), &format!("{old}\n{date}"), false),
            ("etag: unquoted", "etag: unquoted", false),
            // Changed in the second before: perhaps twice.
            (&format!("{old}\ndate: Mon, 30 Nov 2020 00:00:01 GMT"), &format!("{old}\n{date}"), false),
        ] {
            assert_eq!(same(&fields(one), &fields(other), SystemTime::now()), expected, "{one} / {other}");
        }
    }
}
