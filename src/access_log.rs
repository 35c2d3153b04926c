//! One line for each request, written by a thread of its own.
//!
//! Requests never wait for the log: a line goes into a bounded queue, and when the
//! queue is full it is dropped and counted. So is one that the disk does not take; the
//! server's own log says so once a minute at most. Values come from clients, so each
//! is escaped and cut; credentials and cookies are never written.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

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
const CLOSE: Duration = Duration::from_secs(2);
/// Lines are written together, but no more than this at once.
const TOGETHER: usize = 32 << 10;
/// How often trouble is told.
const TELL: Duration = Duration::from_secs(60);
/// How often a file that could not be opened again is tried.
const TRY: Duration = Duration::from_secs(1);
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

type Out = Box<dyn Write + Send>;

fn open(file: Option<&Path>) -> io::Result<Out> {
    Ok(match file {
        Some(path) => Box::new(OpenOptions::new().create(true).append(true).open(path)?),
        None => Box::new(io::stdout()),
    })
}

impl AccessLog {
    /// Opens the log; a file that cannot be opened is an error now, not later.
    pub fn open(settings: &Settings, metrics: Arc<Metrics>) -> io::Result<Self> {
        let sink = Sink::new(open(settings.file.as_deref())?, settings.file.clone(), metrics.clone());
        let (queue, messages) = sync_channel(QUEUE);
        let thread = std::thread::Builder::new().name("access-log".into()).spawn(move || write(sink, &messages))?;
        Ok(AccessLog { format: settings.format, queue, writer: Mutex::new(Some(thread)), metrics })
    }

    /// Writes the line of a finished exchange.
    pub fn write(&self, request: &RequestHeader, exchange: &mut Exchange, now: Moment) {
        let line = match self.format {
            Format::Combined => combined(request, exchange),
            Format::Json => json(request, exchange, now),
        };
        self.metrics.log_queued.inc();
        if let Err(error) = self.queue.try_send(Message::Line(line)) {
            self.metrics.log_queued.dec();
            if let TrySendError::Full(_) = error {
                self.metrics.log_dropped.inc();
            }
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

fn write(mut sink: Sink, messages: &Receiver<Message>) {
    let mut next = messages.recv().ok();
    while let Some(message) = next.take() {
        match message {
            Message::Line(line) => {
                sink.metrics.log_queued.dec();
                sink.line(&line);
            }
            Message::Reopen => sink.reopen(),
            Message::End => break,
        }
        // Lines are written together while more are waiting, and at once when none is.
        next = messages.try_recv().ok().or_else(|| {
            sink.flush();
            messages.recv().ok()
        });
    }
    sink.flush();
}

/// Where lines end up, and how that has gone so far.
struct Sink {
    out: Out,
    file: Option<PathBuf>,
    waiting: Vec<u8>,
    /// The last line that was written is not whole.
    torn: bool,
    /// The file was not there to be opened again; it is tried again from then on.
    absent: Option<Instant>,
    /// Lines lost that nobody was told of.
    lost: u64,
    told: Option<Instant>,
    metrics: Arc<Metrics>,
}

impl Sink {
    fn new(out: Out, file: Option<PathBuf>, metrics: Arc<Metrics>) -> Self {
        Sink { out, file, waiting: Vec::new(), torn: false, absent: None, lost: 0, told: None, metrics }
    }

    fn line(&mut self, line: &str) {
        self.waiting.extend_from_slice(line.as_bytes());
        if self.waiting.len() >= TOGETHER {
            self.flush();
        }
    }

    /// Writes what is waiting, or loses it: a full disk must not fill the memory.
    fn flush(&mut self) {
        if self.absent.is_some_and(|since| since.elapsed() >= TRY) {
            self.open();
        }
        if self.waiting.is_empty() {
            return;
        }
        if self.torn {
            self.waiting.insert(0, b'\n');
        }
        let mut written = 0;
        let done = loop {
            match self.out.write(&self.waiting[written..]) {
                Ok(0) => break Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => written += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
            if written == self.waiting.len() {
                break self.out.flush();
            }
        };
        self.torn = self.waiting[..written].last().map_or(self.torn, |last| *last != b'\n');
        if let Err(error) = done {
            let ends = |bytes: &[u8]| memchr::memchr_iter(b'\n', bytes).count() as u64;
            let lost = ends(&self.waiting[written..]) - u64::from(self.torn && written == 0);
            self.metrics.log_dropped.inc_by(lost);
            self.lost += lost;
            self.tell(&error, "the access log cannot be written", Instant::now());
        }
        self.waiting.clear();
    }

    /// What waits belongs into the old file; the next line goes into the new one, as soon as there is one.
    fn reopen(&mut self) {
        self.flush();
        self.open();
    }

    fn open(&mut self) {
        match open(self.file.as_deref()) {
            Ok(out) => {
                (self.out, self.torn) = (out, false);
                if self.absent.take().is_some() {
                    tracing::info!("the access log is open again");
                }
            }
            Err(error) => {
                self.absent = Some(Instant::now());
                self.tell(&error, "the access log cannot be opened again; lines go on to the old file", Instant::now());
            }
        }
    }

    fn tell(&mut self, error: &io::Error, what: &str, now: Instant) {
        if self.told.is_none_or(|told| now.duration_since(told) >= TELL) {
            tracing::warn!(%error, lost = self.lost, "{what}");
            (self.told, self.lost) = (Some(now), 0);
        }
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

    /// Takes so many bytes, then none until it has room again.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<(Vec<u8>, usize)>>);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut disk = self.0.lock();
            let taken = bytes.len().min(disk.1);
            if taken == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            disk.0.extend_from_slice(&bytes[..taken]);
            disk.1 -= taken;
            Ok(taken)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_a_full_disk_does_not_take_is_counted_and_told_once_a_minute() {
        let (disk, metrics) = (Disk::default(), Arc::new(Metrics::new().unwrap()));
        let mut sink = Sink::new(Box::new(disk.clone()), None, metrics.clone());
        let mut write = |room: usize, lines: &[&str]| {
            disk.0.lock().1 = room;
            lines.iter().for_each(|line| sink.line(line));
            sink.flush();
            assert!(sink.waiting.is_empty(), "nothing piles up");
            (metrics.log_dropped.get(), sink.lost)
        };
        assert_eq!(write(100, &["one\n"]), (0, 0));
        assert_eq!(write(6, &["two\n", "three\n", "four\n"]), (2, 0), "told at once");
        assert_eq!(write(0, &["five\n"]), (3, 1), "not told again");
        assert_eq!(write(1, &["six\n"]), (4, 2));
        assert_eq!(write(100, &["seven\n"]), (4, 2));
        assert_eq!(String::from_utf8_lossy(&disk.0.lock().0), "one\ntwo\nth\nseven\n", "each line begins on its own");
        let later = Instant::now() + TELL;
        sink.tell(&ErrorKind::StorageFull.into(), "the disk is full", later);
        assert_eq!((sink.lost, sink.told), (0, Some(later)));
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
