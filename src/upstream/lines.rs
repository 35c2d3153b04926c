//! The connections to one address: those that are kept, and one for each exchange.
//!
//! The engine has a pool of its own, but shows nobody what an origin sends before it has made something of it. So
//! it is given a socket of ours that reads along ([`Watch`]), and for each exchange a new one: around a
//! connection that was kept, or a new connection. What it does when an exchange is over is to look whether the
//! connection is silent, before it would keep it; that is when the connection goes back to its [`Lines`].

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::connectors::L4Connect;
use pingora::protocols::l4::socket::SocketAddr;
use pingora::protocols::l4::stream::Stream;
use pingora::protocols::l4::virt::{VirtualSockOpt, VirtualSocket, VirtualSocketStream};
use pingora::{Error, ErrorType, Result};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;

use super::watch::{Asked, Fault, Watch};
use crate::refusals::Refusals;

/// How many unused connections to one address are kept.
pub const KEPT: usize = 512;

/// What it is called that bytes come behind the end of a response. They are dropped, and it is used.
const SURPLUS: &str = "after-end";

/// Unused connections to one address; the one that was used last comes first.
pub struct Lines {
    idle: Duration,
    /// None any more, once its configuration has gone: an exchange may hold that for days.
    kept: Mutex<Option<Vec<(Wire, Instant)>>>,
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lines").field(&self.count()).finish()
    }
}

impl Lines {
    /// None so far; each is kept so long.
    pub fn new(idle: Duration) -> Arc<Self> {
        Arc::new(Lines { idle, kept: Mutex::new(Some(Vec::new())) })
    }

    /// How many are kept.
    pub fn count(&self) -> usize {
        self.kept.lock().as_ref().map_or(0, Vec::len)
    }

    /// Takes over what those of a configuration before have kept, which keep no more.
    pub fn adopt(&self, before: &Lines) {
        let theirs = before.kept.lock().take().unwrap_or_default();
        if let Some(ours) = &mut *self.kept.lock() {
            // Those that were used last stay at the top.
            ours.splice(..0, theirs);
        }
    }

    /// Closes what is kept, and keeps no more.
    pub fn retire(&self) {
        let gone = self.kept.lock().take();
        drop(gone);
    }

    /// Closes what was not used for too long.
    pub fn sweep(&self) {
        let mut gone = Vec::new();
        if let Some(kept) = &mut *self.kept.lock() {
            let young = kept.iter().position(|(_, since)| since.elapsed() < self.idle).unwrap_or(kept.len());
            gone.extend(kept.drain(..young));
        }
        drop(gone);
    }

    /// One that can be asked once more.
    fn take(&self) -> Option<Wire> {
        loop {
            let (wire, since) = self.kept.lock().as_mut()?.pop()?;
            if since.elapsed() < self.idle && wire.silent() {
                return Some(wire);
            }
        }
    }

    fn keep(&self, wire: Wire) {
        if self.idle.is_zero() {
            return;
        }
        let mut gone = None;
        if let Some(kept) = &mut *self.kept.lock() {
            kept.push((wire, Instant::now()));
            // The oldest, at the bottom, goes.
            gone = (kept.len() > KEPT).then(|| kept.remove(0));
        }
        drop(gone);
    }
}

/// The connection of one exchange to come.
pub struct Line {
    lines: Arc<Lines>,
    /// Neither a kept connection, nor one to be kept.
    only: bool,
    server: Arc<str>,
    refusals: Arc<Refusals>,
    head: AtomicBool,
    upgrade: AtomicBool,
    asked_all: AtomicBool,
    reused: AtomicBool,
    refused: AtomicBool,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Line").field(&self.server).finish()
    }
}

impl Line {
    /// To one of these; with `only`, a new connection that is not kept either.
    pub fn new(lines: &Arc<Lines>, server: &Arc<str>, only: bool, refusals: &Arc<Refusals>) -> Arc<Self> {
        Arc::new(Line {
            lines: lines.clone(),
            only,
            server: server.clone(),
            refusals: refusals.clone(),
            head: AtomicBool::new(false),
            upgrade: AtomicBool::new(false),
            asked_all: AtomicBool::new(false),
            reused: AtomicBool::new(false),
            refused: AtomicBool::new(false),
        })
    }

    /// This is going to be asked, and answered.
    pub fn ask(&self, asked: Asked) {
        self.head.store(asked.head, Relaxed);
        self.upgrade.store(asked.upgrade, Relaxed);
    }

    /// The request is over.
    pub fn asked_all(&self) {
        self.asked_all.store(true, Relaxed);
    }

    fn asked(&self) -> Asked {
        Asked { head: self.head.load(Relaxed), upgrade: self.upgrade.load(Relaxed) }
    }

    /// Whether its connection was used before, and may have been closed while the request was on its way.
    pub fn reused(&self) -> bool {
        self.reused.load(Relaxed)
    }

    /// Whether the origin sent what it must not.
    pub fn refused(&self) -> bool {
        self.refused.load(Relaxed)
    }

    fn refuse(&self, fault: Fault) {
        self.refused.store(true, Relaxed);
        self.refusals.origin(fault.token(), &self.server);
    }

    fn socket(self: Arc<Self>, wire: Wire) -> Stream {
        let (wire, watch) = (Some(wire), Watch::default());
        let watched = Watched { wire, watch, fault: None, surplus: false, put_off: 0, line: self };
        VirtualSocketStream::new(Box::new(watched)).into()
    }
}

/// As the engine wants it.
#[derive(Debug)]
pub struct Connector(pub Arc<Line>);

#[async_trait]
impl L4Connect for Connector {
    async fn connect(&self, address: &SocketAddr) -> Result<Stream> {
        let line = self.0.clone();
        if let Some(wire) = (!line.only).then(|| line.lines.take()).flatten() {
            line.reused.store(true, Relaxed);
            return Ok(line.socket(wire));
        }
        let wire = Wire::to(address).await.map_err(|error| {
            let kind = match error.kind() {
                io::ErrorKind::ConnectionRefused => ErrorType::ConnectRefused,
                io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => ErrorType::ConnectNoRoute,
                io::ErrorKind::TimedOut => ErrorType::ConnectTimedout,
                _ => ErrorType::ConnectError,
            };
            Error::because(kind, format!("cannot connect to {}", line.server), error)
        })?;
        Ok(line.socket(wire))
    }
}

/// What there is of the system.
#[derive(Debug)]
enum Wire {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Wire {
    async fn to(address: &SocketAddr) -> io::Result<Self> {
        match address {
            SocketAddr::Inet(address) => {
                let tcp = TcpStream::connect(address).await?;
                tcp.set_nodelay(true)?;
                Ok(Wire::Tcp(tcp))
            }
            SocketAddr::Unix(address) => {
                let path = address.as_pathname().ok_or(io::ErrorKind::InvalidInput)?;
                Ok(Wire::Unix(UnixStream::connect(path).await?))
            }
        }
    }

    /// Whether it is open and nothing has come that nobody asked for.
    fn silent(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        let looked = match self {
            Wire::Tcp(tcp) => SockRef::from(tcp).peek(&mut byte),
            Wire::Unix(unix) => SockRef::from(unix).peek(&mut byte),
        };
        looked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// How often a look for a response is put off until the request is over. It is over at once, where it matters.
const PUT_OFF: u8 = 32;

/// What the engine takes for its socket.
#[derive(Debug)]
struct Watched {
    /// Until it is given back.
    wire: Option<Wire>,
    watch: Watch,
    fault: Option<Fault>,
    /// Something came behind the end.
    surplus: bool,
    put_off: u8,
    line: Arc<Line>,
}

impl VirtualSocket for Watched {
    /// Asked for with each exchange; it was done with the connection.
    fn set_socket_option(&self, _: VirtualSockOpt) -> io::Result<()> {
        Ok(())
    }
}

/// The same for both kinds; what was given back is closed.
macro_rules! with {
    ($this:expr, $wire:ident => $do:expr, $closed:expr) => {
        match &mut $this.wire {
            Some(Wire::Tcp($wire)) => $do,
            Some(Wire::Unix($wire)) => $do,
            None => $closed,
        }
    };
}

const CLOSED: io::ErrorKind = io::ErrorKind::NotConnected;

impl AsyncRead for Watched {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(fault) = this.fault {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, fault)));
        }
        // The engine looks for the response, and for the next piece of the request, which for a tunnel is its end. When it
        // finds a 101 first, it takes that end, of what was HTTP, for the tunnel's own: so it finds that first.
        if this.put_off < PUT_OFF && this.line.asked().upgrade {
            this.put_off = if this.line.asked_all.load(Relaxed) { PUT_OFF } else { this.put_off + 1 };
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let polled = with!(this, wire => Pin::new(wire).poll_read(cx, buf), return Poll::Ready(Ok(())));
        if polled.is_pending() && this.watch.over() {
            // The response is whole, the request too, and nothing comes: the engine would keep this connection.
            if let Some(wire) = this.wire.take().filter(|_| !this.line.only && !this.surplus) {
                this.line.lines.keep(wire);
            }
            return Poll::Ready(Ok(()));
        }
        std::task::ready!(polled)?;
        let new = buf.filled().len() - before;
        match this.watch.see(this.line.asked(), &buf.filled()[before..]) {
            Ok(its) => {
                buf.set_filled(before + its);
                if its < new && !std::mem::replace(&mut this.surplus, true) {
                    this.line.refusals.origin(SURPLUS, &this.line.server);
                }
                Poll::Ready(Ok(()))
            }
            Err(fault) => {
                buf.set_filled(before);
                this.fault = Some(fault);
                this.line.refuse(fault);
                Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, fault)))
            }
        }
    }
}

impl AsyncWrite for Watched {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        with!(self.get_mut(), wire => Pin::new(wire).poll_write(cx, bytes), Poll::Ready(Err(CLOSED.into())))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        with!(self.get_mut(), wire => Pin::new(wire).poll_flush(cx), Poll::Ready(Ok(())))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        with!(self.get_mut(), wire => Pin::new(wire).poll_shutdown(cx), Poll::Ready(Ok(())))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        with!(self.get_mut(), wire => Pin::new(wire).poll_write_vectored(cx, pieces), Poll::Ready(Err(CLOSED.into())))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.wire {
            Some(Wire::Tcp(tcp)) => tcp.is_write_vectored(),
            Some(Wire::Unix(unix)) => unix.is_write_vectored(),
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    fn port(wire: &Wire) -> u16 {
        match wire {
            Wire::Tcp(tcp) => tcp.local_addr().unwrap().port(),
            Wire::Unix(_) => 0,
        }
    }

    #[tokio::test]
    async fn the_latest_is_taken_first_and_only_if_it_is_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = SocketAddr::Inet(listener.local_addr().unwrap());
        let (before, lines) = (Lines::new(Duration::from_secs(60)), Lines::new(Duration::from_secs(60)));
        let mut theirs = Vec::new();
        let mut ports = Vec::new();
        for number in 0..4 {
            let wire = Wire::to(&address).await.unwrap();
            ports.push(port(&wire));
            theirs.push(listener.accept().await.unwrap().0);
            if number < 3 { before.keep(wire) } else { lines.keep(wire) }
        }
        // A new configuration begins with what the one before has.
        lines.adopt(&before);
        assert_eq!((before.count(), lines.count()), (0, 4));
        before.keep(Wire::to(&address).await.unwrap());
        assert_eq!(before.count(), 0, "what comes back to the one before is closed");
        assert_eq!(lines.take().map(|wire| port(&wire)), Some(ports[3]));
        theirs[2].write_all(b"x").await.unwrap();
        theirs[1].shutdown().await.unwrap();
        assert_eq!(lines.take().map(|wire| port(&wire)), Some(ports[0]), "one spoke, and one is closed");
        assert_eq!(lines.count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn none_is_kept_for_longer_than_it_may_be_nor_more_than_there_may_be() {
        let lines = Lines::new(Duration::from_secs(4));
        let keep = || {
            let (ours, theirs) = UnixStream::pair().unwrap();
            lines.keep(Wire::Unix(ours));
            theirs
        };
        let mut theirs = vec![keep()];
        tokio::time::advance(Duration::from_secs(3)).await;
        theirs.push(keep());
        tokio::time::advance(Duration::from_secs(1)).await;
        lines.sweep();
        assert_eq!(lines.count(), 1);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert!(lines.take().is_none(), "it is too old, swept or not");
        theirs.extend((0..KEPT + 3).map(|_| keep()));
        assert_eq!(lines.count(), KEPT);
        drop(theirs);
        assert!(lines.take().is_none(), "all are closed");
    }
}
