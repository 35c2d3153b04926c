//! The units a configuration speaks: `64MiB`, `10s` and `10.0.0.0/8`.
//!
//! Each is parsed strictly: a number and a unit, nothing else. A bare number
//! is refused, because nobody remembers whether it meant seconds or bytes.

use std::fmt;
use std::time::Duration;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::{self, Deserialize, Deserializer, Visitor};

/// A number of bytes, written `512B`, `64KiB`, `16MiB` or `2GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, JsonSchema)]
#[schemars(with = "String", extend("pattern" = "^[0-9]+(B|KiB|MiB|GiB)$|\\$\\{"))]
pub struct ByteSize(pub u64);

/// A length of time, written `250ms`, `10s`, `5m`, `1h` or `7d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, JsonSchema)]
#[schemars(with = "String", extend("pattern" = "^[0-9]+(ms|s|m|h|d)$|\\$\\{"))]
pub struct Span(pub Duration);

const SIZES: &[(&str, u64)] = &[("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
const SPANS: &[(&str, u64)] = &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let factor = units.iter().find(|(name, _)| *name == unit)?.1;
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// The largest unit that divides the value, so that what is printed can be read back.
fn print(value: u64, units: &[(&str, u64)], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let fits = units.iter().rev().find(|(_, factor)| value.is_multiple_of(*factor) && value >= *factor);
    let (name, factor) = fits.unwrap_or(&units[0]);
    write!(f, "{}{name}", value / factor)
}

impl ByteSize {
    /// Parses `64MiB`.
    pub fn parse(text: &str) -> Option<Self> {
        parse(text, SIZES).map(ByteSize)
    }
}

impl Span {
    /// Parses `10s`. Longer than a century is refused, so that later sums cannot overflow.
    pub fn parse(text: &str) -> Option<Self> {
        const CENTURY: u64 = 36_525 * 86_400_000;
        parse(text, SPANS).filter(|ms| *ms <= CENTURY).map(|ms| Span(Duration::from_millis(ms)))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(self.0, SIZES, f)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(self.0.as_millis() as u64, SPANS, f)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Network {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

struct Unit<T> {
    what: &'static str,
    parse: fn(&str) -> Option<T>,
}

impl<T> Visitor<'_> for Unit<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Unit { what: "a size such as 64KiB or 512MiB", parse: ByteSize::parse })
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Unit { what: "a duration such as 250ms, 10s, 5m, 1h or 7d", parse: Span::parse })
    }
}

/// `10.0.0.0/8`, or a single address.
#[derive(Debug, Clone, Copy, JsonSchema)]
#[schemars(with = "String")]
pub struct Network(pub IpNet);

impl Network {
    /// Loopback, in both families.
    pub fn loopback() -> Vec<Network> {
        ["127.0.0.0/8", "::1/128"].iter().filter_map(|net| net.parse().ok()).map(Network).collect()
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let single = || text.parse::<std::net::IpAddr>().ok().map(IpNet::from);
        let network = text.parse::<IpNet>().ok().or_else(single);
        network.map(Network).ok_or_else(|| {
            de::Error::custom(format!(
                "`{text}` is no network; write one as 10.0.0.0/8, 2001:db8::/32 or a single address"
            ))
        })
    }
}

/// A key that is there is there: `cache:` with nothing behind it means `cache: {}`, not "no cache".
pub fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_spans_are_a_number_and_a_unit() {
        for (text, bytes) in [("512B", 512), ("64KiB", 65_536), ("16MiB", 16 << 20), ("2GiB", 2 << 30)] {
            assert_eq!(ByteSize::parse(text), Some(ByteSize(bytes)), "{text}");
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
        for (text, ms) in [("250ms", 250), ("10s", 10_000), ("5m", 300_000), ("1h", 3_600_000), ("7d", 604_800_000)] {
            assert_eq!(Span::parse(text), Some(Span(Duration::from_millis(ms))), "{text}");
            assert_eq!(Span(Duration::from_millis(ms)).to_string(), text);
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in
            ["", "10", "10 s", "-1s", "1.5h", "10S", "MiB", "64MB", "99999999999999999999s", "99999999999GiB", "40000d"]
        {
            assert_eq!(ByteSize::parse(text), None, "{text}");
            assert_eq!(Span::parse(text), None, "{text}");
        }
    }
}
