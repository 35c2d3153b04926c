//! Purges, for the operator's listener and for clients that may: the method `PURGE`.

use http::HeaderValue;
use http::header::{ALLOW, CONTENT_TYPE};
use pingora::http::RequestHeader;
use tokio::sync::Semaphore;

use super::context::Ctx;
use super::keys::Names;
use super::{House, guard, reply};
use crate::cache::key::{Parts, listed_host};
use crate::cache::purge::{Manner, Purged, What};
use crate::exchange::Exchange;
use crate::handler::Reply;
use crate::route::Route;

const METHOD: &str = "PURGE";

/// So many purges go on at once; the others wait, and hold no thread meanwhile.
static TURNS: Semaphore = Semaphore::const_new(8);

impl House {
    /// Takes out of the store what is meant. `None` is a purge that did not end well.
    pub async fn purge(&self, what: What, manner: Manner) -> Option<Purged> {
        let _turn = TURNS.acquire().await.ok()?;
        let (cache, meant) = (self.cache, what.clone());
        // A large one takes its time; requests are served meanwhile.
        let purged = tokio::task::spawn_blocking(move || cache.purge(&meant, manner)).await.ok()?;
        tracing::info!(?what, ?manner, purged.entries, purged.bytes, "purged");
        Some(purged)
    }
}

/// Whether this client may use its method here: any but `PURGE`; that one only where the route has it, or where it
/// has no cache and names the method, for a cache behind us.
pub fn admit(request: &RequestHeader, exchange: &Exchange, route: &Route) -> Result<(), Reply> {
    if request.method.as_str() != METHOD {
        return Ok(());
    }
    let networks = match &route.cache {
        None if route.conditions.methods.contains(&request.method) => return Ok(()),
        None => None,
        Some(cache) => cache.purge.as_ref(),
    };
    let Some(networks) = networks else {
        let refusal = Reply::text(405, "nobody purges here by this method");
        return Err(refusal.with(ALLOW, HeaderValue::from_static(guard::METHODS)));
    };
    let known = !exchange.speaks_for_others(&request.headers);
    match known && networks.iter().any(|network| network.0.contains(&exchange.client)) {
        true => Ok(()),
        false => Err(Reply::text(403, "this client may not purge here")),
    }
}

/// Whether a request that was admitted is for us to answer.
pub fn is_one(request: &RequestHeader, route: &Route) -> bool {
    request.method.as_str() == METHOD && route.cache.as_ref().is_some_and(|cache| cache.purge.is_some())
}

/// Takes out what is stored for this target under this host.
pub async fn answer(house: &House, request: &RequestHeader, ctx: &mut Ctx) -> Reply {
    let what = Names::of(request, ctx).map(|names| {
        let Parts { host, forwarded_host, target, .. } = names.parts();
        What::Target(Some(listed_host(host.as_bytes(), forwarded_host)), String::from_utf8_lossy(target).into())
    });
    let Ok(what) = what else { return reply::page(500, ctx) };
    match house.purge(what, Manner::default()).await {
        Some(Purged { entries, bytes }) => {
            let told = format!("{{\"entries\":{entries},\"bytes\":{bytes}}}\n");
            Reply::new(200, told).with(CONTENT_TYPE, HeaderValue::from_static("application/json"))
        }
        None => reply::page(500, ctx),
    }
}
