//! What is stored in a simulation: the proxy's keys, map, variants and weights, without contents.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::HeaderMap;
use http::header::DATE;
use pingora::cache::CacheKey;
use pingora::cache::key::{CacheHashKey, HashBinary};
use pingora::http::ResponseHeader;

use crate::cache::Limits;
use crate::cache::families::Families;
use crate::cache::index::Index;
use crate::cache::key::{Keys, Parts, read};
use crate::cache::policy::Life;
use crate::cache::stored::{Content, Head, Stored, compact};
use crate::cache::vary::{Chosen, variant};
use crate::clock::Moment;
use crate::fields::{authority, tags, vary};
use crate::memory::{Change, Memory, Usage};

/// Bytes for what is remembered of variants.
const FAMILIES: u64 = 16 << 20;
/// Pieces of content as they usually arrive.
const PIECE: u64 = 32 << 10;
/// A field that every response has; only its length counts.
const A_DATE: &str = "Thu, 01 Jan 1970 00:00:00 GMT";

/// What is stored.
#[derive(Clone)]
pub struct Kept {
    /// The response; its pieces are empty, its length is not.
    pub stored: Stored,
    /// It was brought in behind clients that got its stale predecessor.
    pub behind: bool,
}

/// A response that is to be stored.
pub struct New<'a> {
    /// The fields of the request that brought it in.
    pub request: &'a HeaderMap,
    /// What the route adds to the fields that choose.
    pub chosen: &'a Chosen,
    /// Its head.
    pub response: ResponseHeader,
    /// The length of its content.
    pub length: u64,
    /// Until when it may be used.
    pub life: Life,
    /// See [`Kept::behind`].
    pub behind: bool,
}

/// The store.
pub struct Stock {
    keys: Keys,
    map: Memory<HashBinary, Kept>,
    families: Families,
    index: Arc<Index>,
}

impl Stock {
    /// An empty one.
    pub fn new(limits: &Limits) -> Self {
        Stock {
            keys: Keys::new(),
            map: Memory::new(limits.memory),
            families: Families::new(FAMILIES, limits.max_variants),
            index: Arc::default(),
        }
    }

    /// How much is stored.
    pub fn usage(&self) -> Usage {
        self.map.usage()
    }

    /// Gives back the memory of what is of no use any more.
    pub fn sweep(&self, now: Moment) {
        self.map.sweep(now);
        self.families.sweep(now);
    }

    /// The key of these parts.
    pub fn key(&self, parts: &Parts<'_>) -> CacheKey {
        self.keys.key(parts)
    }

    /// What is stored under this key for these fields.
    pub fn find(&self, key: &CacheKey, chosen: &Chosen, request: &HeaderMap, now: Moment) -> Option<Kept> {
        let first = self.map.get(&key.primary_bin(), now)?;
        let wanted = variant(&first.stored.head.nominated, chosen, request);
        if wanted == first.stored.head.variance {
            return Some(first);
        }
        self.map.get(&beside(key, wanted?), now)
    }

    /// Stores it.
    pub fn keep(&self, key: &CacheKey, new: New<'_>, now: Moment) {
        let New { request, chosen, mut response, length, life, behind } = new;
        let _ = response.insert_header(DATE, A_DATE);
        let nominated: Arc<[_]> = vary::nominated(&response.headers).unwrap_or_default().into();
        let variance = variant(&nominated, chosen, request);
        let hash = self.place(key, variance, life, now);
        let of = read(key.primary_key());
        let (host, target) = (String::from_utf8_lossy(of.host), String::from_utf8_lossy(of.target));
        let listing = self.index.list(&authority::plain(&host), &target, &tags::of(&response.headers), hash);
        let head = Head {
            key: key.primary_key().into(),
            variance,
            response: compact(&response),
            nominated,
            life,
            created: SystemTime::UNIX_EPOCH,
            listing: Arc::new(listing),
        };
        let pieces = vec![Bytes::new(); length.div_ceil(PIECE) as usize];
        let content = Content { pieces: pieces.into(), length, coded: Arc::default() };
        let kept = Kept { stored: Stored { head: Arc::new(head), content: Arc::new(content) }, behind };
        let weight = kept.stored.weight();
        self.map.put(hash, kept, weight, Some(life.kept()), now);
    }

    /// Where a response stands: the first one of its key, or a variant beside it.
    fn place(&self, key: &CacheKey, variance: Option<HashBinary>, life: Life, now: Moment) -> HashBinary {
        let primary = key.primary_bin();
        let Some(variance) = variance else { return primary };
        let is_first = |there: Option<&Kept>| there.is_none_or(|there| there.stored.head.variance == Some(variance));
        // Looking is no use of it.
        if self.map.update(primary, now, |there| (Change::Keep, is_first(there))) {
            return primary;
        }
        let hash = beside(key, variance);
        for gone in self.families.add(primary, hash, life.kept(), now) {
            self.map.remove(gone, now);
        }
        hash
    }

    /// Takes out what is stored under a key, all variants with it.
    pub fn forget(&self, key: &CacheKey, now: Moment) {
        let primary = key.primary_bin();
        for variant in self.families.take(primary, now).iter() {
            self.map.remove(*variant, now);
        }
        self.map.remove(primary, now);
    }
}

/// The place of a variant.
fn beside(key: &CacheKey, variance: HashBinary) -> HashBinary {
    let mut key = key.clone();
    key.set_variance_key(variance);
    key.combined_bin()
}
