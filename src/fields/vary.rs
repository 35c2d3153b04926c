//! `Vary` (RFC 9110 §12.5.5): which request fields chose this response.

use http::header::VARY;
use http::{HeaderMap, HeaderName};
use pingora::http::ResponseHeader;

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

/// Says that the response depends on this field too; one line, and nothing where it is said already.
pub fn add(response: &mut ResponseHeader, name: HeaderName) {
    let said = |member: &[u8]| member == b"*" || member.eq_ignore_ascii_case(name.as_str().as_bytes());
    if members(&response.headers, VARY).any(said) {
        return;
    }
    let mut all: Vec<String> =
        members(&response.headers, VARY).map(|member| String::from_utf8_lossy(member).into_owned()).collect();
    all.push(name.as_str().to_owned());
    let _ = response.insert_header(VARY, all.join(", "));
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

    #[test]
    fn a_name_is_added_once() {
        let mut response = ResponseHeader::build(200, None).unwrap();
        for expected in ["origin", "origin"] {
            add(&mut response, http::header::ORIGIN);
            assert_eq!(response.headers[VARY], expected);
        }
        response.append_header(VARY, "Accept").unwrap();
        add(&mut response, http::header::ACCEPT_ENCODING);
        assert_eq!(response.headers.get_all(VARY).iter().collect::<Vec<_>>(), ["origin, Accept, accept-encoding"]);
        response.insert_header(VARY, "*").unwrap();
        add(&mut response, http::header::ORIGIN);
        assert_eq!(response.headers[VARY], "*");
    }
}
