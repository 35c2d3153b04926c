//! Dates (RFC 9110 §5.6.7): all three forms are read, one is written.

use std::time::SystemTime;

use http::HeaderMap;
use http::header::AsHeaderName;

/// The date in the field, if it stands there once and is one.
pub fn of(fields: &HeaderMap, name: impl AsHeaderName) -> Option<SystemTime> {
    let mut lines = fields.get_all(name).iter();
    let only = lines.next().filter(|_| lines.next().is_none())?;
    httpdate::parse_http_date(only.to_str().ok()?.trim()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::fields;

    #[test]
    fn every_legal_form_and_no_other() {
        let when = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(784_111_777);
        for (value, expected) in [
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(when)),
            ("Sunday, 06-Nov-94 08:49:37 GMT", Some(when)),
            ("Sun Nov  6 08:49:37 1994", Some(when)),
            ("0", None),
            ("tomorrow", None),
        ] {
            assert_eq!(of(&fields(&format!("expires: {value}")), "expires"), expected, "{value}");
        }
        assert_eq!(of(&fields("expires: Sun, 06 Nov 1994 08:49:37 GMT\nexpires: 0"), "expires"), None);
    }
}
