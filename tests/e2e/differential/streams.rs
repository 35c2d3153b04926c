//! Streams of requests as clients send them: all that is legal and odd, and damaged ones.

/// Numbers of no pattern, the same for the same seed (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, most: usize) -> usize {
        (self.next() % most.max(1) as u64) as usize
    }

    /// True so many times of a hundred.
    pub fn often(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn one<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }
}

/// What a client sends on one connection.
pub struct Sent {
    /// In these pieces.
    pub pieces: Vec<Vec<u8>>,
    /// Each is a request, and the next one is sent when it was answered.
    pub waits: bool,
    /// Nothing is wrong with it.
    pub sound: bool,
}

impl Sent {
    pub fn bytes(&self) -> Vec<u8> {
        self.pieces.concat()
    }
}

/// A connection's requests.
pub fn stream(random: &mut Random) -> Sent {
    let count = 1 + random.below(4);
    let mut requests: Vec<Vec<u8>> = (0..count).map(|at| request(random, at + 1 == count)).collect();
    if random.often(45) {
        return Sent { pieces: requests, waits: random.often(60), sound: true };
    }
    let mut bytes = requests.concat();
    for _ in 0..1 + random.below(2) {
        let at = random.below(requests.len());
        if random.often(70) {
            damage(random, &mut requests[at]);
            bytes = requests.concat();
        } else {
            scatter(random, &mut bytes);
            requests = vec![bytes.clone()];
        }
    }
    Sent { pieces: cut(random, &bytes), waits: false, sound: false }
}

/// The same in pieces that end anywhere.
fn cut(random: &mut Random, bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let length = if random.often(50) { rest.len() } else { 1 + random.below(rest.len()) };
        pieces.push(rest[..length].to_vec());
        rest = &rest[length..];
    }
    pieces
}

const METHODS: &[&str] = &["GET", "GET", "GET", "HEAD", "POST", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"];
const KINDS: &[&str] = &["plain", "plain", "empty", "chunks", "close", "early"];
const HOSTS: &[&str] = &["site.test", "SITE.test", "site.test:8080", "127.0.0.1", "[::1]:80"];
const BLANKS: &[&str] = &[" ", " ", "", "  ", "\t", " \t "];

fn spelt(random: &mut Random, name: &str) -> String {
    match random.below(4) {
        0 => name.to_ascii_lowercase(),
        1 => name.to_ascii_uppercase(),
        2 => name
            .chars()
            .map(|c| if random.often(50) { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() })
            .collect(),
        _ => name.to_owned(),
    }
}

/// A target that nobody else has.
fn target(random: &mut Random) -> String {
    let route = random.one(&["p", "p", "c"]);
    let odd = random.one(&["", "", "", "a;b=c,d/", "%20%41/", "~u/@x/", "a//b/"]);
    let query = random.one(&["", "", "?", "?a=b&c=%0D%0A", "?/../x"]);
    format!("/{route}/{odd}{:016x}/{}{query}", random.next(), random.one(KINDS))
}

/// Content with the number of its request in it, now and then with a request inside.
fn content(random: &mut Random) -> Vec<u8> {
    let mut content = Vec::new();
    if random.often(85) {
        content = format!("content {:016x} ", random.next()).into_bytes();
    }
    if random.often(35) {
        let inner = target(random);
        content.extend_from_slice(format!("GET {inner} HTTP/1.1\r\nHost: site.test\r\n\r\n").as_bytes());
    }
    if random.often(10) {
        let more = random.below(40_000);
        content.extend((0..more).map(|at| b"\r\n0a:;"[at % 6]));
    }
    content
}

fn request(random: &mut Random, last: bool) -> Vec<u8> {
    let (method, target, host) = (random.one(METHODS), target(random), random.one(HOSTS));
    let old = last && random.often(8);
    let absolute = random.often(10);
    let written = if absolute { format!("{}://{host}{target}", random.one(&["http", "HTTP"])) } else { target };
    let mut lines = Vec::new();
    if !old || random.often(70) {
        lines.push((spelt(random, "Host"), host.to_owned()));
    }
    let mut framed = Vec::new();
    if matches!(method, "POST" | "PUT" | "PATCH") || random.often(8) {
        let content = content(random);
        if !old && random.often(50) {
            lines.push((spelt(random, "Transfer-Encoding"), random.one(&["chunked", "Chunked"]).to_owned()));
            framed = chunked(random, &content);
        } else {
            let zeros = if random.often(10) { "00" } else { "" };
            lines.push((spelt(random, "Content-Length"), format!("{zeros}{}", content.len())));
            framed = content;
        }
    } else if random.often(5) {
        lines.push((spelt(random, "Content-Length"), "0".into()));
    }
    if !framed.is_empty() && !old && random.often(10) {
        lines.push((spelt(random, "Expect"), "100-continue".into()));
    }
    for number in 0..random.below(4) {
        let name = format!("X-T{}-{number}", ["a", "B", "c_d"][number % 3]);
        let value = random.one(&["", "plain", "two words", "\"quoted, list\"", "a,b;c=\"d\"", "x: y", "é"]);
        lines.push((spelt(random, &name), value.to_owned()));
    }
    let options = random.one(&["", "", "", "", "keep-alive", "X-Ta-0", "te, X-Tb-1", "close"]);
    if !options.is_empty() && (options != "close" || last) && !old {
        lines.push((spelt(random, "Connection"), spelt(random, options)));
    }
    if random.often(5) {
        lines.push((spelt(random, "TE"), "trailers".into()));
    }
    for at in (1..lines.len()).rev() {
        lines.swap(at, random.below(at + 1));
    }
    let mut bytes = Vec::new();
    if random.often(5) {
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(format!("{method} {written} HTTP/1.{}\r\n", u8::from(!old)).as_bytes());
    for (name, value) in lines {
        let (before, behind) = (random.one(BLANKS), if random.often(10) { random.one(BLANKS) } else { "" });
        bytes.extend_from_slice(format!("{name}:{before}{value}{behind}\r\n").as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(&framed);
    bytes
}

fn chunked(random: &mut Random, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = content;
    while !rest.is_empty() {
        let length = 1 + random.below(rest.len().min(9000));
        let size = match random.below(3) {
            0 => format!("{length:X}"),
            1 => format!("{length:05x}"),
            _ => format!("{length:x}"),
        };
        let extension = random.one(&["", "", "", ";a", ";a=b", "; a=\"b;c\""]);
        out.extend_from_slice(format!("{size}{extension}\r\n").as_bytes());
        out.extend_from_slice(&rest[..length]);
        out.extend_from_slice(b"\r\n");
        rest = &rest[length..];
    }
    out.extend_from_slice(random.one(&["0", "0", "000", "0;last"]).as_bytes());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(
        random.one(&["", "", "", "X-Trailer: t\r\n", "Content-Length: 5\r\nHost: evil.test\r\n"]).as_bytes(),
    );
    out.extend_from_slice(b"\r\n");
    out
}

/// The place of a line that begins so, whatever its case.
fn line_of(bytes: &[u8], name: &str) -> Option<std::ops::Range<usize>> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 2;
    let mut at = 0;
    while at < end {
        let stop = at + bytes[at..end].windows(2).position(|two| two == b"\r\n")? + 2;
        if bytes[at..stop].get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name.as_bytes())) {
            return Some(at..stop);
        }
        at = stop;
    }
    None
}

const LENGTHS: &[&str] =
    &["+5", "-1", "0x5", "5, 5", "5 5", "", "5;", "18446744073709551616", "5.0", "\u{b}5", "1", "3", "9999", "0"];
const CODINGS: &[&str] = &[
    "chunked, identity",
    "identity",
    "gzip, chunked",
    "xchunked",
    "chunked\u{b}",
    "\"chunked\"",
    "chunked, chunked",
    "chunked;q=1",
    " chunked",
    "chunked\u{0}",
    "",
    "c\thunked",
];
const NAMES: &[&str] = &["Content-Length", "Transfer-Encoding", "Host", "Connection", "Expect"];
const LINES: &[&str] = &[
    "Content-Length: 4\r\n",
    "Content-Length : 4\r\n",
    "Content-Length: 0\r\n",
    "content-length:\t4\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding : chunked\r\n",
    "Transfer-Encoding:\r\n chunked\r\n",
    "Transfer_Encoding: chunked\r\n",
    "Host: evil.test\r\n",
    " Host: evil.test\r\n",
    "X: y\nTransfer-Encoding: chunked\r\n",
    "X: y\rContent-Length: 4\r\n",
    "X\u{0}: y\r\n",
    "Content-Length: 4\r\nContent-Length: 5\r\n",
    "Upgrade: h2c\r\nConnection: upgrade\r\n",
    "Connection: content-length\r\n",
    "Connection: transfer-encoding, host\r\n",
    ": empty\r\n",
    "no colon\r\n",
    "Transfer-Encoding: identity\r\n",
    "X: \u{0}\r\n",
    "X: y\r\n folded\r\n",
    "Expect: 200-ok\r\n",
];

/// Damages one request where it hurts.
fn damage(random: &mut Random, request: &mut Vec<u8>) {
    let name = random.one(NAMES);
    let head = request.windows(4).position(|four| four == b"\r\n\r\n").map_or(request.len(), |end| end + 4);
    match random.below(12) {
        0 => {
            if let Some(line) = line_of(request, name) {
                let copy = request[line.clone()].to_vec();
                request.splice(line.start..line.start, copy);
            }
        }
        1 => {
            if let Some(line) = line_of(request, name) {
                request.drain(line);
            }
        }
        2 | 3 => {
            let (name, values) =
                if random.often(50) { ("Content-Length", LENGTHS) } else { ("Transfer-Encoding", CODINGS) };
            let line = line_of(request, "content-length:").or_else(|| line_of(request, "transfer-encoding:"));
            let value = random.one(values);
            let line = line.or_else(|| line_of(request, "host:")).unwrap_or(0..0);
            request.splice(line, format!("{name}: {value}\r\n").into_bytes());
        }
        4 | 5 => {
            let line = line_of(request, "host:").unwrap_or(head..head);
            request.splice(line.end..line.end, random.one(LINES).bytes());
        }
        6 => {
            let ends: Vec<_> = (0..head.saturating_sub(1)).filter(|at| request[*at..].starts_with(b"\r\n")).collect();
            let at = ends.get(random.below(ends.len())).copied().unwrap_or(0);
            let other = random.one(&["\n", "\r", "\n\r", "\r\r\n", "\u{0}\r\n", " \r\n", "\r\n ", "\r\n\r\n"]);
            request.splice(at..(at + 2).min(request.len()), other.bytes());
        }
        7 => {
            let end = request.iter().position(|byte| *byte == b'\r').unwrap_or(0);
            let at = random.below(end);
            let odd = random.one(&[" ", "\t", "\u{0}", "\r", "\\", "#x", "%00", "%0d%0a", "\u{7f}", "é", "\u{b}"]);
            request.splice(at..at, odd.bytes());
        }
        8 | 9 => {
            // In the content: sizes of chunks, and what stands between them.
            let content = head.min(request.len());
            let ends: Vec<_> = (content..request.len()).filter(|at| request[*at..].starts_with(b"\r\n")).collect();
            let at = ends.get(random.below(ends.len())).copied().unwrap_or(content);
            let other = random.one(&[
                "\n",
                "\r",
                "",
                "\r\n\r\n",
                ";\n\r\n",
                "\u{0}\r\n",
                " \r\n",
                "0\r\n",
                "x\r\n",
                "\r\n-1\r\n",
                "\r\nffffffffffffffffff\r\n",
            ]);
            request.splice(at..(at + 2).min(request.len()), other.bytes());
        }
        10 => request.truncate(random.below(request.len())),
        _ => {
            let line = request.windows(8).position(|eight| eight.starts_with(b" HTTP/1.")).unwrap_or(0);
            let other = random.one(&[
                " HTTP/1.2",
                " HTTP/2.0",
                " HTTP/0.9",
                " http/1.1",
                "  HTTP/1.1",
                " HTTP/1.1 ",
                "",
                " HTTP/1.10",
            ]);
            request.splice(line..(line + 9).min(request.len()), other.bytes());
        }
    }
}

/// Damages anything anywhere.
fn scatter(random: &mut Random, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let (one, other) = (random.below(bytes.len()), random.below(bytes.len()));
    match random.below(6) {
        0 => bytes.swap(one, other),
        1 => bytes[one] ^= 1 << random.below(8),
        2 => bytes.insert(one, random.one(&[b"\0", b"\n", b"\r", b" ", b":", b"\xff"])[0]),
        3 => _ = bytes.remove(one),
        4 => _ = bytes.drain(one.min(other)..one.max(other).min(one.min(other) + 40)),
        _ => bytes.truncate(one),
    }
}
