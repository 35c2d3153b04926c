//! The response cache before a real Node app. Time is moved, not waited for.

use std::time::Duration;

use crate::support::{Headwall, Origin, tally, together};

const ROUTE: &str = "routes: [{ to: { proxy: app }, cache: {} }]";

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_hit_has_an_age_and_costs_the_origin_nothing() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let miss = proxy.get("/a?h.Cache-Control=max-age=60").whole(200);
    assert_eq!(miss.cache(), "headwall; fwd=uri-miss; stored");
    proxy.clock.advance(seconds(7));
    let hit = proxy.get("/a?h.Cache-Control=max-age=60").whole(200);
    assert_eq!(hit.content, miss.content);
    assert_eq!(hit.field("age"), "7");
    assert!(hit.cache().starts_with("headwall; hit; ttl=5"), "{}", hit.cache());
    proxy.clock.advance(seconds(53));
    assert_eq!(proxy.get("/a?h.Cache-Control=max-age=60").cache(), "headwall; fwd=stale; stored");
    assert_eq!(origin.count("/a"), 2);
}

#[test]
fn many_clients_share_one_trip_to_the_origin() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    for (target, how) in [
        ("/sized?wait=300&h.Cache-Control=max-age=60&say=hello", "length"),
        ("/chunks?wait=300&h.Cache-Control=max-age=60&pieces=a%20b%20c&pace=50", "chunked"),
    ] {
        let replies = together(200, |_| proxy.get(target).whole(200));
        let expected = if how == "length" { "hello" } else { "abc" };
        assert!(replies.iter().all(|reply| reply.text() == expected), "{how}");
        assert_eq!(origin.count(target), 1, "{how}");
        let how_many = tally(replies.iter().map(|reply| reply.cache().to_owned()));
        assert_eq!(how_many["headwall; fwd=uri-miss; stored"], 1, "{how_many:?}");
        assert_eq!(
            how_many
                .iter()
                .filter(|(status, _)| status.contains("collapsed") || status.contains("hit"))
                .map(|(_, n)| n)
                .sum::<usize>(),
            199
        );
        assert!(proxy.metric("headwall_waits_total") >= 1.0, "{how}");
        assert!(proxy.metric("headwall_waited_milliseconds_total") >= 100.0, "{how}");
    }
}

#[test]
fn a_chunked_response_has_a_length_once_it_is_stored_and_parts_are_cut_from_it() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let target = "/chunks?h.Cache-Control=max-age=60&pieces=01234%2056789&h.ETag=%22t%22";
    assert_eq!(proxy.get(target).whole(200).framing, "chunked");
    let hit = proxy.get(target).whole(200);
    assert_eq!((hit.framing, hit.field("content-length")), ("length", "10"));
    for (range, status, content_range, text) in [
        ("bytes=2-6", 206, "bytes 2-6/10", "23456"),
        ("bytes=-3", 206, "bytes 7-9/10", "789"),
        ("bytes=8-", 206, "bytes 8-9/10", "89"),
        ("bytes=10-", 416, "bytes */10", ""),
        ("bytes=-0", 416, "bytes */10", ""),
        ("bytes=5-2", 200, "", "0123456789"),
    ] {
        let part = proxy.ask("GET", target, &format!("Range: {range}\r\n")).whole(status);
        assert_eq!((part.field("content-range"), part.text().as_str()), (content_range, text), "{range}");
    }
    let weak = proxy.ask("GET", target, "Range: bytes=0-1\r\nIf-Range: W/\"t\"\r\n").whole(200);
    assert_eq!(weak.text(), "0123456789");
    let two = proxy.ask("GET", target, "Range: bytes=0-1,5-6\r\n").whole(206);
    assert!(two.field("content-type").starts_with("multipart/byteranges"), "{:?}", two.fields);
    assert!(two.text().contains("01") && two.text().contains("56"));
    assert_eq!(origin.count("/chunks"), 1);
}

#[test]
fn a_304_freshens_what_is_stored() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let target = "/a?etag=1&h.Cache-Control=max-age=10&h.X-Gen=1&say=content";
    proxy.get(target).whole(200);
    proxy.clock.advance(seconds(11));
    let validated = proxy.get(target).whole(200);
    assert_eq!(
        (validated.text().as_str(), validated.cache()),
        ("content", "headwall; fwd=stale; fwd-status=304; stored")
    );
    assert_eq!(origin.field("/a", "if-none-match").as_deref(), Some("\"v1\""));
    assert_eq!(validated.field("age"), "0");
    proxy.clock.advance(seconds(5));
    assert!(proxy.get(target).cache().starts_with("headwall; hit"));
    let conditional = proxy.ask("GET", target, "If-None-Match: \"v1\"\r\n").whole(304);
    assert!(conditional.cache().starts_with("headwall; hit"));
    assert_eq!(origin.count("/a"), 2);
}

#[test]
fn a_304_for_something_else_freshens_nothing() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let target = "/other?h.Cache-Control=max-age=10&h.ETag=%22e1%22&then304=1";
    proxy.get(target).whole(200);
    proxy.clock.advance(seconds(11));
    let old = proxy.get(target).whole(200);
    assert!(!old.cache().contains("stored") && old.field("etag") == "\"e1\"", "{:?}", old.fields);
    assert_eq!(proxy.get(target).cache(), "headwall; fwd=uri-miss; stored", "it is fetched anew");
}

#[test]
fn stale_while_revalidate_answers_at_once_and_refreshes_behind() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    // As Next.js sends it.
    let target = "/isr?h.Cache-Control=s-maxage=60,%20stale-while-revalidate=600";
    proxy.get(target).whole(200);
    proxy.clock.advance(seconds(100));
    let stale = proxy.get(target).whole(200);
    assert!(
        stale.cache().contains("ttl=-4") && stale.cache().contains("detail=stale-while-revalidate"),
        "{}",
        stale.cache()
    );
    crate::support::wait_until(|| origin.count("/isr") == 2);
    crate::support::wait_until(|| proxy.get(target).cache().starts_with("headwall; hit; ttl=5"));
    assert_eq!(origin.count("/isr"), 2, "one refresh for all");
    assert_eq!(
        proxy.metric("headwall_requests_total{cache=\"stale\",route=\"*\",status=\"2xx\"}"),
        0.0,
        "the refresh is no request of a client"
    );
    proxy.clock.advance(seconds(700));
    assert_eq!(proxy.get(target).cache(), "headwall; fwd=stale; stored", "beyond the window there is no stale answer");
}

#[test]
fn stale_if_error_stands_in_for_an_origin_that_fails() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let target = "/sie?h.Cache-Control=max-age=10,%20stale-if-error=600&say=good";
    let strict = "/strict?h.Cache-Control=max-age=10,%20must-revalidate,%20stale-if-error=600";
    proxy.get(target).whole(200);
    proxy.get(strict).whole(200);
    drop(origin);
    proxy.clock.advance(seconds(20));
    let stale = proxy.get(target).whole(200);
    assert_eq!(stale.text(), "good");
    assert!(
        stale.cache().contains("fwd=stale; fwd-status=502") && stale.cache().contains("detail=stale-if-error"),
        "{}",
        stale.cache()
    );
    // The engine closes a connection whose origin failed; the client is told.
    let mut client = proxy.client();
    client.request("GET", target, "");
    assert_eq!(client.response("GET").field("connection"), "close");
    assert!(client.closed());
    proxy.get(strict).whole(502);
    proxy.clock.advance(seconds(700));
    proxy.get(target).whole(502);
}

#[test]
fn what_must_not_be_stored_is_not() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    for (name, query, fields, detail) in [
        ("cookie", "h.Cache-Control=max-age=60&h.Set-Cookie=a=b", "", "set-cookie"),
        ("star", "h.Cache-Control=max-age=60&h.Vary=*", "", "vary-star"),
        ("private", "h.Cache-Control=max-age=60|private", "", "private"),
        ("nostore", "h.Cache-Control=no-store", "", "no-store"),
        ("bare", "", "", "no-freshness"),
        ("auth", "h.Cache-Control=max-age=60", "Authorization: Bearer a\r\n", "authorization"),
    ] {
        let target = format!("/{name}?{query}");
        for _ in 0..2 {
            let reply = proxy.ask("GET", &target, fields).whole(200);
            assert!(!reply.cache().contains("stored") && !reply.cache().contains("hit"), "{name}: {}", reply.cache());
        }
        assert_eq!(origin.count(&format!("/{name}")), 2, "{name}");
        assert_eq!(proxy.metric(&format!("headwall_not_stored_total{{rule=\"{detail}\"}}")), 2.0, "{name}");
    }
    let public = "/public?h.Cache-Control=max-age=60,%20public";
    proxy.ask("GET", public, "Authorization: Bearer a\r\n").whole(200);
    assert!(proxy.ask("GET", public, "Authorization: Bearer b\r\n").cache().contains("hit"), "RFC 9111 §3.5");
    // A page for nobody in particular is not given to somebody with credentials, unless the origin says so.
    let plain = "/plain?h.Cache-Control=max-age=60";
    proxy.get(plain).whole(200);
    assert_eq!(proxy.ask("GET", plain, "Authorization: Bearer a\r\n").cache(), "headwall; fwd=uri-miss");
}

#[test]
fn variants_are_kept_apart() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let target = "/v?h.Cache-Control=max-age=60&h.Vary=Accept-Language&echo=accept-language";
    for language in ["de", "fr", "de", "fr", "it", "de"] {
        let reply = proxy.ask("GET", target, &format!("Accept-Language: {language}\r\n")).whole(200);
        assert!(reply.text().ends_with(&format!("for {language}")), "{}", reply.text());
    }
    assert_eq!(origin.count("/v"), 3);
    let miss = proxy.ask("GET", target, "Accept-Language: es\r\n");
    assert_eq!(miss.cache(), "headwall; fwd=vary-miss; stored");
    proxy.ask("POST", target, "Content-Length: 0\r\n").whole(200);
    for language in ["de", "fr"] {
        let reply = proxy.ask("GET", target, &format!("Accept-Language: {language}\r\n"));
        assert!(!reply.cache().contains("hit"), "an unsafe request takes every variant with it: {}", reply.cache());
    }
}

#[test]
fn an_unsafe_request_invalidates_and_spoils_what_is_on_its_way() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let target = "/doc?h.Cache-Control=max-age=60";
    assert!(proxy.get(target).text().contains("v1"));
    proxy.ask("POST", target, "Content-Length: 0\r\n").whole(200);
    assert!(proxy.get(target).text().contains("v2"));
    // A response that left the origin before the change and arrives after it.
    let slow = "/slow?h.Cache-Control=max-age=60&wait=400";
    std::thread::scope(|scope| {
        let old = scope.spawn(|| proxy.get(slow));
        crate::support::wait_until(|| origin.count("/slow") == 1);
        proxy.ask("DELETE", slow, "").whole(200);
        assert!(!old.join().unwrap().cache().contains("stored"));
    });
    assert!(!proxy.get(slow).cache().contains("hit"));
    proxy.ask("POST", &format!("{target}&status=500"), "Content-Length: 0\r\n").whole(500);
    assert!(proxy.get(target).cache().contains("hit"), "a failed request changes nothing");
}

#[test]
fn force_keeps_everything_for_its_time() {
    let origin = Origin::start();
    let proxy = Headwall::before(
        &origin,
        "routes:\n  - match: { prefix: /any }\n    to: { proxy: app }\n    cache: { mode: force, ttl: 1m, status_header: X-Nginx-Cache }\n  - match: { prefix: /some }\n    to: { proxy: app }\n    cache: { mode: force, ttl: { 200: 10m, 404: 5s }, cookies: ignore, set_cookie: strip }\n",
    );
    let target = "/any?h.Cache-Control=no-store&h.Expires=0";
    assert_eq!(proxy.get(target).whole(200).field("x-nginx-cache"), "MISS");
    assert_eq!(proxy.ask("GET", target, "Cache-Control: no-cache\r\n").field("x-nginx-cache"), "HIT");
    assert_eq!(proxy.ask("GET", target, "Cookie: a=b\r\n").field("x-nginx-cache"), "BYPASS");
    assert_eq!(proxy.ask("GET", target, "Authorization: x\r\n").field("x-nginx-cache"), "BYPASS");
    proxy.clock.advance(seconds(61));
    assert_eq!(proxy.get(target).field("x-nginx-cache"), "EXPIRED");
    assert_eq!(proxy.get("/any?h.Set-Cookie=a=b").cache(), "headwall; fwd=uri-miss; detail=set-cookie");

    let target = "/some?h.Set-Cookie=a=b&status=404";
    let first = proxy.ask("GET", target, "Cookie: user=1\r\n").whole(404);
    assert!(!first.has("set-cookie"));
    assert_eq!(origin.field("/some", "cookie"), None, "what is ignored for the key must not choose the response");
    assert!(proxy.ask("GET", target, "Cookie: user=2\r\n").cache().contains("hit"));
    proxy.clock.advance(seconds(6));
    assert_eq!(proxy.get(target).cache(), "headwall; fwd=stale; stored");
    assert!(!proxy.get("/some?status=500").cache().contains("stored"), "a status that is not listed");
}

#[test]
fn hosts_and_queries_never_share_an_answer() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let get = |host: &str, target: &str| {
        let mut client = proxy.client();
        client.send(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        client.response("GET").whole(200).text()
    };
    for _ in 0..2 {
        for host in ["a.test", "b.test", "a.test:8080"] {
            assert!(get(host, "/k?h.Cache-Control=max-age=60").ends_with(&format!("for {host}")));
        }
    }
    assert_eq!(origin.count("/k"), 3);
    get("a.test", "/k?h.Cache-Control=max-age=60&x");
    get("a.test", "/k?h.Cache-Control=max-age=60&X");
    assert_eq!(origin.count("/k"), 5);
}

#[test]
fn a_head_is_answered_from_the_store_and_never_fills_it() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let target = "/h?h.Cache-Control=max-age=60&say=twelve%20bytes";
    proxy.ask("HEAD", target, "").whole(200);
    assert_eq!(origin.requests("/h")[0]["method"], "HEAD", "it goes up as what it is");
    assert_eq!(proxy.get(target).whole(200).text(), "twelve bytes");
    let head = proxy.ask("HEAD", target, "").whole(200);
    assert!(head.cache().contains("hit") && head.field("content-length") == "12", "{:?}", head.fields);
    assert_eq!(origin.count("/h"), 2);
}

#[test]
fn ten_bytes_of_a_large_response_pull_little() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let size = 200 << 20;
    let target = format!("/bytes?size={size}&sized=1&ranges=1&h.Cache-Control=no-store");
    let part = proxy.ask("GET", &target, "Range: bytes=1000-1009\r\n").whole(206);
    assert_eq!(part.content.len(), 10);
    assert_eq!(origin.sent(&target), 10, "the range goes up as it is");
}

#[test]
pub fn what_was_cut_off_is_never_stored_and_never_looks_whole() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    for sized in ["", "&sized=1"] {
        let target = format!("/broken?after=200&h.Cache-Control=max-age=60{sized}");
        let replies = together(3, |_| proxy.get(&target));
        assert!(replies.iter().all(|reply| !reply.complete || reply.status >= 500), "{replies:?}");
        assert!(!proxy.get(&target).cache().contains("hit"));
    }
    // Without a length or chunks, only a reset tells.
    let mut client = proxy.client();
    client.send("GET /broken?x HTTP/1.0\r\nHost: a\r\n\r\n");
    let cut = client.response("GET");
    assert!(cut.framing == "close" && !cut.complete, "{cut:?}");
}

#[test]
fn a_head_that_finds_a_stale_response_does_not_pull_an_endless_one() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, &format!("cache: {{ max_unsized: 256KiB }}\n{ROUTE}"));
    // Small at first, then endless; it has a validator.
    let target = "/growing?h.Cache-Control=max-age=10&h.ETag=%22g%22";
    proxy.get(target).whole(200);
    proxy.clock.advance(seconds(11));
    proxy.ask("HEAD", target, "").whole(200);
    origin.wait_closed("/growing");
    let small = "/page?h.Cache-Control=max-age=60";
    assert!(proxy.get(small).cache().contains("stored"), "its room was given back");
}

#[test]
fn only_if_cached_is_answered_from_the_store_or_not_at_all() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let target = "/oic?h.Cache-Control=max-age=60";
    proxy.ask("GET", target, "Cache-Control: only-if-cached\r\n").whole(504);
    assert_eq!(origin.count("/oic"), 0);
    proxy.get(target).whole(200);
    assert!(proxy.ask("GET", target, "Cache-Control: only-if-cached\r\n").whole(200).cache().contains("hit"));
}

#[test]
fn what_cannot_be_stored_is_remembered_and_never_waited_for() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let target = "/no?wait=300&h.Cache-Control=no-store";
    proxy.get(target).whole(200);
    let since = std::time::Instant::now();
    together(10, |_| proxy.get(target).whole(200));
    assert!(since.elapsed() < seconds(2), "ten requests went side by side: {:?}", since.elapsed());
    assert_eq!(origin.count("/no"), 11);
    // It is looked at again each time: once it may be stored, it is.
    let mut client = proxy.client();
    client.request("GET", "/no?wait=300&h.Cache-Control=no-store", "");
    client.response("GET").whole(200);
}

#[test]
fn a_cookie_that_is_ignored_never_chooses_what_is_stored() {
    let origin = Origin::start();
    let proxy =
        Headwall::before(&origin, "routes: [{ to: { proxy: app }, cache: { mode: force, ttl: 1m, cookies: ignore } }]");
    // A response that sets a cookie makes the target pass by the lock for a while.
    let target = "/who?echo=cookie";
    assert!(proxy.get(&format!("{target}&h.Set-Cookie=a=b")).cache().contains("set-cookie"));
    proxy.ask("GET", target, "Cookie: user=alice\r\n").whole(200);
    assert!(!proxy.get(target).whole(200).text().contains("alice"));
    for number in 0..3 {
        // The same target, first with a cookie in the response, then personal without one.
        let target = format!("/who{number}?echo=cookie&set-first=1");
        proxy.ask("GET", &target, "Cookie: user=alice\r\n");
        proxy.ask("GET", &target, "Cookie: user=alice\r\n");
        assert!(!proxy.get(&target).whole(200).text().contains("alice"));
    }
}

#[test]
fn what_we_tell_the_origin_about_the_client_cannot_choose_a_variant() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let target = "/geo?h.Cache-Control=max-age=60&h.Vary=X-Forwarded-For";
    proxy.get(target).whole(200);
    assert!(!proxy.get(target).cache().contains("hit"));
    let targeted = "/targeted?h.Cache-Control=max-age=60&h.CDN-Cache-Control=no-store";
    proxy.get(targeted).whole(200);
    assert!(!proxy.get(targeted).cache().contains("hit"), "RFC 9213");
}

#[test]
fn a_refresh_that_the_client_asked_for_says_so() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let target = "/fresh?h.Cache-Control=max-age=60&etag=1";
    proxy.get(target).whole(200);
    let asked = proxy.ask("GET", target, "Cache-Control: no-cache\r\n").whole(200);
    assert_eq!(asked.cache(), "headwall; fwd=request; fwd-status=304; stored");
}

#[test]
fn a_response_that_became_too_long_is_not_collapsed_on_again() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, &format!("cache: {{ max_unsized: 256KiB }}\n{ROUTE}"));
    let target = "/bytes?size=1000000&h.Cache-Control=max-age=60";
    assert_eq!(proxy.get(target).whole(200).content.len(), 1_000_000);
    assert_eq!(proxy.get(target).whole(200).cache(), "headwall; fwd=uri-miss; detail=too-large");
    let replies = together(5, |_| proxy.get(target).whole(200).content.len());
    assert!(replies.iter().all(|length| *length == 1_000_000));
}

#[test]
fn who_waits_for_another_waits_no_longer_than_for_an_answer_of_its_own() {
    let origin = Origin::start();
    let upstream = format!(
        "upstreams: {{ app: {{ servers: [\"127.0.0.1:{}\"], timeouts: {{ first_byte: 500ms }} }} }}",
        origin.port
    );
    let proxy = Headwall::start(&format!("{upstream}\n{ROUTE}"));
    let since = std::time::Instant::now();
    let replies = together(10, |_| proxy.get("/hang?h.Cache-Control=max-age=60").whole(504));
    assert!(since.elapsed() < seconds(5), "{:?}", since.elapsed());
    assert!(replies.iter().any(|reply| reply.cache().contains("collapsed-timeout")), "{:?}", replies[0].cache());
    assert!(origin.count("/hang") < 5, "the origin that hangs is not asked by everybody");
}

#[test]
fn the_store_stays_within_its_memory() {
    let origin = Origin::start();
    let proxy = Headwall::before(
        &origin,
        &format!("cache: {{ memory: 4MiB, max_object: 1MiB, max_unsized: 1MiB, fills: 2MiB }}\n{ROUTE}"),
    );
    for number in 0..100 {
        proxy.get(&format!("/bytes?size=100000&sized=1&n={number}&h.Cache-Control=max-age=60")).whole(200);
    }
    let (used, evicted) = (proxy.metric("headwall_cache_bytes"), proxy.metric("headwall_cache_evicted"));
    assert!(used <= 4194304.0 && used > 3000000.0 && evicted > 50.0, "{used} {evicted}");
    let large = "/bytes?size=2000000&sized=1&h.Cache-Control=max-age=60";
    assert_eq!(proxy.get(large).whole(200).cache(), "headwall; fwd=uri-miss; detail=too-large");
    let unsized_one = "/bytes?size=2000000&h.Cache-Control=max-age=60";
    assert_eq!(proxy.get(unsized_one).whole(200).content.len(), 2000000);
    assert!(!proxy.get(unsized_one).cache().contains("hit"));
    // What was set aside is given back.
    crate::support::wait_until(|| proxy.metric("headwall_fill_bytes") == 0.0);
}
