//! Purging, at the admin listener and by the command line.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use serde_json::Value;

use crate::support::{self, Client, Headwall, Origin, Process, Response, TempFile, free_port, metric, run, wait_until};

const ROUTE: &str = "routes: [{ to: { proxy: app }, cache: {} }]";

/// How many entries a purge has found.
fn purge(proxy: &Headwall, content: &str) -> u64 {
    serde_json::from_str::<Value>(&proxy.purge(content)).unwrap()["entries"].as_u64().unwrap()
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
fn a_url_means_what_it_meant_before_a_reload_too() {
    let origin = Origin::start();
    let (port, admin) = (free_port(), free_port());
    let (address, admin) = (SocketAddr::from(([127, 0, 0, 1], port)), SocketAddr::from(([127, 0, 0, 1], admin)));
    let yaml = |cache: &str| {
        format!(
            "listen: [\"{address}\"]\nadmin: {{ listen: \"{admin}\" }}\n\
             upstreams: {{ app: {{ servers: [\"127.0.0.1:{}\"] }} }}\n\
             routes: [{{ to: {{ proxy: app }}, cache: {cache} }}]",
            origin.port
        )
    };
    let dropping = yaml("{ key: { query: { drop: [utm] } } }");
    let file = TempFile::new("forms.yaml", &dropping);
    let proxy = Process::start(&["run", "--config", file.path()]).ready(port);
    let target = "/page?h.Cache-Control=max-age=60&utm=1";
    let get = || {
        let mut client = Client::to(address);
        client.request("GET", target, "");
        client.response("GET").whole(200).cache().to_owned()
    };
    let reload = |text: &str, times: f64| {
        std::fs::write(file.path(), text).unwrap();
        proxy.signal("HUP");
        wait_until(|| metric(admin, "headwall_reloads_total{result=\"ok\"}") == times);
    };
    assert_eq!(get(), "headwall; fwd=uri-miss; stored");
    reload(&yaml("{}"), 1.0);
    let (status, text) = support::purge(admin, &format!("{{\"url\": \"http://site.test{target}\"}}"));
    assert!(status == 200 && text.starts_with("{\"entries\":1,"), "{text}");
    reload(&dropping, 2.0);
    assert_eq!(get(), "headwall; fwd=uri-miss; stored");
    // So does a write.
    reload(&yaml("{}"), 3.0);
    let mut client = Client::to(address);
    client.request("POST", target, "Content-Length: 0\r\n");
    client.response("POST").whole(200);
    reload(&dropping, 4.0);
    assert_eq!(get(), "headwall; fwd=uri-miss; stored");
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
fn a_validation_that_is_under_way_makes_nothing_fresh_again() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    for (number, content) in
        ["{\"tag\": \"t\", \"soft\": true}", "{\"tag\": \"t\"}", "{\"all\": true}"].iter().enumerate()
    {
        let target = format!("/page?late=300&etag=1&h.Cache-Control=max-age=60&h.Cache-Tag=t&n={number}");
        let old = proxy.get(&target).whole(200).text();
        assert_eq!(purge(&proxy, "{\"tag\": \"t\", \"soft\": true}"), 1);
        let mut client = proxy.client();
        client.request("GET", &target, "");
        wait_until(|| origin.count(&target) == 2);
        proxy.put("POST", "/page/elsewhere", "", b"").whole(200);
        purge(&proxy, content);
        assert_eq!(client.response("GET").whole(200).text(), old, "asked for before the purge");
        let next = proxy.get(&target).whole(200);
        assert!(!next.cache().contains("hit") && next.text() != old, "{content}: {}, {}", next.cache(), next.text());
        purge(&proxy, "{\"all\": true}");
    }
}

#[test]
fn what_a_soft_purge_meets_while_it_is_replaced_may_still_stand_in() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let cc = "h.Cache-Control=max-age=60,%20stale-if-error=600&h.Cache-Tag=t";
    let target = format!("/chunks?pieces=a%20b%20c%20d&pace=100&{cc}");
    proxy.get(&target).whole(200);
    assert_eq!(purge(&proxy, "{\"tag\": \"t\", \"soft\": true}"), 1);
    let mut client = proxy.client();
    client.request("GET", &target, "");
    assert_eq!(client.head().cache(), "headwall; fwd=stale; stored", "its content is still to come");
    assert_eq!(purge(&proxy, "{\"tag\": \"t\", \"soft\": true}"), 1);
    drop(origin);
    client.closed();
    assert!(proxy.get(&target).whole(200).cache().ends_with("detail=stale-if-error"));
}

/// Ends the others too when a test fails in their midst.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// The version that a response is of: a page, or lines of a file, of which it may be a part.
fn version(reply: &Response, first: u64) -> u64 {
    let (text, said) = (reply.text(), reply.field("etag").trim_matches('"').trim_start_matches('f').to_owned());
    if let Some(page) = text.strip_prefix("page v") {
        return page.split(' ').next().unwrap().parse().unwrap();
    }
    for (number, line) in text.as_bytes().chunks_exact(10).enumerate() {
        let places = 9 - said.len();
        let expected = format!("{said}{:0places$}\n", first as usize / 10 + number);
        assert_eq!(line, expected.as_bytes(), "all of one version, and each byte where it belongs");
    }
    said.parse().unwrap()
}

/// A thousand changes at the origin, each followed by a purge or written through the proxy, while clients fill,
/// validate and ask for parts, somebody else purges, and the file is reloaded: who asks afterwards gets the new version.
#[test]
fn nothing_old_is_served_after_a_purge_whatever_races_it() {
    let origin = Origin::start();
    let (port, admin) = (free_port(), free_port());
    let (address, admin) = (SocketAddr::from(([127, 0, 0, 1], port)), SocketAddr::from(([127, 0, 0, 1], admin)));
    let yaml = |number: usize| {
        format!(
            "threads: 2\nlisten: [\"{address}\"]\nadmin: {{ listen: \"{admin}\" }}\n\
             upstreams: {{ app: {{ servers: [\"127.0.0.1:{}\"] }} }}\n\
             routes:\n\
             - {{ match: {{ prefix: /file/sliced }}, to: {{ proxy: app }}, cache: {{ slice: 64KiB }} }}\n\
             - {{ to: {{ proxy: app }}, cache: {{ stale_if_error: {number}s }} }}",
            origin.port
        )
    };
    let file = TempFile::new("race.yaml", &yaml(1));
    let proxy = Process::start(&["run", "--config", file.path()]).ready(port);
    let write = |target: &str| {
        let mut client = Client::to(address);
        client.request("POST", target, "Content-Length: 0\r\n");
        client.response("POST").whole(200)
    };
    let done = AtomicBool::new(false);
    // Of a file now all, now a part: in one slice, or over two.
    let get = |target: &str, turn: usize| {
        let mut client = Client::to(address);
        let part = [Some((0, 99)), Some((1000, 70_999)), None, Some((80_000, 80_099))][turn % 4];
        let part = part.filter(|_| target.starts_with("/file"));
        let range = part.map_or_else(String::new, |(first, last)| format!("Range: bytes={first}-{last}\r\n"));
        client.request("GET", target, &range);
        let reply = client.response("GET");
        assert_eq!(reply.status, if part.is_some() { 206 } else { 200 });
        let version = version(&reply, part.map_or(0, |(first, _)| first));
        // Who gets one slice, and then there is another version, is cut off.
        assert!(reply.complete || target.starts_with("/file/sliced"));
        version
    };
    let targets = [
        "/page?late=2&h.Cache-Control=max-age=600&h.Cache-Tag=t&n=1",
        "/page?late=2&h.Cache-Control=max-age=600&h.Cache-Tag=t&n=2&etag=1",
        "/page?late=2&h.Cache-Control=max-age=600&h.Cache-Tag=t&n=3&etag=1&h.Vary=X-V",
        "/file?size=100000&late=2&h.Cache-Control=max-age=600&h.Cache-Tag=t",
        "/file/sliced?size=100000&late=2&h.Cache-Control=max-age=600&h.Cache-Tag=t",
    ];
    let mut old = Vec::new();
    std::thread::scope(|scope| {
        let _over = Over(&done);
        for number in 0..2 {
            let (done, get) = (&done, &get);
            scope.spawn(move || {
                for (turn, target) in targets.iter().cycle().skip(number).enumerate() {
                    if done.load(Relaxed) {
                        return;
                    }
                    get(target, turn / targets.len() + number);
                    if turn % 4 == number {
                        assert_eq!(support::purge(admin, "{\"tag\": \"t\", \"soft\": true}").0, 200);
                    }
                }
            });
        }
        for round in 0..1000 {
            if round % 5 == 0 {
                std::fs::write(file.path(), yaml(1 + round % 9)).unwrap();
                proxy.signal("HUP");
            }
            let target = targets[round % targets.len()];
            let content = match round % 7 {
                0 => "{\"tag\": \"t\"}".into(),
                1 => format!("{{\"url\": \"{target}\"}}"),
                2 => format!("{{\"prefix\": \"{}\"}}", &target[..5]),
                3 => "{\"all\": true}".into(),
                4 => "{\"tag\": \"t\", \"soft\": true}".into(),
                5 => format!("{{\"url\": \"http://site.test{target}\", \"soft\": true}}"),
                _ => String::new(),
            };
            // Each POST to a page makes a new version; one to elsewhere invalidates nothing by itself.
            let page = content.is_empty() && target.starts_with("/page");
            let made = version(&write(if page { target } else { "/page/elsewhere" }), 0);
            if content.is_empty() && !page {
                write(target);
            }
            if !content.is_empty() {
                let (status, text) = support::purge(admin, &content);
                assert_eq!(status, 200, "{text}");
            }
            let now = get(target, round / targets.len());
            if now < made {
                old.push(format!("round {round}, {content}: {now} after {made}"));
            }
        }
    });
    assert!(old.is_empty(), "{old:?}");
}

#[test]
fn a_purge_that_is_none_says_what_one_is() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    for content in ["", "{}", "{\"tag\": \"a\", \"all\": true}", "{\"tags\": \"a\"}", "{\"url\": \"x\"}"] {
        let (status, text) = support::purge(proxy.admin, content);
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

#[test]
fn values_of_the_store_go_with_the_responses_of_their_tag() {
    let origin = Origin::start();
    let routes = "routes: [{ match: { prefix: /kv/ }, to: { kv: {} } }, { to: { proxy: app }, cache: {} }]";
    let proxy = Headwall::before(&origin, routes);
    let target = "/page?h.Cache-Control=max-age=60&h.Cache-Tag=t";
    proxy.get(target).whole(200);
    proxy.put("PUT", "/kv/a", "Cache-Tag: t\r\n", b"a").whole(201);
    proxy.put("PUT", "/kv/b", "Cache-Tag: u\r\n", b"b").whole(201);
    for (content, expected) in [
        ("{\"tag\": \"t\", \"dry_run\": true}", "{\"entries\":2,"),
        ("{\"url\": \"/kv/a\"}", "{\"entries\":0,"),
        ("{\"tag\": \"t\"}", "{\"entries\":2,"),
        ("{\"all\": true}", "{\"entries\":0,"),
    ] {
        let (status, text) = support::purge(proxy.admin, content);
        assert!(status == 200 && text.starts_with(expected), "{content}: {text}");
        assert_eq!(text.contains("\"kv\":1,"), content.contains("tag"), "{content}: {text}");
    }
    assert_eq!((proxy.get("/kv/a").status, proxy.get("/kv/b").status), (404, 200));
    assert_eq!(proxy.get(target).cache(), "headwall; fwd=uri-miss; stored");
}

#[test]
fn what_has_more_tags_than_are_listed_is_not_stored() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let target = |count: usize| {
        let tags = (0..count).map(|number| number.to_string()).collect::<Vec<_>>().join(",");
        format!("/page?h.Cache-Control=max-age=60&h.Cache-Tag={tags}")
    };
    assert_eq!(proxy.get(&target(1000)).whole(200).cache(), "headwall; fwd=uri-miss; stored");
    assert_eq!(purge(&proxy, "{\"tag\": \"999\"}"), 1);
    assert_eq!(proxy.get(&target(1001)).whole(200).cache(), "headwall; fwd=uri-miss; detail=too-many-tags");
}

#[test]
fn clients_of_named_networks_purge_their_target() {
    let origin = Origin::start();
    let proxy = Headwall::before(
        &origin,
        "routes:\n\
         - match: { prefix: /far/ }\n  to: { proxy: app }\n  cache: { purge: { allow: [192.0.2.0/24] } }\n\
         - match: { prefix: /none/ }\n  to: { proxy: app }\n  cache: {}\n\
         - match: { prefix: /behind/, methods: [PURGE] }\n  to: { proxy: app }\n\
         - match: { prefix: /behind/ }\n  to: { proxy: app }\n\
         - match: { prefix: /limited/ }\n  to: { proxy: app }\n  cache: { purge: { allow: [127.0.0.0/8] } }\n  \
           plugins: [{ rate_limit: { requests: 1, per: 1h } }]\n\
         - to: { proxy: app }\n  cache: { purge: { allow: [127.0.0.0/8] }, key: { query: { drop: [utm] } } }\n  \
           plugins: [{ rewrite: { rules: [{ from: ^/old$, to: /page }] } }]\n",
    );
    let cc = "h.Cache-Control=max-age=60&h.Vary=X-V";
    let target = format!("/page?{cc}");
    let purge = |target: &str, fields: &str| proxy.ask("PURGE", target, fields);
    let fill = || (1..=2).for_each(|value| _ = proxy.ask("GET", &target, &format!("X-V: {value}\r\n")).whole(200));
    for (asked, host, entries) in [
        (format!("/page?{cc}"), "site.test", 2),
        (format!("/page?utm=5&{cc}"), "site.test:80", 2),
        (format!("/old?{cc}"), "SITE.test", 2),
        (format!("/page?{cc}&more"), "site.test", 0),
        (format!("/page?{cc}"), "other.test", 0),
    ] {
        fill();
        let mut client = proxy.client();
        client.send(&format!("PURGE {asked} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        let reply = client.response("PURGE").whole(200);
        assert!(reply.text().starts_with(&format!("{{\"entries\":{entries},\"bytes\":")), "{asked}: {}", reply.text());
        assert_eq!(reply.cache(), "headwall; detail=purge");
        let next = proxy.ask("GET", &target, "X-V: 2\r\n");
        assert_eq!(next.cache().contains("hit"), entries == 0, "{asked} on {host}: {}", next.cache());
    }
    for field in ["X-Forwarded-For: 127.0.0.1", "X-Real-IP: 127.0.0.1", "Via: 1.1 proxy", "X-Forwarded-Proto: http"] {
        let refused = purge(&target, &format!("{field}\r\n")).whole(403);
        assert_eq!(refused.cache(), "headwall; detail=purge", "{field}");
    }
    let mut client = proxy.client();
    client.send(&format!(
        "PURGE {target} HTTP/1.1\r\nHost: site.test\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ));
    assert_eq!(client.response("PURGE").status, 400);
    assert!(proxy.ask("GET", &target, "X-V: 2\r\n").cache().contains("hit"), "nothing was purged");
    // Several on one connection, one without a condition that would hold, and one with content.
    let mut client = proxy.client();
    for fields in ["", "If-Match: \"none\"\r\nRange: bytes=0-1\r\n"] {
        client.send(&format!("PURGE {target} HTTP/1.1\r\nHost: site.test\r\n{fields}\r\n"));
    }
    client.send(&format!("PURGE {target} HTTP/1.1\r\nHost: site.test\r\nContent-Length: 3\r\n\r\nall"));
    for entries in [2, 0, 0] {
        let reply = client.response("PURGE").whole(200);
        assert!(reply.text().starts_with(&format!("{{\"entries\":{entries},")), "{}", reply.text());
    }
    assert_eq!((purge("/limited/a", "").status, purge("/limited/a", "").status), (200, 429), "plugins come before");
    assert_eq!(purge("/far/a", "").status, 403);
    let refused = purge("/none/a", "").whole(405);
    assert!(refused.field("allow").starts_with("GET, HEAD"));
    assert!(origin.requests("/").iter().all(|request| request["method"] != "PURGE"));
    purge("/behind/a", "").whole(200);
    assert_eq!(origin.count("/behind/a"), 1, "for a cache behind this one");
}
