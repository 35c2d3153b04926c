//! How parts come into the store (RFC 9111 §3.3): a response that passes by with a part of a whole is taken in, and
//! a request for a whole of which parts are stored asks for what is missing (§3.4).

use http::header::{
    ACCEPT_RANGES, AGE, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE,
};
use http::{HeaderName, Method, StatusCode};
use pingora::cache::CacheKey;
use pingora::cache::key::CacheHashKey;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::prelude::*;
use pingora::proxy::Session;
use pingora::{ErrorSource, ErrorType};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::context::Ctx;
use super::keys::Names;
use crate::cache::Cache;
use crate::cache::fetch::{Lead, Taking};
use crate::cache::leak;
use crate::cache::parts::{self, Arrived, SLICE, Seed, Sheet};
use crate::cache::policy::{self, Arrival, Reuse};
use crate::cache::rule::Rule;
use crate::cache::vary;
use crate::clock::Clock;
use crate::connection::Phase;
use crate::fields::range;
use crate::route::RouteCache;

/// Why an exchange that was there to fetch a slice ended early. Nobody but those who wait for it is told.
pub const NO_SLICE: ErrorType = ErrorType::Custom("NoSlice");

/// What is stored of a whole that a request goes out to complete.
pub struct Completing {
    sheet: Arc<Sheet>,
    seed: Seed,
    /// The first byte that is missing, and the one behind the last.
    gap: (u64, u64),
}

/// What is known of the target, if a part of it may be given for this request without asking.
pub fn usable(cache: &Cache, key: &CacheKey, request: &RequestHeader, ctx: &Ctx, clock: &Clock) -> Option<Arc<Sheet>> {
    let route = ctx.route_cache()?;
    let sheet = cache.sheet(key, |nominated| vary::variant(nominated, &route.chosen, &request.headers))?;
    Some(sheet).filter(|sheet| reusable(sheet, request, ctx, clock))
}

/// Whether a part of it may be given for this request without asking.
pub fn reusable(sheet: &Sheet, request: &RequestHeader, ctx: &Ctx, clock: &Clock) -> bool {
    ctx.route_cache().is_some_and(|route| {
        let life = &sheet.head.life;
        let reuse = policy::reuse(&request.headers, life, &route.policy, ctx.exchange.received, clock.now());
        matches!(reuse, Reuse::Fresh | Reuse::Collapsed)
    })
}

/// What a whole can be completed with, where nothing of it is stored as a whole. All of it may be there.
fn completing(cache: &Cache, key: &CacheKey, request: &RequestHeader, ctx: &Ctx, clock: &Clock) -> Option<Completing> {
    let sheet = usable(cache, key, request, ctx, clock)?;
    if sheet.length > ctx.snapshot.plan.limits.max_object {
        return None;
    }
    let (first, end) = cache.gap(&sheet)?;
    let mut seed = Seed::default();
    let there = cache.row(&sheet, 0, first, &mut seed.before) == first
        && cache.row(&sheet, end, sheet.length, &mut seed.after) == sheet.length;
    (there && (first > 0 || end < sheet.length)).then_some(Completing { sheet, seed, gap: (first, end) })
}

impl Completing {
    /// Whether nothing is missing.
    fn complete(&self) -> bool {
        self.gap.0 == self.gap.1
    }

    /// Asks for what is missing. Without something that names the bytes the answer can only be a whole, or of no use; it
    /// is asked for all the same, for most origins that send no such thing answer ranges with the whole.
    pub fn ask(&self, request: &mut RequestHeader, today: SystemTime) {
        let (first, end) = self.gap;
        let last = if end == self.sheet.length { String::new() } else { (end - 1).to_string() };
        let _ = request.insert_header(RANGE, format!("bytes={first}-{last}"));
        if let Some(condition) = self.sheet.condition(today) {
            let _ = request.insert_header(IF_RANGE, condition.clone());
        }
    }

    /// The head of the whole, if this response brings what is missing.
    pub fn completes(&self, response: &ResponseHeader, today: SystemTime) -> Option<ResponseHeader> {
        let part = parts::part(response).filter(|part| (part.first, part.last + 1) == self.gap)?;
        let fits = self.sheet.fits(part.length, &response.headers, today);
        fits.then(|| parts::merged(&self.sheet.head.response, &parts::whole(response, part.length)))
    }

    /// What is stored already.
    pub fn seed(self) -> Seed {
        self.seed
    }
}

/// The same request once more, for the whole.
pub fn again<T>(ctx: &Ctx) -> Result<T> {
    if let Some(connection) = &ctx.connection {
        connection.enter(Phase::Quiet, Duration::ZERO);
    }
    let mut error = Error::explain(ErrorType::Custom("WrongPart"), "what is stored cannot be completed with this");
    error.esource = ErrorSource::Upstream;
    error.set_retry(true);
    Err(error)
}

/// How a request for a range, or one that finds nothing whole, may be answered. `true` when it goes on as it is.
pub fn miss(cache: &Cache, session: &Session, ctx: &mut Ctx, clock: &Clock) -> bool {
    let request = session.req_header();
    // A key that stands for several queries is not one target.
    let alone = !ctx.cache.not_for_this && ctx.cache.forwarded_at.is_none() && ctx.cache.search.is_none();
    let Some(key) = session.cache.maybe_cache_key().filter(|_| alone && request.method == Method::GET) else {
        return false;
    };
    if !request.headers.contains_key(RANGE) {
        ctx.cache.completing = completing(cache, key, request, ctx, clock);
        if !ctx.cache.completing.as_ref().is_some_and(Completing::complete) {
            return false;
        }
        ctx.cache.completing = None;
    }
    ctx.cache.in_parts = Some(key.clone());
    true
}

/// Takes off a list of ranges that we ignore (RFC 9110 §14.2): the origin would do the work.
pub fn ignore_excess(request: &mut RequestHeader) {
    let mut lines = request.headers.get_all(RANGE).iter();
    let excessive = lines.next().is_some_and(|line| range::excessive(line.as_bytes())) || lines.next().is_some();
    if excessive && request.method == Method::GET {
        request.remove_header(&RANGE);
    }
}

/// Asks for the slice that this exchange is there to fetch, whatever its client asked for.
pub fn ask_for_slice(request: &mut RequestHeader, lead: &Lead) {
    for name in [IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE] {
        request.remove_header(&name);
    }
    let (first, last) = lead.range();
    let _ = request.insert_header(RANGE, format!("bytes={first}-{last}"));
}

/// Takes in what a response brings, if it is a part that may be kept. A slice that was fetched and is none is an
/// error.
pub fn take(
    cache: &'static Cache,
    request: &RequestHeader,
    response: &ResponseHeader,
    ctx: &mut Ctx,
    at: Arrival,
) -> Result<()> {
    if let Some(lead) = ctx.cache.lead.take() {
        let (key, _) = Names::of(request, ctx).map(|names| cache.key(&names.parts()))?;
        match taking(cache, &key, request, response, ctx, at, Some(&lead)) {
            Ok((sheet, part)) => {
                ctx.cache.taking = Some(cache.take_part(sheet, &part, at.asked(), ctx.patience(), Some(lead)));
                return Ok(());
            }
            Err(unfit) => {
                lead.say_nothing();
                let failed = response.status.is_server_error();
                // A range behind the end, or who asks, says nothing about the next one.
                let lasts = matches!(response.status, StatusCode::OK | StatusCode::PARTIAL_CONTENT)
                    && unfit.is_none_or(Rule::lasts);
                if failed || lasts {
                    cache.not_sliced(key.primary_bin(), failed);
                }
            }
        }
        return Error::e_explain(NO_SLICE, "the origin did not send a slice that can be stored");
    }
    if let (Some(key), StatusCode::PARTIAL_CONTENT) = (ctx.cache.in_parts.take(), response.status) {
        match taking(cache, &key, request, response, ctx, at, None) {
            Ok((sheet, part)) => {
                ctx.cache.life = Some(sheet.head.life);
                ctx.cache.taking = Some(cache.take_part(sheet, &part, at.asked(), ctx.patience(), None));
            }
            Err(unfit) => ctx.cache.refused = unfit,
        }
    }
    Ok(())
}

/// A whole that is too long to be stored as one is kept in slices, if the route says so and the origin has them.
pub fn take_whole(
    cache: &'static Cache,
    session: &Session,
    response: &ResponseHeader,
    ctx: &Ctx,
    at: Arrival,
) -> Option<Taking> {
    let ranges = response.headers.get(ACCEPT_RANGES).is_some_and(|unit| unit.as_bytes().eq_ignore_ascii_case(b"bytes"));
    let sliced = response.status == StatusCode::OK && ranges && ctx.route_cache()?.slice.is_some();
    let key = session.cache.maybe_cache_key().filter(|_| sliced && ctx.cache.search.is_none())?;
    let (sheet, part) = taking(cache, key, session.req_header(), response, ctx, at, None).ok()?;
    Some(cache.take_part(sheet, &part, at.asked(), ctx.patience(), None))
}

/// The sheet that a part belongs to; `Err` with the rule that forbids to keep it, if it is one.
fn taking(
    cache: &Cache,
    key: &CacheKey,
    request: &RequestHeader,
    response: &ResponseHeader,
    ctx: &Ctx,
    at: Arrival,
    lead: Option<&Lead>,
) -> Result<(Arc<Sheet>, range::Part), Option<Rule>> {
    let route = ctx.route_cache().ok_or(None)?;
    let part = parts::part(response).ok_or(None)?;
    let short = route.slice.is_some() || part.size() <= ctx.snapshot.plan.limits.max_object;
    let meant = lead.is_none_or(|lead| response.status == StatusCode::PARTIAL_CONTENT && lead.meant(&part));
    if !short || !meant || response.headers.contains_key("no-vary-search") {
        return Err(None);
    }
    let whole = parts::whole(response, part.length);
    let life = leak::judge(request, &whole, &route.policy, &route.chosen.headers, at)?;
    let mut head = response.clone();
    head.remove_header(&AGE);
    for name in policy::withheld(&response.headers, &route.policy) {
        head.remove_header(&name);
    }
    let variant = |nominated: &[HeaderName]| vary::variant(nominated, &route.chosen, &request.headers);
    let conditional = lead.is_none() && request.headers.contains_key(IF_RANGE);
    let slice = lead.map_or_else(|| slice(route), Lead::slice);
    let sheet = cache.open(key, variant, &Arrived { response: &head, part, life, slice, conditional });
    let sheet = sheet.ok_or(Some(Rule::Invalidated))?;
    // Of what nothing names the bytes, two slices are never one response.
    if lead.is_some() && !sheet.strong { Err(None) } else { Ok((sheet, part)) }
}

/// How long slices of this route are.
fn slice(route: &RouteCache) -> u64 {
    route.slice.unwrap_or(SLICE)
}
