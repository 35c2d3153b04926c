//! Which route answers a request: the first one of the file that matches.
//!
//! The list is compiled into, for each host, a table of exact paths, a tree of path
//! segments and one set of regular expressions; the lowest number wins. A thousand
//! routes cost what ten do.
//!
//! Matching happens on a normalised copy of the path (unreserved escapes decoded
//! once, `//` and dot segments resolved). Where the path as it came chooses another
//! route, the two sides of us could disagree about what was asked for, and the
//! answer is 400. The bytes go to the origin unchanged.

use std::collections::HashMap;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use regex::RegexSet;

use crate::cache::policy::Policy;
use crate::cache::vary::Chosen;
use crate::fields::path;
use crate::fields::query::Rules;
use crate::handler::Handler;
use crate::plugin::Chain;
use crate::units::Network;
use crate::upstream::Upstream;

/// What has to fit for a route to be chosen.
#[derive(Debug, Clone, Default)]
pub struct Conditions {
    /// In lower case, without port.
    pub host: Option<String>,
    /// The exact path.
    pub path: Option<String>,
    /// The beginning of the path, whole segments.
    pub prefix: Option<String>,
    /// A regular expression; it has been compiled before.
    pub regex: Option<String>,
    /// The methods; empty is any.
    pub methods: Vec<Method>,
    /// Fields and their exact values.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

/// Who answers.
pub enum Destination {
    /// One of ours.
    Local(Arc<dyn Handler>),
    /// An upstream.
    Proxy(Arc<Upstream>),
}

/// How a route keeps responses.
pub struct RouteCache {
    /// The rules.
    pub policy: Policy,
    /// Which parameters of the query count.
    pub query: Rules,
    /// Which cookies and fields choose a variant.
    pub chosen: Chosen,
    /// A field for the one-word status.
    pub status_header: Option<HeaderName>,
    /// Fields that name tags go no further.
    pub strip_tags: bool,
    /// Networks whose clients may purge.
    pub purge: Option<Vec<Network>>,
    /// Ranges are fetched and stored in slices of this length.
    pub slice: Option<u64>,
}

impl RouteCache {
    /// What of it counts for whether two routes may share what is stored.
    pub fn shape(&self) -> String {
        let Chosen { cookies, headers } = &self.chosen;
        let policy = &self.policy;
        if cookies.is_empty() && headers.is_empty() && policy.shared_cookies.is_empty() {
            return String::new();
        }
        format!(" {cookies:?} {headers:?} {:?}", policy.shared_cookies)
    }
}

/// A compiled route.
pub struct Route {
    /// What metrics and logs call it.
    pub name: Arc<str>,
    /// Its place in the file, for metrics.
    pub number: usize,
    /// What it matches.
    pub conditions: Conditions,
    /// Who answers.
    pub destination: Destination,
    /// How it keeps responses.
    pub cache: Option<RouteCache>,
    /// Its plugins, inside those of the site.
    pub chain: Chain,
    /// The fields that chose it, as part of the cache key.
    pub selector: String,
}

/// The path means different things to different readers.
#[derive(Debug, PartialEq, Eq)]
pub struct Ambiguous;

#[derive(Default)]
struct Node {
    /// Prefixes that end here: `/a` takes `/a` and `/a/b`.
    here: Vec<usize>,
    /// Prefixes that end with the slash: `/a/` takes `/a/` and `/a/b`, not `/a`.
    below: Vec<usize>,
    children: HashMap<Box<str>, Node>,
}

#[derive(Default)]
struct Table {
    exact: HashMap<Box<str>, Vec<usize>>,
    tree: Node,
    patterns: Vec<String>,
    pattern_routes: Vec<usize>,
    regexes: Option<RegexSet>,
    any: Vec<usize>,
}

/// All routes.
pub struct Router {
    /// In the order of the file.
    pub routes: Vec<Arc<Route>>,
    hosts: HashMap<Box<str>, Table>,
    everywhere: Table,
}

impl Router {
    /// Compiles the list. The patterns have been compiled one by one before.
    pub fn new(routes: Vec<Arc<Route>>) -> Result<Self, regex::Error> {
        let mut router = Router { routes: Vec::new(), hosts: HashMap::new(), everywhere: Table::default() };
        for (number, route) in routes.iter().enumerate() {
            let conditions = &route.conditions;
            let table = match &conditions.host {
                Some(host) => router.hosts.entry(host.as_str().into()).or_default(),
                None => &mut router.everywhere,
            };
            table.add(number, conditions);
        }
        for table in router.hosts.values_mut().chain([&mut router.everywhere]) {
            if !table.patterns.is_empty() {
                table.regexes = Some(RegexSet::new(&table.patterns)?);
            }
        }
        router.routes = routes;
        Ok(router)
    }

    /// The route for a request. `host` is in lower case and without port.
    pub fn find(
        &self,
        host: &str,
        raw: &str,
        method: &Method,
        fields: &HeaderMap,
    ) -> Result<Option<&Arc<Route>>, Ambiguous> {
        let normal = path::normalise(raw);
        let found = self.lowest(host, &normal, method, fields);
        if normal != raw && self.lowest(host, raw, method, fields) != found {
            return Err(Ambiguous);
        }
        Ok(found.map(|number| &self.routes[number]))
    }

    fn lowest(&self, host: &str, path: &str, method: &Method, fields: &HeaderMap) -> Option<usize> {
        let mut best = usize::MAX;
        let mut consider = |numbers: &[usize]| {
            for number in numbers.iter().take_while(|number| **number < best) {
                if self.routes[*number].conditions.rest_fits(method, fields) {
                    best = *number;
                    break;
                }
            }
        };
        if let Some(table) = self.hosts.get(host) {
            table.walk(path, &mut consider);
        }
        self.everywhere.walk(path, &mut consider);
        (best != usize::MAX).then_some(best)
    }
}

impl Table {
    fn add(&mut self, number: usize, conditions: &Conditions) {
        if let Some(path) = &conditions.path {
            self.exact.entry(path.as_str().into()).or_default().push(number);
        } else if let Some(prefix) = &conditions.prefix {
            let mut node = &mut self.tree;
            let trimmed = prefix.trim_start_matches('/');
            let (segments, slash) = match trimmed.strip_suffix('/') {
                Some(rest) => (rest, true),
                None => (trimmed, false),
            };
            for segment in segments.split('/').filter(|segment| !segment.is_empty()) {
                node = node.children.entry(segment.into()).or_default();
            }
            // `/` alone takes everything.
            if slash && !segments.is_empty() { node.below.push(number) } else { node.here.push(number) }
        } else if let Some(regex) = &conditions.regex {
            self.patterns.push(regex.clone());
            self.pattern_routes.push(number);
        } else {
            self.any.push(number);
        }
    }

    fn walk(&self, path: &str, consider: &mut impl FnMut(&[usize])) {
        consider(&self.any);
        if let Some(numbers) = self.exact.get(path) {
            consider(numbers);
        }
        let mut node = &self.tree;
        consider(&node.here);
        let mut rest = path.strip_prefix('/').unwrap_or(path);
        loop {
            let (segment, more) = match rest.split_once('/') {
                Some((segment, after)) => (segment, Some(after)),
                None => (rest, None),
            };
            let Some(child) = node.children.get(segment) else { break };
            node = child;
            consider(&node.here);
            let Some(after) = more else { break };
            consider(&node.below);
            rest = after;
        }
        if let Some(regexes) = &self.regexes {
            for index in regexes.matches(path) {
                consider(&[self.pattern_routes[index]]);
            }
        }
    }
}

impl Conditions {
    /// What the tables do not look at: methods and fields.
    fn rest_fits(&self, method: &Method, fields: &HeaderMap) -> bool {
        (self.methods.is_empty() || self.methods.contains(method))
            && self.headers.iter().all(|(name, value)| fields.get_all(name).iter().any(|there| there == value))
    }

    /// The fields that choose this route, for the cache key.
    pub fn selector(&self) -> String {
        let mut out = String::new();
        for (name, value) in &self.headers {
            let value = value.as_bytes();
            out.push_str(&format!("{}:{}={}:", name.as_str().len(), name, value.len()));
            out.push_str(&String::from_utf8_lossy(value));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::respond::Respond;

    fn route(number: usize, conditions: Conditions) -> Arc<Route> {
        let selector = conditions.selector();
        Arc::new(Route {
            name: number.to_string().into(),
            number,
            conditions,
            destination: Destination::Local(Arc::new(Respond::empty())),
            cache: None,
            chain: Chain::default(),
            selector,
        })
    }

    fn router(list: Vec<Conditions>) -> Router {
        Router::new(list.into_iter().enumerate().map(|(number, conditions)| route(number, conditions)).collect())
            .unwrap()
    }

    fn prefix(prefix: &str) -> Conditions {
        Conditions { prefix: Some(prefix.into()), ..Conditions::default() }
    }

    #[test]
    fn the_first_match_of_the_file_wins() {
        let path = |path: &str| Conditions { path: Some(path.into()), ..Conditions::default() };
        let regex = |regex: &str| Conditions { regex: Some(regex.into()), ..Conditions::default() };
        let host = |host: &str, conditions| Conditions { host: Some(host.into()), ..conditions };
        let router = router(vec![
            prefix("/cache/"),
            path("/old"),
            host("b.test", prefix("/assets")),
            Conditions { methods: vec![Method::POST], ..prefix("/api") },
            Conditions { headers: vec![("x-beta".parse().unwrap(), "yes".parse().unwrap())], ..prefix("/api") },
            regex(r"^/img/\d+\.png$"),
            prefix("/assets/img"),
            prefix("/assets"),
            prefix("/api"),
            host("c.test", Conditions::default()),
        ]);
        let beta = crate::fields::fields("x-beta: yes");
        let none = HeaderMap::new();
        for (at, method, fields, expected) in [
            ("a.test/cache/x", "GET", &none, Some(0)),
            ("a.test/cache/", "GET", &none, Some(0)),
            ("a.test/cache", "GET", &none, None),
            ("a.test/cached", "GET", &none, None),
            ("a.test/old", "GET", &none, Some(1)),
            ("a.test/old/", "GET", &none, None),
            ("b.test/assets/x", "GET", &none, Some(2)),
            ("b.test/assets", "GET", &none, Some(2)),
            ("b.test/cache/x", "GET", &none, Some(0)),
            ("a.test/api/1", "POST", &none, Some(3)),
            ("a.test/api/1", "GET", &beta, Some(4)),
            ("a.test/api/1", "GET", &none, Some(8)),
            ("a.test/apis", "GET", &none, None),
            ("a.test/img/12.png", "GET", &none, Some(5)),
            ("a.test/img/x.png", "GET", &none, None),
            ("a.test/assets/img/1", "GET", &none, Some(6)),
            ("a.test/assets/imgs", "GET", &none, Some(7)),
            ("c.test/assets/imgs", "GET", &none, Some(7)),
            ("c.test/other", "GET", &none, Some(9)),
            ("a.test/", "GET", &none, None),
        ] {
            let (host, path) = at.split_at(6);
            let method = method.parse().unwrap();
            let found = router.find(host, path, &method, fields).unwrap().map(|route| route.number);
            assert_eq!(found, expected, "{method} {at}");
        }
    }

    #[test]
    fn a_path_that_means_two_things_is_refused() {
        let router = router(vec![prefix("/admin"), prefix("/")]);
        let find = |path| router.find("a", path, &Method::GET, &HeaderMap::new()).map(|found| found.unwrap().number);
        assert_eq!(find("/x//y/%2F%41"), Ok(1), "odd, but every reader chooses the same route");
        for path in ["/x/../admin", "//admin", "/%61dmin", "/./admin/x", "/x/%2e%2e/admin"] {
            assert_eq!(find(path), Err(Ambiguous), "{path}");
        }
        assert_eq!(find("/admin/%2e%2e/x"), Err(Ambiguous));
        assert_eq!(find("/admin//x"), Ok(0));
    }
}
