//! What a shared cache has to get right (RFC 9111): which request gets which response, and which response
//! is no longer true. Before a real Node app; time is moved, not waited for.

use std::time::Duration;

use crate::support::{Headwall, Origin, tally, together, wait_until};

const ROUTE: &str = "routes: [{ to: { proxy: app }, cache: {} }]";

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn site(origin: &Origin, cache: &str) -> Headwall {
    Headwall::before(origin, &format!("routes: [{{ to: {{ proxy: app }}, cache: {{ {cache} }} }}]"))
}

#[test]
fn what_means_the_same_is_one_variant_and_the_origin_is_asked_in_its_form() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let target = "/page?h.Cache-Control=max-age=60&h.Vary=Accept-Encoding,%20Accept-Language&echo=accept-encoding";
    let ask = |fields: &str| proxy.ask("GET", target, fields).whole(200);
    let first = ask("Accept-Encoding: gzip, deflate, br;q=0.5, sdch\r\nAccept-Language: en-GB, de;q=0.5\r\n");
    assert!(first.text().ends_with("for br, gzip, deflate"), "{}", first.text());
    for same in [
        "Accept-Encoding: br, GZIP ,deflate\r\nAccept-Language: EN-gb,de; q=0.5\r\n",
        "Accept-Encoding: deflate\r\nAccept-Encoding: gzip, br, identity\r\nAccept-Language: en-gb\r\nAccept-Language: de;q=0.5\r\n",
    ] {
        let reply = ask(same);
        assert!(reply.cache().starts_with("headwall; hit"), "{same}: {}", reply.cache());
    }
    for other in
        ["", "Accept-Encoding: br, gzip, deflate\r\n", "Accept-Encoding: gzip\r\nAccept-Language: en-GB, de;q=0.5\r\n"]
    {
        assert_eq!(ask(other).cache(), "headwall; fwd=vary-miss; stored", "{other}");
    }
    assert_eq!(origin.count("/page"), 4);
}

#[test]
fn variants_have_a_bound_and_the_oldest_goes_first() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, &format!("cache: {{ max_variants: 3 }}\n{ROUTE}"));
    let ask = |value: u32| {
        let target = "/page?h.Cache-Control=max-age=60&h.Vary=X-V&echo=x-v";
        proxy.ask("GET", target, &format!("X-V: {value}\r\n")).whole(200)
    };
    for value in 0..4 {
        ask(value);
    }
    for (value, there) in [(0, true), (3, true), (2, true), (1, false)] {
        let reply = ask(value);
        assert_eq!(reply.cache().starts_with("headwall; hit"), there, "{value}: {}", reply.cache());
        assert!(reply.text().ends_with(&format!("for {value}")), "{}", reply.text());
    }
    for value in 100..300 {
        ask(value);
    }
    assert!(proxy.metric("headwall_cache_entries") <= 3.0);
}

#[test]
fn an_invalidation_takes_every_variant() {
    let origin = Origin::start();
    let proxy = site(&origin, "key: { headers: [X-Country], cookies: [lang] }");
    let target = "/page?h.Cache-Control=max-age=60&echo=x-country";
    let ask = |country: &str, lang: &str| {
        proxy.ask("GET", target, &format!("X-Country: {country}\r\nCookie: sid=1; lang={lang}\r\n")).whole(200)
    };
    for (country, lang, status) in [
        ("CH", "de", "headwall; fwd=uri-miss; stored"),
        ("DE", "de", "headwall; fwd=vary-miss; stored"),
        ("CH", "fr", "headwall; fwd=vary-miss; stored"),
    ] {
        assert_eq!(ask(country, lang).cache(), status, "{country} {lang}");
        let hit = ask(country, lang);
        assert!(hit.cache().starts_with("headwall; hit") && hit.text().ends_with(country), "{}", hit.text());
    }
    proxy.put("POST", target, "X-Country: XX\r\n", b"").whole(200);
    assert!(proxy.metric("headwall_cache_entries") < 1.0, "nothing of it is left");
    for (country, lang) in [("CH", "de"), ("DE", "de"), ("CH", "fr")] {
        assert!(ask(country, lang).text().starts_with("page v2"), "{country} {lang}");
    }
}

#[test]
fn under_force_only_the_named_cookies_reach_the_origin() {
    let origin = Origin::start();
    let proxy = site(&origin, "mode: force, ttl: 1m, key: { cookies: [lang] }");
    let ask = |cookie: &str| proxy.ask("GET", "/page?echo=cookie", &format!("Cookie: {cookie}\r\n")).whole(200);
    assert!(ask("sid=secret; lang=de; x=1").text().ends_with("for lang=de"));
    assert!(ask("lang=de; sid=another").cache().starts_with("headwall; hit"));
    assert!(ask("sid=secret").text().ends_with("for -"), "not even without the named one");
    assert!(proxy.get("/page?echo=cookie").cache().starts_with("headwall; hit"));
}

#[test]
fn parameters_that_do_not_count_reach_nobody() {
    let origin = Origin::start();
    let proxy = site(&origin, "key: { query: { drop: [\"utm_*\", gclid], sort: true } }");
    let page = "h.Cache-Control=max-age=60";
    assert_eq!(
        proxy.get(&format!("/page?utm_source=x&say=a&{page}&gclid=7")).whole(200).cache(),
        "headwall; fwd=uri-miss; stored"
    );
    assert_eq!(origin.requests("/page")[0]["url"], format!("/page?{page}&say=a"));
    for same in [format!("/page?{page}&say=a"), format!("/page?say=a&{page}"), format!("/page?gclid&{page}&say=a")] {
        assert!(proxy.get(&same).whole(200).cache().starts_with("headwall; hit"), "{same}");
    }
    proxy.put("POST", &format!("/page?say=a&utm_x=1&{page}"), "", b"").whole(200);
    assert_eq!(proxy.get(&format!("/page?{page}&say=a")).cache(), "headwall; fwd=uri-miss; stored");
    assert_eq!(proxy.get("/page?utm_source=only").whole(200).text(), "page v2 for site.test");
    assert_eq!(origin.requests("/page").last().unwrap()["url"], "/page");
}

#[test]
fn a_response_says_which_queries_get_it_too() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let said = "h.Cache-Control=max-age=60&h.No-Vary-Search=params%3D(%22utm%22)";
    let get = |query: &str| proxy.get(&format!("/page?{query}")).whole(200);
    assert_eq!(get(&format!("{said}&say=a")).cache(), "headwall; fwd=uri-miss; stored");
    for (query, text) in [(format!("{said}&say=a&utm=1"), "a"), (format!("utm=2&{said}&say=a"), "a")] {
        let reply = get(&query);
        assert!(reply.cache().starts_with("headwall; hit"), "{query}: {}", reply.cache());
        assert_eq!(reply.text(), text);
    }
    assert_eq!(get(&format!("{said}&say=b&utm=1")).text(), "b", "what counts still counts");
    // One that says nothing stands for its own query alone.
    let plain = "h.Cache-Control=max-age=60&say=c";
    assert_eq!(get(&format!("{plain}&utm=1")).cache(), "headwall; fwd=uri-miss; detail=search-changed");
    assert_eq!(get(plain).cache(), "headwall; fwd=uri-miss; stored");
    assert!(get(plain).cache().starts_with("headwall; hit"));
    // That one has taken back what was said.
    assert_eq!(get(&format!("{plain}&utm=1")).cache(), "headwall; fwd=uri-miss; stored");
    assert!(get(&format!("{plain}&utm=1")).cache().starts_with("headwall; hit"));
}

#[test]
fn a_write_reaches_what_is_stored_under_any_form_of_the_query_and_by_way_of_any_upstream() {
    let origin = Origin::start();
    let port = origin.port;
    let proxy = Headwall::start(&format!(
        "upstreams: {{ reader: {{ servers: [\"127.0.0.1:{port}\"] }}, writer: {{ servers: [\"127.0.0.1:{port}\"] }} }}\nroutes:\n  - match: {{ methods: [POST] }}\n    to: {{ proxy: writer }}\n  - to: {{ proxy: reader }}\n    cache: {{}}\n"
    ));
    let said = "h.Cache-Control=max-age=600&h.No-Vary-Search=params%3D(%22utm%22)";
    let raw = format!("/page?{said}&utm=1");
    proxy.get(&raw).whole(200);
    assert_eq!(proxy.get(&raw).cache(), "headwall; fwd=uri-miss; stored", "under the other form now");
    proxy.put("POST", &raw, "", b"").whole(200);
    // An answer without the field takes back what was said; the first form counts again, and is gone.
    proxy.get("/page?h.Cache-Control=max-age=600&utm=2").whole(200);
    assert!(proxy.get(&raw).text().starts_with("page v2"));
}

#[test]
fn a_write_reaches_every_form_that_was_ever_said_and_the_host_with_its_port() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let target = |said: &str, query: &str| {
        format!("/page?h.Cache-Control=max-age=600&h.No-Vary-Search=params%3D({said})&{query}")
    };
    // Stored under the first form, then under another one; the rule changes, and the write comes.
    let first = target("%22x%22", "x=1&y=1");
    proxy.get(&first).whole(200);
    proxy.get(&first).whole(200);
    proxy.get(&target("%22z%22", "z=1")).whole(200);
    proxy.put("POST", &first, "", b"").whole(200);
    proxy.get(&target("%22x%22", "x=9")).whole(200);
    assert!(proxy.get(&first).text().starts_with("page v2"));
    let plain = "/page?h.Cache-Control=max-age=600";
    proxy.get(plain).whole(200);
    let mut client = proxy.client();
    client.send(&format!("POST {plain} HTTP/1.1\r\nHost: site.test:80\r\nContent-Length: 0\r\n\r\n"));
    assert_eq!(client.response("POST").status, 200);
    assert_eq!(proxy.get(plain).cache(), "headwall; fwd=uri-miss; stored");
}

#[test]
fn a_session_that_is_renewed_with_a_304_goes_to_its_client_alone() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let target = "/page?etag=1&set304=sid%3D2&h.Vary=Origin,%20Accept-Encoding&h.Cache-Control=max-age=10";
    proxy.get(target).whole(200);
    proxy.clock.advance(seconds(11));
    let validated = proxy.get(target).whole(200);
    assert_eq!(validated.cache(), "headwall; fwd=stale; fwd-status=304; stored", "a 304 may name fewer fields in Vary");
    assert_eq!(validated.field("set-cookie"), "sid=2");
    let hit = proxy.get(target).whole(200);
    assert!(hit.cache().starts_with("headwall; hit") && !hit.has("set-cookie"), "{:?}", hit.fields);
    assert_eq!(hit.field("vary"), "Origin, Accept-Encoding");
}

#[test]
fn a_post_that_stands_for_a_get_is_stored_and_others_are_not() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    for (name, target, stored) in [
        ("fits", "/page?say=posted&h.Cache-Control=max-age=60&h.Content-Location=", true),
        ("has no length", "/chunks?pieces=posted&h.Cache-Control=max-age=60&h.Content-Location=", false),
        ("elsewhere", "/page?say=posted&h.Cache-Control=max-age=60&h.Content-Location=/other&x=", false),
        ("varies", "/page?say=posted&h.Vary=X&h.Cache-Control=max-age=60&h.Content-Location=", false),
        ("sets a cookie", "/page?say=posted&h.Set-Cookie=a=b&h.Cache-Control=max-age=60&h.Content-Location=", false),
    ] {
        // `Content-Location` is empty, and so names the target itself.
        proxy.get(target).whole(200);
        let forbids = proxy.put("POST", target, "Cache-Control: no-store\r\n", b"x").whole(200);
        assert_eq!(forbids.cache(), "headwall; fwd=method; detail=method", "RFC 9111 §5.2.1.5: {name}");
        proxy.get(target).whole(200);
        let posted = proxy.put("POST", target, "", b"x").whole(200);
        let status = if stored { "headwall; fwd=method; stored" } else { "headwall; fwd=method; detail=method" };
        assert_eq!(posted.cache(), status, "{name}");
        let asked = origin.count(target);
        let got = proxy.get(target).whole(200);
        assert_eq!(got.cache().starts_with("headwall; hit"), stored, "{name}: {}", got.cache());
        assert_eq!((got.text().as_str(), origin.count(target) - asked), ("posted", usize::from(!stored)), "{name}");
    }
    // While it is on its way nobody sees it, and half of it is nothing.
    let broken = "/broken?sized=1&h.Cache-Control=max-age=60&h.Content-Location=";
    let mut client = proxy.client();
    client.request("POST", broken, "");
    client.response("POST");
    assert!(!proxy.ask("HEAD", broken, "").cache().contains("hit"));
    // Nor is what a later write has overtaken.
    let slow = "/page?say=old&postwait=300&h.Cache-Control=max-age=60&h.Content-Location=";
    let mut client = proxy.client();
    client.request("POST", slow, "Content-Length: 0\r\n");
    wait_until(|| origin.count(slow) == 1);
    proxy.put("PUT", slow, "", b"new").whole(200);
    assert_eq!(client.response("POST").cache(), "headwall; fwd=method; detail=method");
}

#[test]
fn a_head_may_show_that_what_is_stored_is_no_longer_true_and_never_that_it_is() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let same = "/page?say=12345&h.Cache-Control=max-age=10&headlength=5&h.X-Gen=1";
    proxy.get(same).whole(200);
    proxy.clock.advance(seconds(11));
    assert_eq!(proxy.ask("HEAD", same, "").whole(200).cache(), "headwall; fwd=stale");
    assert_eq!(proxy.get(same).cache(), "headwall; fwd=stale; stored", "an equal length proves nothing");
    let other = "/page?say=123456&h.Cache-Control=max-age=60&headlength=5";
    proxy.get(other).whole(200);
    proxy.ask("HEAD", other, "Cache-Control: no-cache\r\n").whole(200);
    assert_eq!(proxy.get(other).cache(), "headwall; fwd=stale; stored", "another length shows that it changed");
    // What one client's HEAD brings is for that client.
    let own = "/page?headlength=5&say=12345&h.X-User=me&h.Cache-Control=max-age=10,private%3D%22x-user%22";
    proxy.get(own).whole(200);
    proxy.clock.advance(seconds(11));
    proxy.ask("HEAD", own, "").whole(200);
    proxy.get(own).whole(200);
    assert!(!proxy.get(own).has("x-user"));
}

#[test]
fn what_a_write_names_is_invalidated_too_if_it_is_here() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    for field in ["Location", "Content-Location"] {
        for (reference, goes) in [
            ("/page/list?h.Cache-Control=max-age=60", true),
            ("list?h.Cache-Control=max-age=60", true),
            ("http://site.test/page/list?h.Cache-Control=max-age=60", true),
            ("http://other.test/page/list?h.Cache-Control=max-age=60", false),
            ("/page/another?h.Cache-Control=max-age=60", false),
        ] {
            let list = "/page/list?h.Cache-Control=max-age=60";
            proxy.get(list).whole(200);
            assert!(proxy.get(list).cache().starts_with("headwall; hit"));
            let named = reference.replace('?', "%3F").replace('=', "%3D");
            let status = if field == "Location" { 303 } else { 200 };
            let write = format!("/page/new?status={status}&h.{field}={named}");
            proxy.put("POST", &write, "", b"").whole(status);
            let after = proxy.get(list).whole(200);
            assert_eq!(after.cache().contains("fwd=uri-miss"), goes, "{field}: {reference}: {}", after.cache());
        }
    }
}

#[test]
fn fields_for_the_first_client_alone_are_not_kept() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    for directive in ["private", "no-cache"] {
        let target = format!(
            "/page?x={directive}&h.X-User=me&h.Set-Cookie=sid=1&h.Cache-Control=max-age=60,{directive}%3D%22x-user,%20set-cookie%22"
        );
        let first = proxy.get(&target).whole(200);
        assert_eq!((first.field("x-user"), first.field("set-cookie")), ("me", "sid=1"), "{directive}");
        assert_eq!(first.cache(), "headwall; fwd=uri-miss; stored");
        let second = proxy.get(&target).whole(200);
        assert!(second.cache().starts_with("headwall; hit"), "{directive}");
        assert!(!second.has("x-user") && !second.has("set-cookie"), "{:?}", second.fields);
    }
}

#[test]
fn a_cookie_that_is_the_same_for_everybody_is_stored_where_the_route_names_it() {
    let origin = Origin::start();
    let proxy = site(&origin, "set_cookie: { store: [lang] }");
    for (set, stored) in [("lang=de", true), ("lang=de|sid=1", false), ("sid=1", false)] {
        let target = format!("/page?h.Cache-Control=max-age=60&h.Set-Cookie={set}");
        proxy.get(&target).whole(200);
        let second = proxy.get(&target).whole(200);
        assert_eq!(second.cache().starts_with("headwall; hit"), stored, "{set}: {}", second.cache());
        assert!(second.has("set-cookie"), "{set}");
    }
}

#[test]
fn the_origins_date_stays() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let date = "Sun, 06 Nov 1994 08:49:37 GMT";
    let target = "/page?h.Cache-Control=max-age=9999999999&h.Date=Sun,%2006%20Nov%201994%2008:49:37%20GMT";
    for status in ["headwall; fwd=uri-miss; stored", "headwall; hit"] {
        let reply = proxy.get(target).whole(200);
        assert!(reply.cache().starts_with(status), "{}", reply.cache());
        assert_eq!(reply.field("date"), date);
    }
    let long = "x".repeat(20_000);
    let large = proxy.get("/page?large=1&h.Date=Sun,%2006%20Nov%201994%2008:49:37%20GMT").whole(200);
    assert_eq!((large.field("date"), large.field("x-large")), (date, long.as_str()));
    let passed = proxy.get("/page?h.Date=Sun,%2006%20Nov%201994%2008:49:37%20GMT").whole(200);
    assert_eq!(passed.field("date"), date);
    for odd in ["yesterday", "Sun,%2006%20Nov%201994%2008:49:37%20UTC"] {
        let odd = proxy.get(&format!("/page?h.Date={odd}")).whole(200);
        assert!(odd.field("date").ends_with("GMT"), "one that is none is replaced (RFC 9110 §6.6.1)");
    }
    let none = proxy.get("/nobody-has-this").whole(200);
    assert!(none.field("date").ends_with("GMT"));
}

#[test]
fn an_interim_response_is_not_lost_when_the_final_one_is_stored() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    for round in 0..20 {
        let mut client = proxy.client();
        client.request("GET", &format!("/both?{round}"), "");
        let last = client.response("GET");
        assert_eq!((last.status, last.text().as_str(), last.interim.as_slice()), (200, "ok", &[103][..]), "{round}");
        assert_eq!(last.cache(), "headwall; fwd=uri-miss; stored");
        assert!(proxy.get(&format!("/both?{round}")).whole(200).cache().starts_with("headwall; hit"));
    }
}

#[test]
fn a_transfer_coding_that_does_not_exist_is_no_coding_and_others_are_refused() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let target = "/unframed?coding=identity";
    for status in ["headwall; fwd=uri-miss; stored", "headwall; hit"] {
        let reply = proxy.get(target).whole(200);
        assert!(reply.cache().starts_with(status), "{}", reply.cache());
        assert_eq!(reply.text(), "all of it");
    }
    for coding in ["gzip", "xchunked", "chunked;q=1", "identity,%20chunked"] {
        assert_eq!(proxy.get(&format!("/unframed?coding={coding}")).status, 502, "{coding}");
    }
}

#[test]
fn clients_that_insist_cost_one_validation_and_where_they_have_no_say_none() {
    let origin = Origin::start();
    let target = "/page?etag=1&wait=100&h.Cache-Control=max-age=60";
    for (settings, trips) in [("", 1), ("client_directives: ignore", 0)] {
        let proxy = site(&origin, settings);
        proxy.get(target).whole(200);
        let before = origin.count("/page");
        let replies = together(50, |_| proxy.ask("GET", target, "Cache-Control: no-cache\r\n").whole(200));
        assert_eq!(origin.count("/page") - before, trips, "{settings}");
        let how = tally(replies.iter().map(|reply| reply.cache().split(';').nth(1).unwrap_or("").trim().to_owned()));
        assert_eq!(how.get("fwd=request").copied().unwrap_or(0), trips, "{how:?}");
    }
}

#[test]
fn a_client_may_take_what_is_stale() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let target = "/page?etag=1&h.Cache-Control=max-age=10";
    proxy.get(target).whole(200);
    proxy.clock.advance(seconds(15));
    let stale = proxy.ask("GET", target, "Cache-Control: max-stale=60\r\n").whole(200);
    assert!(stale.cache().starts_with("headwall; hit; ttl=-"), "{}", stale.cache());
    assert!(stale.cache().ends_with("; detail=max-stale"), "{}", stale.cache());
    let strict = proxy.ask("GET", target, "Cache-Control: max-stale=2\r\n").whole(200);
    assert_eq!(strict.cache(), "headwall; fwd=stale; fwd-status=304; stored");
}

#[test]
fn who_asks_for_what_cannot_be_stored_waits_for_nobody() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    // None of these gets an answer before the others are with the origin too.
    let slow = "/page?h.Cache-Control=no-store&wait=1000";
    proxy.get(slow).whole(200);
    let before = origin.count(slow);
    let mut clients: Vec<_> = (0..50).map(|_| proxy.client()).collect();
    for client in &mut clients {
        client.request("GET", slow, "");
    }
    wait_until(|| origin.count(slow) - before == 50);
    for client in &mut clients {
        assert_eq!(client.response("GET").cache(), "headwall; fwd=uri-miss; detail=no-store");
    }
}

#[test]
fn a_line_of_leaders_that_fail_hands_over_and_nobody_goes_alone() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    // The first five are cut before their head, one after the other.
    let target = "/failing?times=5&wait=50&h.Cache-Control=max-age=60";
    let replies = together(30, |_| proxy.get(target));
    let how = tally(replies.iter().map(|reply| reply.status));
    assert_eq!(how.get(&200).copied().unwrap_or(0) + how.get(&502).copied().unwrap_or(0), 30, "{how:?}");
    assert_eq!(how.get(&502).copied().unwrap_or(0), 5, "only those that led: {how:?}");
    assert_eq!(origin.count("/failing"), 6);
}

#[test]
fn a_refresh_behind_passes_no_limit_and_ends_at_the_same_key() {
    let origin = Origin::start();
    let proxy = Headwall::before(
        &origin,
        "plugins: [{ rate_limit: { requests: 3, per: 1h } }]\nroutes:\n  - to: { proxy: app }\n    cache: { key: { query: { drop: [utm] }, headers: [X-V] } }",
    );
    let target = "/page?utm=1&h.Cache-Control=max-age=10,%20stale-while-revalidate=600";
    let ask = || proxy.ask("GET", target, "X-V: 1\r\n");
    ask().whole(200);
    proxy.clock.advance(seconds(20));
    assert!(ask().whole(200).cache().ends_with("detail=stale-while-revalidate"));
    wait_until(|| origin.count("/page") == 2 && proxy.metric("headwall_fills") < 1.0);
    let fresh = ask().whole(200);
    assert!(fresh.cache().starts_with("headwall; hit; ttl=") && !fresh.cache().contains("ttl=-"), "{}", fresh.cache());
    assert_eq!(ask().status, 429, "three requests of a client, and not one more");
    assert_eq!(origin.count("/page"), 2);
}
