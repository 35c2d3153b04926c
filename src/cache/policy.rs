//! Decides, without I/O, what a shared cache may do with a response (RFC 9111).
//!
//! Every function takes the time, so tests move it by changing an argument. Each
//! answer is a [`Rule`], which knows the section it stands on. A question that we
//! cannot answer for certain is answered with "do not store".
//!
//! Variants are named in [`super::vary`]; this module never looks at a key.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use http::header::{
    AGE, AUTHORIZATION, CONTENT_RANGE, CONTENT_TYPE, COOKIE, DATE, ETAG, EXPIRES, LAST_MODIFIED, PRAGMA, SET_COOKIE,
    UPGRADE,
};
use http::{HeaderMap, Method};
use pingora::http::{RequestHeader, ResponseHeader};

use super::rule::Rule;
use crate::clock::Moment;
use crate::fields::cache_control::CacheControl;
use crate::fields::cache_status::Forward;
use crate::fields::conditional::weakly_equal;
use crate::fields::{date, vary};

/// How a route caches, as the policy needs to know it.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// Store by `ttl` whatever `Cache-Control` and `Expires` say.
    pub force: bool,
    /// With `force`: how long each status is kept.
    pub ttl: Ttl,
    /// With `force`: a request with `Cookie` is answered from the store too.
    pub ignore_cookies: bool,
    /// `Set-Cookie` is taken off instead of refusing the response.
    pub strip_set_cookie: bool,
    /// A grant of the operator where the origin says nothing.
    pub stale_while_revalidate: Duration,
    /// A grant of the operator where the origin says nothing.
    pub stale_if_error: Duration,
}

/// How long `force` keeps a response, by its status.
#[derive(Debug, Clone, Default)]
pub struct Ttl {
    /// For statuses that are not listed; `None`: those are not stored.
    pub any: Option<Duration>,
    /// By status.
    pub by_status: BTreeMap<u16, Duration>,
}

impl Ttl {
    fn of(&self, status: u16) -> Option<Duration> {
        self.by_status.get(&status).copied().or(self.any)
    }
}

/// Until when a stored response may be used, and how.
#[derive(Debug, Clone, Copy)]
pub struct Life {
    /// When it was generated, as far as we can tell: its current age counts from here.
    pub born: Moment,
    /// When it reached us.
    pub received: Moment,
    /// Its freshness lifetime.
    pub lifetime: Duration,
    /// How long after that it may be used while it is validated in the background.
    pub stale_while_revalidate: Duration,
    /// How long after that it may stand in for an origin that fails.
    pub stale_if_error: Duration,
    /// `no-cache`: never without validation.
    pub validate_always: bool,
    /// May answer requests that carry `Authorization`.
    pub authorized: bool,
    /// Has an `ETag` or a `Last-Modified`.
    pub validator: bool,
    /// Why it was stored.
    pub rule: Rule,
}

impl Life {
    /// The current age (RFC 9111 §4.2.3).
    pub fn age(&self, now: Moment) -> Duration {
        now.since(self.born)
    }

    /// Whether it is fresh (RFC 9111 §4.2).
    pub fn fresh(&self, now: Moment) -> bool {
        !self.validate_always && self.age(now) < self.lifetime
    }

    /// How long it has been stale.
    pub fn stale_for(&self, now: Moment) -> Duration {
        self.age(now).saturating_sub(self.lifetime)
    }

    /// When it is of no use any more: stale beyond every grant, and not worth a validation.
    pub fn useless(&self) -> Moment {
        let granted = self.stale_while_revalidate.max(self.stale_if_error);
        let validation = if self.validator { Duration::from_secs(86_400) } else { Duration::ZERO };
        self.born.after(self.lifetime.saturating_add(granted).saturating_add(validation))
    }

    /// Until when it is kept: a while longer, so that `EXPIRED` can be told from `MISS`.
    pub fn kept(&self) -> Moment {
        self.useless().after(self.lifetime.min(Duration::from_secs(600)))
    }
}

/// Whether the cache has any business with this request; if not, what `Cache-Status` says and why.
pub fn admit(request: &RequestHeader, has_content: bool, policy: &Policy) -> Result<(), (Forward, Rule)> {
    if !matches!(request.method, Method::GET | Method::HEAD) {
        return Err((Forward::Method, Rule::Method));
    }
    if request.headers.contains_key(UPGRADE) {
        return Err((Forward::Bypass, Rule::Upgrade));
    }
    if has_content {
        return Err((Forward::Bypass, Rule::RequestContent));
    }
    if policy.force {
        if request.headers.contains_key(AUTHORIZATION) {
            return Err((Forward::Bypass, Rule::Authorization));
        }
        if request.headers.contains_key(COOKIE) && !policy.ignore_cookies {
            return Err((Forward::Bypass, Rule::Cookie));
        }
    } else if CacheControl::of(&request.headers).no_store {
        return Err((Forward::Request, Rule::RequestNoStore));
    }
    Ok(())
}

/// When a response came, for its age.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// Now.
    pub now: Moment,
    /// What the calendar says now.
    pub wall: SystemTime,
    /// How long the origin took, from our request to this head (§4.2.3, response_delay).
    pub delay: Duration,
    /// The `Age` it came with.
    pub age: Duration,
}

/// The `Age` of a response; the largest where there are several, zero where there is none.
pub fn said_age(fields: &HeaderMap) -> Duration {
    let said = fields.get_all(AGE).iter().filter_map(|value| value.to_str().ok()?.trim().parse::<u64>().ok()).max();
    Duration::from_secs(said.unwrap_or(0))
}

const CDN_CACHE_CONTROL: &str = "cdn-cache-control";

/// Fields that differ from client to client although the client did not send them.
const UNKEYED: &[&str] = &["forwarded", "via", "x-forwarded-for", "x-real-ip"];

/// Whether this response may be stored, and for how long (RFC 9111 §3 and §4.2).
pub fn judge(request: &HeaderMap, response: &ResponseHeader, policy: &Policy, at: Arrival) -> Result<Life, Rule> {
    let fields = &response.headers;
    let status = response.status.as_u16();
    if matches!(status, 206 | 416) || fields.contains_key(CONTENT_RANGE) {
        return Err(Rule::Partial);
    }
    if response.status.is_informational() || status == 304 {
        return Err(Rule::Status);
    }
    if fields.contains_key(SET_COOKIE) && !policy.strip_set_cookie {
        return Err(Rule::SetCookie);
    }
    // What we tell the origin about the client is not in the request that a variant is named by.
    match vary::nominated(fields) {
        Ok(names) if !names.iter().any(|name| UNKEYED.contains(&name.as_str())) => {}
        _ => return Err(Rule::VaryStar),
    }
    if event_stream(fields) {
        return Err(Rule::EventStream);
    }
    let validator = fields.contains_key(ETAG) || fields.contains_key(LAST_MODIFIED);
    if policy.force {
        forced(status, policy, validator, at)
    } else {
        respected(request, response, policy, validator, at)
    }
}

fn event_stream(fields: &HeaderMap) -> bool {
    fields.get(CONTENT_TYPE).is_some_and(|value| {
        let essence = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or(b"");
        essence.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
    })
}

fn forced(status: u16, policy: &Policy, validator: bool, at: Arrival) -> Result<Life, Rule> {
    let lifetime = policy.ttl.of(status).ok_or(Rule::Status)?;
    Ok(Life {
        born: at.now,
        received: at.now,
        lifetime,
        stale_while_revalidate: policy.stale_while_revalidate,
        stale_if_error: policy.stale_if_error,
        validate_always: false,
        authorized: false,
        validator,
        rule: Rule::Forced,
    })
}

fn respected(
    request: &HeaderMap,
    response: &ResponseHeader,
    policy: &Policy,
    validator: bool,
    at: Arrival,
) -> Result<Life, Rule> {
    // A targeted field counts instead of Cache-Control and Expires (RFC 9213 §2.2).
    let targeted = response.headers.contains_key(CDN_CACHE_CONTROL);
    let cc = CacheControl::named(&response.headers, if targeted { CDN_CACHE_CONTROL } else { "cache-control" });
    if cc.no_store {
        return Err(Rule::NoStore);
    }
    if cc.private {
        return Err(Rule::Private);
    }
    let authorized = cc.public || cc.s_maxage.is_some() || cc.must_revalidate;
    let credentials = request.contains_key(AUTHORIZATION);
    if credentials && !authorized {
        return Err(Rule::Authorization);
    }
    let (lifetime, rule) = match explicit_lifetime(&response.headers, &cc, at.wall, targeted) {
        Some(lifetime) => (lifetime, Rule::Explicit),
        None if cc.no_cache => (Duration::ZERO, Rule::Explicit),
        None if credentials || request.contains_key(COOKIE) => return Err(Rule::NoHeuristic),
        None => (heuristic_lifetime(response, &cc, at.wall).ok_or(Rule::NoFreshness)?, Rule::Heuristic),
    };
    // Never stale without a word from the origin (§5.2.2.2, §5.2.2.8); s-maxage implies
    // proxy-revalidate (§5.2.2.10), which an explicit window beside it lifts (docs/decisions/0003).
    let strict = cc.must_revalidate || cc.proxy_revalidate || cc.no_cache;
    let window = |explicit: Option<Duration>, granted: Duration| match (strict, explicit) {
        (true, _) => Duration::ZERO,
        (false, Some(window)) => window,
        (false, None) if cc.s_maxage.is_some() => Duration::ZERO,
        (false, None) => granted,
    };
    let life = Life {
        born: at.now.before(initial_age(&response.headers, at)),
        received: at.now,
        lifetime,
        stale_while_revalidate: window(cc.stale_while_revalidate, policy.stale_while_revalidate),
        stale_if_error: window(cc.stale_if_error, policy.stale_if_error),
        validate_always: cc.no_cache,
        authorized,
        validator,
        rule,
    };
    if !life.fresh(at.now) && !validator {
        if cc.no_cache {
            return Err(Rule::NoValidator);
        }
        if life.useless() <= at.now {
            return Err(Rule::NoFreshness);
        }
    }
    Ok(life)
}

/// `s-maxage`, else `max-age`, else `Expires` minus `Date` (RFC 9111 §4.2.1). What cannot be read is zero.
fn explicit_lifetime(fields: &HeaderMap, cc: &CacheControl, wall: SystemTime, targeted: bool) -> Option<Duration> {
    if let Some(age) = cc.s_maxage.or(cc.max_age) {
        return Some(age);
    }
    fields.get(EXPIRES).filter(|_| !targeted)?;
    let Some(expires) = date::of(fields, EXPIRES) else { return Some(Duration::ZERO) };
    let date = date::of(fields, DATE).unwrap_or(wall);
    Some(expires.duration_since(date).unwrap_or_default())
}

/// A tenth of the time since it was last modified, at most a day (RFC 9111 §4.2.2).
fn heuristic_lifetime(response: &ResponseHeader, cc: &CacheControl, wall: SystemTime) -> Option<Duration> {
    // RFC 9110 §15.1: statuses that are cacheable without being told; 206 is dealt with before.
    let by_default =
        matches!(response.status.as_u16(), 200 | 203 | 204 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501);
    if !by_default && !cc.public {
        return None;
    }
    let modified = date::of(&response.headers, LAST_MODIFIED)?;
    let date = date::of(&response.headers, DATE).unwrap_or(wall);
    let age = date.duration_since(modified).ok()?;
    Some((age / 10).min(Duration::from_secs(86_400)))
}

/// The corrected initial age (RFC 9111 §4.2.3).
fn initial_age(fields: &HeaderMap, at: Arrival) -> Duration {
    let apparent = date::of(fields, DATE).and_then(|date| at.wall.duration_since(date).ok()).unwrap_or_default();
    // Dates have whole seconds, and servers keep one for a second: so much says nothing about age.
    let apparent = if apparent < Duration::from_secs(2) { Duration::ZERO } else { apparent };
    apparent.max(at.age.saturating_add(at.delay))
}

/// What may be done with a stored response for this request, now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reuse {
    /// Send it.
    Fresh,
    /// Send it: it arrived after this request came, on behalf of another one (RFC 9111 §4).
    Collapsed,
    /// Only within its stale windows, or after validation.
    Stale,
    /// Only after validation: the request or the response insists.
    Validate,
    /// Not for this request: it carries credentials (RFC 9111 §3.5).
    NotForThis,
    /// Not at all: it was stored by force, and the route respects what the origin says.
    Outdated,
}

/// Decides about a stored response (RFC 9111 §4). `came` is when the request arrived.
pub fn reuse(request: &HeaderMap, life: &Life, policy: &Policy, came: Moment, now: Moment) -> Reuse {
    if !policy.force && life.rule == Rule::Forced {
        return Reuse::Outdated;
    }
    if !policy.force && request.contains_key(AUTHORIZATION) && !life.authorized {
        return Reuse::NotForThis;
    }
    if life.received >= came {
        return Reuse::Collapsed;
    }
    if policy.force {
        return if life.fresh(now) { Reuse::Fresh } else { Reuse::Stale };
    }
    let cc = CacheControl::of(request);
    let pragma = !request.contains_key(http::header::CACHE_CONTROL)
        && request.get_all(PRAGMA).iter().any(|value| value.as_bytes().eq_ignore_ascii_case(b"no-cache"));
    if cc.no_cache || pragma || life.validate_always {
        return Reuse::Validate;
    }
    let age = life.age(now);
    if cc.max_age.is_some_and(|limit| age > limit) {
        return Reuse::Validate;
    }
    if cc.min_fresh.is_some_and(|wanted| life.lifetime.saturating_sub(age) < wanted) {
        return Reuse::Validate;
    }
    if life.fresh(now) { Reuse::Fresh } else { Reuse::Stale }
}

/// Whether a 304 speaks of this stored response (RFC 9111 §4.3.4): its tag, if it has one, is the stored one.
pub fn validates(not_modified: &HeaderMap, stored: &HeaderMap) -> bool {
    match (not_modified.get(ETAG), stored.get(ETAG)) {
        (Some(tag), Some(stored)) => weakly_equal(tag.as_bytes(), stored.as_bytes()),
        (Some(_), None) => false,
        (None, _) => true,
    }
}

/// Whether a successful request with this method changes what is stored under its target (RFC 9111 §4.4).
pub fn invalidates(method: &Method, status: http::StatusCode) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE)
        && (status.is_success() || status.is_redirection())
}

/// A life of a minute, for tests.
#[cfg(test)]
pub(super) fn a_minute() -> Life {
    let now = crate::clock::Clock::system().now();
    let at = Arrival { now, wall: SystemTime::now(), delay: Duration::ZERO, age: Duration::ZERO };
    let ttl = Ttl { any: Some(Duration::from_secs(60)), by_status: BTreeMap::new() };
    forced(200, &Policy { ttl, ..Policy::default() }, false, at).unwrap()
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
