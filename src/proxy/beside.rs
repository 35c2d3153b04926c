//! What reaches the store beside the engine's own way: answers to `POST` and to `HEAD`.

use http::Method;
use http::header::{AGE, AUTHORIZATION};
use pingora::cache::CacheKey;
use pingora::http::{RequestHeader, ResponseHeader};

use super::context::Ctx;
use super::keys::{self, Names};
use crate::cache::Cache;
use crate::cache::aside::Aside;
use crate::cache::key::Parts;
use crate::cache::leak;
use crate::cache::policy::{self, Arrival, Life};
use crate::cache::storage::Decision;
use crate::fields::vary;

/// Whether the target of a `POST` was left alone since the origin was asked; asked before the response
/// itself invalidates it.
pub fn untouched(cache: &Cache, request: &RequestHeader, ctx: &Ctx) -> bool {
    let (true, Some(sent)) = (request.method == Method::POST, ctx.cache.forwarded_at) else { return false };
    key(cache, request, ctx).is_some_and(|(key, reduced)| !reduced && !cache.invalidated_since(&key, sent))
}

/// The key that a `GET` of this target has, and whether it stands for other queries too.
fn key(cache: &Cache, request: &RequestHeader, ctx: &Ctx) -> Option<(CacheKey, bool)> {
    let target = std::str::from_utf8(request.raw_path()).ok()?;
    let form = ctx.route_cache()?.query.apply(target);
    let names = Names::of(request, ctx).ok()?;
    let (key, search) = cache.key(&Parts { target: form.as_bytes(), ..names.parts() });
    Some((key, search.is_some()))
}

/// Takes a response to `POST` in, if it says that it stands for the one to `GET`.
pub fn post(cache: &'static Cache, request: &RequestHeader, response: &ResponseHeader, ctx: &mut Ctx, at: Arrival) {
    if let Some((aside, life)) = begin(cache, request, response, ctx, at) {
        (ctx.cache.aside, ctx.cache.life) = (Some(aside), Some(life));
    }
}

fn begin(
    cache: &'static Cache,
    request: &RequestHeader,
    response: &ResponseHeader,
    ctx: &Ctx,
    at: Arrival,
) -> Option<(Aside, Life)> {
    let route = ctx.route.as_ref()?;
    let settings = route.cache.as_ref()?;
    let target = std::str::from_utf8(request.raw_path()).ok()?;
    // A `GET` may find another route, and choose another variant, by what this request does not say.
    let plain = route.conditions.methods.is_empty()
        && !policy::no_store(&request.headers, &settings.policy)
        && settings.chosen.cookies.is_empty()
        && settings.chosen.headers.is_empty()
        && vary::nominated(&response.headers).is_ok_and(|names| names.is_empty())
        && !response.headers.contains_key("no-vary-search");
    let life = leak::judge(request, response, &settings.policy, &[], at).ok().filter(|_| plain)?;
    if !policy::stands_for_get(response, &life, &keys::host(&request.headers), target, &settings.policy) {
        return None;
    }
    let (key, _) = key(cache, request, ctx)?;
    // Without a length the end of the content is not certain here.
    let length = super::caching::length(&response.headers).filter(|length| *length > 0)?;
    let terms = cache.terms(&key, Some(length), &ctx.snapshot.plan.limits, ctx.patience());
    let mut stored = response.clone();
    stored.remove_header(&AGE);
    for name in policy::withheld(&response.headers, &settings.policy) {
        stored.remove_header(&name);
    }
    let decision = Decision { life, terms: terms.ok()?, validated: None, seed: None };
    cache.take_aside(&key, &stored, decision).map(|aside| (aside, life))
}

/// The 200 for a `HEAD` may show that the stored response for `GET` is another one (RFC 9111 §4.3.5).
pub fn head(cache: &Cache, request: &RequestHeader, response: &ResponseHeader, ctx: &Ctx, at: Arrival) {
    let Some(stored) = &ctx.cache.found else { return };
    let asked = request.method == Method::HEAD && !request.headers.contains_key(AUTHORIZATION);
    if asked && stored.life.fresh(at.now) && policy::refutes(response, &stored.response) {
        let Ok((key, _)) = Names::of(request, ctx).map(|names| cache.key(&names.parts())) else { return };
        cache.expire(key, stored);
    }
}
