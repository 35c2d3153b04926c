//! What an origin sends: it is one response for a second reader too, that ends at the same byte; and in whatever pieces
//! it comes, it is the same.

use headwall::upstream::watch::{Asked, Watch};

/// A byte for what was asked, one for the size of the pieces, then what is sent.
pub fn run(data: &[u8]) {
    let Some(([asked, size], data)) = data.split_first_chunk::<2>() else { return };
    let asked = Asked { head: asked & 1 == 1, upgrade: asked & 2 == 2 };
    let whole = seen(asked, data, data.len().max(1));
    let pieces = seen(asked, data, usize::from(*size).max(1));
    assert_eq!(whole, pieces, "{}", data.escape_ascii());
    if let Some((its, over)) = whole {
        let end = end(asked, data);
        assert_eq!(over, end.is_some(), "{end:?}: {}", data.escape_ascii());
        assert_eq!(its, end.unwrap_or(data.len()), "{}", data.escape_ascii());
    }
}

/// How much of it is the response, and whether that is over, unless there was a fault.
fn seen(asked: Asked, data: &[u8], size: usize) -> Option<(usize, bool)> {
    let mut watch = Watch::default();
    let mut its = 0;
    for piece in data.chunks(size) {
        its += watch.see(asked, piece).ok()?;
    }
    Some((its, watch.over()))
}

fn before<'a>(data: &'a [u8], mark: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = data.windows(mark.len()).position(|part| part == mark)?;
    Some((&data[..at], &data[at + mark.len()..]))
}

/// Where the response ends, if it does before its connection.
fn end(asked: Asked, data: &[u8]) -> Option<usize> {
    let (head, mut rest) = before(data, b"\r\n\r\n")?;
    let (first, fields) = before(head, b"\r\n").unwrap_or((head, b""));
    let status: u16 = std::str::from_utf8(first.get(9..12)?).ok()?.parse().ok()?;
    match status {
        101 => return None,
        100..=199 => return end(asked, rest).map(|end| data.len() - rest.len() + end),
        _ => {}
    }
    let (mut length, mut chunked, mut coded) = (None, false, false);
    for field in fields.split(|byte| *byte == b'\n') {
        let (name, value) = before(field, b":").unwrap_or_default();
        let value = String::from_utf8_lossy(value).trim().to_ascii_lowercase();
        match name.trim_ascii().to_ascii_lowercase().as_slice() {
            b"content-length" => length = Some(value.parse::<usize>().unwrap_or(usize::MAX)),
            b"transfer-encoding" => (coded, chunked) = (true, value == "chunked"),
            _ => {}
        }
    }
    if asked.head || matches!(status, 204 | 304) {
        return Some(data.len() - rest.len());
    }
    if coded && !chunked {
        return None;
    }
    if let (Some(length), false) = (length, chunked) {
        return (rest.len() >= length).then(|| data.len() - rest.len() + length);
    }
    if !chunked {
        return None;
    }
    loop {
        let (line, after) = before(rest, b"\r\n")?;
        let digits: String = line.iter().map(|byte| *byte as char).take_while(char::is_ascii_hexdigit).collect();
        let size = usize::from_str_radix(&digits, 16).ok()?;
        if size == 0 {
            let ended = [b"\r\n", after].concat();
            let (trailers, _) = before(&ended, b"\r\n\r\n")?;
            return Some(data.len() - after.len() - 2 + trailers.len() + 4);
        }
        rest = after.get(size.checked_add(2)?..)?;
    }
}
