//! What a route's `cache` becomes: the policy, and what names its stored responses.

use std::collections::BTreeMap;
use std::time::Duration;

use http::HeaderName;

use super::compile::Compiler;
use super::place::join;
use super::settings::{self, Mode, One};
use crate::cache::policy::{Policy, Ttl};
use crate::cache::vary::Chosen;
use crate::fields::connection::frames;
use crate::fields::forwarded::is_about_the_client;
use crate::fields::query::Rules;
use crate::route::RouteCache;
use crate::units::{ByteSize, Span};

/// Shorter ones would ask the origin too often.
const SHORTEST_SLICE: ByteSize = ByteSize(64 << 10);

impl Compiler<'_> {
    pub(super) fn cache(&mut self, path: &str, cache: &settings::RouteCache, to: &One) -> Option<RouteCache> {
        if to.name != "proxy" {
            self.complaints.key(
                path,
                format!("answers of `{}` are never cached; `cache` belongs to a route with `proxy`", to.name),
            );
            return None;
        }
        let force = cache.mode == Mode::Force;
        match (&cache.ttl, force) {
            (None, true) => {
                self.complaints.key(path, "`mode: force` needs a `ttl`, such as 1m or { 200: 10m, 404: 1m }")
            }
            (Some(_), false) => self.complaints.key(
                &join(path, "ttl"),
                "`ttl` does nothing in mode `respect`, where the origin says how long; add `mode: force`",
            ),
            _ => {}
        }
        if cache.cookies.is_some() && !cache.key.cookies.is_empty() {
            self.complaints.key(
                &join(path, "cookies"),
                "`cookies` and `key.cookies` both say what becomes of requests with cookies; a route takes one",
            );
        }
        if cache.client_directives == settings::ClientDirectives::Ignore && force {
            self.complaints.key(
                &join(path, "client_directives"),
                "`client_directives` does nothing in mode `force`, where requests have no say",
            );
        }
        if cache.cookies.is_some() && !force {
            self.complaints.key(&join(path, "cookies"), "`cookies` does nothing in mode `respect`, where Set-Cookie, Vary and Cache-Control decide; add `mode: force`");
        }
        let ttl = match &cache.ttl {
            None => Ttl::default(),
            Some(settings::Ttl::Any(span)) => Ttl { any: Some(*span), by_status: BTreeMap::new() },
            Some(settings::Ttl::ByStatus(by_status)) => Ttl { any: None, by_status: by_status.clone() },
        };
        if cache.ttl.is_some()
            && ttl.any.into_iter().chain(ttl.by_status.values().copied()).any(|span| span.as_secs() == 0)
        {
            self.complaints.value(&join(path, "ttl"), "a `ttl` is at least 1s");
        }
        let status_header = cache.status_header.as_ref().and_then(|name| {
            let parsed = name.parse::<HeaderName>().ok().filter(|_| !frames(name));
            if parsed.is_none() {
                let message = format!("`{name}` is not a field name, or one that frames the message");
                self.complaints.value(&join(path, "status_header"), message);
            }
            parsed
        });
        let span = |span: Option<Span>| span.map_or(Duration::ZERO, |span| span.0);
        let targeted = match &cache.targeted {
            None => Policy::default().targeted,
            Some(names) => self.names(&join(path, "targeted"), names),
        };
        if cache.targeted.is_some() && force {
            self.complaints.key(
                &join(path, "targeted"),
                "`targeted` does nothing in mode `force`, where the origin has no say about freshness",
            );
        }
        if let Some(index) = targeted.iter().position(|name| *name == http::header::CACHE_CONTROL) {
            let message = "`Cache-Control` counts anyway, after the targeted fields";
            self.complaints.value(&format!("{path}.targeted[{index}]"), message);
        }
        let shared_cookies = match &cache.set_cookie {
            settings::SetCookie::Store(names) => self.cookies(&join(path, "set_cookie.store"), names),
            _ => Vec::new(),
        };
        if cache.set_cookie == settings::SetCookie::Store(Vec::new()) {
            self.complaints.value(&join(path, "set_cookie.store"), "an empty list stores nothing; write `refuse`");
        }
        if cache.purge.as_ref().is_some_and(|purge| purge.allow.is_empty()) {
            self.complaints.value(&join(path, "purge.allow"), "name a network that may purge, such as 10.0.0.0/8");
        }
        let key = &cache.key;
        let key_path = join(path, "key");
        for (index, name) in key.query.drop.iter().enumerate() {
            let star = name.find('*').is_some_and(|at| at + 1 < name.len());
            if name.is_empty() || star || name.contains(['&', '=']) {
                let message = format!("`{name}` is no name of a parameter; one star may stand at its end, as in utm_*");
                self.complaints.value(&format!("{key_path}.query.drop[{index}]"), message);
            }
        }
        let chosen = Chosen {
            cookies: self.cookies(&join(&key_path, "cookies"), &key.cookies),
            headers: self.names(&join(&key_path, "headers"), &key.headers),
        };
        for (index, name) in key.headers.iter().enumerate() {
            if let Some(why) = never_reaches_the_origin(name) {
                self.complaints.value(&format!("{key_path}.headers[{index}]"), format!("`{name}` {why}"));
            }
        }
        Some(RouteCache {
            query: Rules { sort: key.query.sort, names: key.query.drop.clone(), ..Rules::default() },
            policy: Policy {
                force,
                ttl,
                ignore_cookies: cache.cookies == Some(settings::Cookies::Ignore) || !chosen.cookies.is_empty(),
                strip_set_cookie: cache.set_cookie == settings::SetCookie::Strip,
                shared_cookies,
                targeted,
                ignore_client_directives: cache.client_directives == settings::ClientDirectives::Ignore,
                stale_while_revalidate: span(cache.stale_while_revalidate),
                stale_if_error: span(cache.stale_if_error),
            },
            status_header,
            strip_tags: cache.strip_tags,
            purge: cache.purge.as_ref().map(|purge| purge.allow.clone()),
            slice: cache.slice.map(|slice| slice.0),
            chosen,
        })
    }

    pub(super) fn slice(&mut self, path: &str, slice: ByteSize, max_object: ByteSize) {
        if slice < SHORTEST_SLICE {
            self.complaints
                .value(path, format!("{slice} is a request to the origin for very little; at least {SHORTEST_SLICE}"));
        }
        if slice > max_object {
            self.complaints.value(path, format!("{slice} is more than `cache.max_object`, which is {max_object}"));
        }
    }

    /// Names of fields, each once.
    fn names(&mut self, path: &str, names: &[String]) -> Vec<HeaderName> {
        let mut known: Vec<HeaderName> = Vec::new();
        for (index, name) in names.iter().enumerate() {
            match name.parse::<HeaderName>() {
                Ok(name) if !known.contains(&name) => known.push(name),
                Ok(_) => self.complaints.value(&format!("{path}[{index}]"), format!("`{name}` stands here twice")),
                Err(_) => {
                    self.complaints.value(&format!("{path}[{index}]"), format!("`{name}` is not a field name"));
                }
            }
        }
        known
    }

    fn cookies(&mut self, path: &str, names: &[String]) -> Vec<String> {
        for (index, name) in names.iter().enumerate() {
            if name.parse::<HeaderName>().is_err() {
                self.complaints.value(&format!("{path}[{index}]"), format!("`{name}` is no name of a cookie"));
            } else if names[..index].contains(name) {
                self.complaints.value(&format!("{path}[{index}]"), format!("`{name}` stands here twice"));
            }
        }
        names.to_vec()
    }
}

/// Why a request field can choose nothing, if it cannot.
fn never_reaches_the_origin(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    match name.as_str() {
        "cookie" => Some("is a person's; name the cookies that count under `key.cookies`"),
        "authorization" => Some("is a person's; requests with it share nothing (RFC 9111 §3.5)"),
        "host" => Some("is in the key already"),
        name if frames(name) || name.starts_with("if-") || matches!(name, "range" | "expect" | "via") => {
            Some("belongs to the message, not to what is asked for")
        }
        name if name.starts_with("x-headwall-") => Some("is for Headwall itself and goes no further"),
        name if is_about_the_client(name) => Some("does not reach the origin from a client; see `trust.proxies`"),
        _ => None,
    }
}
