//! Tools for the tests of plugins and handlers: YAML in, observable answer out.
//!
//! ```
//! use headwall::testing::{plugin, response};
//!
//! let plugin = plugin("headers: { response: { set: { X-Proxy: Headwall } } }");
//! assert_eq!(plugin.response(response("200")).headers["x-proxy"], "Headwall");
//! ```
//!
//! These tools panic where a test should fail: on settings that do not load, and
//! on heads that are none.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use pingora::http::{RequestHeader, ResponseHeader};

use crate::clock::Clock;
use crate::exchange::Exchange;
use crate::handler::{Content, Handler, Reply, Source, Unread};
use crate::plugin::{Chain, Entry, Hooks};

/// A plugin under test.
pub struct PluginUnderTest {
    hooks: Hooks,
    chain: Chain,
}

/// A built-in plugin, from what stands behind the dash in a configuration.
pub fn plugin(yaml: &str) -> PluginUnderTest {
    plugin_from(yaml, &[])
}

/// A plugin of one's own.
#[allow(clippy::expect_used)]
pub fn plugin_from(yaml: &str, entries: &[Entry]) -> PluginUnderTest {
    let one: crate::config::settings::One = serde_yaml::from_str(yaml).expect("the settings are a map with one key");
    let mut all = crate::plugins::BUILT_IN.iter().chain(entries);
    let entry = all.find(|entry| entry.name == one.name).expect("there is a plugin of this name");
    let hooks = (entry.build)(&one.value).expect("the settings are right");
    let chain = Chain::new([&hooks]);
    PluginUnderTest { hooks, chain }
}

/// An exchange of a client on loopback.
pub fn exchange() -> Exchange {
    Exchange::new(Clock::system().now(), [127, 0, 0, 1].into())
}

fn lines(text: &str) -> impl Iterator<Item = (String, &str)> {
    text.lines()
        .skip(1)
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim().to_owned(), value.trim()))
}

/// A request head: `GET /path`, then a line for each field.
#[allow(clippy::expect_used)]
pub fn request(text: &str) -> RequestHeader {
    let (method, path) =
        text.lines().next().and_then(|line| line.split_once(' ')).expect("`METHOD /path` is the first line");
    let mut head = RequestHeader::build(method, path.as_bytes(), None).expect("the request line is right");
    for (name, value) in lines(text) {
        head.append_header(name, value).expect("the field is right");
    }
    head
}

/// A response head: `200`, then a line for each field.
#[allow(clippy::expect_used)]
pub fn response(text: &str) -> ResponseHeader {
    let status: u16 =
        text.lines().next().and_then(|line| line.trim().parse().ok()).expect("the status is the first line");
    let mut head = ResponseHeader::build(status, None).expect("the status is one");
    for (name, value) in lines(text) {
        head.append_header(name, value).expect("the field is right");
    }
    head
}

impl PluginUnderTest {
    /// The doors at which it stands.
    pub fn doors(&self) -> Vec<&'static str> {
        self.hooks.doors()
    }

    /// Its answer to a request, if it gives one.
    pub async fn answer(&self, request: RequestHeader) -> Option<Reply> {
        self.chain.request(&request, &mut exchange()).await
    }

    /// The request after it, as the cache key sees it.
    pub fn request_head(&self, mut request: RequestHeader) -> RequestHeader {
        self.chain.request_head(&mut request, &mut exchange());
        request
    }

    /// The request after it, as the origin sees it.
    pub fn upstream_request(&self, mut request: RequestHeader) -> RequestHeader {
        self.chain.upstream_request(&mut request, &mut exchange());
        request
    }

    /// The response after it, as it is stored.
    pub fn upstream_response(&self, mut response: ResponseHeader) -> ResponseHeader {
        self.chain.upstream_response(&mut response, &mut exchange());
        response
    }

    /// The response after it, as the client sees it.
    pub fn response(&self, mut response: ResponseHeader) -> ResponseHeader {
        self.chain.response(&mut response, &mut exchange());
        response
    }
}

/// Asks a handler as a client would.
pub struct Client {
    handler: Arc<dyn Handler>,
    clock: Clock,
}

/// What a handler answered.
pub struct Answer(Reply);

impl Answer {
    /// The status.
    pub fn status(&self) -> u16 {
        self.0.head.status.as_u16()
    }

    /// A field's first value; empty when it is not there.
    pub fn field(&self, name: &str) -> &str {
        self.0.head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
    }

    /// The content, as far as it is text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.0.content).unwrap_or("")
    }
}

struct Given {
    chunks: Vec<Bytes>,
    cut: bool,
}

#[async_trait]
impl Source for Given {
    async fn chunk(&mut self) -> Result<Option<Bytes>, Unread> {
        if self.chunks.is_empty() {
            return if self.cut { Err(Unread::Broken) } else { Ok(None) };
        }
        Ok(Some(self.chunks.remove(0)))
    }

    async fn continue_100(&mut self) {}
}

impl Client {
    /// A client of this handler.
    pub fn new(handler: Arc<dyn Handler>, clock: Clock) -> Self {
        Client { handler, clock }
    }

    async fn exchange(&self, peer: &str, client: &str, head: &str, chunks: Vec<Bytes>, cut: bool) -> Answer {
        let address = |text: &str| text.parse().unwrap_or_else(|_| [0, 0, 0, 0].into());
        let mut exchange = Exchange::new(self.clock.now(), address(peer));
        exchange.client = address(client);
        exchange.peer_trusted = peer != client;
        let mut source = Given { chunks, cut };
        let mut content = Content::new(&mut source, None);
        Answer(self.handler.answer(&request(head), &mut content, &mut exchange).await)
    }

    /// Sends a request with this content, from loopback.
    pub async fn send(&self, head: &str, content: &str) -> Answer {
        let chunks = content.as_bytes().chunks(7).map(Bytes::copy_from_slice).collect();
        self.exchange("127.0.0.1", "127.0.0.1", head, chunks, false).await
    }

    /// Sends a request whose content breaks off.
    pub async fn cut(&self, head: &str, content: &str) -> Answer {
        self.exchange("127.0.0.1", "127.0.0.1", head, vec![Bytes::copy_from_slice(content.as_bytes())], true).await
    }

    /// Sends a request from elsewhere.
    pub async fn from(&self, peer: &str, client: &str, head: &str) -> Answer {
        self.exchange(peer, client, head, Vec::new(), false).await
    }
}
