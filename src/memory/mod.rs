//! A sharded map that is bounded by weight and lets entries expire.
//!
//! It knows bytes, not HTTP: a key is bytes, a value is cheap to clone, and what
//! an entry weighs is said by whoever puts it in. Which entry has to go when the
//! budget is used up is decided in `shard.rs`.
//!
//! No lock is held while a value is dropped, and none outlives a call.

mod shard;
pub mod tags;

use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ahash::RandomState;
use parking_lot::RwLock;

use crate::clock::Moment;
use shard::Shard;

const SHARDS: usize = 32;

/// What an entry costs beside its key and value: table slot, places in the queue and the heap, and what vectors that
/// double their room have in reserve.
const OVERHEAD: u64 = 256;

/// What [`Memory::update`] does with the entry it looked at.
pub enum Change<V> {
    /// Leave everything as it is.
    Keep,
    /// Put this value there, replacing what is there.
    Put {
        /// The new value.
        value: V,
        /// Its weight in bytes, without the key.
        weight: u64,
        /// When it stops existing; `None` is never.
        expires: Option<Moment>,
    },
    /// Take the entry out.
    Remove,
}

/// Counts for metrics.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// Bytes in use, overhead included.
    pub bytes: u64,
    /// Entries present, expired ones not yet swept included.
    pub entries: u64,
    /// Entries that had to go for lack of room, since the start.
    pub evicted: u64,
}

/// The map. `K` is the owned key, looked up by its bytes.
pub struct Memory<K, V> {
    shards: Box<[RwLock<Shard<K, V>>]>,
    hasher: RandomState,
    budget: AtomicU64,
    used: AtomicU64,
    evicted: AtomicU64,
}

impl<K: AsRef<[u8]>, V: Clone> Memory<K, V> {
    /// An empty map that will hold at most `budget` bytes.
    pub fn new(budget: u64) -> Self {
        Memory {
            shards: (0..SHARDS).map(|_| RwLock::new(Shard::new())).collect(),
            hasher: RandomState::new(),
            budget: AtomicU64::new(budget),
            used: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    fn shard(&self, hash: u64) -> &RwLock<Shard<K, V>> {
        &self.shards[(hash >> 48) as usize % SHARDS]
    }

    /// The value under `key`, unless it has expired.
    pub fn get(&self, key: &[u8], now: Moment) -> Option<V> {
        let hash = self.hash(key);
        self.shard(hash).read().get(hash, key, now).cloned()
    }

    /// Looks at the entry under `key` and changes it in one step: nobody else gets between.
    ///
    /// What `decide` says besides the change is handed back. A value heavier than
    /// the whole budget is not put in; what was there before goes all the same,
    /// because it is no longer true.
    pub fn update<R>(&self, key: K, now: Moment, decide: impl FnOnce(Option<&V>) -> (Change<V>, R)) -> R {
        let hash = self.hash(key.as_ref());
        let mut gone = Vec::new();
        let (result, grown) = {
            let mut shard = self.shard(hash).write();
            let before = shard.weight();
            let (change, result) = decide(shard.peek(hash, key.as_ref(), now));
            match change {
                Change::Keep => {}
                Change::Remove => gone.extend(shard.remove(hash, key.as_ref())),
                Change::Put { value, weight, expires } => {
                    let fits = self.fits(key.as_ref().len(), weight);
                    let weight = weight + key.as_ref().len() as u64 + OVERHEAD;
                    if !fits {
                        gone.extend(shard.remove(hash, key.as_ref()));
                        gone.push(value);
                    } else {
                        gone.extend(shard.put(hash, key, value, weight, expires));
                    }
                }
            }
            self.account(before, shard.weight());
            (result, shard.weight() > before)
        };
        if grown {
            self.make_room(hash, &mut gone);
        }
        result
    }

    /// Puts a value in, whatever was there.
    pub fn put(&self, key: K, value: V, weight: u64, expires: Option<Moment>, now: Moment) {
        self.update(key, now, |_| (Change::Put { value, weight, expires }, ()));
    }

    /// Takes the entry out and hands it back, unless it had expired.
    pub fn remove(&self, key: K, now: Moment) -> Option<V> {
        self.update(key, now, |there| (Change::Remove, there.cloned()))
    }

    fn account(&self, before: u64, after: u64) {
        if after >= before {
            self.used.fetch_add(after - before, Relaxed);
        } else {
            self.used.fetch_sub(before - after, Relaxed);
        }
    }

    /// Evicts until the budget holds, one entry at a time and from shards that have their share, the one that grew
    /// first: one large newcomer must not clear a shard of what is used all the time.
    fn make_room(&self, hash: u64, gone: &mut Vec<V>) {
        let first = (hash >> 48) as usize % SHARDS;
        let (mut newcomer, mut fair) = (0, true);
        loop {
            let mut found = false;
            for step in 0..SHARDS {
                let used = self.used.load(Relaxed);
                if used <= self.budget.load(Relaxed) {
                    return;
                }
                let mut shard = self.shards[(first + step) % SHARDS].write();
                // The newest entry of the shard that grew stays, or nothing large could ever be kept.
                let grew = step == 0;
                if grew {
                    newcomer = shard.latest_weight();
                }
                let before = shard.weight();
                let others = if grew { before.saturating_sub(newcomer) } else { before };
                if fair && others.saturating_mul(SHARDS as u64) < used.saturating_sub(newcomer) {
                    continue;
                }
                if shard.len() <= usize::from(grew) {
                    continue;
                }
                let Some(value) = shard.evict(grew) else { continue };
                self.account(before, shard.weight());
                self.evicted.fetch_add(1, Relaxed);
                gone.push(value);
                found = true;
            }
            // Others may have changed the shares meanwhile; then whoever has anything gives.
            if !found && !std::mem::take(&mut fair) {
                return;
            }
        }
    }

    /// Gives back the memory of everything that has expired. Returns how many entries went.
    pub fn sweep(&self, now: Moment) -> usize {
        let mut swept = 0;
        for shard in &self.shards {
            loop {
                // A bounded bite at a time, so that nobody waits long for the lock.
                let gone = {
                    let mut shard = shard.write();
                    let before = shard.weight();
                    let gone = shard.sweep(now, 256);
                    self.account(before, shard.weight());
                    gone
                };
                swept += gone.len();
                if gone.len() < 256 {
                    break;
                }
            }
        }
        swept
    }

    /// Whether an entry of this weight, with a key of this length, can be kept at all.
    pub fn fits(&self, key: usize, weight: u64) -> bool {
        weight + key as u64 + OVERHEAD <= self.budget.load(Relaxed)
    }

    /// From now on holds at most so much; what is too much goes at once.
    pub fn set_budget(&self, budget: u64) {
        self.budget.store(budget, Relaxed);
        let mut found = true;
        while found && self.used.load(Relaxed) > budget {
            found = false;
            // One at a time, so that nobody waits long for a lock, from those that have more than their share.
            for shard in &self.shards {
                let gone = {
                    let mut shard = shard.write();
                    let before = shard.weight();
                    if before.saturating_mul(SHARDS as u64) < self.used.load(Relaxed) {
                        continue;
                    }
                    let gone = shard.evict(false);
                    self.account(before, shard.weight());
                    gone
                };
                self.evicted.fetch_add(u64::from(gone.is_some()), Relaxed);
                found |= gone.is_some();
                if self.used.load(Relaxed) <= budget {
                    break;
                }
            }
        }
    }

    /// Bytes that it holds at most.
    pub fn budget(&self) -> u64 {
        self.budget.load(Relaxed)
    }

    /// How much is used.
    pub fn usage(&self) -> Usage {
        Usage {
            bytes: self.used.load(Relaxed),
            entries: self.shards.iter().map(|shard| shard.read().len() as u64).sum(),
            evicted: self.evicted.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use std::sync::Arc;
    use std::time::Duration;

    fn key(n: u32) -> Box<[u8]> {
        format!("key-{n}").into_bytes().into()
    }

    #[test]
    fn keeps_replaces_and_removes() {
        let now = Clock::system().now();
        let map = Memory::new(1 << 20);
        assert_eq!(map.get(b"a", now), None);
        map.put(Box::from(*b"a"), 1, 10, None, now);
        map.put(Box::from(*b"a"), 2, 20, None, now);
        assert_eq!(map.get(b"a", now), Some(2));
        assert_eq!(map.usage().entries, 1);
        assert_eq!(map.usage().bytes, 20 + 1 + OVERHEAD);
        assert_eq!(map.remove(Box::from(*b"a"), now), Some(2));
        assert_eq!(map.remove(Box::from(*b"a"), now), None);
        assert_eq!(map.usage().bytes, 0);
    }

    #[test]
    fn what_has_expired_is_gone_at_once_and_its_memory_after_a_sweep() {
        let now = Clock::system().now();
        let map = Memory::new(1 << 20);
        for n in 0..1000 {
            map.put(key(n), n, 100, Some(now.after(Duration::from_secs(5))), now);
        }
        map.put(key(7), 7, 100, None, now);
        let later = now.after(Duration::from_secs(5));
        assert_eq!(map.get(&key(3), later), None);
        assert_eq!(map.sweep(now), 0);
        assert_eq!(map.sweep(later), 999, "the one put again without expiry stays");
        assert_eq!(map.get(&key(7), later), Some(7));
        assert_eq!(map.usage().entries, 1);
    }

    #[test]
    fn what_is_large_does_not_clear_a_shard_of_what_is_used_often() {
        let now = Clock::system().now();
        let map = Memory::new(64_000);
        let hot: Vec<_> = (0..8).map(|n| format!("hot-{n}").into_bytes().into_boxed_slice()).collect();
        for name in &hot {
            map.put(name.clone(), 0, 100, None, now);
            for _ in 0..3 {
                map.get(name, now);
            }
        }
        for n in 0..2000 {
            // More than a shard's share, now and then.
            map.put(key(n), n, if n % 10 == 0 { 5000 } else { 200 }, None, now);
            hot.iter().for_each(|name| _ = map.get(name, now));
            assert!(map.usage().bytes <= 64_000);
        }
        let alive = hot.iter().filter(|name| map.get(name, now).is_some()).count();
        assert_eq!(alive, 8, "large ones cleared shards of what is used all the time");
    }

    #[test]
    fn the_budget_holds_and_what_is_used_often_stays() {
        let now = Clock::system().now();
        let map = Memory::new(200_000);
        let hot: Vec<_> = (0..20).map(|n| format!("hot-{n}").into_bytes().into_boxed_slice()).collect();
        for name in &hot {
            map.put(name.clone(), 0, 500, None, now);
        }
        for n in 0..20_000 {
            map.put(key(n), n, 500, None, now);
            if n % 10 == 0 {
                hot.iter().for_each(|name| _ = map.get(name, now));
            }
            assert!(map.usage().bytes <= 200_000);
        }
        let alive = hot.iter().filter(|name| map.get(name, now).is_some()).count();
        assert!(alive >= 18, "a scan of 20,000 cold keys threw out the hot ones: {alive} of 20 left");
    }

    #[test]
    fn what_was_just_put_in_is_there() {
        let now = Clock::system().now();
        let map = Memory::new(64 << 20);
        for n in 0..6_000 {
            map.put(key(n), n, 20_000, None, now);
            assert_eq!(map.get(&key(n), now), Some(n));
        }
        for n in 0..100 {
            map.put(key(10_000 + n), n, 300_000, None, now);
            assert_eq!(map.get(&key(10_000 + n), now), Some(n), "larger than a tenth of its shard");
        }
    }

    #[test]
    fn the_budget_holds_for_few_large_values_too() {
        let now = Clock::system().now();
        let map = Memory::new(20 << 20);
        for n in 0..200 {
            map.put(key(n), n, (16 << 20) - u64::from(n), None, now);
            map.get(&key(n), now);
            assert_eq!(map.get(&key(n), now), Some(n));
            assert!(map.usage().bytes <= 20 << 20, "{}", map.usage().bytes);
        }
    }

    #[test]
    fn a_smaller_budget_holds_at_once_and_spares_what_is_used() {
        let now = Clock::system().now();
        let map = Memory::new(1 << 20);
        for n in 0..200 {
            map.put(key(n), n, 4_000, None, now);
        }
        for _ in 0..3 {
            (0..10).for_each(|n| assert!(map.get(&key(n), now).is_some()));
        }
        map.set_budget(600_000);
        let usage = map.usage();
        assert!(usage.bytes <= 600_000 && usage.bytes > 580_000, "no more goes than has to: {usage:?}");
        // A shard might by chance hold nothing but these.
        assert!((0..10).filter(|n| map.get(&key(*n), now).is_some()).count() >= 9);
        assert_eq!(usage.entries + usage.evicted, 200);

        let map = Memory::new(1 << 20);
        map.put(key(1), 1, 500_000, None, now);
        map.set_budget(100_000);
        assert_eq!((map.usage().bytes, map.usage().entries), (0, 0), "one that does not fit any more goes");
        assert!(!map.fits(8, 100_000) && map.fits(8, 90_000));
    }

    /// A response is put in twice, when it begins to arrive and when it is whole; that is no use of it.
    #[test]
    fn what_was_written_twice_and_never_read_goes_before_what_is_read() {
        let (map, now) = (Memory::new(10_000_000), Clock::system().now());
        let write = |n| (0..2).for_each(|_| map.put(key(n), n, 1000, None, now));
        (0..40).for_each(write);
        (0..40).for_each(|n| (0..5).for_each(|_| _ = map.get(&key(n), now)));
        (40..2000).for_each(write);
        map.set_budget(400_000);
        let kept = (0..40).filter(|n| map.get(&key(*n), now).is_some()).count();
        assert_eq!(kept, 40, "those that were read");
    }

    #[test]
    fn large_values_fit_as_long_as_the_whole_budget_does() {
        let now = Clock::system().now();
        let map = Memory::new(1 << 20);
        for n in 0..100 {
            map.put(key(n), n, 1000, None, now);
        }
        map.put(Box::from(*b"large"), 1, (1 << 20) - 1000, None, now);
        assert_eq!(map.get(b"large", now), Some(1));
        map.put(Box::from(*b"large"), 2, 2 << 20, None, now);
        assert_eq!(map.get(b"large", now), None, "too heavy, and the old value is no longer true");
        assert!(map.usage().bytes <= 1 << 20);
    }

    #[test]
    fn churn_on_few_keys_does_not_pile_anything_up() {
        let now = Clock::system().now();
        let map = Memory::new(1 << 20);
        for n in 0..200_000u32 {
            map.put(key(n % 8), n, 10, Some(now.after(Duration::from_secs(60))), now);
            if n % 3 == 0 {
                map.remove(key(n % 8), now);
            }
        }
        let pending: usize = map.shards.iter().map(|shard| shard.read().bookkeeping()).sum();
        assert!(pending < 8 * SHARDS * 40, "{pending} places kept for 8 entries");
    }

    #[test]
    fn an_update_is_one_step_for_all_threads() {
        let now = Clock::system().now();
        let map = Arc::new(Memory::new(1 << 20));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let map = map.clone();
                std::thread::spawn(move || {
                    for _ in 0..5_000 {
                        map.update(Box::from(*b"n"), now, |there| {
                            let value = there.copied().unwrap_or(0) + 1;
                            (Change::Put { value, weight: 1, expires: None }, ())
                        });
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(map.get(b"n", now), Some(20_000));
    }
}
