//! From a request's head to who answers it: guard, route, plugins, in this order.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use http::header::{ALLOW, CONTENT_LENGTH, HOST};
use http::{HeaderValue, Method};
use pingora::http::RequestHeader;
use pingora::proxy::Session;

use super::content::FromClient;
use super::context::Ctx;
use super::{Proxy, account, explain, forward, guard, purge, reply};
use crate::catch::catch_async;
use crate::fields::authority::without_port;
use crate::fields::connection::strip_named;
use crate::fields::query::Rules;
use crate::handler::{Content, Handler, Reply};
use crate::route::{Ambiguous, Destination};

/// Why a path is refused that chooses another route as it came than in its normal form.
const AMBIGUOUS: &str = "the path means different things to different readers";

/// Who answers.
pub enum Next {
    /// We have the answer already.
    Reply(Reply),
    /// One of our handlers.
    Local(Arc<dyn Handler>),
    /// The store, or an origin.
    Upstream,
}

/// Takes a request in.
pub async fn take_in(proxy: &Proxy, session: &mut Session, ctx: &mut Ctx) -> Next {
    ctx.explain = explain::asked(session.req_header_mut(), &ctx.snapshot.plan);
    let checked = guard::check(session, &ctx.snapshot.plan.settings.limits);
    strip_named(session.req_header_mut());
    introduce(session, ctx);
    if let Err(refusal) = checked {
        explain::refused(ctx, refusal.message);
        return Next::Reply(refuse(proxy, session, ctx, &refusal));
    }
    if let Err(refusal) = find_route(proxy, session, ctx) {
        explain::refused(ctx, AMBIGUOUS);
        return Next::Reply(refusal);
    }
    let (snapshot, route) = (ctx.snapshot.clone(), ctx.route.clone());
    // The site's plugins stand before what no route answers, too.
    let chain = route.as_ref().map_or(&snapshot.plan.site, |route| &route.chain);
    if !ctx.exchange.background {
        match catch_async(chain.request(session.req_header(), &mut ctx.exchange)).await {
            Ok(None) => {}
            Ok(Some(reply)) => {
                // Neither the store nor the origin was asked.
                ctx.cache.declined = Some("plugin");
                return Next::Reply(reply);
            }
            Err(_) => {
                ctx.cache.declined = Some("plugin");
                return Next::Reply(panicked(ctx));
            }
        }
    }
    let Some(route) = route else { return Next::Reply(reply::page(404, ctx)) };
    let next = match &route.destination {
        Destination::Local(handler) => Next::Local(handler.clone()),
        Destination::Proxy(_) => {
            // Looked at before the fields that speak for others are taken away.
            if let Err(refusal) = purge::admit(session.req_header(), &ctx.exchange, &route) {
                ctx.cache.declined = Some("purge");
                return Next::Reply(refusal);
            }
            let taken = forward::clean(session.req_header_mut(), &ctx.exchange, route.cache.is_some());
            account::kept_back(ctx, taken);
            Next::Upstream
        }
    };
    let head = session.req_header_mut();
    if ctx.plugins(|chain, exchange| chain.request_head(head, exchange)).is_err() {
        return Next::Reply(reply::page(500, ctx));
    }
    if purge::is_one(session.req_header(), &route) {
        ctx.cache.declined = Some("purge");
        return Next::Reply(purge::answer(proxy, session.req_header(), ctx).await);
    }
    if let Some(cache) = &route.cache {
        reduce(session.req_header_mut(), &cache.query);
    }
    next
}

/// Takes out of the query what does not count; the key and the origin see what is left.
fn reduce(request: &mut RequestHeader, rules: &Rules) {
    if matches!(request.method, Method::GET | Method::HEAD)
        && let Ok(target) = std::str::from_utf8(request.raw_path())
        && let Cow::Owned(form) = rules.apply(target)
    {
        let _ = request.set_raw_path(form.as_bytes());
    }
}

fn panicked(ctx: &mut Ctx) -> Reply {
    ctx.panicked();
    reply::page(500, ctx)
}

/// Lets a handler answer.
pub async fn ask(handler: &dyn Handler, session: &mut Session, ctx: &mut Ctx) -> Reply {
    let request = session.req_header().clone();
    let announced = request.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let route = ctx.route.clone();
    let mut source =
        FromClient { session: session.as_downstream_mut(), chain: route.as_deref().map(|route| &route.chain) };
    let mut content = Content::new(&mut source, announced);
    match catch_async(handler.answer(&request, &mut content, &mut ctx.exchange)).await {
        Ok(reply) => reply,
        Err(_) => panicked(ctx),
    }
}

/// Notes who asks for what.
fn introduce(session: &Session, ctx: &mut Ctx) {
    let request = session.req_header();
    let exchange = &mut ctx.exchange;
    let address = session.client_addr().and_then(|address| address.as_inet()).map(|address| address.ip());
    exchange.peer = address.unwrap_or(IpAddr::from([0, 0, 0, 0]));
    exchange.method = request.method.clone();
    exchange.version = request.version;
    exchange.target = String::from_utf8_lossy(request.raw_path()).into_owned();
    exchange.host = request.headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or("").to_ascii_lowercase();
    forward::recognise(exchange, &request.headers, &ctx.snapshot.plan.trusted);
    if ctx.explain.as_ref().is_some_and(|explain| explain.https) {
        exchange.scheme = "https";
    }
}

/// The answer to what is ambiguous; the connection ends with it.
fn refuse(proxy: &Proxy, session: &mut Session, ctx: &Ctx, refusal: &guard::Refusal) -> Reply {
    proxy.refusals.request(refusal.reason, ctx.exchange.peer);
    session.as_downstream_mut().set_keepalive(None);
    let reply = Reply::text(refusal.status, refusal.message);
    if refusal.status == 405 { reply.with(ALLOW, HeaderValue::from_static(guard::METHODS)) } else { reply }
}

/// Finds the route, if there is one; refuses what cannot be told apart.
fn find_route(proxy: &Proxy, session: &Session, ctx: &mut Ctx) -> Result<(), Reply> {
    let request = session.req_header();
    let host = without_port(&ctx.exchange.host);
    let snapshot = ctx.snapshot.clone();
    match snapshot.plan.router.find(host, ctx.exchange.path(), &request.method, &request.headers) {
        Ok(found) => {
            if let Some(route) = found {
                ctx.exchange.route = route.name.clone();
            }
            ctx.route = found.cloned();
            Ok(())
        }
        Err(Ambiguous) => {
            proxy.refusals.request("ambiguous-path", ctx.exchange.peer);
            Err(Reply::text(400, AMBIGUOUS))
        }
    }
}
