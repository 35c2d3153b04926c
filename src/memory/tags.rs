//! Which entries have which tag: all that have one are found at the cost of what is found, and not of what is kept.
//!
//! An entry is listed as long as its [`Tagged`] lives, and no longer. Who only reads entries does not come here.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ahash::RandomState;
use parking_lot::Mutex;

const SHARDS: usize = 16;

/// Nobody waits for a lock longer than it takes to look at so many.
pub const BITE: usize = 256;

/// What the first entry with a tag costs (the tag's own place and a tree of one leaf), and each further one.
const FIRST: usize = 400;
const FURTHER: usize = 64;

type Families<P> = HashMap<Arc<str>, BTreeMap<u64, P>, RandomState>;

/// All tags. `P` says where an entry stands.
pub struct Tags<P> {
    shards: [Mutex<Families<P>>; SHARDS],
    hasher: RandomState,
    numbers: AtomicU64,
}

/// The tags of one entry; it is listed under them until this is dropped.
pub struct Tagged<P> {
    all: Arc<Tags<P>>,
    number: u64,
    names: Box<[Arc<str>]>,
    weight: u32,
}

/// An entry that was found; at its place there may be one of another number meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found<P> {
    /// The number that it was listed with.
    pub number: u64,
    /// Where it stands.
    pub place: P,
}

impl<P> Default for Tags<P> {
    fn default() -> Self {
        Tags {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            numbers: AtomicU64::new(1),
        }
    }
}

impl<P> Tags<P> {
    fn shard(&self, tag: &str) -> &Mutex<Families<P>> {
        &self.shards[(self.hasher.hash_one(tag) >> 48) as usize % SHARDS]
    }
}

impl<P: Clone> Tags<P> {
    /// Lists an entry under these tags, each of which comes once. It has a number even without any.
    pub fn list(self: &Arc<Self>, tags: &[String], place: P) -> Tagged<P> {
        let number = self.numbers.fetch_add(1, Relaxed);
        let mut weight = 0;
        let names = tags
            .iter()
            .map(|tag| {
                let mut shard = self.shard(tag).lock();
                let known = shard.get_key_value(&**tag).map(|(name, _)| name.clone());
                weight += if known.is_some() { FURTHER } else { FIRST + tag.len() };
                let name = known.unwrap_or_else(|| Arc::from(&**tag));
                shard.entry(name.clone()).or_default().insert(number, place.clone());
                name
            })
            .collect();
        Tagged { all: self.clone(), number, names, weight: weight as u32 }
    }

    /// Calls for each entry that has this tag, without a lock held meanwhile.
    pub fn each(&self, tag: &str, mut call: impl FnMut(Found<P>)) {
        let mut after = 0;
        loop {
            let bite: Vec<_> = {
                let shard = self.shard(tag).lock();
                let Some(family) = shard.get(tag) else { return };
                let rest = family.range((Bound::Excluded(after), Bound::Unbounded)).take(BITE);
                rest.map(|(number, place)| Found { number: *number, place: place.clone() }).collect()
            };
            let Some(last) = bite.last() else { return };
            after = last.number;
            bite.into_iter().for_each(&mut call);
        }
    }

    /// Whether nothing is listed under any tag.
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.lock().is_empty())
    }
}

impl<P> Tagged<P> {
    /// Tells it from all others.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The tags.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }

    /// What the listing weighs in memory.
    pub fn weight(&self) -> u64 {
        u64::from(self.weight)
    }
}

impl<P> Drop for Tagged<P> {
    fn drop(&mut self) {
        for name in &self.names {
            let mut shard = self.all.shard(name).lock();
            if let Some(family) = shard.get_mut(name) {
                family.remove(&self.number);
                if family.is_empty() {
                    shard.remove(name);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn what_is_listed_is_found_and_what_is_dropped_is_not() {
        let tags = Arc::new(Tags::default());
        let found = |tag: &str| {
            let mut places = Vec::new();
            tags.each(tag, |found| places.push(found.place));
            places
        };
        let first = tags.list(&names(&["t"]), 1);
        let second = tags.list(&names(&["t", "u"]), 2);
        let third = tags.list(&names(&["u"]), 3);
        assert_eq!((found("t"), found("u"), found("v")), (vec![1, 2], vec![2, 3], vec![]));
        assert_eq!(second.names().collect::<Vec<_>>(), ["t", "u"]);
        assert!(first.weight() > third.weight(), "who comes first brings the tag along");
        drop(first);
        assert_eq!((found("t"), found("u")), (vec![2], vec![2, 3]));
        drop((second, third));
        assert!(tags.is_empty());
    }

    #[test]
    fn many_are_found_a_bite_at_a_time() {
        let tags = Arc::new(Tags::default());
        let all: Vec<_> = (0..5000u32).map(|n| tags.list(&names(&["t"]), n)).collect();
        let mut seen = Vec::new();
        tags.each("t", |found| seen.push(found.place));
        assert_eq!(seen, (0..5000).collect::<Vec<_>>());
        drop(all);
    }
}
