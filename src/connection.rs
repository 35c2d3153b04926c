//! A client's connection, watched: the engine reads and writes through it.
//!
//! It keeps the deadlines that the engine has not: one for a whole request head,
//! one for the first byte of an answer, one between two pieces of it, one for the next
//! request, and a pace for a client that sends content or takes what we have for it.
//! A deadline that passes looks to the engine like a read or write that failed; the
//! proxy asks [`Connection::expired`] which it was. What ended a connection that was
//! not to be served on is asked for when it is over ([`Connection::cut`]).
//!
//! A head that leaves waits for the first content, so that a small answer is one
//! packet. Content never waits, and no buffer is kept while a connection is idle.

pub mod pace;

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
use pace::{Behind, Pace, Waiting};
use parking_lot::Mutex;
use pingora::protocols::http::ServerSession;
use pingora::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, TimingDigest, UniqueID,
    UniqueIDType, raw_connect::ProxyDigest,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// How slowly the leader of a fill may take it while others wait for the same response.
const SLOWEST_WITH_JOINERS: Pace = Pace { rate: 8 << 10, grace: Duration::from_secs(2) };

/// How often a waiting write looks whether joiners came.
const LOOK: Duration = Duration::from_millis(500);

/// How long a closed connection still takes what the client sends: closed with something unread it would be
/// reset, and the answer be lost.
const LINGER: Duration = Duration::from_secs(2);

/// What a head that grows past what it may be is answered with; it never was a request to the engine.
const TOO_LONG: &[u8] = b"HTTP/1.1 431 Request Header Fields Too Large\r\n\
    Content-Type: text/plain; charset=utf-8\r\nContent-Length: 29\r\nConnection: close\r\n\r\n\
    the request head is too long\n";

/// What a connection is held to, from its settings (`limits`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of a head that are read before it has to be over.
    pub head: u64,
    /// A whole request head has to arrive within this: the first one from the connection on, later ones from
    /// their first byte.
    pub head_timeout: Duration,
    /// How long it may be without a request.
    pub idle: Duration,
    /// How slowly content may come.
    pub content: Pace,
    /// How slowly what we have may be taken.
    pub reading: Pace,
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
    /// The next request is awaited.
    Idle = 4,
    /// The request's content is awaited; it is whatever else is, too, so it is only ever what expired.
    Content = 5,
}

impl Phase {
    fn of(number: u8) -> Self {
        match number {
            1 => Phase::Head,
            2 => Phase::FirstByte,
            3 => Phase::Reading,
            4 => Phase::Idle,
            5 => Phase::Content,
            _ => Phase::Quiet,
        }
    }
}

/// Why a connection ended that was not to be served on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Cut {
    /// A head did not arrive in time.
    SlowHead = 1,
    /// A head grew past what it may be.
    LongHead = 2,
    /// The engine could not read a head.
    Unreadable = 3,
    /// Content came too slowly.
    SlowContent = 4,
    /// What we had was taken too slowly.
    SlowReader = 5,
}

impl Cut {
    const ALL: [Cut; 5] = [Cut::SlowHead, Cut::LongHead, Cut::Unreadable, Cut::SlowContent, Cut::SlowReader];

    /// For metrics and the log.
    pub fn reason(self) -> &'static str {
        match self {
            Cut::SlowHead => "slow-head",
            Cut::LongHead => "head-size",
            Cut::Unreadable => "unreadable",
            Cut::SlowContent => "slow-content",
            Cut::SlowReader => "slow-reader",
        }
    }
}

/// Whether content is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Awaited {
    No = 0,
    /// Its client waits to be told that it may send it.
    Offered = 1,
    Yes = 2,
}

/// What the proxy knows of a connection.
#[derive(Debug)]
pub struct Connection {
    /// The other end.
    pub peer: SocketAddr,
    born: Instant,
    bounds: Mutex<Bounds>,
    /// Bytes of the head that is arriving.
    head: AtomicU64,
    content: AtomicU8,
    /// It was answered before all of its content was read.
    unread: AtomicBool,
    cut: AtomicU8,
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
    fn new(peer: SocketAddr, bounds: Bounds) -> Self {
        Connection {
            peer,
            born: Instant::now(),
            head: AtomicU64::new(0),
            content: AtomicU8::new(Awaited::No as u8),
            unread: AtomicBool::new(false),
            cut: AtomicU8::new(0),
            phase: AtomicU8::new(Phase::Head as u8),
            limit_ms: AtomicU64::new(bounds.head_timeout.as_millis() as u64),
            bounds: Mutex::new(bounds),
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

    /// A request's head is here; from now on the connection is held to this. Gives its number, from 1 on.
    pub fn head_here(&self, bounds: Bounds) -> u64 {
        *self.bounds.lock() = bounds;
        self.expired.store(0, Relaxed);
        self.content_over();
        self.enter(Phase::Quiet, Duration::ZERO);
        self.exchanges.fetch_add(1, Relaxed) + 1
    }

    /// The request has content, which its client may not send before it is told to ([`Connection::content_welcome`]).
    pub fn content_offered(&self) {
        self.content.store(Awaited::Offered as u8, Relaxed);
    }

    /// The client was told to go on; without an offer that means nothing.
    pub fn content_welcome(&self) {
        let _ = self.content.compare_exchange(Awaited::Offered as u8, Awaited::Yes as u8, Relaxed, Relaxed);
    }

    /// Content is awaited: from now on it has to come at its pace, whenever we wait for it.
    pub fn await_content(&self) {
        self.content.store(Awaited::Yes as u8, Relaxed);
    }

    /// No content is awaited any more: all of it is here, or what comes belongs to another protocol.
    pub fn content_over(&self) {
        self.content.store(Awaited::No as u8, Relaxed);
    }

    /// The exchange is over; the next byte begins a new head.
    pub fn exchange_over(&self) {
        *self.joiners.lock() = None;
        self.unread.store(self.content.swap(Awaited::No as u8, Relaxed) != Awaited::No as u8, Relaxed);
        let idle = self.bounds.lock().idle;
        self.enter(Phase::Idle, idle);
    }

    /// The request is with the origin: from now on its first byte is awaited, unless it is here already.
    pub fn await_first_byte(&self, limit: Duration) {
        if Phase::of(self.phase.load(Relaxed)) != Phase::Reading {
            self.enter(Phase::FirstByte, limit);
        }
    }

    /// From now on this deadline counts. A protocol that keeps its own ones enters [`Phase::Quiet`], where
    /// there is none, before it writes anything.
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

    /// Why it was not served on, if that is how it ended.
    pub fn cut(&self) -> Option<Cut> {
        let number = self.cut.load(Relaxed);
        Cut::ALL.into_iter().find(|cut| *cut as u8 == number)
    }

    /// The first reason is the reason.
    fn cut_for(&self, reason: Cut) {
        let _ = self.cut.compare_exchange(0, reason as u8, Relaxed, Relaxed);
    }

    fn phase(&self) -> Phase {
        Phase::of(self.phase.load(Relaxed))
    }

    /// A head is arriving, and is longer than it may be.
    fn too_long(&self) -> bool {
        self.phase() == Phase::Head && self.head.load(Relaxed) > self.bounds.lock().head
    }

    /// A deadline passed.
    fn expire(&self, phase: Phase) {
        self.expired.store(phase as u8, Relaxed);
        match phase {
            // Who connects and says nothing is only idle.
            Phase::Head if self.head.load(Relaxed) > 0 => self.cut_for(Cut::SlowHead),
            Phase::Content => self.cut_for(Cut::SlowContent),
            _ => {}
        }
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

    fn deadline(&self) -> Option<(Instant, Phase)> {
        let phase = self.phase();
        if phase == Phase::Quiet {
            return None;
        }
        let ms = self.active_ms.load(Relaxed) + self.limit_ms.load(Relaxed);
        Some((self.born + Duration::from_millis(ms), phase))
    }

    fn read(&self, bytes: usize) {
        if bytes == 0 {
            return self.gone.store(true, Relaxed);
        }
        match self.phase() {
            Phase::Idle => {
                let limit = self.bounds.lock().head_timeout;
                self.head.store(bytes as u64, Relaxed);
                self.enter(Phase::Head, limit);
            }
            Phase::Head => {
                self.head.fetch_add(bytes as u64, Relaxed);
            }
            _ => {
                // Who sends it unasked does not wait to be told.
                self.content_welcome();
                self.touch();
            }
        }
    }

    /// How slow this client may be now.
    fn slowest(&self) -> Pace {
        let waiting = self.joiners.lock().as_ref().is_some_and(|joiners| joiners.load(Relaxed) > 0);
        if waiting { SLOWEST_WITH_JOINERS } else { self.bounds.lock().reading }
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
    behind: Behind,
}

impl Watched {
    /// Watches an accepted connection.
    pub fn new(tcp: TcpStream, peer: SocketAddr, bounds: Bounds) -> Self {
        // The address is known from accepting: nobody has to ask the kernel again.
        let digest = SocketDigest::from_raw_fd(tcp.as_raw_fd());
        let _ = digest.peer_addr.set(Some(peer.into()));
        Watched {
            tcp,
            connection: Arc::new(Connection::new(peer, bounds)),
            digest: Arc::new(digest),
            held: Vec::new(),
            read_timer: None,
            write_timer: None,
            waiting: Waiting::default(),
            behind: Behind::default(),
        }
    }

    /// The one below a session; what does not come in on a connection of its own has none.
    pub fn below(session: &ServerSession) -> Option<&Self> {
        (**session.stream()?).as_any().downcast_ref()
    }

    /// What the proxy knows of it.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// The client is slower than it may be. Only time in which it keeps us waiting counts.
    fn poll_too_slow(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            // Joiners may come while we wait.
            let (slowest, now) = (self.connection.slowest(), Instant::now());
            let left = self.waiting.wait(slowest, self.connection.exchanges.load(Relaxed), now);
            if left.is_zero() {
                self.connection.gone.store(true, Relaxed);
                self.connection.cut_for(Cut::SlowReader);
                return Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "the client takes too little"));
            }
            let wake = now + LOOK.min(left);
            ready!(poll_timer(&mut self.write_timer, wake, cx));
        }
    }

    fn took(&mut self, bytes: usize) {
        if self.waiting.is_on() {
            self.waiting.took(bytes, self.connection.slowest(), Instant::now());
        }
    }

    /// The deadline that passes next, while a read waits.
    fn next_deadline(&mut self) -> Option<(Instant, Phase)> {
        let connection = &self.connection;
        let deadline = connection.deadline();
        if connection.content.load(Relaxed) != Awaited::Yes as u8 {
            return deadline;
        }
        let pace = connection.bounds.lock().content;
        let late = self.behind.wait(pace, connection.exchanges.load(Relaxed), Instant::now());
        deadline.filter(|(at, _)| *at < late).or(Some((late, Phase::Content)))
    }

    /// A head that is too long is answered here: the engine would go on reading it.
    fn poll_turn_away(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.connection.cut().is_none() {
            self.connection.cut_for(Cut::LongHead);
            self.held = TOO_LONG.to_vec();
        }
        let _ = ready!(self.poll_release(cx));
        Poll::Ready(io::Error::new(io::ErrorKind::InvalidData, "the head is too long"))
    }

    fn poll_write_with(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        // Time in which we write is not time in which we wait for content.
        self.behind.pause(Instant::now());
        if self.connection.phase() == Phase::Head {
            // Nobody has seen a request: the engine answers what it could not read.
            self.connection.cut_for(Cut::Unreadable);
        }
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
                    self.took(bytes);
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

    /// Reads and drops what the client still sends, up to its end.
    async fn discard(&mut self) {
        let mut unread = [0; 4096];
        while matches!(self.tcp.read(&mut unread).await, Ok(1..)) {}
    }

    /// Sends the head that waited.
    fn poll_release(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.held.is_empty() {
            match Pin::new(&mut self.tcp).poll_write(cx, &self.held) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(bytes)) => {
                    self.took(bytes);
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
        if this.connection.too_long() {
            return this.poll_turn_away(cx).map(Err);
        }
        let before = buf.filled().len();
        match Pin::new(&mut this.tcp).poll_read(cx, buf) {
            Poll::Ready(Ok(())) => {
                let bytes = buf.filled().len() - before;
                this.connection.read(bytes);
                if this.connection.content.load(Relaxed) == Awaited::Yes as u8 {
                    let pace = this.connection.bounds.lock().content;
                    this.behind.sent(bytes, pace, Instant::now());
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => {
                this.connection.gone.store(true, Relaxed);
                Poll::Ready(Err(error))
            }
            Poll::Pending => {
                while let Some((deadline, phase)) = this.next_deadline() {
                    if Instant::now() >= deadline {
                        this.connection.expire(phase);
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
        let cut = matches!(self.connection.cut(), Some(Cut::LongHead | Cut::Unreadable));
        if cut || self.connection.unread.load(Relaxed) {
            let _ = tokio::time::timeout(LINGER, self.discard()).await;
        }
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
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    const MS: Duration = Duration::from_millis(20);
    const BOUNDS: Bounds = Bounds {
        head: 1 << 10,
        head_timeout: Duration::from_secs(10),
        idle: MS,
        content: Pace { rate: 256, grace: MS },
        reading: Pace { rate: 256, grace: MS },
    };

    async fn pair() -> (TcpStream, Watched) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, peer) = listener.accept().await.unwrap();
        (client, Watched::new(server, peer, BOUNDS))
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
        connection.head_here(BOUNDS);
        connection.enter(Phase::FirstByte, MS);
        let error = watched.read(&mut [0; 1]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(connection.expired(), Some(Phase::FirstByte));
        assert!(!connection.gone(), "the client is still there and can be told");
        connection.head_here(BOUNDS);
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
