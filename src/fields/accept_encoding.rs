//! `Accept-Encoding` (RFC 9110 §12.5.3): which content coding a client would like best, and which it takes.

use http::header::ACCEPT_ENCODING;
use http::{HeaderMap, HeaderValue};

use super::members;

/// What a client would like best.
#[derive(Debug, PartialEq, Eq)]
pub struct Choice {
    /// The coding; `None` for the content as it is.
    pub coding: Option<&'static str>,
    /// The content as it is would not be accepted.
    pub not_as_it_is: bool,
}

/// The codings that we speak.
pub const CODINGS: [&str; 3] = ["br", "gzip", "zstd"];

/// Chooses among codings, given in our own order of preference. Without the field the content is sent
/// as it is. The first word about a coding counts.
pub fn choose(request: &HeaderMap, ours: &[&'static str]) -> Choice {
    let mut said = [None; CODINGS.len()];
    let (mut others, mut identity) = (None, None);
    for member in members(request, ACCEPT_ENCODING) {
        let (coding, quality) = weighed(member);
        let coding = if coding.eq_ignore_ascii_case(b"x-gzip") { b"gzip" } else { coding };
        let known = CODINGS.iter().position(|known| coding.eq_ignore_ascii_case(known.as_bytes()));
        let place = match known {
            Some(index) => &mut said[index],
            None if coding == b"*" => &mut others,
            None if coding.eq_ignore_ascii_case(b"identity") => &mut identity,
            None => continue,
        };
        place.get_or_insert(quality);
    }
    let as_it_is = identity.or(others.filter(|quality| *quality == 0));
    let mut best: Option<(&'static str, u16)> = None;
    for coding in ours {
        let index = CODINGS.iter().position(|known| known == coding);
        let quality = index.and_then(|index| said[index]).or(others).unwrap_or(0);
        if quality > best.map_or(0, |(_, best)| best) {
            best = Some((coding, quality));
        }
    }
    let coding = best.filter(|(_, best)| as_it_is.is_none_or(|quality| *best >= quality)).map(|(coding, _)| coding);
    Choice { coding, not_as_it_is: as_it_is == Some(0) }
}

/// The codings that a client takes, whatever their order and weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted(u8);

/// The codings that apps and browsers use.
const USED: [&str; 4] = ["br", "gzip", "zstd", "deflate"];

/// Set when the content as it is would not be accepted.
const NOT_AS_IT_IS: u8 = 1 << USED.len();

/// What the field allows of the codings in use; `None` where it is absent.
pub fn fold(request: &HeaderMap) -> Option<Accepted> {
    request.get(ACCEPT_ENCODING)?;
    let mut said = [None; USED.len()];
    let (mut others, mut identity) = (None, None);
    for member in members(request, ACCEPT_ENCODING) {
        let (coding, quality) = weighed(member);
        let coding = if coding.eq_ignore_ascii_case(b"x-gzip") { b"gzip" } else { coding };
        let place = match USED.iter().position(|used| coding.eq_ignore_ascii_case(used.as_bytes())) {
            Some(index) => &mut said[index],
            None if coding == b"*" => &mut others,
            None if coding.eq_ignore_ascii_case(b"identity") => &mut identity,
            None => continue,
        };
        place.get_or_insert(quality);
    }
    let taken = said.iter().enumerate().filter(|(_, said)| said.or(others).is_some_and(|quality| quality > 0));
    let codings = taken.fold(0, |bits, (index, _)| bits | 1 << index);
    let refused = identity.or(others) == Some(0);
    Some(Accepted(codings | if refused { NOT_AS_IT_IS } else { 0 }))
}

impl Accepted {
    /// The field value that says the same.
    pub fn value(self) -> HeaderValue {
        let taken = USED.iter().enumerate().filter(|(index, _)| self.0 & 1 << index != 0).map(|(_, coding)| *coding);
        let identity = match self.0 {
            0 => Some("identity"),
            bits if bits & NOT_AS_IT_IS != 0 => Some("identity;q=0"),
            _ => None,
        };
        let all: Vec<_> = taken.chain(identity).collect();
        HeaderValue::from_str(&all.join(", ")).unwrap_or_else(|_| HeaderValue::from_static("identity"))
    }
}

/// A member and its weight in thousandths; one that cannot be read is 0, so that nothing unwanted is sent.
fn weighed(member: &[u8]) -> (&[u8], u16) {
    let mut parts = member.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let coding = parts.next().unwrap_or_default();
    let mut quality = 1000;
    for part in parts {
        if let Some(value) = part.strip_prefix(b"q=").or_else(|| part.strip_prefix(b"Q=")) {
            let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<f32>().ok());
            quality = number.filter(|number| (0.0..=1.0).contains(number)).map_or(0, |number| (number * 1000.0) as u16);
        }
    }
    (coding, quality)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::fields;

    #[test]
    fn what_is_taken() {
        for (accept, expected) in [
            ("", None),
            ("accept-encoding:", Some("identity")),
            ("accept-encoding: identity", Some("identity")),
            ("accept-encoding: gzip, deflate, br, zstd", Some("br, gzip, zstd, deflate")),
            ("accept-encoding: zstd;q=0.1 , X-GZIP", Some("gzip, zstd")),
            ("accept-encoding: br;q=0, gzip, sdch", Some("gzip")),
            ("accept-encoding: *", Some("br, gzip, zstd, deflate")),
            ("accept-encoding: *, br;q=0", Some("gzip, zstd, deflate")),
            ("accept-encoding: gzip, *;q=0", Some("gzip, identity;q=0")),
            ("accept-encoding: gzip, *;q=0, identity", Some("gzip")),
            ("accept-encoding: identity;q=0", Some("identity;q=0")),
        ] {
            let folded = fold(&fields(accept));
            assert_eq!(folded.map(|accepted| accepted.value()), expected.map(HeaderValue::from_static), "{accept}");
            if let Some(folded) = folded {
                let again = fields(&format!("accept-encoding: {}", folded.value().to_str().unwrap()));
                assert_eq!(fold(&again), Some(folded), "{accept}");
            }
        }
    }

    #[test]
    fn the_best_that_both_know() {
        let ours = ["br", "zstd", "gzip"];
        for (accept, coding, not_as_it_is) in [
            ("", None, false),
            ("accept-encoding:", None, false),
            ("accept-encoding: gzip, deflate, br, zstd", Some("br"), false),
            ("accept-encoding: gzip", Some("gzip"), false),
            ("accept-encoding: X-GZIP", Some("gzip"), false),
            ("accept-encoding: gzip;q=1.0, br;q=0.5", Some("gzip"), false),
            ("accept-encoding: br; q=0, *", Some("zstd"), false),
            ("accept-encoding: *;q=0", None, true),
            ("accept-encoding: identity;q=0, gzip;q=0.1", Some("gzip"), true),
            ("accept-encoding: gzip;q=0.5, identity", None, false),
            ("accept-encoding: gzip;q=0.5, identity;q=0.5", Some("gzip"), false),
            ("accept-encoding: deflate", None, false),
            ("accept-encoding: gzip;q=0", None, false),
            ("accept-encoding: gzip;q=high, br;q=2", None, false),
            ("accept-encoding: br;q=0\naccept-encoding: gzip;q=0.001", Some("gzip"), false),
            ("accept-encoding: br;q=0, br", None, false),
        ] {
            assert_eq!(choose(&fields(accept), &ours), Choice { coding, not_as_it_is }, "{accept}");
        }
    }
}
