//! Dates: what the `httpdate` crate reads we read alike, and what we read has one meaning.

use std::time::{Duration, SystemTime};

use headwall::fields::date::parse;
use httpdate::{fmt_http_date, parse_http_date};

/// Noon of a day in 2026, so that the century of two digits is always the same.
const TODAY: u64 = 1_780_000_000;

/// One date.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(TODAY);
    let ours = parse(text, now);
    if let Ok(theirs) = parse_http_date(text) {
        // They pass over what stands between the parts, and guess the century of two digits in another way.
        assert!(ours.is_none() || text.contains('-') || ours == Some(theirs), "{text:?}: {ours:?}, not {theirs:?}");
        for form in forms(&fmt_http_date(theirs)) {
            assert_eq!(parse(&form, now), Some(theirs), "{form}");
        }
    }
    let Some(date) = ours else { return };
    assert!(date >= SystemTime::UNIX_EPOCH, "{text:?}");
    assert_eq!(parse(&text.to_ascii_uppercase(), now), ours, "{text:?} in capitals");
    let written = fmt_http_date(date);
    assert_eq!(parse(&written, now), ours, "{text:?} written anew is {written}");
    // Two digits are never far ahead.
    if text.contains('-') {
        assert!(date <= now + Duration::from_secs(51 * 366 * 86_400), "{text:?} lies ahead");
    }
}

/// All three forms of a date, from the preferred one: `Sun, 06 Nov 1994 08:49:37 GMT`.
fn forms(date: &str) -> Vec<String> {
    let (weekday, day, month, year, time) = (&date[..3], &date[5..7], &date[8..11], &date[12..16], &date[17..25]);
    let days = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
    let long = days.iter().find(|long| long.starts_with(weekday)).unwrap();
    let blank = day.strip_prefix('0').map_or_else(|| day.to_owned(), |one| format!(" {one}"));
    let mut forms = vec![date.to_owned(), format!("{weekday} {month} {blank} {time} {year}")];
    // Within fifty years the century is known.
    if (1980..2070).contains(&year.parse().unwrap()) {
        forms.push(format!("{long}, {day}-{month}-{} {time} GMT", &year[2..]));
    }
    forms
}
