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
    AGE, AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_LOCATION, CONTENT_TYPE, COOKIE, DATE,
    ETAG, EXPIRES, LAST_MODIFIED, PRAGMA, SET_COOKIE, TRANSFER_ENCODING, UPGRADE, VARY,
};
use http::{HeaderMap, HeaderName, Method};
use pingora::http::{RequestHeader, ResponseHeader};

use super::rule::Rule;
use crate::clock::Moment;
use crate::fields::cache_control::{CacheControl, delta_seconds};
use crate::fields::cache_status::Forward;
use crate::fields::conditional::weakly_equal;
use crate::fields::{cookies, date, reference, tags, vary};

/// How a route caches, as the policy needs to know it.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Store by `ttl` whatever `Cache-Control` and `Expires` say.
    pub force: bool,
    /// With `force`: how long each status is kept.
    pub ttl: Ttl,
    /// With `force`: a request with `Cookie` is answered from the store too.
    pub ignore_cookies: bool,
    /// `Set-Cookie` is taken off instead of refusing the response.
    pub strip_set_cookie: bool,
    /// Cookies that are the same for everybody: a response that sets only such is stored with them.
    pub shared_cookies: Vec<String>,
    /// Fields that count instead of `Cache-Control` and `Expires`, the first well-formed one (RFC 9213 §2.2).
    pub targeted: Vec<HeaderName>,
    /// What requests say in `Cache-Control` and `Pragma` does not count.
    pub ignore_client_directives: bool,
    /// A grant of the operator where the origin says nothing.
    pub stale_while_revalidate: Duration,
    /// A grant of the operator where the origin says nothing.
    pub stale_if_error: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            force: false,
            ttl: Ttl::default(),
            ignore_cookies: false,
            strip_set_cookie: false,
            shared_cookies: Vec::new(),
            targeted: vec![HeaderName::from_static("cdn-cache-control")],
            ignore_client_directives: false,
            stale_while_revalidate: Duration::ZERO,
            stale_if_error: Duration::ZERO,
        }
    }
}

impl Policy {
    /// What the client demands, as far as it counts.
    fn demands(&self, request: &HeaderMap) -> CacheControl {
        if self.force || self.ignore_client_directives { CacheControl::default() } else { CacheControl::of(request) }
    }
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
        let any = self.any.filter(|_| !blames_the_request(status));
        self.by_status.get(&status).copied().or(any)
    }
}

/// Statuses that an origin gives for something that the key does not know: a field it cannot read or finds too long,
/// an `Expect`, how often this client comes. Whoever provokes one must not have it stored for all.
fn blames_the_request(status: u16) -> bool {
    matches!(status, 400 | 408 | 417 | 421 | 425 | 426 | 429 | 431)
}

/// Until when a stored response may be used, and how.
#[derive(Debug, Clone, Copy)]
pub struct Life {
    /// When it was generated, as far as we can tell: its current age counts from here.
    pub born: Moment,
    /// When the origin was asked for it.
    pub asked: Moment,
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
    /// `must-revalidate` and its kin: a client's `max-stale` does not count.
    pub strict: bool,
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

    /// The same, stale from now on.
    pub fn over(self, now: Moment) -> Life {
        let lifetime = self.lifetime.min(self.age(now));
        Life { lifetime, stale_while_revalidate: Duration::ZERO, strict: true, ..self }
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
    } else if policy.demands(&request.headers).no_store {
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

impl Arrival {
    /// When the origin was asked.
    pub fn asked(&self) -> Moment {
        self.now.before(self.delay)
    }
}

/// The `Age` of a response: the first member counts, and one that is no number does not (RFC 9111 §5.1).
pub fn said_age(fields: &HeaderMap) -> Duration {
    let first = fields.get(AGE).and_then(|line| line.as_bytes().split(|byte| *byte == b',').next());
    first.and_then(|member| delta_seconds(member.trim_ascii())).unwrap_or_default()
}

/// Fields that differ from client to client although the client did not send them.
const UNKEYED: &[&str] = &["forwarded", "via", "x-forwarded-for", "x-real-ip"];

/// Whether this response may be stored, and for how long (RFC 9111 §3 and §4.2).
pub fn judge(request: &HeaderMap, response: &ResponseHeader, policy: &Policy, at: Arrival) -> Result<Life, Rule> {
    let fields = &response.headers;
    let status = response.status.as_u16();
    // In no other status Content-Range has a meaning (RFC 9110 §14.4).
    if matches!(status, 206 | 416) {
        return Err(Rule::Partial);
    }
    if response.status.is_informational() || status == 304 {
        return Err(Rule::Status);
    }
    // What we tell the origin about the client is not in the request that a variant is named by.
    match vary::nominated(fields) {
        Ok(names) if !names.iter().any(|name| UNKEYED.contains(&name.as_str())) => {}
        _ => return Err(Rule::VaryStar),
    }
    if event_stream(fields) {
        return Err(Rule::EventStream);
    }
    // What a purge could not find must not be there.
    if tags::too_many(&tags::of(fields)) {
        return Err(Rule::TooManyTags);
    }
    let validator = fields.contains_key(ETAG) || fields.contains_key(LAST_MODIFIED);
    if policy.force {
        if sets_a_cookie_of_somebody(fields, policy) {
            return Err(Rule::SetCookie);
        }
        forced(status, policy, validator, at)
    } else {
        respected(request, response, policy, validator, at)
    }
}

/// Whether the response sets a cookie that is not the same for everybody.
pub fn sets_a_cookie_of_somebody(fields: &HeaderMap, policy: &Policy) -> bool {
    let shared = |name: &[u8]| policy.shared_cookies.iter().any(|shared| shared.as_bytes() == name);
    !policy.strip_set_cookie && !cookies::set(fields).all(shared)
}

/// What the response says of itself: the first targeted field that is well-formed, else `Cache-Control`; and
/// whether it was targeted.
fn directives(fields: &HeaderMap, policy: &Policy) -> (CacheControl, bool) {
    match policy.targeted.iter().find_map(|name| CacheControl::targeted(fields, name)) {
        Some(directives) => (directives, true),
        None => (CacheControl::of(fields), false),
    }
}

/// The fields that go to the first client and are not kept (RFC 9111 §5.2.2.4 and §5.2.2.7). Those that say
/// what the content is, and for whom, are not a person's: without them the rest would be another response.
pub fn withheld(fields: &HeaderMap, policy: &Policy) -> Vec<HeaderName> {
    if policy.force {
        return Vec::new();
    }
    let mut names = directives(fields, policy).0.withheld;
    const OF_THE_RESPONSE: [HeaderName; 11] = [
        AGE,
        CACHE_CONTROL,
        CONTENT_ENCODING,
        CONTENT_LENGTH,
        CONTENT_TYPE,
        DATE,
        ETAG,
        EXPIRES,
        LAST_MODIFIED,
        TRANSFER_ENCODING,
        VARY,
    ];
    names.retain(|name| !OF_THE_RESPONSE.contains(name));
    names
}

/// Statuses whose rules for caches we follow, for `must-understand` (RFC 9111 §5.2.2.3).
fn understood(status: u16) -> bool {
    matches!(status, 200..=205 | 300..=303 | 307 | 308 | 400..=411 | 413..=415 | 417 | 421 | 422 | 426 | 500..=505)
}

fn event_stream(fields: &HeaderMap) -> bool {
    fields.get(CONTENT_TYPE).is_some_and(|value| {
        let essence = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or(b"");
        essence.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
    })
}

fn forced(status: u16, policy: &Policy, validator: bool, at: Arrival) -> Result<Life, Rule> {
    let blamed = policy.ttl.any.is_some() && blames_the_request(status);
    let lifetime = policy.ttl.of(status).ok_or(if blamed { Rule::RequestFault } else { Rule::Status })?;
    Ok(Life {
        born: at.now,
        asked: at.asked(),
        received: at.now,
        lifetime,
        stale_while_revalidate: policy.stale_while_revalidate,
        stale_if_error: policy.stale_if_error,
        validate_always: false,
        strict: false,
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
    let (cc, targeted) = directives(&response.headers, policy);
    if cc.must_understand && !understood(response.status.as_u16()) {
        return Err(Rule::Status);
    }
    if cc.no_store && !cc.must_understand {
        return Err(Rule::NoStore);
    }
    if cc.private {
        return Err(Rule::Private);
    }
    if !cc.withheld.contains(&SET_COOKIE) && sets_a_cookie_of_somebody(&response.headers, policy) {
        return Err(Rule::SetCookie);
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
        asked: at.asked(),
        received: at.now,
        lifetime,
        stale_while_revalidate: window(cc.stale_while_revalidate, policy.stale_while_revalidate),
        stale_if_error: window(cc.stale_if_error, policy.stale_if_error),
        validate_always: cc.no_cache,
        strict: strict || cc.s_maxage.is_some(),
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
    let Some(expires) = date::of(fields, EXPIRES, wall) else { return Some(Duration::ZERO) };
    let date = date::of(fields, DATE, wall).unwrap_or(wall);
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
    let modified = date::of(&response.headers, LAST_MODIFIED, wall)?;
    let date = date::of(&response.headers, DATE, wall).unwrap_or(wall);
    let age = date.duration_since(modified).ok()?;
    Some((age / 10).min(Duration::from_secs(86_400)))
}

/// Whether the response would be fresh for a while, all other rules apart.
pub fn would_be_fresh(response: &ResponseHeader, policy: &Policy, wall: SystemTime) -> bool {
    if policy.force {
        return policy.ttl.of(response.status.as_u16()).is_some();
    }
    let (cc, targeted) = directives(&response.headers, policy);
    let explicit = explicit_lifetime(&response.headers, &cc, wall, targeted);
    let lifetime = explicit.or_else(|| heuristic_lifetime(response, &cc, wall));
    !cc.no_store && !cc.no_cache && lifetime.is_some_and(|lifetime| !lifetime.is_zero())
}

/// The corrected initial age (RFC 9111 §4.2.3).
fn initial_age(fields: &HeaderMap, at: Arrival) -> Duration {
    let date = date::of(fields, DATE, at.wall);
    let apparent = date.and_then(|date| at.wall.duration_since(date).ok()).unwrap_or_default();
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
    /// Send it: it is stale, and the request says that this is good enough (RFC 9111 §5.2.1.2).
    Accepted,
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
    let cc = policy.demands(request);
    let pragma = !policy.force
        && !policy.ignore_client_directives
        && !request.contains_key(CACHE_CONTROL)
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
    match life.fresh(now) {
        true => Reuse::Fresh,
        false if !life.strict && cc.max_stale.is_some_and(|limit| life.stale_for(now) <= limit) => Reuse::Accepted,
        false => Reuse::Stale,
    }
}

/// Whether the request forbids to store anything of it or its answer (RFC 9111 §5.2.1.5).
pub fn no_store(request: &HeaderMap, policy: &Policy) -> bool {
    policy.demands(request).no_store
}

/// Whether the request may only be answered from the store (RFC 9111 §5.2.1.7).
pub fn only_if_cached(request: &HeaderMap, policy: &Policy) -> bool {
    policy.demands(request).only_if_cached
}

/// Whether a 304 speaks of this stored response (RFC 9111 §4.3.4): what it says of tag and date is what is
/// stored, and so are the fields that chose the response.
pub fn validates(not_modified: &HeaderMap, stored: &HeaderMap) -> Result<(), Rule> {
    let same = match (not_modified.get(ETAG), stored.get(ETAG)) {
        (Some(tag), Some(stored)) => weakly_equal(tag.as_bytes(), stored.as_bytes()),
        (Some(_), None) => false,
        (None, _) => not_modified.get(LAST_MODIFIED).is_none_or(|date| stored.get(LAST_MODIFIED) == Some(date)),
    };
    if !same {
        return Err(Rule::WrongValidator);
    }
    // The variant was named by the fields of the stored response; another choice would need another name.
    let Ok(named) = vary::nominated(not_modified) else { return Err(Rule::VaryChanged) };
    let before = vary::nominated(stored).unwrap_or_default();
    if named.iter().all(|name| before.contains(name)) { Ok(()) } else { Err(Rule::VaryChanged) }
}

/// Whether the 200 for a `HEAD` shows that a stored response for `GET` is no longer the same (RFC 9111 §4.3.5).
///
/// It is never taken for a confirmation: what has a validator is validated by a conditional `GET`, and
/// of what has none a head without content proves nothing.
pub fn refutes(head: &ResponseHeader, stored: &ResponseHeader) -> bool {
    head.status == 200
        && stored.status == 200
        && [ETAG, LAST_MODIFIED, CONTENT_LENGTH].iter().any(|name| {
            let said = head.headers.get(name);
            said.is_some() && said != stored.headers.get(name)
        })
}

/// Whether the answer to a `POST` may be reused for a `GET` of its target (RFC 9110 §9.3.3): it says how long
/// it is fresh, and that it is what a `GET` would get.
pub fn stands_for_get(response: &ResponseHeader, life: &Life, host: &str, target: &str, policy: &Policy) -> bool {
    let (cc, targeted) = directives(&response.headers, policy);
    let explicit = cc.s_maxage.or(cc.max_age).is_some() || (!targeted && response.headers.contains_key(EXPIRES));
    let mut locations = response.headers.get_all(CONTENT_LOCATION).iter();
    let named = locations.next().and_then(|value| reference::local(value.to_str().ok()?, host, target));
    let same = named.is_some_and(|named| named == target);
    response.status == 200
        && !policy.force
        && same
        && locations.next().is_none()
        && explicit
        && life.rule == Rule::Explicit
        && life.lifetime > Duration::ZERO
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
