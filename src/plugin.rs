//! The contract with plugins: the doors, and who stands at which.
//!
//! A plugin is a name, a settings struct and a `build` that says at which doors it
//! stands. A [`Chain`] is sorted once, when the configuration is loaded, into one
//! list for each door; a door where nobody stands costs nothing.
//!
//! Requests pass down the list in the order of the file, responses pass up.
//!
//! Only the first door is async. A plugin that answers some requests itself:
//!
//! ```
//! use headwall::exchange::Exchange;
//! use headwall::handler::Reply;
//! use headwall::plugin::OnRequest;
//! use headwall::RequestHeader;
//!
//! struct Wants(&'static str);
//!
//! #[headwall::async_trait]
//! impl OnRequest for Wants {
//!     async fn on_request(&self, request: &RequestHeader, _: &mut Exchange) -> Option<Reply> {
//!         let there = request.headers.contains_key(self.0);
//!         (!there).then(|| Reply::text(400, format!("{} is missing", self.0)))
//!     }
//! }
//! ```
//!
//! What a plugin has to say of itself: [`Hooks::unshareable`] if the origin sees who asks,
//! [`Hooks::moves`] if it changes the path or the host, [`Hooks::tells_target`] if it tells the origin
//! the client's own, [`Hooks::kept`] if it counts or remembers something.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use pingora::http::{RequestHeader, ResponseHeader};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;

use crate::exchange::Exchange;
use crate::handler::Reply;
use crate::memory::Usage;

/// The route is known. May answer; is not asked for a refresh in the background.
#[async_trait]
pub trait OnRequest: Send + Sync {
    /// `Some` ends the request with this answer.
    async fn on_request(&self, request: &RequestHeader, exchange: &mut Exchange) -> Option<Reply>;
}

/// Before the cache key is made. May rewrite the head; also asked for a refresh in the
/// background, so that it arrives at the same key.
pub trait OnRequestHead: Send + Sync {
    /// Rewrites the request.
    fn on_request_head(&self, request: &mut RequestHeader, exchange: &mut Exchange);
}

/// Each chunk of request content on its way to the origin. May change it or refuse.
pub trait OnRequestBody: Send + Sync {
    /// `Err` refuses the request with this status.
    fn on_request_body(&self, chunk: &mut Option<Bytes>, end: bool, exchange: &mut Exchange) -> Result<(), u16>;
}

/// The cache could not answer. May change what the origin sees.
pub trait OnUpstreamRequest: Send + Sync {
    /// Rewrites the request to the origin.
    fn on_upstream_request(&self, request: &mut RequestHeader, exchange: &mut Exchange);
}

/// The origin answered. May change what is stored, once for all who get it.
pub trait OnUpstreamResponse: Send + Sync {
    /// Rewrites the response of the origin.
    fn on_upstream_response(&self, response: &mut ResponseHeader, exchange: &mut Exchange);
}

/// A final head is about to leave, whoever made it. May rewrite it, and push a filter for its content.
/// The request is there as the plugins before the key have left it.
pub trait OnResponse: Send + Sync {
    /// Rewrites the response.
    fn on_response(&self, request: &RequestHeader, response: &mut ResponseHeader, exchange: &mut Exchange);
}

/// It is over. May look; is not asked for a refresh in the background.
pub trait OnLog: Send + Sync {
    /// Looks.
    fn on_log(&self, exchange: &mut Exchange);
}

/// The doors at which one plugin stands.
#[derive(Default, Clone)]
pub struct Hooks {
    request: Option<Arc<dyn OnRequest>>,
    request_head: Option<Arc<dyn OnRequestHead>>,
    request_body: Option<Arc<dyn OnRequestBody>>,
    upstream_request: Option<Arc<dyn OnUpstreamRequest>>,
    upstream_response: Option<Arc<dyn OnUpstreamResponse>>,
    response: Option<Arc<dyn OnResponse>>,
    log: Option<Arc<dyn OnLog>>,
    unshareable: Option<String>,
    only_with_proxies: Option<String>,
    moves: bool,
    tells_target: Option<String>,
    once: bool,
    kept: bool,
    remembers: Option<Arc<dyn Remembers>>,
}

/// A plugin that remembers something of clients: an operator sees how much in `headwall_remembered_bytes`.
pub trait Remembers: Send + Sync {
    /// How much that is now, and how many bytes it may be at most.
    fn usage(&self) -> (Usage, u64);
}

macro_rules! doors {
    ($($door:ident: $trait:ident, $text:literal;)*) => {
        impl Hooks {
            $(#[doc = $text]
            pub fn $door(mut self, plugin: Arc<dyn $trait>) -> Self {
                self.$door = Some(plugin);
                self
            })*

            /// The names of the doors at which it stands.
            pub fn doors(&self) -> Vec<&'static str> {
                let mut names = Vec::new();
                $(if self.$door.is_some() { names.push(stringify!($door)); })*
                names
            }
        }
    };
}

doors! {
    request: OnRequest, "Stands where the route is known.";
    request_head: OnRequestHead, "Stands before the cache key is made.";
    request_body: OnRequestBody, "Stands at the request's content.";
    upstream_request: OnUpstreamRequest, "Stands where the request leaves for the origin.";
    upstream_response: OnUpstreamResponse, "Stands where the origin's response arrives.";
    response: OnResponse, "Stands where a final head leaves.";
    log: OnLog, "Stands at the end.";
}

impl Hooks {
    /// No door yet.
    pub fn new() -> Self {
        Hooks::default()
    }

    /// Says that what it does to the origin's view differs from client to client, and why. Such a
    /// plugin is refused on a cached route: one client's answer would be another's.
    pub fn unshareable(mut self, why: impl Into<String>) -> Self {
        self.unshareable = Some(why.into());
        self
    }

    /// Says that it needs somebody in `trust.proxies`, and why.
    pub fn only_with_proxies(mut self, why: impl Into<String>) -> Self {
        self.only_with_proxies = Some(why.into());
        self
    }

    /// Why it needs somebody in `trust.proxies`.
    pub fn why_only_with_proxies(&self) -> Option<&str> {
        self.only_with_proxies.as_deref()
    }

    /// Says that it changes the path or the host that the cache key is made of.
    pub fn moves(mut self) -> Self {
        self.moves = true;
        self
    }

    /// Whether it changes what the cache key is made of.
    pub fn does_move(&self) -> bool {
        self.moves
    }

    /// Says that it tells the origin the path or the host as the client wrote them. Such a plugin is refused
    /// on a cached route beside one that moves: two targets that become one would share an answer for one.
    pub fn tells_target(mut self, why: impl Into<String>) -> Self {
        self.tells_target = Some(why.into());
        self
    }

    /// Why it must not stand beside one that moves.
    pub fn why_not_beside_a_move(&self) -> Option<&str> {
        self.tells_target.as_deref()
    }

    /// Says that it does not stand twice around one route.
    pub fn once(mut self) -> Self {
        self.once = true;
        self
    }

    /// Whether it does not stand twice around one route.
    pub fn only_once(&self) -> bool {
        self.once
    }

    /// Says that it counts or remembers something: a reload that leaves its settings as they are leaves it as
    /// it is.
    pub fn kept(mut self) -> Self {
        self.kept = true;
        self
    }

    /// Says that it remembers something of clients, and tells how much.
    pub fn remembers(mut self, plugin: Arc<dyn Remembers>) -> Self {
        self.remembers = Some(plugin);
        self.kept()
    }

    /// How much it remembers of clients, and how much that may be.
    pub fn remembered(&self) -> Option<(Usage, u64)> {
        self.remembers.as_ref().map(|plugin| plugin.usage())
    }

    /// Whether a reload leaves it as it is.
    pub fn is_kept(&self) -> bool {
        self.kept
    }

    /// Whether what is stored may depend on it.
    pub fn shapes_what_is_stored(&self) -> bool {
        self.request_head.is_some() || self.upstream_request.is_some() || self.upstream_response.is_some()
    }

    /// Why it must not stand on a cached route.
    pub fn why_unshareable(&self) -> Option<&str> {
        self.unshareable.as_deref()
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hooks").field(&self.doors()).finish()
    }
}

/// A plugin.
pub trait Plugin {
    /// Its name in the configuration.
    const NAME: &'static str;
    /// Its settings; `deny_unknown_fields`, so that a misspelt one is an error. What their comments say
    /// is in the schema.
    type Settings: DeserializeOwned + JsonSchema;
    /// Says at which doors it stands, or what is wrong with the settings. Must do nothing else.
    fn build(settings: Self::Settings) -> Result<Hooks, String>;
}

/// A complaint about settings: where below them, and what.
#[derive(Debug, PartialEq, Eq)]
pub struct Complaint {
    /// The path inside the settings, such as `response.set`.
    pub path: String,
    /// The sentence.
    pub message: String,
}

/// Reads settings strictly; what is wrong says where.
pub fn settings<T: DeserializeOwned>(value: &serde_yaml::Value) -> Result<T, Complaint> {
    let read = |value: &serde_yaml::Value| {
        serde_path_to_error::deserialize(value).map_err(|error| {
            let path = error.path().to_string();
            Complaint { path: if path == "." { String::new() } else { path }, message: error.into_inner().to_string() }
        })
    };
    // `- compress:` with nothing behind it is `- compress: {}`.
    if value.is_null() {
        read(&serde_yaml::Value::Mapping(Default::default())).or_else(|map| read(value).map_err(|_| map))
    } else {
        read(value)
    }
}

/// One row of the table of plugins.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The plugin's name.
    pub name: &'static str,
    /// Builds it from its settings.
    pub build: fn(&serde_yaml::Value) -> Result<Hooks, Complaint>,
    /// The schema of its settings.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
}

impl Entry {
    /// The row of a plugin.
    pub const fn of<P: Plugin>() -> Entry {
        Entry { name: P::NAME, build: build::<P>, schema: P::Settings::json_schema }
    }
}

fn build<P: Plugin>(value: &serde_yaml::Value) -> Result<Hooks, Complaint> {
    P::build(settings(value)?).map_err(|message| Complaint { path: String::new(), message })
}

/// The plugins of one route, sorted by door.
#[derive(Default, Clone)]
pub struct Chain {
    request: Vec<Arc<dyn OnRequest>>,
    request_head: Vec<Arc<dyn OnRequestHead>>,
    request_body: Vec<Arc<dyn OnRequestBody>>,
    upstream_request: Vec<Arc<dyn OnUpstreamRequest>>,
    upstream_response: Vec<Arc<dyn OnUpstreamResponse>>,
    response: Vec<Arc<dyn OnResponse>>,
    log: Vec<Arc<dyn OnLog>>,
}

impl Chain {
    /// Sorts plugins, given in the order of the file.
    pub fn new<'a>(plugins: impl IntoIterator<Item = &'a Hooks>) -> Self {
        let mut chain = Chain::default();
        for hooks in plugins {
            chain.request.extend(hooks.request.clone());
            chain.request_head.extend(hooks.request_head.clone());
            chain.request_body.extend(hooks.request_body.clone());
            chain.upstream_request.extend(hooks.upstream_request.clone());
            chain.upstream_response.extend(hooks.upstream_response.clone());
            chain.response.extend(hooks.response.clone());
            chain.log.extend(hooks.log.clone());
        }
        // Responses pass up the list.
        chain.upstream_response.reverse();
        chain.response.reverse();
        chain
    }

    /// The first answer that a plugin gives.
    pub async fn request(&self, request: &RequestHeader, exchange: &mut Exchange) -> Option<Reply> {
        for plugin in &self.request {
            if let Some(reply) = plugin.on_request(request, exchange).await {
                return Some(reply);
            }
        }
        None
    }

    /// Whether a plugin rewrites requests before the key is made.
    pub fn rewrites(&self) -> bool {
        !self.request_head.is_empty()
    }

    /// Rewrites the request before the key is made.
    pub fn request_head(&self, request: &mut RequestHeader, exchange: &mut Exchange) {
        self.request_head.iter().for_each(|plugin| plugin.on_request_head(request, exchange));
    }

    /// Shows a chunk of request content.
    pub fn request_body(&self, chunk: &mut Option<Bytes>, end: bool, exchange: &mut Exchange) -> Result<(), u16> {
        self.request_body.iter().try_for_each(|plugin| plugin.on_request_body(chunk, end, exchange))
    }

    /// Rewrites the request to the origin.
    pub fn upstream_request(&self, request: &mut RequestHeader, exchange: &mut Exchange) {
        self.upstream_request.iter().for_each(|plugin| plugin.on_upstream_request(request, exchange));
    }

    /// Rewrites what is stored.
    pub fn upstream_response(&self, response: &mut ResponseHeader, exchange: &mut Exchange) {
        self.upstream_response.iter().for_each(|plugin| plugin.on_upstream_response(response, exchange));
    }

    /// Rewrites a head that leaves.
    pub fn response(&self, request: &RequestHeader, response: &mut ResponseHeader, exchange: &mut Exchange) {
        self.response.iter().for_each(|plugin| plugin.on_response(request, response, exchange));
    }

    /// Whether anybody stands where heads leave.
    pub fn rewrites_responses(&self) -> bool {
        !self.response.is_empty()
    }

    /// Shows a finished exchange.
    pub fn log(&self, exchange: &mut Exchange) {
        self.log.iter().for_each(|plugin| plugin.on_log(exchange));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    struct Mark(&'static str);

    impl OnRequestHead for Mark {
        fn on_request_head(&self, request: &mut RequestHeader, _: &mut Exchange) {
            let _ = request.append_header("x-seen", self.0);
        }
    }

    impl OnResponse for Mark {
        fn on_response(&self, _: &RequestHeader, response: &mut ResponseHeader, _: &mut Exchange) {
            let _ = response.append_header("x-seen", self.0);
        }
    }

    #[test]
    fn requests_pass_down_the_list_and_responses_up() {
        let hooks = |name| {
            let mark = Arc::new(Mark(name));
            Hooks::new().request_head(mark.clone()).response(mark)
        };
        let chain = Chain::new([&hooks("first"), &hooks("second")]);
        let mut exchange = Exchange::new(Clock::system().now(), [127, 0, 0, 1].into());
        let mut request = RequestHeader::build("GET", b"/", None).unwrap();
        chain.request_head(&mut request, &mut exchange);
        let mut response = ResponseHeader::build(200, None).unwrap();
        chain.response(&request, &mut response, &mut exchange);
        let seen = |fields: &http::HeaderMap| {
            fields.get_all("x-seen").iter().map(|v| v.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(seen(&request.headers), ["first", "second"]);
        assert_eq!(seen(&response.headers), ["second", "first"]);
        assert_eq!(hooks("x").doors(), ["request_head", "response"]);
    }
}
