//! One request to the server within, and what it tells about it.

use std::io::{self, BufRead, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::Question;
use crate::fields::explained::{Told, read};
use crate::secret::Secret;

/// How long the app may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long its content is read, so that it is stored: an event stream has no end.
const CONTENT: Duration = Duration::from_secs(30);
/// The longest head that is read.
const HEAD: u64 = 256 << 10;

/// What was answered.
pub struct Answer {
    /// The status.
    pub status: u16,
    /// What the server tells.
    pub told: Vec<Told>,
    /// The content has no end.
    endless: bool,
}

impl Answer {
    /// The first member with this word.
    pub fn member(&self, word: &str) -> Option<&Told> {
        self.told.iter().find(|member| member.word == word)
    }

    /// The decision with this `to`.
    pub fn decision(&self, to: &str) -> Option<&Told> {
        self.told.iter().find(|member| member.word == "decision" && member.get("to") == to)
    }

    /// Why the app did not answer, if it did not.
    pub fn failed(&self) -> Option<&str> {
        self.decision("fail").map(|decision| decision.get("why"))
    }
}

/// Asks.
pub fn ask(address: SocketAddr, token: &Secret, question: &Question) -> io::Result<Answer> {
    let mut tcp = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    tcp.set_read_timeout(Some(PATIENCE))?;
    let scheme = if question.https { "https" } else { "http" };
    let mut request = format!(
        "{} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nX-Headwall-Explain: 1;scheme={scheme}\r\nX-Headwall-Token: \
         {}\r\n",
        question.method,
        question.target,
        question.host,
        token.reveal()
    );
    for (name, value) in [("user-agent", "headwall-explain"), ("accept", "*/*")] {
        if !question.fields.iter().any(|(known, _)| known == name) {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    for (name, value) in &question.fields {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    if !question.is_safe() {
        request.push_str("Content-Length: 0\r\n");
    }
    tcp.write_all((request + "\r\n").as_bytes())?;
    let mut reader = io::BufReader::new(tcp);
    loop {
        let head = head(&mut reader)?;
        let answer = parse(&head).ok_or_else(|| io::Error::other("the answer has no head"))?;
        if answer.status >= 200 || answer.status == 101 {
            if !answer.endless {
                read_content(&mut reader);
            }
            return Ok(answer);
        }
    }
}

/// The lines up to the blank one.
fn head(reader: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let (mut reader, mut head) = (reader.take(HEAD), Vec::new());
    while !head.ends_with(b"\r\n\r\n") {
        let read = reader.read_until(b'\n', &mut head).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => io::Error::other("it took longer than two minutes"),
            _ => error,
        });
        if read? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(head)
}

fn parse(head: &[u8]) -> Option<Answer> {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let lines: Vec<_> = lines.filter_map(|line| line.split_once(':')).collect();
    let field =
        |wanted: &str| lines.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.trim());
    let told = field("headwall-explain").map(|value| read(value.as_bytes())).unwrap_or_default();
    let stream = field("content-type").is_some_and(|kind| kind.to_ascii_lowercase().starts_with("text/event-stream"));
    Some(Answer { status, told, endless: stream || status == 101 })
}

/// Reads what comes, as a client would; it is stored when it is here.
fn read_content(reader: &mut io::BufReader<TcpStream>) {
    let (end, mut piece) = (Instant::now() + CONTENT, [0; 16 << 10]);
    while Instant::now() < end {
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let _ = reader.get_ref().set_read_timeout(Some(left));
        if matches!(reader.read(&mut piece), Ok(0) | Err(_)) {
            return;
        }
    }
}
