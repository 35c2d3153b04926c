//! One request of an access log, whatever its format.
//!
//! What a line does not say stays open here; what is assumed for it is said in [`super::assume`].

use std::time::{Duration, SystemTime};

use http::{HeaderName, HeaderValue, Method};

use crate::fields::date;

use super::{combined, json};

/// A point of the calendar, in nanoseconds since 1970.
pub type Stamp = u64;

/// Nanoseconds of a second.
pub const SECOND: u64 = 1_000_000_000;

/// No time is later, in seconds since 1970: the year 2286.
const LATEST: u64 = 10_000_000_000;

/// No response has more bytes: a pebibyte. Sums of them stay numbers.
const MOST: u64 = 1 << 50;

/// Fields of a message, as far as a log says them.
pub type Fields = Vec<(HeaderName, HeaderValue)>;

/// One request with its response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// When the request came.
    pub at: Stamp,
    /// `at` is known to the second only.
    pub whole_second: bool,
    /// From the request to the end of the response, or to its head where the log knows that.
    pub took: Option<Duration>,
    /// The method.
    pub method: Method,
    /// It came by https.
    pub https: bool,
    /// The `Host`.
    pub host: Option<Box<str>>,
    /// Path and query, or an absolute address.
    pub target: String,
    /// The status that the client got; 0 when it got none.
    pub status: u16,
    /// Bytes of content that the client got.
    pub bytes: u64,
    /// What is known of the request's fields.
    pub request: Fields,
    /// What is known of the response's fields.
    pub response: Fields,
    /// The log has a place for what the response says of its freshness, filled or not.
    pub says_freshness: bool,
}

impl Line {
    /// A line of a log of any format we know; `Err` says what is not in it.
    pub fn parse(line: &[u8]) -> Result<Line, &'static str> {
        if line.starts_with(b"\x1f\x8b") || line.starts_with(b"\x28\xb5\x2f\xfd") {
            return Err("the file is packed; unpack it on the way: zcat FILE | headwall replay --config FILE -");
        }
        // Files written on Windows begin with a mark.
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii();
        let parsed = if line.first() == Some(&b'{') { json::parse(line) } else { combined::parse(line) };
        let parsed = parsed?;
        match parsed.status {
            0 | 100..600 if parsed.bytes <= MOST => Ok(parsed.placed()),
            0 | 100..600 => Err("no response has so many bytes"),
            _ => Err("no such status"),
        }
    }

    /// Bytes of memory that it takes, about.
    pub fn weight(&self) -> usize {
        let fields = self.request.iter().chain(&self.response);
        let values: usize = fields.map(|(_, value)| 96 + value.len()).sum();
        size_of::<Line>() + self.target.len() + self.host.as_deref().map_or(0, str::len) + values
    }

    /// Takes the host from the target, where it stands there.
    fn placed(mut self) -> Line {
        let found = [("http://", false), ("https://", true)].into_iter().find_map(|(scheme, https)| {
            let start = self.target.get(..scheme.len())?;
            start.eq_ignore_ascii_case(scheme).then(|| (self.target[scheme.len()..].to_owned(), https))
        });
        if let Some((rest, https)) = found {
            let end = rest.find(['/', '?']).unwrap_or(rest.len());
            self.host = Some(rest[..end].into());
            self.https = https;
            self.target = if rest[end..].starts_with('/') { rest[end..].into() } else { format!("/{}", &rest[end..]) };
        }
        self
    }

    /// When the request came, by the calendar.
    pub fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_nanos(self.at)
    }
}

/// Adds a field, if it can be one.
pub fn add(fields: &mut Fields, name: HeaderName, value: &[u8]) {
    if let Ok(value) = HeaderValue::from_bytes(value) {
        fields.push((name, value));
    }
}

/// `06/Nov/1994:08:49:37 +0000`
pub fn clf_time(text: &str) -> Option<Stamp> {
    let (date, rest) = text.split_once(':')?;
    let mut words = date.split('/');
    let (day, month, year) = (number(words.next()?, 2)?, date::month(words.next()?)?, number(words.next()?, 4)?);
    let (time, zone) = rest.split_once(' ')?;
    seconds(day_of(year, month, day, time_of_day(time)?)?, offset(zone)?)
}

/// `1994-11-06T08:49:37.25Z`, `1994-11-06 08:49:37+01:00`; and whether it has more than whole seconds.
pub fn iso_time(text: &str) -> Option<(Stamp, bool)> {
    let (date, rest) = text.split_at_checked(10)?;
    let mut words = date.split('-');
    let (year, month, day) = (number(words.next()?, 4)?, number(words.next()?, 2)?, number(words.next()?, 2)?);
    let rest = rest.strip_prefix(['T', 't', ' ']).filter(|_| (1..=12).contains(&month))?;
    let (time, rest) = rest.split_at_checked(8)?;
    let digits =
        rest.strip_prefix(['.', ',']).map_or(0, |rest| 1 + rest.bytes().take_while(u8::is_ascii_digit).count());
    let (fraction, zone) = rest.split_at(digits);
    let stamp = seconds(day_of(year, month, day, time_of_day(time)?)?, offset(zone.trim())?)?;
    let nanos = fraction.bytes().skip(1).take(9).chain(std::iter::repeat(b'0')).take(9);
    let nanos = nanos.fold(0, |nanos, digit| nanos * 10 + u64::from(digit - b'0'));
    Some((stamp + nanos, digits > 1))
}

/// Seconds since 1970, with a fraction; a number so large that it must be milliseconds, microseconds or nanoseconds is
/// taken for those.
pub fn unix_time(number: f64) -> Option<Stamp> {
    let units = [(1e17, 1e9), (1e14, 1e6), (1e11, 1e3)];
    let unit = units.into_iter().find(|(least, _)| number > *least).map_or(1.0, |(_, unit)| unit);
    let seconds = number / unit;
    (seconds.is_finite() && (0.0..LATEST as f64).contains(&seconds)).then(|| (seconds * 1e6).round() as u64 * 1000)
}

/// A span in seconds with a fraction, within a day.
pub fn span(seconds: f64) -> Option<Duration> {
    (0.0..=86_400.0).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

fn number(text: &str, length: usize) -> Option<u64> {
    text.parse().ok().filter(|_| text.len() == length && text.bytes().all(|byte| byte.is_ascii_digit()))
}

fn time_of_day(text: &str) -> Option<u64> {
    let mut parts = text.split(':');
    let (hour, minute, second) = (number(parts.next()?, 2)?, number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    let legal = hour < 24 && minute < 60 && second <= 60 && parts.next().is_none();
    legal.then(|| hour * 3600 + minute * 60 + second.min(59))
}

/// No log is older than 1970.
fn day_of(year: u64, month: u64, day: u64, time: u64) -> Option<SystemTime> {
    date::instant(year, month, day, time).filter(|_| year >= 1970)
}

/// `+0100`, `+01:00`, `Z` or nothing: seconds east of Greenwich.
fn offset(text: &str) -> Option<i64> {
    if matches!(text, "" | "Z" | "z") {
        return Some(0);
    }
    let (sign, rest) = text.split_at_checked(1)?;
    let (hours, minutes) = rest.split_at_checked(2)?;
    let span = number(hours, 2)? * 3600 + number(minutes.trim_start_matches(':'), 2)? * 60;
    match sign {
        "+" => Some(span as i64),
        "-" => Some(-(span as i64)),
        _ => None,
    }
}

fn seconds(local: SystemTime, east: i64) -> Option<Stamp> {
    let local = local.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
    // As far as numbers in JSON are believed, too.
    local.checked_add_signed(-east).filter(|seconds| *seconds < LATEST).map(|seconds| seconds * SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        const AT: u64 = 784_111_777;
        assert_eq!(clf_time("06/Nov/1994:08:49:37 +0000"), Some(AT * SECOND));
        assert_eq!(clf_time("06/Nov/1994:03:49:37 -0500"), Some(AT * SECOND));
        assert_eq!(clf_time("06/Nov/1994:14:19:37 +0530"), Some(AT * SECOND));
        for (text, nanos, fine) in [
            ("1994-11-06T08:49:37Z", 0, false),
            ("1994-11-06T09:49:37+01:00", 0, false),
            ("1994-11-06 08:49:37", 0, false),
            ("1994-11-06T08:49:37.25Z", 250_000_000, true),
            ("1994-11-06T08:49:37.123456789123Z", 123_456_789, true),
            ("1994-11-06T08:49:37,5+0000", 500_000_000, true),
        ] {
            assert_eq!(iso_time(text), Some((AT * SECOND + nanos, fine)), "{text}");
        }
        for text in [
            "",
            "yesterday",
            "2554-01-06T08:49:37Z",
            "1994-13-06T08:49:37Z",
            "1600-11-06T08:49:37Z",
            "1994-11-06T24:00:00Z",
            "1994-11-06T08:49:37+1",
        ] {
            assert_eq!(iso_time(text), None, "{text}");
        }
        for text in [
            "06/Nov/1994",
            "06/Nov/1600:08:49:37 +0000",
            "31/Feb/1994:08:49:37 +0000",
            "06/Foo/1994:08:49:37 +0000",
            "06/Nov/1994:08:49:37",
        ] {
            assert_eq!(clf_time(text), None, "{text}");
        }
        assert_eq!(unix_time(784_111_777.25), Some(AT * SECOND + SECOND / 4));
        assert_eq!(unix_time(784_111_777_250.0), Some(AT * SECOND + SECOND / 4));
        assert_eq!(unix_time(784_111_777_250_000.0), Some(AT * SECOND + SECOND / 4));
        assert_eq!(unix_time(784_111_777_250_000_000.0), Some(AT * SECOND + SECOND / 4));
        assert_eq!((unix_time(-1.0), unix_time(f64::NAN), unix_time(f64::INFINITY)), (None, None, None));
    }

    #[test]
    fn what_stands_around_a_line_and_what_is_beyond_reason() {
        let json = r#"{"time":784111777,"method":"GET","target":"/","status":STATUS,"bytes":BYTES}"#;
        let combined = r#"::1 - - [06/Nov/1994:08:49:37 +0000] "GET / HTTP/1.1" STATUS BYTES "-" "-""#;
        for form in [json, combined] {
            let parse = |status: &str, bytes: &str, around: [&str; 2]| {
                let text = form.replace("STATUS", status).replace("BYTES", bytes);
                Line::parse(format!("{}{text}{}", around[0], around[1]).as_bytes())
            };
            assert_eq!(parse("200", "5", ["\u{feff}", "\r"]).unwrap().bytes, 5, "{form}");
            assert_eq!(parse("0", "5", ["", ""]).unwrap().status, 0);
            for (status, bytes) in [("42", "5"), ("600", "5"), ("-5", "5"), ("200", "18446744073709551615")] {
                assert!(parse(status, bytes, ["", ""]).is_err(), "{status} {bytes} {form}");
            }
        }
        for (status, bytes) in [("\"nan\"", "5"), ("\"inf\"", "5"), ("-1", "5"), ("[200]", "5"), ("200", "1e300")] {
            let text = json.replace("STATUS", status).replace("BYTES", bytes);
            assert!(Line::parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(Line::parse(b"\x1f\x8b\x08\x00").unwrap_err().contains("zcat"));
    }
}
