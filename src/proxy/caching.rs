//! Between the engine's cache callbacks and our cache: asks the policy, notes what came of it.

use std::sync::Arc;
use std::time::Duration;

use http::header::{AGE, AUTHORIZATION, CONTENT_LENGTH, ETAG, RANGE, SET_COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use pingora::cache::{CacheKey, CacheMeta, CachePhase, ForcedFreshness, HitHandler, NoCacheReason, RespCacheable};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::prelude::*;
use pingora::proxy::Session;

use super::context::Ctx;
use super::keys::Names;
use super::{account, beside, keys, taking};
use crate::cache::fill::Terms;
use crate::cache::leak;
use crate::cache::policy::{self, Arrival, Life, Reuse, validates};
use crate::cache::reading::Handler;
use crate::cache::rule::Rule;
use crate::cache::storage::{Decision, FILLING};
use crate::cache::vary::{self, Nominated};
use crate::cache::{Cache, refusal};
use crate::clock::Clock;
use crate::fields::query;

/// Turns the cache on for this request, if it has any business with it.
pub fn admit(cache: &'static Cache, session: &mut Session, ctx: &mut Ctx) {
    let Some(route_cache) = ctx.route_cache() else { return };
    taking::ignore_excess(session.req_header_mut());
    let has_content = !session.as_downstream_mut().is_body_empty();
    match policy::admit(session.req_header(), has_content, &route_cache.policy) {
        Ok(()) => {
            // Who sends credentials cannot share an answer, most of the time: no use in waiting in line.
            let waits = !session.req_header().headers.contains_key(AUTHORIZATION);
            let own = ctx.upstream().map(|upstream| upstream.timeouts.first_byte).filter(|_| waits);
            // A refresh in the background holds the lock already; should it find itself in line, it ends.
            let patience = if ctx.exchange.background { own.map(|_| Duration::from_millis(1)) } else { own };
            cache.enable(&mut session.cache, patience);
        }
        Err(passed_by) => ctx.cache.passed_by = Some(passed_by),
    }
}

/// The key of this request.
pub fn key(cache: &Cache, request: &RequestHeader, ctx: &mut Ctx) -> Result<CacheKey> {
    let (key, search) = cache.key(&Names::of(request, ctx)?.parts());
    ctx.cache.search = search;
    Ok(key)
}

/// What may be done with what was found.
pub fn judge_found(session: &Session, found: &HitHandler, ctx: &mut Ctx, clock: &Clock) -> Option<ForcedFreshness> {
    let handler = found.as_any().downcast_ref::<Handler>()?;
    let head = handler.head()?.clone();
    let life = head.life;
    ctx.cache.life = Some(life);
    ctx.cache.found = None;
    (ctx.cache.stale, ctx.cache.asked, ctx.cache.collapsed) = (false, false, false);
    let policy = &ctx.route_cache()?.policy;
    let (request, now) = (session.req_header(), clock.now());
    // Stored for one of several queries: it has to say that it stands for this one too.
    let other = |used: &Arc<_>| query::no_vary_search(&head.response.headers).as_ref() != Some(&**used);
    if ctx.cache.search.as_ref().is_some_and(other) {
        return Some(ForcedFreshness::ForceMiss);
    }
    let verdict = policy::reuse(&request.headers, &life, policy, ctx.exchange.received, now);
    if !matches!(verdict, Reuse::Outdated | Reuse::NotForThis) {
        ctx.cache.found = Some(head);
    }
    // A part, or a head alone, must not pull the whole when there is nothing to validate with.
    let partial = request.method == Method::HEAD || request.headers.contains_key(RANGE);
    let usable = life.validator || life.stale_for(now) < life.stale_while_revalidate;
    if partial && !usable && matches!(verdict, Reuse::Stale | Reuse::Validate) {
        (ctx.cache.stale, ctx.cache.asked) = (!life.fresh(now), life.fresh(now));
        ctx.cache.not_for_this = true;
        return Some(ForcedFreshness::ForceMiss);
    }
    match verdict {
        Reuse::Fresh => {
            ctx.cache.collapsed = handler.fill().is_some();
            Some(ForcedFreshness::ForceFresh)
        }
        Reuse::Collapsed => {
            ctx.cache.collapsed = true;
            Some(ForcedFreshness::ForceFresh)
        }
        Reuse::Accepted => {
            ctx.cache.accepted = true;
            Some(ForcedFreshness::ForceFresh)
        }
        Reuse::Stale => {
            ctx.cache.stale = true;
            Some(ForcedFreshness::ForceExpiredServeStale { expired_at: None })
        }
        Reuse::Validate => {
            (ctx.cache.stale, ctx.cache.asked) = (!life.fresh(now), life.fresh(now));
            Some(ForcedFreshness::ForceExpired)
        }
        Reuse::Outdated => Some(ForcedFreshness::ForceMiss),
        Reuse::NotForThis => {
            ctx.cache.not_for_this = true;
            Some(ForcedFreshness::ForceMiss)
        }
    }
}

/// Nothing usable is stored. Some requests go on as they are, without filling for others.
pub fn miss(cache: &Cache, session: &mut Session, ctx: &mut Ctx, clock: &Clock) {
    let as_it_is = taking::miss(cache, session, ctx, clock)
        || ctx.cache.not_for_this
        || session.req_header().method == Method::HEAD
        || session.req_header().headers.contains_key(RANGE);
    if as_it_is && session.cache.enabled() {
        session.cache.disable(NoCacheReason::Deferred);
    } else {
        session.cache.cache_miss();
    }
}

/// A request that has waited for another's answer as long as it would have waited for its own.
pub fn waited_in_vain(session: &Session) -> bool {
    session.cache.phase() == CachePhase::Disabled(NoCacheReason::CacheLockTimeout)
}

/// A request that may only be answered from the store and was not (RFC 9111 §5.2.1.7).
pub fn only_if_cached(session: &Session, ctx: &Ctx) -> bool {
    // A refresh in the background is no request of the client that asked for this.
    !ctx.exchange.background
        && ctx.route_cache().is_some_and(|cache| policy::only_if_cached(&session.req_header().headers, &cache.policy))
}

/// Looks at the origin's head before anything is sent or stored: judges what may be stored, and
/// decides who paces it.
pub fn origin_answered(
    cache: &'static Cache,
    clock: &Clock,
    session: &mut Session,
    response: &mut ResponseHeader,
    ctx: &mut Ctx,
) -> Result<()> {
    let untouched = beside::untouched(cache, session.req_header(), ctx);
    keys::invalidate(cache, session.req_header(), response, ctx);
    if ctx.route_cache().is_none() {
        return Ok(());
    }
    ctx.cache.age_lines = response.headers.get_all(AGE).iter().cloned().collect();
    ctx.cache.said_age = policy::said_age(&response.headers);
    if ctx.route_cache().is_some_and(|cache| cache.policy.strip_set_cookie) {
        response.remove_header(&SET_COOKIE);
    }
    if !(session.cache.enabled() || session.cache.bypassing()) {
        if let Some((_, rule)) = ctx.cache.passed_by {
            account::refused(ctx, response, rule, clock);
        }
        let request = session.req_header();
        if untouched {
            beside::post(cache, request, response, ctx, arrival(clock, ctx));
        }
        beside::head(cache, request, response, ctx, arrival(clock, ctx));
        return taking::take(cache, request, response, ctx, arrival(clock, ctx));
    }
    completed(cache, clock, session, response, ctx)?;
    response.remove_header(&AGE);
    let freshens = response.status == 304 && session.cache.maybe_cache_meta().is_some();
    if freshens {
        ctx.cache.freshener = Some(response.headers.clone());
    }
    let verdict = (!freshens).then(|| {
        let life = judge(cache, session, response, ctx, arrival(clock, ctx))?;
        let length = if response.status == 204 { Some(0) } else { length(&response.headers) };
        let key = session.cache.maybe_cache_key().ok_or(Rule::Status)?;
        Ok((life, cache.terms(key, length, &ctx.snapshot.plan.limits, ctx.patience())?))
    });
    if matches!(verdict, Some(Err(Rule::TooLarge))) {
        ctx.cache.taking = taking::take_whole(cache, session, response, ctx, arrival(clock, ctx));
    }
    if let Some(Err(rule)) = &verdict {
        account::refused(ctx, response, *rule, clock);
    }
    // A known length is read at the origin's speed, whoever is slow; an unknown one at the leader's.
    let known = matches!(&verdict, Some(Ok((_, terms))) if terms.length.is_some());
    if ctx.connection.is_some() {
        session.set_proxy_tasks_enabled(known);
    }
    ctx.cache.verdict = verdict;
    Ok(())
}

/// Makes a whole of the response to a request that went out to complete one. When it does not complete it, or the
/// whole would not be stored, the origin is asked again, for everything: only a fill begins with what is stored.
fn completed(
    cache: &Cache,
    clock: &Clock,
    session: &Session,
    response: &mut ResponseHeader,
    ctx: &mut Ctx,
) -> Result<()> {
    let Some(completing) = ctx.cache.completing.take() else { return Ok(()) };
    if !matches!(response.status.as_u16(), 206 | 416) {
        return Ok(());
    }
    let stored = |whole: &ResponseHeader| {
        let at = arrival(clock, ctx);
        let room = || {
            cache
                .terms(session.cache.maybe_cache_key()?, length(&whole.headers), &ctx.snapshot.plan.limits, at.delay)
                .ok()
        };
        judge(cache, session, whole, ctx, at).is_ok() && room().is_some()
    };
    let Some(whole) = completing.completes(response, clock.wall()).filter(stored) else { return taking::again(ctx) };
    *response = whole;
    ctx.cache.seed = Some(completing.seed());
    (ctx.cache.completed, ctx.cache.partly) = (true, true);
    Ok(())
}

/// The announced length.
pub fn length(fields: &HeaderMap) -> Option<u64> {
    fields.get(CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
}

fn arrival(clock: &Clock, ctx: &Ctx) -> Arrival {
    let now = clock.now();
    let delay = ctx.cache.forwarded_at.map_or(Duration::ZERO, |sent| now.since(sent));
    Arrival { now, wall: clock.wall(), delay, age: ctx.cache.said_age }
}

fn judge(cache: &Cache, session: &Session, response: &ResponseHeader, ctx: &Ctx, at: Arrival) -> Result<Life, Rule> {
    let route = ctx.route_cache().ok_or(Rule::Status)?;
    let request = session.req_header();
    let life = leak::judge(request, response, &route.policy, &route.chosen.headers, at)?;
    let used = ctx.cache.search.as_deref();
    if used.is_some() || response.headers.contains_key("no-vary-search") {
        let names = Names::of(request, ctx).map_err(|_| Rule::Status)?;
        cache.search(&names.parts(), response, used)?;
    }
    let sent = ctx.cache.forwarded_at.unwrap_or(at.now);
    if session.cache.maybe_cache_key().is_some_and(|key| cache.invalidated_since(key, sent)) {
        return Err(Rule::Invalidated);
    }
    Ok(life)
}

/// The engine asks whether to store. For a 304 it gives the stored head with some fields of the 304;
/// all others that a 304 may change are merged here (RFC 9111 §3.2).
pub fn to_store(
    cache: &'static Cache,
    clock: &Clock,
    session: &Session,
    response: &ResponseHeader,
    ctx: &mut Ctx,
) -> RespCacheable {
    let mut response = response.clone();
    let verdict = match ctx.cache.freshener.take() {
        Some(fields) => freshened(cache, clock, session, &mut response, &fields, ctx),
        None => ctx.cache.verdict.take().unwrap_or(Err(Rule::Status)),
    };
    match verdict {
        Ok((life, terms)) => {
            ctx.cache.life = Some(life);
            ctx.cache.withheld.extend(withhold(&mut response, ctx));
            let _ = FILLING.try_with(|filling| filling.set(true));
            let validated = ctx.cache.found.clone();
            let seed = ctx.cache.seed.take();
            RespCacheable::Cacheable(cache.meta(response, Decision { life, terms, validated, seed }))
        }
        Err(rule) => {
            ctx.cache.refused = Some(rule);
            // What the origin does not let us store now, it does not let us use: not even when it fails.
            let withdrawn = ctx.cache.found.is_some() && (rule.lasts() || rule.of_a_304());
            if let (true, Some(key)) = (withdrawn, session.cache.maybe_cache_key()) {
                cache.invalidate(key);
            }
            // What is kept in slices is not to be passed by the next time.
            let kept = ctx.cache.taking.is_some();
            RespCacheable::Uncacheable(if kept { NoCacheReason::Deferred } else { refusal(rule) })
        }
    }
}

/// What a 304 makes of the stored head. One that speaks of something else freshens nothing; the engine sends what
/// is stored once more then.
fn freshened(
    cache: &'static Cache,
    clock: &Clock,
    session: &Session,
    response: &mut ResponseHeader,
    fields: &HeaderMap,
    ctx: &mut Ctx,
) -> Result<(Life, Terms), Rule> {
    stored_head(session).map_or(Err(Rule::WrongValidator), |stored| validates(fields, stored))?;
    if !merge(response, fields, ctx) {
        // A cookie for this client alone.
        let lines = fields.get_all(SET_COOKIE).iter();
        ctx.cache.withheld = lines.map(|line| (SET_COOKIE, line.clone())).collect();
    }
    // The content is here already, whatever its length.
    let terms = Terms { length: None, limit: 0, patience: ctx.patience() };
    judge(cache, session, response, ctx, arrival(clock, ctx)).map(|life| (life, terms))
}

/// Takes off what is for this client alone, and gives it back.
fn withhold(response: &mut ResponseHeader, ctx: &Ctx) -> Vec<(HeaderName, HeaderValue)> {
    let names = ctx.route_cache().map(|cache| policy::withheld(&response.headers, &cache.policy)).unwrap_or_default();
    let mut taken = Vec::new();
    for name in names {
        taken.extend(response.headers.get_all(&name).iter().map(|value| (name.clone(), value.clone())));
        response.remove_header(&name);
    }
    taken
}

/// Gives the client that brought a response in what nobody else gets.
pub fn give_back(response: &mut ResponseHeader, ctx: &mut Ctx) {
    let mut taken = std::mem::take(&mut ctx.cache.withheld);
    taken.retain(|(name, _)| !response.headers.contains_key(name));
    for (name, value) in taken {
        let _ = response.append_header(name, value);
    }
}

fn stored_head(session: &Session) -> Option<&HeaderMap> {
    session.cache.maybe_cache_meta().map(|meta| &meta.response_header().headers)
}

/// Puts the fields of a response without content on the stored one that it speaks of (RFC 9111 §3.2): not
/// those that frame the content, nor the coding that it and our copies of it are in, for it stays as it is, nor the
/// fields that it was chosen by. Whether a `Set-Cookie` is among those that were put there.
fn merge(stored: &mut ResponseHeader, fields: &HeaderMap, ctx: &Ctx) -> bool {
    // The engine has put the tag of the 304 there; the stored one, which it names, may be weaker.
    if let Some(tag) = ctx.cache.found.as_ref().and_then(|found| found.response.headers.get(ETAG)) {
        let _ = stored.insert_header(ETAG, tag.clone());
    }
    let cookies_too = ctx.route_cache().is_some_and(|cache| !policy::sets_a_cookie_of_somebody(fields, &cache.policy));
    for name in fields.keys() {
        let stays = match name.as_str() {
            "content-length" | "content-encoding" | "transfer-encoding" | "age" | "vary" | "etag" => true,
            "set-cookie" => !cookies_too,
            _ => false,
        };
        if stays {
            continue;
        }
        stored.remove_header(name);
        for value in fields.get_all(name) {
            let _ = stored.append_header(name, value.clone());
        }
    }
    cookies_too
}

/// The variant that this request asks for.
pub fn variant(meta: &CacheMeta, request: &RequestHeader, ctx: &mut Ctx) -> Option<pingora::cache::key::HashBinary> {
    let nominated = meta.extensions().get::<Nominated>().map_or(&[][..], |nominated| &nominated.0);
    let variant = vary::variant(nominated, &ctx.route_cache()?.chosen, &request.headers);
    // The engine asks again when it stores the response; what was not there before is no reason for a miss.
    ctx.cache.varied |= variant.is_some() && ctx.cache.forwarded_at.is_none();
    variant
}
