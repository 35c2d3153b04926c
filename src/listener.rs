//! Binds, accepts, and says how many may come in.
//!
//! Our own loop instead of the engine's server: a taken port is known at once, and
//! on the way out nobody who has been let in is turned away.

pub mod places;

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use pingora::apps::ServerApp;
use pingora::protocols::Stream;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::cache::storage::FILLING;
use crate::connection::{Bounds, Watched};
use crate::metrics::Metrics;
use crate::refusals::Refusals;
use places::{Most, Places};

/// How long to wait before the next try where accepting fails, if no connection closes meanwhile.
const AGAIN: Duration = Duration::from_millis(100);

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

/// What counts for a client that comes now: how many may be there, and what its connection is held to.
pub type Terms = dyn Fn(IpAddr) -> (Most, Bounds) + Send + Sync;

/// A door for clients; clones are the same door, for another address.
pub struct Door<A> {
    /// Who serves them.
    pub app: Arc<A>,
    /// Who is there.
    pub places: Arc<Places>,
    /// How many may be.
    pub terms: Arc<Terms>,
    /// Who may not.
    pub refusals: Arc<Refusals>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// When to stop.
    pub stop: watch::Receiver<bool>,
}

impl<A> Clone for Door<A> {
    fn clone(&self) -> Self {
        self.with(self.app.clone())
    }
}

impl<A> Door<A> {
    /// The same door, to another app.
    pub fn with<B>(&self, app: Arc<B>) -> Door<B> {
        Door {
            app,
            places: self.places.clone(),
            terms: self.terms.clone(),
            refusals: self.refusals.clone(),
            metrics: self.metrics.clone(),
            stop: self.stop.clone(),
        }
    }
}

/// Accepts until told to stop; each connection is served by a task of its own. Whom the system has let in by then is served
/// too: those clients have a connection, and have sent their request.
pub async fn serve<A: ServerApp + Send + Sync + 'static>(
    listener: std::net::TcpListener,
    door: Door<A>,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut stopping = door.stop.clone();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stopping.changed() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((tcp, peer)) => door.let_in(tcp, peer),
            // Who came was gone again; the next one is not.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                // Out of descriptors, most likely: those who are connected are served on, and
                // whoever waits is taken as soon as one of them leaves.
                door.refusals.accept(&error);
                tokio::select! {
                    () = door.places.one_left() => {}
                    () = tokio::time::sleep(AGAIN) => {}
                }
            }
        }
    }
    let rest = listener.into_std()?;
    while let Ok((tcp, peer)) = rest.accept() {
        tcp.set_nonblocking(true)?;
        door.let_in(TcpStream::from_std(tcp)?, peer);
    }
    Ok(())
}

impl<A: ServerApp + Send + Sync + 'static> Door<A> {
    /// Serves who came in, if there is a place.
    fn let_in(&self, tcp: TcpStream, peer: SocketAddr) {
        let (most, bounds) = (self.terms)(peer.ip());
        let place = match self.places.take(peer.ip(), most, self.metrics.clone()) {
            Ok(place) => place,
            Err(full) => {
                // Nothing of it stays behind, not even a port that waits.
                let _ = socket2::SockRef::from(&tcp).set_linger(Some(Duration::ZERO));
                return self.refusals.connection(full.reason(), peer.ip());
            }
        };
        let _ = tcp.set_nodelay(true);
        let (app, stop, refusals) = (self.app.clone(), self.stop.clone(), self.refusals.clone());
        tokio::spawn(async move {
            let watched = Watched::new(tcp, peer, bounds);
            let connection = watched.connection().clone();
            FILLING.scope(Cell::new(false), serve_one(app, Box::new(watched), stop)).await;
            if let Some(cut) = connection.cut() {
                refusals.request(cut.reason(), peer.ip());
            }
            drop(place);
        });
    }
}

async fn serve_one<A: ServerApp + Send + Sync + 'static>(app: Arc<A>, stream: Stream, stop: watch::Receiver<bool>) {
    let mut next = Some(stream);
    while let Some(stream) = next {
        next = app.process_new(stream, &stop).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::connection::pace::Pace;
    use async_trait::async_trait;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    const PACE: Pace = Pace { rate: 256, grace: Duration::from_secs(10) };
    const BOUNDS: Bounds =
        Bounds { head: 1024, head_timeout: PACE.grace, idle: PACE.grace, content: PACE, reading: PACE };

    /// Says hello, and waits for the other end to leave.
    struct Greeter;

    #[async_trait]
    impl ServerApp for Greeter {
        async fn process_new(self: &Arc<Self>, mut stream: Stream, _: &watch::Receiver<bool>) -> Option<Stream> {
            stream.write_all(b"hello").await.unwrap();
            stream.flush().await.unwrap();
            let _ = stream.read(&mut [0; 1]).await;
            None
        }
    }

    #[tokio::test]
    async fn one_of_a_network_too_many_is_reset_and_the_others_stay() {
        let metrics = Arc::new(Metrics::new().unwrap());
        let (_stop, stopped) = watch::channel(false);
        let door = Door {
            app: Arc::new(Greeter),
            places: Arc::default(),
            terms: Arc::new(|_| (Most { all: 9, of_network: Some(2) }, BOUNDS)),
            refusals: Arc::new(Refusals::new(metrics.clone(), Clock::system())),
            metrics: metrics.clone(),
            stop: stopped,
        };
        let listener = bind(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, door.clone()));
        let greeted = async || {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.read_exact(&mut [0; 5]).await.map(|_| client)
        };
        let (first, _second) = (greeted().await.unwrap(), greeted().await.unwrap());
        assert_eq!(greeted().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        let refused = metrics.connections_refused.with_label_values(&["connections_per_network"]);
        assert_eq!((refused.get(), door.places.count()), (1, 2));
        let left = door.places.one_left();
        drop(first);
        left.await;
        greeted().await.unwrap();
    }
}
