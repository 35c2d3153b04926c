//! The response cache: what the proxy calls.
//!
//! The life of a stored response: [`policy::admit`] lets a request look; a miss
//! goes to the origin under a lock, so that one request fills for all; the answer
//! is judged by [`policy::judge`]; a [`fill`] takes it in while its readers follow;
//! complete, it becomes [`stored::Stored`] and answers until it is stale, freshened
//! by a 304, invalidated, purged, evicted or useless.
//!
//! There is one store for all routes. It lives as long as the process.

pub mod advice;
pub mod aside;
pub mod coded;
pub mod families;
pub mod fetch;
pub mod fill;
pub mod index;
pub mod key;
pub mod leak;
pub mod ledger;
pub mod parts;
pub mod policy;
pub mod purge;
pub mod reading;
pub mod rule;
pub mod slice;
pub mod storage;
pub mod stored;
pub mod vary;
mod writing;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use pingora::cache::key::{CacheHashKey, HashBinary};
use pingora::cache::lock::{CacheKeyLockImpl, CacheLock};
use pingora::cache::predictor::CacheablePredictor;
use pingora::cache::{CacheKey, CacheMeta, CacheOptionOverrides, HttpCache, NoCacheReason};
use pingora::http::ResponseHeader;

use crate::clock::{Clock, Moment};
use crate::fields::query::{Rules, no_vary_search};
use crate::fields::tags;
use crate::memory::{Change, Memory, Usage};
use families::Families;
use fill::{Fill, Terms};
use index::{Index, Listing};
use key::{Keys, Parts};
use ledger::Ledger;
use rule::Rule;
use storage::{Decision, Slot};
use stored::Head;
use vary::Nominated;

/// How the store is bounded.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes for everything stored.
    pub memory: u64,
    /// The longest response that is stored.
    pub max_object: u64,
    /// The longest one without a `Content-Length`.
    pub max_unsized: u64,
    /// Bytes that responses may hold while they arrive.
    pub fills: u64,
    /// Variants of one target.
    pub max_variants: usize,
}

/// How long a request to the origin may keep others waiting for its head. Who waits has a shorter
/// patience of their own.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3600);

/// How long a fill stays findable at least.
const LONGEST_FILL: Duration = Duration::from_secs(3600);

/// How long a target whose response could not be stored is not collapsed on.
const UNCACHEABLE_FOR: Duration = Duration::from_secs(60);

/// How long an invalidation is remembered, for responses that were on their way when it came.
const INVALIDATED_FOR: Duration = Duration::from_secs(120);

/// How long it is remembered what a path's responses say about their queries.
const SEARCH_FOR: Duration = Duration::from_secs(86_400);

/// How often a request looks again after waiting for another that came to nothing; its patience ends it before.
const TRIES: usize = 1000;

/// So many ways of `No-Vary-Search` are told apart by a purge.
const FORMS: usize = 64;

/// Bytes for each of those memories.
const REMEMBERED: u64 = 4 << 20;

/// The cache.
pub struct Cache {
    clock: Clock,
    keys: Keys,
    lock: Box<CacheKeyLockImpl>,
    map: Memory<HashBinary, Slot>,
    fills: Mutex<HashMap<u64, Arc<Fill>>>,
    fill_ids: AtomicU64,
    ledger: Arc<Ledger>,
    uncacheable: Memory<HashBinary, NoCacheReason>,
    invalidated: Memory<HashBinary, Moment>,
    families: Families,
    index: Arc<Index>,
    purges: purge::Log,
    /// By path: what its responses said last about their queries (`No-Vary-Search`).
    searches: Memory<HashBinary, Arc<Rules>>,
    /// Whether there has been any.
    searching: AtomicBool,
    /// All that was said, each once, for purges.
    forms: Mutex<Vec<Rules>>,
    /// What routes do to queries, or did in a configuration before: what was stored then is still there.
    queries: Mutex<Vec<Rules>>,
    /// Whether there have been any parts.
    parted: AtomicBool,
    fetches: fetch::Fetches,
    /// Targets whose origin did not send slices.
    unsliced: Memory<HashBinary, ()>,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}

impl Cache {
    /// Makes the store. The engine wants it to live for ever, so it does.
    pub fn leak(limits: Limits, clock: Clock) -> &'static Cache {
        Box::leak(Box::new(Cache {
            clock,
            keys: Keys::new(),
            lock: CacheLock::new_boxed(LOCK_TIMEOUT),
            map: Memory::new(limits.memory),
            fills: Mutex::default(),
            fill_ids: AtomicU64::new(1),
            ledger: Arc::new(Ledger::new(limits.fills)),
            uncacheable: Memory::new(REMEMBERED),
            invalidated: Memory::new(REMEMBERED),
            families: Families::new(REMEMBERED, limits.max_variants),
            index: Arc::default(),
            purges: purge::Log::default(),
            searches: Memory::new(REMEMBERED),
            searching: AtomicBool::new(false),
            forms: Mutex::default(),
            queries: Mutex::default(),
            parted: AtomicBool::new(false),
            fetches: fetch::Fetches::default(),
            unsliced: Memory::new(REMEMBERED),
        }))
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn next_fill(&self) -> u64 {
        self.fill_ids.fetch_add(1, Relaxed)
    }

    /// From now on is bounded like this; what is stored stays as far as it fits.
    pub fn set_limits(&self, limits: Limits) {
        self.ledger.set_limit(limits.fills);
        self.map.set_budget(limits.memory);
        self.families.set_most(limits.max_variants);
        // What was too large may not be any more: all that is remembered goes.
        self.uncacheable.set_budget(0);
        self.uncacheable.set_budget(REMEMBERED);
    }

    /// Takes note of what routes do to queries, before they do. Of those that they do not any more the oldest are
    /// forgotten.
    pub fn learn<'a>(&self, rules: impl Iterator<Item = &'a Rules>) {
        let mut now: Vec<Rules> = Vec::new();
        for rules in rules {
            if !now.contains(rules) {
                now.push(rules.clone());
            }
        }
        let mut known = self.queries.lock();
        known.retain(|rules| !now.contains(rules));
        let most = FORMS.saturating_sub(now.len());
        let forgotten = known.len().saturating_sub(most);
        known.drain(..forgotten);
        known.append(&mut now);
    }

    /// The key of these parts. Where the path's responses have said that some queries get the same one, all
    /// of those queries have one key; what they said comes with it then.
    pub fn key(&self, parts: &Parts<'_>) -> (CacheKey, Option<Arc<Rules>>) {
        if self.searching.load(Relaxed)
            && let Ok(target) = std::str::from_utf8(parts.target)
            && target.contains('?')
            // Some readers take it for a separator, and the origin sees the whole query.
            && !target.contains(';')
            && let Some(rules) = self.searches.get(&self.search_place(parts), self.clock.now())
            && let Cow::Owned(form) = rules.apply(target)
        {
            return (self.keys.key(&Parts { target: form.as_bytes(), ..*parts }), Some(rules));
        }
        (self.keys.key(parts), None)
    }

    fn search_place(&self, parts: &Parts<'_>) -> HashBinary {
        let path = parts.target.split(|byte| *byte == b'?').next().unwrap_or_default();
        self.keys.key(&Parts { target: path, ..*parts }).primary_bin()
    }

    /// Takes note of what a response says about queries; whether it fits the key that was made by `used`.
    pub fn search(&self, parts: &Parts<'_>, response: &ResponseHeader, used: Option<&Rules>) -> Result<(), Rule> {
        let said = no_vary_search(&response.headers).filter(|rules| {
            let mut forms = self.forms.lock();
            // More of them than a purge and an invalidation can go through do not count.
            if !forms.contains(rules) && forms.len() < FORMS {
                forms.push(rules.clone());
            }
            forms.contains(rules)
        });
        let fits = used.is_none_or(|used| said.as_ref() == Some(used));
        let said_nothing = said.is_none();
        if let Some(rules) = said {
            let now = self.clock.now();
            let weight = rules.names.iter().map(|name| name.len() as u64 + 48).sum::<u64>() + 96;
            self.searches.put(self.search_place(parts), Arc::new(rules), weight, Some(now.after(SEARCH_FOR)), now);
            self.searching.store(true, Relaxed);
        }
        // What is no longer said no longer counts.
        if !fits && said_nothing {
            self.searches.remove(self.search_place(parts), self.clock.now());
        }
        if fits { Ok(()) } else { Err(Rule::SearchChanged) }
    }

    /// Turns the engine's cache on for one request. One that waits for another's fill does so for
    /// `patience` at most; `None` never waits.
    pub fn enable(&'static self, cache: &mut HttpCache, patience: Option<Duration>) {
        let mut options = CacheOptionOverrides::default();
        options.wait_timeout = patience;
        options.max_lock_retries = Some(TRIES);
        let lock = patience.map(|_| self.lock.as_ref());
        cache.enable(self, None, Some(self), lock, Some(options));
    }

    /// How a response of this length would be bounded; `Err` when it is too long.
    pub fn terms(
        &self,
        key: &CacheKey,
        length: Option<u64>,
        limits: &Limits,
        patience: Duration,
    ) -> Result<Terms, Rule> {
        let outgrew = || self.predicted_uncacheable_reason(key) == Some(NoCacheReason::ResponseTooLarge);
        if length.is_none() && outgrew() {
            return Err(Rule::TooLarge);
        }
        let limit = if length.is_some() { limits.max_object } else { limits.max_unsized };
        if length.is_some_and(|length| length > limit) {
            return Err(Rule::TooLarge);
        }
        if !self.ledger.fits(length.unwrap_or(1)) {
            return Err(Rule::FillsFull);
        }
        Ok(Terms { length, limit, patience })
    }

    /// What the engine needs to know of a response that is to be stored.
    pub fn meta(&self, response: ResponseHeader, decision: Decision) -> CacheMeta {
        let life = decision.life;
        let window = |span: Duration| u32::try_from(span.as_secs()).unwrap_or(u32::MAX);
        let nominated = crate::fields::vary::nominated(&response.headers).unwrap_or_default();
        let created = self.clock.steady();
        // The engine's deadline is written anew at each lookup; what counts is `life`.
        let mut meta = CacheMeta::new(
            created + life.lifetime.min(Duration::from_secs(86_400)),
            created,
            window(life.stale_while_revalidate),
            window(life.stale_if_error),
            response,
        );
        if !nominated.is_empty() {
            meta.extensions_mut().insert(Nominated(nominated.into()));
        }
        meta.extensions_mut().insert(decision);
        meta
    }

    /// Takes out what is stored for a target, under every form that its query may ever have had.
    pub fn invalidate_target(&self, parts: &Parts<'_>) {
        let Ok(target) = std::str::from_utf8(parts.target) else {
            self.invalidate(&self.keys.key(parts));
            return;
        };
        for form in self.forms_of(target) {
            self.invalidate(&self.keys.key(&Parts { target: form.as_bytes(), ..*parts }));
        }
    }

    /// Takes out what is stored under a key, all variants with it, and spoils what is on its way.
    pub fn invalidate(&self, key: &CacheKey) -> bool {
        let hash = key.primary_bin();
        let now = self.clock.now();
        self.invalidated.put(hash, now, 0, Some(now.after(INVALIDATED_FOR)), now);
        for variant in self.families.take(hash, now).iter() {
            self.forget_all(*variant);
        }
        self.forget_parts(hash);
        self.forget(hash)
    }

    /// Whether the target was changed since then.
    pub fn invalidated_since(&self, key: &CacheKey, since: Moment) -> bool {
        self.changed_since(key.primary_bin(), since)
    }

    fn changed_since(&self, primary: HashBinary, since: Moment) -> bool {
        self.invalidated.get(&primary, self.clock.now()).is_some_and(|at| at >= since)
    }

    /// Remembers that a response without a length became too long.
    fn outgrown(&self, primary: HashBinary) {
        self.remember_uncacheable(primary, NoCacheReason::ResponseTooLarge);
    }

    fn remember_uncacheable(&self, primary: HashBinary, reason: NoCacheReason) -> bool {
        let now = self.clock.now();
        let until = Some(now.after(UNCACHEABLE_FOR));
        self.uncacheable
            .update(primary, now, |there| (Change::Put { value: reason, weight: 0, expires: until }, there.is_none()))
    }

    /// Lists a response under what its key and its tags say.
    fn list(&self, key: &[u8], response: &ResponseHeader, place: HashBinary) -> Arc<Listing> {
        let parts = key::read(key);
        let host = key::listed_host(parts.host, parts.forwarded_host);
        let target = String::from_utf8_lossy(parts.target);
        let tags = tags::of(&response.headers);
        Arc::new(self.index.list(&host, &target, &tags, place))
    }

    /// The listing of what is stored, or a new one where its tags are others now.
    fn list_again(&self, stored: &Head, response: &ResponseHeader, place: HashBinary) -> Arc<Listing> {
        match stored.listing.tags().eq(tags::of(&response.headers).iter().map(String::as_str)) {
            true => stored.listing.clone(),
            false => self.list(&stored.key, response, place),
        }
    }

    fn forget(&self, hash: HashBinary) -> bool {
        self.map.update(hash, self.clock.now(), |there| {
            if let Some(Slot::Filling(fill, _)) = there {
                fill.doom();
            }
            (Change::Remove, there.is_some())
        })
    }

    /// Gives back the memory of what is of no use any more.
    pub fn sweep(&self) {
        let now = self.clock.now();
        self.map.sweep(now);
        self.uncacheable.sweep(now);
        self.invalidated.sweep(now);
        self.families.sweep(now);
        self.searches.sweep(now);
        self.unsliced.sweep(now);
    }

    /// How much is stored.
    pub fn usage(&self) -> Usage {
        self.map.usage()
    }

    /// Whether nothing is listed for purges.
    pub(crate) fn lists_nothing(&self) -> bool {
        self.index.is_empty()
    }

    /// What is remembered beside what is stored, and how much of each may be.
    pub fn remembered(&self) -> [(&'static str, Usage, u64); 5] {
        let (families, most) = self.families.usage();
        [
            ("variants", families, most),
            ("uncacheable", self.uncacheable.usage(), self.uncacheable.budget()),
            ("unsliced", self.unsliced.usage(), self.unsliced.budget()),
            ("invalidated", self.invalidated.usage(), self.invalidated.budget()),
            ("queries", self.searches.usage(), self.searches.budget()),
        ]
    }

    /// How many fills are under way, and the bytes set aside for them.
    pub fn filling(&self) -> (u64, u64) {
        (self.fills.lock().len() as u64, self.ledger.held())
    }
}

/// Remembers for a while what turned out not to be storable, so that nobody waits for it in line.
impl CacheablePredictor for Cache {
    fn cacheable_prediction(&self, key: &CacheKey) -> bool {
        self.predicted_uncacheable_reason(key).is_none()
    }

    fn predicted_uncacheable_reason(&self, key: &CacheKey) -> Option<NoCacheReason> {
        self.uncacheable.get(&key.primary_bin(), self.clock.now())
    }

    fn mark_cacheable(&self, key: &CacheKey) -> bool {
        self.uncacheable.remove(key.primary_bin(), self.clock.now()).is_none()
    }

    fn mark_uncacheable(&self, key: &CacheKey, reason: NoCacheReason) -> Option<bool> {
        if !matches!(reason, NoCacheReason::OriginNotCache | NoCacheReason::ResponseTooLarge) {
            return None;
        }
        Some(self.remember_uncacheable(key.primary_bin(), reason))
    }
}

/// The engine's reason for a refusal: one that it remembers, or one that lets the next request try.
pub fn refusal(rule: Rule) -> NoCacheReason {
    if rule.lasts() { NoCacheReason::OriginNotCache } else { NoCacheReason::Deferred }
}

#[cfg(test)]
mod churn_tests;
