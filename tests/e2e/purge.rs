//! Purging, at the admin listener and by the command line.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use serde_json::Value;

use crate::support::{Client, Headwall, Origin, run, wait_until};

const ROUTE: &str = "routes: [{ to: { proxy: app }, cache: {} }]";

/// Asks for a purge; status and answer.
fn ask(proxy: &Headwall, content: &str) -> (u16, String) {
    let mut client = Client::to(proxy.admin);
    client.send(&format!(
        "POST /purge HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{content}",
        content.len()
    ));
    let reply = client.response("POST");
    (reply.status, reply.text())
}

/// How many entries a purge has found.
fn purge(proxy: &Headwall, content: &str) -> u64 {
    let (status, text) = ask(proxy, content);
    assert_eq!(status, 200, "{text}");
    serde_json::from_str::<Value>(&text).unwrap()["entries"].as_u64().unwrap()
}

#[test]
fn what_is_meant_goes_with_all_its_variants_and_nothing_else() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let cc = "h.Cache-Control=max-age=60";
    let targets = [
        format!("/page/a?{cc}&h.Vary=X-V&h.Cache-Tag=one,two"),
        format!("/page/b?{cc}&h.Surrogate-Key=two%20three"),
        format!("/page/c?{cc}&h.Cache-Groups=%22one%22"),
        format!("/pagexyz?{cc}"),
    ];
    let fill = || {
        for target in &targets {
            for value in 1..=3 {
                proxy.ask("GET", target, &format!("X-V: {value}\r\n"));
            }
        }
    };
    let stored = |target: &str, value: u32| {
        let reply = proxy.ask("GET", target, &format!("X-V: {value}\r\nCache-Control: only-if-cached\r\n"));
        reply.status == 200
    };
    for (content, entries, left) in [
        ("{\"tag\": \"one\"}", 4, &[false, true, false, true][..]),
        ("{\"tag\": \"two\"}", 4, &[false, false, true, true]),
        ("{\"tag\": \"on\"}", 0, &[true, true, true, true]),
        ("{\"prefix\": \"/page/\"}", 5, &[false, false, false, true]),
        ("{\"prefix\": \"http://site.test/page\"}", 6, &[false, false, false, false]),
        ("{\"prefix\": \"http://other.test/page\"}", 0, &[true, true, true, true]),
        ("{\"host\": \"site.test\"}", 6, &[false, false, false, false]),
        ("{\"all\": true}", 6, &[false, false, false, false]),
    ] {
        fill();
        let dry = content.replace('}', ", \"dry_run\": true}");
        assert_eq!(purge(&proxy, &dry), entries, "{dry}");
        assert!(targets.iter().all(|target| stored(target, 1)), "nothing has changed");
        assert_eq!(purge(&proxy, content), entries, "{content}");
        assert_eq!(purge(&proxy, content), 0, "{content}");
        let there: Vec<_> = targets.iter().map(|target| stored(target, 1)).collect();
        assert_eq!(there, left, "{content}");
        assert_eq!(stored(&targets[0], 3), left[0], "variants go too: {content}");
    }
    fill();
    let url = format!("{{\"url\": \"https://site.test{}\"}}", targets[0]);
    assert_eq!((purge(&proxy, &url), stored(&targets[0], 2), stored(&targets[1], 1)), (3, false, true));
    purge(&proxy, "{\"all\": true}");
    assert!(proxy.metric("headwall_cache_entries") < 1.0);
}

#[test]
fn a_soft_purge_makes_stale() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let target =
        "/page?etag=1&h.Cache-Control=max-age=60,%20stale-while-revalidate=600,%20stale-if-error=600&h.Cache-Tag=t";
    proxy.get(target).whole(200);
    assert_eq!(purge(&proxy, "{\"tag\": \"t\", \"soft\": true}"), 1);
    assert_eq!(
        proxy.get(target).cache(),
        "headwall; fwd=stale; fwd-status=304; stored",
        "not used before it is validated"
    );
    assert!(proxy.get(target).cache().starts_with("headwall; hit"));
    assert_eq!(purge(&proxy, "{\"tag\": \"t\", \"soft\": true}"), 1);
    drop(origin);
    assert!(proxy.get(target).whole(200).cache().ends_with("detail=stale-if-error"));
}

#[test]
fn a_url_means_every_form_in_which_it_may_be_stored() {
    let origin = Origin::start();
    let route = "routes: [{ to: { proxy: app }, cache: { key: { query: { drop: [utm], sort: true } } } }]";
    let proxy = Headwall::before(&origin, route);
    let cc = "h.Cache-Control=max-age=60";
    proxy.get(&format!("/page?utm=1&{cc}&b=1&a=2")).whole(200);
    assert_eq!(purge(&proxy, &format!("{{\"url\": \"/page?b=1&{cc}&utm=3&a=2\"}}")), 1);
    let search = "h.No-Vary-Search=params%3D(%22x%22)";
    proxy.get(&format!("/page?{cc}&{search}&x=1")).whole(200);
    assert_eq!(proxy.get(&format!("/page?{cc}&{search}&x=2")).cache(), "headwall; fwd=uri-miss; stored");
    assert_eq!(purge(&proxy, &format!("{{\"url\": \"/page?x=9&{search}&{cc}\"}}")), 1);
}

#[test]
fn what_is_on_its_way_is_not_stored() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    for (name, target) in [
        ("the head is not here yet", "/page?wait=300&h.Cache-Control=max-age=60&h.Cache-Tag=t&n=1"),
        ("the content is not", "/chunks?pieces=a%20b%20c%20d&pace=100&h.Cache-Control=max-age=60&h.Cache-Tag=t&n=2"),
    ] {
        for content in
            ["{\"tag\": \"t\"}", "{\"all\": true}", "{\"prefix\": \"/\"}", "{\"tag\": \"t\", \"soft\": true}"]
        {
            let before = origin.count(target);
            let mut client = proxy.client();
            client.request("GET", target, "");
            wait_until(|| origin.count(target) == before + 1);
            purge(&proxy, content);
            let reply = client.response("GET");
            assert_eq!(reply.status, 200, "{name}");
            let next = proxy.get(target).whole(200);
            assert!(!next.cache().contains("hit"), "{name}, {content}: {}", next.cache());
            assert_eq!(origin.count(target), before + 2, "{name}, {content}");
            purge(&proxy, "{\"all\": true}");
        }
    }
}

#[test]
fn nothing_old_is_served_after_a_purge_whatever_races_it() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let target = "/page?h.Cache-Control=max-age=600&h.Cache-Tag=t";
    let done = AtomicBool::new(false);
    let mut old = Vec::new();
    let version = |text: &str| -> u64 { text.trim_start_matches("page v").split(' ').next().unwrap().parse().unwrap() };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    proxy.get(target);
                }
            });
        }
        scope.spawn(|| {
            while !done.load(Relaxed) {
                purge(&proxy, "{\"all\": true, \"soft\": true}");
            }
        });
        for round in 0..250u64 {
            // Each POST makes a new version; one to elsewhere invalidates nothing by itself.
            let made = version(&proxy.put("POST", "/page/elsewhere", "", b"").whole(200).text());
            for content in ["{\"tag\": \"t\"}", "{\"url\": \"/page?h.Cache-Control=max-age=600&h.Cache-Tag=t\"}"] {
                purge(&proxy, content);
                let now = version(&proxy.get(target).whole(200).text());
                if now < made {
                    old.push(format!("round {round}: {now} after {made}"));
                }
            }
        }
        done.store(true, Relaxed);
    });
    assert!(old.is_empty(), "{old:?}");
}

#[test]
fn a_purge_that_is_none_says_what_one_is() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    for content in ["", "{}", "{\"tag\": \"a\", \"all\": true}", "{\"tags\": \"a\"}", "{\"url\": \"x\"}"] {
        let (status, text) = ask(&proxy, content);
        assert!(status == 400 && text.contains("shop.example.com"), "{content}: {status} {text}");
    }
    let mut client = Client::to(proxy.admin);
    client.send(
        "POST /purge HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\n{\"all\": true}",
    );
    assert_eq!(client.response("POST").status, 415, "a browser's page may send this without asking");
    let mut client = Client::to(proxy.admin);
    client.send("GET /purge HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    assert_eq!(client.response("GET").status, 404);
}

#[test]
fn the_command_line_purges_too() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let admin = proxy.admin.to_string();
    let target = "/page?h.Cache-Control=max-age=60&h.Cache-Tag=t";
    proxy.get(target).whole(200);
    let headwall = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_headwall"));
        run(command.arg("purge").args(arguments).args(["--admin", &admin]))
    };
    let (code, out, _) = headwall(&["--tag", "t", "--dry-run"]);
    assert!(code == 0 && out.starts_with("{\"entries\":1,") && out.contains("\"dry_run\":true"), "{out}");
    let (code, out, _) = headwall(&["--prefix", "/page"]);
    assert!(code == 0 && out.starts_with("{\"entries\":1,"), "{out}");
    assert_eq!(headwall(&[]).0, 2);
    assert_eq!(headwall(&["--tag", "a", "--all"]).0, 2);
    let (code, _, told) = headwall(&["--url", "nowhere"]);
    assert!(code == 1 && told.contains("https://shop.example.com"), "{told}");
}

#[test]
fn tags_end_here_where_the_route_says_so() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, "routes: [{ to: { proxy: app }, cache: { strip_tags: true } }]");
    let target = "/page?h.Cache-Control=max-age=60&h.Cache-Tag=t&h.Surrogate-Key=t&h.Cache-Groups=%22t%22";
    for status in ["headwall; fwd=uri-miss; stored", "headwall; hit"] {
        let reply = proxy.get(target).whole(200);
        assert!(reply.cache().starts_with(status), "{}", reply.cache());
        for name in ["cache-tag", "surrogate-key", "cache-groups"] {
            assert!(!reply.has(name), "{name}");
        }
    }
    assert_eq!(purge(&proxy, "{\"tag\": \"t\"}"), 1);
}
