//! `rate_limit`: so many requests in a time, for each client.
//!
//! ```yaml
//! rate_limit: { requests: 100, per: 1m, burst: 20 }      # field: X-Api-Key
//! ```
//!
//! Each client has a bucket of `burst` tokens (as many as `requests` when absent), filled again at
//! `requests` in `per`; a request takes one, and without one gets 429 with `Retry-After`. All
//! responses tell `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers). A client
//! is an IPv4 address or an IPv6 /64, the one behind a proxy of `trust.proxies`; with `field`, it is
//! the value of that request field, and the address where the field is missing. Limit by a field only
//! where something has checked it: whoever invents values has a bucket for each. At most `max_clients`
//! are remembered; those seen once go first, and begin anew.
//!
//! Several limits around one route all count; give each a `name`. A reload that leaves the settings as they
//! are leaves the buckets as they are.
//!
//! On a cached route hits count as well: requests are counted before the store is asked. A refresh in
//! the background counts for nobody.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ahash::RandomState;
use async_trait::async_trait;
use http::header::RETRY_AFTER;
use http::{HeaderName, HeaderValue};
use pingora::http::{RequestHeader, ResponseHeader};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::clock::Moment;
use crate::exchange::Exchange;
use crate::handler::Reply;
use crate::memory::{Change, Memory, Usage};
use crate::plugin::{Hooks, OnRequest, OnResponse, Plugin, Remembers};
use crate::units::Span;

/// So many requests in a time, for each client.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// How many requests.
    pub requests: u32,
    /// In which time.
    pub per: Span,
    /// How many at once; as many as `requests` when absent.
    #[serde(default)]
    pub burst: Option<u32>,
    /// The request field that tells clients apart; their address when absent.
    #[serde(default)]
    pub field: Option<String>,
    /// What it is called in `RateLimit`.
    #[serde(default = "default_name")]
    pub name: String,
    /// So many clients are remembered.
    #[serde(default = "default_clients")]
    pub max_clients: u32,
}

fn default_name() -> String {
    "default".into()
}

fn default_clients() -> u32 {
    100_000
}

#[derive(Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Moment,
}

/// The plugin.
pub struct RateLimit {
    burst: f64,
    per_second: f64,
    field: Option<HeaderName>,
    name: String,
    policy: HeaderValue,
    buckets: Memory<Box<[u8]>, Bucket>,
    hashes: [RandomState; 2],
}

/// What a bucket takes in memory: its place in the table, and its key.
const ROOM: u64 = 160 + 17;

impl Plugin for RateLimit {
    const NAME: &'static str = "rate_limit";
    type Settings = Settings;

    fn build(settings: Settings) -> Result<Hooks, String> {
        if settings.requests == 0 || settings.burst == Some(0) || settings.max_clients == 0 || settings.per.0.is_zero()
        {
            return Err(
                "`requests`, `per`, `burst` and `max_clients` are at least 1; to let nobody in, use `ip_filter`".into(),
            );
        }
        let word = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if settings.name.is_empty() || !settings.name.bytes().all(word) {
            return Err(format!("`{}` is no name; it has letters, digits and -_.", settings.name));
        }
        let field = settings.field.map(|name| name.parse().map_err(|_| format!("`{name}` is not a field name")));
        let burst = settings.burst.unwrap_or(settings.requests);
        let seconds = settings.per.0.as_secs_f64();
        let window = settings.per.0.as_secs().max(1);
        let policy = format!("\"{}\";q={};w={window}", settings.name, settings.requests);
        let this = Arc::new(RateLimit {
            burst: f64::from(burst),
            per_second: f64::from(settings.requests) / seconds,
            field: field.transpose()?,
            name: settings.name,
            policy: policy.parse().map_err(|_| "this policy cannot stand in a field".to_owned())?,
            buckets: Memory::new(u64::from(settings.max_clients) * ROOM),
            hashes: [RandomState::new(), RandomState::new()],
        });
        Ok(Hooks::new().request(this.clone()).response(this.clone()).remembers(this))
    }
}

impl Remembers for RateLimit {
    fn usage(&self) -> (Usage, u64) {
        (self.buckets.usage(), self.buckets.budget())
    }
}

/// What each limit said, for the response; limits are told apart by where they are.
#[derive(Default)]
struct Said(Vec<(usize, HeaderValue)>);

impl RateLimit {
    fn key(&self, request: &RequestHeader, client: IpAddr) -> Box<[u8]> {
        let said = self.field.as_ref().and_then(|name| request.headers.get(name));
        match (said, client) {
            // Values may be long; a hash that nobody can foresee is as good.
            (Some(value), _) => {
                let [low, high] = self.hashes.each_ref().map(|state| state.hash_one(value.as_bytes()).to_be_bytes());
                [&b"f"[..], &low, &high].concat()
            }
            (None, IpAddr::V4(address)) => [&b"4"[..], &address.octets()].concat(),
            // A network of that size is one customer's.
            (None, IpAddr::V6(address)) => [&b"6"[..], &address.octets()[..8]].concat(),
        }
        .into()
    }

    fn number(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Takes a token, if there is one; the tokens that are left.
    fn take(&self, key: Box<[u8]>, now: Moment) -> (bool, f64) {
        let full = Duration::try_from_secs_f64(self.burst / self.per_second).unwrap_or(Duration::MAX);
        // Who comes again is used, and outlives those who came once.
        self.buckets.get(&key, now);
        self.buckets.update(key, now, |there| {
            let tokens = there.map_or(self.burst, |bucket| {
                (bucket.tokens + now.since(bucket.at).as_secs_f64() * self.per_second).min(self.burst)
            });
            let taken = tokens >= 1.0;
            let tokens = if taken { tokens - 1.0 } else { tokens };
            // A full bucket need not be remembered.
            let at = there.map_or(now, |bucket| bucket.at.max(now));
            let put = Change::Put { value: Bucket { tokens, at }, weight: 0, expires: Some(now.after(full)) };
            (put, (taken, tokens))
        })
    }

    fn seconds_for(&self, tokens: f64) -> u64 {
        (tokens / self.per_second).ceil().max(0.0) as u64
    }
}

#[async_trait]
impl OnRequest for RateLimit {
    async fn on_request(&self, request: &RequestHeader, exchange: &mut Exchange) -> Option<Reply> {
        let (taken, left) = self.take(self.key(request, exchange.client), exchange.received);
        let reset = self.seconds_for(self.burst - left);
        let limit = HeaderValue::try_from(format!("\"{}\";r={};t={reset}", self.name, left as u64)).ok()?;
        if exchange.note::<Said>().is_none() {
            exchange.set_note(Said::default());
        }
        if let Some(Said(said)) = exchange.note_mut() {
            said.push((self.number(), limit));
        }
        if taken {
            return None;
        }
        let wait = self.seconds_for(1.0 - left).max(1);
        Some(Reply::text(429, "too many requests; try again later").with(RETRY_AFTER, HeaderValue::from(wait)))
    }
}

impl OnResponse for RateLimit {
    fn on_response(&self, _: &RequestHeader, response: &mut ResponseHeader, exchange: &mut Exchange) {
        let Some(Said(said)) = exchange.note() else { return };
        for (_, limit) in said.iter().filter(|(number, _)| *number == self.number()) {
            let _ = response.append_header("ratelimit-policy", self.policy.clone());
            let _ = response.append_header("ratelimit", limit.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use once_cell::sync::Lazy;

    use super::Moment;
    use crate::clock::Clock;
    use crate::testing::{PluginUnderTest, complaint, example, plugin};

    /// Asks so many seconds after a fixed moment.
    async fn ask(plugin: &PluginUnderTest, client: &str, after: u64) -> (u16, String) {
        static START: Lazy<Moment> = Lazy::new(|| Clock::system().now());
        let mut visit = plugin.visit("GET /").from(client);
        visit.exchange.received = START.after(Duration::from_secs(after));
        let status = match visit.answer().await {
            Some(answer) => {
                assert!(answer.has("retry-after"));
                answer.status()
            }
            None => 200,
        };
        (status, visit.response("200", &[]).field("ratelimit").to_owned())
    }

    #[tokio::test]
    async fn a_bucket_empties_and_fills_again() {
        let limit = example(include_str!("rate_limit.rs"));
        for left in (0..20).rev() {
            let (status, told) = ask(&limit, "192.0.2.1", 9).await;
            assert_eq!(status, 200);
            assert!(told.starts_with(&format!("\"default\";r={left};t=")), "{told}");
        }
        assert_eq!(ask(&limit, "192.0.2.1", 9).await.0, 429);
        assert_eq!(ask(&limit, "192.0.2.2", 9).await.0, 200, "another client");
        assert_eq!(ask(&limit, "192.0.2.1", 10).await.0, 200, "100 a minute is more than one a second");
        assert_eq!(ask(&limit, "192.0.2.1", 10).await.0, 429);
        assert_eq!(ask(&limit, "192.0.2.1", 9).await.0, 429, "who comes late has waited somewhere else");
        assert_eq!(ask(&limit, "192.0.2.1", 10).await.0, 429, "and no time is counted twice");
    }

    #[tokio::test]
    async fn two_limits_speak_for_themselves() {
        let limit = || crate::plugin::Hooks::clone(plugin("rate_limit: { requests: 5, per: 1h }").hooks());
        let both = PluginUnderTest::chain(&[limit(), limit()]);
        let mut visit = both.visit("GET /");
        assert!(visit.answer().await.is_none());
        let head = visit.hold_response("200");
        assert_eq!(head.headers.get_all("ratelimit").iter().count(), 2);
        assert_eq!(head.headers.get_all("ratelimit-policy").iter().count(), 2);
    }

    #[tokio::test]
    async fn strangers_do_not_crowd_a_known_client_out() {
        let limit = plugin("rate_limit: { requests: 3, per: 1h, max_clients: 1000 }");
        for left in [2, 1, 0] {
            assert!(ask(&limit, "192.0.2.1", 0).await.1.contains(&format!("r={left};")));
        }
        for stranger in 0..20_000u32 {
            ask(&limit, &std::net::Ipv4Addr::from(0x0a00_0000 + stranger).to_string(), 0).await;
        }
        assert_eq!(ask(&limit, "192.0.2.1", 0).await.0, 429, "still remembered");
    }

    #[tokio::test]
    async fn a_v6_network_is_one_client_and_a_field_names_others() {
        let limit = plugin("rate_limit: { requests: 1, per: 1h, field: X-Key, name: hourly }");
        assert_eq!(ask(&limit, "2001:db8:1:2::1", 0).await.0, 200);
        assert_eq!(ask(&limit, "2001:db8:1:2:ffff::1", 0).await.0, 429);
        assert_eq!(ask(&limit, "2001:db8:1:3::1", 0).await.0, 200);
        for (key, refused) in [("a", false), ("a", true), ("b", false)] {
            let answer = limit.visit(&format!("GET /\nX-Key: {key}")).answer().await;
            assert_eq!(answer.is_some(), refused, "{key}");
            let wait = answer.map(|answer| answer.field("retry-after").parse::<u64>().unwrap());
            assert!(wait.is_none_or(|wait| (3590..=3600).contains(&wait)));
        }
        let told = limit.visit("GET /").from("192.0.2.9");
        let mut told = told;
        told.answer().await;
        assert_eq!(told.response("200", &[]).field("ratelimit-policy"), "\"hourly\";q=1;w=3600");
    }

    #[test]
    fn mistakes_are_errors_that_help() {
        for (settings, told) in [
            ("{ requests: 0, per: 1m }", "at least 1"),
            ("{ requests: 1 }", "missing field `per`"),
            ("{ requests: 1, per: 0s }", "at least 1"),
            ("{ requests: 1, per: 1m, field: \"a b\" }", "not a field name"),
            ("{ requests: 1, per: 1m, name: \"a b\" }", "is no name"),
        ] {
            let complaint = complaint(&format!("rate_limit: {settings}"));
            assert!(complaint.message.contains(told), "{settings}: {complaint:?}");
        }
    }
}
