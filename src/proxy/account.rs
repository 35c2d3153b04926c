//! The account of one exchange: what was decided, by which rule. Counters, the debug log and the access log take
//! their words from here.

use http::HeaderName;
use pingora::http::ResponseHeader;

use super::context::Ctx;
use crate::cache::leak;
use crate::cache::rule::Rule;
use crate::clock::Clock;
use crate::fields::forwarded::Says;

/// Takes note of fields that the origin does not get because they could mislead it; each reason counts once.
pub fn kept_back(ctx: &mut Ctx, taken: Vec<(HeaderName, Says)>) {
    let mut counted: Vec<Rule> = Vec::new();
    for (field, said) in taken {
        let Some(rule) = leak::of_field(said) else { continue };
        if !counted.contains(&rule) {
            ctx.counters().would_have_leaked(rule.token());
            counted.push(rule);
        }
        let (route, target) = (&*ctx.exchange.route, &*ctx.exchange.target);
        tracing::debug!(route, target, %field, rule = rule.token(), section = rule.section(), "kept from the origin");
        ctx.cache.kept_back.push(field);
    }
}

/// Takes note of a response that is not stored, if another cache would have stored it.
pub fn refused(ctx: &mut Ctx, response: &ResponseHeader, rule: Rule, clock: &Clock) {
    let leaks = |cache: &crate::route::RouteCache| leak::would_have_leaked(rule, response, &cache.policy, clock.wall());
    if !ctx.exchange.background && ctx.route_cache().is_some_and(leaks) {
        ctx.cache.leak = Some(rule);
        ctx.counters().would_have_leaked(rule.token());
    }
}

/// Says why a response was not stored.
pub fn not_stored(ctx: &Ctx, rule: Rule) {
    let (route, target) = (&*ctx.exchange.route, &*ctx.exchange.target);
    let would_have_leaked = ctx.cache.leak == Some(rule);
    tracing::debug!(route, target, rule = rule.token(), section = rule.section(), would_have_leaked, "not stored");
}

/// Why the store was passed by, unless the response is stored all the same: to a POST, one may be.
pub fn passed_by(ctx: &Ctx) -> Option<Rule> {
    let stored = ctx.exchange.cache.is_some_and(|status| status.stored);
    ctx.cache.passed_by.filter(|_| !stored).map(|(_, rule)| rule)
}

/// The rule that decided last: why the store was passed by, why the response was not stored, or why it was.
pub fn rule(ctx: &Ctx) -> Option<Rule> {
    passed_by(ctx).or(ctx.cache.refused).or_else(|| kept_by(ctx))
}

/// The rule by which the response is stored, whether by this request or by an earlier one.
pub fn kept_by(ctx: &Ctx) -> Option<Rule> {
    let status = ctx.exchange.cache?;
    let kept = status.stored || status.hit || status.collapsed || status.ttl.is_some();
    ctx.cache.life.filter(|_| kept).map(|life| life.rule)
}

/// Tells those who look at the exchange when it is over.
pub fn close(ctx: &mut Ctx) {
    ctx.exchange.rule = rule(ctx).map(Rule::token);
    ctx.exchange.leak = ctx.cache.leak.map(Rule::token);
}
