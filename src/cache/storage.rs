//! The adapter between the engine's cache and our store.
//!
//! The engine decides *when* to look, to write and to freshen; what is kept, and
//! how it is read, is ours. Nothing is serialised: a lookup clones a head and
//! takes a reference to the content.

use std::any::Any;
use std::cell::Cell;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use pingora::cache::key::{CacheHashKey, HashBinary};
use pingora::cache::storage::{
    HandleHit, HandleMiss, HitHandler, MissFinishType, MissHandler, PurgeOutcome, PurgeTarget, PurgeType, Storage,
};
use pingora::cache::trace::SpanHandle;
use pingora::cache::{CacheKey, CacheMeta};
use pingora::{Error, ErrorType, Result};

use super::Cache;
use super::coded;
use super::fill::{Fill, Reader, Terms, Written};
use super::policy::Life;
use super::stored::{Content, Head, Stored, compact, set_length, weight};
use super::vary::Nominated;
use crate::filter::ContentFilter;
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
}

impl Slot {
    fn head(&self) -> &Arc<Head> {
        match self {
            Slot::Whole(stored) => &stored.head,
            Slot::Filling(fill, _) => &fill.head,
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

/// Reads a complete response.
#[derive(Debug)]
struct Hit {
    stored: Stored,
    piece: usize,
    offset: usize,
    left: u64,
}

impl Hit {
    fn new(stored: Stored) -> Self {
        let left = stored.content.length;
        Hit { stored, piece: 0, offset: 0, left }
    }

    fn next(&mut self) -> Option<Bytes> {
        let Content { pieces, .. } = &*self.stored.content;
        let piece = pieces.get(self.piece).filter(|_| self.left > 0)?;
        let rest = piece.slice(self.offset..piece.len().min(self.offset + self.left as usize));
        self.left -= rest.len() as u64;
        self.piece += 1;
        self.offset = 0;
        Some(rest)
    }

    fn seek(&mut self, start: u64, end: Option<u64>) {
        let length = self.stored.content.length;
        let (mut piece, mut before) = (0, 0);
        for (index, bytes) in self.stored.content.pieces.iter().enumerate() {
            piece = index;
            if before + bytes.len() as u64 > start {
                break;
            }
            before += bytes.len() as u64;
            piece = index + 1;
        }
        self.piece = piece;
        self.offset = start.saturating_sub(before) as usize;
        self.left = end.unwrap_or(length).min(length).saturating_sub(start);
        if self.left == 0 {
            self.offset = 0;
        }
    }
}

/// Hands out content, from the store or from a fill.
#[derive(Debug)]
pub struct Handler(Source);

#[derive(Debug)]
enum Source {
    Whole(Hit, Place),
    Filling(Reader),
    Coded(Coding),
    Nothing,
}

/// Where a response stands.
#[derive(Debug, Clone, Copy)]
struct Place {
    cache: &'static Cache,
    hash: HashBinary,
}

/// Reads a complete response in a content coding: from the copy that is kept, or makes it.
struct Coding {
    place: Place,
    stored: Stored,
    cell: coded::Cell,
    filter: Option<Box<dyn ContentFilter>>,
    next: usize,
}

impl std::fmt::Debug for Coding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coding").field("next", &self.next).finish_non_exhaustive()
    }
}

impl Coding {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.cell.get().is_none() {
            let Coding { cell, filter, stored, .. } = self;
            // Whoever comes while it is made waits for it; should its maker leave, another one makes it.
            let made = cell.get_or_try_init(|| coded::encode(&stored.content, filter)).await;
            if made.is_err() {
                return Error::e_explain(ErrorType::InternalError, "the content could not be encoded");
            }
            self.place.cache.weigh_again(self.place.hash, &self.stored);
        }
        let piece = self.cell.get().and_then(|copy| copy.pieces.get(self.next)).cloned();
        self.next += 1;
        Ok(piece)
    }
}

impl Handler {
    /// The head that was found.
    pub fn head(&self) -> Option<&Arc<Head>> {
        match &self.0 {
            Source::Whole(hit, _) => Some(&hit.stored.head),
            Source::Filling(reader) => Some(&reader.fill.head),
            Source::Coded(coding) => Some(&coding.stored.head),
            Source::Nothing => None,
        }
    }

    /// The fill it reads, if it is one.
    pub fn fill(&self) -> Option<&Arc<Fill>> {
        match &self.0 {
            Source::Filling(reader) => Some(&reader.fill),
            _ => None,
        }
    }

    /// From here on gives the content in this coding: the copy that is kept, whose length it says, or
    /// one that the filter makes now. `Err` gives the filter back: it is no complete response.
    pub fn recode(
        &mut self,
        coding: &'static str,
        filter: Box<dyn ContentFilter>,
    ) -> Result<Option<u64>, Box<dyn ContentFilter>> {
        let Source::Whole(hit, place) = &self.0 else { return Err(filter) };
        let (stored, place) = (hit.stored.clone(), *place);
        let cell = stored.content.coded.cell(coding);
        let length = cell.get().map(|copy| copy.length);
        let filter = Some(filter).filter(|_| length.is_none());
        self.0 = Source::Coded(Coding { place, stored, cell, filter, next: 0 });
        Ok(length)
    }

    /// From here on gives nothing.
    pub fn say_nothing(&mut self) {
        self.0 = Source::Nothing;
    }
}

#[async_trait]
impl HandleHit for Handler {
    async fn read_body(&mut self) -> Result<Option<Bytes>> {
        match &mut self.0 {
            Source::Whole(hit, _) => Ok(hit.next()),
            Source::Filling(reader) => reader.next().await,
            Source::Coded(coding) => coding.next().await,
            Source::Nothing => Ok(None),
        }
    }

    async fn finish(self: Box<Self>, _: &'static (dyn Storage + Sync), _: &CacheKey, _: &SpanHandle) -> Result<()> {
        Ok(())
    }

    fn can_seek(&self) -> bool {
        match &self.0 {
            Source::Whole(..) => true,
            Source::Filling(reader) => reader.can_seek(),
            Source::Coded(_) | Source::Nothing => false,
        }
    }

    fn seek(&mut self, start: usize, end: Option<usize>) -> Result<()> {
        let (start, end) = (start as u64, end.map(|end| end as u64));
        match &mut self.0 {
            Source::Whole(hit, _) => {
                hit.seek(start, end);
                Ok(())
            }
            Source::Filling(reader) => reader.seek(start, end),
            Source::Coded(_) => Error::e_explain(ErrorType::InternalError, "ranges are of the content as it is stored"),
            Source::Nothing => Ok(()),
        }
    }

    fn as_any(&self) -> &(dyn Any + Send + Sync) {
        self
    }

    fn as_any_mut(&mut self) -> &mut (dyn Any + Send + Sync) {
        self
    }
}

/// Writes a response in.
struct Writer {
    cache: &'static Cache,
    primary: HashBinary,
    hash: HashBinary,
    fill: Arc<Fill>,
    tag: [u8; 8],
    finished: bool,
}

#[async_trait]
impl HandleMiss for Writer {
    async fn write_body(&mut self, data: Bytes, _: bool) -> Result<()> {
        match self.fill.write(data) {
            Written::Kept => Ok(()),
            Written::Outgrown => {
                self.cache.outgrown(self.primary);
                self.cache.give_up(self.hash, &self.fill);
                Ok(())
            }
            Written::Pointless => Error::e_explain(ErrorType::WriteError, "nobody reads it and it cannot be stored"),
        }
    }

    async fn finish(mut self: Box<Self>) -> Result<MissFinishType> {
        self.finished = true;
        let length = match self.fill.complete() {
            Some(content) => {
                let length = content.length;
                self.cache.publish(self.primary, self.hash, &self.fill, content);
                length
            }
            None => {
                self.cache.give_up(self.hash, &self.fill);
                0
            }
        };
        Ok(MissFinishType::Created(length as usize))
    }

    fn streaming_write_tag(&self) -> Option<&[u8]> {
        Some(&self.tag)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.finished {
            self.fill.fail();
            self.cache.give_up(self.hash, &self.fill);
        }
        self.cache.fills.lock().remove(&self.fill.id);
    }
}

impl Cache {
    /// The response is whole: it takes the place of the fill, unless something happened to that place.
    fn publish(&self, primary: HashBinary, hash: HashBinary, fill: &Arc<Fill>, content: Content) {
        // A fill whose place was evicted meanwhile cannot be doomed; the invalidation is remembered.
        if fill.doomed() || self.changed_since(primary, fill.head.life.received) {
            return self.give_up(hash, fill);
        }
        let mut response = fill.head.response.clone();
        set_length(&mut response, content.length);
        let head = Head {
            key: fill.head.key.clone(),
            variance: fill.head.variance,
            response,
            nominated: fill.head.nominated.clone(),
            life: fill.head.life,
            created: fill.head.created,
        };
        let stored = Stored { head: Arc::new(head), content: Arc::new(content) };
        let weight = stored.weight();
        let expires = Some(stored.head.life.kept());
        self.map.update(hash, self.clock().now(), |there| match there {
            // Somebody else's fill, or a response newer than this one.
            Some(Slot::Filling(other, _)) if other.id != fill.id => (Change::Keep, ()),
            Some(Slot::Whole(other)) if other.head.life.received > fill.head.life.received => (Change::Keep, ()),
            _ => (Change::Put { value: Slot::Whole(stored), weight, expires }, ()),
        });
    }

    /// A stored response has got a copy in another coding: it weighs more now.
    fn weigh_again(&self, hash: HashBinary, stored: &Stored) {
        self.map.update(hash, self.clock().now(), |there| match there {
            Some(Slot::Whole(same)) if Arc::ptr_eq(&same.content, &stored.content) => {
                let (weight, expires) = (same.weight(), Some(same.head.life.kept()));
                (Change::Put { value: Slot::Whole(same.clone()), weight, expires }, ())
            }
            _ => (Change::Keep, ()),
        });
    }

    /// The response will not be stored: its place goes back to what was there before.
    fn give_up(&self, hash: HashBinary, fill: &Arc<Fill>) {
        self.map.update(hash, self.clock().now(), |there| match there {
            Some(Slot::Filling(this, before)) if this.id == fill.id => {
                match before.clone().filter(|_| !fill.doomed()) {
                    None => (Change::Remove, ()),
                    Some(stored) => {
                        let (weight, expires) = (stored.weight(), Some(stored.head.life.kept()));
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
        let Some(slot) = self.map.get(&hash, self.clock().now()) else { return Ok(None) };
        if *slot.head().key != *key.primary_key() {
            return Ok(None);
        }
        let source = match slot {
            Slot::Whole(stored) => Source::Whole(Hit::new(stored), Place { cache: self, hash }),
            Slot::Filling(fill, _) if fill.joinable() => Source::Filling(Reader::joiner(fill)),
            Slot::Filling(..) => return Ok(None),
        };
        let handler = Handler(source);
        let found = handler.head().map(|head| meta(self, head));
        Ok(found.map(|meta| (meta, Box::new(handler) as HitHandler)))
    }

    async fn lookup_streaming_write(
        &'static self,
        _: &CacheKey,
        tag: Option<&[u8]>,
        _: &SpanHandle,
    ) -> Result<Option<(CacheMeta, HitHandler)>> {
        let id = tag.and_then(|tag| tag.try_into().ok()).map(u64::from_be_bytes);
        let fill = id.and_then(|id| self.fills.lock().get(&id).cloned());
        Ok(fill.map(|fill| {
            let meta = meta(self, &fill.head);
            (meta, Box::new(Handler(Source::Filling(Reader::leader(fill)))) as HitHandler)
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
        });
        let id = self.next_fill();
        let fill = Fill::new(id, head, decision.terms, Some(room));
        let hash = key.combined_bin();
        self.fills.lock().insert(id, fill.clone());
        let weight = weight(&fill.head.response);
        self.map.update(hash, self.clock().now(), |there| {
            let before = match there {
                Some(Slot::Whole(stored)) => Some(stored.clone()),
                Some(Slot::Filling(_, before)) => before.clone(),
                None => None,
            };
            let weight = weight + before.as_ref().map_or(0, Stored::weight);
            let expires = Some(fill.head.life.kept().max(self.clock().now().after(super::LONGEST_FILL)));
            (Change::Put { value: Slot::Filling(fill.clone(), before), weight, expires }, ())
        });
        let tag = id.to_be_bytes();
        Ok(Box::new(Writer { cache: self, primary: key.primary_bin(), hash, fill, tag, finished: false }))
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
            let same = |slot: &&Slot| validated(slot.head());
            let Some(Slot::Whole(stored)) = there.filter(same) else {
                return (Change::Keep, false);
            };
            let mut response = compact(meta.response_header());
            set_length(&mut response, stored.content.length);
            let head = Head {
                key: stored.head.key.clone(),
                variance: stored.head.variance,
                response,
                nominated: stored.head.nominated.clone(),
                life: decision.life,
                created: stored.head.created,
            };
            let stored = Stored { head: Arc::new(head), content: stored.content.clone() };
            let (weight, expires) = (stored.weight(), Some(stored.head.life.kept()));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(pieces: &[&'static str]) -> Hit {
        let content = Content {
            pieces: pieces.iter().map(|piece| Bytes::from_static(piece.as_bytes())).collect(),
            length: pieces.iter().map(|piece| piece.len() as u64).sum(),
            coded: Default::default(),
        };
        let response = pingora::http::ResponseHeader::build(200, None).unwrap();
        let head = Head {
            key: Box::from(*b"k"),
            variance: None,
            response,
            nominated: Arc::from([]),
            life: super::super::policy::a_minute(),
            created: std::time::SystemTime::now(),
        };
        Hit::new(Stored { head: Arc::new(head), content: Arc::new(content) })
    }

    #[test]
    fn parts_are_cut_from_the_pieces() {
        let whole = "0123456789";
        for start in 0..10 {
            for end in start + 1..=10 {
                let mut hit = hit(&["01", "2345", "6", "789"]);
                hit.seek(start as u64, Some(end as u64));
                let mut out = String::new();
                while let Some(bytes) = hit.next() {
                    out.push_str(std::str::from_utf8(&bytes).unwrap());
                }
                assert_eq!(out, whole[start..end], "{start}..{end}");
            }
        }
        let mut empty = hit(&[]);
        assert_eq!(empty.next(), None);
    }
}
