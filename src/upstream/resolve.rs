//! Turns a name into peers, in the background, again and again.
//!
//! Requests read what is known and never wait for a resolver, but for the very
//! first answer. When a name stops resolving, its last addresses stay in use for a
//! minute: a resolver that hiccups is more likely than a server that moved.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Peer, Peers, Timeouts};

const REFRESH: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(1);
const KEEP: Duration = Duration::from_secs(60);

pub(super) struct Resolver {
    name: String,
    port: u16,
    timeouts: Timeouts,
    peers: Peers,
    answered: AtomicBool,
    first: Notify,
}

impl Resolver {
    pub fn new(name: &str, port: u16, timeouts: Timeouts) -> Arc<Self> {
        Arc::new(Resolver {
            name: name.to_owned(),
            port,
            timeouts,
            peers: Peers::default(),
            answered: AtomicBool::new(false),
            first: Notify::new(),
        })
    }

    pub fn start(self: Arc<Self>) {
        tokio::spawn(watch(Arc::downgrade(&self)));
    }

    /// Whether both ask for the same.
    pub fn same(&self, other: &Resolver) -> bool {
        (&self.name, self.port) == (&other.name, other.port)
    }

    /// Begins with the addresses that another one found.
    pub fn adopt(&self, other: &Resolver) {
        let addresses: Vec<_> = other.known().iter().filter_map(|peer| peer.name.parse().ok()).collect();
        if !addresses.is_empty() {
            self.set(addresses);
            self.answered.store(true, Relaxed);
        }
    }

    pub fn known(&self) -> Arc<Vec<Arc<Peer>>> {
        self.peers.load_full()
    }

    /// What is known; the first caller waits for the first answer, but not longer than for a connection.
    pub async fn peers(&self) -> Arc<Vec<Arc<Peer>>> {
        let first = self.first.notified();
        tokio::pin!(first);
        first.as_mut().enable();
        if !self.answered.load(Relaxed) {
            let _ = tokio::time::timeout(self.timeouts.connect, first).await;
        }
        self.known()
    }

    /// Keeps the peers whose address is still there: they remember who refused.
    fn set(&self, mut addresses: Vec<std::net::SocketAddr>) {
        addresses.sort();
        addresses.dedup();
        let old = self.known();
        let peer = |address: std::net::SocketAddr| {
            let name = address.to_string();
            let known = old.iter().find(|peer| *peer.name == *name).cloned();
            known.unwrap_or_else(|| Peer::ip(address, &self.timeouts))
        };
        let new: Vec<_> = addresses.into_iter().map(peer).collect();
        if !new.iter().map(|peer| &peer.name).eq(old.iter().map(|peer| &peer.name)) {
            tracing::info!(name = self.name, addresses = ?new.iter().map(|p| &*p.name).collect::<Vec<_>>(), "resolved");
            self.peers.store(Arc::new(new));
        }
    }
}

async fn watch(resolver: Weak<Resolver>) {
    let adopted = resolver.upgrade().is_some_and(|this| this.answered.load(Relaxed));
    let mut good_until = Instant::now() + if adopted { KEEP } else { Duration::ZERO };
    loop {
        let Some(this) = resolver.upgrade() else { return };
        let found = tokio::net::lookup_host((this.name.as_str(), this.port)).await;
        let pause = match found.map(|addresses| addresses.collect::<Vec<_>>()) {
            Ok(addresses) if !addresses.is_empty() => {
                this.set(addresses);
                good_until = Instant::now() + KEEP;
                REFRESH
            }
            failed => {
                let error = failed.err().map_or_else(|| "no address".to_owned(), |error| error.to_string());
                tracing::warn!(name = this.name, error, "cannot resolve");
                if Instant::now() >= good_until {
                    this.set(Vec::new());
                }
                RETRY
            }
        };
        this.answered.store(true, Relaxed);
        this.first.notify_waiters();
        drop(this);
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_successor_begins_with_what_is_known() {
        let timeouts = |millis| {
            let span = Duration::from_millis(millis);
            Timeouts { connect: span, first_byte: span, read: span, write: span, idle: span }
        };
        let old = Resolver::new("app.invalid", 80, timeouts(10));
        old.set(vec!["10.0.0.1:80".parse().unwrap(), "[2001:db8::1]:80".parse().unwrap()]);
        let new = Resolver::new("app.invalid", 80, timeouts(20));
        assert!(new.same(&old) && !Resolver::new("app.invalid", 81, timeouts(10)).same(&old));
        new.adopt(&old);
        new.clone().start();
        // The name does not resolve now; that was no reason to forget before either.
        let peers = new.peers().await;
        assert_eq!(peers.iter().map(|peer| &*peer.name).collect::<Vec<_>>(), ["10.0.0.1:80", "[2001:db8::1]:80"]);
        assert_eq!(peers[0].http.options.read_timeout, Some(Duration::from_millis(20)), "with timeouts of its own");
        let nothing = Resolver::new("app.invalid", 80, timeouts(10));
        nothing.adopt(&Resolver::new("app.invalid", 80, timeouts(10)));
        assert!(!nothing.answered.load(Relaxed));
    }
}
