//! Reads a stream of requests as RFC 9112 has it, letter by letter, and nothing else.
//!
//! It is the judge of the differential test, so it shares no line with what it judges: what it does not take ends the
//! stream, for nobody can say where the next request would begin.

/// One request, as far as the stream has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    pub method: String,
    /// In origin form.
    pub target: String,
    /// Names in lower case; values without the blanks around them.
    pub fields: Vec<(String, Vec<u8>)>,
    pub content: Vec<u8>,
    pub trailers: Vec<(String, Vec<u8>)>,
    /// The stream has all of it.
    pub complete: bool,
    /// Nothing is read behind it.
    pub last: bool,
}

/// Requests in their order, and why there is no other one; `None` where the stream is just over.
#[derive(Debug)]
pub struct Stream {
    pub messages: Vec<Message>,
    pub fault: Option<&'static str>,
    /// Bytes that nobody has read.
    pub left: usize,
}

struct Reader<'a> {
    rest: &'a [u8],
    /// What is known of the message that is being read.
    message: Message,
    /// Its head is there and right.
    begun: bool,
}

type Read<T> = Result<T, &'static str>;

/// The stream is over in the middle of something.
pub const OVER: &str = "over";

/// All requests of a stream.
pub fn read(stream: &[u8]) -> Stream {
    let mut reader = Reader { rest: stream, message: Message::default(), begun: false };
    let mut messages = Vec::new();
    loop {
        while let Some(rest) = reader.rest.strip_prefix(b"\r\n") {
            reader.rest = rest;
        }
        if reader.rest.is_empty() {
            return Stream { messages, fault: None, left: 0 };
        }
        (reader.message, reader.begun) = (Message::default(), false);
        let fault = reader.message().err();
        let message = std::mem::take(&mut reader.message);
        let last = message.last;
        if reader.begun {
            messages.push(message);
        }
        if fault.is_some() || last {
            return Stream { messages, fault, left: reader.rest.len() };
        }
    }
}

fn token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// What a field value may have: visible letters, blanks, and bytes that are no ASCII.
fn text(byte: u8) -> bool {
    byte == b'\t' || byte == b' ' || byte.is_ascii_graphic() || byte >= 0x80
}

fn blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

fn trimmed(value: &[u8]) -> &[u8] {
    let start = value.iter().position(|byte| !blank(*byte)).unwrap_or(value.len());
    let end = value.iter().rposition(|byte| !blank(*byte)).map_or(start, |end| end + 1);
    &value[start..end]
}

impl<'a> Reader<'a> {
    /// A line without its CR LF.
    fn line(&mut self) -> Read<&'a [u8]> {
        let end = self.rest.iter().position(|byte| *byte == b'\n').ok_or(OVER)?;
        let line = self.rest[..end].strip_suffix(b"\r").ok_or("a line feed alone")?;
        if line.contains(&b'\r') {
            return Err("a carriage return alone");
        }
        self.rest = &self.rest[end + 1..];
        Ok(line)
    }

    fn fields(&mut self) -> Read<Vec<(String, Vec<u8>)>> {
        let mut fields = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(fields);
            }
            let colon = line.iter().position(|byte| *byte == b':').ok_or("a field line without a colon")?;
            let (name, value) = (&line[..colon], trimmed(&line[colon + 1..]));
            if name.is_empty() || !name.iter().all(|byte| token(*byte)) {
                return Err("no field name");
            }
            if !value.iter().all(|byte| text(*byte)) {
                return Err("no field value");
            }
            fields.push((String::from_utf8_lossy(name).to_ascii_lowercase(), value.to_vec()));
        }
    }

    /// Method, target and version. What stands between the first blank and the last word is the target: the proxy's
    /// engine escapes what no target may have, blanks among them, and so takes a request line of any number of words
    /// (RFC 9112 §3 has it refused). It has one meaning for all that come after.
    fn request_line(&mut self) -> Read<(&'a [u8], Vec<u8>, &'a [u8])> {
        let end = self.rest.iter().position(|byte| *byte == b'\n').ok_or(OVER)?;
        let line = self.rest[..end].strip_suffix(b"\r").ok_or("a line feed alone")?;
        self.rest = &self.rest[end + 1..];
        let first = line.iter().position(|byte| *byte == b' ').ok_or("a request line is three words")?;
        let last = line.iter().rposition(|byte| *byte == b' ').filter(|last| *last > first);
        let last = last.ok_or("a request line is three words")?;
        let written = &line[first + 1..last];
        let illegal = written.iter().any(|byte| matches!(byte, 0..=b' ' | 0x7f));
        let mut target = Vec::new();
        for byte in written {
            match byte {
                0..=b' ' | b'<' | b'>' | b'"' | 0x7f.. if illegal => target.extend(format!("%{byte:02X}").bytes()),
                other => target.push(*other),
            }
        }
        Ok((&line[..first], target, &line[last + 1..]))
    }

    fn message(&mut self) -> Read<()> {
        let (method, target, version) = self.request_line()?;
        if method.is_empty() || !method.iter().all(|byte| byte.is_ascii_uppercase() || matches!(byte, b'-' | b'_')) {
            return Err("no method in capitals");
        }
        let old = match version {
            b"HTTP/1.1" => false,
            b"HTTP/1.0" => true,
            _ => return Err("no version"),
        };
        let fields = self.fields()?;
        let all = |name: &str| fields.iter().filter(|(known, _)| known == name).map(|(_, value)| &value[..]).collect();
        let hosts: Vec<&[u8]> = all("host");
        let host = match hosts[..] {
            [] if old => None,
            [host] if is_host(host) => Some(host),
            _ => return Err("not one host"),
        };
        let target = origin_form(method, &target, host)?;
        let (lengths, codings): (Vec<&[u8]>, Vec<&[u8]>) = (all("content-length"), all("transfer-encoding"));
        let options = |list: &[u8]| String::from_utf8_lossy(list).to_ascii_lowercase();
        let connection: Vec<String> = all("connection").into_iter().map(options).collect();
        let named = |option: &str| connection.iter().any(|list| list.split(',').any(|word| word.trim() == option));
        let last = named("close") || (old && !named("keep-alive"));
        let length = match (&lengths[..], &codings[..]) {
            ([], []) => Some(0),
            ([length], []) => Some(number(length, 10)?),
            ([], [coding]) if !old && coding.eq_ignore_ascii_case(b"chunked") => None,
            _ => return Err("not one framing"),
        };
        self.message = Message {
            method: String::from_utf8_lossy(method).into_owned(),
            target,
            fields,
            last,
            ..Message::default()
        };
        self.begun = true;
        match length {
            Some(length) => self.take(length)?,
            None => self.chunks()?,
        }
        self.message.complete = true;
        Ok(())
    }

    /// So many bytes of content, or what there is of them.
    fn take(&mut self, length: u64) -> Read<()> {
        let there = self.rest.len().min(usize::try_from(length).unwrap_or(usize::MAX));
        let (content, rest) = self.rest.split_at(there);
        self.message.content.extend_from_slice(content);
        self.rest = rest;
        if there as u64 == length { Ok(()) } else { Err(OVER) }
    }

    fn chunks(&mut self) -> Read<()> {
        loop {
            let line = self.line()?;
            let end = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
            let (size, extension) = (number(&line[..end], 16)?, trimmed(&line[end..]));
            let legal = |extension: &[u8]| extension.starts_with(b";") && extension.iter().all(|byte| text(*byte));
            if !extension.is_empty() && !legal(extension) {
                return Err("no chunk extension");
            }
            if extension.is_empty() && end < line.len() {
                return Err("blanks behind a chunk size");
            }
            if size == 0 {
                self.message.trailers = self.fields()?;
                return Ok(());
            }
            self.take(size)?;
            match self.rest {
                [b'\r', b'\n', ..] => self.rest = &self.rest[2..],
                [] | [b'\r'] => return Err(OVER),
                _ => return Err("a chunk is longer than it says"),
            }
        }
    }
}

fn is_host(host: &[u8]) -> bool {
    let legal = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-:[]".contains(byte);
    !host.is_empty() && host.iter().all(legal)
}

fn number(digits: &[u8], radix: u32) -> Read<u64> {
    let legal = !digits.is_empty() && digits.iter().all(|byte| char::from(*byte).is_digit(radix));
    let text = std::str::from_utf8(digits).ok().filter(|_| legal).ok_or("no number")?;
    u64::from_str_radix(text, radix).ok().filter(|number| *number < 1 << 40).ok_or("too large a number")
}

fn origin_form(method: &[u8], target: &[u8], host: Option<&[u8]>) -> Read<String> {
    let target = std::str::from_utf8(target).map_err(|_| "a target is ASCII")?;
    if target == "*" && method == b"OPTIONS" {
        return Ok(target.into());
    }
    let legal = |byte: u8| byte.is_ascii_graphic() && !b"\\#".contains(&byte);
    if !target.bytes().all(legal) {
        return Err("a target has a letter that must be escaped");
    }
    if target.starts_with('/') {
        return Ok(target.into());
    }
    let schemes = ["http://", "https://"];
    let scheme = schemes
        .iter()
        .find(|scheme| target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)));
    let rest = scheme.map(|scheme| &target[scheme.len()..]).ok_or("no target")?;
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let same = |host: &[u8]| host.eq_ignore_ascii_case(authority.as_bytes());
    if !is_host(authority.as_bytes()) || !host.is_none_or(same) {
        return Err("a target and a host that differ");
    }
    Ok(if path.starts_with('/') { path.into() } else { format!("/{path}") })
}

#[test]
fn the_judge_knows_the_grammar() {
    let one = |stream: &str| {
        let Stream { messages, fault, .. } = read(stream.as_bytes());
        let told: Vec<_> = messages
            .iter()
            .map(|m| format!("{} {} {:?} {}", m.method, m.target, String::from_utf8_lossy(&m.content), m.complete))
            .collect();
        (told.join("; "), fault)
    };
    for (stream, expected, fault) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET / \"\" true", None),
        ("\r\nGET http://A/x HTTP/1.1\r\nhost:a \r\n\r\n", "GET /x \"\" true", None),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nabGET /x HTTP/1.0\r\n\r\nGET",
            "POST / \"ab\" true; GET /x \"\" true",
            None,
        ),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nab", "POST / \"ab\" false", Some(OVER)),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2;x=\"y\"\r\nab\r\n0\r\nt: u\r\n\r\n",
            "POST / \"ab\" true",
            None,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\nab\r\n0\r\n\r\n",
            "POST / \"\" false",
            Some("a line feed alone"),
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
            "POST / \"a\" false",
            Some("a chunk is longer than it says"),
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
            "",
            Some("not one framing"),
        ),
        ("GET / HTTP/1.1\r\n\r\n", "", Some("not one host")),
        ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", "", Some("no field name")),
        ("GET / HTTP/1.1\r\nHost: a\r\n b: c\r\n\r\n", "", Some("no field name")),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / \"\" true",
            None,
        ),
    ] {
        assert_eq!(one(stream), (expected.to_owned(), fault), "{stream:?}");
    }
}
