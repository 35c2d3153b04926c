//! `headwall explain`: asks for one address as a client would, and tells what was decided and why.
//!
//! The configuration runs as it is, in this process, with a listener of its own on loopback and without the
//! ones it names. So nothing is guessed: what is told is what a server would do, and the app is really asked.

mod ask;
mod page;

use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use http::HeaderName;

use crate::clock::Clock;
use crate::config::settings::Listen;
use crate::config::{Lasting, Plan};
use crate::fields::authority::is_authority;
use crate::secret::Secret;
use crate::server::{self, Server};
use crate::units::Span;

/// What is asked.
pub struct Question {
    https: bool,
    host: String,
    target: String,
    method: String,
    fields: Vec<(String, String)>,
}

/// Why there is no account.
pub enum Failure {
    /// The server could not start, or broke off.
    Broken(String),
    /// The app could not be reached; the account says so.
    Unreachable(String),
}

impl Question {
    /// Reads the command line's words; `Err` says what would be right.
    pub fn new(url: &str, method: &str, lines: &[String]) -> Result<Self, String> {
        let wrong = || format!("`{url}` is no address; write one such as https://shop.example.com/basket?x=1");
        let (https, rest) = match url.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            _ => return Err(wrong()),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let (host, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if !is_authority(host.as_bytes()) || !target.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(wrong());
        }
        if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_uppercase()) {
            return Err(format!("`{method}` is no method; they are written in capitals, such as GET"));
        }
        let mut fields = Vec::new();
        for line in lines {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            let (name, value) = (name.trim().to_ascii_lowercase(), value.trim());
            let ours = ["connection", "content-length", "host", "transfer-encoding"].contains(&name.as_str());
            let plain = line.contains(':') && value.bytes().all(|byte| byte == b'\t' || !byte.is_ascii_control());
            if name.parse::<HeaderName>().is_err() || !plain || ours || name.starts_with("x-headwall-") {
                return Err(format!(
                    "`{line}` is no request field that could be sent; write one such as -H 'Cookie: lang=de'"
                ));
            }
            fields.push((name, value.to_owned()));
        }
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        Ok(Question { https, host: host.to_owned(), target, method: method.to_owned(), fields })
    }

    fn url(&self) -> String {
        format!("{}://{}{}", if self.https { "https" } else { "http" }, self.host, self.target)
    }

    /// The same by somebody of whom nothing is known; `None` if this is such a one.
    fn by_a_stranger(&self) -> Option<Question> {
        let personal = ["authorization", "cookie"];
        let kept: Vec<_> = self.fields.iter().filter(|(name, _)| !personal.contains(&name.as_str())).cloned().collect();
        (kept.len() < self.fields.len()).then(|| Question {
            https: self.https,
            host: self.host.clone(),
            target: self.target.clone(),
            method: self.method.clone(),
            fields: kept,
        })
    }

    /// Whether asking twice does what asking once does.
    fn is_safe(&self) -> bool {
        ["GET", "HEAD"].contains(&self.method.as_str())
    }
}

/// A server with this configuration, for as long as this lives.
struct Running {
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), server::Error>>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn secret() -> Result<Secret, String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| error.to_string())?;
    let mut text = String::new();
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    Ok(Secret::from(text))
}

/// Asks, and tells; the account is complete text.
pub fn explain(mut plan: Plan, lasting: Arc<Lasting>, clock: Clock, question: &Question) -> Result<String, Failure> {
    let token = secret().map_err(Failure::Broken)?;
    plan.settings.listen = vec![Listen { bind: (IpAddr::from([127, 0, 0, 1]), 0).into() }];
    plan.settings.threads = Some(2);
    plan.settings.admin = None;
    plan.settings.log.access = None;
    plan.settings.shutdown.drain = Span(Duration::from_secs(1));
    plan.admin_token = Some(token.clone());
    let server = Server::new(plan, lasting, clock).map_err(|error| Failure::Broken(error.to_string()))?;
    let address = server.addresses().first().copied();
    let address = address.ok_or_else(|| Failure::Broken("it has no address".to_owned()))?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        server.run_until(async {
            let _ = stopped.await;
        })
    });
    let _running = Running { stop: Some(stop), thread: Some(thread) };

    let ask = |question: &Question| {
        ask::ask(address, &token, question).map_err(|error| Failure::Broken(format!("no answer from within: {error}")))
    };
    let first = ask(question)?;
    if first.told.is_empty() {
        return Err(Failure::Broken(format!("the request was refused with {} before it was looked at", first.status)));
    }
    let mut text = page::first(question, &first);
    if first.unreachable() {
        return Err(Failure::Unreachable(text));
    }
    if question.is_safe() {
        text.push_str(&page::again("asked again", &ask(question)?));
        if let Some(stranger) = question.by_a_stranger() {
            text.push_str(&page::again("asked by somebody else", &ask(&stranger)?));
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions() {
        for (url, host, target) in [
            ("http://a.test", "a.test", "/"),
            ("HTTPS://a.test:81/x?y#z", "a.test:81", "/x?y"),
            ("http://a.test?y", "a.test", "/?y"),
            ("http://[::1]:80/%2F", "[::1]:80", "/%2F"),
        ] {
            let asked = Question::new(url, "GET", &[]).unwrap_or_else(|why| panic!("{why}"));
            assert_eq!((asked.host.as_str(), asked.target.as_str()), (host, target), "{url}");
            assert_eq!(asked.https, url.starts_with("HTTPS"));
        }
        for url in [
            "",
            "/x",
            "a.test/x",
            "ftp://a.test/",
            "http://",
            "http://me@a.test/",
            "http://a.test/a b",
            "http://a\r\nb/",
        ] {
            assert!(Question::new(url, "GET", &[]).is_err_and(|why| why.contains("https://shop.example.com")), "{url}");
        }
        for line in ["X", ": y", "X Y: z", "Host: b", "X: a\r\nY: b", "Content-Length: 5", "X-Headwall-Token: x"] {
            assert!(Question::new("http://a.test/", "GET", &[line.to_owned()]).is_err(), "{line}");
        }
        assert!(Question::new("http://a.test/", "get", &[]).is_err());
        let lines = ["Cookie: a=b".to_owned(), "Accept: x".to_owned()];
        let asked = Question::new("http://a.test/", "GET", &lines).unwrap_or_else(|why| panic!("{why}"));
        let stranger = asked.by_a_stranger().unwrap();
        assert_eq!(stranger.fields, [("accept".to_owned(), "x".to_owned())]);
        assert!(stranger.by_a_stranger().is_none());
    }
}
