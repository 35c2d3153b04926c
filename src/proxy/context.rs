//! What the proxy keeps of one exchange beside what plugins see.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use pingora::cache::CacheKey;

use super::Snapshot;
use super::explain::Explain;
use super::parts::Composed;
use super::taking::Completing;
use crate::cache::aside::Aside;
use crate::cache::fetch::{Lead, Taking};
use crate::cache::fill::{Fill, Terms};
use crate::cache::parts::Seed;
use crate::cache::policy::Life;
use crate::cache::rule::Rule;
use crate::cache::stored::Head;
use crate::catch::{Panicked, catch};
use crate::clock::Moment;
use crate::connection::Connection;
use crate::exchange::{ContentFilter, Exchange};
use crate::fields::cache_status::Forward;
use crate::fields::query::Rules;
use crate::metrics::RouteMetrics;
use crate::plugin::Chain;
use crate::route::{Destination, Route, RouteCache};
use crate::upstream::lines::Line;
use crate::upstream::{Tried, Upstream};

/// One exchange.
pub struct Ctx {
    /// What plugins see.
    pub exchange: Exchange,
    /// The configuration that this exchange began with.
    pub snapshot: Arc<Snapshot>,
    /// The route, once it is found.
    pub route: Option<Arc<Route>>,
    /// The client's connection; a refresh in the background has none.
    pub connection: Option<Arc<Connection>>,
    /// Servers tried.
    pub tried: Tried,
    /// How often it was sent again.
    pub resent: u8,
    /// The connection to the server that was tried last.
    pub line: Option<Arc<Line>>,
    /// What the cache learned.
    pub cache: CacheNotes,
    /// What is noted beside for a client that asks why, and may.
    pub explain: Option<Box<Explain>>,
    /// Filters for the content of a response that we made.
    pub filters: Vec<Box<dyn ContentFilter>>,
    /// The proxy is closing: connections are not kept.
    pub draining: bool,
}

/// What the cache learned on the way.
#[derive(Default)]
pub struct CacheNotes {
    /// Why the cache did not look, if it did not.
    pub passed_by: Option<(Forward, Rule)>,
    /// The life of what was found, or is being stored.
    pub life: Option<Life>,
    /// The head of what was found.
    pub found: Option<Arc<Head>>,
    /// It was brought in by another request meanwhile.
    pub collapsed: bool,
    /// Something is stored, though not for these nominated fields.
    pub varied: bool,
    /// What was found is stale.
    pub stale: bool,
    /// What was found is stale, and the request accepts that.
    pub accepted: bool,
    /// The key stands for several queries, of which this is one, by what responses said.
    pub search: Option<Arc<Rules>>,
    /// The response is being stored beside the engine.
    pub aside: Option<Aside>,
    /// This exchange is there to fetch a slice.
    pub lead: Option<Lead>,
    /// The key under which it may be answered from parts, and its response taken in as one.
    pub in_parts: Option<CacheKey>,
    /// Part of what it asks for is stored.
    pub partly: bool,
    /// What is stored of the whole that it asks for.
    pub completing: Option<Completing>,
    /// The head of the response says that it is a whole that was completed so; the content has to be, too.
    pub completed: bool,
    /// What is stored of the content of the response, until the engine asks for it.
    pub seed: Option<Seed>,
    /// Where the parts of the answer come from, if it was put together here.
    pub composed: Option<Composed>,
    /// The part that is being taken in.
    pub taking: Option<Taking>,
    /// What was found is fresh, but the request asked for validation.
    pub asked: bool,
    /// Why the request was neither answered from the store nor sent on.
    pub declined: Option<&'static str>,
    /// What was found is not for this request.
    pub not_for_this: bool,
    /// Why the response was not stored.
    pub refused: Option<Rule>,
    /// Why another cache would have stored it all the same, or been misled by the request.
    pub leak: Option<Rule>,
    /// Fields that a client sent and the origin did not get, because they could have misled it.
    pub kept_back: Vec<HeaderName>,
    /// The verdict on the origin's response, until the engine asks for it.
    pub verdict: Option<Result<(Life, Terms), Rule>>,
    /// The fields of a 304 that freshens.
    pub freshener: Option<HeaderMap>,
    /// Fields that are not stored, for the client that brought the response in.
    pub withheld: Vec<(HeaderName, HeaderValue)>,
    /// The `Age` that the origin's response came with, line by line.
    pub age_lines: Vec<HeaderValue>,
    /// The same as a number.
    pub said_age: Duration,
    /// When the request went to the origin.
    pub forwarded_at: Option<Moment>,
    /// The status, or 0 for none, of the failure that a stale response stands in for.
    pub failure: Option<u16>,
    /// When the client was found to be gone while its response was being stored.
    pub left_at: Option<Moment>,
    /// The fill that this request leads.
    pub fill: Option<Arc<Fill>>,
}

impl Ctx {
    /// How the route keeps responses, if it does.
    pub fn route_cache(&self) -> Option<&RouteCache> {
        self.route.as_ref()?.cache.as_ref()
    }

    /// The plugins: the route's, or the site's where there is no route.
    pub fn chain(&self) -> &Chain {
        self.route.as_ref().map_or(&self.snapshot.plan.site, |route| &route.chain)
    }

    /// Asks the plugins: the route's, or the site's where there is no route.
    pub fn plugins<R>(&mut self, ask: impl FnOnce(&Chain, &mut Exchange) -> R) -> Result<R, Panicked> {
        let asked = match self.route.clone() {
            Some(route) => catch(|| ask(&route.chain, &mut self.exchange)),
            None => catch(|| ask(&self.snapshot.clone().plan.site, &mut self.exchange)),
        };
        asked.inspect_err(|_| self.panicked())
    }

    /// The counters of the route, or those of what no route answers.
    pub fn counters(&self) -> &RouteMetrics {
        let counters = &self.snapshot.counters;
        let number = self.route.as_ref().map_or(counters.len() - 1, |route| route.number);
        &counters[number.min(counters.len() - 1)]
    }

    /// Counts a panic of a plugin or a handler.
    pub fn panicked(&mut self) {
        let (route, request) = (self.exchange.route.clone(), self.exchange.id().to_owned());
        tracing::error!(%route, request, "a plugin or handler panicked; its request gets a 500");
        self.snapshot.panics.inc();
    }

    /// The upstream of the route, if it leads to one.
    pub fn upstream(&self) -> Option<&Arc<Upstream>> {
        match &self.route.as_deref()?.destination {
            Destination::Proxy(upstream) => Some(upstream),
            Destination::Local(_) => None,
        }
    }

    /// The client's content is here, or what comes from it is none.
    pub fn content_over(&self) {
        if let Some(connection) = &self.connection {
            connection.content_over();
        }
    }

    /// How long a reader of this exchange's response waits for the next piece.
    pub fn patience(&self) -> Duration {
        self.upstream().map_or(Duration::from_secs(60), |upstream| upstream.timeouts.read)
    }
}
