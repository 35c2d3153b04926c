//! Binds, accepts, and counts what is open.
//!
//! Our own loop instead of the engine's server: a taken port is known at once, and
//! on the way out nobody who has been let in is turned away.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::time::Duration;

use pingora::apps::ServerApp;
use pingora::protocols::Stream;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

use crate::cache::storage::FILLING;
use crate::connection::Watched;
use crate::metrics::Metrics;

/// Connections that are open, and a word when the last one closes.
#[derive(Default)]
pub struct Open {
    count: AtomicUsize,
    none_left: Notify,
}

impl Open {
    fn enter(self: &Arc<Self>, metrics: Arc<Metrics>) -> Guard {
        self.count.fetch_add(1, AcqRel);
        metrics.connections_accepted.inc();
        metrics.connections.inc();
        Guard(self.clone(), metrics)
    }

    /// Waits until nothing is open.
    pub async fn drained(&self) {
        loop {
            let none_left = self.none_left.notified();
            tokio::pin!(none_left);
            none_left.as_mut().enable();
            if self.count.load(Acquire) == 0 {
                return;
            }
            none_left.await;
        }
    }

    /// How many are open.
    pub fn count(&self) -> usize {
        self.count.load(Acquire)
    }
}

struct Guard(Arc<Open>, Arc<Metrics>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.1.connections.dec();
        if self.0.count.fetch_sub(1, AcqRel) == 1 {
            self.0.none_left.notify_waiters();
        }
    }
}

/// Takes an address, so that it is known at once whether it is free.
pub fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let domain = if address.is_ipv4() { socket2::Domain::IPV4 } else { socket2::Domain::IPV6 };
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, Some(socket2::Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Accepts until told to stop; each connection is served by a task of its own. Whom the system has let in by then is served
/// too: those clients have a connection, and have sent their request.
pub async fn serve<A: ServerApp + Send + Sync + 'static>(
    listener: std::net::TcpListener,
    app: Arc<A>,
    stop: watch::Receiver<bool>,
    open: Arc<Open>,
    metrics: Arc<Metrics>,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut stopping = stop.clone();
    let welcome = |tcp: TcpStream, peer| {
        let _ = tcp.set_nodelay(true);
        let (app, stop, guard) = (app.clone(), stop.clone(), open.enter(metrics.clone()));
        tokio::spawn(async move {
            let stream: Stream = Box::new(Watched::new(tcp, peer));
            FILLING.scope(Cell::new(false), connection(app, stream, stop)).await;
            drop(guard);
        });
    };
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stopping.changed() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((tcp, peer)) => welcome(tcp, peer),
            Err(error) => {
                // Out of descriptors, most likely: those who are connected are served on, and
                // whoever waits is taken as soon as one of them leaves.
                tracing::warn!(%error, "cannot accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    let rest = listener.into_std()?;
    while let Ok((tcp, peer)) = rest.accept() {
        tcp.set_nonblocking(true)?;
        welcome(TcpStream::from_std(tcp)?, peer);
    }
    Ok(())
}

async fn connection<A: ServerApp + Send + Sync + 'static>(app: Arc<A>, stream: Stream, stop: watch::Receiver<bool>) {
    let mut next = Some(stream);
    while let Some(stream) = next {
        next = app.process_new(stream, &stop).await;
    }
}
