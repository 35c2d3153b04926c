//! Which variant a request asks for (RFC 9111 §4.1).
//!
//! A variant is named by a hash over the fields that `Vary` nominated, and over the cookies and
//! fields that the route adds. Each name and each value is preceded by its length; a missing field
//! differs from an empty one.
//!
//! `Accept-Encoding` is compared by the set of codings that it allows, and `Accept-Language` without case and
//! blanks: the origin is asked in the same forms, so it cannot choose by more. All other fields are
//! compared byte for byte, for the origin sees them as they came.

use std::sync::Arc;

use http::header::{ACCEPT_ENCODING, ACCEPT_LANGUAGE};
use http::{HeaderMap, HeaderName};
use pingora::cache::key::{HashBinary, hash_key};

use crate::fields::{accept_encoding, accept_language, cookies};

/// The nominated fields of one stored response.
#[derive(Debug, Clone)]
pub struct Nominated(pub Arc<[HeaderName]>);

/// What a route adds to the fields that choose.
#[derive(Debug, Clone, Default)]
pub struct Chosen {
    /// Names of cookies.
    pub cookies: Vec<String>,
    /// Request fields.
    pub headers: Vec<HeaderName>,
}

impl Chosen {
    fn nothing(&self) -> bool {
        self.cookies.is_empty() && self.headers.is_empty()
    }
}

#[derive(Default)]
struct Frames(Vec<u8>);

impl Frames {
    fn put(&mut self, part: &[u8]) {
        self.0.extend_from_slice(&(part.len() as u32).to_be_bytes());
        self.0.extend_from_slice(part);
    }

    /// How many come is known when they are all there.
    fn counted(&mut self, fill: impl FnOnce(&mut Self) -> usize) {
        let at = self.0.len();
        self.0.extend_from_slice(&[0; 4]);
        let count = fill(self) as u32;
        self.0[at..at + 4].copy_from_slice(&count.to_be_bytes());
    }

    fn field(&mut self, name: &HeaderName, request: &HeaderMap) {
        self.put(name.as_str().as_bytes());
        let lines = request.get_all(name);
        let folded = match *name {
            ACCEPT_ENCODING => accept_encoding::fold(request).map(|accepted| accepted.value()),
            ACCEPT_LANGUAGE => accept_language::fold(request),
            _ => None,
        };
        self.counted(|frames| match folded {
            Some(value) => {
                frames.put(value.as_bytes());
                1
            }
            None => lines.iter().map(|line| frames.put(line.as_bytes().trim_ascii())).count(),
        });
    }
}

/// The variant that this request chooses; `None` when nothing chooses.
pub fn variant(nominated: &[HeaderName], chosen: &Chosen, request: &HeaderMap) -> Option<HashBinary> {
    if nominated.is_empty() && chosen.nothing() {
        return None;
    }
    let mut frames = Frames(Vec::with_capacity(128));
    for name in nominated.iter().chain(&chosen.headers) {
        frames.field(name, request);
    }
    for name in &chosen.cookies {
        frames.put(name.as_bytes());
        let values = cookies::sent(request).filter(|(sent, _)| *sent == name.as_bytes());
        frames.counted(|frames| values.map(|(_, value)| frames.put(value)).count());
    }
    Some(hash_key(frames.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::fields;

    fn of(names: &[&str], lines: &str) -> Option<HashBinary> {
        let names: Vec<_> = names.iter().map(|name| name.parse().unwrap()).collect();
        variant(&names, &Chosen::default(), &fields(lines))
    }

    #[test]
    fn same_meaning_same_variant() {
        let names = ["accept", "accept-encoding", "accept-language", "cookie"];
        let base = "accept: a/b, c/d\naccept-encoding: gzip, br\naccept-language: en-GB, de;q=0.5\ncookie: a=b";
        for same in [
            "x: 1\naccept:  a/b, c/d \naccept-encoding: br;q=0.5 ,GZIP\naccept-language: EN-gb ,de; q=0.5\ncookie: a=b",
            "accept: a/b, c/d\naccept-encoding: br, sdch\naccept-encoding: gzip\naccept-language: en-gb\naccept-language: de;q=0.5\ncookie: a=b",
        ] {
            assert_eq!(of(&names, base), of(&names, same), "{same}");
        }
        for (old, new) in [
            ("a/b, c/d", "a/b,c/d"),
            ("a/b, c/d", "c/d, a/b"),
            ("accept: a/b, c/d", "accept: a/b\naccept: c/d"),
            ("gzip, br", "gzip"),
            ("gzip, br", "gzip, br, identity;q=0"),
            ("en-GB, de;q=0.5", "de;q=0.5, en-GB"),
            ("en-GB, de;q=0.5", "en, de;q=0.5"),
            ("a=b", "a=B"),
            ("cookie: a=b", "x: y"),
            (base, ""),
        ] {
            let other = base.replace(old, new);
            assert_ne!(of(&names, base), of(&names, &other), "{other}");
        }
    }

    #[test]
    fn absent_is_not_empty_and_case_counts_where_nobody_says_otherwise() {
        for name in ["x", "accept-encoding", "accept-language"] {
            assert_ne!(of(&[name], ""), of(&[name], &format!("{name}:")), "{name}");
        }
        assert_eq!(
            of(&["accept-encoding"], "accept-encoding: foo"),
            of(&["accept-encoding"], "accept-encoding: identity")
        );
        assert_ne!(of(&["x"], "x: a"), of(&["x"], "x: A"));
        assert_ne!(of(&["x", "y"], "x: a"), of(&["x", "y"], "y: a"));
        assert_eq!(of(&[], "a: b"), None);
    }

    #[test]
    fn what_the_route_adds() {
        let chosen = Chosen { cookies: vec!["lang".into()], headers: vec!["x-country".parse().unwrap()] };
        let of = |lines: &str| variant(&[], &chosen, &fields(lines)).unwrap();
        let base = of("cookie: session=1; lang=de\nx-country: CH");
        assert_eq!(base, of("cookie: lang=de; session=2\nx-country:  CH "));
        for other in [
            "",
            "cookie: lang=de",
            "cookie: lang=DE\nx-country: CH",
            "cookie: lang=de; lang=de\nx-country: CH",
            "cookie: Lang=de\nx-country: CH",
            "cookie: lang=\nx-country: CH",
        ] {
            assert_ne!(base, of(other), "{other}");
        }
    }
}
