//! `body_limit`: how much content a request may have.
//!
//! ```yaml
//! body_limit: { max: 10MiB }
//! ```
//!
//! Content that is announced as longer is refused with 413 before anything of it is used or sent on;
//! content that comes without a length is counted, and cut off with 413 when it grows past the limit.
//! It counts for a key/value store as well as for an origin.
//!
//! On a cached route it changes nothing: requests with content are never answered from the store.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use pingora::http::RequestHeader;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::exchange::Exchange;
use crate::handler::Reply;
use crate::plugin::{Hooks, OnRequest, OnRequestBody, Plugin};
use crate::units::ByteSize;

/// How much content a request may have.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The most; 0B for none at all.
    pub max: ByteSize,
}

/// The plugin.
pub struct BodyLimit(u64);

impl Plugin for BodyLimit {
    const NAME: &'static str = "body_limit";
    type Settings = Settings;

    fn build(settings: Settings) -> Result<Hooks, String> {
        let this = Arc::new(BodyLimit(settings.max.0));
        Ok(Hooks::new().request(this.clone()).request_body(this))
    }
}

#[async_trait]
impl OnRequest for BodyLimit {
    async fn on_request(&self, request: &RequestHeader, _: &mut Exchange) -> Option<Reply> {
        let announced = request.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        let refused = announced.is_some_and(|length| length > self.0);
        refused.then(|| Reply::text(413, format!("a request has at most {} of content here", ByteSize(self.0))))
    }
}

impl OnRequestBody for BodyLimit {
    fn on_request_body(&self, _: &mut Option<Bytes>, _: bool, exchange: &mut Exchange) -> Result<(), u16> {
        if exchange.taken > self.0 { Err(413) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{complaint, example, plugin};

    #[tokio::test]
    async fn what_is_announced_is_refused_before_it_comes() {
        let plugin = example(include_str!("body_limit.rs"));
        assert!(plugin.visit("POST /\nContent-Length: 10485760").answer().await.is_none());
        let refusal = plugin.visit("POST /\nContent-Length: 10485761").answer().await.unwrap();
        assert_eq!(refusal.status(), 413);
        assert!(refusal.text().contains("10MiB"));
        assert!(complaint("body_limit: {}").message.contains("missing field `max`"));
    }

    #[test]
    fn what_is_not_announced_is_counted() {
        let plugin = plugin("body_limit: { max: 5B }");
        let mut visit = plugin.visit("POST /");
        assert!(visit.chunk(Some("abc")).is_ok() && visit.chunk(Some("de")).is_ok());
        assert_eq!(visit.chunk(Some("f")), Err(413));
        let mut next = plugin.visit("POST /");
        assert!(next.chunk(Some("abcde")).is_ok() && next.chunk(None).is_ok());
    }
}
