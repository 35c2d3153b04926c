//! `headers`: sets, adds and removes fields.
//!
//! ```yaml
//! headers:
//!   request: { set: { X-Country: CH } }                  # before the cache key is made
//!   upstream_request: { remove: [Cookie] }               # what the origin sees
//!   response: { set: { X-Cache: "{cache_status}" }, add: { Link: "</a.css>; rel=preload" }, remove: [Server] }
//! ```
//!
//! In each place, `remove` comes first, then `set`, then `add`. Values may use
//! `{client_ip} {host} {path} {query} {request_id} {cache_status} {upstream}`.
//!
//! On a cached route, what the origin sees must not differ between clients who get
//! the same answer, so `{client_ip}` and `{request_id}` are refused there in
//! `request` and `upstream_request`; `{host}` and `{path}` are refused there beside what changes the path or
//! the `Host` (`rewrite`, `request: { set: { Host: … } }`). `response` runs for each client, hits
//! included.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::HeaderName;
use http::header::HOST;
use pingora::http::{RequestHeader, ResponseHeader};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::exchange::Exchange;
use crate::fields::connection::frames;
use crate::plugin::{Hooks, OnRequestHead, OnResponse, OnUpstreamRequest, Plugin};
use crate::template::{Name, Template};

/// Sets, adds and removes fields.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
pub struct Settings {
    /// The request, before the cache key is made.
    pub request: Option<Edits>,
    /// The request to the origin.
    pub upstream_request: Option<Edits>,
    /// Every final response.
    pub response: Option<Edits>,
}

/// What to do at one place.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
pub struct Edits {
    /// Fields to take out.
    pub remove: Vec<String>,
    /// Fields to have exactly this value.
    pub set: BTreeMap<String, String>,
    /// Fields to get another line.
    pub add: BTreeMap<String, String>,
}

impl Edits {
    fn are_none(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty() && self.add.is_empty()
    }
}

/// The plugin, at one of its places.
pub struct Headers {
    remove: Vec<HeaderName>,
    set: Vec<(HeaderName, Template)>,
    add: Vec<(HeaderName, Template)>,
}

fn name(text: &str) -> Result<HeaderName, String> {
    let name: HeaderName = text.parse().map_err(|_| format!("`{text}` is not a field name"))?;
    if frames(text) {
        return Err(format!("`{text}` frames the message and is not yours to change"));
    }
    Ok(name)
}

fn values(fields: BTreeMap<String, String>) -> Result<Vec<(HeaderName, Template)>, String> {
    let parse = |(field, value): (String, String)| {
        Ok((name(&field)?, Template::parse(&value).map_err(|error| format!("{field}: {error}"))?))
    };
    let parsed: Vec<(HeaderName, Template)> = fields.into_iter().map(parse).collect::<Result<_, String>>()?;
    for (index, (name, _)) in parsed.iter().enumerate() {
        if parsed[..index].iter().any(|(other, _)| other == name) {
            return Err(format!("`{name}` stands here twice, in different spellings; field names are the same in any"));
        }
    }
    Ok(parsed)
}

impl Headers {
    fn new(edits: Edits) -> Result<Arc<Self>, String> {
        Ok(Arc::new(Headers {
            remove: edits.remove.iter().map(|text| name(text)).collect::<Result<_, _>>()?,
            set: values(edits.set)?,
            add: values(edits.add)?,
        }))
    }

    fn templates(&self) -> impl Iterator<Item = &Template> {
        self.set.iter().chain(&self.add).map(|(_, template)| template)
    }

    fn touches(&self, field: &HeaderName) -> bool {
        let named = self.set.iter().chain(&self.add).map(|(name, _)| name);
        named.chain(&self.remove).any(|name| name == field)
    }

    fn request(&self, request: &mut RequestHeader, exchange: &mut Exchange) {
        for name in &self.remove {
            request.remove_header(name);
        }
        for (name, template) in &self.set {
            let _ = request.insert_header(name, template.value(exchange));
        }
        for (name, template) in &self.add {
            let _ = request.append_header(name, template.value(exchange));
        }
    }
}

impl Plugin for Headers {
    const NAME: &'static str = "headers";
    type Settings = Settings;

    fn build(settings: Settings) -> Result<Hooks, String> {
        let mut hooks = Hooks::new();
        let nothing = |edits: &Option<Edits>| edits.as_ref().is_none_or(Edits::are_none);
        if nothing(&settings.request) && nothing(&settings.upstream_request) && nothing(&settings.response) {
            return Err("there is nothing to do; write response: { set: { X-A: b } }, or the like".into());
        }
        let to_origin = |place: &str, edits: Edits| {
            let plugin = Headers::new(edits).map_err(|error| format!("{place}: {error}"))?;
            if let Some(Name::CacheStatus | Name::Upstream) = plugin
                .templates()
                .flat_map(Template::names)
                .find(|name| matches!(name, Name::CacheStatus | Name::Upstream))
            {
                return Err(format!(
                    "{place}: {{cache_status}} and {{upstream}} are not known yet when a request is sent"
                ));
            }
            Ok(plugin)
        };
        let flags = |mut hooks: Hooks, place: &str, plugin: &Headers| {
            if plugin.templates().any(Template::tells_clients_apart) {
                hooks = hooks.unshareable(format!("`{place}` sends {{client_ip}} or {{request_id}} to the origin"));
            }
            if plugin.templates().any(Template::names_the_target) {
                hooks = hooks.tells_target(format!("`{place}` sends {{host}} or {{path}} to the origin"));
            }
            hooks
        };
        if let Some(edits) = settings.request {
            let plugin = to_origin("request", edits)?;
            hooks = flags(hooks.request_head(plugin.clone()), "request", &plugin);
            if plugin.touches(&HOST) {
                hooks = hooks.moves();
            }
        }
        if let Some(edits) = settings.upstream_request {
            let plugin = to_origin("upstream_request", edits)?;
            hooks = flags(hooks.upstream_request(plugin.clone()), "upstream_request", &plugin);
        }
        if let Some(edits) = settings.response {
            hooks = hooks.response(Headers::new(edits).map_err(|error| format!("response: {error}"))?);
        }
        Ok(hooks)
    }
}

impl OnRequestHead for Headers {
    fn on_request_head(&self, request: &mut RequestHeader, exchange: &mut Exchange) {
        self.request(request, exchange);
    }
}

impl OnUpstreamRequest for Headers {
    fn on_upstream_request(&self, request: &mut RequestHeader, exchange: &mut Exchange) {
        self.request(request, exchange);
    }
}

impl OnResponse for Headers {
    fn on_response(&self, _: &RequestHeader, response: &mut ResponseHeader, exchange: &mut Exchange) {
        for name in &self.remove {
            response.remove_header(name);
        }
        for (name, template) in &self.set {
            let _ = response.insert_header(name, template.value(exchange));
        }
        for (name, template) in &self.add {
            let _ = response.append_header(name, template.value(exchange));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{complaint, example, plugin, request, response};

    #[test]
    fn the_example_of_the_documentation_works() {
        let plugin = example(include_str!("headers.rs"));
        assert_eq!(plugin.doors(), ["request_head", "upstream_request", "response"]);
        let sent = plugin.request_head(request("GET /\nX-Country: DE"));
        assert_eq!(sent.headers["x-country"], "CH");
        let seen = plugin.upstream_request(request("GET /\nCookie: a=b"));
        assert!(!seen.headers.contains_key("cookie"));
        let out = plugin.response(response("200\nServer: x\nLink: </b.css>"));
        assert!(!out.headers.contains_key("server"));
        assert_eq!(out.headers["x-cache"], "-");
        assert_eq!(out.headers.get_all("link").iter().count(), 2);
    }

    #[test]
    fn removes_then_sets_then_adds() {
        let plugin = plugin("headers: { response: { remove: [A], set: { A: \"1\" }, add: { A: \"2\" } } }");
        let out = plugin.response(response("200\nA: 0\nA: 00"));
        let values: Vec<_> = out.headers.get_all("a").iter().collect();
        assert_eq!(values, ["1", "2"]);
    }

    #[test]
    fn mistakes_are_errors_that_help() {
        for (settings, path, message) in [
            (
                "{ response: { sett: { A: b } } }",
                "response",
                "unknown field `sett`, expected one of `remove`, `set`, `add`",
            ),
            ("{ response: { set: { \"A B\": b } } }", "", "`A B` is not a field name"),
            ("{ response: { set: { A: \"{hots}\" } } }", "", "there is no {hots}"),
            ("{ response: { set: { X-A: b, x-a: c } } }", "", "stands here twice"),
            ("{ response: { remove: [Content-Length] } }", "", "frames the message"),
            ("{ request: { set: { A: \"{upstream}\" } } }", "", "not known yet"),
            ("{ response: { set: { A: [1] } } }", "response.set.A", "invalid type"),
        ] {
            let complaint = complaint(&format!("headers: {settings}"));
            assert!(complaint.message.contains(message), "{settings}: {complaint:?}");
            assert!(complaint.path.starts_with(path), "{settings}: {complaint:?}");
        }
    }

    #[test]
    fn what_tells_clients_apart_must_not_reach_the_origin_of_a_cached_route() {
        let apart = plugin("headers: { upstream_request: { set: { X-Id: \"{request_id}\" } } }");
        assert!(apart.why_unshareable().unwrap().contains("request_id"));
        let own = plugin("headers: { response: { set: { X-Id: \"{request_id}\" } } }");
        assert_eq!(own.why_unshareable(), None);
    }
}
