//! Reads along with what an origin sends, byte for byte, and says where it stops being one response that every
//! reader understands alike (RFC 9112).
//!
//! The engine's reader is a lenient one: it unfolds lines, takes a bare LF for a line's end, and drops a
//! `Content-Length` beside `Transfer-Encoding`. It goes on reading; this one refuses, and nothing of the response is
//! used.

use std::fmt;

use crate::fields::connection::is_no_coding;

/// A head, and the lines of chunks, up to this size, as in the engine.
const MOST: usize = 1 << 20;

/// What an origin must not send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// What begins is no status line of HTTP/1.0 or HTTP/1.1.
    StatusLine,
    /// A line of the head, or of the trailers, that is no field: no colon, no name, an octet that may not be there.
    FieldLine,
    /// A line that goes on in the next one (§5.2).
    FoldedLine,
    /// A line that ends without CR, or a CR inside of it (§2.2).
    BareLineEnd,
    /// A head without an end.
    HeadSize,
    /// More than one length, or one that is no number (§6.3).
    ContentLength,
    /// `Content-Length` beside `Transfer-Encoding` (§6.3).
    TwoFramings,
    /// More than one coding, one that we do not know, or any in HTTP/1.0 (§6.1).
    TransferEncoding,
    /// A 101 for a request that did not want one.
    Unasked101,
    /// Chunks that are none (§7.1).
    Chunk,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 10] = [
        Fault::StatusLine,
        Fault::FieldLine,
        Fault::FoldedLine,
        Fault::BareLineEnd,
        Fault::HeadSize,
        Fault::ContentLength,
        Fault::TwoFramings,
        Fault::TransferEncoding,
        Fault::Unasked101,
        Fault::Chunk,
    ];

    /// Its name in metrics and in the log.
    pub fn token(self) -> &'static str {
        match self {
            Fault::StatusLine => "status-line",
            Fault::FieldLine => "field-line",
            Fault::FoldedLine => "folded-line",
            Fault::BareLineEnd => "bare-line-end",
            Fault::HeadSize => "head-size",
            Fault::ContentLength => "content-length",
            Fault::TwoFramings => "two-framings",
            Fault::TransferEncoding => "transfer-encoding",
            Fault::Unasked101 => "unasked-101",
            Fault::Chunk => "chunk",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.token())
    }
}

impl std::error::Error for Fault {}

/// What was asked, as far as it says how the response ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Asked {
    /// HEAD.
    pub head: bool,
    /// The request wants another protocol.
    pub upgrade: bool,
}

/// One response, as far as it has come.
#[derive(Debug, Default)]
pub struct Watch {
    state: State,
    /// The beginning of a line whose end has not come.
    line: Vec<u8>,
    /// How long the head is, or the lines of trailers, so far.
    size: usize,
    head: Head,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    StatusLine,
    Fields,
    Length(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailers,
    /// Content up to the end of the connection, or another protocol.
    Anything,
    Over,
}

#[derive(Debug, Default)]
struct Head {
    old: bool,
    status: u16,
    length: Option<u64>,
    coding: Option<Coding>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    Chunked,
    /// A word that stands for no coding: the content goes on to the end of the connection.
    None,
}

impl Watch {
    /// Whether the response is whole, and the connection could be asked again.
    pub fn over(&self) -> bool {
        self.state == State::Over
    }

    /// The next bytes of what answers this have come. How many of them belong to it: what is behind its end does not,
    /// nor does content for a HEAD, with a 204 or a 304.
    pub fn see(&mut self, asked: Asked, all: &[u8]) -> Result<usize, Fault> {
        let mut bytes = all;
        while !bytes.is_empty() {
            match &mut self.state {
                State::Anything => break,
                State::Over => return Ok(all.len() - bytes.len()),
                State::Length(left) | State::Chunk(left) => {
                    let now = (*left).min(bytes.len() as u64);
                    *left -= now;
                    bytes = &bytes[now as usize..];
                    match self.state {
                        State::Length(0) => self.state = State::Over,
                        State::Chunk(0) => self.state = State::ChunkEnd,
                        _ => {}
                    }
                }
                _ => bytes = self.see_line(asked, bytes)?,
            }
        }
        Ok(all.len())
    }

    /// Up to the end of a line, if it is there; what is behind it.
    fn see_line<'a>(&mut self, asked: Asked, bytes: &'a [u8]) -> Result<&'a [u8], Fault> {
        let end = memchr::memchr(b'\n', bytes);
        let (now, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
        self.size += now.len();
        if self.size > MOST {
            return Err(if matches!(self.state, State::ChunkSize) { Fault::Chunk } else { Fault::HeadSize });
        }
        if end.is_none() {
            self.line.extend_from_slice(now);
            return self.unfinished().map(|()| rest);
        }
        if self.line.is_empty() {
            self.take_line(asked, now)?;
        } else {
            let mut line = std::mem::take(&mut self.line);
            line.extend_from_slice(now);
            self.take_line(asked, &line)?;
        }
        Ok(rest)
    }

    /// What can be no line, whatever its end will be, is no line at once: nobody may wait for that.
    fn unfinished(&self) -> Result<(), Fault> {
        match self.state {
            State::StatusLine if !begins(&self.line, b"HTTP/1.") => Err(Fault::StatusLine),
            State::ChunkEnd if !begins(&self.line, b"\r\n") => Err(Fault::Chunk),
            _ => Ok(()),
        }
    }

    fn take_line(&mut self, asked: Asked, line: &[u8]) -> Result<(), Fault> {
        let in_chunks = matches!(self.state, State::ChunkSize | State::ChunkEnd);
        let Some(line) = line.strip_suffix(b"\r\n").filter(|line| !line.contains(&b'\r')) else {
            // What is no HTTP at all is called so.
            let http = self.state != State::StatusLine || line.starts_with(b"HTTP/1.");
            return Err(match () {
                () if in_chunks => Fault::Chunk,
                () if http => Fault::BareLineEnd,
                () => Fault::StatusLine,
            });
        };
        match self.state {
            State::StatusLine => {
                (self.head.old, self.head.status) = status_line(line).ok_or(Fault::StatusLine)?;
                self.state = State::Fields;
            }
            State::Fields if line.is_empty() => {
                self.state = self.framed(asked)?;
                (self.size, self.head) = (0, Head::default());
            }
            State::Fields => self.field(line)?,
            State::ChunkSize => {
                self.size = 0;
                self.state = match chunk_size(line).ok_or(Fault::Chunk)? {
                    0 => State::Trailers,
                    size => State::Chunk(size),
                };
            }
            State::ChunkEnd if line.is_empty() => self.state = State::ChunkSize,
            State::ChunkEnd => return Err(Fault::Chunk),
            State::Trailers if line.is_empty() => self.state = State::Over,
            _ => drop(field_line(line)?),
        }
        Ok(())
    }

    fn field(&mut self, line: &[u8]) -> Result<(), Fault> {
        let (name, value) = field_line(line)?;
        let head = &mut self.head;
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = number(value, 10).ok_or(Fault::ContentLength)?;
            if head.length.replace(length).is_some() {
                return Err(Fault::ContentLength);
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            let coding = match value {
                chunked if chunked.eq_ignore_ascii_case(b"chunked") => Coding::Chunked,
                unknown if is_no_coding(unknown) => Coding::None,
                _ => return Err(Fault::TransferEncoding),
            };
            if head.old || head.coding.replace(coding).is_some() {
                return Err(Fault::TransferEncoding);
            }
        }
        Ok(())
    }

    /// The head is over: how what follows it is framed (§6.3).
    fn framed(&self, asked: Asked) -> Result<State, Fault> {
        let Head { status, length, coding, .. } = self.head;
        if length.is_some() && coding.is_some() {
            return Err(Fault::TwoFramings);
        }
        Ok(match status {
            101 if asked.upgrade => State::Anything,
            101 => return Err(Fault::Unasked101),
            // There is more to come.
            100..=199 => State::StatusLine,
            204 | 304 => State::Over,
            _ if asked.head => State::Over,
            _ => match (coding, length) {
                (Some(Coding::Chunked), _) => State::ChunkSize,
                (None, Some(0)) => State::Over,
                (None, Some(length)) => State::Length(length),
                _ => State::Anything,
            },
        })
    }
}

/// Whether this is the beginning of that, or that the beginning of this.
fn begins(line: &[u8], with: &[u8]) -> bool {
    let common = line.len().min(with.len());
    line[..common] == with[..common]
}

/// Whether it is HTTP/1.0, and the status. The reason may be missing, and the blank before it.
fn status_line(line: &[u8]) -> Option<(bool, u16)> {
    let old = match line.strip_prefix(b"HTTP/1.")?.first()? {
        b'0' => true,
        b'1' => false,
        _ => return None,
    };
    let rest = line[8..].strip_prefix(b" ")?;
    let (code, reason) = rest.split_at_checked(3)?;
    let fits = (reason.is_empty() || reason.starts_with(b" ")) && reason.iter().all(|byte| text(*byte));
    let status = number(code, 10).filter(|status| fits && *status >= 100)?;
    Some((old, status as u16))
}

/// An octet that a line may have in it.
fn text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

/// Name and value. Blanks between name and colon go, as they have to (§5.1).
fn field_line(line: &[u8]) -> Result<(&[u8], &[u8]), Fault> {
    if line.first().is_some_and(|byte| b" \t".contains(byte)) {
        return Err(Fault::FoldedLine);
    }
    let colon = memchr::memchr(b':', line).ok_or(Fault::FieldLine)?;
    let (name, value) = (line[..colon].trim_ascii_end(), &line[colon + 1..]);
    let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let fits = !name.is_empty() && name.iter().all(token) && line.iter().all(|byte| text(*byte));
    if fits { Ok((name, value.trim_ascii())) } else { Err(Fault::FieldLine) }
}

/// The size; an extension is a text behind a semicolon.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let end = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
    let (size, extension) = line.split_at(end);
    let extension = extension.trim_ascii_start();
    let fits = (extension.is_empty() || extension.starts_with(b";")) && extension.iter().all(|byte| text(*byte));
    number(size, 16).filter(|_| fits)
}

/// A number, of digits only.
fn number(digits: &[u8], radix: u32) -> Option<u64> {
    let digit = |byte: &u8| (*byte as char).is_digit(radix);
    let text = std::str::from_utf8(digits).ok().filter(|_| digits.iter().all(digit))?;
    u64::from_str_radix(text, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: Asked = Asked { head: false, upgrade: false };
    const HEAD: Asked = Asked { head: true, upgrade: false };
    const UPGRADE: Asked = Asked { head: false, upgrade: true };

    /// How much of it belongs to the response, and whether that is over, if there is no fault in it; however it is cut
    /// into pieces.
    fn seen(asked: Asked, text: &[u8]) -> Result<(usize, bool), Fault> {
        let pieces = |size: usize| {
            let (mut watch, mut mine) = (Watch::default(), 0);
            for piece in text.chunks(size.max(1)) {
                mine += watch.see(asked, piece)?;
            }
            Ok((mine, watch.over()))
        };
        let whole = pieces(text.len());
        for size in 1..text.len().min(40) {
            assert_eq!(pieces(size), whole, "in pieces of {size}: {}", text.escape_ascii());
        }
        whole
    }

    #[test]
    fn what_servers_send_passes() {
        for (asked, text, over) in [
            (GET, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", true),
            (GET, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", false),
            (GET, "HTTP/1.1 200\r\ncontent-length:0\r\n\r\n", true),
            (GET, "HTTP/1.1 200 \r\nContent-Length:\t0 \r\nX:\r\n\r\n", true),
            (GET, "HTTP/1.0 200 OK\r\n\r\nanything\r\nat all\n\0", false),
            (GET, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", false),
            (GET, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", true),
            (
                GET,
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n00A ;a=\"b\";c\r\n0123456789\r\n0;x\r\n\r\n",
                true,
            ),
            (GET, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nTrailer: 1\r\nOther:\r\n\r\n", true),
            (GET, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", false),
            (GET, "HTTP/1.1 200 OK\r\nTransfer-Encoding: nonsense\r\n\r\nanything", false),
            (GET, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 \r\nLink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", true),
            (GET, "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", true),
            (GET, "HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\n\r\n", true),
            (HEAD, "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n", true),
            (HEAD, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", true),
            (UPGRADE, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\n\0any\rthing", false),
            (UPGRADE, "HTTP/1.1 400 Bad Request\r\nContent-Length: 1\r\n\r\nx", true),
            (GET, "HTTP/1.1 200 OK\r\nName : blanks before the colon go\r\nContent-Length: 1\r\n\r\nx", true),
            (GET, "HTTP/1.1 999 Request Denied\r\nContent-Length: 0\r\n\r\n", true),
        ] {
            assert_eq!(seen(asked, text.as_bytes()), Ok((text.len(), over)), "{text:?}");
        }
        let text = b"HTTP/1.1 200 \xe4\r\nX: \xe4\r\nContent-Length: 1\r\n\r\nx";
        assert_eq!(seen(GET, text), Ok((text.len(), true)), "obs-text");
    }

    #[test]
    fn what_two_readers_could_understand_in_two_ways_does_not() {
        use Fault::*;
        let head = |fields: &str| format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
        let chunks = |chunks: &str| format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
        for (asked, text, fault) in [
            (GET, head("Content-Length: 5\r\nContent-Length: 6\r\n"), ContentLength),
            (GET, head("Content-Length: 5\r\ncontent-length : 5\r\n"), ContentLength),
            (GET, head("Content-Length: 5, 5\r\n"), ContentLength),
            (GET, head("Content-Length: +5\r\n"), ContentLength),
            (GET, head("Content-Length: -5\r\n"), ContentLength),
            (GET, head("Content-Length: 0x5\r\n"), ContentLength),
            (GET, head("Content-Length:\r\n"), ContentLength),
            (GET, head("Content-Length: 5 5\r\n"), ContentLength),
            (GET, head("Content-Length: 99999999999999999999\r\n"), ContentLength),
            (HEAD, head("Content-Length: 5\r\nContent-Length: 5\r\n"), ContentLength),
            (GET, head("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"), TwoFramings),
            (GET, head("Transfer-Encoding: nonsense\r\nContent-Length: 5\r\n"), TwoFramings),
            (GET, head("Transfer-Encoding: gzip, chunked\r\n"), TransferEncoding),
            (GET, head("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), TransferEncoding),
            (GET, head("Transfer-Encoding: xchunked\r\n"), TransferEncoding),
            (GET, head("Transfer-Encoding:\r\n"), TransferEncoding),
            (GET, "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".into(), TransferEncoding),
            (GET, head("X: 1\r\n 2\r\n"), FoldedLine),
            (GET, head("X: 1\r\n\t\r\n"), FoldedLine),
            (GET, head(" X: 1\r\n"), FoldedLine),
            (GET, head("no colon\r\n"), FieldLine),
            (GET, head(": no name\r\n"), FieldLine),
            (GET, head("a b: 1\r\n"), FieldLine),
            (GET, head("a: 1\0\r\n"), FieldLine),
            (GET, head("a: 1\x7f\r\n"), FieldLine),
            (GET, head("a\x0c: 1\r\n"), FieldLine),
            (GET, head("a: 1\rb: 2\r\n"), BareLineEnd),
            (GET, head("a: 1\nb: 2\r\n"), BareLineEnd),
            (GET, "HTTP/1.1 200 OK\nContent-Length: 0\n\n".into(), BareLineEnd),
            (GET, "HTTP/1.1 200 OK\r\n\n".into(), BareLineEnd),
            (GET, "HTTP/1.1 200 OK\r\nA: 1\r\r\n\r\n".into(), BareLineEnd),
            (GET, "HTTP/2 200 OK\r\n\r\n".into(), StatusLine),
            (GET, "HTTP/1.2 200 OK\r\n\r\n".into(), StatusLine),
            (GET, "HTTP/1.1  200 OK\r\n\r\n".into(), StatusLine),
            (GET, "HTTP/1.1 20 OK\r\n\r\n".into(), StatusLine),
            (GET, "HTTP/1.1 2000 OK\r\n\r\n".into(), StatusLine),
            (GET, "HTTP/1.1 099 OK\r\n\r\n".into(), StatusLine),
            (GET, "HTTP/1.1 200 O\0K\r\n\r\n".into(), StatusLine),
            (GET, "\r\nHTTP/1.1 200 OK\r\n\r\n".into(), StatusLine),
            (GET, "\x16\x03\x01 what is this".into(), StatusLine),
            (GET, "ICY 200 OK\n\n".into(), StatusLine),
            (GET, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n".into(), Unasked101),
            (GET, chunks("g\r\n"), Chunk),
            (GET, chunks("\r\n"), Chunk),
            (GET, chunks(";x\r\n"), Chunk),
            (GET, chunks("-1\r\n"), Chunk),
            (GET, chunks("0x5\r\n"), Chunk),
            (GET, chunks("5\nhello\r\n"), Chunk),
            (GET, chunks("5 x\r\n"), Chunk),
            (GET, chunks("5;a\0\r\n"), Chunk),
            (GET, chunks("5;a\rb\r\n"), Chunk),
            (GET, chunks("5\r\nhello0\r\n"), Chunk),
            (GET, chunks("5\r\nhello\n0\r\n"), Chunk),
            (GET, chunks("fffffffffffffffff\r\n"), Chunk),
            (GET, chunks("0\r\nno colon\r\n"), FieldLine),
            (GET, chunks("0\r\nA: 1\n\r\n"), BareLineEnd),
        ] {
            assert_eq!(seen(asked, text.as_bytes()), Err(fault), "{text:?}");
        }
    }

    #[test]
    fn what_is_behind_the_end_is_no_part_of_it() {
        let head = |fields: &str| format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
        for (asked, whole, behind) in [
            (GET, head("Content-Length: 5\r\n") + "hello", "!"),
            (GET, head("Content-Length: 5\r\n") + "hello", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"),
            (GET, head("Content-Length: 0\r\n"), "\r\n"),
            (HEAD, head("Content-Length: 5\r\n"), "hello"),
            (GET, "HTTP/1.1 204 No Content\r\n\r\n".into(), "x"),
            (GET, "HTTP/1.1 304 Not Modified\r\nContent-Length: 1\r\n\r\n".into(), "x"),
            (GET, head("Transfer-Encoding: chunked\r\n") + "0\r\n\r\n", "\n"),
        ] {
            assert_eq!(seen(asked, (whole.clone() + behind).as_bytes()), Ok((whole.len(), true)), "{whole:?}");
        }
    }

    #[test]
    fn no_line_is_kept_without_an_end() {
        let mut watch = Watch::default();
        watch.see(GET, b"HTTP/1.1 200 OK\r\nX: ").unwrap();
        let much = [b'x'; 1 << 16];
        let refused = (0..20).find_map(|_| watch.see(GET, &much).err());
        assert_eq!(refused, Some(Fault::HeadSize));
        assert!(watch.line.capacity() <= 2 * MOST);
    }

    #[test]
    fn each_fault_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<_> = Fault::ALL.iter().map(|fault| fault.token()).collect();
        assert_eq!(names.len(), Fault::ALL.len());
    }
}
