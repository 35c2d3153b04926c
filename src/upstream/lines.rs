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
    kept: Mutex<Vec<(Wire, Instant)>>,
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lines").field(&self.count()).finish()
    }
}

impl Lines {
    /// None so far; each is kept so long.
    pub fn new(idle: Duration) -> Arc<Self> {
        Arc::new(Lines { idle, kept: Mutex::default() })
    }

    /// How many are kept.
    pub fn count(&self) -> usize {
        self.kept.lock().len()
    }

    /// Takes over what those of a configuration before have kept.
    pub fn adopt(&self, before: &Lines) {
        let mut theirs = std::mem::take(&mut *before.kept.lock());
        theirs.append(&mut self.kept.lock());
        *self.kept.lock() = theirs;
    }

    /// Closes what was not used for too long.
    pub fn sweep(&self) {
        let gone: Vec<_> = {
            let mut kept = self.kept.lock();
            let young = kept.iter().position(|(_, since)| since.elapsed() < self.idle).unwrap_or(kept.len());
            kept.drain(..young).collect()
        };
        drop(gone);
    }

    /// One that can be asked once more.
    fn take(&self) -> Option<Wire> {
        loop {
            let (wire, since) = self.kept.lock().pop()?;
            if since.elapsed() < self.idle && wire.silent() {
                return Some(wire);
            }
        }
    }

    fn keep(&self, wire: Wire) {
        if self.idle.is_zero() {
            return;
        }
        let mut kept = self.kept.lock();
        kept.push((wire, Instant::now()));
        // The oldest, at the bottom, goes.
        let gone = (kept.len() > KEPT).then(|| kept.remove(0));
        drop(kept);
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
            reused: AtomicBool::new(false),
            refused: AtomicBool::new(false),
        })
    }

    /// This is going to be asked, and answered.
    pub fn ask(&self, asked: Asked) {
        self.head.store(asked.head, Relaxed);
        self.upgrade.store(asked.upgrade, Relaxed);
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
        let watched = Watched { wire: Some(wire), watch: Watch::default(), fault: None, surplus: false, line: self };
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
            SocketAddr::Inet(address) => Ok(Wire::Tcp(TcpStream::connect(address).await?)),
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

/// What the engine takes for its socket.
#[derive(Debug)]
struct Watched {
    /// Until it is given back.
    wire: Option<Wire>,
    watch: Watch,
    fault: Option<Fault>,
    /// Something came behind the end.
    surplus: bool,
    line: Arc<Line>,
}

impl VirtualSocket for Watched {
    fn set_socket_option(&self, option: VirtualSockOpt) -> io::Result<()> {
        match (&self.wire, option) {
            (Some(Wire::Tcp(tcp)), VirtualSockOpt::NoDelay) => tcp.set_nodelay(true),
            // The engine is told of no other.
            _ => Ok(()),
        }
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
