//! A client's connection, watched: the engine reads and writes through it.
//!
//! It keeps the deadlines that the engine has not: one for a whole request head,
//! one for the first byte of an answer, one between two pieces of it, and a pace for
//! a client that takes what we have for it. A deadline that passes looks to the
//! engine like a read or write that failed; the proxy asks [`Connection::expired`]
//! which it was.
//!
//! A head that leaves waits for the first content, so that a small answer is one
//! packet. Content never waits, and no buffer is kept while a connection is idle.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use http::HeaderValue;
use memchr::memmem;
use parking_lot::Mutex;
use pingora::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, TimingDigest, UniqueID,
    UniqueIDType, raw_connect::ProxyDigest,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// A whole request head has to arrive within this: the first one from the connection on, later
/// ones from their first byte.
const HEAD: Duration = Duration::from_secs(10);

/// How slowly a client may take what we have for it: so many bytes for each so long that we waited.
const SLOWEST: Pace = Pace { bytes: 60 * 256, waited: Duration::from_secs(60) };

/// The same for the leader of a fill while others wait for the same response.
const SLOWEST_WITH_JOINERS: Pace = Pace { bytes: 16 << 10, waited: Duration::from_secs(2) };

/// How often a waiting write looks whether joiners came.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pace {
    bytes: u64,
    waited: Duration,
}

/// A head longer than this does not wait for its content.
const HELD: usize = 8 << 10;

/// What the connection is doing, and so which deadline counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Between requests, or working on one without waiting for anybody.
    Quiet = 0,
    /// A head is arriving.
    Head = 1,
    /// The request is with the origin; nothing has come back.
    FirstByte = 2,
    /// The response is arriving.
    Reading = 3,
}

impl Phase {
    fn of(number: u8) -> Self {
        match number {
            1 => Phase::Head,
            2 => Phase::FirstByte,
            3 => Phase::Reading,
            _ => Phase::Quiet,
        }
    }
}

/// What the proxy knows of a connection.
#[derive(Debug)]
pub struct Connection {
    /// The other end.
    pub peer: SocketAddr,
    born: Instant,
    between: AtomicBool,
    phase: AtomicU8,
    limit_ms: AtomicU64,
    active_ms: AtomicU64,
    expired: AtomicU8,
    gone: AtomicBool,
    hold: AtomicBool,
    date: Mutex<Option<HeaderValue>>,
    reset: AtomicBool,
    joiners: Mutex<Option<Arc<AtomicUsize>>>,
    exchanges: AtomicU64,
}

impl Connection {
    fn new(peer: SocketAddr) -> Self {
        Connection {
            peer,
            born: Instant::now(),
            between: AtomicBool::new(false),
            phase: AtomicU8::new(Phase::Head as u8),
            limit_ms: AtomicU64::new(HEAD.as_millis() as u64),
            active_ms: AtomicU64::new(0),
            expired: AtomicU8::new(0),
            gone: AtomicBool::new(false),
            hold: AtomicBool::new(false),
            date: Mutex::new(None),
            reset: AtomicBool::new(false),
            joiners: Mutex::new(None),
            exchanges: AtomicU64::new(0),
        }
    }

    fn now_ms(&self) -> u64 {
        self.born.elapsed().as_millis() as u64
    }

    /// A request's head is here.
    pub fn head_here(&self) {
        self.exchanges.fetch_add(1, Relaxed);
        self.between.store(false, Relaxed);
        self.expired.store(0, Relaxed);
        self.enter(Phase::Quiet, Duration::ZERO);
    }

    /// The exchange is over; the next byte begins a new head.
    pub fn exchange_over(&self) {
        *self.joiners.lock() = None;
        self.enter(Phase::Quiet, Duration::ZERO);
        self.between.store(true, Relaxed);
    }

    /// The request is with the origin: from now on its first byte is awaited, unless it is here already.
    pub fn await_first_byte(&self, limit: Duration) {
        if Phase::of(self.phase.load(Relaxed)) != Phase::Reading {
            self.enter(Phase::FirstByte, limit);
        }
    }

    /// From now on this deadline counts.
    pub fn enter(&self, phase: Phase, limit: Duration) {
        self.limit_ms.store(limit.as_millis() as u64, Relaxed);
        self.touch();
        self.phase.store(phase as u8, Relaxed);
    }

    /// Something moved: the deadline begins anew.
    pub fn touch(&self) {
        self.active_ms.store(self.now_ms(), Relaxed);
    }

    /// The deadline that passed, if one did.
    pub fn expired(&self) -> Option<Phase> {
        Some(Phase::of(self.expired.load(Relaxed))).filter(|phase| *phase != Phase::Quiet)
    }

    /// Whether the client has closed, or nothing can be sent to it.
    pub fn gone(&self) -> bool {
        self.gone.load(Relaxed)
    }

    /// A head is about to be written: it may wait for its first content. The engine puts its own time on it;
    /// `date` is the one that it came with.
    pub fn hold_head(&self, date: Option<HeaderValue>) {
        *self.date.lock() = date;
        self.hold.store(true, Relaxed);
    }

    /// The message broke and its end would look like a clean one: the connection is to be reset.
    pub fn reset(&self) {
        self.reset.store(true, Relaxed);
    }

    /// This client leads a fill; it must not keep so many others waiting.
    pub fn lead(&self, joiners: Arc<AtomicUsize>) {
        *self.joiners.lock() = Some(joiners);
    }

    fn deadline(&self) -> Option<Instant> {
        if Phase::of(self.phase.load(Relaxed)) == Phase::Quiet {
            return None;
        }
        let ms = self.active_ms.load(Relaxed) + self.limit_ms.load(Relaxed);
        Some(self.born + Duration::from_millis(ms))
    }

    fn read(&self, bytes: usize) {
        if bytes == 0 {
            return self.gone.store(true, Relaxed);
        }
        if self.between.swap(false, Relaxed) {
            self.enter(Phase::Head, HEAD);
        } else if Phase::of(self.phase.load(Relaxed)) != Phase::Head {
            self.touch();
        }
    }

    /// How slow this client may be now.
    fn slowest(&self) -> Pace {
        let waiting = self.joiners.lock().as_ref().is_some_and(|joiners| joiners.load(Relaxed) > 0);
        if waiting { SLOWEST_WITH_JOINERS } else { SLOWEST }
    }
}

/// The stream that the engine gets.
pub struct Watched {
    tcp: TcpStream,
    connection: Arc<Connection>,
    digest: Arc<SocketDigest>,
    held: Vec<u8>,
    read_timer: Option<Pin<Box<Sleep>>>,
    write_timer: Option<Pin<Box<Sleep>>>,
    waiting: Waiting,
}

/// How long writes have waited for the client, and what it took meanwhile.
#[derive(Default)]
struct Waiting {
    since: Option<Instant>,
    before: Duration,
    taken: u64,
    /// Under which pace, and in which exchange, that was.
    measured: Option<(Pace, u64)>,
}

impl Waiting {
    /// Begins anew when the pace or the exchange is another one.
    fn under(&mut self, pace: Pace, exchange: u64) {
        if self.measured != Some((pace, exchange)) {
            *self = Waiting { measured: Some((pace, exchange)), ..Waiting::default() };
        }
        self.since.get_or_insert_with(Instant::now);
    }

    fn so_far(&self) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn took(&mut self, bytes: usize, connection: &Connection) {
        if self.since.is_none() && self.before.is_zero() {
            return;
        }
        self.before = self.so_far();
        self.since = None;
        self.taken += bytes as u64;
        if self.taken >= connection.slowest().bytes {
            *self = Waiting::default();
        }
    }
}

impl Watched {
    /// Watches an accepted connection.
    pub fn new(tcp: TcpStream, peer: SocketAddr) -> Self {
        // The address is known from accepting: nobody has to ask the kernel again.
        let digest = SocketDigest::from_raw_fd(tcp.as_raw_fd());
        let _ = digest.peer_addr.set(Some(peer.into()));
        Watched {
            tcp,
            connection: Arc::new(Connection::new(peer)),
            digest: Arc::new(digest),
            held: Vec::new(),
            read_timer: None,
            write_timer: None,
            waiting: Waiting::default(),
        }
    }

    /// What the proxy knows of it.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// The client is slower than it may be. Only time in which it keeps us waiting counts.
    fn poll_too_slow(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            // Joiners may come while we wait.
            let slowest = self.connection.slowest();
            self.waiting.under(slowest, self.connection.exchanges.load(Relaxed));
            let waited = self.waiting.so_far();
            if waited >= slowest.waited {
                self.connection.gone.store(true, Relaxed);
                return Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "the client takes too little"));
            }
            let wake = Instant::now() + LOOK.min(slowest.waited - waited);
            ready!(poll_timer(&mut self.write_timer, wake, cx));
        }
    }

    fn poll_write_with(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let total: usize = bufs.iter().map(|buf| buf.len()).sum();
        // Only the head itself may wait, and only a short one, or one whose date is to be changed.
        if self.connection.hold.swap(false, Relaxed) && self.held.is_empty() {
            let date = self.connection.date.lock().take();
            if total <= HELD || date.is_some() {
                bufs.iter().for_each(|buf| self.held.extend_from_slice(buf));
                if let Some(date) = date {
                    set_date(&mut self.held, date.as_bytes());
                }
                return Poll::Ready(Ok(total));
            }
        }
        loop {
            let held = self.held.len();
            let written = if held == 0 {
                Pin::new(&mut self.tcp).poll_write_vectored(cx, bufs)
            } else {
                let mut all = Vec::with_capacity(bufs.len() + 1);
                all.push(IoSlice::new(&self.held));
                all.extend(bufs.iter().map(|buf| IoSlice::new(buf)));
                Pin::new(&mut self.tcp).poll_write_vectored(cx, &all)
            };
            match written {
                Poll::Ready(Ok(0)) => return Poll::Ready(Ok(0)),
                Poll::Ready(Ok(bytes)) => {
                    self.waiting.took(bytes, &self.connection);
                    self.connection.touch();
                    if bytes > held {
                        self.held = Vec::new();
                        return Poll::Ready(Ok(bytes - held));
                    }
                    self.held.drain(..bytes);
                }
                Poll::Ready(Err(error)) => {
                    self.connection.gone.store(true, Relaxed);
                    return Poll::Ready(Err(error));
                }
                Poll::Pending => return self.poll_too_slow(cx).map(Err),
            }
        }
    }

    /// Sends the head that waited.
    fn poll_release(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.held.is_empty() {
            match Pin::new(&mut self.tcp).poll_write(cx, &self.held) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(bytes)) => {
                    self.waiting.took(bytes, &self.connection);
                    self.held.drain(..bytes);
                }
                Poll::Ready(Err(error)) => {
                    self.connection.gone.store(true, Relaxed);
                    return Poll::Ready(Err(error));
                }
                Poll::Pending => return self.poll_too_slow(cx).map(Err),
            }
        }
        self.held = Vec::new();
        Poll::Ready(Ok(()))
    }
}

/// Puts a date in the place of the one in a head, where they are as long as each other.
fn set_date(head: &mut [u8], date: &[u8]) {
    const NAMES: [&[u8]; 2] = [b"\r\nDate: ", b"\r\ndate: "];
    let end = memmem::find(head, b"\r\n\r\n").unwrap_or(0);
    // It is among the last that the engine writes.
    let found = NAMES.iter().find_map(|name| Some(memmem::rfind(&head[..end], name)? + name.len()));
    let Some(at) = found else { return };
    if head[at..].get(date.len()..date.len() + 2) == Some(b"\r\n") {
        head[at..at + date.len()].copy_from_slice(date);
    }
}

fn poll_timer(timer: &mut Option<Pin<Box<Sleep>>>, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
    let at = tokio::time::Instant::from_std(at);
    let timer = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
    if timer.deadline() != at {
        timer.as_mut().reset(at);
    }
    timer.as_mut().poll(cx)
}

impl AsyncRead for Watched {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // Who waits for the client has nothing more to send for the moment: a held head goes now.
        if !this.held.is_empty() {
            let _ = this.poll_release(cx)?;
        }
        let before = buf.filled().len();
        match Pin::new(&mut this.tcp).poll_read(cx, buf) {
            Poll::Ready(Ok(())) => {
                this.connection.read(buf.filled().len() - before);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => {
                this.connection.gone.store(true, Relaxed);
                Poll::Ready(Err(error))
            }
            Poll::Pending => {
                while let Some(deadline) = this.connection.deadline() {
                    if Instant::now() >= deadline {
                        this.connection.expired.store(this.connection.phase.load(Relaxed), Relaxed);
                        return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                    }
                    ready!(poll_timer(&mut this.read_timer, deadline, cx));
                }
                Poll::Pending
            }
        }
    }
}

impl AsyncWrite for Watched {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_write_with(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_write_with(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_release(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_release(cx))?;
        Pin::new(&mut this.tcp).poll_shutdown(cx)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if self.connection.reset.load(Relaxed) {
            let _ = socket2::SockRef::from(&self.tcp).set_linger(Some(Duration::ZERO));
        }
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watched").field(&self.connection.peer).finish()
    }
}

#[async_trait]
impl Shutdown for Watched {
    async fn shutdown(&mut self) {
        let _ = tokio::io::AsyncWriteExt::shutdown(self).await;
    }
}

impl UniqueID for Watched {
    fn id(&self) -> UniqueIDType {
        self.tcp.as_raw_fd()
    }
}

impl Ssl for Watched {}
impl Peek for Watched {}

impl GetTimingDigest for Watched {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for Watched {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl GetSocketDigest for Watched {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        Some(self.digest.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    async fn pair() -> (TcpStream, Watched) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, peer) = listener.accept().await.unwrap();
        (client, Watched::new(server, peer))
    }

    #[tokio::test]
    async fn a_head_waits_for_content_and_they_leave_together() {
        let (mut client, mut watched) = pair().await;
        watched.connection().hold_head(None);
        watched.write_all(b"head ").await.unwrap();
        assert_eq!(watched.held, b"head ");
        watched.write_all(b"content").await.unwrap();
        assert!(watched.held.is_empty());
        let mut got = [0; 12];
        client.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"head content");
    }

    #[test]
    fn a_date_takes_the_place_of_another() {
        let of = |head: &str, date: &str| {
            let mut head = head.as_bytes().to_vec();
            set_date(&mut head, date.as_bytes());
            String::from_utf8(head).unwrap()
        };
        let (old, new) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Tue, 01 Dec 2026 00:00:00 GMT");
        for (name, after) in [("Date", "x"), ("date", "date: y")] {
            let head = |date| format!("HTTP/1.1 200 OK\r\n{name}: {date}\r\na: b\r\n\r\n{after}");
            assert_eq!(of(&head(new), old), head(old));
            assert_eq!(of(&head(new), "0"), head(new), "of another length");
        }
        let without = "HTTP/1.1 200 OK\r\na: b\r\n\r\nx\r\nDate: Tue, 01 Dec 2026 00:00:00 GMT\r\n";
        assert_eq!(of(without, old), without, "content is not a head");
        assert_eq!(of("HTTP/1.1 200 OK\r\nDate: x", old), "HTTP/1.1 200 OK\r\nDate: x");
    }

    #[tokio::test]
    async fn a_head_without_content_leaves_when_we_wait_for_the_client() {
        let (mut client, mut watched) = pair().await;
        watched.connection().hold_head(None);
        watched.write_all(b"head").await.unwrap();
        let mut got = [0; 4];
        let mut idle = [0; 1];
        tokio::select! {
            _ = watched.read(&mut idle) => panic!("nothing was sent"),
            read = client.read_exact(&mut got) => { read.unwrap(); }
        }
        assert_eq!(&got, b"head");
    }

    #[tokio::test]
    async fn a_deadline_is_an_error_that_says_which_one() {
        let (_client, mut watched) = pair().await;
        let connection = watched.connection().clone();
        connection.head_here();
        connection.enter(Phase::FirstByte, Duration::from_millis(20));
        let error = watched.read(&mut [0; 1]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(connection.expired(), Some(Phase::FirstByte));
        assert!(!connection.gone(), "the client is still there and can be told");
        connection.head_here();
        assert_eq!(connection.expired(), None);
    }

    #[tokio::test]
    async fn bytes_of_a_head_do_not_push_its_deadline() {
        let (mut client, mut watched) = pair().await;
        watched.connection().exchange_over();
        client.write_all(b"G").await.unwrap();
        watched.read_exact(&mut [0; 1]).await.unwrap();
        let first = watched.connection().deadline().unwrap();
        client.write_all(b"E").await.unwrap();
        watched.read_exact(&mut [0; 1]).await.unwrap();
        assert_eq!(watched.connection().deadline().unwrap(), first);
        drop(client);
        assert_eq!(watched.read(&mut [0; 1]).await.unwrap(), 0);
        assert!(watched.connection().gone());
    }
}
