//! What is told to a holder of the admin token who asks why (`X-Headwall-Explain: 1`), in one response field.
//!
//! It is made of the notes that every exchange takes anyway; only what would cost something, such as what the
//! origin's head was before plugins changed it, is noted for those who ask.

use std::time::Duration;

use http::header::{AUTHORIZATION, CACHE_CONTROL, COOKIE, ETAG, EXPIRES, LAST_MODIFIED, SET_COOKIE, VARY};
use http::{HeaderMap, HeaderName, HeaderValue};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::proxy::Session;
use sfv::Parser;

use super::context::Ctx;
use super::keys::Names;
use super::{decisions, serving};
use crate::clock::Clock;
use crate::config::Plan;
use crate::fields::cookies;
use crate::fields::explained::{self, Member};
use crate::route::Destination;

/// The field that asks.
const ASKS: HeaderName = HeaderName::from_static("x-headwall-explain");
/// The field that says that the client may ask.
const TOKEN: HeaderName = HeaderName::from_static("x-headwall-token");
/// The field that answers.
pub const ANSWERS: HeaderName = HeaderName::from_static("headwall-explain");

/// What is noted for somebody who asks.
#[derive(Default)]
pub struct Explain {
    /// The request is to be taken for one that came by https.
    pub https: bool,
    /// Why it was refused before a route was chosen.
    pub refused: Option<&'static str>,
    /// The head as the origin sent it.
    pub origin: Option<ResponseHeader>,
    changed: Vec<HeaderName>,
    leaves: Option<HeaderMap>,
}

/// Whether this client asks and may; both fields go no further, whatever they say.
pub fn asked(request: &mut RequestHeader, plan: &Plan) -> Option<Box<Explain>> {
    let asks = request.remove_header(&ASKS);
    let token = request.remove_header(&TOKEN);
    remove_lookalikes(request);
    let may = plan.admin_token.as_ref()?.is(token?.as_bytes());
    let asks = Parser::parse_item(asks?.as_bytes()).ok()?;
    let https = asks.params.get("scheme").and_then(|scheme| scheme.as_token()) == Some("https");
    (may && asks.bare_item.as_int() == Some(1)).then(|| Box::new(Explain { https, ..Explain::default() }))
}

/// Who takes `_` for `-`, as CGI does, would take these for our fields, and a token is not for the app.
fn remove_lookalikes(request: &mut RequestHeader) {
    let ours = |name: &HeaderName| {
        let plain = name.as_str().replace('_', "-");
        plain == ASKS.as_str() || plain == TOKEN.as_str()
    };
    let names = request.headers.keys().filter(|name| name.as_str().contains('_') && ours(name));
    for name in names.cloned().collect::<Vec<_>>() {
        request.remove_header(&name);
    }
}

/// Notes that the request was refused before a route was chosen, and why.
pub fn refused(ctx: &mut Ctx, why: &'static str) {
    ctx.cache.declined = Some("refused");
    if let Some(explain) = &mut ctx.explain {
        explain.refused = Some(why);
    }
}

/// Keeps the head as the origin sent it.
pub fn origin_said(ctx: &mut Ctx, response: &ResponseHeader) {
    if let Some(explain) = &mut ctx.explain {
        explain.origin = Some(response.clone());
    }
}

/// Notes which fields plugins have changed in it.
pub fn plugins_changed(ctx: &mut Ctx, response: &ResponseHeader) {
    if let Some(explain) = &mut ctx.explain
        && let Some(before) = &explain.origin
    {
        explain.changed = differences(&before.headers, &response.headers);
    }
}

/// Keeps the head that leaves as it is before plugins change it.
pub fn leaves(ctx: &mut Ctx, head: &ResponseHeader) {
    if let Some(explain) = &mut ctx.explain {
        explain.leaves = Some(head.headers.clone());
    }
}

/// The names of fields whose lines differ.
fn differences(before: &HeaderMap, after: &HeaderMap) -> Vec<HeaderName> {
    let same = |name: &HeaderName| before.get_all(name).iter().eq(after.get_all(name).iter());
    let mut names: Vec<_> = before.keys().chain(after.keys()).filter(|name| !same(name)).cloned().collect();
    names.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
    names.dedup();
    names
}

/// Answers whoever has asked. The response is for them alone then, whatever it says about caches.
pub fn tell(session: &Session, head: &mut ResponseHeader, ctx: &Ctx, clock: &Clock) {
    let Some(explain) = &ctx.explain else { return };
    let mut members = account_of(explain, session, ctx, clock);
    members.extend(decisions::failed(explain, session, head, ctx));
    let changed = explain.leaves.as_ref().map(|before| list(differences(before, &head.headers))).unwrap_or_default();
    let response = Member::new("response").number("status", i64::from(head.status.as_u16()));
    members.push(response.some("changed-by-plugins", changed));
    let for_others: Vec<_> =
        head.headers.keys().filter(|name| name.as_str().ends_with("-cache-control")).cloned().collect();
    for name in for_others.iter().chain(&[EXPIRES, HeaderName::from_static("surrogate-control")]) {
        head.remove_header(name);
    }
    let _ = head.insert_header(CACHE_CONTROL, HeaderValue::from_static("private, no-store"));
    if let Ok(value) = HeaderValue::try_from(explained::value(members)) {
        let _ = head.insert_header(ANSWERS, value);
    }
}

fn list<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    let names: Vec<_> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
    names.join(", ")
}

/// Whole seconds, as many as a structured integer may have.
pub fn seconds(span: Duration) -> i64 {
    span.as_secs().min(999_999_999_999_999) as i64
}

/// Lines of a field as one value.
fn joined(fields: &HeaderMap, name: &HeaderName) -> Vec<u8> {
    let lines: Vec<_> = fields.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    lines.join(&b", "[..])
}

fn account_of(explain: &Explain, session: &Session, ctx: &Ctx, clock: &Clock) -> Vec<Member> {
    let mut members = vec![route(ctx)];
    if let Ok(names) = Names::of(session.req_header(), ctx)
        && ctx.route_cache().is_some()
    {
        let parts = names.parts();
        let chosen = ctx.route_cache().map(|cache| &cache.chosen);
        let key = Member::new("key").word("scheme", parts.scheme).text("host", parts.host);
        let key = key.some("forwarded-host", parts.forwarded_host).text("target", parts.target);
        let fields = chosen.map(|chosen| list(&chosen.headers)).unwrap_or_default();
        let cookies = chosen.map(|chosen| chosen.cookies.join(", ")).unwrap_or_default();
        members.push(key.some("fields", fields).some("cookies", cookies).flag("search", ctx.cache.search.is_some()));
    }
    members.push(request(session.req_header(), ctx));
    if let Some(status) = ctx.exchange.cache {
        let mut cache = Member::new("cache").text("status", status.value()).flag("hit", status.hit);
        if let Some(life) = ctx.cache.life.filter(|_| serving::from_store(session) || ctx.cache.composed.is_some()) {
            cache = cache.number("age", seconds(life.age(clock.now())));
        }
        let stored = ctx.cache.found.as_ref().map(|found| list(found.nominated.iter())).unwrap_or_default();
        members.push(cache.some("vary", stored));
    }
    if let Some(response) = &explain.origin {
        members.push(origin(response, explain, ctx));
    }
    members.extend(decisions::all(explain, ctx, session));
    members
}

fn route(ctx: &Ctx) -> Member {
    let Some(route) = &ctx.route else { return Member::new("no-route") };
    let settings = &ctx.snapshot.plan.settings;
    let own = settings.routes.get(route.number);
    let member = Member::new("route").text("name", &*route.name).number("number", route.number as i64 + 1);
    let member = match &route.destination {
        Destination::Proxy(upstream) => member.text("upstream", &*upstream.name),
        Destination::Local(_) => member.text("handler", own.map_or("", |own| &own.to.name)),
    };
    let mode = ctx.route_cache().map_or("none", |cache| if cache.policy.force { "force" } else { "respect" });
    let plugins = settings.plugins.iter().chain(own.iter().flat_map(|own| &own.plugins)).map(|one| &one.name);
    member.word("cache", mode).some("plugins", list(plugins))
}

/// What of the request counts beside the key; never what a field says.
fn request(request: &RequestHeader, ctx: &Ctx) -> Member {
    let member = Member::new("request").text("method", ctx.exchange.method.as_str());
    let changed = ctx.exchange.target.as_bytes() != request.raw_path();
    let member = if changed { member.text("target", &ctx.exchange.target) } else { member };
    let names: Vec<_> = cookies::sent(&request.headers).map(|(name, _)| name).collect();
    let member = member
        .flag("authorization", request.headers.contains_key(AUTHORIZATION))
        .flag("cookie", request.headers.contains_key(COOKIE))
        .some("cookies", names.join(&b", "[..]))
        .some("cache-control", joined(&request.headers, &CACHE_CONTROL));
    member.some("kept-back", list(&ctx.cache.kept_back))
}

/// What the origin said, as far as it counts: of cookies the names, of validators that they are there.
fn origin(response: &ResponseHeader, explain: &Explain, ctx: &Ctx) -> Member {
    let fields = &response.headers;
    let mut member = Member::new("origin").number("status", i64::from(response.status.as_u16()));
    for name in ctx.route_cache().iter().flat_map(|cache| &cache.policy.targeted).chain(&[CACHE_CONTROL, EXPIRES, VARY])
    {
        member = member.some(name.as_str(), joined(fields, name));
    }
    for name in ["cache-tag", "no-vary-search"] {
        member = member.some(name, joined(fields, &HeaderName::from_static(name)));
    }
    let cookies: Vec<_> = cookies::set(fields).collect();
    member = member.some("set-cookie", cookies.join(&b", "[..])).flag("sets-cookie", fields.contains_key(SET_COOKIE));
    member = member.flag("etag", fields.contains_key(ETAG)).flag("last-modified", fields.contains_key(LAST_MODIFIED));
    member.some("changed-by-plugins", list(&explain.changed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::fields;

    #[test]
    fn which_fields_were_changed() {
        let before = fields("a: 1\nb: 1\nb: 2\nc: 1");
        let after = fields("a: 1\nb: 1\nb: 3\nd: 1");
        assert_eq!(list(differences(&before, &after)), "b, c, d");
        assert!(differences(&before, &before).is_empty());
    }
}
