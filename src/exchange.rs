//! One request with its response, and what we learn on the way.
//!
//! This is all that plugins and handlers see beside heads and chunks: the engine's
//! session stays with the proxy.

use std::any::{Any, TypeId};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use http::header::VIA;
use once_cell::sync::Lazy;
use pingora::http::ResponseHeader;

use crate::clock::Moment;
use crate::fields::cache_status::CacheStatus;
use crate::fields::forwarded::{Says, says};
pub use crate::filter::{Broken, ContentFilter};

static NO_ROUTE: Lazy<Arc<str>> = Lazy::new(|| Arc::from("-"));

/// A filter that waits for content.
pub struct Pushed {
    /// The filter.
    pub filter: Box<dyn ContentFilter>,
    /// The content coding that it brings content into, if that is all it does.
    pub coding: Option<&'static str>,
}

/// Says of the head of a stored response whether its date is good for nothing.
pub type Doubt = dyn Fn(&ResponseHeader) -> bool + Send + Sync;

/// The exchange.
pub struct Exchange {
    /// When the request's head was here.
    pub received: Moment,
    /// The same by the calendar.
    pub received_at: SystemTime,
    /// The client: the peer, or whom a trusted proxy names.
    pub client: IpAddr,
    /// The other end of the connection.
    pub peer: IpAddr,
    /// The other end is a proxy whose word about its client is believed.
    pub peer_trusted: bool,
    /// `http` or `https`, as the client used it.
    pub scheme: &'static str,
    /// The `Host` field in lower case.
    pub host: String,
    /// The method.
    pub method: http::Method,
    /// Path and query, as the client sent them.
    pub target: String,
    /// The protocol version of the request.
    pub version: http::Version,
    /// The route that was found.
    pub route: Arc<str>,
    /// What the cache did, on a route that has one.
    pub cache: Option<CacheStatus>,
    /// The rule by which it did that, as a token (docs/cache-status.md); known when the exchange is over.
    pub rule: Option<&'static str>,
    /// The rule without which another cache would have stored the response and given it to others.
    pub leak: Option<&'static str>,
    /// The server that answered, or was asked last.
    pub upstream: Option<Arc<str>>,
    /// The status that was sent; 0 as long as none was.
    pub status: u16,
    /// Bytes of content sent.
    pub sent: u64,
    /// Bytes of the request's content that have come so far.
    pub taken: u64,
    /// A refresh in the background: no client waits for it.
    pub background: bool,
    /// The answer of the origin may be stored and given to others. Not known before the request goes to
    /// the origin, and true until then.
    pub shared: bool,
    /// The content that leaves is stored, or arrives on behalf of another request: a coding of it is kept
    /// for others ([`Exchange::push_coding`]). Known at the response door.
    pub stored: bool,
    /// For a 304 from the store: the head of the stored response that it stands for.
    pub unconditional: Option<ResponseHeader>,
    id: Option<String>,
    dates: Option<Arc<Doubt>>,
    filters: Vec<Pushed>,
    notes: Vec<(TypeId, Box<dyn Any + Send + Sync>)>,
}

impl Exchange {
    /// An exchange whose request is just here.
    pub fn new(received: Moment, peer: IpAddr) -> Self {
        Exchange {
            received,
            received_at: SystemTime::now(),
            client: peer,
            peer,
            peer_trusted: false,
            scheme: "http",
            host: String::new(),
            method: http::Method::GET,
            target: String::from("/"),
            version: http::Version::HTTP_11,
            route: NO_ROUTE.clone(),
            cache: None,
            rule: None,
            leak: None,
            upstream: None,
            status: 0,
            sent: 0,
            taken: 0,
            background: false,
            shared: true,
            stored: false,
            unconditional: None,
            id: None,
            dates: None,
            filters: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// The path without the query.
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or("/")
    }

    /// The query with its question mark, or nothing.
    pub fn query(&self) -> &str {
        self.target.find('?').map_or("", |at| &self.target[at..])
    }

    /// A name for this exchange, the same each time it is asked for.
    pub fn id(&mut self) -> &str {
        self.id.get_or_insert_with(new_id)
    }

    /// Gives the exchange a name that came from elsewhere.
    pub fn set_id(&mut self, id: String) {
        self.id = Some(id);
    }

    /// Sends the content through this filter. The first one pushed sees it first.
    pub fn push_filter(&mut self, filter: Box<dyn ContentFilter>) {
        self.filters.push(Pushed { filter, coding: None });
    }

    /// Sends the content through a filter that brings it into this content coding and does nothing
    /// else: the outcome depends on the content alone, so it may be kept beside what is stored, and
    /// the filter may never be asked.
    pub fn push_coding(&mut self, coding: &'static str, filter: Box<dyn ContentFilter>) {
        self.filters.push(Pushed { filter, coding: Some(coding) });
    }

    /// Whether a filter was pushed already.
    pub fn is_filtered(&self) -> bool {
        !self.filters.is_empty()
    }

    /// Has no part sent by the date of a stored response (`If-Range`) where this says so of its head: a date
    /// does not tell its codings apart (RFC 9110 §13.1.5).
    pub fn doubt_dates(&mut self, doubt: Arc<Doubt>) {
        self.dates = Some(doubt);
    }

    /// Whether no part of this may be sent by date.
    pub fn doubts_dates(&self, response: &ResponseHeader) -> bool {
        self.dates.as_ref().is_some_and(|doubt| doubt(response))
    }

    /// Whether the peer speaks for somebody else without being trusted to. A proxy on the same host
    /// that is not in `trust.proxies` would make all its clients local ones. Any field that only proxies write tells.
    pub fn speaks_for_others(&self, request: &http::HeaderMap) -> bool {
        !self.peer_trusted
            && self.peer.is_loopback()
            && request.keys().any(|name| {
                name == VIA || matches!(says(name.as_str()), Some(Says::Client | Says::Place | Says::Person))
            })
    }

    /// The filters pushed so far, to be put to work.
    pub fn take_filters(&mut self) -> Vec<Pushed> {
        std::mem::take(&mut self.filters)
    }

    /// A plugin's private note, found by its type.
    pub fn note<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.notes.iter().find(|(id, _)| *id == TypeId::of::<T>())?.1.downcast_ref()
    }

    /// The same, to be changed.
    pub fn note_mut<T: Any + Send + Sync>(&mut self) -> Option<&mut T> {
        self.notes.iter_mut().find(|(id, _)| *id == TypeId::of::<T>())?.1.downcast_mut()
    }

    /// Leaves a note for a later door; one for each type.
    pub fn set_note<T: Any + Send + Sync>(&mut self, note: T) {
        self.notes.retain(|(id, _)| *id != TypeId::of::<T>());
        self.notes.push((TypeId::of::<T>(), Box::new(note)));
    }
}

/// 32 hexadecimal digits that nobody used before.
fn new_id() -> String {
    static SEED: Lazy<ahash::RandomState> = Lazy::new(ahash::RandomState::new);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Relaxed);
    format!("{:016x}{:016x}", SEED.hash_one(count), SEED.hash_one((count, "id")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[test]
    fn who_speaks_for_others_is_known_by_what_only_proxies_write() {
        let mut exchange = Exchange::new(Clock::system().now(), IpAddr::from([127, 0, 0, 1]));
        for (lines, speaks) in [
            ("x-forwarded-for: 192.0.2.1", true),
            ("forwarded: for=192.0.2.1", true),
            ("x-real-ip: 192.0.2.1", true),
            ("x-forwarded-host: a.test", true),
            ("x-forwarded-proto: https", true),
            ("x-forwarded-user: ada", true),
            ("via: 1.1 proxy", true),
            ("x-http-method-override: PUT\nx-nextjs-data: 1\naccept: */*", false),
        ] {
            assert_eq!(exchange.speaks_for_others(&crate::fields::fields(lines)), speaks, "{lines}");
        }
        exchange.peer_trusted = true;
        assert!(!exchange.speaks_for_others(&crate::fields::fields("via: 1.1 proxy")));
    }

    #[test]
    fn notes_ids_and_targets() {
        let mut exchange = Exchange::new(Clock::system().now(), IpAddr::from([127, 0, 0, 1]));
        assert!(exchange.note::<u32>().is_none());
        exchange.set_note(1u32);
        exchange.set_note(2u32);
        exchange.set_note("text");
        assert_eq!(exchange.note::<u32>(), Some(&2));
        assert_eq!(exchange.note::<&str>(), Some(&"text"));
        exchange.target = "/a?b=c?d".into();
        assert_eq!((exchange.path(), exchange.query()), ("/a", "?b=c?d"));
        let id = exchange.id().to_owned();
        assert_eq!(exchange.id(), id);
        assert_eq!(id.len(), 32);
        assert_ne!(new_id(), new_id());
    }
}
