//! Every final response passes the plugins once, whoever made it.

use std::time::Duration;

use crate::support::{Headwall, Origin, Response};

const SITE: &str = r#"
plugins:
  - headers: { response: { set: { X-Seal: "{cache_status}" }, add: { X-Count: one } } }
routes:
  - match: { prefix: /cache/ }
    to: { kv: {} }
  - match: { path: /old }
    to: { redirect: { to: "https://{host}/new{query}", status: 308 } }
  - match: { path: /robots.txt }
    to: { respond: { status: 200, type: text/plain, content: "User-agent: *" } }
  - match: { prefix: /dead }
    to: { proxy: dead }
  - match: { prefix: /app }
    to: { proxy: app }
    cache: { stale_if_error: 10m }
"#;

fn sealed(reply: Response, status: u16, word: &str) -> Response {
    let reply = reply.whole(status);
    let seals: Vec<_> =
        reply.fields.iter().filter(|(name, _)| name == "x-seal").map(|(_, value)| value.as_str()).collect();
    let counts = reply.fields.iter().filter(|(name, _)| name == "x-count").count();
    assert_eq!((seals.as_slice(), counts), (&[word][..], 1), "{status}: {:?}", reply.fields);
    reply
}

#[test]
fn each_kind_of_final_response_is_sealed_once() {
    let origin = Origin::start();
    let dead = crate::support::free_port();
    let proxy = Headwall::start(&format!(
        "upstreams: {{ app: {{ servers: [\"127.0.0.1:{}\"] }}, dead: {{ servers: [\"127.0.0.1:{dead}\"] }} }}{SITE}",
        origin.port
    ));
    let target = "/app?etag=1&say=0123456789&h.Cache-Control=max-age=60";
    sealed(proxy.get(target), 200, "MISS");
    sealed(proxy.get(target), 200, "HIT");
    sealed(proxy.ask("GET", target, "If-None-Match: \"v1\"\r\n"), 304, "HIT");
    sealed(proxy.ask("GET", target, "Range: bytes=0-3\r\n"), 206, "HIT");
    sealed(proxy.ask("GET", target, "Range: bytes=10-\r\n"), 416, "HIT");
    sealed(proxy.ask("HEAD", target, ""), 200, "HIT");
    proxy.clock.advance(Duration::from_secs(61));
    sealed(proxy.get(target), 200, "REVALIDATED");
    sealed(proxy.get("/app/chunks?h.Cache-Control=max-age=60"), 200, "MISS");
    sealed(proxy.ask("POST", "/app", "Content-Length: 0\r\n"), 200, "BYPASS");

    sealed(proxy.put("PUT", "/cache/k", "", b"v"), 201, "-");
    sealed(proxy.get("/cache/k"), 200, "-");
    sealed(proxy.get("/cache/none"), 404, "-");
    let redirect = sealed(proxy.get("/old?a=b"), 308, "-");
    assert_eq!(redirect.field("location"), "https://site.test/new?a=b");
    let robots = sealed(proxy.get("/robots.txt"), 200, "-");
    assert_eq!((robots.text().as_str(), robots.field("content-type")), ("User-agent: *", "text/plain"));
    sealed(proxy.get("/nowhere"), 404, "-");
    let refused = sealed(proxy.get("/dead"), 502, "-");
    assert!(refused.text().contains("Request <code>") && !refused.text().contains("127.0.0.1"), "{}", refused.text());
    sealed(proxy.ask("GET", "/app", "Cache-Control: only-if-cached\r\n"), 504, "BYPASS");

    let mut client = proxy.client();
    client.send("CONNECT site.test:443 HTTP/1.1\r\nHost: site.test:443\r\n\r\n");
    sealed(client.response("GET"), 405, "-");
    let mut client = proxy.client();
    client.send("GET /app HTTP/1.1\r\n\r\n");
    sealed(client.response("GET"), 400, "-");

    drop(origin);
    proxy.clock.advance(Duration::from_secs(61));
    sealed(proxy.get(target), 200, "STALE");
}
