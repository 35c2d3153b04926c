//! `Accept-Language` (RFC 9110 §12.5.4) in one form, whatever its case and blanks.

use http::header::ACCEPT_LANGUAGE;
use http::{HeaderMap, HeaderValue};

use super::members;

/// The same preferences as browsers write them: `en-GB, de;q=0.5`. The order stays, for apps take it for
/// preference. `None` where the field is absent, or has what no such list has.
pub fn fold(request: &HeaderMap) -> Option<HeaderValue> {
    request.get(ACCEPT_LANGUAGE)?;
    let mut out = String::with_capacity(64);
    for member in members(request, ACCEPT_LANGUAGE) {
        let member = std::str::from_utf8(member).ok()?;
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-*;=. \t".contains(&byte);
        if !member.bytes().all(legal) {
            return None;
        }
        if !out.is_empty() {
            out.push_str(", ");
        }
        let mut parts = member.split(';').map(str::trim);
        out.push_str(&tag(parts.next().unwrap_or_default()));
        for part in parts {
            out.push(';');
            out.extend(part.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_ascii_lowercase()));
        }
    }
    HeaderValue::from_str(&out).ok()
}

/// Languages are written small, regions large, scripts with one large letter (RFC 5646 §2.1.1).
fn tag(tag: &str) -> String {
    let parts = tag.split('-').enumerate().map(|(place, part)| {
        let small = part.to_ascii_lowercase();
        match (place, part.len()) {
            (1.., 2) => part.to_ascii_uppercase(),
            (1.., 4) => small[..1].to_ascii_uppercase() + &small[1..],
            _ => small,
        }
    });
    parts.collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::fields;

    #[test]
    fn one_form() {
        for (lines, expected) in [
            ("", None),
            ("accept-language:", Some("")),
            ("accept-language: en-GB,de;q=0.5", Some("en-GB, de;q=0.5")),
            ("accept-language:  EN-gb ,, DE ; Q=0.5", Some("en-GB, de;q=0.5")),
            ("accept-language: de;q=0.5\naccept-language: zh-hANT-tw, *", Some("de;q=0.5, zh-Hant-TW, *")),
            ("accept-language: de, en", Some("de, en")),
            ("accept-language: d\"e", None),
            ("accept-language: dé", None),
        ] {
            let folded = fold(&fields(lines));
            assert_eq!(folded, expected.map(HeaderValue::from_static), "{lines}");
            if let Some(folded) = folded {
                let again = fields(&format!("accept-language: {}", folded.to_str().unwrap()));
                assert_eq!(fold(&again), Some(folded), "{lines}");
            }
        }
    }
}
