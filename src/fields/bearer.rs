//! `Authorization: Bearer TOKEN` (RFC 6750 §2.1).

use http::HeaderMap;
use http::header::AUTHORIZATION;

/// The token that a request carries.
pub fn token(fields: &HeaderMap) -> Option<&[u8]> {
    let value = fields.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at(value.iter().position(|byte| *byte == b' ')?);
    scheme.eq_ignore_ascii_case(b"bearer").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::fields;

    #[test]
    fn tokens() {
        for (line, expected) in [
            ("authorization: Bearer abc", Some("abc")),
            ("authorization: bearer  abc ", Some("abc")),
            ("authorization: Basic abc", None),
            ("authorization: Bearer", None),
            ("x: Bearer abc", None),
        ] {
            assert_eq!(token(&fields(line)), expected.map(str::as_bytes), "{line}");
        }
    }
}
