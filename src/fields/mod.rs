//! Words: parse and print the values of HTTP fields. Pure, and nothing else.
//!
//! A value that cannot be understood is never a panic and never a guess: each
//! module says which reading is the safe one.

pub mod accept_encoding;
pub mod accept_language;
pub mod authority;
pub mod bearer;
pub mod cache_control;
pub mod cache_status;
pub mod conditional;
pub mod connection;
pub mod cookies;
pub mod date;
pub mod explained;
pub mod forwarded;
pub mod path;
pub mod query;
pub mod range;
pub mod reference;
pub mod tags;
pub mod validators;
pub mod vary;

use http::HeaderMap;
use http::header::AsHeaderName;

/// The members of a list field over all its lines (RFC 9110 §5.6.1), blanks trimmed, empty ones left out.
///
/// A comma inside a quoted string does not separate.
pub fn members<'a>(fields: &'a HeaderMap, name: impl AsHeaderName + 'a) -> impl Iterator<Item = &'a [u8]> {
    fields.get_all(name).iter().flat_map(|line| separated(line.as_bytes(), b','))
}

/// What a byte separates, but inside a quoted string; blanks trimmed, empty ones left out.
fn separated(value: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = value;
    std::iter::from_fn(move || {
        while !rest.is_empty() {
            let (mut quoted, mut escaped) = (false, false);
            let end = rest.iter().position(|byte| {
                let separates = *byte == separator && !quoted;
                if *byte == b'"' && !escaped {
                    quoted = !quoted;
                }
                escaped = quoted && *byte == b'\\' && !escaped;
                separates
            });
            let (part, after) = match end {
                Some(at) => (&rest[..at], &rest[at + 1..]),
                None => (rest, &rest[..0]),
            };
            rest = after;
            let part = part.trim_ascii();
            if !part.is_empty() {
                return Some(part);
            }
        }
        None
    })
}

/// Whether a quoted string is never closed: whatever stands behind the quote is hidden in it.
fn open_quote(value: &[u8]) -> bool {
    let (mut quoted, mut escaped) = (false, false);
    for byte in value {
        if *byte == b'"' && !escaped {
            quoted = !quoted;
        }
        escaped = quoted && *byte == b'\\' && !escaped;
    }
    quoted
}

/// A head made of `name: value` lines, for tests.
#[cfg(test)]
pub(crate) fn fields(lines: &str) -> HeaderMap {
    let mut map = HeaderMap::new();
    for line in lines.lines().filter(|line| !line.trim().is_empty()) {
        let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("no colon in {line:?}"));
        let name: http::HeaderName = name.trim().parse().unwrap();
        map.append(name, value.trim().parse().unwrap());
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_run_over_lines_and_respect_quotes() {
        let map = fields("x: a, b,,c\nx: \"d,e\", f=\"g\\\",h\"\nx:");
        let all: Vec<_> = members(&map, "x").map(|m| std::str::from_utf8(m).unwrap()).collect();
        assert_eq!(all, ["a", "b", "c", "\"d,e\"", "f=\"g\\\",h\""]);
    }
}
