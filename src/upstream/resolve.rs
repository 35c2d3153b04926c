//! Turns a name into peers, in the background, again and again.
//!
//! Requests read what is known and never wait for a resolver, but for the very
//! first answer. When a name stops resolving, its last addresses stay in use for a
//! minute: a resolver that hiccups is more likely than a server that moved. One that
//! hangs is no other than one that fails.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Peer, Peers, Timeouts};

/// How often a name is asked for, how soon again after a failure, and how long the last answer is good.
struct Rhythm {
    refresh: Duration,
    retry: Duration,
    keep: Duration,
}

const RHYTHM: Rhythm =
    Rhythm { refresh: Duration::from_secs(10), retry: Duration::from_secs(1), keep: Duration::from_secs(60) };

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
        tokio::spawn(watch(Arc::downgrade(&self), RHYTHM, system));
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
    fn set(&self, mut addresses: Vec<SocketAddr>) {
        addresses.sort();
        addresses.dedup();
        let old = self.known();
        let peer = |address: SocketAddr| {
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

/// What the machine's resolver says. It blocks, on a thread that is there for such things, one for each name.
async fn system(name: String, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok(tokio::net::lookup_host((name.as_str(), port)).await?.collect())
}

async fn watch<Answer>(resolver: Weak<Resolver>, rhythm: Rhythm, ask: impl Fn(String, u16) -> Answer)
where
    Answer: Future<Output = io::Result<Vec<SocketAddr>>>,
{
    let adopted = resolver.upgrade().is_some_and(|this| this.answered.load(Relaxed));
    let mut good_until = Instant::now() + if adopted { rhythm.keep } else { Duration::ZERO };
    loop {
        let Some(this) = resolver.upgrade() else { return };
        let answer = ask(this.name.clone(), this.port);
        tokio::pin!(answer);
        let found = loop {
            tokio::select! {
                biased;
                found = &mut answer => break found,
                () = tokio::time::sleep_until(good_until), if !this.known().is_empty() => {
                    tracing::warn!(name = this.name, "no answer for too long; what is known of it is given up");
                    this.set(Vec::new());
                }
            }
        };
        let pause = match found {
            Ok(addresses) if !addresses.is_empty() => {
                this.set(addresses);
                good_until = Instant::now() + rhythm.keep;
                rhythm.refresh
            }
            failed => {
                let error = failed.err().map_or_else(|| "no address".to_owned(), |error| error.to_string());
                tracing::warn!(name = this.name, error, "cannot resolve");
                if Instant::now() >= good_until {
                    this.set(Vec::new());
                }
                rhythm.retry
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
    use std::sync::atomic::AtomicUsize;

    fn timeouts(millis: u64) -> Timeouts {
        let span = Duration::from_millis(millis);
        Timeouts { connect: span, first_byte: span, read: span, write: span, idle: span }
    }

    /// What is known of a name that resolves once, and then fails or hangs: after a few questions, or when that is given up.
    async fn after_one_answer(hangs: bool, keep: Duration) -> Arc<Vec<Arc<Peer>>> {
        let resolver = Resolver::new("app.test", 80, timeouts(10_000));
        let span = Duration::from_millis(1);
        let rhythm = Rhythm { refresh: span, retry: span, keep };
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let ask = move |_: String, port| {
            let number = count.fetch_add(1, Relaxed);
            async move {
                match number {
                    0 => Ok(vec![SocketAddr::from(([10, 0, 0, 1], port))]),
                    _ if hangs => std::future::pending().await,
                    _ => Err(io::Error::other("this name is gone")),
                }
            }
        };
        let watching = tokio::spawn(watch(Arc::downgrade(&resolver), rhythm, ask));
        assert_eq!(resolver.peers().await.len(), 1);
        let short = keep < Duration::from_secs(1);
        let over = || if short { resolver.known().is_empty() } else { asked.load(Relaxed) > if hangs { 1 } else { 3 } };
        while !over() {
            tokio::task::yield_now().await;
        }
        watching.abort();
        resolver.known()
    }

    #[tokio::test]
    async fn a_name_that_is_gone_is_known_for_a_while_and_no_longer() {
        for hangs in [false, true] {
            assert_eq!(after_one_answer(hangs, Duration::from_secs(3600)).await.len(), 1, "hangs: {hangs}");
            assert_eq!(after_one_answer(hangs, Duration::from_millis(20)).await.len(), 0, "hangs: {hangs}");
        }
    }

    #[tokio::test]
    async fn a_successor_begins_with_what_is_known() {
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
