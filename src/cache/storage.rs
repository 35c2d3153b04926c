//! The adapter between the engine's cache and our store.
//!
//! The engine decides *when* to look, to write and to freshen; what is kept, and
//! how it is read, is ours. Nothing is serialised: a lookup clones a head and
//! takes a reference to the content.

use std::any::Any;
use std::cell::Cell;
use std::sync::Arc;

use async_trait::async_trait;
use pingora::cache::key::{CacheHashKey, HashBinary};
use pingora::cache::storage::{HitHandler, MissHandler, PurgeOutcome, PurgeTarget, PurgeType, Storage};
use pingora::cache::trace::SpanHandle;
use pingora::cache::{CacheKey, CacheMeta};
use pingora::{Error, ErrorType, Result};

use super::Cache;
use super::coded::Coded;
use super::fill::{Fill, Reader, Terms};
use super::index::Listing;
use super::parts::{Seed, Sheet};
use super::policy::Life;
use super::reading::Handler;
use super::slice::Slice;
use super::stored::{Content, Head, Stored, compact};
use super::vary::Nominated;
use crate::clock::Moment;
use crate::memory::Change;

tokio::task_local! {
    /// Whether the exchange that this task drives has a client that may leave before the head is
    /// here. The engine asks the storage whether fills outlive their client; before there is a
    /// head there is nothing to fill, and the origin should learn at once that nobody waits.
    pub static FILLING: Cell<bool>;
}

/// What stands under a key.
#[derive(Debug, Clone)]
pub enum Slot {
    /// A complete response.
    Whole(Stored),
    /// One that is arriving, and what it replaces.
    Filling(Arc<Fill>, Option<Stored>),
    /// What is known of one of which parts are stored.
    Sheet(Arc<Sheet>),
    /// A slice of such a one.
    Slice(Arc<Slice>),
}

impl Slot {
    fn head(&self) -> Option<&Arc<Head>> {
        match self {
            Slot::Whole(stored) => Some(&stored.head),
            Slot::Filling(fill, _) => Some(&fill.head),
            Slot::Sheet(_) | Slot::Slice(_) => None,
        }
    }
}

/// What travels with the engine's metadata from the policy to the store.
#[derive(Debug, Clone)]
pub struct Decision {
    /// Until when it may be used.
    pub life: Life,
    /// How the fill is bounded.
    pub terms: Terms,
    /// The stored head that a 304 has validated.
    pub validated: Option<Arc<Head>>,
    /// What is stored already of the content that comes.
    pub seed: Option<Seed>,
}

/// The engine's metadata for a stored head, as of now: the engine compares with its own clock, so
/// its deadline is placed at the same distance from that clock as ours is from ours.
fn meta(cache: &Cache, head: &Head) -> CacheMeta {
    let now = cache.clock().now();
    let system = std::time::SystemTime::now();
    let left = head.life.lifetime.saturating_sub(head.life.age(now));
    let fresh_until = match head.life.stale_for(now) {
        stale if stale.is_zero() => system + left,
        stale => system.checked_sub(stale).unwrap_or(std::time::SystemTime::UNIX_EPOCH),
    };
    let window = |span: std::time::Duration| u32::try_from(span.as_secs()).unwrap_or(u32::MAX);
    let mut meta = CacheMeta::new(
        fresh_until,
        head.created,
        window(head.life.stale_while_revalidate),
        window(head.life.stale_if_error),
        head.response.clone(),
    );
    if let Some(variance) = head.variance {
        meta.set_variance(variance);
    }
    if !head.nominated.is_empty() {
        meta.extensions_mut().insert(Nominated(head.nominated.clone()));
    }
    meta
}
impl Cache {
    /// The response is whole: it takes the place of the fill, unless something happened to that place.
    pub(super) fn publish(&self, primary: HashBinary, hash: HashBinary, fill: &Arc<Fill>, content: Content) {
        let Head { response, life, listing, .. } = &*fill.head;
        let head = fill.head.renewed(response, *life, content.length, listing.clone());
        let stored = Stored { head, content: Arc::new(content) };
        let weight = self.weigh(&stored);
        let expires = Some(stored.head.life.kept());
        let spoilt = self.map.update(hash, self.clock().now(), |there| match there {
            // A fill whose place was evicted meanwhile cannot be doomed; the invalidation is remembered. It is
            // noted before it takes things out, so none gets between this look and the change.
            _ if fill.doomed() || self.spoilt(primary, &fill.head) => (Change::Keep, true),
            // Somebody else's fill, or a response newer than this one.
            Some(Slot::Filling(other, _)) if other.id != fill.id => (Change::Keep, false),
            Some(Slot::Whole(other)) if other.head.life.received > fill.head.life.received => (Change::Keep, false),
            _ => (Change::Put { value: Slot::Whole(stored), weight, expires }, false),
        });
        if spoilt {
            self.give_up(hash, fill);
        } else {
            self.parts_are_over(primary, fill.head.variance);
        }
    }

    /// Whether what it answers was invalidated or purged after it was asked for.
    pub(super) fn spoilt(&self, primary: HashBinary, head: &Head) -> bool {
        self.spoilt_since(primary, head.life.asked, &head.listing)
    }

    /// The same for something that was asked for then.
    pub(super) fn spoilt_since(&self, primary: HashBinary, asked: Moment, listing: &Listing) -> bool {
        self.changed_since(primary, asked) || self.purges.since(asked, listing)
    }

    /// What a response weighs; its copies go before it does.
    pub(super) fn weigh(&self, stored: &Stored) -> u64 {
        if !self.map.fits(0, stored.weight()) {
            stored.content.coded.clear();
        }
        stored.weight()
    }

    /// A stored response has got a copy in another coding: it weighs more now.
    pub(super) fn weigh_again(&self, hash: HashBinary, coded: &Arc<Coded>) {
        self.map.update(hash, self.clock().now(), |there| match there {
            Some(Slot::Whole(same)) if Arc::ptr_eq(&same.content.coded, coded) => {
                let (weight, expires) = (self.weigh(same), Some(same.head.life.kept()));
                (Change::Put { value: Slot::Whole(same.clone()), weight, expires }, ())
            }
            _ => (Change::Keep, ()),
        });
    }

    /// The response will not be stored: its place goes back to what was there before.
    pub(super) fn give_up(&self, hash: HashBinary, fill: &Arc<Fill>) {
        self.map.update(hash, self.clock().now(), |there| match there {
            Some(Slot::Filling(this, before)) if this.id == fill.id => {
                // A purge that meant it has taken it away, or made it stale.
                match before.clone() {
                    None => (Change::Remove, ()),
                    Some(stored) => {
                        let (weight, expires) = (self.weigh(&stored), Some(stored.head.life.kept()));
                        (Change::Put { value: Slot::Whole(stored), weight, expires }, ())
                    }
                }
            }
            _ => (Change::Keep, ()),
        });
    }
}

#[async_trait]
impl Storage for Cache {
    async fn lookup(&'static self, key: &CacheKey, _: &SpanHandle) -> Result<Option<(CacheMeta, HitHandler)>> {
        let hash = key.combined_bin();
        let handler = match self.map.get(&hash, self.clock().now()) {
            Some(Slot::Whole(stored)) => Handler::whole(stored, self, hash),
            Some(Slot::Filling(fill, _)) if fill.joinable() => Handler::filling(Reader::joiner(fill), self, hash),
            // What nobody may join does not take its place either, and the app may be failing just now.
            Some(Slot::Filling(_, Some(before))) => Handler::whole(before, self, hash),
            _ => return Ok(None),
        };
        let found = handler.head().filter(|head| *head.key == *key.primary_key()).map(|head| meta(self, head));
        Ok(found.map(|meta| (meta, Box::new(handler) as HitHandler)))
    }

    async fn lookup_streaming_write(
        &'static self,
        key: &CacheKey,
        tag: Option<&[u8]>,
        _: &SpanHandle,
    ) -> Result<Option<(CacheMeta, HitHandler)>> {
        let id = tag.and_then(|tag| tag.try_into().ok()).map(u64::from_be_bytes);
        let fill = id.and_then(|id| self.fills.lock().get(&id).cloned());
        Ok(fill.map(|fill| {
            let meta = meta(self, &fill.head);
            (meta, Box::new(Handler::filling(Reader::leader(fill), self, key.combined_bin())) as HitHandler)
        }))
    }

    async fn get_miss_handler(&'static self, key: &CacheKey, meta: &CacheMeta, _: &SpanHandle) -> Result<MissHandler> {
        let Some(decision) = meta.extensions().get::<Decision>() else {
            return Error::e_explain(ErrorType::InternalError, "a response without a decision");
        };
        let Some(room) = self.ledger.reserve(decision.terms.length.unwrap_or(0)) else {
            return Error::e_explain(ErrorType::InternalError, "too many bytes are arriving at once");
        };
        // Variants are compared with their primary by when they were written; a primary keeps
        // the time of the first of its family, or all its variants would be lost with it.
        let created = if key.get_variance_key().is_some() { meta.created() } else { meta.provenance() };
        let head = Arc::new(Head {
            key: key.primary_key().into(),
            variance: meta.variance(),
            response: compact(meta.response_header()),
            nominated: meta.extensions().get::<Nominated>().map_or_else(|| Arc::from([]), |names| names.0.clone()),
            life: decision.life,
            created,
            listing: self.list(key.primary_key(), meta.response_header(), key.combined_bin()),
        });
        let fill = Fill::new(self.next_fill(), head, decision.terms, Some(room));
        Ok(Box::new(self.writer(key, fill).seeded(decision.seed.clone())))
    }

    async fn purge(&'static self, target: PurgeTarget<'_>, _: PurgeType, _: &SpanHandle) -> Result<PurgeOutcome> {
        Ok(match self.forget(target.key().combined_bin()) {
            true => PurgeOutcome::Purged(None),
            false => PurgeOutcome::NotFound,
        })
    }

    async fn update_meta(&'static self, key: &CacheKey, meta: &CacheMeta, _: &SpanHandle) -> Result<bool> {
        let Some(decision) = meta.extensions().get::<Decision>() else { return Ok(false) };
        let updated = self.map.update(key.combined_bin(), self.clock().now(), |there| {
            // The very response that was validated, not one that took its place meanwhile.
            let validated = |head: &Arc<Head>| decision.validated.as_ref().is_some_and(|this| Arc::ptr_eq(this, head));
            let same = |slot: &&Slot| slot.head().is_some_and(validated);
            let Some(Slot::Whole(stored)) = there.filter(same) else {
                return (Change::Keep, false);
            };
            let listing = self.list_again(&stored.head, meta.response_header(), key.combined_bin());
            // What it is listed as now may have been purged while the origin was asked.
            if self.purges.since(decision.life.asked, &listing) {
                return (Change::Keep, false);
            }
            let head = stored.head.renewed(meta.response_header(), decision.life, stored.content.length, listing);
            let stored = Stored { head, content: stored.content.clone() };
            let (weight, expires) = (self.weigh(&stored), Some(stored.head.life.kept()));
            (Change::Put { value: Slot::Whole(stored), weight, expires }, true)
        });
        Ok(updated)
    }

    fn support_streaming_partial_write(&self) -> bool {
        FILLING.try_with(Cell::get).unwrap_or(true)
    }

    fn as_any(&self) -> &(dyn Any + Send + Sync + 'static) {
        self
    }
}
