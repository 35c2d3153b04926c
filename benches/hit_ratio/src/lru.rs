//! An exact LRU, bounded by weight: a ring through an array that has a place for every key.

/// A key's place in the ring; who weighs nothing is not in it.
#[derive(Clone, Copy, Default)]
struct Place {
    newer: u32,
    older: u32,
    weight: u64,
}

pub struct Lru {
    /// The last place belongs to no key: its `older` is the newest entry, its `newer` the oldest.
    places: Vec<Place>,
    budget: u64,
    used: u64,
}

impl Lru {
    pub fn new(keys: u32, budget: u64) -> Self {
        let ends = Place { newer: keys, older: keys, weight: 0 };
        Lru { places: vec![ends; keys as usize + 1], budget, used: 0 }
    }

    /// Whether `key` was there; it is the newest from now on.
    pub fn request(&mut self, key: u32, weight: u64) -> bool {
        let hit = self.places[key as usize].weight > 0;
        if hit {
            self.unlink(key);
        }
        self.link(key, weight);
        while self.used > self.budget {
            self.unlink(self.places[self.ends()].newer);
        }
        hit
    }

    fn ends(&self) -> usize {
        self.places.len() - 1
    }

    fn link(&mut self, key: u32, weight: u64) {
        let ends = self.ends();
        let newest = self.places[ends].older;
        self.places[key as usize] = Place { newer: ends as u32, older: newest, weight };
        self.places[newest as usize].newer = key;
        self.places[ends].older = key;
        self.used += weight;
    }

    fn unlink(&mut self, key: u32) {
        let Place { newer, older, weight } = std::mem::take(&mut self.places[key as usize]);
        self.places[newer as usize].older = older;
        self.places[older as usize].newer = newer;
        self.used -= weight;
    }
}

#[cfg(test)]
mod tests {
    use super::Lru;

    #[test]
    fn the_one_used_longest_ago_goes() {
        let mut lru = Lru::new(4, 3);
        assert_eq!(
            [0, 1, 2, 0, 3, 0, 2, 1].map(|key| lru.request(key, 1)),
            [false, false, false, true, false, true, true, false]
        );
        assert!(!lru.request(3, 2), "two had to go for one that is heavier");
        assert_eq!([1, 3].map(|key| lru.request(key, 1)), [true, true]);
    }
}
