//! What reaches the store beside the engine's own way: answers to `POST` and to `HEAD`.

use http::Method;
use http::header::AUTHORIZATION;
use pingora::http::{RequestHeader, ResponseHeader};

use super::caching::merge;
use super::context::Ctx;
use super::keys::{self, Names};
use crate::cache::Cache;
use crate::cache::policy::{self, Arrival};
use crate::cache::rule::Rule;
use crate::cache::storage::Decision;
use crate::fields::vary;

/// Takes a response to `POST` in, if it says that it stands for the one to `GET`.
pub fn post(cache: &'static Cache, request: &RequestHeader, response: &ResponseHeader, ctx: &mut Ctx, at: Arrival) {
    if request.method == Method::POST {
        ctx.cache.aside = begin(cache, request, response, ctx, at);
    }
}

fn begin(
    cache: &'static Cache,
    request: &RequestHeader,
    response: &ResponseHeader,
    ctx: &Ctx,
    at: Arrival,
) -> Option<crate::cache::aside::Aside> {
    let route = ctx.route.as_ref()?;
    let settings = route.cache.as_ref()?;
    let target = std::str::from_utf8(request.raw_path()).ok()?;
    // A `GET` may find another route, and choose another variant, by what this request does not say.
    let plain = route.conditions.methods.is_empty()
        && settings.chosen.cookies.is_empty()
        && settings.chosen.headers.is_empty()
        && vary::nominated(&response.headers).is_ok_and(|names| names.is_empty())
        && !response.headers.contains_key("no-vary-search");
    let life = policy::judge(&request.headers, response, &settings.policy, at).ok().filter(|_| plain)?;
    if !policy::stands_for_get(response, &life, &keys::host(&request.headers), target, &settings.policy) {
        return None;
    }
    let names = Names::of(request, ctx).ok()?;
    let form = settings.query.apply(target);
    let (key, search) = cache.key(&crate::cache::key::Parts { target: form.as_bytes(), ..names.parts() });
    if search.is_some() {
        return None;
    }
    let terms = cache.terms(&key, super::caching::length(&response.headers), &ctx.snapshot.plan.limits, ctx.patience());
    let mut stored = response.clone();
    for name in policy::withheld(&response.headers, &settings.policy) {
        stored.remove_header(&name);
    }
    cache.take_aside(&key, &stored, Decision { life, terms: terms.ok()?, validated: None })
}

/// The 200 for a `HEAD` tells whether the stored response for `GET` is still the same (RFC 9111 §4.3.5).
pub fn head(cache: &Cache, request: &RequestHeader, response: &ResponseHeader, ctx: &Ctx, at: Arrival) {
    let (Some(settings), Some(stored)) = (ctx.route_cache(), &ctx.cache.found) else { return };
    if request.method != Method::HEAD || request.headers.contains_key(AUTHORIZATION) {
        return;
    }
    let Some(same) = policy::confirms(response, &stored.response) else { return };
    let Ok((key, _)) = Names::of(request, ctx).map(|names| cache.key(&names.parts())) else { return };
    if same {
        let mut merged = stored.response.clone();
        merge(&mut merged, &response.headers, ctx);
        let varies = policy::validates(&response.headers, &stored.response.headers) == Err(Rule::VaryChanged);
        if let (Ok(life), false) = (policy::judge(&request.headers, &merged, &settings.policy, at), varies) {
            cache.freshen(key, stored, &merged, life);
        }
    } else if stored.life.fresh(at.now) {
        cache.freshen(key, stored, &stored.response, stored.life.over(at.now));
    }
}
