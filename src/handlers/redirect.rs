//! `redirect`: sends the client elsewhere.
//!
//! ```yaml
//! redirect: { to: "https://{host}/new{query}", status: 308 }
//! ```

use std::sync::Arc;

use async_trait::async_trait;
use http::HeaderValue;
use http::header::LOCATION;
use pingora::http::RequestHeader;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Surroundings, complaint};
use crate::exchange::Exchange;
use crate::handler::{Content, Handler, Reply};
use crate::plugin::{Complaint, settings};
use crate::template::Template;

/// Sends the client elsewhere.
///
/// ```yaml
/// routes:
///   - match: { path: /old }
///     to: { redirect: { to: "https://{host}/new{query}", status: 308 } }
/// ```
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    /// Where to; `{host} {path} {query} {client_ip} {request_id}` are filled in.
    to: String,
    /// 301, 302, 303, 307 or 308.
    #[serde(default = "permanent")]
    status: u16,
}

fn permanent() -> u16 {
    308
}

struct Redirect {
    status: u16,
    to: Template,
}

pub(super) fn build(value: &serde_yaml::Value, _: &Surroundings<'_>) -> Result<Arc<dyn Handler>, Complaint> {
    let settings: Settings = settings(value)?;
    if !matches!(settings.status, 301 | 302 | 303 | 307 | 308) {
        return Err(complaint(
            "status",
            format!("{} does not redirect; there are 301, 302, 303, 307 and 308", settings.status),
        ));
    }
    if settings.to.is_empty() {
        return Err(complaint("to", "a redirect needs a place to go"));
    }
    let to = Template::parse(&settings.to).map_err(|error| complaint("to", error))?;
    Ok(Arc::new(Redirect { status: settings.status, to }))
}

#[async_trait]
impl Handler for Redirect {
    async fn answer(&self, _: &RequestHeader, _: &mut Content<'_>, exchange: &mut Exchange) -> Reply {
        let place = self.to.value(exchange);
        // Two slashes at the beginning name a host, and the client has chosen the path.
        let slashes = place.as_bytes().iter().take_while(|byte| **byte == b'/').count();
        let place = HeaderValue::from_bytes(&place.as_bytes()[slashes.saturating_sub(1)..]).unwrap_or(place);
        Reply::new(self.status, "").with(LOCATION, place)
    }
}
