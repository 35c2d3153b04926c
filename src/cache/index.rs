//! What is stored, by host and target and by tag: so that a purge costs what it matches, and not what is stored.
//!
//! An entry is listed while a head refers to its [`Listing`], and no longer. Hits do not come here.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ahash::RandomState;
use parking_lot::Mutex;
use pingora::cache::key::HashBinary;

const SHARDS: usize = 16;

/// Nobody waits for a lock longer than it takes to look at so many.
const BITE: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Path {
    host: Arc<str>,
    target: Arc<str>,
    number: u64,
}

type Tagged = HashMap<Arc<str>, BTreeMap<u64, HashBinary>>;

/// All that is listed.
pub struct Index {
    paths: Mutex<BTreeMap<Path, HashBinary>>,
    tags: [Mutex<Tagged>; SHARDS],
    hasher: RandomState,
    numbers: AtomicU64,
}

/// One entry; it is listed until this is dropped.
pub struct Listing {
    index: Arc<Index>,
    path: Path,
    tags: Box<[Arc<str>]>,
}

impl std::fmt::Debug for Listing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Listing").field(&self.path.number).finish()
    }
}

/// Where a listed entry stands in the store; it may have been replaced meanwhile by one of another number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// The number of its listing.
    pub number: u64,
    /// Its place.
    pub place: HashBinary,
}

impl Default for Index {
    fn default() -> Self {
        Index {
            paths: Mutex::default(),
            tags: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            numbers: AtomicU64::new(1),
        }
    }
}

impl Index {
    fn shard(&self, tag: &str) -> &Mutex<Tagged> {
        &self.tags[self.hasher.hash_one(tag) as usize % SHARDS]
    }

    /// Lists an entry.
    pub fn list(self: &Arc<Self>, host: &str, target: &str, tags: &[String], place: HashBinary) -> Listing {
        let number = self.numbers.fetch_add(1, Relaxed);
        let path = Path { host: host.into(), target: target.into(), number };
        self.paths.lock().insert(path.clone(), place);
        let tags: Box<[Arc<str>]> = tags
            .iter()
            .map(|tag| {
                let mut shard = self.shard(tag).lock();
                let name = shard.get_key_value(&**tag).map_or_else(|| Arc::from(&**tag), |(name, _)| name.clone());
                shard.entry(name.clone()).or_default().insert(number, place);
                name
            })
            .collect();
        Listing { index: self.clone(), path, tags }
    }

    /// Calls for each entry that has this tag, a bite at a time, without a lock held meanwhile.
    pub fn tagged(&self, tag: &str, mut each: impl FnMut(Listed)) {
        let mut after = 0;
        loop {
            let bite: Vec<_> = {
                let shard = self.shard(tag).lock();
                let Some(family) = shard.get(tag) else { return };
                let rest = family.range((Bound::Excluded(after), Bound::Unbounded)).take(BITE);
                rest.map(|(number, place)| Listed { number: *number, place: *place }).collect()
            };
            let Some(last) = bite.last() else { return };
            after = last.number;
            bite.into_iter().for_each(&mut each);
        }
    }

    /// Calls for each entry whose target begins so, on this host or on any, a bite at a time.
    pub fn under(&self, host: Option<&str>, fits: Fits<'_>, mut each: impl FnMut(Listed)) {
        match host {
            Some(host) => self.on(&host.into(), fits, &mut each),
            None => {
                let mut host: Option<Arc<str>> = None;
                while let Some(next) = self.host_after(host.as_ref()) {
                    self.on(&next, fits, &mut each);
                    host = Some(next);
                }
            }
        }
    }

    fn host_after(&self, host: Option<&Arc<str>>) -> Option<Arc<str>> {
        let paths = self.paths.lock();
        let first = match host {
            // No target sorts behind this one: nothing of UTF-8 does.
            Some(host) => paths
                .range((
                    Bound::Included(Path { host: following(host), target: "".into(), number: 0 }),
                    Bound::Unbounded,
                ))
                .next(),
            None => paths.iter().next(),
        };
        first.map(|(path, _)| path.host.clone())
    }

    fn on(&self, host: &Arc<str>, fits: Fits<'_>, each: &mut impl FnMut(Listed)) {
        let mut from = Bound::Included(Path { host: host.clone(), target: fits.text().into(), number: 0 });
        loop {
            let (bite, last) = {
                let paths = self.paths.lock();
                let rest = paths.range((from, Bound::Unbounded)).take(BITE);
                let fitting = rest.take_while(|(path, _)| path.host == *host && fits.fit(&path.target));
                let mut last = None;
                let bite: Vec<_> = fitting
                    .map(|(path, place)| {
                        last = Some(path.clone());
                        Listed { number: path.number, place: *place }
                    })
                    .collect();
                (bite, last)
            };
            bite.into_iter().for_each(&mut *each);
            let Some(last) = last else { return };
            from = Bound::Excluded(last);
        }
    }
}

/// The smallest host behind this one.
fn following(host: &str) -> Arc<str> {
    format!("{host}\0").into()
}

/// Which targets.
#[derive(Debug, Clone, Copy)]
pub enum Fits<'a> {
    /// This one.
    Exactly(&'a str),
    /// All that begin so.
    Beginning(&'a str),
}

impl Fits<'_> {
    fn text(&self) -> &str {
        match self {
            Fits::Exactly(text) | Fits::Beginning(text) => text,
        }
    }

    /// Whether this target is meant.
    pub fn fit(&self, target: &str) -> bool {
        match self {
            Fits::Exactly(text) => target == *text,
            Fits::Beginning(text) => target.starts_with(text),
        }
    }
}

impl Listing {
    /// Tells it from all others.
    pub fn number(&self) -> u64 {
        self.path.number
    }

    /// The host.
    pub fn host(&self) -> &str {
        &self.path.host
    }

    /// Path and query.
    pub fn target(&self) -> &str {
        &self.path.target
    }

    /// Its tags.
    pub fn tags(&self) -> impl Iterator<Item = &str> {
        self.tags.iter().map(|tag| &**tag)
    }

    /// What it weighs in memory.
    pub fn weight(&self) -> u64 {
        let tags: usize = self.tags.iter().map(|tag| tag.len() + 320).sum();
        (self.path.host.len() + self.path.target.len() + 192 + tags) as u64
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.index.paths.lock().remove(&self.path);
        for tag in &self.tags {
            let mut shard = self.index.shard(tag).lock();
            if let Some(family) = shard.get_mut(tag) {
                family.remove(&self.path.number);
                if family.is_empty() {
                    shard.remove(tag);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn what_is_listed_is_found_and_what_is_dropped_is_not() {
        let index = Arc::new(Index::default());
        let listings: Vec<_> = [
            ("a.test", "/x", &["t"][..], 1),
            ("a.test", "/x/1", &["t", "u"], 2),
            ("a.test", "/xy", &[], 3),
            ("b.test", "/x/1", &["u"], 4),
            ("a.test", "/x/1", &[], 5),
        ]
        .into_iter()
        .map(|(host, target, names, place)| index.list(host, target, &tags(names), [place; 16]))
        .collect();
        let under = |host, fits| {
            let mut found = Vec::new();
            index.under(host, fits, |listed| found.push(listed.place[0]));
            found
        };
        let tagged = |tag: &str| {
            let mut found = Vec::new();
            index.tagged(tag, |listed| found.push(listed.place[0]));
            found
        };
        assert_eq!(under(Some("a.test"), Fits::Beginning("/x/")), [2, 5]);
        assert_eq!(under(Some("a.test"), Fits::Beginning("/x")), [1, 2, 5, 3]);
        assert_eq!(under(Some("a.test"), Fits::Exactly("/x")), [1]);
        assert_eq!(under(None, Fits::Exactly("/x/1")), [2, 5, 4]);
        assert_eq!(under(None, Fits::Beginning("")), [1, 2, 5, 3, 4]);
        assert_eq!(under(Some("c.test"), Fits::Beginning("")), [0; 0]);
        assert_eq!((tagged("t"), tagged("u"), tagged("v")), (vec![1, 2], vec![2, 4], vec![]));
        drop(listings);
        assert_eq!(under(None, Fits::Beginning("")), [0; 0]);
        assert_eq!(tagged("t"), [0; 0]);
        assert!(index.tags.iter().all(|shard| shard.lock().is_empty()));
    }

    #[test]
    fn many_are_found_a_bite_at_a_time() {
        let index = Arc::new(Index::default());
        let all: Vec<_> = (0..5000u32)
            .map(|n| {
                let mut place = [0; 16];
                place[..4].copy_from_slice(&n.to_be_bytes());
                index.list("a.test", &format!("/{n:05}"), &tags(&["t"]), place)
            })
            .collect();
        let (mut by_tag, mut by_path) = (0, 0);
        index.tagged("t", |_| by_tag += 1);
        index.under(None, Fits::Beginning("/0"), |_| by_path += 1);
        assert_eq!((by_tag, by_path), (5000, 5000));
        drop(all);
    }
}
