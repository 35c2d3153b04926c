//! What a simulation counts.

use super::line::{SECOND, Stamp};

/// What the cache did for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// From the store.
    Hit,
    /// Another request was bringing it in.
    Collapsed,
    /// From the origin: nothing usable was stored.
    Miss,
    /// From the origin, or instead of its error: what was stored is stale.
    Stale,
    /// The origin confirmed what was stored.
    Validated,
    /// From the origin: the store was not asked.
    Bypass,
    /// The route has no cache, or no origin.
    None,
}

/// All words, in the order in which they are shown.
pub const WORDS: [(Word, &str); 7] = [
    (Word::Hit, "hit"),
    (Word::Collapsed, "collapsed"),
    (Word::Miss, "miss"),
    (Word::Stale, "stale"),
    (Word::Validated, "validated"),
    (Word::Bypass, "bypass"),
    (Word::None, "none"),
];

/// What one request came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// The word for it.
    pub word: Word,
    /// Requests that the origin got for it.
    pub origin: u64,
    /// Bytes of content that came from there.
    pub from_origin: u64,
}

impl Outcome {
    /// Answered without the origin.
    pub fn without(word: Word) -> Self {
        Outcome { word, origin: 0, from_origin: 0 }
    }

    /// Answered with so many bytes of the origin.
    pub fn with(word: Word, from_origin: u64) -> Self {
        Outcome { word, origin: 1, from_origin }
    }
}

/// Sums over requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// All.
    pub requests: u64,
    /// By word.
    pub words: [u64; WORDS.len()],
    /// Requests at the origin.
    pub origin: u64,
    /// Bytes of content to clients.
    pub bytes: u64,
    /// Those of them that came without a request to the origin.
    pub bytes_saved: u64,
    /// Bytes of content from the origin.
    pub bytes_origin: u64,
}

impl Counts {
    /// Counts a request that got so many bytes.
    pub fn count(&mut self, outcome: Outcome, bytes: u64) {
        self.requests += 1;
        self.words[outcome.word as usize] += 1;
        self.origin += outcome.origin;
        self.bytes = self.bytes.saturating_add(bytes);
        self.bytes_origin = self.bytes_origin.saturating_add(outcome.from_origin);
        if matches!(outcome.word, Word::Hit | Word::Collapsed) {
            self.bytes_saved = self.bytes_saved.saturating_add(bytes);
        }
    }

    /// Requests answered without one of their own to the origin.
    pub fn saved(&self) -> u64 {
        self.words[Word::Hit as usize] + self.words[Word::Collapsed as usize]
    }

    /// In percent of all.
    pub fn hit_ratio(&self) -> f64 {
        percent(self.saved(), self.requests)
    }

    /// By bytes, in percent.
    pub fn byte_hit_ratio(&self) -> f64 {
        percent(self.bytes_saved, self.bytes)
    }
}

/// A part of a whole in percent; of nothing it is none.
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// One step of the time line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Step {
    /// Requests.
    pub requests: u64,
    /// Those answered without one of their own to the origin.
    pub saved: u64,
    /// Requests at the origin.
    pub origin: u64,
}

/// The time line has so many steps at most; they grow with what it spans.
const STEPS: usize = 480;

/// Counts over time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline {
    /// When it begins.
    pub start: Stamp,
    /// How long a step is.
    pub width: u64,
    /// The steps.
    pub steps: Vec<Step>,
    /// The last request.
    pub last: Stamp,
    minute: u64,
    in_minute: u64,
    /// The most requests that the origin got in a minute of the clock.
    pub peak_minute: u64,
}

impl Timeline {
    /// An empty one.
    pub fn new(start: Stamp) -> Self {
        let start = start - start % SECOND;
        Timeline { start, width: SECOND, steps: Vec::new(), last: start, minute: 0, in_minute: 0, peak_minute: 0 }
    }

    /// Counts a request; they come in their order.
    pub fn count(&mut self, at: Stamp, outcome: Outcome) {
        self.last = self.last.max(at);
        while self.step(at) >= STEPS {
            self.width *= 2;
            let halves = std::mem::take(&mut self.steps);
            self.steps = halves
                .chunks(2)
                .map(|pair| {
                    pair.iter().fold(Step::default(), |sum, step| Step {
                        requests: sum.requests + step.requests,
                        saved: sum.saved + step.saved,
                        origin: sum.origin + step.origin,
                    })
                })
                .collect();
        }
        let index = self.step(at);
        if self.steps.len() <= index {
            self.steps.resize(index + 1, Step::default());
        }
        let step = &mut self.steps[index];
        step.requests += 1;
        step.saved += u64::from(matches!(outcome.word, Word::Hit | Word::Collapsed));
        step.origin += outcome.origin;
        let minute = at / (60 * SECOND);
        if minute != self.minute {
            (self.minute, self.in_minute) = (minute, 0);
        }
        self.in_minute += outcome.origin;
        self.peak_minute = self.peak_minute.max(self.in_minute);
    }

    /// How many seconds of a step the log covers: the last one may not be over yet.
    pub fn seconds(&self, step: usize) -> f64 {
        let end = self.last - self.last % SECOND + SECOND;
        let rest = end.saturating_sub(self.start + self.width * step as u64);
        rest.clamp(SECOND, self.width) as f64 / SECOND as f64
    }

    fn step(&self, at: Stamp) -> usize {
        (at.saturating_sub(self.start) / self.width) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_log_has_wider_steps_and_nothing_is_lost() {
        let mut line = Timeline::new(SECOND / 2);
        for second in 0..10_000 {
            let outcome = if second % 2 == 0 { Outcome::with(Word::Miss, 1) } else { Outcome::without(Word::Hit) };
            line.count(second * SECOND + SECOND / 2, outcome);
        }
        assert!(line.steps.len() <= STEPS && line.width == 32 * SECOND, "{}", line.width);
        let sum = |of: fn(&Step) -> u64| line.steps.iter().map(of).sum::<u64>();
        assert_eq!(
            (sum(|step| step.requests), sum(|step| step.saved), sum(|step| step.origin)),
            (10_000, 5_000, 5_000)
        );
        assert_eq!(line.peak_minute, 30);
        assert_eq!((line.seconds(0), line.seconds(312)), (32.0, 16.0), "the last step has begun only");
    }

    #[test]
    fn ratios() {
        let mut counts = Counts::default();
        assert_eq!(counts.hit_ratio(), 0.0);
        counts.count(Outcome::without(Word::Hit), 30);
        counts.count(Outcome::without(Word::Collapsed), 30);
        counts.count(Outcome::with(Word::Miss, 100), 20);
        counts.count(Outcome::with(Word::Hit, 5), 20);
        assert_eq!((counts.hit_ratio(), counts.byte_hit_ratio()), (75.0, 80.0));
        assert_eq!((counts.origin, counts.bytes_origin), (2, 105));
    }
}
