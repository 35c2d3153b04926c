//! The only place that asks what time it is.
//!
//! Freshness and expiry count on [`Clock::now`], which never goes back: a system
//! clock set back by an hour revives nothing. [`Clock::wall`] is for comparing
//! with the dates that others write into their messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

/// A point on the process's own time line; it only moves forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Moment(Duration);

impl Moment {
    /// How long ago `earlier` was; zero if it lies ahead.
    pub fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// This moment, `span` later.
    pub fn after(self, span: Duration) -> Moment {
        Moment(self.0.saturating_add(span))
    }

    /// This moment, `span` earlier, or the beginning of time.
    pub fn before(self, span: Duration) -> Moment {
        Moment(self.0.saturating_sub(span))
    }
}

/// Tells the time; clones tell the same time.
#[derive(Debug, Clone)]
pub struct Clock {
    start: Instant,
    started_at: SystemTime,
    ahead_ms: Arc<AtomicU64>,
}

/// How long work in the background goes on before it lets others have the core, at least and at most.
const TURN: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(2));

/// Work in the background that gives way: on a busy core a request would wait for the end of its whole time slice.
///
/// Who had to wait for the core works half as long before it gives it up again, so that it comes to an end on a core
/// that is never idle, too.
pub struct Turns<'a> {
    clock: &'a Clock,
    began: Moment,
    length: Duration,
}

impl<'a> Turns<'a> {
    /// The first one begins.
    pub fn new(clock: &'a Clock) -> Self {
        Turns { clock, began: clock.now(), length: TURN.0 }
    }

    /// Lets others have the core, if this turn was long enough; asked after each small piece of work.
    pub fn give_way(&mut self) {
        let now = self.clock.now();
        if now.since(self.began) > self.length {
            std::thread::yield_now();
            self.began = self.clock.now();
            self.length = (self.began.since(now) / 2).clamp(TURN.0, TURN.1);
        }
    }
}

/// Moments start here, so that something born days before the process can be placed before them.
const ORIGIN: Duration = Duration::from_secs(200 * 365 * 86_400);

impl Clock {
    /// The machine's clock.
    pub fn system() -> Self {
        Clock { start: Instant::now(), started_at: SystemTime::now(), ahead_ms: Arc::default() }
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed() + Duration::from_millis(self.ahead_ms.load(Relaxed))
    }

    /// Now, on the line that never goes back.
    pub fn now(&self) -> Moment {
        Moment(ORIGIN + self.elapsed())
    }

    /// What a calendar says, to compare with `Date` and `Expires`.
    pub fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    /// A calendar time that never goes back, for ordering what was stored when.
    pub fn steady(&self) -> SystemTime {
        self.started_at + self.elapsed()
    }

    /// Moves this clock and all its clones forward, but for the calendar, which others share. For
    /// tests, which never sleep to let time pass.
    pub fn advance(&self, span: Duration) {
        self.ahead_ms.fetch_add(span.as_millis() as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_moves_forward_only() {
        let clock = Clock::system();
        let before = clock.now();
        clock.clone().advance(Duration::from_secs(60));
        assert!(clock.now().since(before) >= Duration::from_secs(60));
        assert_eq!(before.since(clock.now()), Duration::ZERO);
        assert!(before.before(Duration::from_secs(86_400 * 365)) < before);
    }
}
