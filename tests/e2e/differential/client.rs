//! Sends a stream as it is and reads what comes back.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::streams::Sent;
use crate::support::PATIENCE;

/// A final response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// The target that the app saw; `None` where it is the proxy's own answer.
    pub seen: Option<String>,
    /// The app has refused it.
    pub by_app: bool,
    /// It says that nothing comes behind it.
    pub closes: bool,
    pub content: Vec<u8>,
    /// It ended as its framing says.
    pub complete: bool,
}

/// So long a client waits whose stream is damaged: the proxy may well wait for more of it.
const GLANCE: Duration = Duration::from_millis(60);

struct Connection {
    tcp: TcpStream,
    buffer: Vec<u8>,
    closed: bool,
}

/// What comes back for a stream of requests with these methods; `whole` of them are complete.
pub fn exchange(address: SocketAddr, sent: &Sent, methods: &[&str], whole: usize) -> Vec<Answer> {
    let tcp = TcpStream::connect(address).unwrap();
    tcp.set_nodelay(true).unwrap();
    tcp.set_read_timeout(Some(if sent.sound { PATIENCE } else { GLANCE })).unwrap();
    tcp.set_write_timeout(Some(PATIENCE)).unwrap();
    let mut connection = Connection { tcp, buffer: Vec::new(), closed: false };
    let mut answers = Vec::new();
    for (at, piece) in sent.pieces.iter().enumerate() {
        // It may have refused what came before, and closed.
        if connection.tcp.write_all(piece).is_err() {
            break;
        }
        if sent.waits {
            answers.extend(connection.answer(methods.get(at).copied().unwrap_or("GET")));
        }
    }
    // A refusal comes for what is damaged, and nothing behind it.
    let most = if sent.sound { whole } else { usize::MAX };
    while answers.len() < most {
        let method = methods.get(answers.len()).copied().unwrap_or("GET");
        let Some(answer) = connection.answer(method) else { break };
        answers.push(answer);
    }
    answers
}

impl Connection {
    fn more(&mut self) -> bool {
        let mut bytes = [0; 16384];
        match self.tcp.read(&mut bytes) {
            Ok(read) if read > 0 => {
                self.buffer.extend_from_slice(&bytes[..read]);
                true
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => self.more(),
            _ => {
                self.closed = true;
                false
            }
        }
    }

    fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\r\n") {
                let line = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
                self.buffer.drain(..end + 2);
                return Some(line);
            }
            if self.closed || !self.more() {
                return None;
            }
        }
    }

    fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < count {
            if self.closed || !self.more() {
                return None;
            }
        }
        Some(self.buffer.drain(..count).collect())
    }

    /// The next final response, if there is one.
    fn answer(&mut self, method: &str) -> Option<Answer> {
        loop {
            let line = self.line()?;
            let status = line.strip_prefix("HTTP/1.1 ").or_else(|| line.strip_prefix("HTTP/1.0 "));
            let status: u16 = status
                .and_then(|rest| rest.get(..3)?.parse().ok())
                .unwrap_or_else(|| panic!("a response does not begin with {line:?}"));
            let mut fields = Vec::new();
            loop {
                let line = self.line()?;
                if line.is_empty() {
                    break;
                }
                let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("no field is {line:?}"));
                fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            }
            if status >= 200 {
                return Some(self.content(method, status, &fields));
            }
        }
    }

    fn content(&mut self, method: &str, status: u16, fields: &[(String, String)]) -> Answer {
        let field = |name: &str| fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        let seen = field("x-seen").map(|hex| {
            let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
            String::from_utf8((0..hex.len()).step_by(2).map(byte).collect()).unwrap()
        });
        let content = if method == "HEAD" || matches!(status, 204 | 304) {
            Some(Vec::new())
        } else if let Some(length) = field("content-length") {
            self.take(length.parse().unwrap())
        } else if field("transfer-encoding").is_some() {
            self.chunks()
        } else {
            while !self.closed && self.more() {}
            Some(std::mem::take(&mut self.buffer))
        };
        let complete = content.is_some();
        let by_app = field("x-refused").is_some();
        let closes = field("connection").is_some_and(|options| options.eq_ignore_ascii_case("close"));
        Answer { status, seen, by_app, closes, content: content.unwrap_or_default(), complete }
    }

    fn chunks(&mut self) -> Option<Vec<u8>> {
        let mut content = Vec::new();
        loop {
            let size = usize::from_str_radix(&self.line()?, 16).expect("a chunk size");
            content.extend(self.take(size)?);
            self.line()?;
            if size == 0 {
                return Some(content);
            }
        }
    }
}
