//! `Cache-Control` and targeted fields: read as a simple reader would where nothing is quoted, and no directive that
//! forbids something ever makes more of a response.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use headwall::ResponseHeader;
use headwall::cache::policy::{Arrival, Life, Policy, judge};
use headwall::cache::rule::Rule;
use headwall::clock::Clock;
use headwall::fields::cache_control::CacheControl;
use http::{HeaderMap, HeaderName};
use sfv::Parser;

use super::input::{add, joined, lines, plain_members};

const NUMBERS: [&str; 6] =
    ["max-age", "s-maxage", "min-fresh", "max-stale", "stale-while-revalidate", "stale-if-error"];

/// The lines of the field.
pub fn run(data: &[u8]) {
    let fields = lines("cache-control", data);
    let read = CacheControl::of(&fields);
    if !data.contains(&b'"') {
        compare(&read, &joined(&fields, "cache-control"));
    }
    targeted(data);
    let response = |fields: &HeaderMap| {
        let mut head = ResponseHeader::build(200, None).unwrap();
        for value in fields.get_all("cache-control") {
            head.append_header("cache-control", value).unwrap();
        }
        head.append_header("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        head
    };
    let clock = Clock::system();
    let at = Arrival { now: clock.now(), wall: SystemTime::now(), delay: Duration::ZERO, age: Duration::ZERO };
    let said = |fields: &HeaderMap| judge(&HeaderMap::new(), &response(fields), &Policy::default(), at);
    let before = said(&fields);
    for more in ["no-store", "private", "no-cache", "max-age=0", "s-maxage=0", "must-revalidate"] {
        let mut restricted = fields.clone();
        add(&mut restricted, "cache-control", more.as_bytes());
        let after = said(&restricted);
        let kept = match more {
            "no-store" => read.must_understand,
            "private" => false,
            _ => true,
        };
        assert!(kept || after.is_err(), "{more} beside {fields:?}");
        if let (Ok(before), Ok(after)) = (&before, &after) {
            assert!(!more_usable(after, before), "{more} makes more of {fields:?}: {before:?} {after:?}");
        }
    }
}

/// Whether one may be used where the other may not.
fn more_usable(one: &Life, other: &Life) -> bool {
    // A word about freshness takes the place of a guess.
    let explicit = one.rule == other.rule || other.rule != Rule::Heuristic;
    explicit
        && (one.lifetime > other.lifetime
            || (other.validate_always && !one.validate_always)
            || (other.strict && !one.strict)
            || one.stale_while_revalidate > other.stale_while_revalidate
            || one.stale_if_error > other.stale_if_error)
}

/// Seconds as §1.2.2 has them; what is no number is zero.
fn seconds(value: &[u8]) -> u64 {
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(value).ok().filter(|_| digits).map_or(Some(0), |text| text.parse::<u64>().ok());
    number.unwrap_or(u64::MAX).min(1 << 31)
}

fn compare(read: &CacheControl, list: &[u8]) {
    let mut all: HashMap<Vec<u8>, Vec<Option<Vec<u8>>>> = HashMap::new();
    for member in plain_members(list) {
        let mut halves = member.splitn(2, |byte| *byte == b'=');
        let name = halves.next().unwrap().trim_ascii().to_ascii_lowercase();
        all.entry(name).or_default().push(halves.next().map(|value| value.trim_ascii().to_vec()));
    }
    for (name, flag) in [
        ("no-store", read.no_store),
        ("no-cache", read.no_cache),
        ("private", read.private),
        ("public", read.public),
        ("must-revalidate", read.must_revalidate),
        ("proxy-revalidate", read.proxy_revalidate),
        ("must-understand", read.must_understand),
        ("only-if-cached", read.only_if_cached),
    ] {
        assert_eq!(flag, all.contains_key(name.as_bytes()), "{name} of {list:?}");
    }
    for (name, number) in NUMBERS.iter().zip([
        read.max_age,
        read.s_maxage,
        read.min_fresh,
        read.max_stale,
        read.stale_while_revalidate,
        read.stale_if_error,
    ]) {
        let values = all.get(name.as_bytes());
        let given = values.into_iter().flatten().map(|value| match value {
            Some(value) => Duration::from_secs(seconds(value)),
            None if *name == "max-stale" => Duration::MAX,
            None => Duration::ZERO,
        });
        let expected = if *name == "min-fresh" { given.max() } else { given.min() };
        assert_eq!(number, expected, "{name} of {list:?}");
    }
    assert!(read.withheld.is_empty(), "only a quoted list names fields");
}

fn targeted(data: &[u8]) {
    let name = HeaderName::from_static("cdn-cache-control");
    let fields = lines("cdn-cache-control", data);
    let list = joined(&fields, "cdn-cache-control");
    let read = CacheControl::targeted(&fields, &name);
    let theirs = Parser::parse_dictionary(&list).ok().filter(|all| !all.is_empty());
    assert_eq!(read.is_some(), theirs.is_some(), "{list:?}");
    let (Some(read), Some(theirs)) = (read, theirs) else { return };
    assert!(!read.no_store || theirs.contains_key("no-store"));
    for word in ["no-store", "private"] {
        let mut restricted = fields.clone();
        add(&mut restricted, "cdn-cache-control", word.as_bytes());
        let read = CacheControl::targeted(&restricted, &name).unwrap();
        assert!(if word == "private" { read.private } else { read.no_store }, "{word} beside {list:?}");
    }
}
