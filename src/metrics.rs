//! All counters, as fields of one struct.
//!
//! Counters with labels are resolved when the configuration is loaded, so that a
//! request adds to a number and looks nothing up.

use prometheus::core::{AtomicU64, GenericCounter, GenericCounterVec, GenericGauge, GenericGaugeVec};
use prometheus::{Encoder, Opts, Registry, TextEncoder};

type Counter = GenericCounter<AtomicU64>;
type CounterVec = GenericCounterVec<AtomicU64>;
type GaugeVec = GenericGaugeVec<AtomicU64>;
type Gauge = GenericGauge<AtomicU64>;

/// The words for what the cache did; RFC 9211's, and `none` where there is no cache.
pub const CACHE_WORDS: &[&str] =
    &["none", "hit", "collapsed", "uri-miss", "vary-miss", "partial", "stale", "bypass", "method", "request"];

/// The reasons of the leak guard: rules without which another cache would have given away what is not for all.
pub const LEAKS: &[&str] = &[
    "ambiguous-path",
    "authorization",
    "cookie",
    "method-override",
    "no-heuristic",
    "other-target",
    "private",
    "request-content",
    "request-fault",
    "set-cookie",
    "unkeyed-field",
    "vary-star",
];

/// Everything that is counted.
pub struct Metrics {
    registry: Registry,
    requests: CounterVec,
    leaks: CounterVec,
    /// Content bytes sent to clients.
    pub sent_bytes: Counter,
    /// Content bytes received from clients.
    pub received_bytes: Counter,
    /// Connections accepted.
    pub connections_accepted: Counter,
    /// Connections open.
    pub connections: Gauge,
    /// Networks of clients that have a connection open and are counted.
    pub networks: Gauge,
    /// Connections refused because there were too many, by the setting that says so.
    pub connections_refused: CounterVec,
    /// Requests refused by the guard, and connections that ended because of how they were used.
    pub refused: CounterVec,
    /// Responses refused because of how they were sent.
    pub origin_refused: CounterVec,
    /// Unused connections to servers.
    pub kept: Gauge,
    /// Responses that were not stored, by the rule that decided.
    pub not_stored: CounterVec,
    /// Requests that waited for the head of another's response.
    pub waits: Counter,
    /// How long they did, in milliseconds.
    pub waited_ms: Counter,
    /// Connections to servers that could not be made.
    pub connect_failures: Counter,
    /// Requests sent again after a failure.
    pub retries: Counter,
    /// Panics of plugins and handlers.
    pub panics: Counter,
    /// Reloads of the configuration, by result.
    pub reloads: CounterVec,
    /// Bytes of values on their way into the key/value stores.
    pub kv_arriving: Gauge,
    /// Lines that wait for the access log's writer.
    pub log_queued: Gauge,
    remembered: [GaugeVec; 3],
    /// Lines that the access log could not take, or not in time.
    pub log_dropped: Counter,
    cache: Stock,
    kv: Stock,
    /// Responses arriving and being stored.
    pub fills: Gauge,
    /// Bytes set aside for them.
    pub fill_bytes: Gauge,
    /// Tasks of the runtime that have not ended.
    pub tasks: Gauge,
}

/// Gauges of one kind of store.
pub struct Stock {
    bytes: Gauge,
    entries: Gauge,
    evicted: Gauge,
}

impl Stock {
    /// Sets all three.
    pub fn set(&self, bytes: u64, entries: u64, evicted: u64) {
        self.bytes.set(bytes);
        self.entries.set(entries);
        self.evicted.set(evicted);
    }
}

/// Counters of one route: status class by cache word, and what the leak guard refused, by reason.
pub struct RouteMetrics {
    requests: [[Counter; CACHE_WORDS.len()]; CLASSES],
    leaks: [Counter; LEAKS.len()],
}

/// 1xx to 5xx, and none at all.
const CLASSES: usize = 6;

fn class_name(class: usize) -> String {
    if class == 0 { "none".to_owned() } else { format!("{class}xx") }
}

impl RouteMetrics {
    /// Counts a request.
    pub fn count(&self, status: u16, cache: usize) {
        let class = usize::from(status / 100).min(5);
        self.requests[class][cache.min(CACHE_WORDS.len() - 1)].inc();
    }

    /// Counts what the leak guard refused.
    pub fn would_have_leaked(&self, reason: &str) {
        if let Some(place) = LEAKS.iter().position(|known| *known == reason) {
            self.leaks[place].inc();
        }
    }
}

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace("headwall")
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let counter = |name: &str, help: &str| {
            let counter = Counter::with_opts(opts(name, help))?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let gauge = |name: &str, help: &str| {
            let gauge = Gauge::with_opts(opts(name, help))?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let labelled = |name: &str, help: &str, labels: &[&str]| {
            let counters = CounterVec::new(opts(name, help), labels)?;
            registry.register(Box::new(counters.clone()))?;
            Ok::<_, prometheus::Error>(counters)
        };
        let remembered = |name: &str, what: &str| {
            let help = format!("What is remembered beside what is stored: {what}.");
            let gauges = GaugeVec::new(opts(&format!("remembered_{name}"), &help), &["what"])?;
            registry.register(Box::new(gauges.clone()))?;
            Ok::<_, prometheus::Error>(gauges)
        };
        let stock = |name: &str, what: &str| {
            Ok::<_, prometheus::Error>(Stock {
                bytes: gauge(&format!("{name}_bytes"), &format!("Bytes used by {what}."))?,
                entries: gauge(&format!("{name}_entries"), &format!("Entries among {what}."))?,
                evicted: gauge(&format!("{name}_evicted"), &format!("Entries of {what} that went for lack of room."))?,
            })
        };
        let reloads = labelled("reloads_total", "Reloads of the configuration, by result.", &["result"])?;
        // There from the start, so that the first failure is a change.
        for result in ["ok", "failed"] {
            reloads.with_label_values(&[result]);
        }
        Ok(Metrics {
            requests: labelled("requests_total", "Requests answered.", &["route", "status", "cache"])?,
            leaks: labelled(
                "would_have_leaked_total",
                "What the leak guard refused: another cache would have stored it, or been misled, by the reason.",
                &["route", "reason"],
            )?,
            sent_bytes: counter("sent_bytes_total", "Content bytes sent to clients.")?,
            received_bytes: counter("received_bytes_total", "Content bytes received from clients.")?,
            connections_accepted: counter("connections_accepted_total", "Connections accepted.")?,
            connections: gauge("connections", "Connections open.")?,
            networks: gauge("networks", "Networks of clients, as far as they are counted, with a connection open.")?,
            connections_refused: labelled(
                "connections_refused_total",
                "Connections refused because there were too many, by the setting that says so.",
                &["reason"],
            )?,
            refused: labelled("refused_total", "Requests refused, by reason.", &["reason"])?,
            origin_refused: labelled(
                "origin_refused_total",
                "Responses refused because of how the origin sent them, by reason.",
                &["reason"],
            )?,
            kept: gauge("upstream_kept_connections", "Unused connections to servers, at most 512 to each address.")?,
            not_stored: labelled("not_stored_total", "Responses not stored, by the rule that decided.", &["rule"])?,
            waits: counter("waits_total", "Requests that waited for another's response to the same question.")?,
            waited_ms: counter("waited_milliseconds_total", "How long they waited, in all.")?,
            connect_failures: counter("connect_failures_total", "Connections to servers that could not be made.")?,
            retries: counter("retries_total", "Requests sent again after a failure.")?,
            panics: counter("panics_total", "Panics of plugins and handlers; each cost its request a 500.")?,
            reloads,
            kv_arriving: gauge(
                "kv_arriving_bytes",
                "Bytes set aside for values on their way into the key/value stores.",
            )?,
            log_queued: gauge("log_queued", "Access log lines that wait to be written, at most 8192.")?,
            remembered: [
                remembered("bytes", "bytes")?,
                remembered("entries", "entries")?,
                remembered("limit_bytes", "bytes at most")?,
            ],
            log_dropped: counter(
                "log_dropped_total",
                "Access log lines lost: the log was too slow, or the disk did not take them.",
            )?,
            cache: stock("cache", "stored responses")?,
            kv: stock("kv", "key/value pairs")?,
            fills: gauge("fills", "Responses arriving and being stored.")?,
            fill_bytes: gauge("fill_bytes", "Bytes set aside for responses that arrive.")?,
            tasks: gauge("tasks", "Tasks of the runtime that have not ended; some for each connection.")?,
            registry,
        })
    }

    /// The counters of a route.
    pub fn route(&self, name: &str) -> RouteMetrics {
        RouteMetrics {
            requests: std::array::from_fn(|class| {
                std::array::from_fn(|word| {
                    self.requests.with_label_values(&[name, &class_name(class), CACHE_WORDS[word]])
                })
            }),
            leaks: std::array::from_fn(|reason| self.leaks.with_label_values(&[name, LEAKS[reason]])),
        }
    }

    /// Lets go of the counters of a route that is no more.
    pub fn forget(&self, name: &str) {
        for class in 0..CLASSES {
            for word in CACHE_WORDS {
                let _ = self.requests.remove_label_values(&[name, &class_name(class), word]);
            }
        }
        for reason in LEAKS {
            let _ = self.leaks.remove_label_values(&[name, reason]);
        }
    }

    /// Sets what is remembered of one kind: bytes, entries, and how many bytes that may be.
    pub fn remembered(&self, what: &str, bytes: u64, entries: u64, limit: u64) {
        for (gauge, value) in self.remembered.iter().zip([bytes, entries, limit]) {
            gauge.with_label_values(&[what]).set(value);
        }
    }

    /// The gauges of stored responses.
    pub fn cache(&self) -> &Stock {
        &self.cache
    }

    /// The gauges of the key/value stores.
    pub fn kv(&self) -> &Stock {
        &self.kv
    }

    /// All of it as Prometheus reads it. Series that never counted anything are left out.
    pub fn text(&self) -> String {
        let mut families = self.registry.gather();
        for family in &mut families {
            if ["headwall_requests_total", "headwall_would_have_leaked_total"].contains(&family.name()) {
                let counted = family.take_metric().into_iter().filter(|metric| metric.get_counter().get_value() > 0.0);
                let counted: Vec<_> = counted.collect();
                family.set_metric(counted);
            }
        }
        families.retain(|family| !family.get_metric().is_empty());
        let mut out = Vec::new();
        let _ = TextEncoder::new().encode(&families, &mut out);
        String::from_utf8(out).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_route_status_and_cache() {
        let metrics = Metrics::new().unwrap();
        let route = metrics.route("app");
        route.count(204, 1);
        route.count(204, 1);
        route.count(502, 0);
        let text = metrics.text();
        assert!(text.contains("headwall_requests_total{cache=\"hit\",route=\"app\",status=\"2xx\"} 2"), "{text}");
        assert!(text.contains("headwall_requests_total{cache=\"none\",route=\"app\",status=\"5xx\"} 1"), "{text}");
        assert!(!text.contains("status=\"3xx\""), "what never happened is not listed");
        assert!(!text.contains("would_have_leaked"), "{text}");
        route.would_have_leaked("set-cookie");
        let leaked = "headwall_would_have_leaked_total{reason=\"set-cookie\",route=\"app\"} 1";
        assert!(metrics.text().contains(leaked), "{}", metrics.text());
        metrics.forget("app");
        assert!(!metrics.text().contains("route=\"app\""));
    }
}
