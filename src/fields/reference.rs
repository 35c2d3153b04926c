//! References to other resources (RFC 3986 §4.1), as `Location` and `Content-Location` have them.

use super::authority::plain;

/// Path and query of what the reference names, byte for byte, if it lies on this host. `base` is the path and
/// query that it is relative to.
pub fn local(reference: &str, host: &str, base: &str) -> Option<String> {
    let reference = reference.split('#').next()?.trim();
    let visible = reference.bytes().all(|byte| byte.is_ascii_graphic());
    if !visible {
        return None;
    }
    let rest = match scheme(reference) {
        Some(("http" | "https", rest)) => rest.strip_prefix("//").map(|rest| on(rest, host))??,
        Some(_) => return None,
        None => match reference.strip_prefix("//") {
            Some(rest) => on(rest, host)?,
            None => reference,
        },
    };
    let base_path = base.split('?').next()?;
    let (path, query) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
    let path = match path {
        "" if query.is_empty() && rest.len() == reference.len() => return Some(base.to_owned()),
        "" if rest.len() == reference.len() => base_path.to_owned(),
        "" => "/".to_owned(),
        path if path.starts_with('/') => without_dots(path),
        path => without_dots(&format!("{}{path}", &base_path[..=base_path.rfind('/')?])),
    };
    Some(path + query)
}

fn scheme(reference: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = reference.split_once(':')?;
    let known = ["http", "https"].into_iter().find(|known| known.eq_ignore_ascii_case(scheme));
    let legal = scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    (legal && scheme.starts_with(|first: char| first.is_ascii_alphabetic())).then_some((known.unwrap_or(scheme), rest))
}

/// What follows the authority, if it is this host.
fn on<'a>(rest: &'a str, host: &str) -> Option<&'a str> {
    let (authority, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    (plain(authority) == plain(host)).then_some(rest)
}

/// RFC 3986 §5.2.4
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            ".." => {
                kept.pop();
            }
            "." => {}
            segment => {
                kept.push(segment);
                continue;
            }
        }
        if last {
            kept.push("");
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_reference_names() {
        let base = "/a/b?x=1";
        for (reference, expected) in [
            ("/c", Some("/c")),
            ("/c?y#z", Some("/c?y")),
            ("c", Some("/a/c")),
            ("./c", Some("/a/c")),
            ("../c/./d/..", Some("/c/")),
            ("?y=2", Some("/a/b?y=2")),
            ("", Some("/a/b?x=1")),
            ("#top", Some("/a/b?x=1")),
            ("//shop.test/c", Some("/c")),
            ("http://shop.test/c?d", Some("/c?d")),
            ("HTTPS://SHOP.test", Some("/")),
            ("https://shop.test?y", Some("/?y")),
            ("/c%2Fd/%2E", Some("/c%2Fd/%2E")),
            ("http://shop.test:80/c", Some("/c")),
            ("https://shop.test.:443/c", Some("/c")),
            ("a/b:c", Some("/a/a/b:c")),
            ("http://other.test/c", None),
            ("http://shop.test:81/c", None),
            ("http:/c", None),
            ("mailto:a@shop.test", None),
            ("/c d", None),
            ("/ü", None),
        ] {
            assert_eq!(local(reference, "shop.test", base).as_deref(), expected, "{reference}");
        }
        assert_eq!(local("/c", "", base).as_deref(), Some("/c"), "a path alone needs no host");
    }
}
