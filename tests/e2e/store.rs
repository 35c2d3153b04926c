//! The key/value store over real connections; its rules are tested in the handler.

use std::process::Command;

use crate::support::{Headwall, Origin, run, together};

const ROUTES: &str = "routes:\n  - match: { prefix: /cache/ }\n    to: { kv: { memory: 4MiB, max_value: 1MiB } }\n  - to: { proxy: app }\n    cache: {}\n";

#[test]
fn the_seeds_curl_lines_work() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTES);
    let url = format!("http://{}/cache/Hello", proxy.address);
    let curl = |arguments: &[&str]| {
        let (code, out, _) =
            run(Command::new("curl").args(["-s", "-w", " %{http_code} %{content_type}"]).args(arguments));
        assert_eq!(code, 0);
        out
    };
    assert_eq!(curl(&["-X", "PUT", "-H", "Content-Type: text/html", "-d", "World", &url]).trim(), "201");
    assert_eq!(curl(&[&url]), "World 200 text/html");
    assert_eq!(curl(&["-X", "PUT", "-d", "a=b&c=d", &format!("{url}?ttl=1")]).trim(), "200");
    assert_eq!(curl(&[&url]), "a=b&c=d 200 application/x-www-form-urlencoded");
    proxy.clock.advance(std::time::Duration::from_secs(1));
    assert!(curl(&[&url]).contains("404"));
    curl(&["-X", "PUT", "-d", "World", &url]);
    assert_eq!(curl(&["-X", "DELETE", &url]).trim(), "204");
    assert!(curl(&[&url]).contains("404"));
    // A megabyte makes curl ask first.
    let file = crate::support::TempFile::new("value", &"x".repeat(1 << 20));
    assert_eq!(curl(&["-T", file.path(), &url]).trim(), "201");
    assert_eq!(origin.count("/cache"), 0);
    assert!(proxy.get("/cached-page").text().contains("page"), "whole segments");
}

#[test]
fn a_value_that_is_too_long_costs_the_connection_only_if_it_is_long() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, &ROUTES.replace("max_value: 1MiB", "max_value: 1KiB"));
    let mut client = proxy.client();
    client.request("PUT", "/cache/k", "Content-Length: 2000\r\n");
    client.send(&"x".repeat(2000));
    client.response("PUT").whole(413);
    client.request("PUT", "/cache/k", "Transfer-Encoding: chunked\r\n");
    client.send(&format!("7d0\r\n{}\r\n0\r\n\r\n", "x".repeat(2000)));
    client.response("PUT").whole(413);
    client.request("POST", "/cache/k", "Content-Length: 2\r\n");
    client.send("hi");
    client.response("POST").whole(405);
    client.request("GET", "/cache/k", "");
    client.response("GET").whole(404);

    let mut client = proxy.client();
    client.request("PUT", "/cache/k", "Content-Length: 100000000\r\n");
    let refused = client.response("PUT").whole(413);
    assert_eq!(refused.field("connection"), "close");
    let mut client = proxy.client();
    client.request("PUT", "/cache/k", "Content-Length: 5000\r\nExpect: 100-continue\r\n");
    let refused = client.response("PUT").whole(413);
    assert!(refused.interim.is_empty(), "it is refused before it is sent");
}

#[test]
fn a_put_that_is_cut_changes_nothing() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTES);
    proxy.put("PUT", "/cache/k", "", b"whole").whole(201);
    let mut client = proxy.client();
    client.request("PUT", "/cache/k", "Content-Length: 100\r\n");
    client.send("half");
    drop(client);
    // The next request sees whatever the cut one did.
    assert_eq!(proxy.get("/cache/k").whole(200).text(), "whole");
}

#[test]
fn parallel_puts_leave_one_whole_value() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTES);
    together(8, |number| {
        let value = vec![b'a' + number as u8; 50_000];
        for _ in 0..10 {
            proxy.put("PUT", "/cache/k", "", &value);
            let got = proxy.get("/cache/k").whole(200).content;
            assert!(got.len() == 50_000 && got.iter().all(|byte| *byte == got[0]));
        }
    });
}

#[test]
fn expired_values_give_their_memory_back_unasked() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTES);
    for number in 0..50 {
        proxy.put("PUT", &format!("/cache/{number}?ttl=60"), "", &[b'x'; 10_000]).whole(201);
    }
    assert!(proxy.metric("headwall_kv_bytes") > 500_000.0);
    proxy.clock.advance(std::time::Duration::from_secs(60));
    crate::support::wait_until(|| proxy.metric("headwall_kv_entries") == 0.0);
    assert_eq!(proxy.metric("headwall_kv_bytes"), 0.0);
}

#[test]
fn a_local_proxy_that_is_not_trusted_opens_nothing() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTES);
    proxy.ask("GET", "/cache/k", "X-Forwarded-For: 203.0.113.9\r\n").whole(403);
    let trusting = Headwall::before(&origin, &format!("trust: {{ proxies: [127.0.0.1] }}\n{ROUTES}"));
    trusting.ask("GET", "/cache/k", "X-Forwarded-For: 203.0.113.9\r\n").whole(403);
    trusting.ask("GET", "/cache/k", "X-Forwarded-For: 127.0.0.1\r\n").whole(404);
}
