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
    let mut good_until = Instant::now();
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
