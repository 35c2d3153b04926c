//! `Range` and `Content-Range`: what we send on lies within the content, and is never more than it.

use headwall::fields::range::{Answer, One, Part, excessive, judge, single};

/// A range as another reader takes it.
enum Spec {
    Bytes(u128, u128),
    Nothing,
    Wrong,
}

fn number(text: &str) -> Option<u128> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // So many digits are more than any length has.
    digits.then(|| if text.trim_start_matches('0').len() > 30 { u128::MAX } else { text.parse().unwrap() })
}

fn spec(text: &str, length: u128) -> Spec {
    let Some((first, last)) = text.split_once('-') else { return Spec::Wrong };
    match (number(first), number(last)) {
        (None, Some(count)) if first.is_empty() && count == 0 => Spec::Nothing,
        (None, Some(count)) if first.is_empty() => Spec::Bytes(length.saturating_sub(count), length - 1),
        (Some(first), _) if last.is_empty() && first < length => Spec::Bytes(first, length - 1),
        (Some(_), _) if last.is_empty() => Spec::Nothing,
        (Some(first), Some(_)) if first >= length => Spec::Nothing,
        (Some(first), Some(last)) if first <= last => Spec::Bytes(first, last.min(length - 1)),
        _ => Spec::Wrong,
    }
}

/// Two bytes say the length, the rest is the value.
pub fn run(data: &[u8]) {
    let Some((length, value)) = data.split_first_chunk::<2>() else { return };
    let length = u64::from(u16::from_be_bytes(*length));
    let answer = judge(value, length);
    part(value);
    let text = std::str::from_utf8(value).ok().map(str::trim);
    let set = text.and_then(|text| text.split_once('=')).filter(|(unit, _)| unit.eq_ignore_ascii_case("bytes"));
    let Some((_, set)) = set.filter(|_| length > 0) else {
        assert_eq!(answer, Answer::Whole);
        return;
    };
    let all: Vec<_> = set.split(',').map(str::trim).filter(|text| !text.is_empty()).collect();
    let specs: Vec<_> = all.iter().map(|text| spec(text, u128::from(length))).collect();
    let wrong = specs.iter().any(|spec| matches!(spec, Spec::Wrong));
    let ranges: Vec<_> = specs
        .iter()
        .filter_map(|spec| match spec {
            Spec::Bytes(first, last) => Some((*first, *last)),
            _ => None,
        })
        .collect();
    let apart = ranges.windows(2).all(|pair| pair[0].1 < pair[1].0);
    match answer {
        Answer::Parts => {
            assert!(!wrong && !ranges.is_empty() && apart, "{set:?} of {length}");
            assert!(ranges.iter().all(|(first, last)| first <= last && *last < u128::from(length)), "{set:?}");
            let sum: u128 = ranges.iter().map(|(first, last)| last - first + 1).sum();
            assert!(sum <= u128::from(length), "{set:?} is more than {length}");
        }
        Answer::Unsatisfiable => assert!(!wrong && ranges.is_empty() && !all.is_empty(), "{set:?} of {length}"),
        Answer::Whole if all.len() == 1 && !set.contains(',') => {
            assert!(wrong, "{set:?} of {length} is one range and was ignored")
        }
        Answer::Whole => {}
    }
    if let Some(one) = single(value) {
        assert_eq!(all.len(), 1);
        let within = one.within(length).map(|(first, last)| (u128::from(first), u128::from(last)));
        assert_eq!(within, ranges.first().copied(), "{set:?} of {length}");
        assert!(!matches!(one, One::From(first, Some(last)) if last < first));
        assert!(!excessive(value), "one range is no list");
    }
    // What could be more than the whole is more than some whole, or is too many.
    let within_reach = all.iter().all(|text| text.len() < 16);
    if excessive(value) && within_reach {
        assert_eq!(judge(value, 1 << 60), Answer::Whole, "{set:?}");
    }
}

fn part(value: &[u8]) {
    let Some(part) = Part::read(value) else { return };
    assert!(part.first <= part.last && part.last < part.length && part.size() <= part.length);
    assert_eq!(Part::read(part.to_string().as_bytes()), Some(part));
    assert_eq!(Part::of(part.first, part.last, part.length), Some(part));
}
