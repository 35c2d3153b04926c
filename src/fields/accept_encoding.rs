//! `Accept-Encoding` (RFC 9110 §12.5.3): which content coding a client would like best.

use http::HeaderMap;
use http::header::ACCEPT_ENCODING;

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
