//! What is stored, by host and target and by tag: so that a purge costs what it matches, and not what is stored.
//!
//! An entry is listed while a head refers to its [`Listing`], and no longer. Hits do not come here.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;
use pingora::cache::key::HashBinary;

use crate::memory::tags::{self, BITE, Tagged, Tags};

/// Where a listed entry stands in the store.
pub type Listed = tags::Found<HashBinary>;

/// One target, and which of its variants: by its number.
type Spot = (Arc<str>, u64);

type Hosts = BTreeMap<Arc<str>, BTreeMap<Spot, HashBinary>>;

/// What a place among the targets of a host costs beside the target, what the host itself costs, and what a
/// listing does.
const SPOT: usize = 112;
const HOST: usize = 700;
const LISTING: usize = 112;

/// All that is listed.
#[derive(Default)]
pub struct Index {
    hosts: Mutex<Hosts>,
    tags: Arc<Tags<HashBinary>>,
}

/// One entry; it is listed until this is dropped.
pub struct Listing {
    index: Arc<Index>,
    host: Arc<str>,
    target: Arc<str>,
    tagged: Tagged<HashBinary>,
    weight: u32,
}

impl std::fmt::Debug for Listing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Listing").field(&self.number()).finish()
    }
}

impl Index {
    /// Lists an entry.
    pub fn list(self: &Arc<Self>, host: &str, target: &str, tags: &[String], place: HashBinary) -> Listing {
        let tagged = self.tags.list(tags, place);
        let target: Arc<str> = target.into();
        let mut weight = LISTING + SPOT + target.len();
        let mut hosts = self.hosts.lock();
        let known = hosts.get_key_value(host).map(|(host, _)| host.clone());
        if known.is_none() {
            weight += HOST + host.len();
        }
        let host = known.unwrap_or_else(|| host.into());
        hosts.entry(host.clone()).or_default().insert((target.clone(), tagged.number()), place);
        drop(hosts);
        Listing { index: self.clone(), host, target, tagged, weight: weight as u32 }
    }

    /// Whether nothing is listed.
    pub fn is_empty(&self) -> bool {
        self.tags.is_empty() && self.hosts.lock().is_empty()
    }

    /// Calls for each entry that has this tag, without a lock held meanwhile.
    pub fn tagged(&self, tag: &str, each: impl FnMut(Listed)) {
        self.tags.each(tag, each);
    }

    /// Calls for each entry whose target fits, on this host or on any, without a lock held meanwhile.
    pub fn under(&self, host: Option<&str>, fits: Fits<'_>, mut each: impl FnMut(Listed)) {
        if let Some(host) = host {
            return self.on(host, fits, &mut each);
        }
        let mut next = self.hosts.lock().keys().next().cloned();
        while let Some(host) = next {
            self.on(&host, fits, &mut each);
            let after = (Bound::Excluded(&*host), Bound::Unbounded);
            next = self.hosts.lock().range::<str, _>(after).next().map(|(host, _)| host.clone());
        }
    }

    fn on(&self, host: &str, fits: Fits<'_>, each: &mut impl FnMut(Listed)) {
        let mut from = Bound::Included((Arc::from(fits.text()), 0));
        loop {
            let (bite, last) = {
                let hosts = self.hosts.lock();
                let Some(targets) = hosts.get(host) else { return };
                let rest = targets.range((from, Bound::Unbounded)).take(BITE);
                let fitting: Vec<_> = rest.take_while(|((target, _), _)| fits.fit(target)).collect();
                let last = fitting.last().map(|(spot, _)| (*spot).clone());
                let listed = fitting.into_iter().map(|(spot, place)| Listed { number: spot.1, place: *place });
                (listed.collect::<Vec<_>>(), last)
            };
            bite.into_iter().for_each(&mut *each);
            let Some(last) = last else { return };
            from = Bound::Excluded(last);
        }
    }
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
        self.tagged.number()
    }

    /// The host.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Path and query.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Its tags.
    pub fn tags(&self) -> impl Iterator<Item = &str> {
        self.tagged.names()
    }

    /// What it weighs in memory.
    pub fn weight(&self) -> u64 {
        u64::from(self.weight) + self.tagged.weight()
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        let mut hosts = self.index.hosts.lock();
        if let Some(targets) = hosts.get_mut(&self.host) {
            targets.remove(&(self.target.clone(), self.number()));
            if targets.is_empty() {
                hosts.remove(&self.host);
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
        assert!(index.is_empty());
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
