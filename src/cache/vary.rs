//! Which variant a request asks for (RFC 9111 §4.1).
//!
//! A variant is named by a hash over the fields that `Vary` nominated. Each name
//! and each line is preceded by its length; a missing field differs from an empty one.

use std::sync::Arc;

use http::{HeaderMap, HeaderName};
use pingora::cache::key::{HashBinary, hash_key};

/// The nominated fields of one stored response.
#[derive(Debug, Clone)]
pub struct Nominated(pub Arc<[HeaderName]>);

/// The variant that these request fields choose; `None` when nothing was nominated.
pub fn variant(nominated: &[HeaderName], request: &HeaderMap) -> Option<HashBinary> {
    if nominated.is_empty() {
        return None;
    }
    let mut bytes = Vec::with_capacity(128);
    let mut frame = |part: &[u8]| {
        bytes.extend_from_slice(&(part.len() as u32).to_be_bytes());
        bytes.extend_from_slice(part);
    };
    for name in nominated {
        frame(name.as_str().as_bytes());
        let lines = request.get_all(name);
        frame(&(lines.iter().count() as u32).to_be_bytes());
        for line in lines {
            frame(line.as_bytes().trim_ascii());
        }
    }
    Some(hash_key(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::fields;

    #[test]
    fn same_fields_same_variant() {
        let names = ["accept-encoding".parse().unwrap(), "cookie".parse().unwrap()];
        let of = |lines: &str| variant(&names, &fields(lines));
        let gzip = of("accept-encoding: gzip\nx: 1");
        assert_eq!(gzip, of("x: 2\naccept-encoding:  gzip "));
        for other in ["", "accept-encoding:", "accept-encoding: br", "cookie: gzip", "accept-encoding: gzip\ncookie: a"]
        {
            assert_ne!(gzip, of(other), "{other}");
        }
        assert_ne!(of(""), of("accept-encoding:"), "absent is not empty");
        assert_eq!(variant(&[], &fields("a: b")), None);
    }
}
