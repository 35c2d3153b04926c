//! `Cache-Control` (RFC 9111 §5.2), read so that doubt means less caching.
//!
//! A directive that stands twice counts in its most restrictive form; an age that
//! is no number is zero; a number too large is the largest we keep (§1.2.2).
//!
//! The targeted fields of RFC 9213 have the same directives in another grammar, that
//! of structured fields: one that breaks it counts as absent (§2.1).

use std::time::Duration;

use http::header::CACHE_CONTROL;
use http::{HeaderMap, HeaderName};
use sfv::{BareItem, ListEntry, Parser};

use super::{members, open_quote};

/// What the directives say. `None` is "not there".
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheControl {
    /// `no-store`
    pub no_store: bool,
    /// `must-understand` (§5.2.2.3)
    pub must_understand: bool,
    /// `no-cache` for the whole response.
    pub no_cache: bool,
    /// `private` for the whole response.
    pub private: bool,
    /// The fields that `private="…"` and `no-cache="…"` name: they go to the first client and are not kept.
    pub withheld: Vec<HeaderName>,
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
    /// `max-stale`; without a value there is no limit.
    pub max_stale: Option<Duration>,
    /// `stale-while-revalidate` (RFC 5861 §3)
    pub stale_while_revalidate: Option<Duration>,
    /// `stale-if-error` (RFC 5861 §4)
    pub stale_if_error: Option<Duration>,
}

/// RFC 9111 §1.2.2: what is larger counts as this many seconds.
const LARGEST: u64 = 2_147_483_648;

/// A number of seconds (§1.2.2), if it is one.
pub fn delta_seconds(digits: &[u8]) -> Option<Duration> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = std::str::from_utf8(digits).ok().and_then(|d| d.parse::<u64>().ok()).unwrap_or(LARGEST);
    Some(Duration::from_secs(number.min(LARGEST)))
}

fn unquoted(value: &[u8]) -> Option<&[u8]> {
    value.strip_prefix(b"\"")?.strip_suffix(b"\"")
}

fn seconds(value: Option<&[u8]>) -> Duration {
    let digits = value.map(|value| unquoted(value).unwrap_or(value)).unwrap_or(b"");
    delta_seconds(digits).unwrap_or_default()
}

/// The fields that a qualified directive names; `None` where it names none that we understand, and so
/// speaks of the whole response. Only a quoted list qualifies (§5.2.2.4).
fn qualified(value: Option<&[u8]>) -> Option<Vec<HeaderName>> {
    let list = value.and_then(unquoted)?;
    let names = list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|name| !name.is_empty());
    let names: Vec<_> = names.map(HeaderName::from_bytes).collect::<Result<_, _>>().ok()?;
    (!names.is_empty()).then_some(names)
}

/// The smaller of what was there and what comes.
fn least(place: &mut Option<Duration>, value: Option<&[u8]>) {
    let value = seconds(value);
    *place = Some(place.map_or(value, |there| there.min(value)));
}

impl CacheControl {
    /// Reads all lines of the field.
    pub fn of(fields: &HeaderMap) -> Self {
        // A quote that is never closed hides what stands behind it.
        let open = fields.get_all(CACHE_CONTROL).iter().any(|line| open_quote(line.as_bytes()));
        let mut cc = CacheControl { no_store: open, ..CacheControl::default() };
        for member in members(fields, CACHE_CONTROL) {
            let (name, value) = match member.iter().position(|byte| *byte == b'=') {
                Some(at) => (member[..at].trim_ascii(), Some(member[at + 1..].trim_ascii())),
                None => (member, None),
            };
            cc.take(&name.to_ascii_lowercase(), value);
        }
        cc.must_understand &= !open;
        cc
    }

    /// Reads a targeted field (RFC 9213); `None` where it is absent, empty or not well-formed, for then the
    /// next one counts.
    pub fn targeted(fields: &HeaderMap, name: &HeaderName) -> Option<Self> {
        let lines: Vec<_> = fields.get_all(name).iter().map(|line| line.as_bytes()).collect();
        let directives = Parser::parse_dictionary(&lines.join(&b", "[..])).ok().filter(|all| !all.is_empty())?;
        let mut cc = CacheControl::default();
        for (name, value) in &directives {
            let item = match value {
                ListEntry::Item(item) => Some(&item.bare_item),
                ListEntry::InnerList(_) => None,
            };
            let text = match item {
                // `?0` says that it is not there.
                Some(BareItem::Boolean(false)) => continue,
                Some(BareItem::Boolean(true)) => None,
                Some(BareItem::Integer(number)) => Some(number.to_string()),
                Some(BareItem::String(text)) if matches!(name.as_str(), "private" | "no-cache") => {
                    Some(format!("\"{text}\""))
                }
                // Of a type that the directive does not have: as restrictive as can be.
                _ => Some(String::new()),
            };
            cc.take(name.as_bytes(), text.as_deref().map(str::as_bytes));
        }
        Some(cc)
    }

    fn take(&mut self, name: &[u8], value: Option<&[u8]>) {
        match name {
            b"no-store" => self.no_store = true,
            b"must-understand" => self.must_understand = true,
            b"no-cache" | b"private" => match qualified(value) {
                Some(names) => self.withheld.extend(names),
                None if name == b"private" => self.private = true,
                None => self.no_cache = true,
            },
            b"public" => self.public = true,
            b"must-revalidate" => self.must_revalidate = true,
            b"proxy-revalidate" => self.proxy_revalidate = true,
            b"only-if-cached" => self.only_if_cached = true,
            b"max-age" => least(&mut self.max_age, value),
            b"s-maxage" => least(&mut self.s_maxage, value),
            b"min-fresh" => self.min_fresh = self.min_fresh.max(Some(seconds(value))),
            b"max-stale" => {
                let most = value.map_or(Duration::MAX, |value| seconds(Some(value)));
                self.max_stale = Some(self.max_stale.map_or(most, |there| there.min(most)));
            }
            b"stale-while-revalidate" => least(&mut self.stale_while_revalidate, value),
            b"stale-if-error" => least(&mut self.stale_if_error, value),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::fields;

    const SECS: fn(u64) -> Option<Duration> = |s| Some(Duration::from_secs(s));

    fn names(list: &[&str]) -> Vec<HeaderName> {
        list.iter().map(|name| name.parse().unwrap()).collect()
    }

    #[test]
    fn the_most_restrictive_reading_wins() {
        let base = CacheControl::default;
        for (value, expected) in [
            ("max-age=60", CacheControl { max_age: SECS(60), ..base() }),
            ("MAX-AGE=60, Public", CacheControl { max_age: SECS(60), public: true, ..base() }),
            ("max-age=60, max-age=1", CacheControl { max_age: SECS(1), ..base() }),
            ("max-age=1, max-age=60", CacheControl { max_age: SECS(1), ..base() }),
            ("max-age=\"30\"", CacheControl { max_age: SECS(30), ..base() }),
            ("max-age=abc", CacheControl { max_age: SECS(0), ..base() }),
            ("max-age=-1", CacheControl { max_age: SECS(0), ..base() }),
            ("max-age=1.5", CacheControl { max_age: SECS(0), ..base() }),
            ("max-age", CacheControl { max_age: SECS(0), ..base() }),
            ("max-age=99999999999999999999", CacheControl { max_age: SECS(LARGEST), ..base() }),
            ("max-stale", CacheControl { max_stale: Some(Duration::MAX), ..base() }),
            ("max-stale=9", CacheControl { max_stale: SECS(9), ..base() }),
            ("max-stale=9, max-stale", CacheControl { max_stale: SECS(9), ..base() }),
            ("max-stale, max-stale=9", CacheControl { max_stale: SECS(9), ..base() }),
            ("min-fresh=9, min-fresh=1", CacheControl { min_fresh: SECS(9), ..base() }),
            ("max-stale=x", CacheControl { max_stale: SECS(0), ..base() }),
            ("no-store, must-understand", CacheControl { no_store: true, must_understand: true, ..base() }),
            ("x=\"no-store, private\"", base()),
            ("max-age=60, x=\"a, private", CacheControl { no_store: true, max_age: SECS(60), ..base() }),
            (
                "s-maxage=5, stale-while-revalidate=9",
                CacheControl { s_maxage: SECS(5), stale_while_revalidate: SECS(9), ..base() },
            ),
        ] {
            assert_eq!(CacheControl::of(&fields(&format!("cache-control: {value}"))), expected, "{value}");
        }
        let two_lines = fields("cache-control: max-age=60\nx: y\ncache-control: no-store");
        assert!(CacheControl::of(&two_lines).no_store);
    }

    #[test]
    fn a_quoted_list_speaks_of_fields_and_anything_else_of_the_whole() {
        let base = CacheControl::default;
        for (value, expected) in [
            ("private=\"set-cookie\"", CacheControl { withheld: names(&["set-cookie"]), ..base() }),
            ("no-cache=\" A ,, b\"", CacheControl { withheld: names(&["a", "b"]), ..base() }),
            ("private=x", CacheControl { private: true, ..base() }),
            ("private=\"\"", CacheControl { private: true, ..base() }),
            ("private=\"a b\"", CacheControl { private: true, ..base() }),
            ("no-cache=\"a, b", CacheControl { no_store: true, no_cache: true, ..base() }),
            ("private, private=\"x\"", CacheControl { private: true, withheld: names(&["x"]), ..base() }),
            ("no-cache=\"a\", no-cache", CacheControl { no_cache: true, withheld: names(&["a"]), ..base() }),
        ] {
            assert_eq!(CacheControl::of(&fields(&format!("cache-control: {value}"))), expected, "{value}");
        }
    }

    #[test]
    fn a_targeted_field_is_a_structured_one() {
        let base = CacheControl::default;
        for (lines, expected) in [
            ("x: y", None),
            ("cdn-cache-control:", None),
            ("cdn-cache-control: max-age=10, &&&", None),
            ("cdn-cache-control: MAX-AGE=10", None),
            ("cdn-cache-control: max-age =10", None),
            ("cdn-cache-control: max-age=10", Some(CacheControl { max_age: SECS(10), ..base() })),
            ("cdn-cache-control: max-age=10;x=1, foo", Some(CacheControl { max_age: SECS(10), ..base() })),
            ("cdn-cache-control: max-age=\"10\"", Some(CacheControl { max_age: SECS(0), ..base() })),
            ("cdn-cache-control: max-age=10.5", Some(CacheControl { max_age: SECS(0), ..base() })),
            ("cdn-cache-control: max-age=-5", Some(CacheControl { max_age: SECS(0), ..base() })),
            ("cdn-cache-control: max-age=(1 2)", Some(CacheControl { max_age: SECS(0), ..base() })),
            ("cdn-cache-control: no-store=?0, private=1", Some(CacheControl { private: true, ..base() })),
            ("cdn-cache-control: private=\"x\"", Some(CacheControl { withheld: names(&["x"]), ..base() })),
            ("cdn-cache-control: private=x", Some(CacheControl { private: true, ..base() })),
            (
                "cdn-cache-control: max-age=60\ncdn-cache-control: no-store",
                Some(CacheControl { max_age: SECS(60), no_store: true, ..base() }),
            ),
        ] {
            let name = HeaderName::from_static("cdn-cache-control");
            assert_eq!(CacheControl::targeted(&fields(lines), &name), expected, "{lines}");
        }
    }
}
