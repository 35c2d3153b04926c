//! The stream that the engine reads and writes through: where a connection's deadlines are kept.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use memchr::memmem;
use pingora::protocols::http::ServerSession;
use pingora::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, TimingDigest, UniqueID,
    UniqueIDType, raw_connect::ProxyDigest,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use super::pace::{Behind, Waiting};
use super::{Bounds, Connection, Cut, Phase};

/// How often a waiting write looks whether joiners came.
pub const LOOK: Duration = Duration::from_millis(500);

/// How long a closed connection still takes what the client sends: closed with something unread it would be
/// reset, and the answer be lost.
const LINGER: Duration = Duration::from_secs(2);

/// What a head that grows past what it may be is answered with; it never was a request to the engine.
const TOO_LONG: &[u8] = b"HTTP/1.1 431 Request Header Fields Too Large\r\n\
    Content-Type: text/plain; charset=utf-8\r\nContent-Length: 29\r\nConnection: close\r\n\r\n\
    the request head is too long\n";

/// A head longer than this does not wait for its content.
const HELD: usize = 8 << 10;

/// The stream that the engine gets.
pub struct Watched {
    tcp: TcpStream,
    connection: Arc<Connection>,
    digest: Arc<SocketDigest>,
    /// What was read before it was known who is to read it.
    ahead: Vec<u8>,
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
            ahead: Vec::new(),
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

    /// Whether what arrives first are these bytes. The first that differs decides; all are read again later.
    pub async fn begins_with(&mut self, preface: &[u8]) -> io::Result<bool> {
        let (mut arrived, mut bytes) = (Vec::new(), [0; 32]);
        let same = loop {
            let same = preface.starts_with(&arrived);
            if !same || arrived.len() == preface.len() {
                break same;
            }
            let most = bytes.len().min(preface.len() - arrived.len());
            match self.read(&mut bytes[..most]).await? {
                0 => break false,
                read => arrived.extend_from_slice(&bytes[..read]),
            }
        };
        self.ahead = arrived;
        Ok(same)
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
        if !connection.awaits_content() {
            return deadline;
        }
        let pace = connection.bounds().content;
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
        if self.behind.is_on() {
            self.behind.pause(Instant::now());
        }
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

/// Ready at that time; the timer is kept for the next one.
pub fn poll_timer(timer: &mut Option<Pin<Box<Sleep>>>, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
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
        if !this.ahead.is_empty() {
            let some = this.ahead.len().min(buf.remaining());
            buf.put_slice(&this.ahead[..some]);
            this.ahead.drain(..some);
            return Poll::Ready(Ok(()));
        }
        if this.connection.too_long() {
            return this.poll_turn_away(cx).map(Err);
        }
        let before = buf.filled().len();
        match Pin::new(&mut this.tcp).poll_read(cx, buf) {
            Poll::Ready(Ok(())) => {
                let bytes = buf.filled().len() - before;
                this.connection.read(bytes);
                if this.connection.awaits_content() {
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
#[path = "tests.rs"]
mod tests;
