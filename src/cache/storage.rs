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
use super::coded::{self, Coded, Maker};
use super::fill::{Fill, Reader, Terms, Written};
use super::index::Listing;
use super::parts::{Seed, Sheet};
use super::policy::Life;
use super::slice::Slice;
use super::stored::{Content, Head, Stored, compact};
use super::vary::Nominated;
use crate::clock::Moment;
use crate::filter::ContentFilter;
use crate::memory::Change;

/// How long readers of a copy wait for its next piece: it is made of what is there.
const COPY_PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

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
    Filling(Reader, Place),
    Nothing,
}

/// What a copy in a coding would be made of.
struct Copying {
    place: Place,
    head: Arc<Head>,
    coded: Arc<Coded>,
    of: Of,
    /// The longest it may become.
    limit: u64,
    /// What is set aside for it from the beginning.
    room: u64,
    patience: std::time::Duration,
}

enum Of {
    Whole(Stored),
    Arriving(Arc<Fill>),
}

/// A coding may add a little to what it cannot shrink.
fn most(length: u64) -> u64 {
    length + length / 8 + (64 << 10)
}

impl Copying {
    /// Whether a copy could be made now, and kept.
    fn has_room(&self) -> bool {
        let cache = self.place.cache;
        let weight = match &self.of {
            Of::Whole(stored) => stored.weight() + self.limit,
            Of::Arriving(_) => most(self.room),
        };
        cache.map.fits(0, weight) && cache.ledger.fits(self.room)
    }
}

/// Where a response stands.
#[derive(Debug, Clone, Copy)]
struct Place {
    cache: &'static Cache,
    hash: HashBinary,
}

impl Handler {
    /// The head that was found.
    pub fn head(&self) -> Option<&Arc<Head>> {
        match &self.0 {
            Source::Whole(hit, _) => Some(&hit.stored.head),
            Source::Filling(reader, _) => Some(&reader.fill.head),
            Source::Nothing => None,
        }
    }

    /// The fill it reads, if it is one.
    pub fn fill(&self) -> Option<&Arc<Fill>> {
        match &self.0 {
            Source::Filling(reader, _) => Some(&reader.fill),
            _ => None,
        }
    }

    /// Whether a coding of the content would be shared with others: it comes whole from the store or
    /// arrives on behalf of another request, and there is room for it.
    pub fn shared(&self) -> bool {
        self.copying().is_some_and(|copying| copying.coded.any() || copying.has_room())
    }

    /// What a copy would be made of, and how it is bounded; `None` for what is nobody else's.
    fn copying(&self) -> Option<Copying> {
        match &self.0 {
            Source::Whole(hit, place) => {
                let Stored { head, content } = &hit.stored;
                Some(Copying {
                    place: *place,
                    head: head.clone(),
                    coded: content.coded.clone(),
                    limit: most(content.length),
                    room: content.length,
                    patience: COPY_PATIENCE,
                    of: Of::Whole(hit.stored.clone()),
                })
            }
            Source::Filling(reader, place) if reader.joined() => {
                let fill = &reader.fill;
                Some(Copying {
                    place: *place,
                    head: fill.head.clone(),
                    coded: fill.coded.clone(),
                    limit: fill.length().map_or(fill.limit() + (64 << 10), most),
                    // Without a length, room is taken as it is needed.
                    room: fill.length().unwrap_or(0),
                    patience: fill.patience(),
                    of: Of::Arriving(fill.clone()),
                })
            }
            _ => None,
        }
    }

    /// From here on gives the content in this coding: the copy that is kept, whose length it says, or
    /// the one that is being made. Without one, the filter makes it now; for a `HEAD` nobody does.
    /// `Err` gives the filter back: what is read is nobody else's, or there is no room for a copy.
    pub fn recode(
        &mut self,
        coding: &'static str,
        filter: Box<dyn ContentFilter>,
        head_only: bool,
    ) -> Result<Option<u64>, Box<dyn ContentFilter>> {
        let Some(copying) = self.copying() else { return Err(filter) };
        let (place, coded) = (copying.place, copying.coded.clone());
        let mut begun = None;
        // Weighed before the copies are locked, and only where one might have to be begun.
        let may_begin = !head_only && !coded.has(coding) && copying.has_room();
        let found = coded.copy(coding, || {
            let room = may_begin.then(|| place.cache.ledger.reserve(copying.room))??;
            let terms = Terms { length: None, limit: copying.limit, patience: copying.patience };
            let fill = Fill::new(place.cache.next_fill(), copying.head.clone(), terms, Some(room));
            begun = Some(fill.clone());
            Some(fill)
        });
        match found {
            None if head_only => return Ok(None),
            None => return Err(filter),
            Some(coded::Found::There(content)) => {
                let length = content.length;
                self.0 = Source::Whole(Hit::new(Stored { head: copying.head, content }), place);
                return Ok(Some(length));
            }
            Some(coded::Found::Making(reader)) => self.0 = Source::Filling(reader, place),
        }
        if let Some(fill) = begun {
            let (source, keep) = match copying.of {
                Of::Whole(stored) => (coded::Source::Whole(stored.content), true),
                // The filter flushes what has no length.
                Of::Arriving(plain) => {
                    (coded::Source::Arriving(Reader::joiner(plain.clone())), plain.length().is_some())
                }
            };
            let maker = Maker { source, filter, fill, coded: coded.clone(), keep, over: false };
            // Its first reader may leave; it goes on for the others.
            tokio::spawn(async move {
                if maker.make().await {
                    place.cache.weigh_again(place.hash, &coded);
                }
            });
        }
        Ok(None)
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
            Source::Filling(reader, _) => reader.next().await,
            Source::Nothing => Ok(None),
        }
    }

    async fn finish(self: Box<Self>, _: &'static (dyn Storage + Sync), _: &CacheKey, _: &SpanHandle) -> Result<()> {
        Ok(())
    }

    fn can_seek(&self) -> bool {
        match &self.0 {
            Source::Whole(..) => true,
            Source::Filling(reader, _) => reader.can_seek(),
            Source::Nothing => false,
        }
    }

    fn seek(&mut self, start: usize, end: Option<usize>) -> Result<()> {
        let (start, end) = (start as u64, end.map(|end| end as u64));
        match &mut self.0 {
            Source::Whole(hit, _) => {
                hit.seek(start, end);
                Ok(())
            }
            Source::Filling(reader, _) => reader.seek(start, end),
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
pub(super) struct Writer {
    cache: &'static Cache,
    primary: HashBinary,
    hash: HashBinary,
    fill: Arc<Fill>,
    tag: [u8; 8],
    finished: bool,
    /// What stands behind all that comes.
    after: Vec<Bytes>,
}

impl Writer {
    pub(super) fn new(cache: &'static Cache, primary: HashBinary, hash: HashBinary, fill: Arc<Fill>) -> Self {
        let tag = fill.id.to_be_bytes();
        Writer { cache, primary, hash, fill, tag, finished: false, after: Vec::new() }
    }

    /// Begins with what is stored already.
    fn seeded(mut self, seed: Option<Seed>) -> Self {
        let Seed { before, after } = seed.unwrap_or_default();
        for piece in before {
            self.write(piece);
        }
        self.after = after;
        self
    }

    /// Takes the next piece.
    pub(super) fn write(&mut self, piece: Bytes) -> Written {
        let written = self.fill.write(piece);
        if written == Written::Outgrown {
            self.cache.outgrown(self.primary);
            self.cache.give_up(self.hash, &self.fill);
        }
        written
    }

    /// That was all; how long it was, if it is stored.
    pub(super) fn finish(mut self) -> u64 {
        for piece in std::mem::take(&mut self.after) {
            self.write(piece);
        }
        self.finished = true;
        match self.fill.complete() {
            Some(content) => {
                let length = content.length;
                self.cache.publish(self.primary, self.hash, &self.fill, content);
                length
            }
            None => {
                self.cache.give_up(self.hash, &self.fill);
                0
            }
        }
    }
}

#[async_trait]
impl HandleMiss for Writer {
    async fn write_body(&mut self, data: Bytes, _: bool) -> Result<()> {
        match self.write(data) {
            Written::Kept | Written::Outgrown => Ok(()),
            Written::Pointless => Error::e_explain(ErrorType::WriteError, "nobody reads it and it cannot be stored"),
        }
    }

    async fn finish(self: Box<Self>) -> Result<MissFinishType> {
        Ok(MissFinishType::Created(Writer::finish(*self) as usize))
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
    fn weigh_again(&self, hash: HashBinary, coded: &Arc<Coded>) {
        self.map.update(hash, self.clock().now(), |there| match there {
            Some(Slot::Whole(same)) if Arc::ptr_eq(&same.content.coded, coded) => {
                let (weight, expires) = (self.weigh(same), Some(same.head.life.kept()));
                (Change::Put { value: Slot::Whole(same.clone()), weight, expires }, ())
            }
            _ => (Change::Keep, ()),
        });
    }

    /// The response will not be stored: its place goes back to what was there before.
    fn give_up(&self, hash: HashBinary, fill: &Arc<Fill>) {
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
        let Some(slot) = self.map.get(&hash, self.clock().now()) else { return Ok(None) };
        if slot.head().is_none_or(|head| *head.key != *key.primary_key()) {
            return Ok(None);
        }
        let place = Place { cache: self, hash };
        let source = match slot {
            Slot::Whole(stored) => Source::Whole(Hit::new(stored), place),
            Slot::Filling(fill, _) if fill.joinable() => Source::Filling(Reader::joiner(fill), place),
            _ => return Ok(None),
        };
        let handler = Handler(source);
        let found = handler.head().map(|head| meta(self, head));
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
            let place = Place { cache: self, hash: key.combined_bin() };
            (meta, Box::new(Handler(Source::Filling(Reader::leader(fill), place))) as HitHandler)
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
            listing: Arc::new(Arc::new(super::super::index::Index::default()).list("", "", &[], [0; 16])),
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
