//! Sequences that can be computed by hand.

use super::*;
use crate::config::{self, Lasting};
use crate::replay::line::SECOND;
use crate::replay::tally::WORDS;

const START: Stamp = 784_111_777 * SECOND;

fn plan(rest: &str) -> Plan {
    let text = format!("upstreams: {{ app: {{ servers: [\"127.0.0.1:1\"] }} }}\n{rest}");
    let (lasting, clock) = (Lasting::default(), Clock::system());
    let parts = config::Parts { plugins: &[], lasting: &lasting, clock: &clock };
    config::parse("test.yaml", &text, &parts).unwrap_or_else(|error| panic!("{error}"))
}

fn assume(fresh: &[&str]) -> Assumptions {
    let fresh = fresh.iter().map(|text| text.parse().unwrap()).collect();
    Assumptions { fresh, validators: false, host: "a.test".into() }
}

/// `SECONDS METHOD TARGET STATUS BYTES`, then `took=SECONDS` and fields: `>name=value` of the request, `<name=value` of the
/// response.
fn line(text: &str) -> Line {
    let mut words = text.split_whitespace();
    let mut word = || words.next().unwrap();
    let at = START + (word().parse::<f64>().unwrap() * SECOND as f64) as u64;
    let mut line = Line {
        at,
        whole_second: false,
        took: None,
        method: word().parse().unwrap(),
        https: false,
        host: None,
        target: word().into(),
        status: word().parse().unwrap(),
        bytes: word().parse().unwrap(),
        request: Vec::new(),
        response: Vec::new(),
        says_freshness: false,
    };
    for more in words {
        let (name, value) = more.split_once('=').unwrap();
        let field = || (name[1..].parse::<http::HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap());
        match name.as_bytes()[0] {
            b'>' => line.request.push(field()),
            b'<' => {
                line.says_freshness |= name == "<cache-control";
                line.response.push(field());
            }
            _ => line.took = Some(Duration::from_secs_f64(value.parse().unwrap())),
        }
    }
    line
}

/// The words for these requests, and the simulation after them.
fn replay<'a>(plan: &'a Plan, assume: &'a Assumptions, lines: &[&str]) -> (String, Simulation<'a>) {
    let mut simulation = Simulation::new(plan, assume, START);
    let mut words = Vec::new();
    for text in lines {
        let before = simulation.total;
        simulation.take(&line(text));
        let now = simulation.total;
        words.extend(WORDS.iter().filter(|(word, _)| now.words[*word as usize] > before.words[*word as usize]));
    }
    let words = words.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(" ");
    (words, simulation)
}

fn check(rest: &str, fresh: &[&str], lines: &[&str], expected: &str, origin: u64) {
    let (plan, assume) = (plan(rest), assume(fresh));
    let (words, simulation) = replay(&plan, &assume, lines);
    assert_eq!(words, expected, "{rest} {lines:#?}");
    assert_eq!(simulation.total.origin, origin, "{rest} {lines:#?}");
}

const FORCE: &str = "routes: [{ to: { proxy: app }, cache: { mode: force, ttl: 10s } }]";
const RESPECT: &str = "routes: [{ to: { proxy: app }, cache: {} }]";

#[test]
fn a_ttl_begins_anew_with_each_response() {
    let lines = ["0 GET /a 200 5", "9.9 GET /a 200 5", "10.1 GET /a 200 5", "20 GET /a 200 5", "21 GET /b 200 5"];
    check(FORCE, &[], &lines, "miss hit stale hit miss", 3);
    // Out of the map long after.
    check(FORCE, &[], &["0 GET /a 200 5", "100 GET /a 200 5"], "miss miss", 2);
    let by_status = "routes: [{ to: { proxy: app }, cache: { mode: force, ttl: { 200: 10s, 404: 1s } } }]";
    let lines = [
        "0 GET /a 404 5",
        "0.5 GET /a 404 5",
        "1.5 GET /a 200 5",
        "3 GET /a 200 5",
        "4 GET /x 500 5",
        "5 GET /x 500 5",
    ];
    check(by_status, &[], &lines, "miss hit stale hit miss miss", 4);
}

#[test]
fn who_asks_while_it_is_on_its_way_is_collapsed() {
    let lines = ["0 GET /a 200 5 took=2", "1 GET /a 200 5", "2 GET /a 200 5", "2.1 GET /a 200 5", "11.9 GET /a 200 5"];
    check(FORCE, &[], &lines, "miss collapsed collapsed hit hit", 1);
    // What could not be stored is fetched by each.
    check(RESPECT, &[], &["0 GET /a 200 5 took=2", "1 GET /a 200 5 took=2"], "miss miss", 2);
}

#[test]
fn freshness_is_the_logs_or_assumed_or_none() {
    let lines = ["0 GET /a 200 5", "3 GET /a 200 5", "6 GET /a 200 5"];
    check(RESPECT, &[], &lines, "miss miss miss", 3);
    check(RESPECT, &["5s"], &lines, "miss hit stale", 2);
    check(RESPECT, &["/b=5s"], &lines, "miss miss miss", 3);
    check(RESPECT, &["5s", "/a=no"], &lines, "miss miss miss", 3);
    let said = ["0 GET /a 200 5 <cache-control=max-age=5", "3 GET /a 200 5 <cache-control=max-age=5"];
    check(RESPECT, &["/a=no"], &said, "miss hit", 1);
    let forbidden = ["0 GET /a 200 5 <cache-control=no-store", "3 GET /a 200 5 <cache-control=no-store"];
    check(RESPECT, &["60s"], &forbidden, "miss miss", 2);
    check(
        RESPECT,
        &["60s"],
        &["0 GET /a 302 5", "1 GET /a 302 5", "2 GET /b 301 5", "3 GET /b 301 5"],
        "miss miss miss hit",
        3,
    );
    let cookie = ["0 GET /a 200 5 <set-cookie=a=b", "1 GET /a 200 5"];
    check(FORCE, &[], &cookie, "miss miss", 2);
    let (plan, assume) = (plan(RESPECT), assume(&["5s"]));
    let (_, simulation) = replay(&plan, &assume, &[lines[0], said[0], lines[1]]);
    assert_eq!((simulation.sources.cached, simulation.sources.log, simulation.sources.assumed), (3, 1, 2));
}

#[test]
fn methods_parts_and_those_who_gave_up() {
    let lines =
        ["0 GET /a 200 5", "1 HEAD /a 200 0", "2 POST /a 201 1", "3 GET /a 200 5", "4 POST /a 403 1", "5 GET /a 200 5"];
    check(FORCE, &[], &lines, "miss hit bypass miss bypass hit", 4);
    let lines =
        ["0 HEAD /a 200 0", "1 GET /a 206 2", "2 GET /a 304 0", "3 GET /a 200 9", "4 GET /a 206 2", "5 GET /a 416 0"];
    check(FORCE, &[], &lines, "miss miss miss hit hit hit", 3);
    check(FORCE, &[], &["0 GET /a 499 0", "1 GET /a 200 5", "2 GET /a 499 0", "3 GET /b 0 0"], "miss miss hit miss", 3);
    let withdrawn = ["0 GET /a 200 5", "2 GET /a 200 5 <cache-control=no-store", "3 GET /a 503 5"];
    let granted = "routes: [{ to: { proxy: app }, cache: { stale_if_error: 1h } }]";
    check(granted, &["1s"], &withdrawn, "miss stale miss", 3);
    let login = ["0 GET /a 200 5", "1 GET /a 200 5 >authorization=Basic", "2 GET /a 200 5 >cookie=a=b"];
    check(FORCE, &[], &login, "miss bypass bypass", 3);
    check(RESPECT, &["9s"], &login, "miss miss hit", 2);
    check(RESPECT, &["9s"], &[login[0], "1 GET /a 200 5 >cache-control=no-cache"], "miss stale", 2);
}

#[test]
fn the_length_behind_a_304_is_what_was_seen() {
    let (plan, assume) = (plan(FORCE), assume(&[]));
    let lines = ["0 GET /a 200 1000", "1 GET /a 304 0", "12 GET /a 304 0", "13 GET /b 304 0"];
    let (words, simulation) = replay(&plan, &assume, &lines);
    assert_eq!(words, "miss hit stale miss");
    assert_eq!((simulation.total.bytes, simulation.total.bytes_origin), (1000, 3000));
    assert_eq!(simulation.sources.lengths, 3);
    let (_, simulation) =
        replay(&plan, &assume, &["0 GET /a 206 9", "1 GET /a 200 99", "2 GET /a 206 9", "3 HEAD /b 200 0"]);
    assert_eq!((simulation.sources.parts, simulation.total.bytes_origin), (1, 108));
}

#[test]
fn stale_responses_stand_in_or_are_confirmed() {
    let granted = "routes: [{ to: { proxy: app }, cache: { mode: force, ttl: 10s, stale_while_revalidate: 5s, stale_if_error: 1h } }]";
    let lines = [
        "0 GET /a 200 7",
        "12 GET /a 200 7 took=1",
        "12.5 GET /a 200 7",
        "14 GET /a 200 7",
        "40 GET /a 503 1",
        "41 GET /a 200 7",
    ];
    check(granted, &[], &lines, "miss hit hit hit stale stale", 4);
    let tagged =
        ["0 GET /a 200 7 <etag=\"1\"", "12 GET /a 200 7 <etag=\"1\"", "13 GET /a 200 7", "24 GET /a 200 7 <etag=\"2\""];
    check(FORCE, &[], &tagged, "miss validated hit stale", 3);
    let (plan, assume) = (plan(FORCE), Assumptions { validators: true, ..assume(&[]) });
    let lines = ["0 GET /a 200 7", "12 GET /a 200 7", "24 GET /a 200 8", "36 HEAD /a 200 0", "48 GET /a 206 3"];
    let (words, simulation) = replay(&plan, &assume, &lines);
    assert_eq!((words.as_str(), simulation.total.bytes_origin), ("miss validated stale stale stale", 7 + 8 + 3));
}

#[test]
fn routes_keys_and_rewriting_are_the_real_ones() {
    let rest = "
plugins: [{ rewrite: { rules: [{ from: \"^/old/(.*)$\", to: /new/$1 }] } }]
routes:
  - match: { prefix: /api }
    to: { proxy: app }
  - match: { path: /robots.txt }
    to: { respond: {} }
  - match: { host: b.test }
    to: { proxy: app }
    cache: { mode: force, ttl: 1m, key: { query: { drop: [utm_*], sort: true }, headers: [X-Country] } }
  - match: { prefix: /old }
    to: { proxy: app }
    cache: { mode: force, ttl: 1m }
  - match: { prefix: /new }
    to: { proxy: app }
    cache: { mode: force, ttl: 1m }";
    let (plan, assume) = (plan(rest), assume(&[]));
    let lines = [
        "0 GET /api/x 200 5",
        "1 GET /robots.txt 200 5",
        "2 GET /old/x 200 5",
        "3 GET /new/x 200 5",
        "4 GET /elsewhere 404 5",
        "5 GET /x/../api 400 5",
    ];
    let (words, simulation) = replay(&plan, &assume, &lines);
    assert_eq!(words, "none none miss hit none none");
    assert_eq!(simulation.total.origin, 2);
    assert_eq!(simulation.routes.iter().map(|counts| counts.requests).collect::<Vec<_>>(), [1, 1, 0, 1, 1, 2]);

    let mut simulation = Simulation::new(&plan, &assume, START);
    let mut hits = Vec::new();
    for (target, country) in [
        ("/p?b=1&a=2&utm_x=1", "DE"),
        ("/p?a=2&b=1", "DE"),
        ("/p?a=2&b=1", "CH"),
        ("/p?utm_y&a=2&b=1", "CH"),
        ("/p?a=2&b=1", "DE"),
    ] {
        let mut line = line(&format!("0 GET {target} 200 5 >x-country={country}"));
        line.host = Some("B.test".into());
        simulation.take(&line);
        hits.push(simulation.total.saved());
    }
    assert_eq!(hits, [0, 1, 1, 2, 3]);
}

#[test]
fn what_the_guard_refuses_gets_nowhere() {
    let (plan, assume) = (plan(FORCE), assume(&[]));
    let long = format!("0 GET /{} 414 5", "a".repeat(9000));
    let lines =
        ["0 GET /a%00 400 5", "0 get /a 400 5", "0 TRACE /a 405 5", "0 GET a 400 5", "0 GET /\u{e9} 400 5", &long];
    let (words, simulation) = replay(&plan, &assume, &lines);
    assert_eq!(words, ["none"; 6].join(" "));
    assert_eq!((simulation.total.origin, simulation.routes.last().unwrap().requests), (0, 6));
    let mut simulation = Simulation::new(&plan, &assume, START);
    for (host, hits) in [("a.test", 0), ("u:p@a.test", 0), ("a.test", 1), ("a b", 1), ("", 1), ("A.test", 2)] {
        simulation.take(&Line { host: Some(host.into()), ..line("0 GET /a 200 5") });
        assert_eq!(simulation.total.saved(), hits, "{host}");
    }
    // Who says another host or address is not believed, in the proxy and here.
    let lines = [
        "0 GET /a 200 5 >x-forwarded-host=b.test <vary=X-Client-IP",
        "1 GET /a 200 5 >x-client-ip=192.0.2.1",
        "2 PUT /a 200 5 >x-forwarded-host=c.test",
        "3 GET /a 200 5",
    ];
    assert_eq!(replay(&plan, &assume, &lines).0, "miss hit bypass miss");
}

/// Sums stay numbers, whatever a log says.
#[test]
fn absurd_lengths() {
    let (plan, assume) = (plan(FORCE), assume(&[]));
    let lines: Vec<_> = (0..3).map(|number| format!("{number} GET /{number} 200 {}", u64::MAX)).collect();
    let lines: Vec<_> = lines.iter().map(String::as_str).chain(["4 GET /x 304 0"]).collect();
    let (_, simulation) = replay(&plan, &assume, &lines);
    assert_eq!((simulation.total.bytes, simulation.total.bytes_origin), (u64::MAX, u64::MAX));
    assert!(simulation.total.byte_hit_ratio().is_finite());
}

#[test]
fn variants_stand_beside_each_other_and_go_together() {
    let vary = |at: u32, accept: &str| format!("{at} GET /a 200 5 >accept={accept} <vary=Accept");
    let mut lines: Vec<_> = (0..).zip(["x", "y", "x", "y", "z"]).map(|(at, accept)| vary(at, accept)).collect();
    lines.extend(["6 PUT /a 204 0".to_owned(), vary(7, "x"), vary(8, "y"), vary(9, "y")]);
    let lines: Vec<_> = lines.iter().map(String::as_str).collect();
    check(FORCE, &[], &lines, "miss miss hit hit miss bypass miss miss hit", 6);
}

#[test]
fn the_store_is_as_large_as_the_file_says() {
    let small = format!("cache: {{ memory: 64KiB, max_object: 20KiB, max_unsized: 20KiB, fills: 1MiB }}\n{FORCE}");
    let (plan, assume) = (plan(&small), assume(&[]));
    let lines: Vec<_> = (0..40).map(|number| format!("0.{number:02} GET /{number} 200 5000")).collect();
    let lines: Vec<_> = lines.iter().map(String::as_str).collect();
    let (_, simulation) = replay(&plan, &assume, &lines);
    let usage = simulation.usage();
    assert!(usage.bytes <= 64 << 10 && usage.evicted > 20 && usage.entries + usage.evicted == 40, "{usage:?}");
    let (words, _) = replay(
        &plan,
        &assume,
        &["0 GET /large 200 30000", "1 GET /large 200 30000", "2 GET /s 200 9", "3 GET /s 200 9"],
    );
    assert_eq!(words, "miss miss miss hit");
}
