//! From settings to a plan: names find what they name, plugins and handlers are built.
//!
//! Nothing here stops at the first mistake: all are told at once, in the order of the
//! file. A setting that would do nothing is a mistake.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use http::{HeaderName, HeaderValue, Method};

use super::chain::{Built, shape};
use super::error::{self, Complaints, Error, did_you_mean};
use super::place::join;
use super::settings::{self, One, Settings};
use super::{Parts, Plan};
use crate::cache::Limits;
use crate::fields::query::Rules;
use crate::handlers::{self, Draft, Surroundings};
use crate::identity::Identity;
use crate::plugin::{Chain, Complaint, Hooks};
use crate::route::{Conditions, Destination, Route, RouteCache, Router};
use crate::secret::{self, Secret};
use crate::units::{ByteSize, Span};
use crate::upstream::{Address, Timeouts, Upstream};

/// Compiles one file.
pub(super) struct Compiler<'a> {
    pub(super) parts: &'a Parts<'a>,
    pub(super) complaints: Complaints<'a>,
    stores: Draft<'a>,
    pub(super) kept: BTreeMap<String, Hooks>,
}

impl<'a> Compiler<'a> {
    pub(super) fn new(parts: &'a Parts<'a>, complaints: Complaints<'a>) -> Self {
        Compiler { parts, complaints, stores: Draft::new(&parts.lasting.stores), kept: BTreeMap::new() }
    }

    /// The plan, or everything that is wrong.
    pub(super) fn compile(mut self, file: &str, settings: Settings) -> Result<Plan, Error> {
        self.check_listeners(&settings);
        let admin_token = self.admin_token(&settings);
        let bounds = self.bounds(&settings.limits);
        let user = settings
            .user
            .as_deref()
            .and_then(|user| Identity::find(user).map_err(|message| self.complaints.value("user", message)).ok());
        let limits = self.limits(&settings.cache);
        let upstreams = self.upstreams(&settings.upstreams);
        let proxies = !settings.trust.proxies.is_empty();
        let site = self.plugins("plugins", "", &settings.plugins, proxies);
        let routes = self.routes(&settings, &upstreams, &site);
        self.complaints.finish()?;
        let selectors = selectors(&routes);
        let router = Router::new(routes).map_err(|error| error::general(file, error.to_string()))?;
        Ok(Plan {
            router,
            site: Chain::new(site.iter().map(|built| &built.hooks)),
            trusted: settings.trust.proxies.clone(),
            admin_token,
            bounds,
            user,
            limits,
            upstreams: upstreams.into_values().flatten().collect(),
            stores: self.stores.finish(),
            kept: self.kept,
            selectors,
            settings,
        })
    }

    fn check_listeners(&mut self, settings: &Settings) {
        if settings.threads.is_some_and(|threads| threads == 0 || threads > 512) {
            self.complaints.value("threads", "from 1 to 512, or leave it out for one per core");
        }
        if settings.listen.is_empty() {
            self.complaints.value("listen", "nothing to listen on; write [\"127.0.0.1:8080\"]");
        }
        let mut seen = HashSet::new();
        for (index, listen) in settings.listen.iter().enumerate() {
            if !seen.insert(listen.bind) {
                self.complaints
                    .value(&format!("listen[{index}]"), format!("{} stands here a second time", listen.bind));
            }
        }
        if let Some(admin) = &settings.admin {
            let (guarded, beyond) = (admin.is_guarded(), !admin.listen.bind.ip().is_loopback());
            if beyond && !guarded && !admin.insecure {
                self.complaints.value(
                    "admin.listen",
                    format!(
                        "{} is not on loopback, and whoever reaches it sees and purges everything; add a `token` or a \
                         `token_file`, write 127.0.0.1:{}, or say `insecure: true`",
                        admin.listen.bind,
                        admin.listen.bind.port()
                    ),
                );
            }
            if admin.listen.h2c {
                self.complaints.value("admin.listen", "`h2c` is for `listen`; operators are answered in HTTP/1.1");
            }
            if admin.insecure && (guarded || !beyond) {
                let why = if guarded { "there is a token" } else { "the listener is on loopback" };
                self.complaints.key("admin.insecure", format!("{why}, so `insecure` does nothing; leave it out"));
            }
            if seen.contains(&admin.listen.bind) {
                self.complaints.value("admin.listen", format!("{} is taken by `listen`", admin.listen.bind));
            }
        }
    }

    fn admin_token(&mut self, settings: &Settings) -> Option<Secret> {
        let admin = settings.admin.as_ref()?;
        const LENGTH: &str = "a token has at least 16 characters, all visible ASCII";
        match (&admin.token, &admin.token_file) {
            (Some(_), Some(_)) => {
                self.complaints
                    .key("admin.token_file", "`token` and `token_file` both say what the token is; take one");
                None
            }
            (Some(token), None) => {
                if !token.is_token() {
                    self.complaints.value("admin.token", LENGTH);
                }
                Some(token.clone())
            }
            (None, Some(file)) => match secret::only_token(file) {
                Ok(token) => Some(token),
                Err(message) => {
                    self.complaints.value("admin.token_file", message);
                    None
                }
            },
            (None, None) => None,
        }
    }

    fn limits(&mut self, cache: &settings::Cache) -> Limits {
        let mut at_most = |key: &str, size: ByteSize, other: &str, bound: ByteSize| {
            if size > bound {
                self.complaints
                    .value(&format!("cache.{key}"), format!("{size} is more than `{other}`, which is {bound}"));
            }
        };
        at_most("max_object", cache.max_object, "memory", cache.memory);
        at_most("max_unsized", cache.max_unsized, "max_object", cache.max_object);
        at_most("max_object", cache.max_object, "fills", cache.fills);
        if !(2..=1000).contains(&cache.max_variants) {
            self.complaints.value("cache.max_variants", "this counts all variants of a target: from 2 to 1000");
        }
        Limits {
            max_variants: usize::from(cache.max_variants),
            memory: cache.memory.0,
            max_object: cache.max_object.0,
            max_unsized: cache.max_unsized.0,
            fills: cache.fills.0,
        }
    }

    /// Upstreams by name; `None` for one that is complained about, so that routes may name it.
    fn upstreams(&mut self, all: &BTreeMap<String, settings::Upstream>) -> BTreeMap<String, Option<Arc<Upstream>>> {
        let mut upstreams = BTreeMap::new();
        for (name, upstream) in all {
            let path = join("upstreams", name);
            if upstream.servers.is_empty() {
                self.complaints
                    .value(&join(&path, "servers"), "an upstream needs a server, such as [\"127.0.0.1:3000\"]");
            }
            let mut addresses = Vec::new();
            for (index, server) in upstream.servers.iter().enumerate() {
                match Address::parse(server) {
                    Ok(address) => addresses.push(address),
                    Err(message) => self.complaints.value(&format!("{path}.servers[{index}]"), message),
                }
            }
            let timeouts = &upstream.timeouts;
            let mut timeout = |key: &str, span: Span| {
                if span.0.is_zero() {
                    self.complaints
                        .value(&format!("{path}.timeouts.{key}"), "a timeout of nothing lets nothing through");
                }
                span.0
            };
            let timeouts = Timeouts {
                connect: timeout("connect", timeouts.connect),
                first_byte: timeout("first_byte", timeouts.first_byte),
                read: timeout("read", timeouts.read),
                write: timeout("write", timeouts.write),
                idle: timeout("idle", timeouts.idle),
            };
            let made = Upstream::new(name, &addresses, timeouts, self.parts.clock.clone());
            let made = made.map_err(|message| self.complaints.value(&join(&path, "servers"), message)).ok();
            upstreams.insert(name.clone(), made);
        }
        upstreams
    }

    /// A complaint of settings that were decoded later.
    pub(super) fn inside(&mut self, path: &str, complaint: Complaint) {
        let path = match complaint.path.as_str() {
            "" => path.to_owned(),
            inner if inner.starts_with('[') => format!("{path}{inner}"),
            inner => join(path, inner),
        };
        self.complaints.decode(&path, &complaint.message);
    }

    fn routes(
        &mut self,
        settings: &Settings,
        upstreams: &BTreeMap<String, Option<Arc<Upstream>>>,
        site: &[Built],
    ) -> Vec<Arc<Route>> {
        if settings.routes.is_empty() {
            self.complaints.value(
                "routes",
                "there is no route, so every request would get 404; the simplest one is `- to: { proxy: NAME }`",
            );
        }
        let mut routes = Vec::new();
        let mut names = HashSet::new();
        for (number, route) in settings.routes.iter().enumerate() {
            let path = format!("routes[{number}]");
            let conditions = self.conditions(&join(&path, "match"), &route.matches);
            let destination = self.destination(&join(&path, "to"), &route.to, &conditions, upstreams);
            let cache = route.cache.as_ref().and_then(|cache| self.cache(&join(&path, "cache"), cache, &route.to));
            if let Some(slice) = route.cache.as_ref().and_then(|cache| cache.slice) {
                self.slice(&join(&path, "cache.slice"), slice, settings.cache.max_object);
            }
            let mut name = name(&conditions);
            if !names.insert(name.clone()) {
                name = format!("{name} #{number}");
                names.insert(name.clone());
            }
            let proxies = !settings.trust.proxies.is_empty();
            let own = self.plugins(&join(&path, "plugins"), &format!("{conditions:?}"), &route.plugins, proxies);
            self.check_chain(number, route.cache.is_some(), site, &own);
            if let Some(destination) = destination {
                routes.push(Arc::new(Route {
                    name: name.into(),
                    number,
                    selector: conditions.selector()
                        + &shape(site.iter().chain(&own))
                        + &cache.as_ref().map_or_else(String::new, RouteCache::shape),
                    conditions,
                    destination,
                    cache,
                    chain: Chain::new(site.iter().chain(&own).map(|built| &built.hooks)),
                }));
            }
        }
        routes
    }

    fn conditions(&mut self, path: &str, matches: &settings::Match) -> Conditions {
        let paths: Vec<_> = [("path", &matches.path), ("prefix", &matches.prefix), ("regex", &matches.regex)]
            .into_iter()
            .filter(|(_, given)| given.is_some())
            .map(|(key, _)| key)
            .collect();
        if paths.len() > 1 {
            let message =
                format!("`{}` and `{}` both say something about the path; a route takes one", paths[0], paths[1]);
            self.complaints.key(&join(path, paths[1]), message);
        }
        for (key, value) in [("path", &matches.path), ("prefix", &matches.prefix)] {
            if let Some(value) = value {
                let plain = value.starts_with('/')
                    && value.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#".contains(&byte));
                if !plain {
                    self.complaints
                        .value(&join(path, key), "a path begins with / and has no blanks, no query and no fragment");
                } else if value.contains("//") || value.split('/').any(|segment| segment == "." || segment == "..") {
                    self.complaints.value(
                        &join(path, key),
                        "paths are compared in their normal form, without // and dot segments",
                    );
                }
            }
        }
        if let Some(regex) = &matches.regex
            && let Err(error) = regex::Regex::new(regex)
        {
            let reason = error.to_string();
            let reason = reason.lines().last().unwrap_or(&reason).trim_start_matches("error: ");
            self.complaints.value(&join(path, "regex"), format!("this is no regular expression: {reason}"));
        }
        let host = matches.host.as_ref().map(|host| host.to_ascii_lowercase());
        if let Some(host) = &host {
            let name =
                !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_[]:".contains(&byte));
            if !name || (host.contains(':') && !host.starts_with('[')) {
                self.complaints.value(
                    &join(path, "host"),
                    format!("`{host}` is no host; write a name without port, such as shop.example.com"),
                );
            }
        }
        let mut methods = Vec::new();
        for (index, method) in matches.methods.iter().flatten().enumerate() {
            match Method::from_bytes(method.as_bytes()) {
                Ok(known) if method.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-') => {
                    methods.push(known)
                }
                _ => self.complaints.value(
                    &format!("{path}.methods[{index}]"),
                    format!("`{method}` is no method; they are written in capitals, such as GET"),
                ),
            }
        }
        if matches.methods.as_ref().is_some_and(Vec::is_empty) {
            self.complaints
                .value(&join(path, "methods"), "an empty list matches nothing; leave it out to match every method");
        }
        let mut headers = Vec::new();
        for (name, value) in &matches.headers {
            let at = join(&join(path, "headers"), name);
            match (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
                (Ok(name), Ok(value)) => headers.push((name, value)),
                (Err(_), _) => self.complaints.key(&at, format!("`{name}` is not a field name")),
                (_, Err(_)) => self.complaints.value(&at, "this cannot be a field's value"),
            }
        }
        Conditions {
            host,
            path: matches.path.clone(),
            prefix: matches.prefix.clone(),
            regex: matches.regex.clone(),
            methods,
            headers,
        }
    }

    fn destination(
        &mut self,
        path: &str,
        to: &One,
        conditions: &Conditions,
        upstreams: &BTreeMap<String, Option<Arc<Upstream>>>,
    ) -> Option<Destination> {
        let at = join(path, &to.name);
        if to.name == "proxy" {
            let Some(name) = to.value.as_str() else {
                self.complaints.value(&at, "the name of an upstream is expected here");
                return None;
            };
            let Some(upstream) = upstreams.get(name) else {
                let known: Vec<_> = upstreams.keys().map(String::as_str).collect();
                let known =
                    if known.is_empty() { "none; add one under `upstreams`".to_owned() } else { known.join(", ") };
                let hint = did_you_mean(name, upstreams.keys().map(String::as_str)).unwrap_or_default();
                self.complaints.value(&at, format!("no upstream named `{name}`; there are: {known}{hint}"));
                return None;
            };
            return upstream.clone().map(Destination::Proxy);
        }
        let Some(entry) = handlers::BUILT_IN.iter().find(|entry| entry.name == to.name) else {
            let mut names: Vec<_> = handlers::BUILT_IN.iter().map(|entry| entry.name).chain(["proxy"]).collect();
            names.sort_unstable();
            let hint = did_you_mean(&to.name, names.iter().copied()).unwrap_or_default();
            let message = format!("no destination named `{}`; there are: {}{hint}", to.name, names.join(", "));
            self.complaints.key(&at, message);
            return None;
        };
        let around =
            Surroundings { prefix: conditions.prefix.as_deref(), stores: &self.stores, clock: self.parts.clock };
        match (entry.build)(&to.value, &around) {
            Ok(handler) => Some(Destination::Local(handler)),
            Err(complaint) => {
                self.inside(&at, complaint);
                None
            }
        }
    }
}

/// All that chooses among what is stored for one target, by upstream.
fn selectors(routes: &[Arc<Route>]) -> BTreeMap<String, Vec<(String, Rules)>> {
    let mut all: BTreeMap<String, Vec<(String, Rules)>> = BTreeMap::new();
    for route in routes {
        if let (Destination::Proxy(upstream), Some(cache)) = (&route.destination, &route.cache) {
            let known = all.entry(upstream.name.to_string()).or_default();
            let this = (route.selector.clone(), cache.query.clone());
            if !known.contains(&this) {
                known.push(this);
            }
        }
    }
    all
}

/// What metrics and logs call a route: what it matches.
fn name(conditions: &Conditions) -> String {
    let host = conditions.host.as_deref().unwrap_or("");
    let path = match (&conditions.path, &conditions.prefix, &conditions.regex) {
        (Some(path), ..) => path.clone(),
        (_, Some(prefix), _) => format!("{prefix}*"),
        (.., Some(regex)) => format!("~{regex}"),
        _ => "*".to_owned(),
    };
    format!("{host}{path}")
}
