//! Requests that come out the same in every run, whatever machine it is.

/// SplitMix64: small, seeded, and good enough to draw keys with.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Evenly spread from 0 up to 1, which it never is.
    pub fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Keys below `keys`; key `n` is asked for in proportion to `1 / (n + 1)^skew`.
pub fn zipf(keys: u32, skew: f64, requests: usize, seed: u64) -> Vec<u32> {
    let mut total = 0.0;
    let mut upto = Vec::with_capacity(keys as usize);
    for rank in 1..=keys {
        total += f64::from(rank).powf(-skew);
        upto.push(total);
    }
    let mut random = Random(seed);
    let draw = || {
        let at = random.fraction() * total;
        // Rounding may put the point on the very end, where there is no key.
        upto.partition_point(|end| *end <= at).min(keys as usize - 1) as u32
    };
    std::iter::repeat_with(draw).take(requests).collect()
}

/// A key's size, always the same: most have little more than 1 KiB and few have up to 1 MiB (Pareto, shape 1).
pub fn pareto(key: u32) -> u64 {
    const SMALLEST: f64 = 1024.0;
    const LARGEST: f64 = 1024.0 * 1024.0;
    (SMALLEST / (1.0 - Random(u64::from(key)).fraction())).min(LARGEST) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_the_same_every_time_and_follows_the_law() {
        let trace = zipf(1000, 1.0, 200_000, 7);
        assert_eq!(trace, zipf(1000, 1.0, 200_000, 7));
        let asked = |key| trace.iter().filter(|asked| **asked == key).count() as f64;
        let ratio = asked(0) / asked(9);
        assert!((9.0..11.0).contains(&ratio), "the first is asked for ten times as often as the tenth: {ratio}");
    }

    #[test]
    fn half_as_many_are_twice_as_large() {
        let larger = |than: u64| (0..100_000).filter(|key| pareto(*key) > than).count() as f64;
        for size in [2048, 16_384, 65_536] {
            let ratio = larger(size) / larger(2 * size);
            assert!((1.8..2.2).contains(&ratio), "{size}: {ratio}");
        }
        assert!((0..100_000).all(|key| (1024..=1 << 20).contains(&pareto(key))));
    }
}
