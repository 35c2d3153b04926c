//! Reads what is stored, or still arriving, for the engine, in a coding of it too.

use std::any::Any;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use pingora::Result;
use pingora::cache::CacheKey;
use pingora::cache::key::HashBinary;
use pingora::cache::storage::{HandleHit, Storage};
use pingora::cache::trace::SpanHandle;

use super::Cache;
use super::coded::{self, Coded, Maker};
use super::fill::{Fill, Reader, Terms};
use super::stored::{Content, Head, Stored};
use crate::filter::ContentFilter;

/// How long readers of a copy wait for its next piece: it is made of what is there.
const COPY_PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

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
    /// Reads what stands there complete.
    pub(super) fn whole(stored: Stored, cache: &'static Cache, hash: HashBinary) -> Self {
        Handler(Source::Whole(Hit::new(stored), Place { cache, hash }))
    }

    /// Reads what arrives there.
    pub(super) fn filling(reader: Reader, cache: &'static Cache, hash: HashBinary) -> Self {
        Handler(Source::Filling(reader, Place { cache, hash }))
    }

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
