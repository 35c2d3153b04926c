//! Answers that are put together of parts, and how parts come into the store (RFC 9111 §3.3 and §3.4).
//!
//! The engine's cache knows wholes only. Where it has none, a request for a range is answered here, from what is
//! stored of the target; where the route has a `slice`, what is missing is fetched by the slice, each by an
//! exchange of its own, for all who wait. A response that passes by with a part of the whole is taken in.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use http::header::{
    AGE, AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    IF_RANGE, IF_UNMODIFIED_SINCE, RANGE,
};
use http::{HeaderName, Method, StatusCode};
use pingora::cache::CacheKey;
use pingora::cache::key::CacheHashKey;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::prelude::*;
use pingora::proxy::Session;
use pingora::proxy::subrequest::Ctx as Subrequest;
use pingora::{ErrorSource, ErrorType};

use super::context::Ctx;
use super::keys::Names;
use super::seal::{Made, seal};
use super::{Proxy, reply};
use crate::cache::Cache;
use crate::cache::fetch::{Lead, Taking};
use crate::cache::fill::Reader;
use crate::cache::parts::{self, SLICE, Seed, Sheet};
use crate::cache::policy::{self, Arrival, Reuse};
use crate::cache::vary;
use crate::clock::Clock;
use crate::connection::Phase;
use crate::fields::conditional::{if_range_holds, not_modified};
use crate::fields::range::{self, One, Part};
use crate::route::RouteCache;

/// Milliseconds after a try to get a slice, when its origin has failed or too many bytes are arriving at once.
const PAUSES: [u64; 7] = [50, 100, 200, 400, 800, 1600, 0];

/// Where the parts of an answer come from.
#[derive(Debug, Clone, Copy, Default)]
pub struct Composed {
    /// Some of it was not stored, or none.
    pub fetched: bool,
    /// Some of it was stored.
    pub stored: bool,
    /// What was missing was fetched for another request.
    pub collapsed: bool,
}

/// What is stored of a whole that a request goes out to complete.
pub struct Completing {
    sheet: Arc<Sheet>,
    seed: Seed,
    /// First and last byte of the gap.
    gap: (u64, u64),
}

/// The key of this request, unless it stands for other queries too.
fn key(cache: &Cache, request: &RequestHeader, ctx: &Ctx) -> Option<CacheKey> {
    let (key, search) = cache.key(&Names::of(request, ctx).ok()?.parts());
    search.is_none().then_some(key)
}

/// What is known of the target, if a part of it may be given for this request without asking.
fn usable(cache: &Cache, key: &CacheKey, request: &RequestHeader, ctx: &Ctx, clock: &Clock) -> Option<Arc<Sheet>> {
    let route = ctx.route_cache()?;
    let sheet = cache.sheet(key, |nominated| vary::variant(nominated, &route.chosen, &request.headers))?;
    let reuse = policy::reuse(&request.headers, &sheet.head.life, &route.policy, ctx.exchange.received, clock.now());
    matches!(reuse, Reuse::Fresh | Reuse::Collapsed).then_some(sheet)
}

/// How long slices of this route are.
fn slice(route: &RouteCache) -> u64 {
    route.slice.unwrap_or(SLICE)
}

/// What a whole can be completed with, where nothing of it is stored as a whole. All of it may be there.
pub fn completing(cache: &Cache, request: &RequestHeader, ctx: &Ctx, clock: &Clock) -> Option<Completing> {
    let sheet = usable(cache, &key(cache, request, ctx)?, request, ctx, clock)?;
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
    pub fn complete(&self) -> bool {
        self.gap.0 == self.gap.1
    }

    /// Asks for what is missing.
    pub fn ask(&self, request: &mut RequestHeader) {
        let (first, end) = self.gap;
        let range =
            if end == self.sheet.length { format!("bytes={first}-") } else { format!("bytes={first}-{}", end - 1) };
        let _ = request.insert_header(RANGE, range);
        if let Some(condition) = self.sheet.condition() {
            let _ = request.insert_header(IF_RANGE, condition.clone());
        }
    }

    /// The head of the whole, if this response brings what is missing.
    fn completes(&self, response: &ResponseHeader) -> Option<ResponseHeader> {
        let part = parts::part(response).filter(|part| (part.first, part.last + 1) == self.gap)?;
        let fits = self.sheet.fits(&part, &response.headers);
        fits.then(|| parts::merged(&self.sheet.head.response, &parts::whole(response, part.length)))
    }
}

/// Makes a whole of the response to a request that went out to complete one. `Err` when it does not: the origin is
/// asked again then, for everything.
pub fn completed(response: &mut ResponseHeader, ctx: &mut Ctx) -> Result<()> {
    let Some(completing) = ctx.cache.completing.take() else { return Ok(()) };
    if !matches!(response.status, StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE) {
        return Ok(());
    }
    match completing.completes(response) {
        Some(whole) => {
            *response = whole;
            ctx.cache.seed = Some(completing.seed);
            ctx.cache.completed = true;
            Ok(())
        }
        None => again(),
    }
}

/// The same request once more.
pub fn again<T>() -> Result<T> {
    let mut error = Error::explain(ErrorType::Custom("WrongPart"), "what is stored cannot be completed with this");
    error.esource = ErrorSource::Upstream;
    error.set_retry(true);
    Err(error)
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
/// error; nobody but the fetch is told.
pub fn take(
    cache: &'static Cache,
    request: &RequestHeader,
    response: &ResponseHeader,
    ctx: &mut Ctx,
    at: Arrival,
) -> Result<()> {
    let lead = ctx.cache.lead.take();
    let fetching = lead.is_some();
    if !fetching && (!ctx.cache.in_parts || response.status != StatusCode::PARTIAL_CONTENT) {
        return Ok(());
    }
    ctx.cache.taking = taking(cache, request, response, ctx, at, lead);
    match fetching && ctx.cache.taking.is_none() {
        true => Error::e_explain(ErrorType::WriteError, "the origin did not send a slice that can be stored"),
        false => Ok(()),
    }
}

/// A whole that is too long to be stored as one is kept in slices, if the route says so.
pub fn take_whole(
    cache: &'static Cache,
    request: &RequestHeader,
    response: &ResponseHeader,
    ctx: &Ctx,
    at: Arrival,
) -> Option<Taking> {
    let sliced = response.status == StatusCode::OK && ctx.route_cache()?.slice.is_some();
    if sliced { taking(cache, request, response, ctx, at, None) } else { None }
}

fn taking(
    cache: &'static Cache,
    request: &RequestHeader,
    response: &ResponseHeader,
    ctx: &Ctx,
    at: Arrival,
    lead: Option<Lead>,
) -> Option<Taking> {
    let route = ctx.route_cache()?;
    let key = key(cache, request, ctx)?;
    let slice = lead.as_ref().map_or_else(|| slice(route), Lead::slice);
    let kept = || {
        let part = parts::part(response)?;
        let short = route.slice.is_some() || part.size() <= ctx.snapshot.plan.limits.max_object;
        let meant = lead.as_ref().is_none_or(|lead| response.status == 206 && lead.meant(&part));
        if !short || !meant || response.headers.contains_key("no-vary-search") {
            return None;
        }
        let whole = parts::whole(response, part.length);
        let life = policy::judge(&request.headers, &whole, &route.policy, at).ok()?;
        Some((part, life))
    };
    let Some((part, life)) = kept() else {
        // A failure, or a range behind the end, says nothing about the next one.
        if lead.is_some() && matches!(response.status, StatusCode::OK | StatusCode::PARTIAL_CONTENT) {
            cache.not_sliced(key.primary_bin());
        }
        return None;
    };
    let mut head = response.clone();
    head.remove_header(&AGE);
    for name in policy::withheld(&response.headers, &route.policy) {
        head.remove_header(&name);
    }
    let variant = |nominated: &[HeaderName]| vary::variant(nominated, &route.chosen, &request.headers);
    let sheet = cache.open(&key, variant, &head, &part, life, slice)?;
    Some(cache.take_part(sheet, &part, life.asked, ctx.patience(), lead))
}

/// What to answer with.
enum Answer {
    /// The bytes from the first up to, and not with, the end.
    Bytes(ResponseHeader, u64, u64),
    /// A head alone.
    Head(ResponseHeader),
}

/// What this request gets of a response of which parts are known; `None` when the origin has to be asked.
fn decide(request: &RequestHeader, sheet: &Sheet, clock: &Clock, ctx: &Ctx) -> Option<Answer> {
    let mut head = sheet.head.response.clone();
    if not_modified(request, &head, clock.wall()) {
        let _ = head.set_status(StatusCode::NOT_MODIFIED);
        for name in [CONTENT_LENGTH, CONTENT_TYPE] {
            head.remove_header(&name);
        }
        return Some(Answer::Head(head));
    }
    let Some(asked) = request.headers.get(RANGE) else { return Some(Answer::Bytes(head, 0, sheet.length)) };
    let by_date = request.headers.get(IF_RANGE).is_some_and(|value| !value.as_bytes().ends_with(b"\""));
    if !if_range_holds(&request.headers, &head.headers) || (by_date && ctx.exchange.doubts_dates(&head)) {
        return None;
    }
    let Some((first, last)) = range::single(asked.as_bytes())?.within(sheet.length) else {
        super::caching::unsatisfiable(&mut head, sheet.length);
        return Some(Answer::Head(head));
    };
    let part = Part { first, last, length: sheet.length };
    let _ = head.set_status(StatusCode::PARTIAL_CONTENT);
    let _ = head.insert_header(CONTENT_RANGE, part.to_string());
    let _ = head.insert_header(CONTENT_LENGTH, part.size());
    Some(Answer::Bytes(head, first, last + 1))
}

/// Answers from parts, if that can be done. `false` when the request has to go to the origin as it is.
pub async fn answer(proxy: &Proxy, session: &mut Session, ctx: &mut Ctx) -> Result<bool> {
    if !ctx.cache.in_parts {
        return Ok(false);
    }
    let (cache, request) = (proxy.cache, session.req_header());
    let conditions = [IF_MATCH, IF_UNMODIFIED_SINCE].iter().any(|name| request.headers.contains_key(name));
    if conditions || request.headers.get_all(RANGE).iter().count() > 1 {
        return Ok(false);
    }
    let Some(key) = key(cache, request, ctx) else { return Ok(false) };
    let mut composed = Composed::default();
    let mut coming = None;
    let mut sheet = usable(cache, &key, request, ctx, &proxy.clock);
    if sheet.is_none()
        && let Some(at) = first_slice(proxy, session, ctx, &key)
        && let Some(fetched) = fetch(proxy, session, ctx, &key, at).await
    {
        composed = Composed { fetched: true, collapsed: fetched.collapsed, ..composed };
        let now = usable(cache, &key, session.req_header(), ctx, &proxy.clock);
        sheet = now.filter(|sheet| sheet.generation == fetched.sheet.generation);
        coming = Some((at, fetched.reader));
    }
    let Some(sheet) = sheet else { return Ok(false) };
    let answer = decide(session.req_header(), &sheet, &proxy.clock, ctx);
    let (head, first, end) = match answer {
        None => return Ok(false),
        Some(Answer::Bytes(head, first, end)) => (head, first, end),
        Some(Answer::Head(head)) => (head, 0, 0),
    };
    // Without slices all of it is here, or the origin is asked.
    let sliced = head.status == 206 && ctx.route_cache().and_then(|route| route.slice) == Some(sheet.slice);
    let mut all = Vec::new();
    if !sliced && cache.row(&sheet, first, end, &mut all) < end {
        return Ok(false);
    }
    if !composed.fetched {
        let fetched = sliced && cache.reach(&sheet, first, end) < end;
        composed = Composed { stored: true, fetched, ..composed };
    }
    ctx.cache.life = Some(sheet.head.life);
    ctx.cache.composed = Some(composed);
    if !send_head(proxy, session, ctx, head, first == end).await? || first == end {
        return Ok(true);
    }
    for piece in all {
        session.write_response_body(Some(piece), false).await?;
    }
    if sliced {
        let whole = Sliced { proxy, key: &key, sheet: &sheet };
        let mut at = first;
        while at < end {
            at = whole.send(session, ctx, at, end, coming.take()).await?;
        }
    }
    session.write_response_body(None, true).await?;
    Ok(true)
}

/// Sends the head; `false` when a page has left in its place.
async fn send_head(
    proxy: &Proxy,
    session: &mut Session,
    ctx: &mut Ctx,
    mut head: ResponseHeader,
    alone: bool,
) -> Result<bool> {
    ctx.draining = proxy.draining.load(Relaxed);
    if seal(session, &mut head, ctx, &proxy.clock, Made::There).is_err() {
        let page = reply::page(500, ctx);
        reply::send(session, ctx, &proxy.clock, page).await?;
        return Ok(false);
    }
    if let Some(connection) = &ctx.connection {
        connection.enter(Phase::Quiet, Duration::ZERO);
    }
    session.write_response_header(Box::new(head), alone).await?;
    Ok(true)
}

/// A response whose slices are stored, or fetched as they are needed.
struct Sliced<'a> {
    proxy: &'a Proxy,
    key: &'a CacheKey,
    sheet: &'a Sheet,
}

impl Sliced<'_> {
    /// The slice that begins there, of this very response. The head has left, so it is worth another try.
    async fn fetch(&self, session: &Session, ctx: &Ctx, begins: u64) -> Option<Reader> {
        for pause in PAUSES {
            if let Some(Fetched { sheet, reader, .. }) = fetch(self.proxy, session, ctx, self.key, begins).await {
                return (sheet.generation == self.sheet.generation).then_some(reader);
            }
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        None
    }

    /// Sends what there is of one slice, from the store or as it comes; where it ends.
    async fn send(
        &self,
        session: &mut Session,
        ctx: &Ctx,
        at: u64,
        end: u64,
        coming: Option<(u64, Reader)>,
    ) -> Result<u64> {
        let begins = at / self.sheet.slice * self.sheet.slice;
        let stop = end.min(begins + self.sheet.slice);
        let mut coming = coming.filter(|(at, _)| *at == begins).map(|(_, reader)| reader);
        if coming.is_none() {
            let mut pieces = Vec::new();
            let reached = self.proxy.cache.stretch(self.sheet, at, stop, &mut pieces);
            for piece in pieces {
                session.write_response_body(Some(piece), false).await?;
            }
            if reached > at {
                return Ok(reached);
            }
            coming = self.fetch(session, ctx, begins).await;
        }
        let Some(mut reader) = coming else {
            let error = Error::explain(ErrorType::ConnectionClosed, "the rest is not to be had any more");
            return Err(error.into_up());
        };
        reader.seek(at - begins, Some(stop - begins))?;
        let mut reached = at;
        while let Some(piece) = reader.next().await? {
            reached += piece.len() as u64;
            session.write_response_body(Some(piece), false).await?;
        }
        match reached == stop {
            true => Ok(stop),
            false => Err(Error::explain(ErrorType::ConnectionClosed, "the slice is shorter than it was").into_up()),
        }
    }
}

/// Where the first slice begins that a request asks for, if it may be fetched although nothing is known yet.
fn first_slice(proxy: &Proxy, session: &Session, ctx: &Ctx, key: &CacheKey) -> Option<u64> {
    let (fields, slice) = (&session.req_header().headers, ctx.route_cache()?.slice?);
    let Some(One::From(first, _)) = range::single(fields.get(RANGE)?.as_bytes()) else { return None };
    // What comes for somebody's credentials is seldom for others.
    let anybody = !fields.contains_key(AUTHORIZATION) && proxy.cache.sliceable(key.primary_bin());
    (anybody && !super::caching::only_if_cached(session, ctx)).then(|| first / slice * slice)
}

/// A slice that comes.
struct Fetched {
    sheet: Arc<Sheet>,
    reader: Reader,
    collapsed: bool,
}

/// Has the slice fetched that this byte is in, if nobody has yet.
async fn fetch(proxy: &Proxy, session: &Session, ctx: &Ctx, key: &CacheKey, at: u64) -> Option<Fetched> {
    let slice = ctx.route_cache()?.slice?;
    let spawner = session.subrequest_spawner.as_ref()?;
    let timeouts = &ctx.upstream()?.timeouts;
    let (route, request) = (ctx.route_cache()?, session.req_header());
    let variant = |nominated: &[HeaderName]| vary::variant(nominated, &route.chosen, &request.headers);
    let (fetch, lead) = proxy.cache.fetch(key, variant, at, slice)?;
    let collapsed = lead.is_none();
    if lead.is_some() {
        let context = Subrequest::builder().user_ctx(Box::new(lead)).build();
        spawner.spawn_background_subrequest(session.as_ref(), context);
    }
    let (sheet, reader) = fetch.comes(timeouts.connect + timeouts.first_byte).await?;
    Some(Fetched { sheet, reader, collapsed })
}

/// The right to fetch that an exchange was begun with.
pub fn lead(session: &mut Session) -> Option<Lead> {
    let context = session.subrequest_ctx.as_mut()?.user_ctx_mut()?;
    context.downcast_mut::<Option<Lead>>()?.take()
}

/// How a request for a range, or one that finds nothing whole, may be answered. `true` when it goes on as it is.
pub fn miss(cache: &Cache, session: &mut Session, ctx: &mut Ctx, clock: &Clock) -> bool {
    if session.req_header().method != Method::GET || ctx.cache.not_for_this || ctx.cache.forwarded_at.is_some() {
        return false;
    }
    if let Some(value) = session.req_header().headers.get(RANGE) {
        // Nobody's to send on: the origin would do the work.
        if range::excessive(value.as_bytes()) {
            session.req_header_mut().remove_header(&RANGE);
            return false;
        }
        ctx.cache.in_parts = true;
        return true;
    }
    ctx.cache.completing = completing(cache, session.req_header(), ctx, clock);
    ctx.cache.in_parts = ctx.cache.completing.as_ref().is_some_and(Completing::complete);
    if ctx.cache.in_parts {
        ctx.cache.completing = None;
    }
    ctx.cache.in_parts
}
