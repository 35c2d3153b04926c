//! HTTP/2 in clear text beside HTTP/1.1: curl, Node's own client, and frames by hand where a client would not send them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Client, Headwall, Origin, PATIENCE, Process, TempFile, free_port, root, run, wait_until};

const CACHED: &str = "routes: [{ to: { proxy: app }, cache: {} }]";
const PLAIN: &str = "routes: [{ to: { proxy: app } }]";

/// What Node's client got back.
struct Reply(Value);

impl Reply {
    fn status(&self) -> u64 {
        self.0["status"].as_u64().unwrap()
    }

    fn field(&self, name: &str) -> &str {
        self.0["headers"][name].as_str().unwrap_or("")
    }

    fn cache(&self) -> &str {
        self.field("cache-status")
    }

    fn text(&self) -> &str {
        self.0["content"].as_str().unwrap()
    }

    /// Whole, with this status.
    fn whole(self, status: u64) -> Self {
        assert!(self.status() == status && self.0["reset"] == 0 && self.0["ended"] == true, "{status}: {:#}", self.0);
        self
    }
}

fn node(proxy: &Headwall, order: &str, requests: &[Value]) -> Vec<Reply> {
    let list = Value::from(requests.to_vec()).to_string();
    let (code, out, told) =
        run(Command::new("node").arg(root("tests/e2e/h2.js")).args([&proxy.address.port().to_string(), order, &list]));
    assert_eq!(code, 0, "{told}");
    let mut answer: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("node said {out:?} {told}"));
    let Value::Array(results) = answer["results"].take() else { panic!("{answer}") };
    results.into_iter().map(Reply).collect()
}

fn ask(proxy: &Headwall, method: &str, target: &str, fields: Value) -> Reply {
    let mut headers = json!({ ":method": method, ":path": target });
    headers.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    node(proxy, "together", &[json!({ "headers": headers })]).pop().unwrap()
}

fn get(proxy: &Headwall, target: &str) -> Reply {
    ask(proxy, "GET", target, json!({}))
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const WINDOW: u8 = 8;
/// Flags: the end of a stream, of a head.
const END: u8 = 1;
const WHOLE: u8 = 4;

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Frame {
    /// The code of a reset, or of a farewell.
    fn code(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }
}

/// A client that writes frames.
struct Frames(TcpStream);

impl Frames {
    fn to(proxy: &Headwall) -> Self {
        Self::with_window(proxy, 65_535)
    }

    /// With so much room for each response.
    fn with_window(proxy: &Headwall, window: u32) -> Self {
        let mut frames = Frames(Client::to(proxy.address).tcp);
        frames.0.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        frames.send(SETTINGS, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat());
        frames
    }

    /// Whether it could be written.
    fn try_send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.0.write_all(&frame).is_ok()
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        assert!(self.try_send(kind, flags, stream, payload));
    }

    fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
        let text = |text: &str| {
            assert!(text.len() < 127);
            [&[text.len() as u8], text.as_bytes()].concat()
        };
        fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
    }

    fn request(&mut self, stream: u32, method: &str, target: &str, more: &[(&str, &str)], end: bool) {
        let mut fields = vec![(":method", method), (":scheme", "http"), (":path", target), (":authority", "site.test")];
        fields.extend(more);
        self.send(HEADERS, WHOLE | if end { END } else { 0 }, stream, &Self::fields(&fields));
    }

    /// The next frame; none when the connection is over.
    fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).ok()?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        self.0.read_exact(&mut payload).ok()?;
        let (kind, flags) = (head[3], head[4]);
        let stream = u32::from_be_bytes(head[5..9].try_into().unwrap());
        if kind == SETTINGS && flags & 1 == 0 {
            self.try_send(SETTINGS, 1, 0, &[]);
        }
        if kind == 6 && flags & 1 == 0 {
            self.try_send(6, 1, 0, &payload);
        }
        Some(Frame { kind, flags, stream, payload })
    }

    /// The next frame of this kind.
    fn wait_for(&mut self, kind: u8) -> Frame {
        loop {
            let frame = self.next().unwrap_or_else(|| panic!("closed before a frame of kind {kind}"));
            if frame.kind == kind {
                return frame;
            }
        }
    }
}

/// What an HTTP/1 server was sent on one connection, and what it answers.
fn record(answer: &'static [u8], requests: usize) -> (u16, std::thread::JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        let mut all = Vec::new();
        for _ in 0..requests {
            let (mut tcp, _) = listener.accept().unwrap();
            tcp.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut bytes = [0; 65536];
            while !all.ends_with(b"0\r\n\r\n") && !all.ends_with(b"last") {
                let read = tcp.read(&mut bytes).unwrap();
                assert!(read > 0, "it was cut: {:?}", String::from_utf8_lossy(&all));
                all.extend_from_slice(&bytes[..read]);
            }
            // A second terminator would be here by the time that the answer was.
            tcp.write_all(answer).unwrap();
            tcp.read_to_end(&mut all).unwrap();
        }
        all
    });
    (port, thread)
}

#[test]
fn a_page_is_the_same_for_clients_of_either() {
    let origin = Origin::start();
    let proxy = Headwall::either(&origin, CACHED);
    let target = "/page?say=0123456789&etag=1&h.Cache-Control=max-age=60";
    proxy.get(target).whole(200);
    let hit = get(&proxy, target).whole(200);
    assert_eq!(hit.text(), "0123456789");
    assert!(hit.cache().contains("hit"), "{}", hit.cache());
    let head = ask(&proxy, "HEAD", target, json!({})).whole(200);
    assert_eq!((head.field("content-length"), head.text()), ("10", ""));
    ask(&proxy, "GET", target, json!({ "if-none-match": "\"v1\"" })).whole(304);
    assert_eq!(ask(&proxy, "GET", target, json!({ "range": "bytes=2-4" })).whole(206).text(), "234");
    assert_eq!(
        ask(&proxy, "GET", target, json!({ "range": "bytes=10-" })).whole(416).field("content-range"),
        "bytes */10"
    );

    let other = "/page?other&h.Cache-Control=max-age=60";
    let stored = get(&proxy, other).whole(200);
    assert!(stored.cache().contains("stored"));
    let hit = proxy.get(other).whole(200);
    assert!(hit.cache().contains("hit"));
    assert_eq!(hit.text(), stored.text(), "its Host was the same");
    // The same host in other letters, and named the other way.
    let named = json!([{ "headers": { ":path": other, ":authority": "SITE.test", "host": "site.TEST" } }]);
    assert!(node(&proxy, "together", named.as_array().unwrap())[0].cache().contains("hit"));
    assert_eq!(origin.count("/page"), 2);
}

#[test]
fn each_kind_of_final_response_is_sealed_once() {
    let origin = Origin::start();
    let rest = r#"
plugins: [headers: { response: { add: { X-Seal: one } } }]
routes:
  - match: { prefix: /cache/ }
    to: { kv: {} }
  - match: { path: /old }
    to: { redirect: { to: "https://{host}/new{query}", status: 308 } }
  - match: { prefix: /dead }
    to: { proxy: dead }
  - match: { prefix: /app }
    to: { proxy: app }
    cache: { purge: { allow: [127.0.0.1/32] } }
"#;
    let upstreams = format!(
        "upstreams: {{ app: {{ servers: [\"127.0.0.1:{}\"] }}, dead: {{ servers: [\"127.0.0.1:{}\"] }} }}{rest}",
        origin.port,
        free_port()
    );
    let proxy = Headwall::either_with(&upstreams);
    let app = "/app?h.Cache-Control=max-age=60";
    for (method, target, fields, status) in [
        ("GET", app, json!({}), 200),
        ("GET", app, json!({}), 200),
        ("PURGE", app, json!({}), 200),
        ("GET", "/app/nothing?status=204", json!({}), 204),
        ("GET", "/old?a=b", json!({}), 308),
        ("GET", "/nowhere", json!({}), 404),
        ("GET", "/dead", json!({}), 502),
        ("GET", "/app", json!({ "cache-control": "only-if-cached" }), 504),
        ("GET", "/app", json!({ "host": "other.test" }), 400),
        ("GET", "/a%00b", json!({}), 400),
        ("GET", "/app", json!({ ":scheme": "ftp" }), 400),
        ("TRACE", "/app", json!({}), 405),
        ("GET", "/cache/none", json!({}), 404),
    ] {
        let reply = ask(&proxy, method, target, fields).whole(status);
        assert_eq!(reply.field("x-seal"), "one", "{method} {target}: {:#}", reply.0);
    }
    let put = json!([
        { "headers": { ":method": "PUT", ":path": "/cache/k", "content-type": "text/plain" }, "content": "value" },
        { "headers": { ":path": "/cache/k" } },
        { "headers": { ":method": "DELETE", ":path": "/cache/k" } },
    ]);
    let replies = node(&proxy, "in turn", put.as_array().unwrap());
    let words: Vec<_> = replies.iter().map(|reply| (reply.status(), reply.text(), reply.field("x-seal"))).collect();
    assert_eq!(words, [(201, "", "one"), (200, "value", "one"), (204, "", "one")]);
    assert_eq!(proxy.get("/cache/k").status, 404);

    let mut frames = Frames::to(&proxy);
    frames.send(HEADERS, WHOLE | END, 1, &Frames::fields(&[(":method", "CONNECT"), (":authority", "site.test:443")]));
    assert_ne!(frames.wait_for(HEADERS).payload[0], 0x88, "no tunnel");
    assert_eq!(proxy.metric("headwall_refused_total{reason=\"method\"}"), 2.0);
}

#[test]
fn what_a_request_must_not_be_never_reaches_the_origin() {
    let origin = Origin::start();
    let proxy = Headwall::either(&origin, PLAIN);
    let long = "x".repeat(120);
    let many: Vec<_> = (0..110).map(|_| ("x-a", "b")).collect();
    let large: Vec<_> = (0..300).map(|_| ("x-a", long.as_str())).collect();
    let plain = [(":method", "GET"), (":scheme", "http"), (":path", "/x"), (":authority", "site.test")];
    let with = |more: &[(&'static str, &'static str)]| [&plain[..], more].concat();
    let without = |name: &str| plain.iter().filter(|(field, _)| *field != name).copied().collect::<Vec<_>>();
    for (why, fields, answered) in [
        ("two hosts that differ", with(&[("host", "b.test")]), true),
        ("two lines of Host", with(&[("host", "site.test"), ("host", "site.test")]), true),
        ("no host at all", without(":authority"), true),
        ("no host but an empty one", [without(":authority"), vec![("host", "")]].concat(), true),
        ("a host with a path", [without(":authority"), vec![("host", "a/b")]].concat(), true),
        ("userinfo", [without(":authority"), vec![(":authority", "a@site.test")]].concat(), true),
        ("another scheme", [without(":scheme"), vec![(":scheme", "ftp")]].concat(), true),
        ("no scheme", without(":scheme"), false),
        ("no path", without(":path"), false),
        ("an empty path", [without(":path"), vec![(":path", "")]].concat(), false),
        ("an asterisk that is no OPTIONS", [without(":path"), vec![(":path", "*")]].concat(), true),
        ("a backslash", [without(":path"), vec![(":path", "/a\\b")]].concat(), true),
        ("a blank in the path", [without(":path"), vec![(":path", "/a b")]].concat(), false),
        ("a line break in the path", [without(":path"), vec![(":path", "/a\r\nx: y")]].concat(), false),
        ("a method in small letters", [without(":method"), vec![(":method", "get")]].concat(), true),
        ("two paths", with(&[(":path", "/y")]), false),
        ("a pseudo field behind another", [&[("x", "y")][..], &plain].concat(), false),
        ("a pseudo field that there is not", with(&[(":x", "y")]), false),
        ("an upper-case name", with(&[("X-A", "b")]), false),
        ("a line break in a value", with(&[("x", "a\r\nb: c")]), false),
        ("a zero byte in a value", with(&[("x", "a\0b")]), false),
        ("Connection", with(&[("connection", "close")]), false),
        ("Keep-Alive", with(&[("keep-alive", "1")]), false),
        ("Proxy-Connection", with(&[("proxy-connection", "close")]), false),
        ("Transfer-Encoding", with(&[("transfer-encoding", "chunked")]), false),
        ("Upgrade", with(&[("upgrade", "h2c")]), false),
        ("TE", with(&[("te", "gzip")]), false),
        ("two lengths", with(&[("content-length", "0"), ("content-length", "0")]), true),
        ("a length of no content", with(&[("content-length", "5")]), false),
        ("more than 100 fields", [&plain[..], &many].concat(), true),
        ("more than 32 KiB", [&plain[..], &large].concat(), true),
        (
            "an extended CONNECT",
            [without(":method"), vec![(":method", "CONNECT"), (":protocol", "websocket")]].concat(),
            false,
        ),
    ] {
        let mut frames = Frames::to(&proxy);
        let head = Frames::fields(&fields);
        let (first, rest) = head.split_at(head.len().min(16_000));
        let mut pieces = rest.chunks(16_000).peekable();
        frames.send(HEADERS, END | if pieces.peek().is_none() { WHOLE } else { 0 }, 1, first);
        while let Some(piece) = pieces.next() {
            frames.send(9, if pieces.peek().is_none() { WHOLE } else { 0 }, 1, piece);
        }
        let mut got = None;
        while got.is_none() {
            got = match frames.next() {
                // 200 has a number of its own; none of these is one.
                Some(frame) if frame.kind == HEADERS => Some(frame.payload[0] != 0x88),
                Some(frame) if matches!(frame.kind, RESET | GOAWAY) => Some(false),
                Some(_) => None,
                None => Some(false),
            };
        }
        assert_eq!(got, Some(answered), "{why}");
    }
    assert_eq!(origin.count("/"), 0, "{:?}", origin.requests("/"));
    let mut frames = Frames::to(&proxy);
    frames.request(1, "GET", "/fine", &[("te", "trailers")], true);
    assert_eq!(frames.wait_for(HEADERS).payload[0], 0x88);
}

#[test]
fn the_origin_gets_a_request_of_http_1() {
    let origin = Origin::start();
    let proxy = Headwall::either(&origin, CACHED);
    let request = json!([{ "headers": {
        ":path": "/page/x?y=z", "cookie": ["a=1", "b=2; c=3"], "x-forwarded-host": "evil.test", "x-forwarded-for": "1.2.3.4"
    } }]);
    node(&proxy, "together", request.as_array().unwrap()).pop().unwrap().whole(200);
    for (name, expected) in [
        ("host", Some("site.test")),
        ("cookie", Some("a=1; b=2; c=3")),
        ("x-forwarded-for", Some("127.0.0.1")),
        ("x-forwarded-host", Some("site.test")),
        ("x-forwarded-proto", Some("http")),
        ("via", Some("2.0 headwall")),
        ("transfer-encoding", None),
    ] {
        assert_eq!(origin.field("/page", name).as_deref(), expected, "{name}");
    }
    ask(&proxy, "OPTIONS", "*", json!({})).whole(200);
    assert_eq!(origin.count("*"), 1, "{:?}", origin.requests(""));
    // By hand, crumb by crumb: a cookie is looked at as one line by everybody.
    let mut frames = Frames::to(&proxy);
    frames.request(1, "GET", "/page/crumbs", &[("cookie", "a=1"), ("cookie", "b=2")], true);
    frames.wait_for(HEADERS);
    assert_eq!(origin.field("/page/crumbs", "cookie").as_deref(), Some("a=1; b=2"));
}

#[test]
fn content_arrives_whole_and_ends_once() {
    let origin = Origin::start();
    let proxy = Headwall::either(&origin, PLAIN);
    let replies = node(
        &proxy,
        "together",
        &[
            json!({ "headers": { ":method": "POST", ":path": "/upload?a" }, "content": "hello" }),
            json!({ "headers": { ":method": "POST", ":path": "/upload?b", "content-length": "5" }, "content": "hello" }),
            json!({ "headers": { ":method": "PUT", ":path": "/upload?c" }, "pieces": [300_000, 0, 300_000] }),
            json!({ "headers": { ":method": "POST", ":path": "/upload?d" }, "content": "hello", "trailers": { "x-sum": "1" } }),
            json!({ "headers": { ":method": "POST", ":path": "/upload?e" }, "content": "" }),
        ],
    );
    let words: Vec<_> = replies.iter().map(|reply| reply.text().split(' ').next().unwrap()).collect();
    assert_eq!(words, ["5", "5", "600000", "5", "0"]);

    // Every way in which a stream can end, and what an HTTP/1 server sees of it.
    type Ends<'a> = &'a dyn Fn(&mut Frames);
    let ways: [(&str, Ends<'_>); 4] = [
        ("with its last piece", &|frames| frames.send(DATA, END, 1, b"last")),
        ("with an empty piece", &|frames| {
            frames.send(DATA, 0, 1, b"last");
            frames.send(DATA, END, 1, b"");
        }),
        ("with empty pieces between", &|frames| {
            frames.send(DATA, 0, 1, b"");
            frames.send(DATA, 0, 1, b"la");
            frames.send(DATA, 0, 1, b"");
            frames.send(DATA, 0, 1, b"st");
            frames.send(DATA, END, 1, b"");
        }),
        ("with trailers", &|frames| {
            frames.send(DATA, 0, 1, b"last");
            frames.send(HEADERS, WHOLE | END, 1, &Frames::fields(&[("x-sum", "1")]));
        }),
    ];
    for (why, ends) in ways {
        for length in [None, Some(("content-length", "4"))] {
            let (port, recorded) = record(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 1);
            let proxy =
                Headwall::either_with(&format!("upstreams: {{ app: {{ servers: [\"127.0.0.1:{port}\"] }} }}\n{PLAIN}"));
            let mut frames = Frames::to(&proxy);
            frames.request(1, "POST", "/", length.as_slice(), false);
            ends(&mut frames);
            assert_eq!(frames.wait_for(HEADERS).payload[0], 0x88, "{why}");
            let sent = String::from_utf8(recorded.join().unwrap()).unwrap();
            let (head, content) = sent.split_once("\r\n\r\n").unwrap();
            let ends = content.matches("0\r\n\r\n").count();
            let expected = if length.is_some() { ("last", 0) } else { ("", 1) };
            assert_eq!(ends, expected.1, "{why}: {sent}");
            assert_eq!(head.to_lowercase().contains("transfer-encoding: chunked"), length.is_none(), "{why}: {sent}");
            if length.is_some() {
                assert_eq!(content, expected.0, "{why}");
            } else {
                assert!(content.ends_with("0\r\n\r\n") && !content.starts_with("0\r\n"), "{why}: {sent}");
            }
        }
    }
}

#[test]
fn content_that_is_not_as_long_as_it_says_is_no_request() {
    let origin = Origin::start();
    let proxy = Headwall::either(&origin, PLAIN);
    for (length, content) in [("0", "GET /smuggled HTTP/1.1\r\n\r\n"), ("3", "hello"), ("9", "hello")] {
        let mut frames = Frames::to(&proxy);
        frames.request(1, "POST", "/upload", &[("content-length", length)], false);
        frames.send(DATA, END, 1, content.as_bytes());
        let reset = loop {
            let frame = frames.next().unwrap();
            assert_ne!(frame.kind, HEADERS, "{length} for {content}");
            if matches!(frame.kind, RESET | GOAWAY) {
                break frame;
            }
        };
        assert_eq!(reset.code(), 1, "a protocol error");
    }
    assert!(origin.requests("/").iter().all(|request| request["url"] == "/upload"));
    assert!(origin.requests("/upload").iter().all(|request| request["headers"]["content-length"] != "0"));
}

#[test]
fn interim_responses_pass_and_expect_is_answered() {
    let origin = Origin::start();
    for routes in [PLAIN, CACHED] {
        let proxy = Headwall::either(&origin, routes);
        let hints = get(&proxy, "/hints").whole(200);
        assert_eq!((hints.text(), hints.0["interim"].clone()), ("final", json!([103])), "{routes}");
        let both = get(&proxy, "/both").whole(200);
        assert_eq!((both.text(), both.0["interim"].clone()), ("ok", json!([103])), "{routes}");
    }
    let proxy =
        Headwall::either(&origin, "routes: [{ match: { prefix: /cache/ }, to: { kv: {} } }, { to: { proxy: app } }]");
    for target in ["/cache/k", "/upload"] {
        let mut frames = Frames::to(&proxy);
        frames.request(1, "PUT", target, &[("content-length", "4"), ("expect", "100-continue")], false);
        assert_eq!(frames.wait_for(HEADERS).flags & END, 0, "{target}: to go on is not the answer");
        frames.send(DATA, END, 1, b"last");
        frames.wait_for(HEADERS);
    }
    assert_eq!(proxy.get("/cache/k").whole(200).text(), "last");
    // An answer before the content is all there ends the stream, not the connection.
    let mut frames = Frames::to(&proxy);
    frames.request(1, "PUT", "/early", &[("content-length", "1000000")], false);
    frames.wait_for(HEADERS);
    frames.request(3, "GET", "/page", &[], true);
    assert_eq!(frames.wait_for(HEADERS).stream, 3);
}

#[test]
fn an_event_is_there_when_it_is_sent() {
    let origin = Origin::start();
    for routes in [PLAIN, CACHED] {
        let proxy = Headwall::either(&origin, routes);
        for cc in ["no-cache", "max-age=60"] {
            let mut frames = Frames::to(&proxy);
            frames.request(1, "GET", &format!("/told?cc={cc}"), &[], true);
            assert_eq!(frames.wait_for(HEADERS).payload[0], 0x88);
            for event in ["first", "second", "third"] {
                origin.tell(event);
                assert_eq!(frames.wait_for(DATA).payload, format!("data: {event}\n\n").as_bytes(), "{routes} {cc}");
            }
            // The stream ends, the connection stays; the origin learns of it.
            frames.send(RESET, 0, 1, &8u32.to_be_bytes());
            origin.wait_closed("/told");
            frames.request(3, "GET", "/page", &[], true);
            assert_eq!(frames.wait_for(HEADERS).stream, 3);
        }
    }
}

#[test]
fn an_origin_that_does_not_answer_is_a_504_and_one_that_stops_is_cut() {
    let origin = Origin::start();
    for routes in [PLAIN, CACHED] {
        let with = |timeouts: &str| {
            let server = format!("servers: [\"127.0.0.1:{}\"], timeouts: {{ {timeouts} }}", origin.port);
            Headwall::either_with(&format!("upstreams: {{ app: {{ {server} }} }}\n{routes}"))
        };
        let proxy = with("first_byte: 300ms, read: 30s");
        let together = node(
            &proxy,
            "together",
            &[
                json!({ "headers": { ":path": "/hang" } }),
                json!({ "headers": { ":path": "/chunks?pieces=a%20b&pace=600" } }),
                json!({ "headers": { ":path": "/page?say=fine" } }),
            ],
        );
        let words: Vec<_> = together.iter().map(|reply| (reply.status(), reply.text())).collect();
        assert!(words[0].0 == 504 && words[0].1.contains("did not answer in time"), "{routes}: {words:?}");
        assert_eq!(words[1..], [(200, "ab"), (200, "fine")], "{routes}: each stream has deadlines of its own");
        origin.wait_closed("/hang");

        let proxy = with("first_byte: 30s, read: 300ms");
        for target in ["/chunks?pieces=a%20b&pace=60000", "/chunks?pieces=a%20b&pace=60000&h.Cache-Control=max-age=60"]
        {
            let cut = get(&proxy, target);
            assert!(cut.status() == 200 && cut.0["reset"] != 0, "{routes} {target}: {:#}", cut.0);
        }
        for target in ["/broken?sized=1", "/broken", "/broken?h.Cache-Control=max-age=60"] {
            let cut = get(&proxy, target);
            assert!(cut.status() == 200 && cut.0["reset"] == 2, "{routes} {target}: {:#}", cut.0);
        }
    }
}

#[test]
fn a_leader_that_opens_no_window_holds_nobody_up() {
    let origin = Origin::start();
    let proxy = Headwall::either(
        &origin,
        "cache: { memory: 256MiB, max_object: 64MiB, max_unsized: 64MiB, fills: 64MiB }\nroutes: [{ to: { proxy: app }, cache: {} }]",
    );
    for query in ["sized=1", "chunked=1"] {
        let target = format!("/bytes?size={}&{query}&wait=200&h.Cache-Control=max-age=60", 8 << 20);
        let mut leader = Frames::with_window(&proxy, 0);
        leader.request(1, "GET", &target, &[], true);
        wait_until(|| origin.count(&target) == 1);
        let joined = crate::support::together(5, |_| proxy.get(&target).whole(200).content.len());
        assert_eq!(joined, [8 << 20; 5], "{query}");
        assert_eq!(origin.count(&target), 1, "{query}");
    }
    // A leader that takes what comes leads clients of HTTP/1, and the other way round.
    let target = "/chunks?pieces=a%20b%20c%20d&pace=150&h.Cache-Control=max-age=60";
    let mut leader = Frames::to(&proxy);
    leader.request(1, "GET", target, &[], true);
    leader.wait_for(DATA);
    let joiner = proxy.get(target).whole(200);
    assert!(joiner.cache().contains("collapsed"), "{}", joiner.cache());
    assert_eq!(joiner.text(), "abcd");
}

#[test]
fn a_slow_reader_holds_the_origin_back() {
    let origin = Origin::start();
    let proxy = Headwall::either(&origin, CACHED);
    for query in ["sized=1&h.Cache-Control=no-store", "h.Cache-Control=no-store", "h.Cache-Control=max-age=60"] {
        let target = format!("/bytes?size={}&{query}", 64 << 20);
        let mut frames = Frames::with_window(&proxy, 1 << 16);
        frames.request(1, "GET", &target, &[], true);
        frames.wait_for(DATA);
        let (mut before, mut since) = (0, std::time::Instant::now());
        while since.elapsed() < Duration::from_millis(400) {
            let now = origin.sent(&target);
            if now != before {
                (before, since) = (now, std::time::Instant::now());
            }
        }
        assert!(before < 24 << 20, "{query}: the origin had sent {} MiB", before >> 20);
        frames.send(WINDOW, 0, 0, &(1u32 << 20).to_be_bytes());
        frames.send(WINDOW, 0, 1, &(1u32 << 20).to_be_bytes());
        let mut more = 0;
        while more < 512 << 10 {
            more += frames.wait_for(DATA).payload.len();
        }
    }
}

#[test]
fn who_is_silent_or_slow_is_cut_and_disturbs_nobody() {
    let origin = Origin::start();
    let routes = "routes: [{ match: { prefix: /cache/ }, to: { kv: {} } }, { to: { proxy: app }, cache: {} }]";
    let limited = |limits: &str| Headwall::either(&origin, &format!("limits: {{ {limits} }}\n{routes}"));

    // Nothing, a part of the preface, and a connection of HTTP/2 on which nothing is asked.
    let proxy = limited("head_timeout: 300ms");
    for start in ["", "PRI * HTT", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut client = proxy.client();
        client.send(start);
        while client.more() > 0 {}
    }
    assert_eq!(proxy.metric("headwall_refused_total{reason=\"slow-head\"}"), 1.0);

    // Content that does not come, and content that stops coming.
    let proxy = limited("content_grace: 300ms");
    for target in ["/upload", "/cache/k"] {
        for first in ["", "some"] {
            let mut frames = Frames::to(&proxy);
            frames.request(1, "PUT", target, &[], false);
            if !first.is_empty() {
                frames.send(DATA, 0, 1, first.as_bytes());
            }
            assert_ne!(frames.wait_for(HEADERS).payload[0], 0x88, "{target}");
            frames.request(3, "GET", "/page", &[], true);
            loop {
                let head = frames.wait_for(HEADERS);
                if head.stream == 3 {
                    break assert_eq!(head.payload[0], 0x88, "the connection goes on");
                }
            }
        }
        assert_eq!(ask(&proxy, "PUT", target, json!({ "content-length": "4" })).status(), 408, "{target}");
    }
    assert_eq!(proxy.metric("headwall_refused_total{reason=\"slow-content\"}"), 6.0);
    assert_eq!(proxy.get("/cache/k").status, 404);

    // A window that never opens; another stream is not disturbed.
    let proxy = limited("read_grace: 300ms");
    let big = "/bytes?size=3000000&sized=1&h.Cache-Control=max-age=60";
    for target in [big, big, "/bytes?size=3000000&h.Cache-Control=no-store"] {
        let mut frames = Frames::with_window(&proxy, 0);
        frames.request(1, "GET", target, &[], true);
        frames.wait_for(HEADERS);
        let cut = frames.wait_for(RESET);
        assert_eq!((cut.stream, cut.code()), (1, 8), "{target}");
        frames.request(3, "HEAD", "/page", &[], true);
        assert_eq!(frames.wait_for(HEADERS).stream, 3);
    }
    assert_eq!(proxy.metric("headwall_refused_total{reason=\"slow-reader\"}"), 3.0);

    // Nothing is asked any more, and as much as may be asked on one connection.
    for limits in ["idle: 300ms", "requests_per_connection: 2"] {
        let proxy = limited(limits);
        let mut frames = Frames::to(&proxy);
        frames.request(1, "GET", "/page", &[], true);
        frames.request(3, "GET", "/page", &[], true);
        let rest: Vec<_> = std::iter::from_fn(|| frames.next()).collect();
        let answered = rest.iter().filter(|frame| frame.kind == HEADERS && frame.payload[0] == 0x88).count();
        let told = rest.iter().filter(|frame| frame.kind == GOAWAY && frame.code() == 0).count();
        assert!(answered == 2 && told > 0, "{limits}: {answered} {told}");
    }
}

#[test]
fn who_changes_its_mind_all_the_time_is_told_to_calm_down() {
    let origin = Origin::start();
    let proxy = Headwall::either(&origin, CACHED);
    // By itself, and by making us do it: a window that grows past what it may be is an error of its stream.
    for (kind, word) in [(RESET, 8u32), (WINDOW, 0x7fff_ffff)] {
        let mut frames = Frames::to(&proxy);
        let mut stream = 1;
        // One after the other, so that each one really is an exchange; no limit on frames that wait would see them.
        let told = 'asking: loop {
            assert!(stream < 300, "nobody minded");
            let target = format!("/hang?{kind}&{stream}");
            let fields =
                [(":method", "GET"), (":scheme", "http"), (":path", target.as_str()), (":authority", "site.test")];
            frames.try_send(HEADERS, WHOLE | END, stream, &Frames::fields(&fields));
            // It is answered in order: what comes back says that the request was seen.
            frames.try_send(6, 0, 0, &[0; 8]);
            loop {
                match frames.next() {
                    Some(frame) if frame.kind == GOAWAY => break 'asking Some(frame.code()),
                    Some(frame) if frame.kind == 6 => break,
                    Some(_) => {}
                    // What is said to who goes on sending may be lost.
                    None => break 'asking None,
                }
            }
            frames.try_send(kind, 0, stream, &word.to_be_bytes());
            stream += 2;
        };
        assert!(matches!(told, None | Some(11)), "{told:?}");
        assert!(stream > 180, "{stream}: a few are nobody's matter");
    }
    origin.wait_closed("/hang");
    assert_eq!(get(&proxy, "/page").status(), 200);
}

#[test]
fn short_and_odd_beginnings_are_http_1() {
    let origin = Origin::start();
    let proxy = Headwall::either(&origin, PLAIN);
    for (head, version) in [
        ("GET / HTTP/1.0\r\n\r\n", "HTTP/1.0"),
        ("PUT / HTTP/1.0\r\n\r\n", "HTTP/1.0"),
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1"),
    ] {
        let mut client = proxy.client();
        client.send(head);
        assert_eq!(client.head().status, 200, "{head} {version}");
    }
    // In pieces, as slow as they come.
    let mut client = proxy.client();
    for byte in "GET /page HTTP/1.1\r\nHost: site.test\r\n\r\n".as_bytes() {
        client.send_bytes(&[*byte]);
    }
    assert_eq!(client.response("GET").status, 200);
    let mut frames = Frames(Client::to(proxy.address).tcp);
    for byte in b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" {
        frames.0.write_all(&[*byte]).unwrap();
    }
    frames.send(SETTINGS, 0, 0, &[]);
    frames.request(1, "GET", "/page", &[], true);
    assert_eq!(frames.wait_for(HEADERS).payload[0], 0x88);
    // Almost a preface is a request that cannot be.
    let mut client = proxy.client();
    client.send("PRI * HTTP/2.0\r\n\r\nSN\r\n\r\n");
    assert!(matches!(client.head().status, 0 | 400 | 505));
    assert!(client.closed());
}

#[test]
fn other_listeners_do_not_speak_it() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, PLAIN);
    let mut client = proxy.client();
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    let mut answer = Vec::new();
    let _ = client.tcp.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"), "{:?}", String::from_utf8_lossy(&answer));
    assert_eq!(origin.count("/"), 0);
}

#[test]
fn what_is_coded_and_what_is_refreshed_behind_comes_as_for_http_1() {
    let origin = Origin::start();
    let proxy = Headwall::either(
        &origin,
        "routes: [{ to: { proxy: app }, cache: { slice: 64KiB }, plugins: [compress: { types: [text/plain] }] }]",
    );
    let text = "abcdefghij".repeat(400);
    let target = format!("/page?say={text}&h.Content-Type=text/plain&h.Cache-Control=max-age=60");
    for word in ["stored", "hit"] {
        let coded = ask(&proxy, "GET", &target, json!({ "accept-encoding": "gzip" })).whole(200);
        assert_eq!(coded.field("content-encoding"), "gzip");
        assert!(coded.text().len() < text.len() / 10 && coded.cache().contains(word), "{:#}", coded.0);
    }
    // A refresh that nobody waits for is begun with what HTTP/2 brought.
    let target = "/page?behind&h.Cache-Control=max-age=1,stale-while-revalidate=60";
    get(&proxy, target).whole(200);
    proxy.clock.advance(Duration::from_secs(2));
    assert!(get(&proxy, target).whole(200).cache().contains("hit"));
    wait_until(|| origin.count("/page?behind") == 2);
    assert_eq!(origin.field("/page?behind", "host").as_deref(), Some("site.test"));
    // Who has the token is told why.
    let told = "admin: { listen: \"[::1]:0\", token: a-token-of-the-operator }";
    let text = format!("upstreams: {{ app: {{ servers: [\"127.0.0.1:{}\"] }} }}\n{CACHED}", origin.port);
    let explaining = Headwall::either_with(&format!("{told}\n{text}"));
    let asks = json!({ "x-headwall-explain": "1", "x-headwall-token": "a-token-of-the-operator" });
    let why = ask(&explaining, "GET", "/page?why", asks).whole(200);
    assert!(why.field("headwall-explain").contains("rule=no-freshness"), "{:#}", why.0);
    // So are slices.
    let target = "/file?size=300000&h.Cache-Control=max-age=60";
    let part = ask(&proxy, "GET", target, json!({ "range": "bytes=60000-199999" })).whole(206);
    assert_eq!(part.text().len(), 140_000);
    assert!(proxy.ask("GET", target, "Range: bytes=70000-79999\r\n").whole(206).cache().contains("hit"));
}

#[test]
fn curl_is_served_logged_and_drained() {
    let origin = Origin::start();
    let (port, log) = (free_port(), TempFile::new("h2.log", ""));
    let config = TempFile::new(
        "h2.yaml",
        &format!(
            "listen: [{{ bind: \"127.0.0.1:{port}\", h2c: true }}]\nlog: {{ access: {{ file: {:?} }} }}\nupstreams: {{ app: {{ servers: [\"127.0.0.1:{}\"] }} }}\n{CACHED}\n",
            log.path(),
            origin.port
        ),
    );
    let mut process = Process::start(&["run", "--config", config.path()]).ready(port);
    let curl = |more: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["-s", "-m", "15", "-w", " %{http_code} %{http_version}"]).args(more);
        command
    };
    let url = |target: &str| format!("http://127.0.0.1:{port}{target}");
    let page = url("/page?say=hello&h.Cache-Control=max-age=60");
    for (version, said) in [("--http2-prior-knowledge", "hello 200 2"), ("--http1.1", "hello 200 1.1")] {
        assert_eq!(run(curl(&[version]).arg(&page)).1, said);
    }
    // What runs when the end is told is finished; what is idle is told to go.
    let slow = curl(&["--http2-prior-knowledge"])
        .arg(url("/chunks?pieces=a%20b%20c%20d&pace=300"))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut idle = Frames(TcpStream::connect(("127.0.0.1", port)).unwrap());
    idle.0.set_read_timeout(Some(PATIENCE)).unwrap();
    idle.0.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    idle.send(SETTINGS, 0, 0, &[]);
    idle.request(1, "GET", "/page", &[], true);
    idle.wait_for(HEADERS);
    wait_until(|| origin.count("/chunks") == 1);
    process.signal("TERM");
    assert_eq!(idle.wait_for(GOAWAY).code(), 0);
    while idle.next().is_some() {}
    let slow = slow.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&slow.stdout), "abcd 200 2");
    assert_eq!(process.exit_code(), 0);
    let lines = std::fs::read_to_string(&log.0).unwrap();
    assert!(lines.contains(" HTTP/2.0\" 200 5 ") && lines.contains(" HTTP/1.1\" 200 5 "), "{lines}");
}

#[test]
fn the_example_of_the_page_is_a_configuration() {
    let page = std::fs::read_to_string(root("docs/http2.md")).unwrap();
    let block = page.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let file = TempFile::new("page.yaml", &format!("{block}routes: [{{ to: {{ respond: {{}} }} }}]\n"));
    let (code, _, told) = run(Command::new(env!("CARGO_BIN_EXE_headwall")).args(["check", "--config", file.path()]));
    assert_eq!(code, 0, "{told}");
}
