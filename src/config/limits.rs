//! What clients may take: whether the numbers make sense, and what a connection makes of them.

use std::time::Duration;

use super::compile::Compiler;
use super::settings::Limits;
use crate::connection::Bounds;
use crate::connection::pace::Pace;
use crate::units::{ByteSize, Span};

/// The longest head that the engine reads.
const LONGEST_HEAD: u64 = 1 << 20;
/// The most fields that the engine reads.
const MOST_FIELDS: u16 = 256;
const SHORTEST: Duration = Duration::from_millis(100);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

impl Compiler<'_> {
    /// What a connection is held to; every number that makes no sense is complained about.
    pub(super) fn bounds(&mut self, limits: &Limits) -> Bounds {
        let mut wrong = |key: &str, message: String| self.complaints.value(&format!("limits.{key}"), message);
        if !(1 << 10..=LONGEST_HEAD).contains(&limits.head.0) {
            wrong("head", format!("{} is no length for heads; from 1KiB to 1MiB", limits.head));
        }
        if !(10..=MOST_FIELDS).contains(&limits.fields) {
            wrong("fields", format!("browsers send twenty or so: from 10 to {MOST_FIELDS}"));
        }
        if limits.target.0 < 64 {
            wrong("target", "hardly any target is as short; at least 64B".into());
        }
        // A default that does not fit is not complained about: it only means less.
        let default = Limits::default();
        if limits.target > limits.head && limits.target != default.target {
            wrong("target", format!("{} is more than `head`, which is {}", limits.target, limits.head));
        }
        for (key, span, longest) in [
            ("head_timeout", limits.head_timeout, MINUTE),
            ("idle", limits.idle, HOUR),
            ("content_grace", limits.content_grace, HOUR),
            ("read_grace", limits.read_grace, HOUR),
        ] {
            if !(SHORTEST..=longest).contains(&span.0) {
                wrong(key, format!("{span} makes no sense here; from {} to {}", Span(SHORTEST), Span(longest)));
            }
        }
        for (key, rate) in [("content_rate", limits.content_rate), ("read_rate", limits.read_rate)] {
            if !(1..=1 << 30).contains(&rate.0) {
                wrong(key, format!("this many bytes a second: from 1B to {}", ByteSize(1 << 30)));
            }
        }
        for (key, number) in [
            ("requests_per_connection", limits.requests_per_connection),
            ("connections", limits.connections),
            ("connections_per_network", limits.connections_per_network),
        ] {
            if number == 0 {
                wrong(key, "none would let nobody in; at least 1".into());
            }
        }
        if limits.connections_per_network > limits.connections
            && limits.connections_per_network != default.connections_per_network
        {
            let (one, all) = (limits.connections_per_network, limits.connections);
            wrong("connections_per_network", format!("{one} is more than `connections`, which is {all}"));
        }
        Bounds {
            head: limits.head.0,
            head_timeout: limits.head_timeout.0,
            idle: limits.idle.0,
            content: Pace { rate: limits.content_rate.0, grace: limits.content_grace.0 },
            reading: Pace { rate: limits.read_rate.0, grace: limits.read_grace.0 },
        }
    }
}
