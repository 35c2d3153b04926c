//! How slow a client may be: when it takes what we have for it, and when it sends content.
//!
//! Only time in which we wait for the client counts, and time is an argument.

use std::time::{Duration, Instant};

/// So many bytes a second, measured over so long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Bytes a second.
    pub rate: u64,
    /// How long a client may be slower.
    pub grace: Duration,
}

impl Pace {
    fn bytes(self) -> u64 {
        (u128::from(self.rate) * self.grace.as_millis() / 1000) as u64
    }
}

/// How long writes have waited for the client, and what it took meanwhile.
#[derive(Default)]
pub struct Waiting {
    since: Option<Instant>,
    before: Duration,
    taken: u64,
    /// Under which pace, and in which exchange, that was.
    measured: Option<(Pace, u64)>,
}

impl Waiting {
    /// A write waits in this exchange; how long it may do so under this pace, nothing when it is too long already.
    pub fn wait(&mut self, pace: Pace, exchange: u64, now: Instant) -> Duration {
        // Measured anew when the pace or the exchange is another one.
        if self.measured != Some((pace, exchange)) {
            *self = Waiting { measured: Some((pace, exchange)), ..Waiting::default() };
        }
        self.since.get_or_insert(now);
        pace.grace.saturating_sub(self.so_far(now))
    }

    fn so_far(&self, now: Instant) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// The client took so many bytes; enough of them, and it is measured anew.
    pub fn took(&mut self, bytes: usize, pace: Pace, now: Instant) {
        if self.since.is_none() && self.before.is_zero() {
            return;
        }
        self.before = self.so_far(now);
        self.since = None;
        self.taken += bytes as u64;
        if self.taken >= pace.bytes() {
            *self = Waiting::default();
        }
    }

    /// Whether anything is being measured.
    pub fn is_on(&self) -> bool {
        self.since.is_some() || !self.before.is_zero()
    }
}

/// How far a client is behind with the content that we wait for. What it sends makes up for it, and nothing is
/// saved up: who was fast may not be slow for longer.
#[derive(Default)]
pub struct Behind {
    since: Option<Instant>,
    so_far: Duration,
    exchange: u64,
}

impl Behind {
    /// We wait for content of this exchange; when it will be too late.
    pub fn wait(&mut self, pace: Pace, exchange: u64, now: Instant) -> Instant {
        if self.exchange != exchange {
            *self = Behind { exchange, ..Behind::default() };
        }
        *self.since.get_or_insert(now) + pace.grace.saturating_sub(self.so_far)
    }

    /// So many bytes came.
    pub fn sent(&mut self, bytes: usize, pace: Pace, now: Instant) {
        self.pause(now);
        let worth = Duration::from_secs_f64(bytes as f64 / pace.rate.max(1) as f64);
        self.so_far = self.so_far.saturating_sub(worth);
    }

    /// Whether we wait at this moment.
    pub fn is_on(&self) -> bool {
        self.since.is_some()
    }

    /// We do something else than wait for the client.
    pub fn pause(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.so_far += now.saturating_duration_since(since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace { rate: 256, grace: Duration::from_secs(10) };

    /// When a client that sends `bytes` each second is cut, after `before` seconds at full speed.
    fn cut(bytes: usize, before: u64) -> Option<u64> {
        let start = Instant::now();
        let mut behind = Behind::default();
        for second in 0..100 {
            let now = start + Duration::from_secs(second);
            if behind.wait(PACE, 1, now) <= now {
                return Some(second - before);
            }
            let sent = if second < before { 1 << 20 } else { bytes };
            behind.wait(PACE, 1, now);
            behind.sent(sent, PACE, now + Duration::from_secs(1));
        }
        None
    }

    #[test]
    fn content_that_comes_too_slowly_is_late_at_last() {
        for (why, bytes, before, expected) in [
            ("nothing comes", 0, 0, Some(10)),
            ("one byte a second", 1, 0, Some(11)),
            ("half of what is wanted", 128, 0, Some(20)),
            ("as much as is wanted", 256, 0, None),
            ("who was fast is not allowed more", 0, 30, Some(10)),
        ] {
            assert_eq!(cut(bytes, before), expected, "{why}");
        }
    }

    #[test]
    fn time_in_which_we_do_not_wait_does_not_count() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let mut behind = Behind::default();
        assert_eq!(behind.wait(PACE, 1, at(0)), at(10));
        behind.pause(at(4));
        assert_eq!(behind.wait(PACE, 1, at(100)), at(106), "four seconds are gone");
        assert_eq!(behind.wait(PACE, 1, at(103)), at(106), "and the wait goes on");
        assert_eq!(behind.wait(PACE, 2, at(103)), at(113), "another exchange");
    }

    #[test]
    fn a_reader_that_takes_enough_is_measured_anew() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let mut waiting = Waiting::default();
        assert_eq!(waiting.wait(PACE, 1, at(0)), Duration::from_secs(10));
        waiting.took(2559, PACE, at(9));
        assert!(waiting.is_on());
        assert_eq!(waiting.wait(PACE, 1, at(50)), Duration::from_secs(1), "only waiting counts");
        waiting.took(1, PACE, at(51));
        assert!(!waiting.is_on());
        assert_eq!(waiting.wait(PACE, 1, at(60)), Duration::from_secs(10));
        assert_eq!(waiting.wait(PACE, 1, at(71)), Duration::ZERO);
    }
}
