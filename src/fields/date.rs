//! Dates (RFC 9110 §5.6.7): all three forms are read.
//!
//! Only what a date is made of counts: letters in any case, and a weekday that does not fit the date is no
//! reason to doubt it. Everything else stands where the grammar puts it, or the value is no date.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::AsHeaderName;

const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The date in the field, if it stands there once and is one. `now` tells the century of a year in two digits.
pub fn of(fields: &HeaderMap, name: impl AsHeaderName, now: SystemTime) -> Option<SystemTime> {
    let mut lines = fields.get_all(name).iter();
    let only = lines.next().filter(|_| lines.next().is_none())?;
    parse(only.to_str().ok()?.trim(), now)
}

/// Reads one date.
pub fn parse(value: &str, now: SystemTime) -> Option<SystemTime> {
    let value = value.is_ascii().then_some(value)?;
    match value.split_once(", ") {
        Some((day, rest)) if DAYS.iter().any(|known| known[..3].eq_ignore_ascii_case(day)) => preferred(rest),
        Some((day, rest)) if DAYS.iter().any(|known| known.eq_ignore_ascii_case(day)) => rfc850(rest, now),
        Some(_) => None,
        None => asctime(value),
    }
}

/// `06 Nov 1994 08:49:37 GMT`
fn preferred(rest: &str) -> Option<SystemTime> {
    let mut words = rest.split(' ');
    let (day, month, year) = (digits(words.next()?, 2)?, month(words.next()?)?, digits(words.next()?, 4)?);
    let time = clock(words.next()?)?;
    zone(words.next()?, words.next())?;
    instant(year, month, day, time)
}

/// `06-Nov-94 08:49:37 GMT`
fn rfc850(rest: &str, now: SystemTime) -> Option<SystemTime> {
    let mut words = rest.split(' ');
    let mut date = words.next()?.split('-');
    let (day, month, year) = (digits(date.next()?, 2)?, month(date.next()?)?, digits(date.next()?, 2)?);
    if date.next().is_some() {
        return None;
    }
    let time = clock(words.next()?)?;
    zone(words.next()?, words.next())?;
    // What seems to lie more than fifty years ahead is of the century before.
    let ahead = instant(2000 + year, month, day, time)?;
    let limit = now + Duration::from_secs(50 * 31_556_952);
    if ahead > limit { instant(1900 + year, month, day, time) } else { Some(ahead) }
}

/// `Sun Nov  6 08:49:37 1994`
fn asctime(value: &str) -> Option<SystemTime> {
    let (day_name, rest) = value.split_at_checked(4)?;
    if !DAYS.iter().any(|known| known[..3].eq_ignore_ascii_case(day_name[..3].trim())) || !day_name.ends_with(' ') {
        return None;
    }
    let (name, rest) = rest.split_at_checked(4)?;
    let month = month(name.strip_suffix(' ')?)?;
    let (day, rest) = rest.split_at_checked(3)?;
    let day = day.strip_suffix(' ')?;
    let day = match day.strip_prefix(' ') {
        Some(one) => digits(one, 1)?,
        None => digits(day, 2)?,
    };
    let (time, year) = rest.split_once(' ')?;
    instant(digits(year, 4)?, month, day, clock(time)?)
}

fn digits(text: &str, length: usize) -> Option<u64> {
    let all = text.len() == length && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| all)
}

/// The number of a month by its English name in three letters.
pub fn month(name: &str) -> Option<u64> {
    let index = MONTHS.iter().position(|known| known.eq_ignore_ascii_case(name))?;
    Some(index as u64 + 1)
}

/// Seconds of the day; a leap second counts as the one before it.
fn clock(time: &str) -> Option<u64> {
    let mut parts = time.split(':');
    let (hour, minute, second) = (digits(parts.next()?, 2)?, digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    let legal = hour < 24 && minute < 60 && second <= 60 && parts.next().is_none();
    legal.then(|| hour * 3600 + minute * 60 + second.min(59))
}

fn zone(name: &str, more: Option<&str>) -> Option<()> {
    (name.eq_ignore_ascii_case("GMT") && more.is_none()).then_some(())
}

/// A day of the calendar, and so many seconds of it. Dates before 1970 are as old as dates get.
pub fn instant(year: u64, month: u64, day: u64, time: u64) -> Option<SystemTime> {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let length = match month {
        2 => 28 + u64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    if !(1..=length).contains(&day) {
        return None;
    }
    if year < 1970 {
        return Some(SystemTime::UNIX_EPOCH);
    }
    // Years begin in March here, so that the leap day is the last one.
    let (shifted, past) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = shifted * 365 + shifted / 4 - shifted / 100 + shifted / 400 + (past * 153 + 2) / 5 + day - 1;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs((days - 719_468) * 86_400 + time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::fields;

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
    }

    #[test]
    fn every_legal_form_and_no_other() {
        let when = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let later = SystemTime::UNIX_EPOCH + Duration::from_secs(2_544_400_878);
        for (value, expected) in [
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(when)),
            ("Sunday, 06-Nov-94 08:49:37 GMT", Some(when)),
            ("Sun Nov  6 08:49:37 1994", Some(when)),
            ("sUN, 06 noV 1994 08:49:37 gmt", Some(when)),
            ("Mon, 06 Nov 1994 08:49:37 GMT", Some(when)),
            ("Thursday, 18-Aug-50 02:01:18 GMT", Some(later)),
            ("Thu Aug 18 02:01:18 2050", Some(later)),
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(SystemTime::UNIX_EPOCH)),
            ("Wed, 01 Jan 1600 00:00:00 GMT", Some(SystemTime::UNIX_EPOCH)),
            ("0", None),
            ("-1", None),
            ("", None),
            ("tomorrow", None),
            ("Sun, 06 Nov 1994 08:49:37 UTC", None),
            ("Sun, 06 Nov 1994 08:49:37 +0000", None),
            ("Sun, 06 Nov 1994 08:49:37 GMT x", None),
            ("Sun, 06 Nov 94 08:49:37 GMT", None),
            ("Sun 06 Nov 1994 08:49:37 GMT", None),
            ("Sun, 06  Nov  1994 08:49:37 GMT", None),
            ("Sun, 06-Nov-1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08.49.37 GMT", None),
            ("Sun, 06 Nov 1994 8:49:37 GMT", None),
            ("Sun, 06 Nov 1994 24:00:00 GMT", None),
            ("Sun, 31 Nov 1994 08:49:37 GMT", None),
            ("Sun, 29 Feb 1900 08:49:37 GMT", None),
            ("Sun Nov 6 08:49:37 1994", None),
            ("Suñ Nov  6 08:49:37 1994", None),
        ] {
            assert_eq!(parse(value, now()), expected, "{value}");
        }
        let twice = "expires: Sun, 06 Nov 1994 08:49:37 GMT\nexpires: 0";
        assert_eq!(of(&fields(twice), "expires", now()), None);
    }

    #[test]
    fn what_is_written_is_read_the_same() {
        for days in (0..80_000).step_by(17) {
            let when = SystemTime::UNIX_EPOCH + Duration::from_secs(days * 86_400 + days % 86_400);
            assert_eq!(parse(&httpdate::fmt_http_date(when), now()), Some(when), "{days}");
        }
    }

    #[test]
    fn two_digits_are_at_most_fifty_years_ahead() {
        for (value, year) in [("Friday, 01-Jan-77 00:00:00 GMT", 2077), ("Sunday, 01-Jan-78 00:00:00 GMT", 1978)] {
            let full = format!("Fri, 01 Jan {year} 00:00:00 GMT");
            assert_eq!(parse(value, now()), parse(&full, now()), "{value}");
        }
    }
}
