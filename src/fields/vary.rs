//! `Vary` (RFC 9110 §12.5.5): which request fields chose this response.

use http::header::VARY;
use http::{HeaderMap, HeaderName};

use super::members;

/// The nominated fields, sorted and each once; `Err` for `*`, or for a name that is none.
pub fn nominated(response: &HeaderMap) -> Result<Vec<HeaderName>, Everything> {
    let mut names = Vec::new();
    for member in members(response, VARY) {
        if member == b"*" {
            return Err(Everything);
        }
        names.push(HeaderName::from_bytes(member).map_err(|_| Everything)?);
    }
    names.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    names.dedup();
    Ok(names)
}

/// The response depends on more than we can compare.
#[derive(Debug, PartialEq, Eq)]
pub struct Everything;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::fields;

    #[test]
    fn names_are_a_set() {
        let names = nominated(&fields("vary: Cookie, accept-encoding\nvary: ACCEPT-ENCODING")).unwrap();
        assert_eq!(names, ["accept-encoding", "cookie"]);
        assert_eq!(nominated(&fields("vary: accept, *")), Err(Everything));
        assert_eq!(nominated(&fields("vary: not a name")), Err(Everything));
        assert_eq!(nominated(&fields("")), Ok(vec![]));
    }
}
