//! One shard: a table, the two queues of S3-FIFO, and a heap of expiry times.
//!
//! S3-FIFO (Yang et al., SOSP 2023): newcomers wait in a small queue; who is used
//! there moves to the main queue, who is not leaves but is remembered for a while
//! and goes straight to the main queue when it comes back. A hit only raises a
//! counter, so reading needs no exclusive lock.
//!
//! Queues and heap may name entries that are gone: each entry has a number of its own
//! (its generation), which tells. They are cleaned once they hold twice as many places as there are entries.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use hashbrown::HashTable;

use crate::clock::Moment;

#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    index: u32,
    generation: u32,
}

struct Node<K, V> {
    hash: u64,
    key: K,
    value: V,
    weight: u64,
    expires: Option<Moment>,
    uses: AtomicU8,
    main: bool,
}

pub(super) struct Shard<K, V> {
    table: HashTable<u32>,
    nodes: Vec<(u32, Option<Node<K, V>>)>,
    free: Vec<u32>,
    generation: u32,
    latest: Place,
    small: VecDeque<Place>,
    main: VecDeque<Place>,
    small_weight: u64,
    weight: u64,
    ghosts: VecDeque<u64>,
    ghost_set: HashSet<u64, ahash::RandomState>,
    expiry: BinaryHeap<Reverse<(Moment, Place)>>,
}

const MOST_USES: u8 = 3;

impl<K: AsRef<[u8]>, V> Shard<K, V> {
    pub fn new() -> Self {
        Shard {
            table: HashTable::new(),
            nodes: Vec::new(),
            free: Vec::new(),
            generation: 0,
            latest: Place::default(),
            small: VecDeque::new(),
            main: VecDeque::new(),
            small_weight: 0,
            weight: 0,
            ghosts: VecDeque::new(),
            ghost_set: HashSet::default(),
            expiry: BinaryHeap::new(),
        }
    }

    pub fn weight(&self) -> u64 {
        self.weight
    }

    /// What the entry weighs that was put in last, if it is still there.
    pub fn latest_weight(&self) -> u64 {
        self.at(self.latest).map_or(0, |node| node.weight)
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    #[cfg(test)]
    pub fn bookkeeping(&self) -> usize {
        self.small.len() + self.main.len() + self.expiry.len() + self.nodes.len() + self.ghosts.len()
    }

    fn node(&self, index: u32) -> Option<&Node<K, V>> {
        self.nodes.get(index as usize)?.1.as_ref()
    }

    fn find(&self, hash: u64, key: &[u8]) -> Option<u32> {
        let same = |index: &u32| self.node(*index).is_some_and(|node| node.hash == hash && node.key.as_ref() == key);
        self.table.find(hash, same).copied()
    }

    fn at(&self, place: Place) -> Option<&Node<K, V>> {
        let (generation, node) = self.nodes.get(place.index as usize)?;
        node.as_ref().filter(|_| *generation == place.generation)
    }

    /// The value, without counting it as used.
    pub fn peek(&self, hash: u64, key: &[u8], now: Moment) -> Option<&V> {
        self.current(hash, key, now).map(|node| &node.value)
    }

    fn current(&self, hash: u64, key: &[u8], now: Moment) -> Option<&Node<K, V>> {
        self.node(self.find(hash, key)?).filter(|node| node.expires.is_none_or(|at| at > now))
    }

    pub fn get(&self, hash: u64, key: &[u8], now: Moment) -> Option<&V> {
        let node = self.current(hash, key, now)?;
        let uses = node.uses.load(Relaxed);
        if uses < MOST_USES {
            node.uses.store(uses + 1, Relaxed);
        }
        Some(&node.value)
    }

    /// Puts an entry in and hands back the value it replaces.
    pub fn put(&mut self, hash: u64, key: K, value: V, weight: u64, expires: Option<Moment>) -> Option<V> {
        if let Some(index) = self.find(hash, key.as_ref()) {
            let (generation, node) = &mut self.nodes[index as usize];
            let node = node.as_mut()?;
            self.weight = self.weight - node.weight + weight;
            if !node.main {
                self.small_weight = self.small_weight - node.weight + weight;
            }
            node.weight = weight;
            node.expires = expires;
            let place = Place { index, generation: *generation };
            let old = std::mem::replace(&mut node.value, value);
            self.latest = place;
            self.expire_at(place, expires);
            return Some(old);
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.nodes.push((0, None));
            (self.nodes.len() - 1) as u32
        });
        let main = self.ghost_set.remove(&hash);
        self.generation = self.generation.wrapping_add(1);
        let place = Place { index, generation: self.generation };
        self.nodes[index as usize].0 = self.generation;
        self.nodes[index as usize].1 = Some(Node { hash, key, value, weight, expires, uses: AtomicU8::new(0), main });
        let nodes = &self.nodes;
        let hash_of = |index: &u32| nodes[*index as usize].1.as_ref().map_or(0, |node| node.hash);
        self.table.insert_unique(hash, index, hash_of);
        self.weight += weight;
        if main {
            self.main.push_back(place);
        } else {
            self.small_weight += weight;
            self.small.push_back(place);
        }
        self.latest = place;
        self.expire_at(place, expires);
        self.tidy();
        None
    }

    fn expire_at(&mut self, place: Place, expires: Option<Moment>) {
        if let Some(at) = expires {
            self.expiry.push(Reverse((at, place)));
            if self.expiry.len() > 2 * self.table.len() + 64 {
                let heap = std::mem::take(&mut self.expiry);
                let current = |Reverse((at, place)): &Reverse<(Moment, Place)>| {
                    self.at(*place).is_some_and(|node| node.expires == Some(*at))
                };
                self.expiry = heap.into_iter().filter(current).collect();
            }
        }
    }

    pub fn remove(&mut self, hash: u64, key: &[u8]) -> Option<V> {
        let index = self.find(hash, key)?;
        self.take(index).map(|node| node.value)
    }

    fn take(&mut self, index: u32) -> Option<Node<K, V>> {
        let node = self.nodes[index as usize].1.take()?;
        self.free.push(index);
        if let Ok(entry) = self.table.find_entry(node.hash, |there| *there == index) {
            entry.remove();
        }
        self.weight -= node.weight;
        if !node.main {
            self.small_weight -= node.weight;
        }
        Some(node)
    }

    /// Takes out the entry that is least worth its room; if asked to, not the one that was just put in.
    pub fn evict(&mut self, spare_latest: bool) -> Option<V> {
        let mut spared_newcomer = None;
        // Each turn evicts, drops a stale place, moves a newcomer on, lowers a counter or spares the latest, behind which
        // there is another entry: this ends.
        loop {
            let newcomers = self.main.is_empty() || self.small_weight * 10 > self.weight;
            let newcomers = spared_newcomer.map_or(newcomers, |newcomer: bool| !newcomer);
            let place = match newcomers {
                true => self.small.pop_front().or_else(|| self.main.pop_front())?,
                false => self.main.pop_front().or_else(|| self.small.pop_front())?,
            };
            let Some(node) = self.at(place) else { continue };
            if spare_latest && place == self.latest {
                // The other queue is looked at next.
                spared_newcomer = Some(!node.main);
                let queue = if node.main { &mut self.main } else { &mut self.small };
                queue.push_back(place);
                if self.table.len() == 1 {
                    return None;
                }
                continue;
            }
            let uses = node.uses.load(Relaxed);
            let (main, weight, hash) = (node.main, node.weight, node.hash);
            if uses == 0 {
                if !main {
                    self.remember(hash);
                }
                return self.take(place.index).map(|node| node.value);
            }
            // A newcomer that was used a lot is not the first to go among the old ones.
            node.uses.store(uses - 1, Relaxed);
            if !main {
                self.small_weight -= weight;
                if let Some(node) = self.nodes[place.index as usize].1.as_mut() {
                    node.main = true;
                }
            }
            self.main.push_back(place);
        }
    }

    fn remember(&mut self, hash: u64) {
        if self.ghost_set.insert(hash) {
            self.ghosts.push_back(hash);
        }
        while self.ghosts.len() > self.table.len() + 16 {
            if let Some(oldest) = self.ghosts.pop_front() {
                self.ghost_set.remove(&oldest);
            }
        }
    }

    /// Takes out up to `most` entries that have expired.
    pub fn sweep(&mut self, now: Moment, most: usize) -> Vec<V> {
        let mut gone = Vec::new();
        while gone.len() < most {
            match self.expiry.peek() {
                Some(Reverse((at, _))) if *at <= now => {}
                _ => break,
            }
            let Some(Reverse((at, place))) = self.expiry.pop() else { break };
            if self.at(place).is_some_and(|node| node.expires == Some(at)) {
                gone.extend(self.take(place.index).map(|node| node.value));
            }
        }
        if !gone.is_empty() {
            self.tidy();
        }
        gone
    }

    /// Forgets places of entries that are gone, once there are too many of them.
    fn tidy(&mut self) {
        let most = 2 * self.table.len() + 64;
        for main in [false, true] {
            let queue = if main { &mut self.main } else { &mut self.small };
            if queue.len() > most {
                let mut kept = std::mem::take(queue);
                kept.retain(|place| self.at(*place).is_some_and(|node| node.main == main));
                if main {
                    self.main = kept;
                } else {
                    self.small = kept;
                }
            }
        }
        if self.free.len() > most {
            self.shrink();
        }
    }

    /// Gives back node slots at the end of the slab that nobody uses.
    fn shrink(&mut self) {
        while self.nodes.last().is_some_and(|(_, node)| node.is_none()) {
            self.nodes.pop();
        }
        let len = self.nodes.len() as u32;
        self.free.retain(|index| *index < len);
        self.nodes.shrink_to(self.nodes.len() * 2);
        self.free.shrink_to(self.free.len() * 2);
        let nodes = &self.nodes;
        let hash_of = |index: &u32| nodes[*index as usize].1.as_ref().map_or(0, |node| node.hash);
        self.table.shrink_to(self.table.len() * 2, hash_of);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_is_used_a_lot_makes_room_for_the_latest_too() {
        let now = Moment::default();
        let mut shard = Shard::new();
        shard.put(1, b"a", "a", 10, None);
        assert_eq!(shard.evict(false), Some("a"));
        shard.put(2, b"x", "x", 10, None);
        for _ in 0..3 {
            shard.get(2, b"x", now);
        }
        // It comes back, so it goes straight to the main queue, where the other one moves behind it.
        shard.put(1, b"a", "a", 10, None);
        assert_eq!(shard.evict(true), Some("x"));
        assert_eq!(shard.evict(true), None, "it is the only one");
        assert_eq!(shard.evict(false), Some("a"));
    }
}
