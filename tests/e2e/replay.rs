//! `headwall replay`: what it predicts from a log beside what happened.

use std::fs::File;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{Headwall, Origin, TempFile, free_port, metric, root};

/// Runs the binary with this file as its standard input.
fn headwall(arguments: &[&str], input: Stdio) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_headwall")).args(arguments).stdin(input).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

const ROUTES: &str = "
routes:
  - match: { path: /page/none }
    to: { proxy: app }
  - match: { path: /robots.txt }
    to: { respond: {} }
  - match: { prefix: /page/force }
    to: { proxy: app }
    cache: { mode: force, ttl: 1h, key: { query: { drop: [utm_*] } } }
  - to: { proxy: app }
    cache: {}
";

/// A few thousand requests of all kinds, the same ones in each run.
fn requests() -> impl Iterator<Item = (&'static str, String)> {
    let mut state = 7u32;
    let mut random = move |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) % below
    };
    (0..3000).map(move |_| {
        let number = random(60).min(random(60));
        let method = match random(50) {
            0 => "POST",
            1 | 2 => "HEAD",
            _ => "GET",
        };
        let target = match random(8) {
            0 => "/page/none".to_owned(),
            1 => "/robots.txt".to_owned(),
            2 => format!("/page/force/{number}?utm_source=x&say=hello"),
            3 | 4 => format!("/page/force/{number}?say=hello"),
            5 => format!("/page/force/{number}?status=404"),
            6 => format!("/page/private/{number}?h.Cache-Control=no-store"),
            _ => format!("/page/public/{number}?h.Cache-Control=max-age=3600"),
        };
        (method, target)
    })
}

#[test]
fn it_predicts_from_headwalls_own_log_what_headwall_did() {
    let origin = Origin::start();
    let log = TempFile::new("access.json", "");
    let access = format!("log: {{ access: {{ file: \"{}\", format: json }} }}", log.path());
    let proxy = Headwall::before(&origin, &format!("{access}{ROUTES}"));
    let mut client = proxy.client();
    let mut sent = 0u64;
    for (method, target) in requests() {
        client.request(method, &target, if method == "POST" { "Content-Length: 0\r\n" } else { "" });
        assert!(client.response(method).complete);
        sent += 1;
    }
    let counted = |word: &str| {
        let routes = ["/page/none", "/robots.txt", "/page/force*", "*"];
        let of = |route: &str, class: &str| {
            let labels = format!("{{cache=\"{word}\",route=\"{route}\",status=\"{class}\"}}");
            metric(proxy.admin, &format!("headwall_requests_total{labels}")) as u64
        };
        routes.iter().flat_map(|route| ["2xx", "4xx"].map(|class| of(route, class))).sum::<u64>()
    };
    let really = ["hit", "uri-miss", "method", "none"].map(counted);
    assert_eq!(really.iter().sum::<u64>(), sent, "no word is left out");
    assert!(really.iter().all(|count| *count > 30), "{really:?}");
    let asked = origin.count("/") as u64;
    // Ends the log.
    drop(proxy);

    let upstream = format!("upstreams: {{ app: {{ servers: [\"127.0.0.1:{}\"] }} }}", origin.port);
    let config = TempFile::new("replay.yaml", &format!("{upstream}{ROUTES}"));
    let without = TempFile::new("without.yaml", &format!("{upstream}\nroutes: [{{ to: {{ proxy: app }} }}]"));
    let svg = TempFile::new("replay.svg", "");
    let fresh = ["--fresh", "/page/public/=1h"];
    let arguments = ["replay", "--config", config.path(), "--against", without.path(), "--svg", svg.path(), "--json"];
    let (code, out, told) = headwall(&[&arguments[..], &fresh, &[log.path()]].concat(), Stdio::null());
    assert_eq!((code, told.as_str()), (0, ""));
    let report: Value = serde_json::from_str(&out).unwrap();
    let (first, second) = (&report["results"][0], &report["results"][1]);
    let predicted = ["hit", "miss", "bypass", "none"].map(|word| first["cache"][word].as_u64().unwrap());
    assert_eq!(predicted, really);
    assert_eq!(first["origin_requests"].as_u64(), Some(asked));
    assert_eq!(first["requests"].as_u64(), Some(sent));
    let wanted = 100.0 * really[0] as f64 / sent as f64;
    assert!((first["hit_ratio"].as_f64().unwrap() - wanted).abs() < 1e-9);
    assert_eq!(second["origin_requests"].as_u64(), Some(sent));
    assert_eq!((second["cache"]["none"].as_u64(), second["hit_ratio"].as_f64()), (Some(sent), Some(0.0)));
    let chart = std::fs::read_to_string(&svg.0).unwrap();
    for part in ["<svg", "class=\"line c0\"", "class=\"line c1\"", "prefers-color-scheme: dark", "</svg>"] {
        assert!(chart.contains(part), "{part}");
    }

    // The same from standard input, in words.
    let arguments = ["replay", "--config", config.path(), "/dev/null"];
    assert_eq!(headwall(&arguments, Stdio::null()).0, 1);
    let input = Stdio::from(File::open(log.path()).unwrap());
    let (code, out, _) = headwall(&["replay", "--config", config.path(), "-"], input);
    assert_eq!(code, 0);
    assert!(out.starts_with("standard input: 3,000 requests in "), "{out}");
    assert!(out.contains("nothing says how long a response is fresh"), "without --fresh it says what it lacks: {out}");
}

#[test]
fn what_it_cannot_read_it_says() {
    let config = TempFile::new("config.yaml", "routes: [{ to: { respond: {} } }]");
    let wrong = TempFile::new("wrong.yaml", "routes: []");
    let good = r#"192.0.2.1 - - [06/Nov/1994:08:49:37 +0000] "GET / HTTP/1.1" 200 5"#;
    let log = TempFile::new("access.log", &format!("no log\n{good}\n\n{}\n{{}}\n", "x".repeat(70_000)));
    let (code, out, _) = headwall(&["replay", "--config", config.path(), log.path()], Stdio::null());
    assert_eq!(code, 0);
    for part in [
        ": 1 requests",
        "3 of 4 lines are no requests",
        "line 1: no time in brackets: no log\n",
        "line 4: longer",
        "line 5: no time",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let packed = TempFile::new("access.log.gz", "");
    std::fs::write(packed.path(), b"\x1f\x8b\x08\x00\x00").unwrap();
    // A report that could not be written is no success.
    let mut full = Command::new(env!("CARGO_BIN_EXE_headwall"));
    full.args(["replay", "--config", config.path(), log.path()]).stdout(File::create("/dev/full").unwrap());
    let full = full.output().unwrap();
    assert!(full.status.code() == Some(1) && String::from_utf8_lossy(&full.stderr).contains("standard output"));
    // What strangers wrote into the log, no terminal obeys.
    let evil = TempFile::new("evil.log", "\u{1b}]0;title\u{7}\u{9b}2J\u{202e}\n");
    let (_, _, told) = headwall(&["replay", "--config", config.path(), evil.path()], Stdio::null());
    assert!(told.contains("title") && !told.contains(['\u{1b}', '\u{7}', '\u{9b}', '\u{202e}']), "{told:?}");
    let junk = TempFile::new("junk.log", "a\nb\n\n");
    let (code, out, told) = headwall(&["replay", "--config", config.path(), junk.path()], Stdio::null());
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(
        told.contains("none of its 2 lines is a request") && told.contains("line 2: no time in brackets: b"),
        "{told}"
    );
    for (arguments, expected, part) in [
        (&["--config", config.path(), "/no/such/log"][..], 1, "/no/such/log: "),
        (&["--config", wrong.path(), log.path()], 1, "there is no route"),
        (&["--config", config.path(), "--against", "/no/such.yaml", log.path()], 1, "/no/such.yaml: cannot be read"),
        (&["--config", config.path(), "--svg", "/no/such/folder/x.svg", log.path()], 1, "/no/such/folder/x.svg: "),
        (&["--config", config.path(), "--fresh", "500ms", log.path()], 2, "whole seconds"),
        (&["--config", config.path(), "--host", "a/b", log.path()], 2, "a host as in an address"),
        (&["--config", config.path(), "/dev/null"], 1, "there is no line in it"),
        (&["--config", config.path(), packed.path()], 1, "unpack it on the way: zcat"),
        (&["--config", config.path(), "--fresh", "soon", log.path()], 2, "neither a duration, such as 60s, nor `no`"),
        (&["--config", config.path()], 2, "ACCESS_LOG"),
    ] {
        let (code, _, told) = headwall(&[&["replay"], arguments].concat(), Stdio::null());
        assert!(code == expected && told.contains(part), "{arguments:?}: {code} {told}");
    }
}

/// The files of the page, and its commands with what they print.
#[test]
fn the_page_shows_what_happens() {
    let page = std::fs::read_to_string(root("docs/replay.md")).unwrap();
    let block = |kind: &str| {
        page.split(&format!("```{kind}\n")).skip(1).map(|rest| rest.split("```").next().unwrap()).collect::<Vec<_>>()
    };
    let folder = std::env::temp_dir().join(format!("headwall-replay-{}-{}", std::process::id(), free_port()));
    std::fs::create_dir(&folder).unwrap();
    let files = [("headwall.yaml", block("yaml")[0]), ("access.log", block("log")[0])];
    for (name, text) in files {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let change = page.split("the same with\n`").nth(1).unwrap().split('`').next().unwrap();
    let new = files[0].1.replace("ttl: 30s }", change);
    assert_ne!(new, files[0].1);
    std::fs::write(folder.join("new.yaml"), new).unwrap();
    let shown = block("console");
    assert!(shown.len() >= 2);
    for block in shown {
        let (command, expected) = block.split_once('\n').unwrap();
        let words: Vec<_> = command.strip_prefix("$ headwall ").unwrap().split(' ').collect();
        let output = Command::new(env!("CARGO_BIN_EXE_headwall")).args(words).current_dir(&folder).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(out.starts_with(expected), "{command}\n{out}");
    }
    assert!(folder.join("replay.svg").exists(), "the page writes a chart");
    std::fs::remove_dir_all(folder).unwrap();
}
