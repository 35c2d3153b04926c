//! `redirect_https`: sends clients that came by `http` to the same place by `https`.
//!
//! ```yaml
//! redirect_https: { status: 308, except: [/.well-known/acme-challenge/] }
//! ```
//!
//! How a client came is known from `X-Forwarded-Proto` of a proxy in `trust.proxies`; without one
//! every request would be redirected for ever, so the configuration is refused. A request without
//! `Host` is let through.
//!
//! On a cached route the answer comes before the store is asked; it is never stored here.

use std::sync::Arc;

use async_trait::async_trait;
use http::HeaderValue;
use http::header::LOCATION;
use pingora::http::RequestHeader;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::exchange::Exchange;
use crate::fields::authority::{is_authority, without_port};
use crate::fields::{members, path};
use crate::handler::Reply;
use crate::plugin::{Hooks, OnRequest, Plugin};

/// Sends clients that came by `http` to the same place by `https`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// 301, 302, 307 or 308; 307 and 308 keep the method.
    pub status: u16,
    /// The port to go to.
    pub port: u16,
    /// Beginnings of paths, in their normal form, that stay reachable by `http`.
    pub except: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { status: 308, port: 443, except: Vec::new() }
    }
}

/// The plugin.
pub struct RedirectHttps(Settings);

impl Plugin for RedirectHttps {
    const NAME: &'static str = "redirect_https";
    type Settings = Settings;

    fn build(settings: Settings) -> Result<Hooks, String> {
        if !matches!(settings.status, 301 | 302 | 307 | 308) {
            return Err(format!("{} does not redirect; there are 301, 302, 307 and 308", settings.status));
        }
        if settings.port == 0 {
            return Err("`port` is from 1 to 65535".into());
        }
        if let Some(path) = settings.except.iter().find(|path| !path.starts_with('/')) {
            return Err(format!("`{path}` in `except` is no beginning of a path; they begin with /"));
        }
        let why = "without anybody in `trust.proxies` no request ever counts as https, and all would be redirected for ever; add the proxy that ends TLS";
        Ok(Hooks::new().request(Arc::new(RedirectHttps(settings))).only_with_proxies(why))
    }
}

#[async_trait]
impl OnRequest for RedirectHttps {
    async fn on_request(&self, request: &RequestHeader, exchange: &mut Exchange) -> Option<Reply> {
        let path = path::normalise(exchange.path());
        let excepted = self.0.except.iter().any(|start| path.starts_with(start.as_str()));
        if exchange.scheme == "https" || exchange.host.is_empty() || excepted {
            return None;
        }
        // The last one is the trusted proxy's own word; those before it are whoever's.
        let forwarded = members(&request.headers, "x-forwarded-host").last().filter(|_| exchange.peer_trusted);
        let forwarded = forwarded.filter(|host| is_authority(host)).and_then(|host| std::str::from_utf8(host).ok());
        let host = without_port(forwarded.unwrap_or(&exchange.host));
        let port = if self.0.port == 443 { String::new() } else { format!(":{}", self.0.port) };
        let place = HeaderValue::try_from(format!("https://{host}{port}{}", exchange.target)).ok()?;
        Some(Reply::new(self.0.status, "").with(LOCATION, place))
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{complaint, example, plugin};

    #[tokio::test]
    async fn plain_requests_go_to_the_same_place() {
        let plugin = example(include_str!("redirect_https.rs"));
        for (request, scheme, expected) in [
            ("GET /a?b=c\nHost: Shop.test:8080", "http", Some("https://shop.test/a?b=c")),
            ("GET /a\nHost: [::1]:80", "http", Some("https://[::1]/a")),
            ("GET /a\nHost: [::1]", "http", Some("https://[::1]/a")),
            ("GET /a\nHost: app\nX-Forwarded-Host: shop.test", "http", Some("https://shop.test/a")),
            ("GET /a\nHost: app\nX-Forwarded-Host: evil.test, shop.test:80", "http", Some("https://shop.test/a")),
            ("GET /a\nHost: app.test\nX-Forwarded-Host: evil.test/x", "http", Some("https://app.test/a")),
            ("GET //evil.test/a\nHost: app.test\nX-Forwarded-Host:", "http", Some("https://app.test//evil.test/a")),
            ("GET /a\nHost: a.test", "https", None),
            ("GET /.well-known/acme-challenge/x\nHost: a.test", "http", None),
            (
                "GET /.well-known/acme-challenge/../../x\nHost: a.test",
                "http",
                Some("https://a.test/.well-known/acme-challenge/../../x"),
            ),
        ] {
            let answer = plugin.visit(request).by_proxy(scheme).answer().await;
            assert_eq!(answer.as_ref().map(|answer| answer.field("location")), expected, "{request}");
        }
    }

    #[tokio::test]
    async fn a_stranger_does_not_choose_the_host() {
        let port = plugin("redirect_https: { port: 8443, status: 301 }");
        let answer = port.visit("GET /\nHost: a.test\nX-Forwarded-Host: evil.test").answer().await.unwrap();
        assert_eq!((answer.status(), answer.field("location")), (301, "https://a.test:8443/"));
        assert!(complaint("redirect_https: { status: 200 }").message.contains("does not redirect"));
    }
}
