//! `respond`: a fixed answer.
//!
//! ```yaml
//! respond: { status: 200, type: text/plain, content: "User-agent: *" }
//! ```

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use pingora::http::RequestHeader;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Surroundings, complaint};
use crate::exchange::Exchange;
use crate::handler::{Content, Handler, Reply};
use crate::plugin::{Complaint, settings};

/// A fixed answer.
///
/// ```yaml
/// routes:
///   - match: { path: /robots.txt }
///     to: { respond: { type: text/plain, content: "User-agent: *" } }
/// ```
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Settings {
    /// From 200 to 599.
    status: u16,
    /// Its media type.
    r#type: String,
    /// Its content.
    content: String,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { status: 200, r#type: "text/plain; charset=utf-8".into(), content: String::new() }
    }
}

/// The handler.
pub struct Respond {
    status: u16,
    kind: HeaderValue,
    content: Bytes,
}

impl Respond {
    /// An empty 200.
    pub fn empty() -> Self {
        Respond { status: 200, kind: HeaderValue::from_static("text/plain"), content: Bytes::new() }
    }
}

pub(super) fn build(value: &serde_yaml::Value, _: &Surroundings<'_>) -> Result<Arc<dyn Handler>, Complaint> {
    let settings: Settings = settings(value)?;
    if !(200..=599).contains(&settings.status) {
        return Err(complaint("status", format!("{} is no final status; there are 200 to 599", settings.status)));
    }
    if matches!(settings.status, 204 | 304) && !settings.content.is_empty() {
        return Err(complaint("content", format!("a {} has no content", settings.status)));
    }
    let kind = settings.r#type.parse().map_err(|_| complaint("type", "this is no media type"))?;
    Ok(Arc::new(Respond { status: settings.status, kind, content: settings.content.into() }))
}

#[async_trait]
impl Handler for Respond {
    async fn answer(&self, _: &RequestHeader, _: &mut Content<'_>, _: &mut Exchange) -> Reply {
        let reply = Reply::new(self.status, self.content.clone());
        if self.content.is_empty() { reply } else { reply.with(CONTENT_TYPE, self.kind.clone()) }
    }
}
