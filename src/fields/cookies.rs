//! `Cookie` and `Set-Cookie` (RFC 6265 §4): names and values, byte for byte.

use http::HeaderMap;
use http::header::{COOKIE, SET_COOKIE};

fn pair(text: &[u8]) -> (&[u8], &[u8]) {
    let (name, value) = match text.iter().position(|byte| *byte == b'=') {
        Some(at) => (&text[..at], &text[at + 1..]),
        // A browser sends a cookie without a name like this.
        None => (&text[..0], text),
    };
    (name.trim_ascii(), value.trim_ascii())
}

/// The cookies of a request, in their order.
pub fn sent(request: &HeaderMap) -> impl Iterator<Item = (&[u8], &[u8])> {
    let lines = request.get_all(COOKIE).iter();
    let pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    pairs.map(<[u8]>::trim_ascii).filter(|pair| !pair.is_empty()).map(pair)
}

/// The names of the cookies that a response sets. A line with a comma in its pair may be several that somebody has
/// joined, and has no name that could be relied on.
pub fn set(response: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let lines = response.get_all(SET_COOKIE).iter();
    lines.map(|line| match line.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default() {
        joined if joined.contains(&b',') => &joined[..0],
        first => pair(first).0,
    })
}

/// A `Cookie` value with these cookies only; `None` when none of them was sent.
pub fn only(request: &HeaderMap, names: &[String]) -> Option<Vec<u8>> {
    let kept = sent(request).filter(|(name, _)| names.iter().any(|known| known.as_bytes() == *name));
    let pairs: Vec<_> = kept.map(|(name, value)| [name, b"=", value].concat()).collect();
    (!pairs.is_empty()).then(|| pairs.join(&b"; "[..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::fields;

    #[test]
    fn names_and_values() {
        let request = fields("cookie: a=1; b = x=y ;; flag; =z\ncookie: a=2");
        let all: Vec<_> = sent(&request).map(|(name, value)| [name, b"|", value].concat()).collect();
        assert_eq!(all, [&b"a|1"[..], b"b|x=y", b"|flag", b"|z", b"a|2"]);
        assert_eq!(only(&request, &["a".into()]).unwrap(), b"a=1; a=2");
        assert_eq!(only(&request, &["c".into()]), None);
    }

    #[test]
    fn what_a_response_sets() {
        let response = fields("set-cookie: a=1; Path=/; Secure\nset-cookie: B=2\nset-cookie: nameless");
        let names: Vec<_> = set(&response).collect();
        assert_eq!(names, [&b"a"[..], b"B", b""]);
        assert_eq!(set(&fields("")).count(), 0);
        let joined = fields("set-cookie: a=1, b=2; Path=/\nset-cookie: c=3; Expires=Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(set(&joined).collect::<Vec<_>>(), [&b""[..], b"c"]);
    }
}
