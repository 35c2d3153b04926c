//! What is refused: counted by reason, and said once a second at most, so that a flood of it fills no disk.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::{Clock, Moment};
use crate::metrics::Metrics;

const SECOND: Duration = Duration::from_secs(1);

/// Counts and tells what was refused.
pub struct Refusals {
    metrics: Arc<Metrics>,
    clock: Clock,
    requests: Throttle,
    connections: Throttle,
    accepts: Throttle,
    failures: Throttle,
    origins: Throttle,
}

/// Lets one through each second, and counts the others.
#[derive(Default)]
struct Throttle(Mutex<(Option<Moment>, u64)>);

impl Throttle {
    /// How many were left out since the last one, if this one may pass.
    fn pass(&self, now: Moment) -> Option<u64> {
        let mut state = self.0.lock();
        if state.0.is_some_and(|last| now.since(last) < SECOND) {
            state.1 += 1;
            return None;
        }
        state.0 = Some(now);
        Some(std::mem::take(&mut state.1))
    }
}

impl Refusals {
    /// None so far.
    pub fn new(metrics: Arc<Metrics>, clock: Clock) -> Self {
        let throttle = Throttle::default;
        Refusals {
            metrics,
            clock,
            requests: throttle(),
            connections: throttle(),
            accepts: throttle(),
            failures: throttle(),
            origins: throttle(),
        }
    }

    /// A request was refused.
    pub fn request(&self, reason: &str, peer: IpAddr) {
        self.metrics.refused.with_label_values(&[reason]).inc();
        if let Some(left_out) = self.requests.pass(self.clock.now()) {
            tracing::warn!(reason, %peer, left_out, "refused a request");
        }
    }

    /// A connection was refused, because this setting of `limits` is used up.
    pub fn connection(&self, reason: &str, peer: IpAddr) {
        self.metrics.connections_refused.with_label_values(&[reason]).inc();
        if let Some(left_out) = self.connections.pass(self.clock.now()) {
            tracing::warn!(reason, %peer, left_out, "refused a connection");
        }
    }

    /// An origin sent what it must not, and that was refused.
    pub fn origin(&self, reason: &str, server: &str) {
        self.metrics.origin_refused.with_label_values(&[reason]).inc();
        if let Some(left_out) = self.origins.pass(self.clock.now()) {
            tracing::warn!(reason, server, left_out, "refused what an origin sent");
        }
    }

    /// Whether a failed exchange is to be told of, and how many were not since the last one. What failed is in the
    /// access log in any case.
    pub fn failure(&self) -> Option<u64> {
        self.failures.pass(self.clock.now())
    }

    /// No connection could be accepted.
    pub fn accept(&self, error: &dyn fmt::Display) {
        if let Some(left_out) = self.accepts.pass(self.clock.now()) {
            tracing::warn!(%error, left_out, "cannot accept; those who wait are taken as soon as it goes on");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_told_once_a_second_and_counted_whole() {
        let (metrics, clock) = (Arc::new(Metrics::new().unwrap()), Clock::system());
        let refusals = Refusals::new(metrics.clone(), clock.clone());
        for _ in 0..5 {
            refusals.request("host", IpAddr::from([192, 0, 2, 1]));
        }
        assert_eq!(metrics.refused.with_label_values(&["host"]).get(), 5);
        assert_eq!(refusals.requests.pass(clock.now()), None);
        clock.advance(SECOND);
        assert_eq!(refusals.requests.pass(clock.now()), Some(5), "four, and the one above");
        assert_eq!(refusals.requests.pass(clock.now()), None);
        clock.advance(SECOND);
        assert_eq!(refusals.requests.pass(clock.now()), Some(1));
        assert_eq!(refusals.connections.pass(clock.now()), Some(0), "each kind for itself");
    }
}
