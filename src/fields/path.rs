//! The path of a request target in its normal form (RFC 3986 §6.2.2).

use std::borrow::Cow;

/// The path as most readers understand it.
pub fn normalise(path: &str) -> Cow<'_, str> {
    let plain = !path.contains('%') && !path.contains("//") && !path.contains("/.");
    if plain {
        return Cow::Borrowed(path);
    }
    let decoded = decode_unreserved(path);
    let mut kept: Vec<&str> = Vec::new();
    let mut trailing = false;
    let segments: Vec<_> = decoded.split('/').collect();
    for (index, segment) in segments.iter().enumerate() {
        let last = index + 1 == segments.len();
        match *segment {
            "" | "." => trailing = last,
            ".." => {
                kept.pop();
                trailing = last;
            }
            segment => {
                kept.push(segment);
                trailing = false;
            }
        }
    }
    let mut out = String::with_capacity(path.len());
    for segment in &kept {
        out.push('/');
        out.push_str(segment);
    }
    if trailing || kept.is_empty() {
        out.push('/');
    }
    Cow::Owned(out)
}

/// Whether a segment means "here" or "one up" to anybody: also to those who take escaped slashes, or
/// those that lean the other way, for slashes.
pub fn has_dot_segments(path: &str) -> bool {
    let path = decode_unreserved(path).to_ascii_lowercase().replace("%2f", "/").replace("%5c", "/");
    path.split(['/', '\\']).any(|segment| matches!(segment, "." | ".."))
}

/// Whether two readers of a path may understand two things: dot segments and empty ones, `;`, escapes of what
/// separates (`/ \\ ; ? #`) or of dots, double escapes, those of control characters, and such as are none.
///
/// A query is no path; what is in one says nothing here.
pub fn is_ambiguous(path: &str) -> bool {
    let bytes = path.as_bytes();
    let odd = |at: usize, byte: u8| match byte {
        b';' | b'\\' => true,
        b'/' => bytes.get(at + 1) == Some(&b'/'),
        b'%' => {
            let hex = |at: usize| bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16));
            match (hex(at + 1), hex(at + 2)) {
                (Some(high), Some(low)) => {
                    // 0xC0 and 0xC1 begin only forms of ASCII that UTF-8 forbids.
                    matches!((high * 16 + low) as u8, 0..=0x1f | 0x7f | 0xc0 | 0xc1)
                        || matches!((high * 16 + low) as u8, b'/' | b'\\' | b';' | b'?' | b'#' | b'.' | b'%')
                }
                _ => true,
            }
        }
        _ => false,
    };
    bytes.iter().enumerate().any(|(at, byte)| odd(at, *byte)) || has_dot_segments(path)
}

/// Decodes the escapes that RFC 3986 §2.3 calls equivalent to the character itself.
fn decode_unreserved(path: &str) -> String {
    let bytes = path.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'%' && at + 2 < bytes.len() {
            let hex = |byte: u8| (byte as char).to_digit(16);
            if let (Some(high), Some(low)) = (hex(bytes[at + 1]), hex(bytes[at + 2])) {
                let byte = (high * 16 + low) as u8;
                if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                    out.push(byte);
                    at += 3;
                    continue;
                }
            }
        }
        out.push(bytes[at]);
        at += 1;
    }
    // Only ASCII was put in place of ASCII.
    String::from_utf8(out).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_forms() {
        for (path, normal) in [
            ("/a/b", "/a/b"),
            ("/a//b/", "/a/b/"),
            ("/a/./b/..", "/a/"),
            ("/../..", "/"),
            ("/%7Ea%2Fb%2e", "/~a%2Fb."),
            ("/a%2", "/a%2"),
            ("/%zz", "/%zz"),
            ("/.well-known/x", "/.well-known/x"),
        ] {
            assert_eq!(normalise(path), normal, "{path}");
        }
        for (path, dots) in [
            ("/a/../b", true),
            ("/%2e", true),
            ("/..", true),
            ("/v../b", false),
            ("/.a/b.", false),
            ("/a%2F..%5cb", true),
        ] {
            assert_eq!(has_dot_segments(path), dots, "{path}");
        }
    }

    #[test]
    fn what_two_readers_read_differently() {
        for (path, ambiguous) in [
            ("/", false),
            ("/a/b.css", false),
            ("/.well-known/x", false),
            ("/my%20file.png", false),
            ("/_next/static/chunks/app/%5Bslug%5D/page-1a2b.js", false),
            ("/@fs/x,y/(a)/~b/!$&'*+=:", false),
            ("/caf%C3%A9", false),
            ("/a/../b", true),
            ("/a/./b", true),
            ("/a/..", true),
            ("//a", true),
            ("/a//", true),
            ("/a;x.css", true),
            ("/a%3bx.css", true),
            ("/a%2Fx.css", true),
            ("/a%5cx", true),
            ("/a\\x", true),
            ("/a%3fx.css", true),
            ("/a%23x.css", true),
            ("/a%252fx.css", true),
            ("/a/%2e%2e/b", true),
            ("/a%2Ecss", true),
            ("/a%09", true),
            ("/a%00.css", true),
            ("/a%c0%afb", true),
            ("/a%2", true),
            ("/a%zz", true),
        ] {
            assert_eq!(is_ambiguous(path), ambiguous, "{path}");
        }
    }
}
