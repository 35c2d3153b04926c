//! The operator's listener: `/health`, `/metrics`, `/stats`, and `/purge`.

mod access;
mod purge;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use async_trait::async_trait;
use http::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE, HOST};
use http::{Method, Response};
use pingora::apps::http_app::ServeHttp;
use pingora::protocols::http::ServerSession;

use crate::cache::purge::{Purged, What};
use crate::config::Lasting;
use crate::connection::{Phase, Watched};
use crate::fields::authority::without_port;
use crate::proxy::Proxy;

/// Answers operators.
pub struct Admin {
    /// What it tells about.
    pub proxy: Proxy,
    /// The key/value stores are in it.
    pub lasting: Arc<Lasting>,
}

fn answer(status: u16, kind: &str, text: String) -> Response<Vec<u8>> {
    let response = Response::builder().status(status).header(CONTENT_TYPE, kind).header(CONTENT_LENGTH, text.len());
    response.body(text.into_bytes()).unwrap_or_default()
}

fn expired(session: &ServerSession) -> Option<Phase> {
    Watched::below(session)?.connection().expired()
}

impl Admin {
    /// Brings the gauges up to date.
    fn measure(&self) {
        let metrics = &self.proxy.metrics;
        let cache = self.proxy.cache.usage();
        metrics.cache().set(cache.bytes, cache.entries, cache.evicted);
        let mut all = crate::memory::Usage::default();
        let mut arriving = 0;
        for (_, store) in self.lasting.stores.all() {
            let usage = store.usage();
            all.bytes += usage.bytes;
            all.entries += usage.entries;
            all.evicted += usage.evicted;
            arriving += store.arriving();
        }
        metrics.kv_arriving.set(arriving);
        metrics.kv().set(all.bytes, all.entries, all.evicted);
        let (fills, bytes) = self.proxy.cache.filling();
        metrics.fills.set(fills);
        metrics.kept.set(self.proxy.snapshot.load().plan.upstreams.iter().map(|upstream| upstream.kept() as u64).sum());
        metrics.fill_bytes.set(bytes);
        for (what, usage, limit) in self.proxy.cache.remembered() {
            metrics.remembered(what, usage.bytes, usage.entries, limit);
        }
        let (mut clients, mut most) = (crate::memory::Usage::default(), 0);
        for (usage, limit) in self.proxy.snapshot.load().plan.kept.values().filter_map(|hooks| hooks.remembered()) {
            clients.bytes += usage.bytes;
            clients.entries += usage.entries;
            most += limit;
        }
        metrics.remembered("plugins", clients.bytes, clients.entries, most);
        metrics.tasks.set(tokio::runtime::Handle::current().metrics().num_alive_tasks() as u64);
    }

    /// Takes out of the store what the content says.
    async fn purge(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        // A name that leads here may be anybody's who has the operator open a page (DNS rebinding); such a page has no token.
        let guarded = self.proxy.snapshot.load().plan.admin_token.is_some();
        let host = session.req_header().headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
        let host = without_port(host).trim_matches(['[', ']']);
        if !guarded && host != "localhost" && host.parse::<std::net::IpAddr>().is_err() {
            return answer(421, "text/plain", "ask by address, or as localhost\n".into());
        }
        // A page in an operator's browser cannot send this without being asked first (CORS).
        let json = session.req_header().headers.get(CONTENT_TYPE).is_some_and(|kind| {
            kind.as_bytes()
                .split(|byte| *byte == b';')
                .next()
                .unwrap_or_default()
                .trim_ascii()
                .eq_ignore_ascii_case(b"application/json")
        });
        if !json {
            return answer(415, "text/plain", "a purge is JSON, with Content-Type: application/json\n".into());
        }
        let mut content = Vec::new();
        loop {
            match session.read_request_body().await {
                Ok(Some(piece)) if content.len() + piece.len() <= purge::LONGEST => content.extend_from_slice(&piece),
                Ok(Some(_)) => return answer(413, "text/plain", "a purge is shorter\n".into()),
                Ok(None) => break,
                Err(_) if expired(session) == Some(Phase::Content) => {
                    return answer(408, "text/plain", "the content came too slowly\n".into());
                }
                Err(_) => return answer(400, "text/plain", "the content did not arrive whole\n".into()),
            }
        }
        let (what, manner) = match purge::read(&content) {
            Ok(asked) => asked,
            Err(message) => return answer(400, "text/plain", format!("{message}\n")),
        };
        let Some(mut purged) = self.proxy.purge(what.clone(), manner).await else {
            return answer(500, "text/plain", "the purge did not end well\n".into());
        };
        let kv = match &what {
            What::Tag(tag) => {
                let (tag, lasting, clock) = (tag.clone(), self.lasting.clone(), self.proxy.clock.clone());
                let purging = tokio::task::spawn_blocking(move || lasting.stores.purge(&tag, manner, &clock));
                purging.await.unwrap_or_default()
            }
            _ => Purged::default(),
        };
        purged.add(kv.entries, kv.bytes);
        let told = purge::Answer {
            entries: purged.entries,
            bytes: purged.bytes,
            kv: kv.entries,
            soft: manner.soft,
            dry_run: manner.dry_run,
        };
        answer(200, "application/json", serde_json::to_string(&told).unwrap_or_default() + "\n")
    }

    fn stats(&self) -> String {
        let cache = self.proxy.cache.usage();
        let (fills, fill_bytes) = self.proxy.cache.filling();
        let metrics = &self.proxy.metrics;
        let stores: serde_json::Map<_, _> = self
            .lasting
            .stores
            .all()
            .into_iter()
            .map(|(name, store)| {
                let usage = store.usage();
                (name, serde_json::json!({ "bytes": usage.bytes, "entries": usage.entries, "evicted": usage.evicted }))
            })
            .collect();
        let stats = serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "draining": self.proxy.draining.load(Relaxed),
            "connections": { "open": metrics.connections.get(), "accepted": metrics.connections_accepted.get() },
            "bytes": { "sent": metrics.sent_bytes.get(), "received": metrics.received_bytes.get() },
            "cache": { "bytes": cache.bytes, "entries": cache.entries, "evicted": cache.evicted, "fills": fills, "fill_bytes": fill_bytes },
            "kv": stores,
        });
        format!("{stats:#}\n")
    }
}

#[async_trait]
impl ServeHttp for Admin {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        let connection = Watched::below(session).map(|watched| watched.connection().clone());
        let Some(connection) = connection else { return self.answer(session).await };
        // Held to what clients are held to.
        connection.head_here(self.proxy.snapshot.load().plan.bounds);
        if !session.is_body_empty() {
            connection.await_content();
        }
        let answer = self.answer(session).await;
        if session.is_body_done() {
            connection.content_over();
        }
        connection.exchange_over();
        answer
    }
}

impl Admin {
    async fn answer(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        let request = session.req_header();
        let path = request.raw_path().split(|byte| *byte == b'?').next().unwrap_or_default();
        if path != b"/health"
            && let Some(refusal) =
                access::refuse(&request.headers, self.proxy.snapshot.load().plan.admin_token.as_ref())
        {
            return refusal;
        }
        if request.method == Method::POST && request.raw_path() == b"/purge" {
            return self.purge(session).await;
        }
        if !matches!(request.method, Method::GET | Method::HEAD) {
            let mut refusal = answer(405, "text/plain", "there is only GET, and POST for /purge\n".into());
            let allowed = if path == b"/purge" { "POST" } else { "GET, HEAD" };
            refusal.headers_mut().insert(ALLOW, http::HeaderValue::from_static(allowed));
            return refusal;
        }
        match path {
            b"/health" if self.proxy.draining.load(Relaxed) => answer(503, "text/plain", "draining\n".into()),
            b"/health" => answer(200, "text/plain", "ok\n".into()),
            b"/metrics" => {
                self.measure();
                answer(200, "text/plain; version=0.0.4", self.proxy.metrics.text())
            }
            b"/stats" => answer(200, "application/json", self.stats()),
            _ => answer(404, "text/plain", "there are: /health /metrics /stats, and POST /purge\n".into()),
        }
    }
}
