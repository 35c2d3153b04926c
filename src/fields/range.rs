//! `Range` (RFC 9110 §14.2): is this one we answer with a part?
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

/// Reads `bytes=0-9, 20-, -5` against the length.
pub fn judge(value: &[u8], length: u64) -> Answer {
    let Ok(text) = std::str::from_utf8(value) else { return Answer::Whole };
    let Some((unit, set)) = text.trim().split_once('=') else { return Answer::Whole };
    if !unit.eq_ignore_ascii_case("bytes") || length == 0 {
        return Answer::Whole;
    }
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
fn bounds(spec: &str, length: u64) -> Option<Option<(u64, u64)>> {
    let number = |digits: &str| {
        let digits_only = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits_only.then(|| digits.parse::<u64>().unwrap_or(u64::MAX))
    };
    let (first, last) = spec.split_once('-')?;
    if first.is_empty() {
        let suffix = number(last)?;
        return Some((suffix > 0).then(|| (length.saturating_sub(suffix), length - 1)));
    }
    let first = number(first)?;
    let last = if last.is_empty() { length - 1 } else { number(last)? };
    if last < first && first < length {
        return None;
    }
    Some((first < length).then(|| (first, last.min(length - 1))))
}

#[cfg(test)]
mod tests {
    use super::*;

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
