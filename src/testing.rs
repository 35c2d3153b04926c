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
use crate::plugin::{Chain, Complaint, Entry, Hooks};

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

/// What is wrong with settings that must not load.
pub fn complaint(yaml: &str) -> Complaint {
    complaint_from(yaml, &[])
}

/// The same for a plugin of one's own.
#[allow(clippy::expect_used)]
pub fn complaint_from(yaml: &str, entries: &[Entry]) -> Complaint {
    let one: crate::config::settings::One = serde_yaml::from_str(yaml).expect("the settings are a map with one key");
    let mut all = crate::plugins::BUILT_IN.iter().chain(entries);
    let entry = all.find(|entry| entry.name == one.name).expect("there is a plugin of this name");
    (entry.build)(&one.value).expect_err("the settings are wrong")
}

/// The plugin of the first YAML example in the documentation at the head of a source file, so that
/// what is written there is what works.
#[allow(clippy::expect_used)]
pub fn example(source: &str) -> PluginUnderTest {
    let lines = source.lines().skip_while(|line| *line != "//! ```yaml").skip(1).take_while(|line| *line != "//! ```");
    let yaml: String = lines.map(|line| line.trim_start_matches("//! ").to_owned() + "\n").collect();
    assert!(!yaml.is_empty(), "there is an example");
    plugin(&yaml)
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
    /// Several plugins around one route, in the order of the file.
    pub fn chain(plugins: &[Hooks]) -> Self {
        PluginUnderTest { hooks: Hooks::new(), chain: Chain::new(plugins) }
    }

    /// The plugin as the configuration builds it.
    pub fn hooks(&self) -> &Hooks {
        &self.hooks
    }

    /// The doors at which it stands.
    pub fn doors(&self) -> Vec<&'static str> {
        self.hooks.doors()
    }

    /// Why it must not stand on a cached route, if so.
    pub fn why_unshareable(&self) -> Option<&str> {
        self.hooks.why_unshareable()
    }

    /// A visit by a client on loopback with this request, on a route without a cache: the plugin's doors, in
    /// the order of the proxy.
    pub fn visit(&self, request: &str) -> Visit<'_> {
        let request = self::request(request);
        let mut exchange = exchange();
        exchange.method = request.method.clone();
        exchange.target = String::from_utf8_lossy(request.raw_path()).into_owned();
        let host = request.headers.get("host").and_then(|host| host.to_str().ok());
        exchange.host = host.unwrap_or("site.test").to_ascii_lowercase();
        exchange.shared = false;
        Visit { chain: &self.chain, request, exchange }
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

    /// The response to `GET /` after it, as the client sees it.
    pub fn response(&self, mut response: ResponseHeader) -> ResponseHeader {
        self.chain.response(&request("GET /"), &mut response, &mut exchange());
        response
    }
}

/// One exchange on its way past a plugin.
///
/// ```
/// let plugin = headwall::testing::plugin("ip_filter: { deny: [192.0.2.0/24] }");
/// assert!(plugin.visit("GET /").from("198.51.100.1").answer_now().is_none());
/// assert_eq!(plugin.visit("GET /").from("192.0.2.7").answer_now().unwrap().status(), 403);
/// ```
pub struct Visit<'a> {
    chain: &'a Chain,
    /// The request, as far as it was rewritten.
    pub request: RequestHeader,
    /// What the plugin sees beside it; change what the test needs.
    pub exchange: Exchange,
}

impl Visit<'_> {
    /// The client's address.
    #[allow(clippy::expect_used)]
    pub fn from(mut self, client: &str) -> Self {
        self.exchange.client = client.parse().expect("this is an address");
        self.exchange.peer = self.exchange.client;
        self
    }

    /// The client came by way of a trusted proxy, and by this scheme.
    pub fn by_proxy(mut self, scheme: &'static str) -> Self {
        (self.exchange.peer_trusted, self.exchange.scheme) = (true, scheme);
        self
    }

    /// The answer at the door where requests come in, if it gives one.
    pub async fn answer(&mut self) -> Option<Answer> {
        self.chain.request(&self.request, &mut self.exchange).await.map(Answer)
    }

    /// The same for a test that is not async.
    #[allow(clippy::expect_used)]
    pub fn answer_now(&mut self) -> Option<Answer> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
        runtime.block_on(self.answer())
    }

    /// The request as the cache key and a handler see it.
    pub fn head(&mut self) -> &RequestHeader {
        self.chain.request_head(&mut self.request, &mut self.exchange);
        &self.request
    }

    /// A chunk of the request's content, as it goes on; `None` is the end.
    pub fn chunk(&mut self, chunk: Option<&str>) -> Result<Option<Bytes>, u16> {
        let mut bytes = chunk.map(|text| Bytes::copy_from_slice(text.as_bytes()));
        self.exchange.taken += chunk.map_or(0, str::len) as u64;
        self.chain.request_body(&mut bytes, chunk.is_none(), &mut self.exchange)?;
        Ok(bytes)
    }

    /// The request as the origin sees it.
    pub fn upstream(&mut self) -> RequestHeader {
        let mut request = self.request.clone();
        self.chain.upstream_request(&mut request, &mut self.exchange);
        request
    }

    /// The origin's response as it is stored.
    pub fn stored(&mut self, response: &str) -> ResponseHeader {
        let mut response = self::response(response);
        self.chain.upstream_response(&mut response, &mut self.exchange);
        response
    }

    /// The same for a head whose content is still to come: its filters stay at work as long as the visit.
    pub fn hold_response(&mut self, response: &str) -> ResponseHeader {
        let mut response = self::response(response);
        self.chain.response(&self.request, &mut response, &mut self.exchange);
        response
    }

    /// The response as the client sees it, its content sent through the filters chunk by chunk.
    #[allow(clippy::expect_used)]
    pub fn response(&mut self, response: &str, chunks: &[&str]) -> Answer {
        let mut reply = Reply::bare(200);
        reply.head = self::response(response);
        self.chain.response(&self.request, &mut reply.head, &mut self.exchange);
        let mut filters: Vec<_> = self.exchange.take_filters().into_iter().map(|pushed| pushed.filter).collect();
        let mut content = Vec::new();
        for chunk in chunks {
            let chunk = Bytes::copy_from_slice(chunk.as_bytes());
            let through = filters.iter_mut().try_fold(chunk, |chunk, filter| filter.chunk(chunk));
            content.extend_from_slice(&through.expect("the filters go on"));
        }
        let mut rest = Bytes::new();
        for filter in &mut filters {
            let mut all =
                if rest.is_empty() { Bytes::new() } else { filter.chunk(rest).expect("the filters go on") }.to_vec();
            all.extend_from_slice(&filter.finish().expect("the filters end"));
            rest = all.into();
        }
        content.extend_from_slice(&rest);
        reply.content = content.into();
        Answer(reply)
    }
}

/// Asks a handler as a client would.
pub struct Client {
    handler: Arc<dyn Handler>,
    clock: Clock,
}

/// What a plugin or a handler answered.
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

    /// Whether the field is there.
    pub fn has(&self, name: &str) -> bool {
        self.0.head.headers.contains_key(name)
    }

    /// The content.
    pub fn content(&self) -> &Bytes {
        &self.0.content
    }

    /// The content, as far as it is text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.0.content).unwrap_or("")
    }
}

struct Given {
    chunks: std::vec::IntoIter<Bytes>,
    cut: bool,
}

#[async_trait]
impl Source for Given {
    async fn chunk(&mut self, _: &mut Exchange) -> Result<Option<Bytes>, Unread> {
        match self.chunks.next() {
            None if self.cut => Err(Unread::Broken),
            chunk => Ok(chunk),
        }
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
        let mut source = Given { chunks: chunks.into_iter(), cut };
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
