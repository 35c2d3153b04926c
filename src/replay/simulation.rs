//! One configuration, given the requests of a log: the real router, keys, policy and map, and a clock that the log
//! moves.
//!
//! Contents are not there, only their lengths; a stored response weighs what it would weigh in the proxy.

use std::time::Duration;

use http::header::{AGE, CONTENT_LENGTH, CONTENT_LOCATION, HOST, LOCATION, RANGE};
use http::{HeaderValue, Method};
use pingora::cache::CacheKey;
use pingora::cache::key::{CacheHashKey, HashBinary};
use pingora::http::{RequestHeader, ResponseHeader};

use super::assume::{Assumptions, Source};
use super::line::{Line, Stamp};
use super::stock::{Kept, New, Stock};
use super::tally::{Counts, Outcome, Timeline, Word};
use crate::cache::key::Parts;
use crate::cache::leak;
use crate::cache::policy::{self, Arrival, Reuse};
use crate::catch::catch;
use crate::clock::{Clock, Moment};
use crate::config::Plan;
use crate::exchange::Exchange;
use crate::fields::authority;
use crate::fields::cache_status::Forward;
use crate::fields::forwarded::is_about_the_client;
use crate::memory::{Memory, Usage};
use crate::proxy::{guard, keys};
use crate::route::{Destination, Route, RouteCache};

/// How often the proxy gives back the memory of what is of no use any more.
const SWEEP: Duration = Duration::from_secs(1);
/// Bytes for what is remembered of lengths.
const REMEMBERED: u64 = 16 << 20;

/// Whose word about freshness counted, by requests for which a response was needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sources {
    /// Requests on cached routes.
    pub cached: u64,
    /// The route's.
    pub route: u64,
    /// The log's.
    pub log: u64,
    /// `--fresh`.
    pub assumed: u64,
    /// Nobody's.
    pub nowhere: u64,
    /// Requests whose content has a length that the log does not say (304).
    pub lengths: u64,
    /// Requests for a part of a response that is not stored as a whole.
    pub parts: u64,
    /// Requests that the client gave up: what they would have brought in is not known.
    pub given_up: u64,
}

/// The proxy with this configuration.
pub struct Simulation<'a> {
    plan: &'a Plan,
    assume: &'a Assumptions,
    stock: Stock,
    lengths: Memory<HashBinary, u64>,
    seen: (u64, u64),
    base: Moment,
    start: Stamp,
    swept: Moment,
    /// In all.
    pub total: Counts,
    /// By route, and what no route answers at the end.
    pub routes: Vec<Counts>,
    /// Over time.
    pub timeline: Timeline,
    /// What the figures stand on.
    pub sources: Sources,
}

/// A request on its way.
struct Asked<'a> {
    line: &'a Line,
    head: RequestHeader,
    route: &'a Route,
    cache: &'a RouteCache,
    upstream: &'a str,
    now: Moment,
}

impl<'a> Simulation<'a> {
    /// An empty store before the first request, which came then.
    pub fn new(plan: &'a Plan, assume: &'a Assumptions, start: Stamp) -> Self {
        let base = Clock::system().now();
        Simulation {
            plan,
            assume,
            stock: Stock::new(&plan.limits),
            lengths: Memory::new(REMEMBERED),
            seen: (0, 0),
            base,
            start,
            swept: base,
            total: Counts::default(),
            routes: vec![Counts::default(); plan.router.routes.len() + 1],
            timeline: Timeline::new(start),
            sources: Sources::default(),
        }
    }

    /// What is stored.
    pub fn usage(&self) -> Usage {
        self.stock.usage()
    }

    /// The next request.
    pub fn take(&mut self, line: &Line) {
        let now = self.base.after(Duration::from_nanos(line.at.saturating_sub(self.start)));
        if now.since(self.swept) >= SWEEP {
            self.swept = now;
            self.stock.sweep(now);
        }
        let (number, outcome) = self.ask(line, now);
        self.total.count(outcome, line.bytes);
        self.routes[number].count(outcome, line.bytes);
        self.timeline.count(line.at, outcome);
    }

    /// Which route answers, and how.
    fn ask(&mut self, line: &Line, now: Moment) -> (usize, Outcome) {
        let (nobody, nothing) = (self.routes.len() - 1, Outcome::without(Word::None));
        let Some(mut head) = request(line, &self.assume.host) else { return (nobody, nothing) };
        let plan = self.plan;
        if !guard::admits(&head, &plan.settings.limits) {
            return (nobody, nothing);
        }
        let host = self.assume.host(line).to_ascii_lowercase();
        let path = line.target.split('?').next().unwrap_or_default();
        let found = plan.router.find(authority::without_port(&host), path, &line.method, &head.headers);
        let Ok(Some(route)) = found else { return (nobody, nothing) };
        let number = route.number;
        let Destination::Proxy(upstream) = &route.destination else { return (number, nothing) };
        // Who says another host, address or method is not believed.
        for (name, _) in line.request.iter().filter(|(name, _)| is_about_the_client(name.as_str())) {
            head.remove_header(name);
        }
        if route.chain.rewrites() {
            let mut exchange = exchange(line, now, &host);
            if catch(|| route.chain.request_head(&mut head, &mut exchange)).is_err() {
                return (number, nothing);
            }
        }
        self.invalidate(line, &head);
        let Some(cache) = &route.cache else { return (number, Outcome::with(Word::None, line.bytes)) };
        let asked = Asked { line, head, route, cache, upstream: &upstream.name, now };
        (number, self.cached(asked))
    }

    /// A request on a cached route.
    fn cached(&mut self, mut asked: Asked<'_>) -> Outcome {
        let (line, now, policy) = (asked.line, asked.now, &asked.cache.policy);
        self.sources.cached += 1;
        let has_content = asked.head.headers.get(CONTENT_LENGTH).is_some_and(|length| length != "0");
        if let Err((forward, _)) = policy::admit(&asked.head, has_content, policy) {
            let word = match forward {
                Forward::Bypass | Forward::Method | Forward::Request => Word::Bypass,
                _ => Word::Miss,
            };
            return Outcome::with(word, line.bytes);
        }
        if let Some(form) =
            std::str::from_utf8(asked.head.raw_path()).ok().map(|target| asked.cache.query.apply(target))
            && let std::borrow::Cow::Owned(form) = form
        {
            let _ = asked.head.set_raw_path(form.as_bytes());
        }
        match self.assume.source(line, policy) {
            Source::Route => self.sources.route += 1,
            Source::Log => self.sources.log += 1,
            Source::Assumed => self.sources.assumed += 1,
            Source::Nowhere => self.sources.nowhere += 1,
        }
        let key = self.key(&asked);
        let found = self.stock.find(&key, &asked.cache.chosen, &asked.head.headers, now);
        let length = self.length(line, found.as_ref(), key.primary_bin(), now);
        let part = line.method == Method::HEAD || matches!(line.status, 206 | 416);
        let Some(found) = found else { return self.fetch(&asked, &key, Word::Miss, length, part, None) };
        let life = found.stored.head.life;
        match policy::reuse(&asked.head.headers, &life, policy, now, now) {
            Reuse::Fresh | Reuse::Accepted => Outcome::without(Word::Hit),
            Reuse::Collapsed if found.behind => Outcome::without(Word::Hit),
            Reuse::Collapsed => Outcome::without(Word::Collapsed),
            Reuse::Outdated => self.fetch(&asked, &key, Word::Miss, length, part, None),
            Reuse::NotForThis => self.fetch(&asked, &key, Word::Miss, length, true, None),
            Reuse::Stale if life.stale_for(now) < life.stale_while_revalidate => {
                let behind = self.fetch(&asked, &key, Word::Stale, length, false, Some(&found));
                Outcome { word: Word::Hit, ..behind }
            }
            Reuse::Stale if failed(line.status) && life.stale_for(now) < life.stale_if_error => {
                Outcome::with(Word::Stale, 0)
            }
            Reuse::Stale | Reuse::Validate => {
                let part = part && !life.validator;
                self.fetch(&asked, &key, Word::Stale, length, part, Some(&found))
            }
        }
    }

    /// Asks the origin, and stores what it says if that may be stored. A part of a response is passed on as it is.
    fn fetch(
        &mut self,
        asked: &Asked<'_>,
        key: &CacheKey,
        word: Word,
        length: u64,
        part: bool,
        stale: Option<&Kept>,
    ) -> Outcome {
        let line = asked.line;
        // Who asks conditionally, or for nothing but the head, is answered from the whole.
        let status = if line.status == 304 { 200 } else { line.status };
        let from_origin = if line.method == Method::HEAD { 0 } else { length };
        self.sources.given_up += u64::from(matches!(status, 0 | 499));
        let Some(response) = self.assume.response(line, status, length, &asked.cache.policy) else {
            return Outcome::with(word, line.bytes);
        };
        let validated = stale.filter(|found| {
            let stored = &found.stored.head;
            stored.life.validator && self.assume.confirms(&stored.response, &response)
        });
        if part && validated.is_none() {
            self.sources.parts += u64::from(line.method != Method::HEAD);
            return Outcome::with(word, if line.method == Method::HEAD { 0 } else { line.bytes });
        }
        let behind = stale.is_some_and(|found| {
            let life = found.stored.head.life;
            word == Word::Stale && life.stale_for(asked.now) < life.stale_while_revalidate
        });
        let outcome = match validated {
            Some(_) => Outcome::with(Word::Validated, 0),
            None => Outcome::with(word, from_origin),
        };
        if !matches!(line.status, 206 | 416) && line.method != Method::HEAD {
            self.store(asked, key, response, length, behind);
        } else if let Some(found) = validated.or(stale.filter(|_| behind)) {
            // The log tells of a part; the whole is what it was.
            let whole = &found.stored;
            self.store(asked, key, whole.head.response.clone(), whole.content.length, behind);
        }
        outcome
    }

    fn store(&mut self, asked: &Asked<'_>, key: &CacheKey, mut response: ResponseHeader, length: u64, behind: bool) {
        let (line, policy) = (asked.line, &asked.cache.policy);
        let took = line.took.unwrap_or_default();
        // What took no time that we know of is there when the next request comes.
        let received = if took.is_zero() { asked.now.before(Duration::from_nanos(1)) } else { asked.now.after(took) };
        let at =
            Arrival { now: received, wall: line.wall() + took, delay: took, age: policy::said_age(&response.headers) };
        response.remove_header(&AGE);
        if policy.strip_set_cookie {
            response.remove_header(&http::header::SET_COOKIE);
        }
        let life = match leak::judge(&asked.head, &response, policy, &asked.cache.chosen.headers, at) {
            Ok(_) if length > self.plan.limits.max_object => return,
            Ok(life) => life,
            // What the origin does not let us store now, it does not let us use.
            Err(rule) if rule.lasts() => return self.stock.forget(key, asked.now),
            Err(_) => return,
        };
        for name in policy::withheld(&response.headers, policy) {
            response.remove_header(&name);
        }
        let (request, chosen) = (&asked.head.headers, &asked.cache.chosen);
        self.stock.keep(key, New { request, chosen, response, length, life, behind }, asked.now);
    }

    fn key(&self, asked: &Asked<'_>) -> CacheKey {
        let host = keys::host(&asked.head.headers);
        self.stock.key(&Parts {
            scheme: scheme(asked.line),
            host: &host,
            forwarded_host: b"",
            target: asked.head.raw_path(),
            upstream: asked.upstream,
            selector: &asked.route.selector,
        })
    }

    /// How long the whole response is. A 304 does not say it: what is stored counts, what was seen last for this
    /// target, or else the mean of all.
    fn length(&mut self, line: &Line, found: Option<&Kept>, primary: HashBinary, now: Moment) -> u64 {
        if line.status != 304 {
            if line.status == 200 && line.method == Method::GET && found.is_none() {
                self.seen = (self.seen.0 + 1, self.seen.1.saturating_add(line.bytes));
                self.lengths.put(primary, line.bytes, 8, None, now);
            }
            return line.bytes;
        }
        self.sources.lengths += 1;
        found.map(|kept| kept.stored.content.length).or_else(|| self.lengths.get(&primary, now)).unwrap_or_else(|| {
            let (count, sum) = self.seen;
            sum.checked_div(count).unwrap_or_default()
        })
    }

    /// A successful unsafe request takes out what is stored for its target, on every route that might have stored it.
    fn invalidate(&self, line: &Line, head: &RequestHeader) {
        let status = http::StatusCode::from_u16(line.status).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
        if !policy::invalidates(&line.method, status) {
            return;
        }
        let now = self.base.after(Duration::from_nanos(line.at.saturating_sub(self.start)));
        let named = line.response.iter().filter(|(name, _)| matches!(*name, LOCATION | CONTENT_LOCATION));
        keys::changed(head, named.map(|(_, value)| value), scheme(line), &self.plan.selectors, |parts| {
            self.stock.forget(&self.stock.key(parts), now);
        });
    }
}

fn scheme(line: &Line) -> &'static str {
    if line.https { "https" } else { "http" }
}

/// Statuses of the origin that `stale-if-error` stands in for.
fn failed(status: u16) -> bool {
    matches!(status, 500 | 502 | 503 | 504)
}

/// The request's head as far as it is known.
fn request(line: &Line, assumed_host: &str) -> Option<RequestHeader> {
    let size = line.request.len() + 2;
    let mut head = RequestHeader::build_no_case(line.method.clone(), line.target.as_bytes(), Some(size)).ok()?;
    let host = HeaderValue::from_str(line.host.as_deref().unwrap_or(assumed_host)).ok()?;
    head.insert_header(HOST, host).ok()?;
    for (name, value) in &line.request {
        // A part of a response is told by its status; what was asked for may have changed since.
        if !matches!(*name, HOST | RANGE) {
            head.append_header(name.clone(), value.clone()).ok()?;
        }
    }
    Some(head)
}

fn exchange(line: &Line, now: Moment, host: &str) -> Exchange {
    let mut exchange = Exchange::new(now, [127, 0, 0, 1].into());
    exchange.received_at = line.wall();
    exchange.scheme = scheme(line);
    exchange.host = host.to_owned();
    exchange.method = line.method.clone();
    exchange.target = line.target.clone();
    exchange
}

#[cfg(test)]
#[path = "simulation_tests.rs"]
mod tests;
