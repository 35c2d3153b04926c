//! The built-in plugins end to end: what each does on a miss, a hit, an answer of the store and an error page.

use std::io::{Read, Write};
use std::time::Duration;

use crate::support::{Headwall, Origin, Response, together, wait_until};

/// A site with these plugins around everything: a store, a dead upstream, and the app with a cache.
fn site(origin: &Origin, around: &str, plugins: &str) -> Headwall {
    Headwall::start(&format!(
        "upstreams: {{ app: {{ servers: [\"127.0.0.1:{}\"] }}, dead: {{ servers: [\"127.0.0.1:1\"] }} }}\n{around}\nplugins: [{plugins}]\nroutes:\n  - match: {{ prefix: /cache/ }}\n    to: {{ kv: {{}} }}\n  - match: {{ path: /dead }}\n    to: {{ proxy: dead }}\n  - match: {{ prefix: /fresh/ }}\n    to: {{ proxy: app }}\n  - to: {{ proxy: app }}\n    cache: {{}}\n",
        origin.port
    ))
}

const TRUSTED: &str = "trust: { proxies: [127.0.0.0/8] }";
const PAGE: &str = "/page?say=hello&h.Cache-Control=max-age=60";

/// The same request in the four places where a response can come from: name, status, response.
fn everywhere(proxy: &Headwall, fields: &str) -> Vec<(&'static str, u16, Response)> {
    let mut client = proxy.client();
    client.request("PUT", "/cache/key", &format!("Content-Length: 5\r\n{fields}"));
    client.send("value");
    client.response("PUT");
    [("miss", PAGE, 200), ("hit", PAGE, 200), ("kv", "/cache/key", 200), ("error page", "/dead", 502)]
        .into_iter()
        .map(|(place, target, status)| (place, status, proxy.ask("GET", target, fields)))
        .collect()
}

/// What a response's content is without its content coding.
fn plain(reply: &Response) -> Vec<u8> {
    let (content, mut out) = (reply.content.as_slice(), Vec::new());
    match reply.field("content-encoding") {
        "gzip" => drop(flate2::read::GzDecoder::new(content).read_to_end(&mut out).unwrap()),
        "br" => drop(brotli::Decompressor::new(content, 4096).read_to_end(&mut out).unwrap()),
        "zstd" => out = zstd::decode_all(content).unwrap(),
        "" => out.extend_from_slice(content),
        other => panic!("{other}"),
    }
    out
}

#[test]
fn request_id_names_every_exchange() {
    let origin = Origin::start();
    let proxy = site(&origin, "", "{ request_id: }");
    let mut seen = std::collections::HashSet::new();
    for (place, status, reply) in everywhere(&proxy, "X-Request-Id: mine\r\n") {
        let id = reply.field("x-request-id").to_owned();
        assert!(reply.status == status && id.len() == 32 && seen.insert(id.clone()), "{place}: {id}");
        assert!(status != 502 || reply.text().contains(&id), "the error page names it");
    }
    assert_eq!(origin.field("/page", "x-request-id"), None, "what is stored does not know it");
    proxy.put("POST", "/upload", "X-Request-Id: mine\r\n", b"x").whole(200);
    assert_eq!(origin.field("/upload", "x-request-id").unwrap().len(), 32);
    // What was not storable may be the next time: the app is not told before it has said so.
    for status in [200, 200] {
        proxy.get("/later?h.Cache-Control=no-store").whole(status);
        assert_eq!(origin.field("/later", "x-request-id"), None);
    }

    let trusting = site(&origin, TRUSTED, "{ request_id: }");
    for (place, _, reply) in everywhere(&trusting, "X-Forwarded-For: 192.0.2.1\r\nX-Request-Id: edge-42\r\n") {
        assert_eq!(reply.field("x-request-id"), "edge-42", "{place}");
    }
    trusting.ask("GET", "/fresh/x", "X-Forwarded-For: 192.0.2.1\r\nX-Request-Id: edge-43\r\n").whole(200);
    assert_eq!(origin.field("/fresh/x", "x-request-id").as_deref(), Some("edge-43"));
}

#[test]
fn cors_speaks_to_each_origin_in_every_place() {
    let origin = Origin::start();
    let proxy = site(&origin, "", "{ cors: { origins: [\"https://a.test\", \"https://b.test\"], methods: [PUT] } }");
    for asks in ["https://a.test", "https://b.test", "https://evil.test"] {
        for (place, status, reply) in everywhere(&proxy, &format!("Origin: {asks}\r\n")) {
            assert_eq!(reply.status, status, "{place}");
            let allowed = if asks.contains("evil") { "" } else { asks };
            assert_eq!(reply.field("access-control-allow-origin"), allowed, "{place}");
            assert_eq!(reply.field("vary"), "origin", "{place}");
        }
    }
    assert_eq!(origin.count(PAGE), 1, "one stored response for all origins");
    for target in ["/cache/key", "/page", "/dead"] {
        let ask = |from: &str| {
            proxy.ask("OPTIONS", target, &format!("Origin: {from}\r\nAccess-Control-Request-Method: PUT\r\n"))
        };
        assert_eq!(ask("https://a.test").whole(204).field("access-control-allow-methods"), "PUT");
        assert_eq!(ask("https://evil.test").status, 403);
    }
    assert_eq!(origin.count("/page"), 1, "preflights are answered here");
    let echo = "/echo?h.Access-Control-Allow-Origin=https://evil.test&h.Cache-Control=max-age=60";
    assert!(!proxy.get(echo).has("access-control-allow-origin"), "the app's own word is replaced");
}

const TEXT: &str = "/bytes?size=300000&h.Content-Type=text/css&h.ETag=%22a%22&h.Cache-Control=max-age=60";

#[test]
fn compress_keeps_one_response_and_one_copy_for_each_coding() {
    let origin = Origin::start();
    let proxy = site(&origin, "", "{ compress: }");
    for coding in ["gzip", "br", "zstd"] {
        let ask =
            |method: &str, fields: &str| proxy.ask(method, TEXT, &format!("Accept-Encoding: {coding}\r\n{fields}"));
        let first = ask("GET", "").whole(200);
        let second = ask("GET", "").whole(200);
        wait_until(|| ask("GET", "").framing == "length");
        let third = ask("GET", "").whole(200);
        for reply in [&first, &second, &third] {
            assert_eq!(plain(reply), [b'x'; 300_000], "{coding}");
            assert_eq!(
                (reply.field("content-encoding"), reply.field("etag"), reply.field("vary")),
                (coding, "W/\"a\"", "accept-encoding")
            );
        }
        assert_eq!(third.framing, "length", "the copy is there, and so is its length");
        assert_eq!(second.content, third.content);
        let head = ask("HEAD", "").whole(200);
        assert_eq!(
            (head.field("content-encoding"), head.field("content-length")),
            (coding, third.field("content-length"))
        );
        let same = ask("GET", "If-None-Match: W/\"a\"\r\n").whole(304);
        assert_eq!((same.field("etag"), same.field("vary")), ("W/\"a\"", "accept-encoding"));
        let part = ask("GET", "Range: bytes=0-9\r\n").whole(206);
        assert_eq!((part.text().as_str(), part.has("content-encoding")), ("xxxxxxxxxx", false));
        assert_eq!((part.field("etag"), part.field("vary")), ("\"a\"", "accept-encoding"));
        let whole = ask("GET", "Range: bytes=0-9\r\nIf-Range: W/\"a\"\r\n").whole(200);
        assert_eq!(plain(&whole).len(), 300_000, "a weak tag says nothing of parts");
    }
    let unencoded = proxy.ask("GET", TEXT, "").whole(200);
    assert_eq!((unencoded.content.len(), unencoded.field("etag")), (300_000, "\"a\""));
    assert_eq!((unencoded.field("vary"), unencoded.has("content-encoding")), ("accept-encoding", false));
    for (accept, coding) in [
        ("gzip;q=0.5, br;q=0.1", "gzip"),
        ("identity;q=0", ""),
        ("identity;q=0, *;q=0.1", "br"),
        ("br;q=0, gzip;q=0, zstd;q=0", ""),
    ] {
        let reply = proxy.ask("GET", TEXT, &format!("Accept-Encoding: {accept}\r\n")).whole(200);
        assert_eq!((reply.field("content-encoding"), plain(&reply).len()), (coding, 300_000), "{accept}");
    }
    assert_eq!(origin.count("/bytes"), 1, "the app was asked once");
}

#[test]
fn a_confirmed_response_keeps_its_copies() {
    let origin = Origin::start();
    let proxy = site(&origin, "", "{ compress: { codings: [gzip] } }");
    let say = "0123456789".repeat(200);
    let target = format!("/page?etag=1&say={say}&h.Content-Type=text/html&h.Cache-Control=max-age=60");
    let ask = || proxy.ask("GET", &target, "Accept-Encoding: gzip\r\n").whole(200);
    ask();
    ask();
    let before = ask();
    proxy.clock.advance(Duration::from_secs(61));
    let confirmed = ask();
    assert!(confirmed.cache().contains("fwd-status=304"), "{}", confirmed.cache());
    assert_eq!((confirmed.framing, &confirmed.content), ("length", &before.content), "the copy is still there");
    assert_eq!((plain(&confirmed), confirmed.field("etag")), (say.into_bytes(), "W/\"v1\""));
    proxy.put("POST", &target, "", b"new").whole(200);
    let changed = ask();
    assert_eq!((changed.field("etag"), changed.cache().contains("stored")), ("W/\"v2\"", true));
}

#[test]
fn compress_makes_a_copy_once_for_many() {
    let origin = Origin::start();
    let proxy = site(&origin, "", "{ compress: { codings: [gzip] } }");
    let target = "/bytes?size=4000000&sized=1&h.Content-Type=text/css&h.Cache-Control=max-age=60";
    proxy.get(target).whole(200);
    let before = stored_bytes(&proxy);
    let replies = together(20, |_| proxy.ask("GET", target, "Accept-Encoding: gzip\r\n").whole(200));
    assert!(replies.iter().all(|reply| reply.content == replies[0].content));
    wait_until(|| stored_bytes(&proxy) > before);
    let copy = stored_bytes(&proxy) - before;
    let length = replies[0].content.len() as f64;
    assert!((length..length + 4096.0).contains(&copy), "one copy of {length} in the store's memory: {copy}");
    proxy.clock.advance(Duration::from_secs(61));
    let again = proxy.ask("GET", target, "Accept-Encoding: gzip\r\n").whole(200);
    assert_eq!(plain(&again).len(), 4_000_000, "a new response has no copy yet");
}

fn stored_bytes(proxy: &Headwall) -> f64 {
    proxy.metric("headwall_cache_bytes")
}

#[test]
fn a_copy_is_made_whole_however_its_page_is_confirmed() {
    let origin = Origin::start();
    let proxy = site(&origin, "", "{ compress: { codings: [gzip] } }");
    let say = "0123456789".repeat(300);
    for number in 0..40 {
        let target = format!("/page?n={number}&etag=1&say={say}&h.Content-Type=text/html&h.Cache-Control=max-age=1");
        proxy.get(&target).whole(200);
        proxy.clock.advance(Duration::from_secs(2));
        let confirmed = proxy.ask("GET", &target, "Accept-Encoding: gzip\r\n").whole(200);
        assert!(confirmed.cache().contains("fwd-status=304"), "{}", confirmed.cache());
        assert_eq!(plain(&confirmed), say.as_bytes(), "{number}");
    }
}

#[test]
fn who_joins_shares_a_copy_and_the_store_keeps_it() {
    let origin = Origin::start();
    let proxy = site(&origin, "", "{ compress: }");
    for (number, target) in
        ["/chunks?pieces=a%20b%20c&pace=100", "/bytes?size=300000&sized=1&wait=300"].iter().enumerate()
    {
        let target = format!("{target}&h.Content-Type=text/css&h.Cache-Control=max-age=60");
        let replies = together(24, |client| {
            let coding = ["gzip", "br", "zstd", "identity"][client % 4];
            proxy.ask("GET", &target, &format!("Accept-Encoding: {coding}\r\n")).whole(200)
        });
        let whole = plain(&replies[3]);
        assert!(replies.iter().all(|reply| plain(reply) == whole), "{target}");
        let framed = |reply: &Response| reply.has("content-length") != reply.has("transfer-encoding");
        assert!(replies.iter().all(framed), "{target}: one framing each");
        assert_eq!(origin.count(&target[..12]), 1, "{target}");
        if number == 1 {
            for coding in ["gzip", "br", "zstd"] {
                let ask = || proxy.ask("GET", &target, &format!("Accept-Encoding: {coding}\r\n")).whole(200);
                assert_eq!(plain(&ask()), whole, "{coding}");
                wait_until(|| ask().framing == "length");
            }
        }
    }
}

#[test]
fn a_page_without_room_for_its_copy_stays_stored() {
    let origin = Origin::start();
    let proxy =
        site(&origin, "cache: { memory: 1MiB, max_object: 1MiB, max_unsized: 1MiB, fills: 4MiB }", "{ compress: }");
    let target = "/bytes?size=700000&sized=1&h.Content-Type=text/css&h.Cache-Control=max-age=60";
    proxy.get(target).whole(200);
    for coding in ["gzip", "identity", "br", "gzip", "identity"] {
        let reply = proxy.ask("GET", target, &format!("Accept-Encoding: {coding}\r\n")).whole(200);
        assert_eq!((reply.cache().contains("; hit"), plain(&reply).len()), (true, 700_000), "{coding}");
    }
    assert_eq!(origin.count("/bytes"), 1);
}

#[test]
fn the_app_is_asked_for_content_as_it_is() {
    let origin = Origin::start();
    let proxy = site(&origin, "", "{ compress: }");
    let target = "/page?echo=accept-encoding&h.Vary=Accept-Encoding&h.Cache-Control=max-age=60";
    for (coding, hit) in [("gzip", false), ("br;q=0.3, gzip", true), ("identity", true)] {
        let reply = proxy.ask("GET", target, &format!("Accept-Encoding: {coding}\r\n")).whole(200);
        assert_eq!((reply.text().as_str(), reply.cache().contains("; hit")), ("page v1 for identity", hit), "{coding}");
    }
    let date = "If-Range: Mon, 30 Nov 2026 00:00:00 GMT\r\nRange: bytes=5-\r\nAccept-Encoding: gzip\r\n";
    let dated =
        "/page?say=0123456789&h.Last-Modified=Mon,%2030%20Nov%202026%2000:00:00%20GMT&h.Cache-Control=max-age=60";
    proxy.get(dated).whole(200);
    let css = format!("{dated}&h.Content-Type=text/css");
    proxy.get(&css).whole(200);
    assert_eq!(proxy.ask("GET", &css, date).status, 200, "a date does not tell codings apart");
    assert_eq!(proxy.ask("GET", dated, date).status, 206, "where there are any");
    assert_eq!(proxy.ask("GET", dated, &date.replace("gzip", "identity")).status, 206);
}

#[test]
fn a_tunnel_is_no_content() {
    let origin = Origin::start();
    let proxy = site(&origin, "", "{ body_limit: { max: 10B } }, { compress: }");
    let mut client = proxy.client();
    client.request("GET", "/ws", "Connection: Upgrade\r\nUpgrade: websocket\r\nAccept-Encoding: gzip\r\n");
    assert_eq!(client.head().status, 101);
    assert_eq!(client.take(8), b"welcome ");
    for number in 0..10 {
        let message = format!("message {number} is longer than ten bytes");
        client.send(&message);
        assert_eq!(client.take(message.len()), message.as_bytes());
    }
}

#[test]
fn compress_lets_streams_flow_and_reads_values_right() {
    let origin = Origin::start();
    let proxy = site(&origin, "", "{ compress: { min_length: 16B } }");
    for coding in ["gzip", "br", "zstd"] {
        let mut client = proxy.client();
        client.request("GET", "/told", &format!("Accept-Encoding: {coding}\r\n"));
        let head = client.head();
        assert_eq!((head.field("content-encoding"), head.field("vary")), (coding, "accept-encoding"));
        let mut decoder: Box<dyn Decoder> = match coding {
            "gzip" => Box::new(flate2::write::GzDecoder::new(Vec::new())),
            "br" => Box::new(brotli::DecompressorWriter::new(Vec::new(), 4096)),
            _ => Box::new(zstd::stream::write::Decoder::new(Vec::new()).unwrap()),
        };
        // Each event is read whole before the next one is sent.
        for event in ["first", "second", "third"] {
            origin.tell(event);
            assert_eq!(decoder.decode(&client.chunk().unwrap()), format!("data: {event}\n\n"), "{coding}");
        }
        drop(client);
        origin.wait_closed("/told");
    }
    let value = "value ".repeat(100);
    proxy.put("PUT", "/cache/v", "Content-Type: text/plain\r\n", value.as_bytes()).whole(201);
    for coding in ["gzip", "br", "zstd", ""] {
        let reply = proxy.ask("GET", "/cache/v", &format!("Accept-Encoding: {coding}\r\n")).whole(200);
        assert_eq!((reply.field("content-encoding"), plain(&reply)), (coding, value.clone().into_bytes()));
        assert_eq!(reply.field("etag").starts_with("W/"), !coding.is_empty());
        let tag = format!("Accept-Encoding: {coding}\r\nIf-None-Match: {}\r\n", reply.field("etag"));
        proxy.ask("GET", "/cache/v", &tag).whole(304);
    }
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(value.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    proxy.put("PUT", "/cache/z", "Content-Type: text/plain\r\nContent-Encoding: gzip\r\n", &gzip).whole(201);
    let reply = proxy.ask("GET", "/cache/z", "Accept-Encoding: br\r\n").whole(200);
    assert_eq!((reply.field("content-encoding"), &reply.content), ("gzip", &gzip), "it was put so");
    for target in ["/fresh/x?h.Content-Type=text/css&say=0123456789abcdef", "/cache/v"] {
        let mut client = proxy.client();
        for _ in 0..2 {
            client.request("HEAD", target, "Accept-Encoding: gzip\r\n");
            let head = client.response("HEAD");
            assert_eq!((head.field("content-encoding"), head.has("content-length")), ("gzip", false), "{target}");
        }
        client.request("GET", "/fresh/x?say=after", "");
        assert_eq!(client.response("GET").whole(200).text(), "after", "{target}: a HEAD has no content");
    }
    let error = proxy.ask("GET", "/dead", "Accept-Encoding: gzip\r\n").whole(502);
    assert!(String::from_utf8(plain(&error)).unwrap().contains("Bad gateway"));
    assert_eq!((error.field("content-encoding"), error.field("vary")), ("gzip", "accept-encoding"));
}

trait Decoder: Write {
    fn taken(&mut self) -> &mut Vec<u8>;

    fn decode(&mut self, chunk: &[u8]) -> String {
        self.write_all(chunk).unwrap();
        self.flush().unwrap();
        String::from_utf8(std::mem::take(self.taken())).unwrap()
    }
}

impl Decoder for flate2::write::GzDecoder<Vec<u8>> {
    fn taken(&mut self) -> &mut Vec<u8> {
        self.get_mut()
    }
}

impl Decoder for brotli::DecompressorWriter<Vec<u8>> {
    fn taken(&mut self) -> &mut Vec<u8> {
        self.get_mut()
    }
}

impl Decoder for zstd::stream::write::Decoder<'static, Vec<u8>> {
    fn taken(&mut self) -> &mut Vec<u8> {
        self.get_mut()
    }
}

/// `name:password` of a user whose bcrypt hash is cheap on purpose.
const ADA: &str = "Authorization: Basic YWRhOmxvdmVsYWNl\r\n";

#[test]
fn basic_auth_stands_before_everything_and_shares_what_is_stored() {
    let origin = Origin::start();
    let hash = "$2y$04$9QrmsKBlbYCM3kLRcir/CO0s3nuiDDPv9KBlrWkE.ul5PNS.0eFoe";
    let proxy = site(&origin, "", &format!("{{ basic_auth: {{ users: {{ ada: \"{hash}\" }} }} }}"));
    for (place, status, reply) in everywhere(&proxy, ADA) {
        assert_eq!(reply.status, status, "{place}");
        assert_eq!(reply.cache().contains("; hit"), place == "hit", "{place}: {}", reply.cache());
    }
    assert_eq!(origin.field("/page", "authorization"), None);
    for fields in ["", "Authorization: Basic YWRhOndyb25n\r\n"] {
        for (place, _, reply) in everywhere(&proxy, fields) {
            assert_eq!((reply.status, reply.text().contains("hello")), (401, false), "{place}");
            assert_eq!(reply.field("www-authenticate"), "Basic realm=\"restricted\", charset=\"UTF-8\"");
            let word = if matches!(place, "miss" | "hit") { "headwall; detail=plugin" } else { "" };
            assert_eq!(reply.cache(), word, "{place}: nobody was asked");
        }
    }
    assert_eq!(origin.count("/page"), 1);
    // Wrong ones of many do not keep the right one out.
    let wrong = "Authorization: Basic YWRhOndyb25n\r\n";
    let statuses = together(20, |number| proxy.ask("GET", PAGE, if number == 7 { ADA } else { wrong }).status);
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1);
}

#[test]
fn rate_limit_counts_hits_and_all_else() {
    let origin = Origin::start();
    let proxy = site(&origin, TRUSTED, "{ rate_limit: { requests: 5, per: 1h } }");
    let one = "X-Forwarded-For: 127.0.0.2\r\n";
    for (left, (place, status, reply)) in (0..4).rev().zip(everywhere(&proxy, one)) {
        assert_eq!(reply.status, status, "{place}");
        assert!(reply.field("ratelimit").starts_with(&format!("\"default\";r={left};t=")), "{place}");
        assert_eq!(reply.field("ratelimit-policy"), "\"default\";q=5;w=3600", "{place}");
    }
    for (place, _, reply) in everywhere(&proxy, one) {
        assert!(reply.status == 429 && reply.field("retry-after").parse::<u64>().unwrap() <= 720, "{place}");
    }
    assert_eq!(proxy.ask("GET", PAGE, "X-Forwarded-For: 127.0.0.3\r\n").status, 200);
    proxy.clock.advance(Duration::from_secs(720));
    assert_eq!(proxy.ask("GET", PAGE, one).status, 200, "one in twelve minutes");
    assert_eq!(proxy.ask("GET", PAGE, one).status, 429);
    // What is remembered of clients can be seen, and what it may grow to.
    assert_eq!(proxy.metric("headwall_remembered_entries{what=\"plugins\"}"), 2.0);
    let bytes = proxy.metric("headwall_remembered_bytes{what=\"plugins\"}");
    assert!(bytes > 0.0 && bytes < proxy.metric("headwall_remembered_limit_bytes{what=\"plugins\"}"));
}

#[test]
fn ip_filter_looks_at_every_request() {
    let origin = Origin::start();
    let proxy = site(&origin, TRUSTED, "{ ip_filter: { allow: [192.0.2.0/24], deny: [192.0.2.66] } }");
    for (place, status, reply) in everywhere(&proxy, "X-Forwarded-For: 192.0.2.1\r\n") {
        // The store itself lets loopback in only.
        assert_eq!(reply.status, if place == "kv" { 403 } else { status }, "{place}");
    }
    for client in ["192.0.2.66", "198.51.100.1"] {
        for (place, _, reply) in everywhere(&proxy, &format!("X-Forwarded-For: {client}\r\n")) {
            assert_eq!((reply.status, reply.text().contains("may not come in")), (403, true), "{place} for {client}");
        }
    }
    assert_eq!(origin.count("/page"), 1);
}

#[test]
fn rewrite_changes_the_path_for_key_origin_and_store() {
    let origin = Origin::start();
    let rules = "[{ from: \"^/old/(.*)$\", to: /page/$1 }, { from: \"^/cache/v1/(.*)$\", to: /cache/$1 }, { from: \"^/cache/out$\", to: /elsewhere }]";
    let proxy = site(&origin, "", &format!("{{ rewrite: {{ rules: {rules} }} }}"));
    let fresh = "?h.Cache-Control=max-age=60";
    assert!(proxy.get(&format!("/old/a{fresh}")).whole(200).cache().ends_with("stored"));
    assert!(proxy.get(&format!("/page/a{fresh}")).whole(200).cache().contains("; hit"), "both are one");
    assert_eq!(origin.requests("/")[0]["url"], format!("/page/a{fresh}"));
    let other = "/old//b/..%2fc";
    proxy.get(other).whole(200);
    assert_eq!(origin.requests("/").last().unwrap()["url"], other, "no way out by a rule");
    proxy.put("PUT", "/cache/v1/k", "", b"v").whole(201);
    assert_eq!(proxy.get("/cache/k").whole(200).text(), "v");
    proxy.get("/cache/out").whole(404);
}

#[test]
fn body_limit_refuses_what_is_announced_and_what_comes() {
    let origin = Origin::start();
    let proxy = site(&origin, "", "{ body_limit: { max: 10B } }");
    for (method, target) in [("POST", "/upload"), ("PUT", "/cache/k")] {
        assert_eq!(proxy.put(method, target, "", b"0123456789a").status, 413, "{target}");
        let mut client = proxy.client();
        client.request(method, target, "Content-Length: 11\r\nExpect: 100-continue\r\n");
        let refusal = client.response(method);
        assert_eq!((refusal.status, refusal.interim.as_slice()), (413, &[][..]), "{target}: nothing is asked for");
        let mut client = proxy.client();
        client.request(method, target, "Transfer-Encoding: chunked\r\n");
        client.send("6\r\n012345\r\n5\r\n6789a\r\n0\r\n\r\n");
        assert_eq!(client.response(method).status, 413, "{target}");
        let fine = proxy.put(method, target, "", b"0123456789");
        assert!(matches!(fine.status, 200 | 201), "{target}");
    }
    assert_eq!(proxy.get("/cache/k").whole(200).text(), "0123456789");
    assert_eq!(proxy.put("POST", "/dead", "", b"0123456789").status, 502);
}

#[test]
fn security_headers_are_on_every_response() {
    let origin = Origin::start();
    let settings = "{ hsts: 1d, hsts_subdomains: true, csp: \"default-src 'self'\", remove: [X-Powered-By] }";
    let proxy = site(&origin, TRUSTED, &format!("{{ security_headers: {settings} }}"));
    for (place, status, reply) in everywhere(&proxy, "X-Forwarded-For: 127.0.0.2\r\nX-Forwarded-Proto: https\r\n") {
        assert_eq!(reply.status, status, "{place}");
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "SAMEORIGIN"),
            ("content-security-policy", "default-src 'self'"),
            ("strict-transport-security", "max-age=86400; includeSubDomains"),
        ] {
            assert_eq!(reply.field(name), value, "{place}");
        }
    }
    let own = proxy.get("/own?h.X-Powered-By=Express&h.X-Frame-Options=DENY").whole(200);
    assert_eq!((own.has("x-powered-by"), own.field("x-frame-options")), (false, "DENY"));
    assert!(!own.has("strict-transport-security"), "not by http");
}

#[test]
fn redirect_https_comes_before_everything() {
    let origin = Origin::start();
    let proxy = site(&origin, TRUSTED, "{ redirect_https: { except: [/dead] } }");
    for (place, status, reply) in everywhere(&proxy, "X-Forwarded-For: 127.0.0.2\r\nX-Forwarded-Proto: http\r\n") {
        if place == "error page" {
            assert_eq!(reply.status, status, "excepted");
            continue;
        }
        assert_eq!(reply.status, 308, "{place}");
        let target = if place == "kv" { "/cache/key" } else { PAGE };
        assert_eq!(reply.field("location"), format!("https://site.test{target}"), "{place}");
    }
    assert_eq!(origin.count("/page"), 0);
    for (place, status, reply) in everywhere(&proxy, "X-Forwarded-For: 127.0.0.2\r\nX-Forwarded-Proto: https\r\n") {
        assert_eq!(reply.status, status, "{place}");
    }
}

#[test]
fn the_sites_plugins_stand_before_what_no_route_answers() {
    let origin = Origin::start();
    let proxy = Headwall::before(
        &origin,
        "plugins: [{ request_id: }, { ip_filter: { deny: [127.0.0.1] } }]\nroutes: [{ match: { path: /a }, to: { proxy: app } }]",
    );
    for target in ["/a", "/nowhere"] {
        let refused = proxy.get(target).whole(403);
        assert!(refused.has("x-request-id"), "{target}");
    }
}
