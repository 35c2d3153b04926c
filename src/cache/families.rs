//! The variants of each key beside its first one, the oldest first: so that their number has a bound,
//! and so that all can go at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use pingora::cache::key::HashBinary;

use crate::clock::Moment;
use crate::memory::{Change, Memory, Usage};

#[derive(Debug, Clone)]
struct Family {
    variants: Arc<[HashBinary]>,
    /// Until when the longest-lived of them is kept.
    until: Moment,
}

/// All families.
pub struct Families {
    known: Memory<HashBinary, Family>,
    most: AtomicUsize,
}

impl Families {
    /// Knows families in so many bytes; a family that is forgotten is counted anew.
    pub fn new(budget: u64, most: usize) -> Self {
        Families { known: Memory::new(budget), most: AtomicUsize::new(most) }
    }

    /// How many variants there may be of one key, the first one included.
    pub fn set_most(&self, most: usize) {
        self.most.store(most, Relaxed);
    }

    /// A variant is about to be stored beside the first one; those that have to go for it.
    pub fn add(&self, primary: HashBinary, variant: HashBinary, until: Moment, now: Moment) -> Vec<HashBinary> {
        self.known.update(primary, now, |there| {
            let (before, until) = match there {
                Some(family) => (&*family.variants, until.max(family.until)),
                None => (&[][..], until),
            };
            let mut variants: Vec<_> = before.iter().copied().filter(|known| *known != variant).collect();
            variants.push(variant);
            let gone = variants.drain(..variants.len().saturating_sub(self.most.load(Relaxed).max(2) - 1)).collect();
            let weight = (variants.len() * size_of::<HashBinary>()) as u64;
            let family = Family { variants: variants.into(), until };
            (Change::Put { value: family, weight, expires: Some(until) }, gone)
        })
    }

    /// Forgets a family; its variants.
    pub fn take(&self, primary: HashBinary, now: Moment) -> Arc<[HashBinary]> {
        self.known.remove(primary, now).map_or_else(|| Arc::from([]), |family| family.variants)
    }

    /// What is known of them, and how much may be.
    pub fn usage(&self) -> (Usage, u64) {
        (self.known.usage(), self.known.budget())
    }

    /// Gives back the memory of families that are gone.
    pub fn sweep(&self, now: Moment) {
        self.known.sweep(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use std::time::Duration;

    #[test]
    fn the_oldest_goes_first_and_the_first_one_counts() {
        let families = Families::new(1 << 20, 3);
        let now = Clock::system().now();
        let until = now.after(Duration::from_secs(60));
        let add = |variant: u8| families.add([0; 16], [variant; 16], until, now);
        assert!(add(1).is_empty());
        assert!(add(2).is_empty());
        assert!(add(1).is_empty(), "stored anew, it is the newest");
        assert_eq!(add(3), [[2; 16]]);
        families.set_most(2);
        assert_eq!(add(4), [[1; 16], [3; 16]]);
        assert_eq!(*families.take([0; 16], now), [[4; 16]]);
        assert!(families.take([0; 16], now).is_empty());
        assert!(families.take([9; 16], now).is_empty());
    }
}
