//! `Cache-Control` (RFC 9111 §5.2), read so that doubt means less caching.
//!
//! A directive that stands twice counts in its most restrictive form; an age that
//! is no number is zero; a number too large is the largest we keep (§1.2.2).

use std::time::Duration;

use http::HeaderMap;
use http::header::CACHE_CONTROL;

use super::members;

/// What the directives say. `None` is "not there".
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheControl {
    /// `no-store`
    pub no_store: bool,
    /// `no-cache`, with or without field names: we validate in both cases.
    pub no_cache: bool,
    /// `private`, with or without field names: we do not store in both cases.
    pub private: bool,
    /// `public`
    pub public: bool,
    /// `must-revalidate`
    pub must_revalidate: bool,
    /// `proxy-revalidate`
    pub proxy_revalidate: bool,
    /// `only-if-cached`
    pub only_if_cached: bool,
    /// `max-age`
    pub max_age: Option<Duration>,
    /// `s-maxage`
    pub s_maxage: Option<Duration>,
    /// `min-fresh`
    pub min_fresh: Option<Duration>,
    /// `stale-while-revalidate` (RFC 5861 §3)
    pub stale_while_revalidate: Option<Duration>,
    /// `stale-if-error` (RFC 5861 §4)
    pub stale_if_error: Option<Duration>,
}

/// RFC 9111 §1.2.2: what is larger counts as this many seconds.
const LARGEST: u64 = 2_147_483_648;

fn seconds(value: Option<&[u8]>) -> Duration {
    let digits = value.map(|v| v.strip_prefix(b"\"").and_then(|v| v.strip_suffix(b"\"")).unwrap_or(v)).unwrap_or(b"");
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Duration::ZERO;
    }
    let number = std::str::from_utf8(digits).ok().and_then(|d| d.parse::<u64>().ok()).unwrap_or(LARGEST);
    Duration::from_secs(number.min(LARGEST))
}

fn open_quote(line: &[u8]) -> bool {
    let (mut quoted, mut escaped) = (false, false);
    for byte in line {
        if *byte == b'"' && !escaped {
            quoted = !quoted;
        }
        escaped = quoted && *byte == b'\\' && !escaped;
    }
    quoted
}

/// The smaller of what was there and what comes.
fn least(place: &mut Option<Duration>, value: Option<&[u8]>) {
    let value = seconds(value);
    *place = Some(place.map_or(value, |there| there.min(value)));
}

impl CacheControl {
    /// Reads all lines of the field.
    pub fn of(fields: &HeaderMap) -> Self {
        Self::named(fields, CACHE_CONTROL.as_str())
    }

    /// Reads all lines of a field that has the same directives (RFC 9213).
    pub fn named(fields: &HeaderMap, name: &str) -> Self {
        // A quote that is never closed hides what stands behind it.
        let open = fields.get_all(name).iter().any(|line| open_quote(line.as_bytes()));
        let mut cc = CacheControl { no_store: open, ..CacheControl::default() };
        for member in members(fields, name) {
            let (name, value) = match member.iter().position(|byte| *byte == b'=') {
                Some(at) => (member[..at].trim_ascii(), Some(member[at + 1..].trim_ascii())),
                None => (member, None),
            };
            match name.to_ascii_lowercase().as_slice() {
                b"no-store" => cc.no_store = true,
                b"no-cache" => cc.no_cache = true,
                b"private" => cc.private = true,
                b"public" => cc.public = true,
                b"must-revalidate" => cc.must_revalidate = true,
                b"proxy-revalidate" => cc.proxy_revalidate = true,
                b"only-if-cached" => cc.only_if_cached = true,
                b"max-age" => least(&mut cc.max_age, value),
                b"s-maxage" => least(&mut cc.s_maxage, value),
                b"min-fresh" => cc.min_fresh = Some(seconds(value)),
                b"stale-while-revalidate" => least(&mut cc.stale_while_revalidate, value),
                b"stale-if-error" => least(&mut cc.stale_if_error, value),
                _ => {}
            }
        }
        cc
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::fields;

    #[test]
    fn the_most_restrictive_reading_wins() {
        let secs = |s| Some(Duration::from_secs(s));
        let base = CacheControl::default();
        for (value, expected) in [
            ("max-age=60", CacheControl { max_age: secs(60), ..base }),
            ("MAX-AGE=60, Public", CacheControl { max_age: secs(60), public: true, ..base }),
            ("max-age=60, max-age=1", CacheControl { max_age: secs(1), ..base }),
            ("max-age=1, max-age=60", CacheControl { max_age: secs(1), ..base }),
            ("max-age=\"30\"", CacheControl { max_age: secs(30), ..base }),
            ("max-age=abc", CacheControl { max_age: secs(0), ..base }),
            ("max-age=-1", CacheControl { max_age: secs(0), ..base }),
            ("max-age=1.5", CacheControl { max_age: secs(0), ..base }),
            ("max-age", CacheControl { max_age: secs(0), ..base }),
            ("max-age=99999999999999999999", CacheControl { max_age: secs(LARGEST), ..base }),
            ("private=\"set-cookie\"", CacheControl { private: true, ..base }),
            ("private, private=x", CacheControl { private: true, ..base }),
            ("no-cache=\"a, b\", no-cache", CacheControl { no_cache: true, ..base }),
            ("x=\"no-store, private\"", base),
            ("max-age=60, x=\"a, private", CacheControl { no_store: true, max_age: secs(60), ..base }),
            (
                "s-maxage=5, stale-while-revalidate=9",
                CacheControl { s_maxage: secs(5), stale_while_revalidate: secs(9), ..base },
            ),
        ] {
            assert_eq!(CacheControl::of(&fields(&format!("cache-control: {value}"))), expected, "{value}");
        }
        let two_lines = fields("cache-control: max-age=60\nx: y\ncache-control: no-store");
        assert!(CacheControl::of(&two_lines).no_store);
    }
}
