//! The engine's callbacks, in the order in which it calls them.
//!
//! This is the only module that knows that order. Each callback is a few lines that
//! say what happens; how it happens is in the modules below.

pub mod content;
pub mod context;

mod account;
mod beside;
mod caching;
mod decisions;
mod explain;
mod forward;
pub mod guard;
mod intake;
pub mod keys;
mod parts;
mod purge;
mod reply;
mod seal;
mod serving;
mod taking;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::Bytes;
use http::header::{DATE, EXPECT, RANGE};
use http::{Method, Version};
use pingora::cache::key::HashBinary;
use pingora::cache::{CacheKey, CacheMeta, ForcedFreshness, HitHandler, RespCacheable};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::modules::http::HttpModules;
use pingora::prelude::*;
use pingora::protocols::http::v1::common::is_expect_continue_req;
use pingora::proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, RangeType, Session};
use pingora::{ErrorSource, ErrorType};
use prometheus::IntCounter;

use crate::access_log::AccessLog;
use crate::cache::Cache;
use crate::cache::fill::Fill;
use crate::cache::reading::Handler as Found;
use crate::cache::storage::FILLING;
use crate::clock::Clock;
use crate::config::Plan;
use crate::connection::Phase;
use crate::exchange::Exchange;
use crate::fields::conditional::not_modified;
use crate::fields::{connection as connection_fields, date};
use crate::handler::Reply;
use crate::http2;
use crate::metrics::{CACHE_WORDS, Metrics, RouteMetrics};
use crate::refusals::Refusals;
use crate::upstream::Tried;
use crate::upstream::lines::{Connector, Line};
use crate::upstream::watch::Asked;
use content::FiltersBuilder;
use context::{CacheNotes, Ctx};
use intake::Next;
use seal::{Made, seal};

/// How long a client may wait for `100 Continue` before it sends its content, at least.
const UNTOLD: Duration = Duration::from_secs(30);
/// The engine's word for a connection that it keeps without a deadline: ours has one.
const FOR_EVER: u64 = 0;
/// How long we read content that nobody wants, to keep the connection.
const DRAIN_CONTENT: Duration = Duration::from_secs(5);
/// How long a response is still taken in for the store when everybody who read it is gone.
const UNATTENDED: Duration = Duration::from_secs(30);
/// Content of this length is here as soon as its head is.
const AT_ONCE: u64 = 64 << 10;
/// Servers that one request tries at most.
const MOST_TRIES: usize = 4;
/// How often one request is sent again at most, once it has been sent.
const MOST_RESENT: u8 = 2;

/// A configuration at work, with its counters and its log.
pub struct Snapshot {
    /// The configuration.
    pub plan: Plan,
    /// One for each route, and one more for what no route answers.
    pub counters: Vec<RouteMetrics>,
    /// One line for each request.
    pub log: Option<Arc<AccessLog>>,
    /// Panics of plugins and handlers.
    pub panics: IntCounter,
}

impl Snapshot {
    /// A configuration with its counters and this log.
    pub fn new(plan: Plan, log: Option<Arc<AccessLog>>, metrics: &Metrics) -> Arc<Self> {
        let names = plan.router.routes.iter().map(|route| &*route.name).chain(["-"]);
        let counters = names.map(|name| metrics.route(name)).collect();
        Arc::new(Snapshot { plan, counters, log, panics: metrics.panics.clone() })
    }
}

/// What all exchanges share.
pub struct House {
    /// What is configured now.
    pub snapshot: ArcSwap<Snapshot>,
    /// Stored responses.
    pub cache: &'static Cache,
    /// The time.
    pub clock: Clock,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// What was refused.
    pub refusals: Arc<Refusals>,
    /// Set when the process is to end.
    pub draining: AtomicBool,
}

/// The proxy; clones are the same proxy.
#[derive(Clone)]
pub struct Proxy(Arc<House>);

impl std::ops::Deref for Proxy {
    type Target = House;

    fn deref(&self) -> &House {
        &self.0
    }
}

impl Proxy {
    /// A proxy in this house.
    pub fn new(house: House) -> Self {
        Proxy(Arc::new(house))
    }

    async fn send(&self, session: &mut Session, ctx: &mut Ctx, reply: Reply) -> Result<bool> {
        ctx.draining = self.draining.load(Relaxed);
        reply::send(session, ctx, &self.clock, reply).await.map(|()| true)
    }

    /// A failure, by status, where plugins and the client can see it.
    fn error<T>(status: u16, context: &'static str) -> Result<T> {
        Error::e_explain(ErrorType::HTTPStatus(status), context)
    }
}

#[async_trait]
impl ProxyHttp for Proxy {
    type CTX = Ctx;

    fn new_ctx(&self) -> Ctx {
        Ctx {
            exchange: Exchange::new(self.clock.now(), IpAddr::from([0, 0, 0, 0])),
            snapshot: self.snapshot.load_full(),
            route: None,
            connection: None,
            tried: Tried::default(),
            resent: 0,
            line: None,
            cache: CacheNotes::default(),
            explain: None,
            filters: Vec::new(),
            draining: false,
        }
    }

    fn init_downstream_modules(&self, modules: &mut HttpModules) {
        modules.add_module(Box::new(FiltersBuilder));
    }

    async fn early_request_filter(&self, session: &mut Session, ctx: &mut Ctx) -> Result<()> {
        ctx.exchange.background = session.subrequest_ctx.is_some();
        parts::errand(session, ctx);
        ctx.connection = http2::connection(session.as_downstream()).filter(|_| !ctx.exchange.background);
        let plan = &ctx.snapshot.plan;
        let mut last = false;
        if let Some(connection) = &ctx.connection {
            last = connection.head_here(plan.bounds) >= u64::from(plan.settings.limits.requests_per_connection);
        }
        let _ = FILLING.try_with(|filling| filling.set(false));
        let downstream = session.as_downstream_mut();
        downstream.set_total_drain_timeout(Some(DRAIN_CONTENT));
        if downstream.as_http1().is_some() {
            // Whether the connection is kept was decided by its head; for how long is its own affair.
            if downstream.get_keepalive().is_some() {
                downstream.set_keepalive(Some(FOR_EVER).filter(|_| !last));
            }
            downstream.set_read_timeout(Some(UNTOLD.max(plan.bounds.content.grace * 2)));
            // What follows content is where smuggling lives.
            let empty = downstream.is_body_empty();
            // We pass interim responses on ourselves.
            downstream.set_ignore_info_resp(true);
            downstream.set_pipelining_enabled(empty);
        }
        let empty = downstream.is_body_empty();
        if let Some(connection) = ctx.connection.as_ref().filter(|_| !empty) {
            match waits_to_be_told(downstream.req_header()) {
                true => connection.content_offered(),
                false => connection.await_content(),
            }
        }
        Ok(())
    }

    fn allow_spawning_subrequest(&self, session: &Session, ctx: &Ctx) -> bool {
        // For slices.
        session.req_header().headers.contains_key(RANGE) && !ctx.exchange.background
    }

    async fn request_filter(&self, session: &mut Session, ctx: &mut Ctx) -> Result<bool> {
        let reply = match intake::take_in(self, session, ctx).await {
            Next::Upstream => return Ok(false),
            Next::Reply(reply) => reply,
            Next::Local(handler) => {
                let reply = intake::ask(&*handler, session, ctx).await;
                self.metrics.received_bytes.inc_by(ctx.exchange.taken);
                reply
            }
        };
        self.send(session, ctx, reply).await
    }

    fn request_cache_filter(&self, session: &mut Session, ctx: &mut Ctx) -> Result<()> {
        // A slice is none of the engine's business.
        if ctx.cache.lead.is_none() {
            caching::admit(self.cache, session, ctx);
        }
        Ok(())
    }

    fn cache_key_callback(&self, session: &Session, ctx: &mut Ctx) -> Result<CacheKey> {
        caching::key(self.cache, session.req_header(), ctx)
    }

    fn cache_vary_filter(&self, meta: &CacheMeta, ctx: &mut Ctx, request: &RequestHeader) -> Option<HashBinary> {
        caching::variant(meta, request, ctx)
    }

    async fn cache_hit_filter(
        &self,
        session: &mut Session,
        _: &CacheMeta,
        found: &mut HitHandler,
        _: bool,
        ctx: &mut Ctx,
    ) -> Result<Option<ForcedFreshness>> {
        Ok(caching::judge_found(session, found, ctx, &self.clock))
    }

    fn cache_miss(&self, session: &mut Session, ctx: &mut Ctx) {
        caching::miss(self.cache, session, ctx, &self.clock);
    }

    fn cache_not_modified_filter(&self, session: &Session, found: &ResponseHeader, _: &mut Ctx) -> Result<bool> {
        Ok(not_modified(session.req_header(), found, self.clock.wall()))
    }

    fn range_header_filter(&self, session: &mut Session, response: &mut ResponseHeader, ctx: &mut Ctx) -> RangeType {
        serving::range(session, response, ctx)
    }

    async fn proxy_upstream_filter(&self, session: &mut Session, ctx: &mut Ctx) -> Result<bool> {
        if parts::answer(self, session, ctx).await? {
            return Ok(false);
        }
        let declined = match () {
            () if caching::only_if_cached(session, ctx) => "only-if-cached",
            () if caching::waited_in_vain(session) => "collapsed-timeout",
            () => return Ok(true),
        };
        if session.cache.enabled() {
            session.cache.disable(pingora::cache::NoCacheReason::DeclinedToUpstream);
        }
        ctx.cache.declined = Some(declined);
        let page = reply::page(504, ctx);
        self.send(session, ctx, page).await.map(|_| false)
    }

    async fn upstream_peer(&self, _: &mut Session, ctx: &mut Ctx) -> Result<Box<HttpPeer>> {
        let Some(upstream) = ctx.upstream().cloned() else {
            return Self::error(500, "a request without an upstream");
        };
        let Some(peer) = upstream.pick(&mut ctx.tried).await else {
            return Self::error(502, "the upstream has no server with a known address");
        };
        ctx.exchange.upstream = Some(peer.name.clone());
        // The last time not on one more kept connection, which may be dead: on a new one, which is not kept either.
        let only = ctx.resent == MOST_RESENT;
        let line = Line::new(&peer.lines, &peer.name, only, &self.refusals);
        let mut http = Box::new(peer.http.clone());
        http.options.custom_l4 = Some(Arc::new(Connector(line.clone())));
        ctx.line = Some(line);
        Ok(http)
    }

    fn fail_to_connect(&self, _: &mut Session, _: &HttpPeer, ctx: &mut Ctx, mut error: Box<Error>) -> Box<Error> {
        self.metrics.connect_failures.inc();
        if let Some(upstream) = ctx.upstream() {
            let others = upstream.refused(&ctx.tried) && ctx.tried.count() < MOST_TRIES;
            error.set_retry(others);
            if others {
                self.metrics.retries.inc();
            }
        }
        error
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        request: &mut RequestHeader,
        ctx: &mut Ctx,
    ) -> Result<()> {
        ctx.exchange.shared = session.cache.enabled()
            || session.cache.bypassing()
            || ctx.cache.in_parts.is_some()
            || ctx.cache.lead.is_some();
        forward::tell(request, &ctx.exchange);
        if let Some(cache) = ctx.route_cache() {
            if ctx.cache.passed_by.is_none() && cache.policy.force && cache.policy.ignore_cookies {
                forward::keep_cookies(request, &cache.chosen.cookies);
            }
            // Also what goes up as it is: its answer may be compared with what is stored.
            forward::fold(request);
        }
        if let Some(lead) = &ctx.cache.lead {
            taking::ask_for_slice(request, lead);
        }
        if let Some(completing) = &ctx.cache.completing {
            completing.ask(request, self.clock.wall());
        }
        // A request that is sent again sends its content again.
        ctx.exchange.taken = 0;
        if ctx.plugins(|chain, exchange| chain.upstream_request(request, exchange)).is_err() {
            return Self::error(500, "a plugin panicked");
        }
        if let Some(line) = &ctx.line {
            let upgrade = session.as_downstream().is_upgrade_req();
            line.ask(Asked { head: request.method == Method::HEAD, upgrade });
        }
        ctx.cache.forwarded_at = Some(self.clock.now());
        self.await_answer(session, ctx);
        Ok(())
    }

    async fn request_body_filter(
        &self,
        session: &mut Session,
        body: &mut Option<Bytes>,
        end: bool,
        ctx: &mut Ctx,
    ) -> Result<()> {
        // After a 101 the bytes belong to another protocol.
        if session.as_downstream().was_upgraded() {
            return Ok(());
        }
        if let Some(chunk) = body {
            self.metrics.received_bytes.inc_by(chunk.len() as u64);
            ctx.exchange.taken += chunk.len() as u64;
        }
        match ctx.plugins(|chain, exchange| chain.request_body(body, end, exchange)) {
            Ok(Ok(())) => {}
            Ok(Err(status)) => return Self::error(status, "refused by a plugin"),
            Err(_) => return Self::error(500, "a plugin panicked"),
        }
        // An empty last piece would end a chunked request a second time.
        if end && body.as_ref().is_some_and(Bytes::is_empty) {
            *body = None;
        }
        if end {
            ctx.line.iter().for_each(|line| line.asked_all());
            ctx.content_over();
            self.await_answer(session, ctx);
        }
        Ok(())
    }

    async fn upstream_response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut Ctx,
    ) -> Result<()> {
        if response.status.is_informational() && response.status != 101 {
            if let Some(connection) = ctx.connection.as_ref().filter(|_| response.status == 100) {
                connection.content_welcome();
            }
            reply::interim(session, response).await;
            return Ok(());
        }
        if response.status == 101 {
            // A tunnel may be quiet on our side for as long as the origin's `read` lets it.
            session.as_downstream_mut().set_read_timeout(None);
            ctx.content_over();
        }
        if let Some(connection) = &ctx.connection {
            let phase = if response.status == 101 { Phase::Quiet } else { Phase::Reading };
            connection.enter(phase, ctx.patience());
        }
        connection_fields::strip(response);
        // That is ours to say.
        response.remove_header(&explain::ANSWERS);
        // One that is none is replaced by the engine's (RFC 9110 §6.6.1).
        if date::of(&response.headers, DATE, self.clock.wall()).is_none() {
            response.remove_header(&DATE);
        }
        if !connection_fields::one_framing(response) {
            return Error::e_explain(
                ErrorType::InvalidHTTPHeader,
                "the origin frames its response in a way we do not know",
            )
            .map_err(|e| e.into_up());
        }
        explain::origin_said(ctx, response);
        if ctx.plugins(|chain, exchange| chain.upstream_response(response, exchange)).is_err() {
            return Self::error(500, "a plugin panicked");
        }
        explain::plugins_changed(ctx, response);
        // After the plugins: what they say of a response counts like what the origin says.
        caching::origin_answered(self.cache, &self.clock, session, response, ctx)
    }

    fn response_cache_filter(
        &self,
        session: &Session,
        response: &ResponseHeader,
        ctx: &mut Ctx,
    ) -> Result<RespCacheable> {
        let answer = caching::to_store(self.cache, &self.clock, session, response, ctx);
        if let Some(rule) = ctx.cache.refused {
            account::not_stored(ctx, rule);
            self.metrics.not_stored.with_label_values(&[rule.token()]).inc();
        }
        Ok(answer)
    }

    fn should_serve_stale(&self, session: &mut Session, ctx: &mut Ctx, error: Option<&Error>) -> bool {
        let Some(error) = error else { return true };
        let status = match error.etype() {
            ErrorType::HTTPStatus(status) => *status,
            _ => 0,
        };
        let origin_failed = *error.esource() == ErrorSource::Upstream && matches!(status, 0 | 500 | 502 | 503 | 504);
        if origin_failed && status == 0 {
            // The engine closes such a connection; its client is told.
            session.as_downstream_mut().set_keepalive(None);
        }
        if origin_failed {
            ctx.cache.failure = Some(if status == 0 { reply::status_of(error, ctx).unwrap_or(0) } else { status });
        }
        origin_failed
    }

    async fn response_filter(&self, session: &mut Session, response: &mut ResponseHeader, ctx: &mut Ctx) -> Result<()> {
        if response.status.is_informational() && response.status != 101 {
            return Ok(());
        }
        if let Some(reader) = session.cache.miss_body_reader().and_then(|found| found.as_any().downcast_ref::<Found>())
        {
            ctx.cache.fill = reader.fill().cloned();
        }
        if std::mem::take(&mut ctx.cache.completed) && ctx.cache.fill.is_none() {
            // Only a fill begins with what is stored; without one, the rest would look like the whole.
            return taking::again(ctx);
        }
        if let (Some(fill), Some(connection)) = (&ctx.cache.fill, &ctx.connection) {
            // Who reads a fill waits for its next piece there, not at the client's connection.
            connection.enter(Phase::Quiet, Duration::ZERO);
            if fill.paced() {
                connection.lead(fill.joiners());
            }
        }
        if let Some(fill) = &ctx.cache.fill
            && (ctx.exchange.method == Method::HEAD || response.status == 304)
        {
            // Its client wants no content: it must not hold back what it will never read.
            fill.leader_left();
            if fill.length().is_none_or(|length| length > AT_ONCE) {
                // The engine takes the content in before it looks for the next request, which is better asked elsewhere.
                session.as_downstream_mut().set_keepalive(None);
            }
        }
        serving::restore(response, ctx);
        caching::give_back(response, ctx);
        ctx.draining = self.draining.load(Relaxed);
        if seal(session, response, ctx, &self.clock, Made::There).is_ok() {
            return Ok(());
        }
        if !serving::from_store(session) {
            return Self::error(500, "a plugin panicked");
        }
        // The engine has no other way from here.
        serving::say_nothing(session);
        *response = seal::instead(ctx);
        Ok(())
    }

    fn upstream_response_body_filter(
        &self,
        _: &mut Session,
        piece: &mut Option<Bytes>,
        end: bool,
        ctx: &mut Ctx,
    ) -> Result<Option<Duration>> {
        if let (Some(aside), Some(piece)) = (&mut ctx.cache.aside, &*piece) {
            aside.write(piece.clone());
        }
        if end && let Some(aside) = ctx.cache.aside.take() {
            aside.finish();
        }
        if let (Some(taking), Some(piece)) = (&mut ctx.cache.taking, &*piece) {
            taking.write(piece.clone());
        }
        if end {
            ctx.cache.taking = None;
        }
        if let Some(connection) = &ctx.connection {
            connection.touch();
            if let Some(fill) = ctx.cache.fill.as_ref().filter(|_| connection.gone()) {
                fill.leader_left();
                let left = *ctx.cache.left_at.get_or_insert_with(|| self.clock.now());
                if !fill.has_joiners() && self.clock.now().since(left) > UNATTENDED {
                    return Error::e_explain(ErrorType::WriteError, "everybody who read it is gone");
                }
            }
        }
        // A refresh in the background has no client that would want the rest, nor has a HEAD.
        let unread = |fill: &Arc<Fill>| (ctx.exchange.background || fill.unled()) && fill.pointless();
        if ctx.cache.fill.as_ref().is_some_and(unread) {
            return Error::e_explain(ErrorType::WriteError, "too long to be stored, and nobody reads it");
        }
        Ok(ctx.cache.fill.as_ref().and_then(|fill| fill.hold_up()))
    }

    fn error_while_proxy(
        &self,
        peer: &HttpPeer,
        session: &mut Session,
        error: Box<Error>,
        ctx: &mut Ctx,
        _: bool,
    ) -> Box<Error> {
        let expired = ctx.connection.as_ref().and_then(|connection| connection.expired());
        if let (Some(Phase::FirstByte | Phase::Reading), ErrorSource::Downstream) = (expired, error.esource()) {
            return Error::explain(ErrorType::ReadTimedout, format!("{peer}: the origin did not answer in time"))
                .into_up();
        }
        let mut error = error.more_context(format!("{peer}"));
        let (reused, mut refused) = ctx.line.as_ref().map_or((false, false), |line| (line.reused(), line.refused()));
        if !refused && unreadable(&error) {
            self.refusals.origin("unreadable", ctx.exchange.upstream.as_deref().unwrap_or_default());
            refused = true;
        }
        let may = session.req_header().method.is_idempotent()
            && !session.as_ref().retry_buffer_truncated()
            && ctx.resent < MOST_RESENT
            && !refused;
        if may {
            // A kept connection may have been closed while the request was on its way: that says nothing of the server.
            error.retry.decide_reuse(reused);
        } else {
            error.set_retry(false);
        }
        let same = error.retry();
        if may && !same && session.response_written().is_none() && broke_off(&error) {
            error.set_retry(ctx.upstream().is_some_and(|upstream| upstream.has_other(&ctx.tried)));
        }
        if error.retry() {
            ctx.resent += 1;
            self.metrics.retries.inc();
            if let Some(upstream) = ctx.upstream().filter(|_| same).cloned() {
                upstream.again(&mut ctx.tried);
            }
        }
        error
    }

    async fn fail_to_proxy(&self, session: &mut Session, error: &Error, ctx: &mut Ctx) -> FailToProxy {
        // After a 101 the bytes belong to another protocol.
        let begun =
            session.response_written().is_some_and(|head| !head.status.is_informational() || head.status == 101);
        let status = reply::status_of(error, ctx);
        let (upstream, peer, request) = (ctx.exchange.upstream.clone(), ctx.exchange.peer, ctx.exchange.id());
        match status {
            Some(_) if *error.etype() == taking::NO_SLICE => tracing::debug!(request, %error, "not a slice"),
            // What clients get wrong is no line each in the log.
            Some(400) if *error.esource() == ErrorSource::Downstream => {
                self.refusals.request("malformed", peer);
                tracing::debug!(request, %error, "the request is malformed");
            }
            Some(408) => tracing::debug!(request, %error, "the request did not arrive in time"),
            Some(_) => match self.refusals.failure() {
                Some(left_out) => {
                    tracing::warn!(status, request, upstream = upstream.as_deref(), begun, left_out, %error, "the exchange failed")
                }
                None => {
                    tracing::debug!(status, request, upstream = upstream.as_deref(), begun, %error, "the exchange failed")
                }
            },
            // Who closes a page, or an event stream, has not failed.
            None => tracing::debug!(request, upstream = upstream.as_deref(), begun, %error, "the client left"),
        }
        if let (Some(status), false) = (status, begun) {
            let page = reply::page(status, ctx);
            session.as_downstream_mut().set_keepalive(None);
            if let Err(error) = reply::send(session, ctx, &self.clock, page).await {
                tracing::debug!(%error, "the client did not wait for the error page");
            }
        } else if !begun {
            // nginx's word for a client that left before there was an answer.
            ctx.exchange.status = 499;
        }
        FailToProxy { error_code: status.unwrap_or(0), can_reuse_downstream: false }
    }

    async fn logging(&self, session: &mut Session, error: Option<&Error>, ctx: &mut Ctx) {
        if let Some(connection) = ctx.connection.take() {
            let head = session.response_written();
            let framed = head.is_none_or(|head| {
                ctx.exchange.method == Method::HEAD
                    || head.status == 304
                    || ["content-length", "transfer-encoding"].iter().any(|name| head.headers.contains_key(*name))
            });
            if error.is_some() && !framed {
                connection.reset();
            }
            connection.exchange_over();
        }
        if ctx.exchange.background {
            return;
        }
        if let Some(waited) = session.cache.lock_duration() {
            self.metrics.waits.inc();
            self.metrics.waited_ms.inc_by(waited.as_millis() as u64);
        }
        ctx.exchange.sent = session.body_bytes_sent() as u64;
        self.metrics.sent_bytes.inc_by(ctx.exchange.sent);
        ctx.counters().count(ctx.exchange.status, cache_word(&ctx.exchange));
        account::close(ctx);
        let _ = ctx.plugins(|chain, exchange| chain.log(exchange));
        if let Some(log) = &ctx.snapshot.log {
            log.write(session.req_header(), &mut ctx.exchange, self.clock.now());
        }
    }

    // The engine's own lines say less than ours, once for each broken client.
    fn suppress_error_log(&self, _: &Session, _: &Ctx, _: &Error) -> bool {
        true
    }

    fn suppress_proxy_warn_log(&self, _: &Session, _: &Ctx, _: &Error, _: ProxyWarnLogContext) -> bool {
        true
    }
}

impl Proxy {
    /// The request is with the origin, or will be as soon as its content is.
    fn await_answer(&self, session: &mut Session, ctx: &Ctx) {
        let (Some(connection), Some(upstream)) = (&ctx.connection, ctx.upstream()) else { return };
        if session.as_downstream_mut().is_body_done() {
            connection.await_first_byte(upstream.timeouts.first_byte);
        }
    }
}

/// Whether the client may hold its content back until it is told to go on. The engine asks that of HTTP/1.1 only.
fn waits_to_be_told(request: &RequestHeader) -> bool {
    let expects = || request.headers.get(EXPECT).is_some_and(|it| it.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    is_expect_continue_req(request) || (request.version == Version::HTTP_2 && expects())
}

/// The engine could not read it: a piece that came was enough to see it before its line was over.
fn unreadable(error: &Error) -> bool {
    *error.esource() == ErrorSource::Upstream && matches!(error.etype().as_str(), "InvalidHTTPHeader" | "InvalidChunk")
}

/// The server went away, rather than answer badly or too late: another one may do better.
fn broke_off(error: &Error) -> bool {
    use ErrorType::{ConnectionClosed, ReadError, WriteError};
    *error.esource() == ErrorSource::Upstream && matches!(error.etype(), ConnectionClosed | ReadError | WriteError)
}

/// The place in [`CACHE_WORDS`] of what the cache did.
fn cache_word(exchange: &Exchange) -> usize {
    let Some(status) = exchange.cache else { return 0 };
    let word = if status.hit {
        "hit"
    } else if status.collapsed {
        "collapsed"
    } else {
        status.forward.map_or("none", |forward| forward.word())
    };
    CACHE_WORDS.iter().position(|known| *known == word).unwrap_or(0)
}
