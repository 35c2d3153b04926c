//! `request_id`: gives each exchange a name, to the client and to the origin.
//!
//! ```yaml
//! request_id: { field: X-Request-Id }
//! ```
//!
//! A name that comes with the request is kept only from `trust.proxies`, and only up to 128 letters,
//! digits and `-_.`; everybody else gets a new one, 32 hexadecimal digits. The access log, error
//! pages and `{request_id}` in other plugins use the same name. Put it first, best among the site's
//! `plugins`, so that refusals carry it too.
//!
//! On a cached route each client sees a name of its own, on hits as well. The origin is told the name
//! only where its answer cannot be stored: what it wrote into a stored page would be read by others.

use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderName, HeaderValue};
use pingora::http::{RequestHeader, ResponseHeader};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::exchange::Exchange;
use crate::fields::connection::frames;
use crate::handler::Reply;
use crate::plugin::{Hooks, OnRequest, OnRequestHead, OnResponse, OnUpstreamRequest, Plugin};

/// Gives each exchange a name.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The field that carries it.
    pub field: String,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { field: "X-Request-Id".into() }
    }
}

/// The plugin.
pub struct RequestId(HeaderName);

impl Plugin for RequestId {
    const NAME: &'static str = "request_id";
    type Settings = Settings;

    fn build(settings: Settings) -> Result<Hooks, String> {
        let name = settings.field.parse().ok().filter(|_| !frames(&settings.field));
        let name = name.ok_or_else(|| format!("`{}` is no field name for this", settings.field))?;
        let this = Arc::new(RequestId(name));
        Ok(Hooks::new().request(this.clone()).request_head(this.clone()).upstream_request(this.clone()).response(this))
    }
}

fn acceptable(name: &str) -> bool {
    (1..=128).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

#[async_trait]
impl OnRequest for RequestId {
    async fn on_request(&self, request: &RequestHeader, exchange: &mut Exchange) -> Option<Reply> {
        let mut lines = request.headers.get_all(&self.0).iter();
        if let (true, Some(only), None) = (exchange.peer_trusted, lines.next(), lines.next())
            && let Some(name) = only.to_str().ok().filter(|name| acceptable(name))
        {
            exchange.set_id(name.to_owned());
        }
        None
    }
}

impl OnRequestHead for RequestId {
    fn on_request_head(&self, request: &mut RequestHeader, _: &mut Exchange) {
        request.remove_header(&self.0);
    }
}

impl RequestId {
    fn value(exchange: &mut Exchange) -> HeaderValue {
        HeaderValue::from_str(exchange.id()).unwrap_or_else(|_| HeaderValue::from_static("-"))
    }
}

impl OnUpstreamRequest for RequestId {
    fn on_upstream_request(&self, request: &mut RequestHeader, exchange: &mut Exchange) {
        if !exchange.shared {
            let _ = request.insert_header(&self.0, Self::value(exchange));
        }
    }
}

impl OnResponse for RequestId {
    fn on_response(&self, _: &RequestHeader, response: &mut ResponseHeader, exchange: &mut Exchange) {
        let _ = response.insert_header(&self.0, Self::value(exchange));
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{complaint, example};

    #[tokio::test]
    async fn only_a_trusted_proxy_names_an_exchange() {
        let plugin = example(include_str!("request_id.rs"));
        for (given, trusted, kept) in
            [("abc-1", true, true), ("abc-1", false, false), ("a b", true, false), ("<x>", true, false)]
        {
            let mut visit = plugin.visit(&format!("GET /\nX-Request-Id: {given}"));
            visit.exchange.peer_trusted = trusted;
            assert!(visit.answer().await.is_none());
            assert!(!visit.head().headers.contains_key("x-request-id"));
            let told = visit.upstream().headers["x-request-id"].to_str().unwrap().to_owned();
            assert_eq!(told == given, kept, "{given}");
            assert_eq!(visit.response("200\nX-Request-Id: app", &[]).field("x-request-id"), told);
        }
    }

    #[test]
    fn what_is_shared_does_not_know_it() {
        let plugin = example(include_str!("request_id.rs"));
        let mut visit = plugin.visit("GET /");
        visit.exchange.shared = true;
        assert!(!visit.upstream().headers.contains_key("x-request-id"));
        assert!(complaint("request_id: { field: Content-Length }").message.contains("no field name"));
    }
}
