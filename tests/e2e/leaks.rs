//! The leak guard: what is not for all is not stored, what could mislead does not get through, and both are counted.

use crate::support::{Headwall, Origin};

const ROUTES: &str = "routes:\n  - { match: { prefix: /force/ }, to: { proxy: app }, cache: { mode: force, ttl: 1m } }\n  - \
                      { to: { proxy: app }, cache: {} }";

/// How often the guard has refused for this reason.
fn leaks(proxy: &Headwall, route: &str, reason: &str) -> f64 {
    proxy.metric(&format!("headwall_would_have_leaked_total{{reason=\"{reason}\",route=\"{route}\"}}"))
}

#[test]
fn what_others_would_have_given_away_is_counted_by_its_reason() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTES);
    let cc = "h.Cache-Control=max-age=60";
    let guessed = "h.Last-Modified=Sat,%2005%20Nov%201994%2008:49:37%20GMT";
    for (target, fields, reason) in [
        (format!("/page?{cc}&h.Set-Cookie=a=b"), "", "set-cookie"),
        (format!("/page?{cc},%20private"), "", "private"),
        (format!("/page?{cc}&n=1"), "Authorization: Basic YTpi\r\n", "authorization"),
        (format!("/page?{guessed}"), "Cookie: a=b\r\n", "no-heuristic"),
        (format!("/page?{cc}&h.Vary=*"), "", "vary-star"),
        (format!("/page?{cc}&n=2"), "X-Forwarded-User: ann\r\n", "unkeyed-field"),
        (format!("/page?{cc}&n=3"), "X-Nextjs-Data: 1\r\n", "unkeyed-field"),
        (format!("/page/;x.css?{guessed}"), "", "ambiguous-path"),
        ("/force/page?n=4".into(), "Cookie: a=b\r\n", "cookie"),
        ("/force/page?n=5".into(), "Authorization: Basic YTpi\r\n", "authorization"),
        ("/force/page?status=400".into(), "", "request-fault"),
        ("/force/page?status=431".into(), "", "request-fault"),
        ("/force/..%2faccount/x.css".into(), "", "ambiguous-path"),
        ("/force/account;x.css".into(), "", "ambiguous-path"),
    ] {
        let route = if target.starts_with("/force") { "/force/*" } else { "*" };
        let before = leaks(&proxy, route, reason);
        for _ in 0..2 {
            let reply = proxy.ask("GET", &target, fields);
            let told = format!("detail={reason}");
            assert!(reply.cache().ends_with(&told), "{target}: {} is not {told}", reply.cache());
        }
        assert!((leaks(&proxy, route, reason) - before - 2.0).abs() < 0.1, "{target}, {reason}");
        assert_eq!(origin.count(&target), 2, "{target}");
    }
    let named = Headwall::before(
        &origin,
        "routes: [{ to: { proxy: app }, cache: { mode: force, ttl: { 200: 1m, 400: 10s } } }]",
    );
    for status in ["headwall; fwd=uri-miss; stored", "headwall; hit; ttl="] {
        assert!(named.get("/page?status=400&n=7").cache().starts_with(status), "the file names it");
    }
    let before = leaks(&proxy, "*", "request-content");
    assert!(proxy.put("GET", &format!("/page?{cc}&n=6"), "", b"fat").cache().ends_with("detail=request-content"));
    assert!((leaks(&proxy, "*", "request-content") - before - 1.0).abs() < 0.1);
    for target in ["/page?h.Set-Cookie=a=b", "/page?h.Cache-Control=no-store", "/page?h.Cache-Control=private"] {
        proxy.get(target).whole(200);
    }
    assert!((leaks(&proxy, "*", "set-cookie") - 2.0).abs() < 0.1, "nobody stores what says nothing");
    assert!((leaks(&proxy, "*", "private") - 2.0).abs() < 0.1);
}

#[test]
fn an_odd_path_is_stored_in_its_own_words_where_the_app_says_for_how_long() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTES);
    let cc = "?h.Cache-Control=max-age=60";
    let paths = ["/page/a%2Fb", "/page/a/b", "/page//a/b", "/page/a;b", "/page/a%3Bb", "/page/a%252Fb", "/page/%61/b"];
    for path in paths {
        let target = format!("{path}{cc}");
        assert_eq!(proxy.get(&target).whole(200).cache(), "headwall; fwd=uri-miss; stored", "{path}");
        assert!(proxy.get(&target).whole(200).cache().starts_with("headwall; hit"), "{path}");
    }
    assert_eq!(origin.count("/page"), paths.len());
}

#[test]
fn what_could_mislead_the_app_does_not_reach_it_and_is_counted() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTES);
    for (number, (line, reason)) in [
        ("X-Forwarded-Host: evil.test", "other-target"),
        ("X-Forwarded-Scheme: nothttps", "other-target"),
        ("X-Forwarded-Port: 1", "other-target"),
        ("X-Forwarded-Prefix: /evil", "other-target"),
        ("X-Original-URL: /admin", "other-target"),
        ("X-Rewrite-URL: /admin", "other-target"),
        ("X-Host: evil.test", "other-target"),
        ("X-Nuxt-No-SSR: 1", "other-target"),
        ("X-Middleware-Subrequest: middleware", "other-target"),
        ("X-HTTP-Method-Override: DELETE", "method-override"),
        ("X-Method-Override: DELETE", "method-override"),
    ]
    .into_iter()
    .enumerate()
    {
        let before = leaks(&proxy, "*", reason);
        let target = format!("/page?h.Cache-Control=max-age=60&n={number}");
        assert_eq!(proxy.ask("GET", &target, &format!("{line}\r\n")).cache(), "headwall; fwd=uri-miss; stored");
        assert!(proxy.get(&target).cache().starts_with("headwall; hit"), "{line}");
        let name = line.split(':').next().unwrap().to_ascii_lowercase();
        let seen = origin.field(&target, &name).filter(|seen| seen != "site.test");
        assert_eq!(seen, None, "{line}");
        assert!((leaks(&proxy, "*", reason) - before - 1.0).abs() < 0.1, "{line}");
    }
    proxy.ask("GET", "/page", "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Host: site.test\r\n").whole(200);
    let all = leaks(&proxy, "*", "other-target");
    assert!((all - 9.0).abs() < 0.1, "what is the case anyway misleads nobody: {all}");
}

#[test]
fn the_host_is_told_in_the_words_of_the_key() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTES);
    for host in ["Site.TEST", "site.test"] {
        let mut client = proxy.client();
        client.send(&format!("GET /page?h.Cache-Control=max-age=60 HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(client.response("GET").whole(200).text(), "page v1 for site.test");
    }
    assert_eq!(origin.count("/page"), 1);
    let mut client = proxy.client();
    client.send("GET http://other.test/page HTTP/1.1\r\nHost: site.test\r\n\r\n");
    assert_eq!(client.response("GET").status, 400);
    assert_eq!(origin.count("/page"), 1);
}

#[test]
fn what_a_client_wants_taken_off_on_the_way_chooses_no_variant() {
    let origin = Origin::start();
    let proxy = Headwall::before(
        &origin,
        "routes: [{ to: { proxy: app }, cache: { key: { headers: [X-Country] } }, plugins: [{ headers: { request: { set: { \
         X-Role: guest } } } }] }]",
    );
    for (field, vary) in [("Accept-Language", "Accept-Language"), ("RSC", "RSC"), ("X-Country", "Origin")] {
        let target = format!("/page?h.Cache-Control=max-age=60&h.Vary={vary}&echo={}", field.to_ascii_lowercase());
        let stranger = proxy.ask("GET", &target, &format!("Connection: keep-alive, {field}\r\n{field}: fr\r\n"));
        assert!(stranger.text().ends_with("for -"), "the app did not see {field}");
        let another = proxy.ask("GET", &target, &format!("{field}: fr\r\n"));
        assert!(another.text().ends_with("for fr") && !another.cache().contains("hit"), "{field}: {}", another.text());
        assert!(proxy.get(&target).whole(200).text().ends_with("for -"), "{field}: who sends none gets the first one");
    }
    proxy.ask("GET", "/role", "Connection: X-Role\r\nX-Role: admin\r\n").whole(200);
    assert_eq!(origin.field("/role", "x-role").as_deref(), Some("guest"), "what a plugin says cannot be taken off");
}

#[test]
fn a_reason_counts_once_for_a_request() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTES);
    let fields = "X-Original-Url: /x\r\nX-Http-Method: PUT\r\nX-Host: evil.test\r\nX-Method-Override: PUT\r\nX-Rewrite-Url: /y\r\n";
    proxy.ask("GET", "/page", fields).whole(200);
    for reason in ["other-target", "method-override"] {
        assert!((leaks(&proxy, "*", reason) - 1.0).abs() < 0.1, "{reason}: {}", leaks(&proxy, "*", reason));
    }
}
