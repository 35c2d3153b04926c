//! Answers that are put together of parts.
//!
//! The engine's cache knows wholes only. Where it has none, a request for a range is answered here from what is
//! stored of the target. Where the route has a `slice`, what is missing is fetched by the slice, each by an exchange
//! of its own, for all who wait for it. The first slice that is missing is there before the head leaves: until then,
//! the request can still go to the origin as it is.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, IF_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE,
};
use http::{HeaderName, StatusCode};
use pingora::ErrorType;
use pingora::cache::CacheKey;
use pingora::cache::key::CacheHashKey;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::prelude::*;
use pingora::proxy::Session;
use pingora::proxy::subrequest::Ctx as Subrequest;

use super::context::Ctx;
use super::seal::{Made, seal};
use super::taking::{reusable, usable};
use super::{Proxy, Snapshot, caching, reply, serving};
use crate::cache::fetch::Lead;
use crate::cache::fill::Reader;
use crate::cache::parts::Sheet;
use crate::cache::vary;
use crate::clock::Clock;
use crate::connection::Phase;
use crate::fields::conditional::{if_range_holds, not_modified};
use crate::fields::range::{self, One, Part};
use crate::fields::validators::strong_date;

/// Milliseconds after a try to get a slice once the head has left, when its origin has failed or too many bytes are
/// arriving at once.
const PAUSES: [u64; 6] = [50, 100, 200, 400, 800, 1600];

/// Where the parts of an answer come from.
#[derive(Debug, Clone, Copy, Default)]
pub struct Composed {
    /// Some of it was not stored, or none.
    pub fetched: bool,
    /// What was missing was fetched for another request.
    pub collapsed: bool,
}

/// What an exchange that fetches a slice is begun with: its duty, and the configuration of the one that wants it.
type Errand = Option<(Lead, Arc<Snapshot>)>;

/// Takes over what this exchange was begun for, if it is there to fetch a slice.
pub fn errand(session: &mut Session, ctx: &mut Ctx) {
    let context = session.subrequest_ctx.as_mut().and_then(|context| context.user_ctx_mut());
    let errand = context.and_then(|context| context.downcast_mut::<Errand>()).and_then(Option::take);
    if let Some((lead, snapshot)) = errand {
        ctx.cache.lead = Some(lead);
        ctx.snapshot = snapshot;
    }
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
    let doubtful = || strong_date(&head.headers, clock.wall()).is_none() || ctx.exchange.doubts_dates(&head);
    if !if_range_holds(&request.headers, &head.headers) || (by_date && doubtful()) {
        return None;
    }
    let Some((first, last)) = range::single(asked.as_bytes())?.within(sheet.length) else {
        serving::unsatisfiable(&mut head, sheet.length);
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
    let Some(key) = ctx.cache.in_parts.clone() else { return Ok(false) };
    let (cache, request) = (proxy.cache, session.req_header());
    if [IF_MATCH, IF_UNMODIFIED_SINCE].iter().any(|name| request.headers.contains_key(name)) {
        return Ok(false);
    }
    let mut coming = None;
    let mut sheet = usable(cache, &key, request, ctx, &proxy.clock);
    let known = sheet.is_some();
    if !known && let Some(at) = first_slice(session, ctx) {
        let fetched = fetch(proxy, session, ctx, &key, at).await;
        sheet = fetched.as_ref().map(|fetched| fetched.sheet.clone());
        coming = fetched;
    }
    let Some(sheet) = sheet else { return Ok(false) };
    let (head, first, end) = match decide(session.req_header(), &sheet, &proxy.clock, ctx) {
        None => return Ok(false),
        Some(Answer::Bytes(head, first, end)) => (head, first, end),
        Some(Answer::Head(head)) => (head, 0, 0),
    };
    let sliced = head.status == 206 && sheet.strong && ctx.route_cache().and_then(|it| it.slice) == Some(sheet.slice);
    // Without slices all of it is held here before the head leaves; with them, it is looked for as it is needed.
    let mut held = Vec::new();
    let reached = if sliced { cache.reach(&sheet, first, end) } else { cache.row(&sheet, first, end, &mut held) };
    let mut whole = Sliced { proxy, key, sheet };
    ctx.cache.partly = known;
    if reached < end && coming.is_none() && sliced {
        let begins = whole.sheet.slice_of(reached);
        let fetched = fetch(proxy, session, ctx, &whole.key, begins).await;
        coming = fetched.filter(|fetched| whole.goes_on_in(&fetched.sheet));
    }
    if reached < end && (coming.is_none() || !sliced) {
        return Ok(false);
    }
    // Nothing has left yet: an origin that breaks off now is answered for in the usual way.
    if reached == first
        && first < end
        && let Some(fetched) = &mut coming
        && !fetched.begin(first, end).await
    {
        return Ok(false);
    }
    ctx.cache.life = Some(whole.sheet.head.life);
    ctx.cache.found = Some(whole.sheet.head.clone());
    let (fetched, collapsed) = (coming.is_some(), coming.as_ref().is_some_and(|fetched| fetched.collapsed));
    ctx.cache.composed = Some(Composed { fetched, collapsed });
    if !send_head(proxy, session, ctx, head, first == end).await? || first == end {
        return Ok(true);
    }
    for piece in held {
        send(session, piece).await?;
    }
    let mut at = if sliced { first } else { end };
    while at < end {
        let begins = whole.sheet.slice_of(at);
        let here = coming.take_if(|fetched| fetched.begins == begins);
        at = whole.send(session, ctx, at, end, here).await?;
    }
    session.write_response_body(None, true).await.map_err(|error| error.into_down())?;
    Ok(true)
}

async fn send(session: &mut Session, piece: Bytes) -> Result<()> {
    session.write_response_body(Some(piece), false).await.map_err(|error| error.into_down())
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
        ctx.cache.composed = None;
        let page = reply::page(500, ctx);
        reply::send(session, ctx, &proxy.clock, page).await?;
        return Ok(false);
    }
    if let Some(connection) = &ctx.connection {
        connection.enter(Phase::Quiet, Duration::ZERO);
    }
    session.write_response_header(Box::new(head), alone).await.map_err(|error| error.into_down())?;
    Ok(true)
}

/// A response whose slices are stored, or fetched as they are needed.
struct Sliced<'a> {
    proxy: &'a Proxy,
    key: CacheKey,
    sheet: Arc<Sheet>,
}

impl Sliced<'_> {
    fn goes_on_in(&self, sheet: &Sheet) -> bool {
        self.sheet.goes_on_in(sheet, self.proxy.clock.wall())
    }

    /// The slice that begins there, of these very bytes. The head has left, so it is worth another try, but an app
    /// that hangs is waited for once, however many tries that takes.
    async fn fetch(&self, session: &Session, ctx: &Ctx, begins: u64) -> Option<Fetched> {
        let timeouts = &ctx.upstream()?.timeouts;
        let patience = timeouts.connect + timeouts.first_byte + Duration::from_millis(PAUSES.iter().sum());
        let tries = async {
            for pause in PAUSES {
                if let Some(fetched) = fetch(self.proxy, session, ctx, &self.key, begins).await {
                    return Some(fetched).filter(|fetched| self.goes_on_in(&fetched.sheet));
                }
                if ctx.connection.as_ref().is_some_and(|connection| connection.gone()) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            None
        };
        tokio::time::timeout(patience, tries).await.ok().flatten()
    }

    /// Sends what there is of one slice, from the store or as it comes; where it ends.
    async fn send(
        &mut self,
        session: &mut Session,
        ctx: &Ctx,
        at: u64,
        end: u64,
        mut coming: Option<Fetched>,
    ) -> Result<u64> {
        let begins = self.sheet.slice_of(at);
        let stop = end.min(begins + self.sheet.slice);
        if coming.is_none() {
            let mut pieces = Vec::new();
            let reached = self.proxy.cache.stretch(&self.sheet, at, stop, &mut pieces);
            for piece in pieces {
                send(session, piece).await?;
            }
            if reached > at {
                return Ok(reached);
            }
            coming = self.fetch(session, ctx, begins).await;
        }
        let cut = |why| Error::explain(ErrorType::ConnectionClosed, why).into_up();
        let Some(mut fetched) = coming else {
            return Err(cut("the rest is not to be had any more"));
        };
        if fetched.first.is_none() && !fetched.begin(at, stop).await {
            return Err(cut("the slice broke off"));
        }
        let Fetched { sheet, mut reader, first, .. } = fetched;
        // Another sheet of the same bytes: what comes from now on belongs to that one.
        self.sheet = sheet;
        let mut reached = at;
        if let Some(piece) = first {
            reached += piece.len() as u64;
            send(session, piece).await?;
        }
        while let Some(piece) = reader.next().await.map_err(|error| error.into_up())? {
            reached += piece.len() as u64;
            send(session, piece).await?;
        }
        if reached == stop { Ok(stop) } else { Err(cut("the slice is shorter than it was")) }
    }
}

/// Where the first slice begins that a request asks for, if it may be fetched although nothing is known yet.
fn first_slice(session: &Session, ctx: &Ctx) -> Option<u64> {
    let (fields, slice) = (&session.req_header().headers, ctx.route_cache()?.slice?);
    let Some(One::From(first, _)) = range::single(fields.get(RANGE)?.as_bytes()) else { return None };
    // What comes for somebody's credentials is seldom for others.
    (!fields.contains_key(AUTHORIZATION)).then(|| first / slice * slice)
}

/// A slice that comes.
struct Fetched {
    sheet: Arc<Sheet>,
    /// Its first byte.
    begins: u64,
    reader: Reader,
    /// What was read already.
    first: Option<Bytes>,
    collapsed: bool,
}

impl Fetched {
    /// Waits for the first byte of what is wanted, which ends with the slice at the latest.
    async fn begin(&mut self, from: u64, end: u64) -> bool {
        let stop = end.min(self.begins + self.sheet.slice);
        if self.reader.seek(from - self.begins, Some(stop - self.begins)).is_ok() {
            self.first = self.reader.next().await.ok().flatten();
        }
        self.first.is_some()
    }
}

/// A fetch may have ended between the look at the store and the one at what is under way: then the slice is there
/// now, and who else has come to wait for it reads that. Gives the lead back if it is not.
fn stored_meanwhile(
    proxy: &Proxy,
    request: &RequestHeader,
    ctx: &Ctx,
    key: &CacheKey,
    begins: u64,
    lead: Lead,
) -> Result<(), Lead> {
    let (mut pieces, slice) = (Vec::new(), lead.slice());
    let sheet = usable(proxy.cache, key, request, ctx, &proxy.clock).filter(|sheet| sheet.slice == slice);
    let Some((sheet, part)) = sheet.and_then(|sheet| {
        let end = begins.saturating_add(slice).min(sheet.length);
        let there = proxy.cache.row(&sheet, begins, end, &mut pieces) == end;
        let part = Part::of(begins, end.checked_sub(1)?, sheet.length).filter(|_| there)?;
        Some((sheet, part))
    }) else {
        return Err(lead);
    };
    let asked = sheet.head.life.asked;
    let mut taking = proxy.cache.take_part(sheet, &part, asked, ctx.patience(), Some(lead));
    pieces.into_iter().for_each(|piece| taking.write(piece));
    Ok(())
}

/// Has the slice fetched that begins there, if nobody has yet.
async fn fetch(proxy: &Proxy, session: &Session, ctx: &Ctx, key: &CacheKey, begins: u64) -> Option<Fetched> {
    let (route, request) = (ctx.route_cache()?, session.req_header());
    let (slice, timeouts) = (route.slice?, &ctx.upstream()?.timeouts);
    let before = session.response_written().is_none_or(|head| head.status.is_informational());
    // Once the head has left, it is the only way.
    if before && (caching::only_if_cached(session, ctx) || !proxy.cache.sliceable(key.primary_bin())) {
        return None;
    }
    let spawner = session.subrequest_spawner.as_ref()?;
    let variant = |nominated: &[HeaderName]| vary::variant(nominated, &route.chosen, &request.headers);
    let (fetch, lead) = proxy.cache.fetch(key, variant, begins, slice)?;
    let collapsed = lead.is_none();
    if let Some(lead) = lead
        && let Err(lead) = stored_meanwhile(proxy, request, ctx, key, begins, lead)
    {
        let errand: Errand = Some((lead, ctx.snapshot.clone()));
        let context = Subrequest::builder().user_ctx(Box::new(errand)).build();
        spawner.spawn_background_subrequest(session.as_ref(), context);
    }
    let (sheet, reader) = fetch.comes(proxy.cache, timeouts.connect + timeouts.first_byte).await?;
    // It may have been fetched for another variant, or be over by now.
    let asked = variant(&sheet.head.nominated);
    let may = sheet.head.variance == asked && reusable(&sheet, request, ctx, &proxy.clock);
    may.then_some(Fetched { sheet, begins, reader, first: None, collapsed })
}
