//! Streaming before a real Node app: as it arrives, in both directions, with back-pressure.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use crate::chaos::breaking::{Breaking, Then};
use crate::support::{Client, Headwall, Origin, PATIENCE, together, wait_until};

const CACHED: &str = "routes: [{ to: { proxy: app }, cache: {} }]";
const PLAIN: &str = "routes: [{ to: { proxy: app } }]";

#[test]
fn an_event_is_there_when_it_is_sent() {
    let origin = Origin::start();
    for routes in [PLAIN, CACHED] {
        let proxy = Headwall::before(&origin, routes);
        for cc in ["no-cache", "max-age=60"] {
            let mut client = proxy.client();
            client.request("GET", &format!("/told?cc={cc}"), "Accept: text/event-stream\r\n");
            assert_eq!(client.head().status, 200);
            // Each event is read before the next one is sent; one that waited for another would never come.
            for event in ["first", "second", "third"] {
                origin.tell(event);
                assert_eq!(client.chunk().unwrap(), format!("data: {event}\n\n").as_bytes(), "{routes} {cc}");
            }
            drop(client);
            origin.wait_closed("/told");
        }
    }
}

#[test]
fn two_listeners_on_a_cached_route_have_streams_of_their_own() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, CACHED);
    let counts = together(2, |_| {
        let mut client = proxy.client();
        client.request("GET", "/events?every=30&cc=max-age=60", "");
        client.head();
        (0..3).filter(|_| client.chunk().is_some_and(|chunk| !chunk.is_empty())).count()
    });
    assert_eq!(counts, [3, 3]);
    assert_eq!(origin.count("/events"), 2);
}

#[test]
fn a_client_that_leaves_is_told_to_the_origin_at_once() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, CACHED);
    for target in ["/events?every=20", "/hang?h.Cache-Control=max-age=60"] {
        let mut client = proxy.client();
        client.request("GET", target, "");
        wait_until(|| origin.count(target) == 1);
        if target.starts_with("/events") {
            client.head();
            client.chunk();
        }
        drop(client);
        let took = origin.wait_closed(target);
        assert!(took < Duration::from_secs(2), "{target}: {took:?}");
    }
}

#[test]
fn a_fill_goes_on_when_its_leader_leaves() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, CACHED);
    let target = "/chunks?pieces=a%20b%20c%20d%20e&pace=100&h.Cache-Control=max-age=60";
    let mut leader = proxy.client();
    leader.request("GET", target, "");
    leader.head();
    leader.chunk();
    let mut joiner = proxy.client();
    joiner.request("GET", target, "");
    assert!(joiner.head().cache().contains("collapsed"));
    drop(leader);
    let mut text = Vec::new();
    while let Some(chunk) = joiner.chunk().filter(|chunk| !chunk.is_empty()) {
        text.extend(chunk);
    }
    assert_eq!(text, b"abcde");
    assert!(proxy.get(target).whole(200).cache().contains("hit"));
    assert_eq!(origin.count("/chunks"), 1);
}

#[test]
fn a_client_that_wants_no_content_does_not_wait_for_it() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, CACHED);
    let fresh = "h.Cache-Control=max-age=60&h.ETag=%22e%22";
    for (method, fields, status) in [("HEAD", "", 200), ("GET", "If-None-Match: \"e\"\r\n", 304)] {
        // A HEAD goes up as it is, unless something stale is stored.
        let target = format!("/growing?{fresh}&n={status}");
        proxy.get(&target).whole(200);
        proxy.clock.advance(Duration::from_secs(61));
        let mut client = proxy.client();
        client.request(method, &target, fields);
        let reply = client.response(method).whole(status);
        assert_eq!(reply.field("connection"), "close", "{method}: the next request is for another connection");
        let small = format!("/page?say=small&{fresh}&h.Content-Length=5&n={status}");
        let mut client = proxy.client();
        for _ in 0..2 {
            client.request(method, &small, fields);
            assert_ne!(client.response(method).whole(status).field("connection"), "close", "{method}");
        }
    }
}

/// Reads slowly for a while and says how much the origin could send.
fn pulled(origin: &Origin, proxy: &Headwall, target: &str) -> u64 {
    let mut client = proxy.client();
    client.request("GET", target, "");
    assert_eq!(client.head().status, 200);
    client.take(64 << 10);
    // The origin is held back when what it sent stops growing.
    let (mut before, mut since) = (0, Instant::now());
    while since.elapsed() < Duration::from_millis(400) {
        let now = origin.sent(target);
        if now != before {
            (before, since) = (now, Instant::now());
        }
    }
    before
}

#[test]
fn a_slow_reader_holds_the_origin_back() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, CACHED);
    for query in [
        "sized=1&h.Cache-Control=no-store",
        "h.Cache-Control=no-store",
        "h.Cache-Control=max-age=60",
        "sized=1&h.Cache-Control=max-age=60",
    ] {
        let target = format!("/bytes?size={}&{query}", 256u64 << 20);
        let sent = pulled(&origin, &proxy, &target);
        assert!(sent < 24 << 20, "{query}: the origin had sent {} MiB", sent >> 20);
    }
}

#[test]
fn joiners_are_not_slowed_down_by_a_slow_leader() {
    let origin = Origin::start();
    let proxy = Headwall::before(
        &origin,
        "cache: { memory: 256MiB, max_object: 64MiB, max_unsized: 64MiB, fills: 64MiB }\nroutes: [{ to: { proxy: app }, cache: {} }]",
    );
    for query in ["sized=1", "chunked=1"] {
        let size = 32 << 20;
        let target = format!("/bytes?size={size}&{query}&wait=200&h.Cache-Control=max-age=60");
        let mut leader = Client::to(proxy.address);
        socket2::SockRef::from(&leader.tcp).set_recv_buffer_size(4096).unwrap();
        leader.request("GET", &target, "");
        wait_until(|| origin.count(&target) == 1);
        // The leader reads nothing at all.
        let since = Instant::now();
        let replies = together(20, |_| proxy.get(&target).whole(200).content.len());
        assert!(replies.iter().all(|length| *length == size), "{query}");
        assert!(since.elapsed() < PATIENCE, "{query}: {:?}", since.elapsed());
        assert_eq!(origin.count(&target), 1, "{query}");
    }
}

#[test]
fn uploads_arrive_whole_and_are_not_buffered() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, PLAIN);
    let data: Vec<u8> = (0..3_000_000u32).map(|n| (n * 7 % 251) as u8).collect();
    let sized = proxy.put("POST", "/upload", "", &data).whole(200).text();
    let mut client = proxy.client();
    client.request("POST", "/upload", "Transfer-Encoding: chunked\r\n");
    for piece in data.chunks(10_007) {
        client.send(&format!("{:x}\r\n", piece.len()));
        client.send_bytes(piece);
        client.send("\r\n");
    }
    client.send("0\r\n\r\n");
    let chunked = client.response("POST").whole(200).text();
    assert_eq!(sized, chunked);
    assert!(sized.starts_with("3000000 "));
}

#[test]
fn expect_is_answered_and_early_answers_pass() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, PLAIN);
    let mut client = proxy.client();
    client.request("PUT", "/upload", "Content-Length: 5\r\nExpect: 100-continue\r\n");
    let interim = client.take(25);
    assert_eq!(interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    client.send("hello");
    assert!(client.response("PUT").whole(200).text().starts_with("5 "));

    let mut client = proxy.client();
    client.request("PUT", "/early", "Content-Length: 1000000\r\n");
    assert_eq!(client.response("PUT").whole(413).text(), "too much");
}

#[test]
fn interim_responses_pass_and_are_not_the_answer() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, CACHED);
    let mut client = proxy.client();
    for _ in 0..2 {
        client.request("GET", "/hints", "");
        let reply = client.response("GET").whole(200);
        assert_eq!((reply.text().as_str(), reply.interim.as_slice()), ("final", &[103][..]));
        assert!(!reply.has("link"), "fields of the hint stay with the hint");
    }
}

#[test]
fn websockets_tunnel() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, CACHED);
    let mut client = proxy.client();
    client.send("GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\nearly ");
    assert_eq!(client.head().status, 101);
    client.send("late");
    assert_eq!(client.take(18), b"welcome early late");
}

/// One in some hundreds was closed as soon as it was open, where the answer came before the engine had seen that the
/// request was over.
#[test]
fn a_tunnel_stays_open_however_soon_the_answer_comes() {
    let origin = Breaking::start(|_, connection| {
        let _ = write!(
            connection,
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nhello "
        );
        let mut said = [0; 4];
        if connection.read_exact(&mut said).is_ok() {
            let _ = connection.write_all(&said);
        }
        Then::Hang
    });
    let proxy = Headwall::start(&format!("upstreams: {{ app: {{ servers: [\"{}\"] }} }}\n{CACHED}", origin.address));
    together(40, |_| {
        for _ in 0..20 {
            let mut client = proxy.client();
            client.request("GET", "/", "Connection: Upgrade\r\nUpgrade: websocket\r\n");
            assert_eq!(client.head().status, 101);
            assert_eq!(client.take(6), b"hello ");
            client.send("ping");
            assert_eq!(client.take(4), b"ping");
        }
    });
}

#[test]
fn http_1_0_clients_get_no_chunks() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, CACHED);
    let target = "/chunks?pieces=alpha%20beta&h.Cache-Control=max-age=60";
    for round in ["miss", "hit"] {
        let mut client = proxy.client();
        client.send(&format!("GET {target} HTTP/1.0\r\nHost: a\r\n\r\n"));
        let reply = client.response("GET").whole(200);
        assert!(!reply.has("transfer-encoding"), "{round}: {:?}", reply.fields);
        assert_eq!(reply.text(), "alphabeta", "{round}");
        assert!(client.closed(), "{round}: ab waits for the end of the connection");
    }
    let mut keeps = proxy.client();
    for _ in 0..2 {
        keeps.send(&format!("GET {target} HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n"));
        assert_eq!(keeps.response("GET").whole(200).framing, "length", "as ab -k wants it");
    }
}

#[test]
fn fields_of_one_hop_stay_there_and_the_origin_learns_who_asks() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, PLAIN);
    let reply = proxy.ask(
        "GET",
        "/x?h.Keep-Alive=timeout=9&h.X-Hop=1&h.Connection=X-Hop&h.X-Stay=1",
        "Connection: keep-alive, X-Secret\r\nX-Secret: 1\r\nKeep-Alive: timeout=5\r\nX-Keep: yes\r\nX-Forwarded-For: 203.0.113.9\r\n",
    );
    assert!(!reply.has("x-hop") && !reply.has("keep-alive") && reply.has("x-stay"), "{:?}", reply.fields);
    assert_eq!(reply.field("via"), "1.1 headwall");
    for (name, expected) in [
        ("host", Some("site.test")),
        ("x-secret", None),
        ("keep-alive", None),
        ("x-keep", Some("yes")),
        ("x-forwarded-for", Some("127.0.0.1")),
        ("x-real-ip", Some("127.0.0.1")),
        ("x-forwarded-host", Some("site.test")),
        ("x-forwarded-proto", Some("http")),
        ("via", Some("1.1 headwall")),
    ] {
        assert_eq!(origin.field("/x", name).as_deref(), expected, "{name}");
    }
}

#[test]
pub fn an_origin_that_never_answers_is_a_504_with_the_cache_and_without() {
    let origin = Origin::start();
    for (routes, cached) in [(PLAIN, false), (CACHED, true)] {
        // `read` is longer: an event stream may be quiet for longer than a page may take.
        let upstream = format!(
            "upstreams: {{ app: {{ servers: [\"127.0.0.1:{}\"], timeouts: {{ first_byte: 300ms, read: 30s }} }} }}",
            origin.port
        );
        let proxy = Headwall::start(&format!("{upstream}\n{routes}"));
        let since = Instant::now();
        let reply = proxy.get("/hang").whole(504);
        assert!(since.elapsed() < Duration::from_secs(3), "cached: {cached}");
        assert!(reply.text().contains("did not answer in time"));
        assert_eq!(reply.field("content-type"), "text/html; charset=utf-8");
        origin.wait_closed("/hang");
        let slow = proxy.get("/chunks?pieces=a%20b&pace=600").whole(200);
        assert_eq!(slow.text(), "ab", "between two pieces `read` counts");
    }
}

#[test]
pub fn an_origin_that_stops_in_the_middle_is_cut() {
    let origin = Origin::start();
    for routes in [PLAIN, CACHED] {
        let upstream = format!(
            "upstreams: {{ app: {{ servers: [\"127.0.0.1:{}\"], timeouts: {{ first_byte: 30s, read: 300ms }} }} }}",
            origin.port
        );
        let proxy = Headwall::start(&format!("{upstream}\n{routes}"));
        let slow = proxy.get("/hints?x").whole(200);
        assert_eq!(slow.text(), "final");
        for target in ["/chunks?pieces=a%20b&pace=60000&h.Cache-Control=max-age=60", "/chunks?pieces=a%20b&pace=60000"]
        {
            let since = Instant::now();
            let cut = proxy.get(target);
            assert!(
                cut.status == 200 && !cut.complete && since.elapsed() < Duration::from_secs(5),
                "{routes} {target}: {cut:?}"
            );
        }
    }
}

#[test]
fn servers_that_refuse_are_passed_over() {
    let origin = Origin::start();
    let dead = crate::support::free_port();
    let upstream =
        format!("upstreams: {{ app: {{ servers: [\"127.0.0.1:{dead}\", \"127.0.0.1:{}\"] }} }}", origin.port);
    let proxy = Headwall::start(&format!("{upstream}\n{PLAIN}"));
    for number in 0..6 {
        proxy.put("POST", &format!("/upload?n={number}"), "", b"content").whole(200);
    }
    assert_eq!(origin.count("/upload"), 6, "each once");
    assert!(proxy.metric("headwall_connect_failures_total") >= 1.0);
}

#[test]
fn a_connection_that_died_is_replaced_for_idempotent_requests_only() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, PLAIN);
    for _ in 0..3 {
        proxy.get("/fragile").whole(200);
    }
    // Whether a kept connection is used depends on how fast it comes back: until it is, try again.
    let tries = |method: &str| {
        let mut statuses = Vec::new();
        for number in 0..50 {
            proxy.get("/page").whole(200);
            let target = format!("/fragile?{method}{number}");
            let status = proxy.put(method, &target, "", b"x").status;
            statuses.push((status, origin.count(&target)));
        }
        statuses
    };
    let posts = tries("POST");
    assert!(posts.contains(&(502, 1)), "{posts:?}");
    assert!(posts.iter().all(|(_, times)| *times == 1), "never sent twice: {posts:?}");
    let puts = tries("PUT");
    assert!(puts.contains(&(200, 2)), "{puts:?}");
    assert!(puts.iter().all(|(status, _)| *status == 200), "{puts:?}");
}

#[test]
fn unix_sockets_ipv6_and_names_work() {
    let path = std::env::temp_dir().join(format!("headwall-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let unix = Origin::on(path.to_str().unwrap());
    let six = Origin::on("[::1]");
    let four = Origin::start();
    for server in
        [format!("unix:{}", path.display()), format!("[::1]:{}", six.port), format!("localhost:{}", four.port)]
    {
        let proxy = Headwall::start(&format!("upstreams: {{ app: {{ servers: [\"{server}\"] }} }}\n{PLAIN}"));
        for _ in 0..2 {
            assert!(proxy.get("/x").whole(200).text().contains("page"), "{server}");
        }
    }
    drop(unix);
    let _ = std::fs::remove_file(&path);
    let nowhere =
        Headwall::start(&format!("upstreams: {{ app: {{ servers: [\"no-such-host.invalid:80\"] }} }}\n{PLAIN}"));
    nowhere.get("/x").whole(502);
}

#[test]
fn pipelined_requests_are_answered_in_order_but_not_behind_content() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, CACHED);
    let mut client = proxy.client();
    client.send("GET /one?say=1 HTTP/1.1\r\nHost: a\r\n\r\nGET /two?say=2 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.response("GET").whole(200).text(), "1");
    assert_eq!(client.response("GET").whole(200).text(), "2");
    client.send(
        "POST /three?say=3 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhiGET /four HTTP/1.1\r\nHost: a\r\n\r\n",
    );
    let third = client.response("POST");
    assert!(third.status == 200 || third.status == 0, "{third:?}");
    assert!(client.closed());
    assert_eq!(origin.count("/four"), 0);
}

#[test]
fn what_is_ambiguous_never_reaches_the_origin() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, CACHED);
    for (why, raw, status) in [
        ("no Host", "GET /bad HTTP/1.1\r\n\r\n", 400),
        ("two Hosts", "GET /bad HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        ("a Host that is none", "GET /bad HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
        (
            "two framings",
            "POST /bad HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        ("two lengths", "POST /bad HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400),
        (
            "a coding we do not know",
            "POST /bad HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            501,
        ),
        ("a bare line feed", "GET /bad HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", 400),
        ("TRACE", "TRACE /bad HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        ("an encoded NUL", "GET /bad%00 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    ] {
        let mut client = proxy.client();
        client.send(raw);
        assert_eq!(client.response("GET").status, status, "{why}");
        assert!(client.closed(), "{why}: nobody knows where the next request would begin");
    }
    for (why, head) in
        [("a long head", format!("X-Long: {}\r\n", "x".repeat(40_000))), ("many fields", "X: y\r\n".repeat(120))]
    {
        assert_eq!(proxy.ask("GET", "/bad", &head).status, 431, "{why}");
    }
    assert_eq!(proxy.get(&format!("/bad{}", "x".repeat(9000))).status, 414);
    assert_eq!(origin.count("/bad"), 0);
    assert!(proxy.metric("headwall_refused_total{reason=\"host\"}") >= 2.0);
    let mut client = proxy.client();
    client.send("GET http://site.test/abs?say=1 HTTP/1.1\r\nHost: site.test\r\n\r\n");
    assert_eq!(client.response("GET").whole(200).text(), "1");
    assert_eq!(origin.count("/abs"), 1, "absolute form goes up in origin form");
}

#[test]
fn a_half_sent_content_is_told_to_the_client_or_closed_and_costs_nobody_else() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, PLAIN);
    let mut cut = proxy.client();
    cut.request("POST", "/upload", "Content-Length: 100\r\n");
    cut.send("only this");
    wait_until(|| origin.count("/upload") == 1);
    cut.tcp.shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    let _ = cut.tcp.read_to_end(&mut rest);
    let _ = cut.tcp.flush();
    origin.wait_closed("/upload");
    proxy.get("/after").whole(200);
}

#[test]
fn a_tunnel_whose_origin_fails_is_closed_without_a_word() {
    let origin = Origin::start();
    let upstream = format!(
        "upstreams: {{ app: {{ servers: [\"127.0.0.1:{}\"], timeouts: {{ first_byte: 400ms, read: 400ms }} }} }}",
        origin.port
    );
    let proxy = Headwall::start(&format!("{upstream}\n{PLAIN}"));
    let mut client = proxy.client();
    client.send("GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n");
    assert_eq!(client.head().status, 101);
    assert_eq!(client.take(8), b"welcome ");
    let since = Instant::now();
    assert!(client.take(1).is_empty(), "no page of ours in another protocol");
    assert!(since.elapsed() < Duration::from_secs(5));
}

#[test]
fn broken_chunks_end_the_connection_whoever_answers() {
    let origin = Origin::start();
    let proxy = Headwall::before(
        &origin,
        "routes:\n  - match: { prefix: /cache/ }\n    to: { kv: {} }\n  - match: { path: /fixed }\n    to: { respond: { content: x } }\n  - match: { prefix: /app }\n    to: { proxy: app }\n",
    );
    for target in ["PUT /cache/x", "POST /cache/x", "POST /fixed", "POST /nowhere", "POST /app"] {
        let mut client = proxy.client();
        client.send(&format!("{target} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n"));
        client.response("POST");
        assert!(client.closed(), "{target}: nobody knows where the next request would begin");
    }
}

#[test]
fn http_1_0_clients_get_no_interim_responses() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, PLAIN);
    let mut client = proxy.client();
    client.send("GET /hints HTTP/1.0\r\nHost: a\r\nExpect: 100-continue\r\n\r\n");
    let reply = client.response("GET").whole(200);
    assert!(reply.interim.is_empty() && reply.text() == "final", "{reply:?}");
    assert_eq!(origin.field("/hints", "expect"), None);
    let mut client = proxy.client();
    client.send("GET /x HTTP/1.0\r\n\r\n");
    client.response("GET").whole(200);
}
