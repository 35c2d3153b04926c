//! Chooses a server, and knows which ones lately refused.
//!
//! An upstream has servers; a server has one peer for each address it resolves to.
//! Peers take turns. One that refused a connection is asked last for a moment, so
//! that a dead server costs few requests a second try; it is never given up.

pub mod lines;
mod resolve;
pub mod watch;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use arc_swap::ArcSwap;
use pingora::upstreams::peer::HttpPeer;

use crate::clock::{Clock, Moment};
use lines::Lines;
use resolve::Resolver;

/// How long a peer that refused a connection is asked last.
const AVOIDED_FOR: Duration = Duration::from_secs(1);

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// `192.0.2.1:80` or `[2001:db8::1]:80`
    Ip(SocketAddr),
    /// `app.internal:80`
    Name(String, u16),
    /// `unix:/run/app.sock`
    Unix(String),
}

impl Address {
    /// Reads the form that the configuration uses.
    pub fn parse(text: &str) -> Result<Self, String> {
        const FORMS: &str = "a server is `host:port`, `[ipv6]:port` or `unix:/path`";
        if let Some(path) = text.strip_prefix("unix:") {
            let fits = path.starts_with('/') && path.len() <= 107 && !path.contains('\0');
            return if fits {
                Ok(Address::Unix(path.to_owned()))
            } else {
                Err(format!("`{text}`: {FORMS}, the path absolute and at most 107 bytes long"))
            };
        }
        if text.contains("://") {
            return Err(format!("`{text}` is a URL; {FORMS}"));
        }
        if let Ok(address) = text.parse() {
            return Ok(Address::Ip(address));
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(|| match text.parse::<u16>() {
            Ok(port) => format!("`{port}` is a port without a host; did you mean `localhost:{port}`?"),
            Err(_) => format!("`{text}` has no port; {FORMS}"),
        })?;
        let port =
            port.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(|| format!("`{port}` is no port; {FORMS}"))?;
        let name = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        if name { Ok(Address::Name(host.to_owned(), port)) } else { Err(format!("`{host}` is no host; {FORMS}")) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Ip(address) => address.fmt(f),
            Address::Name(name, port) => write!(f, "{name}:{port}"),
            Address::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}

/// How long we wait for a server, step by step.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// For the connection.
    pub connect: Duration,
    /// For the first byte of the response, once the request is sent.
    pub first_byte: Duration,
    /// Between two pieces of the response.
    pub read: Duration,
    /// For the server to take the next piece of the request.
    pub write: Duration,
    /// How long an unused connection is kept.
    pub idle: Duration,
}

/// One address of one server.
#[derive(Debug)]
pub struct Peer {
    /// As the engine wants it.
    pub http: HttpPeer,
    /// As logs and plugins see it.
    pub name: Arc<str>,
    /// The connections to it.
    pub lines: Arc<Lines>,
    avoid_until: AtomicU64,
}

impl Peer {
    fn ip(address: SocketAddr, timeouts: &Timeouts) -> Arc<Self> {
        Self::with(HttpPeer::new(address, false, String::new()), address.to_string(), timeouts)
    }

    fn with(mut http: HttpPeer, name: String, timeouts: &Timeouts) -> Arc<Self> {
        let options = &mut http.options;
        options.connection_timeout = Some(timeouts.connect);
        options.total_connection_timeout = Some(timeouts.connect);
        // The engine has one timeout for head and content. It is the longer of ours; the
        // shorter one is kept by the connection to the client (see the listener).
        options.read_timeout = Some(timeouts.first_byte.max(timeouts.read));
        options.write_timeout = Some(timeouts.write);
        Arc::new(Peer { http, name: name.into(), lines: Lines::new(timeouts.idle), avoid_until: AtomicU64::new(0) })
    }
}

/// A named group of servers.
pub struct Upstream {
    /// Its name in the configuration.
    pub name: Arc<str>,
    /// Its timeouts.
    pub timeouts: Timeouts,
    servers: Vec<Server>,
    turn: AtomicUsize,
    clock: Clock,
    epoch: Moment,
}

enum Server {
    Fixed(Arc<Peer>),
    Named(Arc<Resolver>),
}

/// Peers of one upstream that this exchange has already tried.
#[derive(Debug, Default)]
pub struct Tried(Vec<Arc<Peer>>);

impl Tried {
    fn has(&self, peer: &Arc<Peer>) -> bool {
        self.0.iter().any(|tried| tried.name == peer.name)
    }

    /// How many were tried.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The peer in use, or used last.
    pub fn last(&self) -> Option<&Arc<Peer>> {
        self.0.last()
    }
}

impl Upstream {
    /// An upstream; names are resolved from the moment a runtime is there.
    pub fn new(name: &str, addresses: &[Address], timeouts: Timeouts, clock: Clock) -> Result<Arc<Self>, String> {
        let servers = addresses
            .iter()
            .map(|address| match address {
                Address::Ip(address) => Ok(Server::Fixed(Peer::ip(*address, &timeouts))),
                Address::Name(name, port) => Ok(Server::Named(Resolver::new(name, *port, timeouts))),
                Address::Unix(path) => {
                    let http = HttpPeer::new_uds(path, false, String::new()).map_err(|e| format!("{path}: {e}"))?;
                    Ok(Server::Fixed(Peer::with(http, address.to_string(), &timeouts)))
                }
            })
            .collect::<Result<_, String>>()?;
        let epoch = clock.now();
        Ok(Arc::new(Upstream { name: name.into(), timeouts, servers, turn: AtomicUsize::new(0), clock, epoch }))
    }

    /// Begins to resolve names, now and then again, for as long as the upstream is in use. What the
    /// upstreams before it know already, nobody has to wait for, nor for connections that they have.
    pub fn start(&self, before: &[Arc<Upstream>]) {
        let known: Vec<_> = before.iter().flat_map(|upstream| upstream.resolvers()).collect();
        for resolver in self.resolvers() {
            if let Some(known) = known.iter().find(|known| known.same(resolver)) {
                resolver.adopt(known);
            }
            resolver.clone().start();
        }
        let theirs: Vec<_> = before.iter().flat_map(|upstream| upstream.known()).collect();
        for peer in self.known() {
            if let Some(before) = theirs.iter().find(|before| before.name == peer.name) {
                peer.lines.adopt(&before.lines);
            }
        }
    }

    /// Peers whose addresses are known.
    fn known(&self) -> Vec<Arc<Peer>> {
        let mut all = Vec::with_capacity(self.servers.len());
        for server in &self.servers {
            match server {
                Server::Fixed(peer) => all.push(peer.clone()),
                Server::Named(resolver) => all.extend(resolver.known().iter().cloned()),
            }
        }
        all
    }

    /// Its configuration has gone.
    pub fn retire(&self) {
        self.known().iter().for_each(|peer| peer.lines.retire());
    }

    /// How many unused connections are kept.
    pub fn kept(&self) -> usize {
        self.known().iter().map(|peer| peer.lines.count()).sum()
    }

    /// Closes connections that were not used for too long.
    pub fn sweep(&self) {
        self.known().iter().for_each(|peer| peer.lines.sweep());
    }

    fn resolvers(&self) -> impl Iterator<Item = &Arc<Resolver>> {
        self.servers.iter().filter_map(|server| match server {
            Server::Named(resolver) => Some(resolver),
            Server::Fixed(_) => None,
        })
    }

    fn now(&self) -> u64 {
        self.clock.now().since(self.epoch).as_millis() as u64 + 1
    }

    async fn peers(&self) -> Vec<Arc<Peer>> {
        let mut all = Vec::with_capacity(self.servers.len());
        for server in &self.servers {
            match server {
                Server::Fixed(peer) => all.push(peer.clone()),
                Server::Named(resolver) => all.extend(resolver.peers().await.iter().cloned()),
            }
        }
        all
    }

    /// The next peer that this exchange has not tried; `None` when there is no other.
    pub async fn pick(&self, tried: &mut Tried) -> Option<Arc<Peer>> {
        let peers = self.peers().await;
        let start = self.turn.fetch_add(1, Relaxed);
        let now = self.now();
        let mut fallback = None;
        for step in 0..peers.len() {
            let peer = &peers[(start + step) % peers.len()];
            if tried.has(peer) {
                continue;
            }
            if peer.avoid_until.load(Relaxed) <= now {
                tried.0.push(peer.clone());
                return Some(peer.clone());
            }
            fallback.get_or_insert(peer);
        }
        let peer = fallback?.clone();
        tried.0.push(peer.clone());
        Some(peer)
    }

    /// Remembers that the peer in use refused; says whether another one is left to try.
    pub fn refused(&self, tried: &Tried) -> bool {
        if let Some(peer) = tried.last() {
            peer.avoid_until.store(self.now() + AVOIDED_FOR.as_millis() as u64, Relaxed);
        }
        self.has_other(tried)
    }

    /// Whether another peer is left to try.
    pub fn has_other(&self, tried: &Tried) -> bool {
        let untried = |peer: &Arc<Peer>| !tried.has(peer);
        self.servers.iter().any(|server| match server {
            Server::Fixed(peer) => untried(peer),
            Server::Named(resolver) => resolver.known().iter().any(untried),
        })
    }

    /// The connection broke before any answer: the same peer may be asked again.
    pub fn again(&self, tried: &mut Tried) {
        tried.0.pop();
    }
}

/// The peers a name stands for at the moment.
type Peers = ArcSwap<Vec<Arc<Peer>>>;

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUTS: Timeouts = Timeouts {
        connect: Duration::from_secs(1),
        first_byte: Duration::from_secs(9),
        read: Duration::from_secs(5),
        write: Duration::from_secs(1),
        idle: Duration::from_secs(1),
    };

    #[test]
    fn addresses_have_three_forms() {
        for (text, expected) in [
            ("127.0.0.1:80", Address::Ip("127.0.0.1:80".parse().unwrap())),
            ("[::1]:8081", Address::Ip("[::1]:8081".parse().unwrap())),
            ("localhost:3000", Address::Name("localhost".into(), 3000)),
            ("unix:/run/app.sock", Address::Unix("/run/app.sock".into())),
        ] {
            assert_eq!(Address::parse(text), Ok(expected.clone()), "{text}");
            assert_eq!(expected.to_string(), text);
        }
        for text in
            ["", "localhost", "localhost:0", "localhost:70000", "http://a:80", "a b:80", ":80", "unix:run", "::1:80"]
        {
            assert!(Address::parse(text).is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn peers_take_turns_and_the_refusing_one_comes_last() {
        let addresses: Vec<_> = (1..=3).map(|n| Address::parse(&format!("127.0.0.1:{n}")).unwrap()).collect();
        let clock = Clock::system();
        let upstream = Upstream::new("app", &addresses, TIMEOUTS, clock.clone()).unwrap();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..3 {
            seen.insert(upstream.pick(&mut Tried::default()).await.unwrap().name.clone());
        }
        assert_eq!(seen.len(), 3);

        let mut tried = Tried::default();
        let dead = upstream.pick(&mut tried).await.unwrap();
        assert!(upstream.refused(&tried));
        for _ in 0..6 {
            assert_ne!(upstream.pick(&mut Tried::default()).await.unwrap().name, dead.name);
        }
        upstream.pick(&mut tried).await.unwrap();
        upstream.pick(&mut tried).await.unwrap();
        assert!(!upstream.refused(&tried), "all were tried");
        assert!(upstream.pick(&mut tried).await.is_none());

        clock.advance(AVOIDED_FOR);
        let mut names = std::collections::HashSet::new();
        for _ in 0..3 {
            names.insert(upstream.pick(&mut Tried::default()).await.unwrap().name.clone());
        }
        assert!(names.contains(&dead.name), "it gets another chance");
    }

    #[tokio::test]
    async fn a_name_is_resolved_without_anybody_waiting_for_long() {
        let upstream =
            Upstream::new("app", &[Address::parse("localhost:3000").unwrap()], TIMEOUTS, Clock::system()).unwrap();
        upstream.start(&[]);
        let peer = upstream.pick(&mut Tried::default()).await.unwrap();
        assert!(peer.name.ends_with(":3000"));
        assert_eq!(peer.http.options.read_timeout, Some(Duration::from_secs(9)), "the longer of the two");
    }
}
