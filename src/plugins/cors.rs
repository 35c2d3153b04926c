//! `cors`: lets pages of other origins read responses (the Fetch standard's CORS protocol).
//!
//! ```yaml
//! cors:
//!   origins: ["https://app.example.com", "https://*.example.org"]   # or ["*"]
//!   methods: [GET, POST, DELETE]
//!   headers: [Content-Type, X-Csrf]
//!   expose: [ETag]
//!   credentials: true
//!   max_age: 10m
//! ```
//!
//! A preflight (`OPTIONS` with `Origin` and `Access-Control-Request-Method`) is answered here with 204,
//! or 403 for an origin, method or field that is not allowed. On other responses the
//! `Access-Control-*` fields of the app are replaced by these. `*` in an origin stands for one name or
//! more before the rest; it never matches across `/` or a port.
//!
//! On a cached route the fields are put on as the response leaves, for the origin that asks: what is
//! stored has none of them, and a hit for another origin is right too. Unless every origin is
//! allowed, `Vary: Origin` tells caches further down.

use std::sync::Arc;

use async_trait::async_trait;
use http::header::*;
use http::{HeaderName, HeaderValue, Method};
use pingora::http::{RequestHeader, ResponseHeader};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::exchange::Exchange;
use crate::fields::{members, vary};
use crate::handler::Reply;
use crate::plugin::{Hooks, OnRequest, OnResponse, Plugin};
use crate::units::Span;

/// Lets pages of other origins read responses.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Origins such as `https://app.example.com` or `https://*.example.com`, or `*` for all.
    pub origins: Vec<String>,
    /// Methods beside GET, HEAD and POST, which need no permission.
    #[serde(default)]
    pub methods: Vec<String>,
    /// Request fields beside those that need no permission.
    #[serde(default)]
    pub headers: Vec<String>,
    /// Response fields that scripts may read beside those that need no permission.
    #[serde(default)]
    pub expose: Vec<String>,
    /// Whether cookies and credentials may be sent.
    #[serde(default)]
    pub credentials: bool,
    /// How long a browser may remember the answer to a preflight; 5 s to most when absent.
    #[serde(default)]
    pub max_age: Option<Span>,
}

enum Allowed {
    Any,
    Exactly(String),
    Below(String, String),
}

/// The plugin.
pub struct Cors {
    origins: Vec<Allowed>,
    methods: Vec<Method>,
    fields: Vec<HeaderName>,
    expose: Option<HeaderValue>,
    credentials: bool,
    max_age: Option<HeaderValue>,
}

/// Every field that a response may say CORS with.
const SAID: &[HeaderName] = &[
    ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_ALLOW_CREDENTIALS,
    ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_HEADERS,
    ACCESS_CONTROL_EXPOSE_HEADERS,
    ACCESS_CONTROL_MAX_AGE,
];

fn allowed(origin: &str) -> Result<Allowed, String> {
    if origin == "*" {
        return Ok(Allowed::Any);
    }
    let wrong = || {
        format!("`{origin}` is no origin; write a scheme and a host, without a path, such as https://app.example.com")
    };
    let (scheme, host) = origin.split_once("://").ok_or_else(wrong)?;
    if (scheme == "https" && host.ends_with(":443")) || (scheme == "http" && host.ends_with(":80")) {
        return Err(format!("`{origin}`: browsers leave the default port out; do the same"));
    }
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte));
    let origin = origin.to_ascii_lowercase();
    match host.strip_prefix("*.") {
        _ if scheme.is_empty() || host.is_empty() => Err(wrong()),
        Some(below) if !below.is_empty() && plain(below) => Ok(Allowed::Below(
            format!("{}://", scheme.to_ascii_lowercase()),
            format!(".{}", below.to_ascii_lowercase()),
        )),
        None if plain(host) => Ok(Allowed::Exactly(origin)),
        _ => Err(wrong()),
    }
}

impl Plugin for Cors {
    const NAME: &'static str = "cors";
    type Settings = Settings;

    fn build(settings: Settings) -> Result<Hooks, String> {
        let origins: Vec<_> = settings.origins.iter().map(|origin| allowed(origin)).collect::<Result<_, _>>()?;
        if origins.is_empty() {
            return Err("`origins` names nobody; write an origin, or \"*\" for all".into());
        }
        if settings.credentials && origins.iter().any(|origin| matches!(origin, Allowed::Any)) {
            return Err("`credentials` together with the origin `*` would let every page read what is private; name the origins".into());
        }
        let method = |text: &String| match Method::from_bytes(text.as_bytes()) {
            Ok(method) if text.bytes().all(|byte| byte.is_ascii_uppercase()) => Ok(method),
            _ => Err(format!("`{text}` is no method; they are written in capitals, such as PUT")),
        };
        let name = |text: &String| text.parse::<HeaderName>().map_err(|_| format!("`{text}` is not a field name"));
        let exposed: Vec<_> = settings.expose.iter().map(name).collect::<Result<_, _>>()?;
        let list = exposed.iter().map(HeaderName::as_str).collect::<Vec<_>>().join(", ");
        let this = Arc::new(Cors {
            origins,
            methods: settings.methods.iter().map(method).collect::<Result<_, _>>()?,
            fields: settings.headers.iter().map(name).collect::<Result<_, _>>()?,
            expose: Some(list).filter(|list| !list.is_empty()).and_then(|list| list.parse().ok()),
            credentials: settings.credentials,
            max_age: settings.max_age.map(|span| HeaderValue::from(span.0.as_secs())),
        });
        Ok(Hooks::new().request(this.clone()).response(this).once())
    }
}

impl Cors {
    fn any(&self) -> bool {
        self.origins.iter().any(|origin| matches!(origin, Allowed::Any))
    }

    /// What to say to the origin that asks; `None` when it may not read.
    fn says(&self, origin: &HeaderValue) -> Option<HeaderValue> {
        if self.any() {
            return Some(HeaderValue::from_static("*"));
        }
        let text = origin.to_str().ok()?;
        let fits = self.origins.iter().any(|allowed| match allowed {
            Allowed::Any => true,
            Allowed::Exactly(exact) => exact == text,
            Allowed::Below(scheme, below) => {
                text.strip_prefix(scheme.as_str()).and_then(|host| host.strip_suffix(below.as_str())).is_some_and(
                    |name| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b)),
                )
            }
        });
        fits.then(|| origin.clone())
    }

    fn preflight(&self, request: &RequestHeader, origin: &HeaderValue, method: &HeaderValue) -> Reply {
        let reply = Reply::new(204, "");
        let refuse = |what: &str| Reply::text(403, format!("{what} is not allowed across origins here"));
        let Some(says) = self.says(origin) else { return vary_for(refuse("this origin")) };
        let simple = [Method::GET, Method::HEAD, Method::POST];
        let Some(method) =
            self.methods.iter().chain(&simple).find(|known| known.as_str().as_bytes() == method.as_bytes())
        else {
            return vary_for(refuse("this method"));
        };
        let mut asked = Vec::new();
        for member in members(&request.headers, ACCESS_CONTROL_REQUEST_HEADERS) {
            match self.fields.iter().find(|known| known.as_str().as_bytes().eq_ignore_ascii_case(member)) {
                Some(known) => asked.push(known.as_str()),
                None => return vary_for(refuse("this field")),
            }
        }
        let mut reply = reply.with(ACCESS_CONTROL_ALLOW_ORIGIN, says);
        if let Ok(method) = method.as_str().parse::<HeaderValue>() {
            reply.set(ACCESS_CONTROL_ALLOW_METHODS, method);
        }
        if let (false, Ok(fields)) = (asked.is_empty(), asked.join(", ").parse::<HeaderValue>()) {
            reply.set(ACCESS_CONTROL_ALLOW_HEADERS, fields);
        }
        if self.credentials {
            reply.set(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
        if let Some(max_age) = &self.max_age {
            reply.set(ACCESS_CONTROL_MAX_AGE, max_age.clone());
        }
        vary_for(reply)
    }
}

/// The origin that asks, if it is one.
fn origin(request: &RequestHeader) -> Option<&HeaderValue> {
    let mut lines = request.headers.get_all(ORIGIN).iter();
    lines.next().filter(|_| lines.next().is_none())
}

/// The answer to a preflight depends on all that it asks.
fn vary_for(reply: Reply) -> Reply {
    reply.with(VARY, HeaderValue::from_static("Origin, Access-Control-Request-Method, Access-Control-Request-Headers"))
}

/// This answer was made for a preflight; the response door has nothing to add.
struct Answered;

#[async_trait]
impl OnRequest for Cors {
    async fn on_request(&self, request: &RequestHeader, exchange: &mut Exchange) -> Option<Reply> {
        let origin = origin(request).filter(|_| request.method == Method::OPTIONS)?;
        let method = request.headers.get(ACCESS_CONTROL_REQUEST_METHOD)?;
        exchange.set_note(Answered);
        Some(self.preflight(request, origin, method))
    }
}

impl OnResponse for Cors {
    fn on_response(&self, request: &RequestHeader, response: &mut ResponseHeader, exchange: &mut Exchange) {
        if exchange.note::<Answered>().is_some() {
            return;
        }
        for name in SAID {
            response.remove_header(name);
        }
        if !self.any() {
            vary::add(response, ORIGIN);
        }
        let Some(says) = origin(request).and_then(|origin| self.says(origin)) else { return };
        let _ = response.insert_header(ACCESS_CONTROL_ALLOW_ORIGIN, says);
        if self.credentials {
            let _ = response.insert_header(ACCESS_CONTROL_ALLOW_CREDENTIALS, "true");
        }
        if let Some(expose) = &self.expose {
            let _ = response.insert_header(ACCESS_CONTROL_EXPOSE_HEADERS, expose.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{complaint, example, plugin};

    #[tokio::test]
    async fn preflights_are_answered() {
        let plugin = example(include_str!("cors.rs"));
        for (origin, method, fields, status) in [
            ("https://app.example.com", "DELETE", "content-type, x-csrf", 204),
            ("https://a.b.example.org", "GET", "", 204),
            ("https://app.example.com", "PUT", "", 403),
            ("https://app.example.com", "POST", "x-other", 403),
            ("http://app.example.com", "GET", "", 403),
            ("https://evil.com/.example.org", "GET", "", 403),
            ("https://example.org", "GET", "", 403),
            ("null", "GET", "", 403),
        ] {
            let fields =
                if fields.is_empty() { String::new() } else { format!("\nAccess-Control-Request-Headers: {fields}") };
            let request = format!("OPTIONS /\nOrigin: {origin}\nAccess-Control-Request-Method: {method}{fields}");
            let mut visit = plugin.visit(&request);
            let answer = visit.answer().await.unwrap();
            assert_eq!(answer.status(), status, "{request}");
            assert_eq!(answer.field("access-control-allow-origin"), if status == 204 { origin } else { "" });
            assert!(answer.field("vary").starts_with("Origin, "));
        }
        assert!(plugin.visit("OPTIONS /\nOrigin: https://app.example.com").answer().await.is_none(), "no preflight");
    }

    #[test]
    fn each_origin_gets_its_own_word() {
        let plugin = example(include_str!("cors.rs"));
        for (origin, allowed) in [("https://app.example.com", true), ("https://other.test", false), ("", false)] {
            let out = plugin
                .visit(&format!("GET /\nOrigin: {origin}"))
                .response("200\nVary: Accept\nAccess-Control-Allow-Origin: https://stored.test", &[]);
            assert_eq!(out.field("access-control-allow-origin"), if allowed { origin } else { "" });
            assert_eq!(out.field("access-control-allow-credentials"), if allowed { "true" } else { "" });
            assert_eq!(out.field("access-control-expose-headers"), if allowed { "etag" } else { "" });
            assert_eq!(out.field("vary"), "Accept, origin");
        }
        let all = self::plugin("cors: { origins: [\"*\"] }");
        let out = all.visit("GET /\nOrigin: https://x.test").response("200", &[]);
        assert_eq!((out.field("access-control-allow-origin"), out.has("vary")), ("*", false));
    }

    #[test]
    fn mistakes_are_errors_that_help() {
        for (settings, told) in [
            ("{ origins: [\"*\"], credentials: true }", "would let every page read what is private"),
            ("{ origins: [app.example.com] }", "is no origin"),
            ("{ origins: [\"https://a.test/path\"] }", "is no origin"),
            ("{ origins: [\"https://*\"] }", "is no origin"),
            ("{ origins: [] }", "names nobody"),
            ("{ origins: [\"https://a.test:443\"] }", "leave the default port out"),
            ("{ origins: [\"*\"], methods: [put] }", "in capitals"),
        ] {
            let complaint = complaint(&format!("cors: {settings}"));
            assert!(complaint.message.contains(told), "{settings}: {complaint:?}");
        }
    }
}
