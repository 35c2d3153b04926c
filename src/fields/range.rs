//! `Range` and `Content-Range` (RFC 9110 §14): which part is asked for, and which one this is.
//!
//! The engine computes parts, but trips over some forms. What passes here it
//! answers correctly; what does not is ignored, which §14.2 always allows, or is
//! answered 416.

/// What to do with a `Range` field for content of a known length.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// Send the parts.
    Parts,
    /// Send everything.
    Whole,
    /// 416: none of the ranges lies within the content.
    Unsatisfiable,
}

/// More ranges than this are ignored: nobody needs them, attackers send them (§17.15).
const MOST_RANGES: usize = 16;

/// What stands behind `bytes=`.
fn set(value: &[u8]) -> Option<&str> {
    let (unit, set) = std::str::from_utf8(value).ok()?.trim().split_once('=')?;
    unit.eq_ignore_ascii_case("bytes").then_some(set)
}

/// Reads `bytes=0-9, 20-, -5` against the length.
pub fn judge(value: &[u8], length: u64) -> Answer {
    let Some(set) = set(value).filter(|_| length > 0) else { return Answer::Whole };
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let mut count = 0;
    for spec in set.split(',').map(str::trim).filter(|spec| !spec.is_empty()) {
        count += 1;
        match bounds(spec, length) {
            None => return Answer::Whole,
            // The engine would make an empty part of it.
            Some(None) if set.contains(',') && spec.starts_with('-') => return Answer::Whole,
            Some(range) => ranges.extend(range),
        }
    }
    if count == 0 || count > MOST_RANGES {
        return Answer::Whole;
    }
    // Ascending and apart, or the parts could add up to more than the whole.
    if ranges.windows(2).any(|pair| pair[1].0 <= pair[0].1) {
        return Answer::Whole;
    }
    if ranges.is_empty() { Answer::Unsatisfiable } else { Answer::Parts }
}

/// First and last byte; `Some(None)` when it lies outside, `None` when it is no range.
fn bounds(text: &str, length: u64) -> Option<Option<(u64, u64)>> {
    match spec(text) {
        Some(one) => Some(one.within(length)),
        // Descending, but outside: it is not looked at.
        None => {
            let (first, last) = text.split_once('-')?;
            (number(first)? >= length && number(last).is_some()).then_some(None)
        }
    }
}

/// One range, before the length is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum One {
    /// From this byte on, up to that one or to the end.
    From(u64, Option<u64>),
    /// The last so many.
    Last(u64),
}

impl One {
    /// First and last byte of content of this length; `None` when it lies outside.
    pub fn within(self, length: u64) -> Option<(u64, u64)> {
        match self {
            One::From(first, last) if first < length => {
                Some((first, last.map_or(length - 1, |last| last.min(length - 1))))
            }
            One::Last(count) if count > 0 && length > 0 => Some((length.saturating_sub(count), length - 1)),
            _ => None,
        }
    }
}

fn number(digits: &str) -> Option<u64> {
    let digits_only = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits_only.then(|| digits.parse::<u64>().unwrap_or(u64::MAX))
}

fn spec(text: &str) -> Option<One> {
    let (first, last) = text.split_once('-')?;
    if first.is_empty() {
        return number(last).map(One::Last);
    }
    let first = number(first)?;
    let last = if last.is_empty() { None } else { Some(number(last)?) };
    last.is_none_or(|last| last >= first).then_some(One::From(first, last))
}

/// The range that a field asks for, if it is one and no list.
pub fn single(value: &[u8]) -> Option<One> {
    let mut specs = set(value)?.split(',').map(str::trim).filter(|text| !text.is_empty());
    spec(specs.next()?).filter(|_| specs.next().is_none())
}

/// Whether a list is one that we ignore whatever the length: too many ranges, or such that could add up to more
/// than the whole.
pub fn excessive(value: &[u8]) -> bool {
    let Some(set) = set(value) else { return false };
    let specs = set.split(',').map(str::trim).filter(|text| !text.is_empty()).take(MOST_RANGES + 1);
    let Some(ranges) = specs.map(spec).collect::<Option<Vec<_>>>() else { return false };
    let apart = |pair: &[One]| match (pair[0], pair[1]) {
        (One::From(_, Some(last)), One::From(first, _)) => first > last,
        // How far from the end, nobody knows yet.
        (One::From(_, Some(_)), One::Last(_)) => true,
        _ => false,
    };
    ranges.len() > MOST_RANGES || !ranges.windows(2).all(apart)
}

/// Sums of places in content shorter than this stay numbers.
const LONGEST: u64 = 1 << 60;

/// What `Content-Range` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The first byte.
    pub first: u64,
    /// The last byte.
    pub last: u64,
    /// The length of the whole.
    pub length: u64,
}

impl Part {
    /// Reads `bytes 0-9/100`; `None` for one that is invalid (§14.4), does not say how long the whole is, or says
    /// something out of this world.
    pub fn read(value: &[u8]) -> Option<Part> {
        let (unit, rest) = std::str::from_utf8(value).ok()?.trim().split_once(' ')?;
        let (range, length) = rest.trim().split_once('/')?;
        let (first, last) = range.split_once('-')?;
        Part::of(number(first)?, number(last)?, number(length)?).filter(|_| unit.eq_ignore_ascii_case("bytes"))
    }

    /// The part between these bytes, which lie within.
    pub fn of(first: u64, last: u64, length: u64) -> Option<Part> {
        (first <= last && last < length && length <= LONGEST).then_some(Part { first, last, length })
    }

    /// Its length.
    pub fn size(&self) -> u64 {
        self.last - self.first + 1
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "bytes {}-{}/{}", self.first, self.last, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_is_read_before_the_length_is_known() {
        for (value, expected, within_ten) in [
            ("bytes=2-5", Some(One::From(2, Some(5))), Some((2, 5))),
            ("Bytes= 2- ", Some(One::From(2, None)), Some((2, 9))),
            ("bytes=8-99", Some(One::From(8, Some(99))), Some((8, 9))),
            ("bytes=10-", Some(One::From(10, None)), None),
            ("bytes=-3", Some(One::Last(3)), Some((7, 9))),
            ("bytes=-30", Some(One::Last(30)), Some((0, 9))),
            ("bytes=-0", Some(One::Last(0)), None),
            ("bytes=5-2", None, None),
            ("bytes=0-1,3-4", None, None),
            ("bytes=,2-5, ", Some(One::From(2, Some(5))), Some((2, 5))),
            ("bytes=", None, None),
            ("items=0-1", None, None),
        ] {
            assert_eq!(single(value.as_bytes()), expected, "{value}");
            assert_eq!(expected.and_then(|one| one.within(10)), within_ten, "{value}");
        }
        assert_eq!(One::Last(1).within(0), None);
    }

    #[test]
    fn lists_that_cost_more_than_the_whole_are_known_without_the_length() {
        let many = (0..17).map(|n| format!("{}-{}", n * 3, n * 3)).collect::<Vec<_>>().join(",");
        for (value, expected) in [
            ("bytes=0-1,3-4", false),
            ("bytes=0-1, -4", false),
            ("bytes=0-", false),
            ("bytes=0-1,x", false),
            ("bytes=0-5,4-9", true),
            ("bytes=4-5,0-1", true),
            ("bytes=0-,9-", true),
            ("bytes=-1,-2", true),
            ("bytes=-1,0-1", true),
            (&format!("bytes={many}"), true),
        ] {
            assert_eq!(excessive(value.as_bytes()), expected, "{value}");
        }
    }

    #[test]
    fn a_part_is_one_of_a_whole() {
        assert_eq!(Part::read(b"bytes 4-9/10"), Some(Part { first: 4, last: 9, length: 10 }));
        assert_eq!(Part::read(b"BYTES 0-0/1").map(|part| part.to_string()).as_deref(), Some("bytes 0-0/1"));
        for invalid in [
            "bytes 4-9/9",
            "bytes 9-4/10",
            "bytes */10",
            "bytes 0-4/*",
            "items 0-1/2",
            "bytes 0-4",
            "0-4/10",
            "bytes 0-4/18446744073709551615",
        ] {
            assert_eq!(Part::read(invalid.as_bytes()), None, "{invalid}");
        }
    }

    #[test]
    fn each_form_has_its_answer() {
        for (value, length, expected) in [
            ("bytes=0-3", 10, Answer::Parts),
            ("Bytes=0-3", 10, Answer::Parts),
            ("bytes=4-", 10, Answer::Parts),
            ("bytes=-5", 10, Answer::Parts),
            ("bytes=-50", 10, Answer::Parts),
            ("bytes=0-99", 10, Answer::Parts),
            ("bytes=0-1, 4-5", 10, Answer::Parts),
            ("bytes=0-1, 20-30", 10, Answer::Parts),
            ("bytes=10-", 10, Answer::Unsatisfiable),
            ("bytes=10-12,14-", 10, Answer::Unsatisfiable),
            ("bytes=-0", 10, Answer::Unsatisfiable),
            ("bytes=99999999999999999999999-", 10, Answer::Unsatisfiable),
            ("bytes=0-1,-0", 10, Answer::Whole),
            ("bytes=-5", 0, Answer::Whole),
            ("bytes=5-3", 10, Answer::Whole),
            ("bytes=a-b", 10, Answer::Whole),
            ("bytes=", 10, Answer::Whole),
            ("bytes", 10, Answer::Whole),
            ("items=0-3", 10, Answer::Whole),
            ("bytes=0-5, 4-9", 10, Answer::Whole),
            ("bytes=4-5, 0-1", 10, Answer::Whole),
            ("bytes=--1", 10, Answer::Whole),
            ("bytes=+1-2", 10, Answer::Whole),
        ] {
            assert_eq!(judge(value.as_bytes(), length), expected, "{value}");
        }
        let many = (0..17).map(|n| format!("{}-{}", n * 3, n * 3)).collect::<Vec<_>>().join(",");
        assert_eq!(judge(format!("bytes={many}").as_bytes(), 1000), Answer::Whole);
    }
}
