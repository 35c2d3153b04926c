//! `kv`: a key/value store with a REST interface.
//!
//! ```yaml
//! kv: { store: default, memory: 64MiB, max_value: 8MiB, allow: [127.0.0.0/8, "::1"] }
//! ```
//!
//! `PUT` keeps the content with its `Content-Type` (and `Content-Encoding`), `GET`
//! and `HEAD` give it back, `DELETE` forgets it. A write is one step: a `PUT` that is
//! cut off changes nothing, two at once leave one of the two whole. Content is never
//! looked into. A value may have tags, as a response may, and goes with the same purge.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::*;
use http::{HeaderValue, Method};
use percent_encoding::percent_decode;
use pingora::http::RequestHeader;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Surroundings, complaint};
use crate::cache::ledger::Ledger;
use crate::cache::purge::{Manner, Purged};
use crate::clock::{Clock, Moment, Turns};
use crate::exchange::Exchange;
use crate::fields::bearer;
use crate::fields::conditional::{names, strongly_equal, weakly_equal};
use crate::fields::tags;
use crate::handler::{Content, Handler, Reply, Unread};
use crate::memory::tags::{Tagged, Tags};
use crate::memory::{Change, Memory, Usage};
use crate::plugin::{Complaint, settings};
use crate::secret::{self, Secret};
use crate::units::{ByteSize, Network, Span, given};

/// A key/value store under the route's prefix: `PUT /cache/key?ttl=seconds`, `GET`, `HEAD`, `DELETE`.
///
/// ```yaml
/// routes:
///   - match: { prefix: /cache/ }
///     to: { kv: { memory: 256MiB, allow: [127.0.0.0/8, "::1", 10.0.0.0/8] } }
/// ```
///
/// `PUT` keeps the content with its `Content-Type` and `Content-Encoding`: 201 when it is new, 200 when it
/// replaces. `GET` gives it back with a strong `ETag`; 404 when it is missing or expired. `DELETE` is 204.
/// `If-Match` and `If-None-Match` make writes conditional. A client in none of `allow` needs one of the `tokens`
/// (`Authorization: Bearer …`): with tokens and without `allow`, that is everybody. What is used least goes first when
/// memory is needed.
///
/// A `PUT` may name tags (`Cache-Tag`, `Surrogate-Key` or `Cache-Groups`, at most 1000 of 16 KiB in all): a purge by one
/// of them takes the value out together with the responses that have it. `GET` does not give them back, and a `PUT`
/// without any takes those of the value before away.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Settings {
    /// Routes that name the same store share its content.
    store: String,
    /// Bytes for all its content; what is used least goes first.
    memory: ByteSize,
    /// The longest value.
    max_value: ByteSize,
    /// How long a value is kept that was put without `ttl`; for ever when absent.
    default_ttl: Option<Span>,
    /// Networks that may use it without a token; when absent, loopback, or nobody where there are tokens.
    #[serde(deserialize_with = "given")]
    allow: Option<Vec<Network>>,
    /// Bearer tokens that may use it from anywhere; at least 16 visible ASCII characters each.
    tokens: Vec<Secret>,
    /// A file with more of them, one a line.
    token_file: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            store: "default".into(),
            memory: ByteSize(64 << 20),
            max_value: ByteSize(8 << 20),
            default_ttl: None,
            allow: None,
            tokens: Vec::new(),
            token_file: None,
        }
    }
}

/// A store: its content outlives the routes that lead to it.
pub struct Store {
    map: Memory<Box<[u8]>, Arc<Value>>,
    listed: Arc<Tags<Arc<[u8]>>>,
    /// Values on their way in.
    arriving: Arc<Ledger>,
    tags: (RandomState, AtomicU64),
}

struct Value {
    content: Bytes,
    length: HeaderValue,
    kind: HeaderValue,
    encoding: Option<HeaderValue>,
    tag: HeaderValue,
    caching: HeaderValue,
    put: Moment,
    expires: bool,
    weight: u64,
    /// Where a purge finds it; most values have no tags.
    tagged: Option<Tagged<Arc<[u8]>>>,
}

impl Store {
    pub(super) fn new(memory: u64) -> Self {
        Store {
            map: Memory::new(memory),
            listed: Arc::default(),
            arriving: Arc::new(Ledger::new(memory)),
            tags: (RandomState::new(), AtomicU64::new(0)),
        }
    }

    /// A tag that no other value has or had.
    fn tag(&self) -> HeaderValue {
        let number = self.tags.1.fetch_add(1, Relaxed);
        let text = format!("\"{number:x}-{:016x}\"", self.tags.0.hash_one(number));
        HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("\"0\""))
    }

    /// Bytes set aside for values on their way in.
    pub fn arriving(&self) -> u64 {
        self.arriving.held()
    }

    /// From now on holds at most so much.
    pub(super) fn set_memory(&self, memory: u64) {
        self.map.set_budget(memory);
        self.arriving.set_limit(memory);
    }

    /// Gives back the memory of what has expired.
    pub fn sweep(&self, now: Moment) {
        self.map.sweep(now);
    }

    /// Takes out what has this tag. A value has nothing that it could be validated with, so it goes even where the
    /// purge is a soft one.
    pub(super) fn purge(&self, tag: &str, manner: Manner, clock: &Clock) -> Purged {
        let (mut purged, mut turns) = (Purged::default(), Turns::new(clock));
        self.listed.each(tag, |found| {
            turns.give_way();
            let weight = self.map.update(Box::from(&*found.place), clock.now(), |there| {
                let same = |tagged: &Tagged<_>| tagged.number() == found.number;
                match there.filter(|value| value.tagged.as_ref().is_some_and(same)) {
                    Some(value) if manner.dry_run => (Change::Keep, Some(value.weight)),
                    Some(value) => (Change::Remove, Some(value.weight)),
                    None => (Change::Keep, None),
                }
            });
            if let Some(weight) = weight {
                purged.add(1, weight);
            }
        });
        purged
    }

    /// How much is in it.
    pub fn usage(&self) -> Usage {
        self.map.usage()
    }
}

struct Kv {
    store: Arc<Store>,
    clock: Clock,
    prefix: String,
    max_value: u64,
    default_ttl: Option<Duration>,
    allow: Vec<Network>,
    tokens: Vec<Secret>,
}

const LONGEST_KEY: usize = 1024;

pub(super) fn build(value: &serde_yaml::Value, around: &Surroundings<'_>) -> Result<Arc<dyn Handler>, Complaint> {
    let settings: Settings = settings(value)?;
    let Some(prefix) = around.prefix.filter(|prefix| prefix.ends_with('/')) else {
        return Err(complaint(
            "",
            "a `kv` route needs a `match` with a `prefix` that ends with a slash, such as /cache/: the key is what follows it",
        ));
    };
    // A value has to fit into its store with its key and fields.
    let most = settings.memory.0.saturating_sub(64 << 10);
    if settings.max_value.0 > most {
        return Err(complaint(
            "max_value",
            format!(
                "{} does not fit into the store's memory of {} with its key and fields; at most {} do",
                settings.max_value,
                settings.memory,
                ByteSize(most)
            ),
        ));
    }
    if settings.default_ttl.is_some_and(|ttl| ttl.0.as_secs() == 0) {
        return Err(complaint("default_ttl", "at least 1s, or leave it out to keep values for ever"));
    }
    if let Some(index) = settings.tokens.iter().position(|token| !token.is_token()) {
        return Err(complaint(&format!("tokens[{index}]"), "a token has at least 16 characters, all visible ASCII"));
    }
    let mut tokens = settings.tokens;
    if let Some(file) = &settings.token_file {
        let lines = secret::lines(file).map_err(|message| complaint("token_file", message))?;
        tokens.extend(lines.into_iter().map(|(_, line)| Secret::from(line)));
        if !tokens.iter().all(Secret::is_token) {
            let message = format!("{}: a token has at least 16 characters, all visible ASCII", file.display());
            return Err(complaint("token_file", message));
        }
    }
    let store = around.stores.get(&settings.store, settings.memory.0).map_err(|other| {
        let message =
            format!("the store `{}` is shared with another route, which says {}", settings.store, ByteSize(other));
        complaint("memory", message)
    })?;
    Ok(Arc::new(Kv {
        store,
        clock: around.clock.clone(),
        prefix: prefix.to_owned(),
        max_value: settings.max_value.0,
        default_ttl: settings.default_ttl.map(|span| span.0),
        allow: settings.allow.unwrap_or_else(|| if tokens.is_empty() { Network::loopback() } else { Vec::new() }),
        tokens,
    }))
}

/// The answer while so many values arrive that one more has no room.
fn full() -> Reply {
    Reply::text(503, "too many values arrive at once; nothing was changed")
        .with(RETRY_AFTER, HeaderValue::from_static("1"))
}

#[async_trait]
impl Handler for Kv {
    async fn answer(&self, request: &RequestHeader, content: &mut Content<'_>, exchange: &mut Exchange) -> Reply {
        match self.answer_or_refuse(request, content, exchange).await {
            Ok(reply) | Err(reply) => reply,
        }
    }
}

impl Kv {
    async fn answer_or_refuse(
        &self,
        request: &RequestHeader,
        content: &mut Content<'_>,
        exchange: &mut Exchange,
    ) -> Result<Reply, Reply> {
        self.admit(request, exchange)?;
        let (path, query) = match request.raw_path().iter().position(|byte| *byte == b'?') {
            Some(at) => (&request.raw_path()[..at], &request.raw_path()[at + 1..]),
            None => (request.raw_path(), &b""[..]),
        };
        // A plugin may have rewritten the path, and then to something else.
        let key = path.strip_prefix(self.prefix.as_bytes()).ok_or_else(|| Reply::text(404, "there is no such key"))?;
        let key = key_of(key)?;
        match request.method {
            Method::GET | Method::HEAD => self.get(&key, request),
            Method::PUT => {
                let ttl = ttl(query)?.or(self.default_ttl);
                self.put(key, ttl, request, content, exchange).await
            }
            Method::DELETE => self.delete(key, request),
            _ => Err(Reply::text(
                405,
                format!("{} is not for the store; there are GET, HEAD, PUT and DELETE", request.method),
            )
            .with(ALLOW, HeaderValue::from_static("GET, HEAD, PUT, DELETE"))),
        }
    }

    /// Whether this client may use the store.
    fn admit(&self, request: &RequestHeader, exchange: &Exchange) -> Result<(), Reply> {
        if self.has_token(request) {
            return Ok(());
        }
        if !exchange.speaks_for_others(&request.headers) && self.allows(exchange.client) {
            return Ok(());
        }
        if self.tokens.is_empty() {
            return Err(Reply::text(403, "this client may not use the store"));
        }
        Err(Reply::text(401, "the store wants a token")
            .with(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"kv\"")))
    }

    fn allows(&self, client: IpAddr) -> bool {
        self.allow.iter().any(|network| network.0.contains(&client))
    }

    fn has_token(&self, request: &RequestHeader) -> bool {
        let Some(token) = bearer::token(&request.headers) else { return false };
        // Every token is compared to its end, so that time tells nothing.
        self.tokens.iter().fold(false, |any, known| any | known.is(token))
    }

    fn get(&self, key: &[u8], request: &RequestHeader) -> Result<Reply, Reply> {
        let now = self.clock.now();
        let Some(value) = self.store.map.get(key, now) else { return Err(Reply::text(404, "there is no such key")) };
        let tag = Some(value.tag.as_bytes());
        if names(&request.headers, &IF_MATCH, tag, strongly_equal) == Some(false) {
            return Err(precondition());
        }
        let unchanged = names(&request.headers, &IF_NONE_MATCH, tag, weakly_equal) == Some(true);
        let mut reply = Reply::bare(if unchanged { 304 } else { 200 });
        if !unchanged {
            reply.content = value.content.clone();
            reply.set(CONTENT_TYPE, value.kind.clone());
            reply.set(CONTENT_LENGTH, value.length.clone());
            if let Some(encoding) = &value.encoding {
                reply.set(CONTENT_ENCODING, encoding.clone());
            }
        }
        reply.set(ETAG, value.tag.clone());
        reply.set(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        reply.set(CACHE_CONTROL, value.caching.clone());
        if value.expires {
            reply.set(AGE, HeaderValue::from(now.since(value.put).as_secs()));
        }
        Ok(reply)
    }

    async fn put(
        &self,
        key: Box<[u8]>,
        ttl: Option<Duration>,
        request: &RequestHeader,
        content: &mut Content<'_>,
        exchange: &mut Exchange,
    ) -> Result<Reply, Reply> {
        if request.headers.contains_key(CONTENT_RANGE) {
            return Err(Reply::text(400, "part of a value cannot be put (RFC 9110 §14.5)"));
        }
        let tags = tags::of(&request.headers);
        if tags::too_many(&tags) {
            let most = ByteSize(tags::LONGEST as u64);
            let message = format!("a value has at most {} tags of {most} in all; nothing was changed", tags::MOST);
            return Err(Reply::text(400, message));
        }
        // The store may have been made smaller meanwhile.
        let most = self.max_value.min(self.store.map.budget());
        let mut room = self.store.arriving.reserve(0).ok_or_else(full)?;
        let content = content.collect_in(&mut room, most, exchange).await.map_err(|unread| match unread {
            Unread::NoRoom => full(),
            Unread::TooLong => Reply::text(413, format!("a value has at most {}", ByteSize(most))),
            Unread::Broken => Reply::text(400, "the content did not arrive whole; nothing was changed"),
            Unread::TooSlow => Reply::text(408, "the content came too slowly; nothing was changed"),
            Unread::Refused(status) => Reply::text(status, "the content was refused; nothing was changed"),
        })?;
        let now = self.clock.now();
        let tag = self.store.tag();
        let field = |name| request.headers.get(name).and_then(|value| HeaderValue::from_bytes(value.as_bytes()).ok());
        let caching = match ttl {
            Some(ttl) => HeaderValue::try_from(format!("max-age={}", ttl.as_secs())),
            None => Ok(HeaderValue::from_static("no-cache")),
        };
        let tagged = (!tags.is_empty()).then(|| self.store.listed.list(&tags, Arc::from(&*key)));
        let (kind, encoding) = (field(CONTENT_TYPE), field(CONTENT_ENCODING));
        let fields = [&kind, &encoding].into_iter().flatten().map(HeaderValue::len).sum::<usize>();
        let listed = tagged.as_ref().map_or(0, |tagged| tagged.weight() + key.len() as u64 + 64);
        let weight = (content.len() + fields + 256) as u64 + listed;
        let value = Arc::new(Value {
            length: HeaderValue::from(content.len()),
            content,
            // Copies: a clone would keep the whole buffer of the request alive.
            kind: kind.unwrap_or_else(|| HeaderValue::from_static("application/octet-stream")),
            encoding,
            tag: tag.clone(),
            caching: caching.unwrap_or_else(|_| HeaderValue::from_static("no-cache")),
            put: now,
            expires: ttl.is_some(),
            weight,
            tagged,
        });
        let expires = ttl.map(|ttl| now.after(ttl));
        let (fields, length) = (&request.headers, key.len());
        let new = self.store.map.update(key, now, |there| {
            let tag = there.map(|value| value.tag.as_bytes());
            if names(fields, &IF_MATCH, tag, strongly_equal) == Some(false)
                || names(fields, &IF_NONE_MATCH, tag, weakly_equal) == Some(true)
            {
                return (Change::Keep, Err(precondition()));
            }
            // Its tags may weigh much, and the memory may have shrunk since the route said how large a value may be.
            if !self.store.map.fits(length, weight) {
                return (
                    Change::Keep,
                    Err(Reply::text(
                        413,
                        "the store has no room for a value this large with its tags; nothing was changed",
                    )),
                );
            }
            (Change::Put { value, weight, expires }, Ok(there.is_none()))
        });
        match new {
            Err(refusal) => Err(refusal),
            Ok(new) => Ok(Reply::new(if new { 201 } else { 200 }, "").with(ETAG, tag)),
        }
    }

    fn delete(&self, key: Box<[u8]>, request: &RequestHeader) -> Result<Reply, Reply> {
        let fields = &request.headers;
        let gone = self.store.map.update(key, self.clock.now(), |there| {
            let tag = there.map(|value| value.tag.as_bytes());
            match names(fields, &IF_MATCH, tag, strongly_equal) {
                Some(false) => (Change::Keep, false),
                _ => (Change::Remove, true),
            }
        });
        if gone { Ok(Reply::new(204, "")) } else { Err(precondition()) }
    }
}

fn precondition() -> Reply {
    Reply::text(412, "the value is not what the request expects; nothing was changed")
}

/// The key: everything after the prefix, decoded once.
fn key_of(raw: &[u8]) -> Result<Box<[u8]>, Reply> {
    if raw.is_empty() {
        return Err(Reply::text(404, "there is no key here; it follows the prefix, as in /cache/key"));
    }
    let mut rest = raw;
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        let digits = rest.get(at + 1..at + 3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        if !digits {
            return Err(Reply::text(400, "the key has a % without two hexadecimal digits; a % itself is written %25"));
        }
        rest = &rest[at + 3..];
    }
    let key: Vec<u8> = percent_decode(raw).collect();
    if key.len() > LONGEST_KEY {
        return Err(Reply::text(414, format!("a key has at most {LONGEST_KEY} bytes")));
    }
    Ok(key.into())
}

/// `ttl=60`, or nothing.
fn ttl(query: &[u8]) -> Result<Option<Duration>, Reply> {
    let wrong = || Reply::text(400, "ttl is a positive whole number of seconds, as in ?ttl=60; nothing was changed");
    let mut found = None;
    for pair in query.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()) {
        let (name, value) = match pair.iter().position(|byte| *byte == b'=') {
            Some(at) => (&pair[..at], &pair[at + 1..]),
            None => (pair, &b""[..]),
        };
        if name != b"ttl" {
            let name = String::from_utf8_lossy(name).chars().take(40).collect::<String>();
            return Err(Reply::text(
                400,
                format!("a PUT takes ?ttl=seconds and nothing else; it has {name:?}; nothing was changed"),
            ));
        }
        if found.is_some() || value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
            return Err(wrong());
        }
        let seconds = std::str::from_utf8(value).ok().and_then(|digits| digits.parse::<u64>().ok()).unwrap_or(u64::MAX);
        if seconds == 0 {
            return Err(wrong());
        }
        // A few thousand years are as good as any longer time.
        found = Some(Duration::from_secs(seconds.min(100_000_000_000)));
    }
    Ok(found)
}

#[cfg(test)]
#[path = "kv_tests.rs"]
mod tests;
