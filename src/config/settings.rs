//! The configuration as the file writes it: one struct for each map, defaults included.
//!
//! Every struct refuses unknown keys. "Exactly one of" and "this or that" are
//! visitors written by hand, because derived ones lose the place or the reason.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};

use crate::secret::Secret;
use crate::units::{ByteSize, Network, Span, given};

/// The whole file.
#[derive(Debug, Clone, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Worker threads; one per core when absent.
    pub threads: Option<u16>,
    /// Where clients connect; with `{ bind: ADDRESS, h2c: true }` they may speak [HTTP/2](../http2.md) in clear text, too.
    pub listen: Vec<Listen>,
    /// The operator's listener; none when absent.
    pub admin: Option<Admin>,
    /// Whom a process that was started as root becomes once it has its addresses: `name`, `name:group`, or numbers. The access
    /// log is opened, and files are read again on a reload, as that user.
    #[serde(deserialize_with = "given")]
    pub user: Option<String>,
    /// Whose word about clients is believed.
    pub trust: Trust,
    /// What clients may take of us: sizes of requests, time, connections.
    pub limits: Limits,
    /// Logs.
    pub log: Log,
    /// What happens on SIGTERM.
    pub shutdown: Shutdown,
    /// Plugins around every route, and around what no route answers.
    #[schemars(schema_with = "plugin_list")]
    pub plugins: Vec<One>,
    /// Groups of servers.
    pub upstreams: BTreeMap<String, Upstream>,
    /// The one store that all routes share.
    pub cache: Cache,
    /// First match wins.
    pub routes: Vec<Route>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            threads: None,
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 8080)).into()],
            admin: None,
            user: None,
            trust: Trust::default(),
            limits: Limits::default(),
            log: Log::default(),
            shutdown: Shutdown::default(),
            plugins: Vec::new(),
            upstreams: BTreeMap::new(),
            cache: Cache::default(),
            routes: Vec::new(),
        }
    }
}

/// An address to listen on: `"127.0.0.1:8080"` or `{ bind: "127.0.0.1:8080" }`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// The address.
    pub bind: SocketAddr,
    /// HTTP/2 in clear text is taken beside HTTP/1.1, from clients that begin with it.
    pub h2c: bool,
}

impl From<SocketAddr> for Listen {
    fn from(bind: SocketAddr) -> Self {
        Listen { bind, h2c: false }
    }
}

impl JsonSchema for Listen {
    fn schema_name() -> Cow<'static, str> {
        "Listen".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let address = json_schema!({ "type": "string", "pattern": ":[0-9]+$|\\$\\{" });
        json_schema!({
            "description": "An address to listen on: \"127.0.0.1:8080\" or { bind: \"127.0.0.1:8080\" }.",
            "anyOf": [address, {
                "type": "object",
                "properties": {
                    "bind": address,
                    "h2c": {
                        "type": "boolean",
                        "default": false,
                        "description": "HTTP/2 in clear text is taken beside HTTP/1.1, from clients that begin with it; not for the admin listener."
                    }
                },
                "required": ["bind"],
                "additionalProperties": false
            }]
        })
    }
}

impl Serialize for Listen {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.bind)
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ListenMap {
    bind: Bind,
    #[serde(default)]
    h2c: bool,
}

struct Bind(SocketAddr);

/// Reads `address:port`; the address is numeric, so that what is opened is what is written.
pub fn bind_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!("`{text}` is no address to listen on; write one as 127.0.0.1:8080, 0.0.0.0:8080 or [::]:8080")
    })
}

impl<'de> Deserialize<'de> for Bind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        bind_address(&text).map(Bind).map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Listen;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address such as \"127.0.0.1:8080\", or a map with `bind`")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Listen, E> {
                bind_address(text).map(Listen::from).map_err(E::custom)
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Listen, A::Error> {
                let map = ListenMap::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(Listen { bind: map.bind.0, h2c: map.h2c })
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// The operator's listener: `GET /health` (200, or 503 while draining), `GET /metrics` (Prometheus), `GET /stats` (JSON),
/// `POST /purge`.
///
/// ```yaml
/// admin: { listen: "127.0.0.1:9900" }
/// ```
///
/// Whoever reaches it sees and purges everything, unless there is a token. Then all but `/health` wants
/// `Authorization: Bearer TOKEN`, and whoever has it may ask any route why it does what it does (`X-Headwall-Explain: 1` with
/// `X-Headwall-Token: TOKEN`, docs/explain.md). Beyond loopback it has to have one, or has to be called `insecure: true`. What
/// is said there, the token too, is not encrypted. `headwall health` and `headwall purge` ask this listener; a purge takes
/// the token from the file that `--config` names, in `--token-file`, or in HEADWALL_ADMIN_TOKEN.
///
/// ```yaml
/// admin: { listen: "127.0.0.1:9900", token: "${ADMIN_TOKEN:-only-an-example-of-one}" }
/// ```
///
/// A purge is JSON (`Content-Type: application/json`) and names one thing: `url` or `prefix` (an address, or a path for
/// every host), `host`, `tag` (of `Cache-Tag`, `Surrogate-Key` or `Cache-Groups`), or `all: true`. All variants go, and
/// what is on its way is not stored. With `soft: true` entries become stale instead, with `dry_run: true` they are only
/// counted. A `tag` takes out values of the key/value stores too, even with `soft`: they have nothing to be validated
/// with. The answer: `{"entries":3,"bytes":9000,"kv":1,"soft":false,"dry_run":false}`; `kv` of the entries are such values.
/// Variants count one by one, and so do the slices of a response of which parts are stored. A host is written with its port
/// where that is neither 80 nor 443, a path as clients send it (`/caf%C3%A9`).
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Admin {
    /// Its address; on loopback, unless there is a token.
    pub listen: Listen,
    /// What opens it, all but `/health`; at least 16 visible ASCII characters. A reload takes a new one over.
    #[serde(default)]
    pub token: Option<Secret>,
    /// The same in a file of its own, on a line of its own.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
    /// Open to everybody who reaches it, beyond loopback and without a token.
    #[serde(default)]
    pub insecure: bool,
}

/// Whose word about clients is believed.
///
/// ```yaml
/// trust: { proxies: [10.0.0.0/8, "fd00::/8"] }
/// ```
///
/// `X-Forwarded-For`, `-Proto`, `-Host` and their like of others are taken off (docs/leak-guard.md). From a trusted peer,
/// the client is the last address of `X-Forwarded-For` that is not itself trusted; where the field is missing,
/// `Forwarded` (RFC 7239) is read the same way. Trust a proxy only if it sets one of the two itself.
#[derive(Debug, Clone, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Trust {
    /// Networks of proxies whose `X-Forwarded-*` fields are believed.
    pub proxies: Vec<Network>,
}

/// What clients may take of us: sizes of requests, time, connections. The defaults are meant for an open network.
///
/// ```yaml
/// limits: { head: 16KiB, content_rate: 1KiB, connections: 5000, connections_per_network: 200 }
/// ```
///
/// A request that is too large is answered (414 for its target, 431 for its head) and its connection closed; content that
/// comes too slowly gets 408. A head that comes too slowly, and a connection with nothing on it, is closed without an answer.
/// A connection too many is closed at once, and those that are there keep their service. All is counted:
/// `headwall_refused_total{reason}`, `headwall_connections_refused_total{reason}`; docs/hardening.md has the reasons. How long
/// content may be is for each route to say: [`body_limit`](../plugins/body_limit.md).
///
/// For content only time in which we wait for the client counts, and what it sends makes up for what it was late: at
/// `content_rate: 256B` a client that sends nothing is cut after `content_grace`, one that sends half as much after
/// twice that, and one that sends enough never. An app that takes nothing costs its client nothing; neither does a tunnel
/// (a WebSocket), nor a client that was not yet told `100 Continue`. `read_rate` counts time in which what we have waits for
/// the client to take it.
///
/// Clients on loopback and in `trust.proxies` are not counted by network: a proxy of ours speaks for many. Behind any
/// other proxy or load balancer all clients have its address, so name it in `trust.proxies`. No more than about half of the
/// file descriptors that the process may have go to clients, because each request may need another one for the app; a
/// smaller number than `connections` is said when the process starts, and the hard limit of the system raises it
/// (`LimitNOFILE` of systemd, `--ulimit nofile` of Docker).
///
/// A reload takes all of it over: a connection that is there with its next request, the numbers of connections for those
/// that come. None is closed because a number became smaller.
#[derive(Debug, Clone, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// The longest request head, from 1KiB to 1MiB.
    pub head: ByteSize,
    /// The most fields of a request, from 10 to 256.
    pub fields: u16,
    /// The longest request target, at least 64B; at most what a head may be.
    pub target: ByteSize,
    /// How long a whole head may take: the first one from the connection on, others from their first byte. From 100ms to 1m.
    pub head_timeout: Span,
    /// How long a connection is kept without a request. From 100ms to 1h.
    pub idle: Span,
    /// How much of a request's content has to come each second, while we wait for it. From 1B to 1GiB.
    pub content_rate: ByteSize,
    /// How far a client may fall behind `content_rate`. From 100ms to 1h.
    pub content_grace: Span,
    /// How much of a response a client has to take each second, while it keeps us waiting. From 1B to 1GiB.
    pub read_rate: ByteSize,
    /// The time over which `read_rate` is measured. From 100ms to 1h.
    pub read_grace: Span,
    /// Requests on one connection; then it is closed, which frees what piled up for it.
    pub requests_per_connection: u32,
    /// Connections of clients, in all.
    pub connections: u32,
    /// Connections of one network: an IPv4 address, or the first 64 bits of an IPv6 address. At most as many as in all.
    pub connections_per_network: u32,
}

impl Default for Limits {
    fn default() -> Self {
        let seconds = |s| Span(Duration::from_secs(s));
        Limits {
            head: ByteSize(32 << 10),
            fields: 100,
            target: ByteSize(8 << 10),
            head_timeout: seconds(10),
            idle: seconds(60),
            content_rate: ByteSize(256),
            content_grace: seconds(10),
            read_rate: ByteSize(256),
            read_grace: seconds(60),
            requests_per_connection: 10_000,
            connections: 20_000,
            connections_per_network: 1000,
        }
    }
}

/// Logs. What the server itself has to say goes to standard error; `HEADWALL_LOG=debug` says more.
///
/// ```yaml
/// log: { access: { file: /var/log/headwall/access.log, format: json } }
/// ```
#[derive(Debug, Clone, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// One line for each request; none when absent.
    #[serde(deserialize_with = "given")]
    pub access: Option<AccessLog>,
}

/// One line for each request.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AccessLog {
    /// Where to; standard output when absent. Opened again on SIGUSR1, or as soon after it as it can be; until then lines go
    /// on to the old file. Lines that the disk does not take are lost, and counted.
    pub file: Option<PathBuf>,
    /// In which form.
    pub format: Format,
}

impl Admin {
    /// Whether it takes a token to be let in.
    pub fn is_guarded(&self) -> bool {
        self.token.is_some() || self.token_file.is_some()
    }
}

impl AccessLog {
    /// Where to, for people.
    pub fn place(&self) -> String {
        self.file.as_ref().map_or_else(|| "standard output".into(), |file| file.display().to_string())
    }
}

/// The form of the access log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// The line that Apache and nginx write, and most tools read.
    #[default]
    Combined,
    /// One JSON object a line.
    Json,
}

/// What happens on SIGTERM and SIGINT: no new connections, running exchanges finish, exit code 0.
///
/// ```yaml
/// shutdown: { drain: 30s }
/// ```
#[derive(Debug, Clone, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Shutdown {
    /// How long running exchanges may take to finish.
    pub drain: Span,
}

impl Default for Shutdown {
    fn default() -> Self {
        Shutdown { drain: Span(Duration::from_secs(30)) }
    }
}

/// A group of servers, by a name that routes use.
///
/// ```yaml
/// upstreams:
///   app:
///     servers: ["127.0.0.1:3000", "127.0.0.1:3001"]
///     timeouts: { connect: 2s, first_byte: 30s }
/// ```
///
/// A server that refuses connections is left out for a while, and its requests go to another. A request that was sent,
/// and got no answer because the connection broke, is sent again twice at most, and only if its method is idempotent.
#[derive(Debug, Clone, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Upstream {
    /// `host:port`, `[ipv6]:port` or `unix:/path`; they take turns.
    pub servers: Vec<String>,
    /// How long we wait for them.
    #[serde(default)]
    pub timeouts: Timeouts,
}

/// How long we wait for a server.
#[derive(Debug, Clone, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// For a connection.
    pub connect: Span,
    /// For the first byte of a response.
    pub first_byte: Span,
    /// Between two pieces of a response.
    pub read: Span,
    /// For the server to take the next piece of a request.
    pub write: Span,
    /// How long an unused connection is kept. Below Node's keepAliveTimeout, which is 5 s.
    pub idle: Span,
}

impl Default for Timeouts {
    fn default() -> Self {
        let seconds = |s| Span(Duration::from_secs(s));
        Timeouts {
            connect: seconds(2),
            first_byte: seconds(60),
            read: seconds(60),
            write: seconds(60),
            idle: seconds(4),
        }
    }
}

/// The one store that all routes share.
///
/// ```yaml
/// cache: { memory: 512MiB, max_object: 32MiB }
/// ```
///
/// What is used least goes first when memory is needed. A process needs about `memory` + `fills`, what the
/// key/value stores and plugins may take, and what connections hold.
#[derive(Debug, Clone, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cache {
    /// Bytes for everything stored, heads and keys counted in.
    pub memory: ByteSize,
    /// Longer responses pass through without being stored.
    pub max_object: ByteSize,
    /// The same for responses that come without `Content-Length`.
    pub max_unsized: ByteSize,
    /// Bytes that responses being stored may hold while they arrive.
    pub fills: ByteSize,
    /// Variants of one target (by `Vary`, and by `key` of the route); the oldest one goes first.
    pub max_variants: u16,
}

impl Default for Cache {
    fn default() -> Self {
        Cache {
            memory: ByteSize(256 << 20),
            max_object: ByteSize(16 << 20),
            max_unsized: ByteSize(2 << 20),
            fills: ByteSize(32 << 20),
            max_variants: 50,
        }
    }
}

/// One route: what it matches, who answers, and what happens around it. The first one that matches is taken.
///
/// ```yaml
/// upstreams:
///   app: { servers: ["127.0.0.1:3000"] }
/// routes:
///   - match: { prefix: /cache/ }
///     to: { kv: { memory: 64MiB } }
///   - match: { host: old.example.com }
///     to: { redirect: { to: "https://www.example.com{path}{query}" } }
///   - match: { prefix: /assets/ }
///     to: { proxy: app }
///     cache: { mode: force, ttl: 10m }
///   - to: { proxy: app }
///     cache: {}
///     plugins: [{ compress: {} }]
/// ```
///
/// A request that no route matches gets 404.
#[derive(Debug, Clone, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// What it matches; everything when absent.
    #[serde(default, rename = "match")]
    pub matches: Match,
    /// Who answers: exactly one of `kv`, `proxy`, `redirect`, `respond`.
    #[schemars(schema_with = "destination")]
    pub to: One,
    /// Keeps responses; never cached when absent.
    #[serde(default, deserialize_with = "given")]
    pub cache: Option<RouteCache>,
    /// Plugins of this route, inside those of the site.
    #[serde(default)]
    #[schemars(schema_with = "plugin_list")]
    pub plugins: Vec<One>,
}

/// What a route matches: all that is given has to fit. One of `path`, `prefix` and `regex`, at most.
///
/// Paths are compared in their normal form; a path that would choose another route as it came gets 400.
#[derive(Debug, Clone, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Match {
    /// The host, without port.
    pub host: Option<String>,
    /// The exact path.
    pub path: Option<String>,
    /// The beginning of the path, whole segments.
    pub prefix: Option<String>,
    /// A regular expression that the path has to match.
    pub regex: Option<String>,
    /// The methods.
    pub methods: Option<Vec<String>>,
    /// Request fields and their exact values.
    pub headers: BTreeMap<String, String>,
}

/// How a route keeps responses. `cache: {}` does what the origin says (RFC 9111); no `cache` key is never cached.
///
/// ```yaml
/// upstreams:
///   app: { servers: ["127.0.0.1:3000"] }
/// routes:
///   - match: { prefix: /feed }
///     to: { proxy: app }
///     cache: { mode: force, ttl: { 200: 5m, 404: 30s }, cookies: ignore, set_cookie: strip }
///   - to: { proxy: app }
///     cache: { stale_while_revalidate: 30s, stale_if_error: 1h, status_header: X-Cache }
/// ```
///
/// In both modes a response with `Set-Cookie` is not stored unless `set_cookie` says so, and a request with
/// `Authorization` is answered from the store only where RFC 9111 §3.5 allows it. Each response says what the
/// cache did in `Cache-Status` (RFC 9211).
#[derive(Debug, Clone, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RouteCache {
    /// Whose word counts.
    pub mode: Mode,
    /// With `force`: how long, for any status (but such as blame the request: 400, 408, 417, 421, 425, 426, 429, 431) or
    /// by status.
    pub ttl: Option<Ttl>,
    /// With `force`: whether requests with `Cookie` are answered from the store.
    pub cookies: Option<Cookies>,
    /// What to do with a response that sets a cookie: it is not stored, it is stored without the cookie, or it is
    /// stored with it if it sets no others than the named ones, which are the same for everybody.
    pub set_cookie: SetCookie,
    /// What names a stored response beside host, path and query.
    pub key: Key,
    /// Response fields that count instead of `Cache-Control` and `Expires`, the first one that is there and
    /// well-formed (RFC 9213); `[CDN-Cache-Control]` when absent, an empty list for none.
    pub targeted: Option<Vec<String>>,
    /// Whether what requests say in `Cache-Control` and `Pragma` counts (RFC 9111 §5.2.1).
    pub client_directives: ClientDirectives,
    /// Whether the fields that name tags for purging (`Cache-Tag`, `Surrogate-Key`, `Cache-Groups`) end here.
    pub strip_tags: bool,
    /// Who may take single targets out of the store with the method `PURGE`; nobody when absent.
    pub purge: Option<ClientPurge>,
    /// Has requests for ranges answered from slices of this length, each fetched and stored by itself, so that seeking
    /// in a video neither pulls nor stores the whole. The origin has to answer ranges, with a strong `ETag` or with a
    /// `Last-Modified` that is at least a minute old; other ranges go to it as they come. At least 64KiB, at most
    /// `cache.max_object`.
    pub slice: Option<ByteSize>,
    /// A field for the one-word status that nginx users know.
    pub status_header: Option<String>,
    /// Where the origin says nothing: how long a stale response may be used while it is refreshed.
    pub stale_while_revalidate: Option<Span>,
    /// Where the origin says nothing: how long a stale response may stand in for an origin that fails.
    pub stale_if_error: Option<Span>,
}

/// Has clients of these networks purge with the method `PURGE`, as those of Varnish and Squid do.
///
/// ```yaml
/// upstreams:
///   app: { servers: ["127.0.0.1:3000"] }
/// routes:
///   - to: { proxy: app }
///     cache: { purge: { allow: [127.0.0.0/8, "::1", 10.0.0.0/8] } }
/// ```
///
/// `PURGE /page` takes out what is stored for that target on that host, with all variants, and answers 200 and how much
/// it was: `{"entries":2,"bytes":9000}`, with zeros when nothing was there. The request passes the plugins of the route
/// as any other does, so the target is the one that `rewrite` makes of it; the origin does not see it. The address is the
/// peer's, or the one that a proxy of `trust.proxies` names; others get 403, and so does a local peer that speaks for
/// somebody else without being trusted. Without `purge`, `PURGE` is 405; a route without `cache` whose `match` names the
/// method passes it on.
#[derive(Debug, Clone, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientPurge {
    /// Networks that may.
    pub allow: Vec<Network>,
}

/// What names a stored response beside host, path and query.
///
/// ```yaml
/// upstreams:
///   app: { servers: ["127.0.0.1:3000"] }
/// routes:
///   - to: { proxy: app }
///     cache: { key: { query: { drop: ["utm_*", gclid], sort: true }, cookies: [lang], headers: [X-Country] } }
/// ```
///
/// An invalidation takes all that was stored for a target, whatever its cookies and fields. With `mode: force` the
/// origin sees no cookies but the named ones, and requests with others are answered from the store too.
#[derive(Debug, Clone, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Key {
    /// Which parameters of the query count; the origin gets the same form.
    pub query: Query,
    /// Cookies whose values count.
    pub cookies: Vec<String>,
    /// Request fields whose values count.
    pub headers: Vec<String>,
}

/// Which parameters of the query count.
#[derive(Debug, Clone, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Query {
    /// Parameters that are taken out; `utm_*` means all that begin with `utm_`.
    pub drop: Vec<String>,
    /// Parameters are put in the order of their names.
    pub sort: bool,
}

/// Whether requests may say how they are answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ClientDirectives {
    /// They may: `no-cache` makes us validate, `no-store`, `max-age`, `max-stale`, `min-fresh` and
    /// `only-if-cached` count.
    #[default]
    Honour,
    /// They may not, so that nobody can send requests past the store by a field.
    Ignore,
}

/// Whose word about freshness counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The origin's (RFC 9111).
    #[default]
    Respect,
    /// The route's `ttl`.
    Force,
}

/// Requests with `Cookie` under `force`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Cookies {
    /// They pass by the store.
    Bypass,
    /// They are answered from it, and the origin does not see the cookie.
    Ignore,
}

/// Responses with `Set-Cookie`: `refuse` does not store them, `strip` takes the cookie off for everybody, and
/// `{ store: [NAME] }` stores, cookie and all, those that set only cookies which are the same for everybody.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SetCookie {
    /// They are not stored.
    #[default]
    Refuse,
    /// The cookie is taken off, for everybody.
    Strip,
    /// They are stored if they set only these.
    Store(Vec<String>),
}

#[derive(serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Stored {
    /// Names of cookies that are the same for everybody.
    store: Vec<String>,
}

impl JsonSchema for SetCookie {
    fn schema_name() -> Cow<'static, str> {
        "SetCookie".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let stored = generator.subschema_for::<Stored>();
        json_schema!({
            "description": "Responses with `Set-Cookie`: `refuse` does not store them, `strip` takes the cookie off \
                for everybody, and `{ store: [NAME] }` stores, cookie and all, those that set only cookies which are \
                the same for everybody.",
            "anyOf": [{ "type": "string", "enum": ["refuse", "strip"] }, stored]
        })
    }
}

impl Serialize for SetCookie {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            SetCookie::Refuse => serializer.serialize_str("refuse"),
            SetCookie::Strip => serializer.serialize_str("strip"),
            SetCookie::Store(names) => BTreeMap::from([("store", names)]).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for SetCookie {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = SetCookie;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`refuse`, `strip`, or cookies that are the same for everybody: { store: [NAME] }")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<SetCookie, E> {
                match text {
                    "refuse" => Ok(SetCookie::Refuse),
                    "strip" => Ok(SetCookie::Strip),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SetCookie, A::Error> {
                let stored = Stored::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(SetCookie::Store(stored.store))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// One duration for any status, or a map from status to duration. Statuses that blame the request (400, 408, 417, 421,
/// 425, 426, 429, 431) are stored only where the map names them.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(untagged)]
pub enum Ttl {
    /// For any status.
    Any(#[schemars(with = "Span")] Duration),
    /// By status; others are not stored.
    ByStatus(#[schemars(with = "BTreeMap<String, Span>")] BTreeMap<u16, Duration>),
}

impl<'de> Deserialize<'de> for Ttl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Ttl;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as 1m, or a map from status to duration such as { 200: 10m, 404: 1m }")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Ttl, E> {
                let span = Span::parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))?;
                Ok(Ttl::Any(span.0))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ttl, A::Error> {
                let mut by_status = BTreeMap::new();
                while let Some((status, span)) = map.next_entry::<Status, Span>()? {
                    by_status.insert(status.0, span.0);
                }
                Ok(Ttl::ByStatus(by_status))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Status(u16);

impl<'de> Deserialize<'de> for Status {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Status;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a status from 200 to 599, but 206, 304 and 416, which are never stored")
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Status, E> {
                match u16::try_from(number) {
                    Ok(status @ 200..=599) if !matches!(status, 206 | 304 | 416) => Ok(Status(status)),
                    _ => Err(E::invalid_value(de::Unexpected::Unsigned(number), &self)),
                }
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Status, E> {
                match text.parse() {
                    Ok(number) => self.visit_u64(number),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(Number)
    }
}

/// A map with exactly one key: the name of a plugin or a destination, and its settings.
#[derive(Debug, Clone)]
pub struct One {
    /// The name.
    pub name: String,
    /// The settings, decoded by who answers to the name.
    pub value: serde_yaml::Value,
}

impl<'de> Deserialize<'de> for One {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Single;
        impl<'de> Visitor<'de> for Single {
            type Value = One;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map with exactly one key")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<One, A::Error> {
                let Some((name, value)) = map.next_entry::<String, serde_yaml::Value>()? else {
                    return Err(de::Error::custom("this map is empty; it takes exactly one key"));
                };
                if let Some(second) = map.next_key::<String>()? {
                    return Err(de::Error::custom(format!(
                        "this map takes exactly one key and has `{name}` and `{second}`"
                    )));
                }
                Ok(One { name, value })
            }
        }
        deserializer.deserialize_map(Single)
    }
}

/// Filled in by [`super::schema`], which knows all plugins.
fn plugin_list(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": ["array", "null"], "items": { "$ref": "#/definitions/Plugin" } })
}

fn destination(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "$ref": "#/definitions/Destination" })
}
