//! One line for each request, written by a thread of its own.
//!
//! Requests never wait for the log: a line goes into a bounded queue, and when the
//! queue is full it is dropped and counted. Values come from clients, so each is
//! escaped and cut; credentials and cookies are never written.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use http::header::{REFERER, USER_AGENT};
use parking_lot::Mutex;
use pingora::http::RequestHeader;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;

use crate::clock::Moment;
use crate::config::settings::{AccessLog as Settings, Format};
use crate::exchange::Exchange;
use crate::metrics::Metrics;

/// Lines that wait for the disk at most.
const QUEUE: usize = 8192;
/// How long the end of the process waits for the last lines.
const CLOSE: std::time::Duration = std::time::Duration::from_secs(2);
/// The longest value.
const VALUE: usize = 1024;

enum Message {
    Line(String),
    Reopen,
    End,
}

/// The log.
pub struct AccessLog {
    format: Format,
    queue: SyncSender<Message>,
    writer: Mutex<Option<JoinHandle<()>>>,
    metrics: Arc<Metrics>,
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

fn writer(file: Option<&Path>) -> io::Result<Box<dyn Write + Send>> {
    Ok(match file {
        Some(path) => Box::new(BufWriter::new(open(path)?)),
        None => Box::new(BufWriter::new(io::stdout())),
    })
}

impl AccessLog {
    /// Opens the log; a file that cannot be opened is an error now, not later.
    pub fn open(settings: &Settings, metrics: Arc<Metrics>) -> io::Result<Self> {
        let out = writer(settings.file.as_deref())?;
        let (queue, messages) = sync_channel(QUEUE);
        let file = settings.file.clone();
        let thread =
            std::thread::Builder::new().name("access-log".into()).spawn(move || write(out, file, &messages))?;
        Ok(AccessLog { format: settings.format, queue, writer: Mutex::new(Some(thread)), metrics })
    }

    /// Writes the line of a finished exchange.
    pub fn write(&self, request: &RequestHeader, exchange: &mut Exchange, now: Moment) {
        let line = match self.format {
            Format::Combined => combined(request, exchange),
            Format::Json => json(request, exchange, now),
        };
        if let Err(TrySendError::Full(_)) = self.queue.try_send(Message::Line(line)) {
            self.metrics.log_dropped.inc();
        }
    }

    /// Opens the file again, because it was moved away.
    pub fn reopen(&self) {
        let _ = self.queue.try_send(Message::Reopen);
    }

    /// Writes what is left and ends; a place that takes no more does not hold up the end of the process.
    pub fn close(&self) {
        let Some(thread) = self.writer.lock().take() else { return };
        let queue = self.queue.clone();
        let (over, ended) = sync_channel(1);
        let closer = std::thread::Builder::new().name("access-log-end".into()).spawn(move || {
            let _ = queue.send(Message::End);
            let _ = thread.join();
            let _ = over.send(());
        });
        if closer.is_ok() && ended.recv_timeout(CLOSE).is_err() {
            tracing::warn!("the access log takes no more; its last lines are lost");
        }
    }
}

fn write(mut out: Box<dyn Write + Send>, file: Option<PathBuf>, messages: &Receiver<Message>) {
    let mut next = messages.recv().ok();
    while let Some(message) = next.take() {
        let done = match message {
            Message::Line(line) => out.write_all(line.as_bytes()),
            Message::Reopen => out.flush().and_then(|()| {
                out = writer(file.as_deref())?;
                Ok(())
            }),
            Message::End => {
                let _ = out.flush();
                return;
            }
        };
        if let Err(error) = done {
            tracing::warn!(%error, "the access log cannot be written");
        }
        // Lines are written together while more are waiting, and at once when none is.
        next = messages.try_recv().ok().or_else(|| {
            let _ = out.flush();
            messages.recv().ok()
        });
    }
}

fn field<'a>(request: &'a RequestHeader, name: &http::HeaderName) -> &'a [u8] {
    let value = request.headers.get(name).map_or(&b""[..], |value| value.as_bytes());
    &value[..value.len().min(VALUE)]
}

/// As nginx does it: quotes, backslashes and what is not printable as `\xHH`.
fn escape(value: &[u8], out: &mut String) {
    if value.is_empty() {
        return out.push('-');
    }
    for byte in value.iter().take(VALUE) {
        match byte {
            b'"' | b'\\' | 0..0x20 | 0x7f.. => out.push_str(&format!("\\x{byte:02X}")),
            byte => out.push(char::from(*byte)),
        }
    }
}

fn version(version: http::Version) -> &'static str {
    match version {
        http::Version::HTTP_10 => "HTTP/1.0",
        http::Version::HTTP_2 => "HTTP/2.0",
        _ => "HTTP/1.1",
    }
}

fn combined(request: &RequestHeader, exchange: &Exchange) -> String {
    let format = format_description!("[day]/[month repr:short]/[year]:[hour]:[minute]:[second] +0000");
    let when = OffsetDateTime::from(exchange.received_at).format(format).unwrap_or_default();
    let mut line = format!("{} - - [{when}] \"{} ", exchange.client, exchange.method);
    escape(exchange.target.as_bytes(), &mut line);
    line.push_str(&format!(" {}\" {} {} \"", version(exchange.version), exchange.status, exchange.sent));
    escape(field(request, &REFERER), &mut line);
    line.push_str("\" \"");
    escape(field(request, &USER_AGENT), &mut line);
    line.push_str("\"\n");
    line
}

fn json(request: &RequestHeader, exchange: &mut Exchange, now: Moment) -> String {
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    let cut = |value: &str| value.chars().take(VALUE).collect::<String>();
    let object = serde_json::json!({
        "time": OffsetDateTime::from(exchange.received_at).format(&Rfc3339).unwrap_or_default(),
        "client": exchange.client.to_string(),
        "method": exchange.method.as_str(),
        "scheme": exchange.scheme,
        "host": cut(&exchange.host),
        "target": cut(&exchange.target),
        "version": version(exchange.version),
        "status": exchange.status,
        "bytes": exchange.sent,
        "seconds": (now.since(exchange.received).as_micros() as f64) / 1e6,
        "route": &*exchange.route,
        "cache": exchange.cache.map(|status| status.value()),
        "rule": exchange.rule,
        "would_have_leaked": exchange.leak,
        "upstream": exchange.upstream.as_deref(),
        "referer": text(field(request, &REFERER)),
        "user_agent": text(field(request, &USER_AGENT)),
        "request": exchange.id(),
    });
    let mut line = object.to_string();
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{exchange, request};

    #[test]
    fn lines_are_what_tools_expect_and_nobody_breaks_out_of_them() {
        let mut exchange = exchange();
        exchange.received_at = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(784_111_777);
        exchange.target = "/a?\"x".into();
        (exchange.status, exchange.sent) = (200, 5);
        let mut request = request("GET /\nCookie: secret\nAuthorization: secret");
        let agent = http::HeaderValue::from_bytes(b"evil\"\\\xe9").unwrap();
        request.insert_header("user-agent", agent).unwrap();
        assert_eq!(
            combined(&request, &exchange),
            "127.0.0.1 - - [06/Nov/1994:08:49:37 +0000] \"GET /a?\\x22x HTTP/1.1\" 200 5 \"-\" \"evil\\x22\\x5C\\xE9\"\n"
        );
        let line = json(&request, &mut exchange, Moment::default());
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!((read["status"].as_u64(), read["target"].as_str()), (Some(200), Some("/a?\"x")));
        assert!(line.ends_with("}\n") && !line.contains("secret"));
    }

    #[test]
    fn a_file_that_was_moved_is_opened_again() {
        let folder = std::env::temp_dir().join(format!("headwall-log-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (path, moved) = (folder.join("a.log"), folder.join("a.log.1"));
        let settings = Settings { file: Some(path.clone()), format: Format::Combined };
        let log = AccessLog::open(&settings, Arc::new(Metrics::new().unwrap())).unwrap();
        let mut exchange = exchange();
        exchange.target = "/one".into();
        log.write(&request("GET /one"), &mut exchange, Moment::default());
        log.reopen();
        while !std::fs::read_to_string(&path).unwrap().contains("/one") {
            std::thread::yield_now();
        }
        std::fs::rename(&path, &moved).unwrap();
        log.reopen();
        exchange.target = "/two".into();
        log.write(&request("GET /two"), &mut exchange, Moment::default());
        log.close();
        assert!(std::fs::read_to_string(&moved).unwrap().contains("/one"));
        let new = std::fs::read_to_string(&path).unwrap();
        assert!(new.contains("/two") && !new.contains("/one"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
