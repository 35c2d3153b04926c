//! `headwall probe`: what comes back to another visitor, through Headwall and through a cache that makes every mistake.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::support::{Headwall, free_port, root, run};

/// A Node server (naive.js).
struct Naive {
    child: Child,
    port: u16,
}

impl Naive {
    fn start(mode: &str) -> Self {
        let mut command = Command::new("node");
        command.arg(root("tests/e2e/naive.js")).arg(mode).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("node is there");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Naive { child, port: line.trim().parse().unwrap() }
    }
}

impl Drop for Naive {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn probe(arguments: &[&str]) -> (i32, String, String) {
    run(Command::new(env!("CARGO_BIN_EXE_headwall")).arg("probe").args(arguments))
}

/// The report, and the names of what leaked.
fn leaks(port: u16, page: &str) -> (Value, Vec<String>) {
    let url = format!("http://127.0.0.1:{port}/{page}");
    let (code, out, told) = probe(&["--json", &url]);
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out} {told}"));
    let findings = report["findings"].as_array().unwrap();
    let leaked = findings.iter().filter(|finding| finding["verdict"] == "leak");
    let names: Vec<_> = leaked.map(|finding| finding["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!((code, report["leaks"].as_u64()), (i32::from(!names.is_empty()), Some(names.len() as u64)), "{page}");
    assert!(told.contains("with at most "), "it says before how often it will ask: {told}");
    let most: u64 = told.split("at most ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(report["requests"].as_u64().unwrap() <= most);
    (report, names)
}

#[test]
fn nothing_comes_back_through_headwall() {
    let app = Naive::start("plain");
    let proxy = Headwall::start(&format!(
        "upstreams: {{ app: {{ servers: [\"127.0.0.1:{}\"] }} }}
routes: [{{ to: {{ proxy: app }}, cache: {{ key: {{ query: {{ drop: [utm_*, gclid, fbclid] }} }} }} }}]",
        app.port
    ));
    let (report, names) = leaks(proxy.address.port(), "good");
    assert!(names.is_empty(), "{report:#}");
    assert!(report["plain"]["hit"].as_str().unwrap().starts_with("Cache-Status: headwall; hit"), "{report:#}");
    let verdict = |name: &str| {
        let finding = report["findings"].as_array().unwrap().iter().find(|finding| finding["name"] == name).unwrap();
        finding["verdict"].as_str().unwrap().to_owned()
    };
    assert_eq!(verdict("User-Agent"), "reflected", "the app says it, to those who sent it");
    assert_eq!(verdict("X-Forwarded-Host"), "nothing", "the app never sees it");
    assert_eq!(verdict("?utm_source="), "nothing");
}

#[test]
fn a_cache_that_makes_every_mistake_is_found_out() {
    let naive = Naive::start("cached");
    let (report, names) = leaks(naive.port, "all");
    for name in [
        "X-Forwarded-Host",
        "Forwarded",
        "X-Original-URL",
        "X-Real-IP",
        "X-HTTP-Method-Override",
        "Origin",
        "User-Agent",
        "Accept-Language",
        "Authorization",
        "Cookie session",
        "?utm_source=",
        "GET with content",
        "a field of 12 KiB",
    ] {
        assert!(names.iter().any(|leak| leak == name), "{name}: {names:?}");
    }
    let first = &report["findings"][0];
    assert_eq!(first["what"], "what stood in the field came back in the content");
    assert_eq!(first["hit"], "x-cache: HIT");
    assert!(first["advice"].as_str().unwrap().contains("drop the field"));

    for (page, expected) in [
        ("scheme", &["X-Forwarded-Proto, the other scheme"][..]),
        ("host", &["X-Forwarded-Host", "X-Forwarded-Port"]),
        ("method", &["X-HTTP-Method-Override", "X-HTTP-Method-Override: HEAD"]),
        ("large", &["a field of 12 KiB"]),
        ("cookie", &["Cookies of the site"]),
        ("moved", &[]),
    ] {
        assert_eq!(leaks(naive.port, page).1, expected, "{page}");
    }
    let (report, names) = leaks(naive.port, "session?a=b");
    assert!(names.len() > 1 && names[0] == "Set-Cookie", "{names:?}");
    assert_eq!(report["findings"][0]["what"], "the cookie `number` that the first visitor got was set for the second");
    // Without a cache nothing leaks, whatever the app does.
    let app = Naive::start("plain");
    for page in ["all", "scheme", "session", "cookie"] {
        assert!(leaks(app.port, page).1.is_empty(), "{page}");
    }
}

#[test]
fn it_tells_people_and_touches_nobody() {
    let naive = Naive::start("cached");
    let url = format!("http://127.0.0.1:{}/host", naive.port);
    let (code, out, _) = probe(&[&url]);
    assert_eq!(code, 1);
    for part in [
        "plain visitors get 200, the second from a cache (x-cache: HIT)",
        "X-Forwarded-Host                      LEAK: what stood in the field came back in `link`\n",
        "User-Agent                            nothing came back\n",
        "X-Forwarded-Host: the second visitor was served from a cache (x-cache: HIT).\n  What to do: let the proxy",
        "2 came back to another visitor.",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    // All visitors send it; the canary takes its place for one.
    let fixed = ["-H", "X-Forwarded-Host: fixed.test", "-H", "X-Forwarded-Port: 81", &url];
    let (code, out, _) = probe(&fixed);
    assert!(code == 1 && out.contains("`link`"), "{out}");
    let moved = probe(&[&format!("http://127.0.0.1:{}/moved", naive.port)]);
    assert!(moved.0 == 0 && moved.1.contains("It redirects to /elsewhere; probe that address, too."), "{}", moved.1);

    let deaf = Naive::start("deaf");
    let url = format!("http://127.0.0.1:{}/all", deaf.port);
    let (code, _, told) = probe(&[&url]);
    assert!(code == 3 && told.contains("the entries of real visitors would be touched"), "{told}");
    let nobody = format!("http://127.0.0.1:{}/", free_port());
    assert_eq!(probe(&[&nobody]).0, 3);
    let tls = Naive::start("tls");
    let url = format!("https://localhost:{}/host", tls.port);
    let (code, out, told) = probe(&[&url]);
    assert!(code == 3 && out.is_empty() && told.to_lowercase().contains("certificate"), "{out} {told}");
    let (code, out, told) = probe(&["--insecure", &url]);
    assert!(code == 1 && out.contains("2 came back to another visitor"), "{out} {told}");
    for wrong in [&["ftp://site.test/"][..], &["site.test"], &[], &["-H", "no field", &url], &["--bust", "a&b", &url]] {
        assert_eq!(probe(wrong).0, 2, "{wrong:?}");
    }
}

/// A server that says what it likes, and resets the connection of who sends a `Referer`.
fn rude(answer: &'static [u8]) -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heads = asked.clone();
    std::thread::spawn(move || {
        for tcp in listener.incoming() {
            let mut tcp = tcp.unwrap();
            let lines = BufReader::new(&tcp).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
            let head = lines.collect::<Vec<_>>().join("\n").to_lowercase();
            let silent = head.contains("\nreferer:");
            heads.lock().unwrap().push(head);
            if !silent {
                let _ = tcp.write_all(answer).and_then(|()| tcp.shutdown(Shutdown::Write));
                // Closing what has not been read would reset the connection.
                let _ = std::io::copy(&mut tcp, &mut std::io::sink());
            }
        }
    });
    (port, asked)
}

#[test]
fn it_tells_what_it_could_not_ask_and_keeps_secrets() {
    let (port, asked) = rude(
        b"HTTP/1.1 200 OK\r\nSet-Cookie: \xc2\x9b2J=1\r\nSet-Cookie: sid=1\r\nX-Cache: \xc2\x9bMISS\r\n\
          Content-Encoding: gzip\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
    );
    let url = format!("http://127.0.0.1:{port}/");
    let sent = ["-H", "Authorization: Basic c2VjcmV0", "-H", "Cookie: in=1", "-H", "Cookie: lang=en", &url];
    let (code, out, told) = probe(&sent);
    assert_eq!(code, 3, "{out}");
    let row = out.lines().find(|line| line.starts_with("Referer ")).unwrap();
    assert!(row.contains("nothing came back; the first visitor got no answer: "), "{row}");
    assert!(out.contains("1 not asked or without an answer.") && out.contains("(gzip): canaries in it are not seen"));
    assert!(!out.contains('\u{9b}') && !out.contains("c2VjcmV0") && !told.contains("c2VjcmV0"), "{out}");
    let heads = asked.lock().unwrap();
    // One has a token of its own, all others those that were given.
    let given = heads.iter().filter(|head| head.contains("\nauthorization: basic c2vjcmv0")).count();
    assert_eq!(given, heads.len() - 1);
    assert!(heads.iter().all(|head| head.contains("\ncookie: in=1") && head.starts_with("get ")), "{heads:?}");
    assert!(heads.iter().any(|head| head.contains("\ncookie: in=1; lang=hwp")), "{heads:?}");
    assert!(heads.iter().any(|head| head.contains("\ncookie: in=1; lang=en; sid=hwp")), "{heads:?}");

    // A redirect to another host is told of, not followed.
    let (elsewhere, there) = rude(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let answer = format!(
        "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{elsewhere}/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    let (port, _) = rude(answer.leak().as_bytes());
    let (_, out, _) = probe(&["-H", "Authorization: Basic c2VjcmV0", &format!("http://127.0.0.1:{port}/")]);
    assert!(out.contains(&format!("It redirects to http://127.0.0.1:{elsewhere}/")), "{out}");
    assert!(there.lock().unwrap().is_empty());
    for wrong in [&["http://u:secret@127.0.0.1/"][..], &["-H", "Content-Length: 5", &url], &["-H", "TE: x", &url]] {
        assert_eq!(probe(wrong).0, 2, "{wrong:?}");
    }
}

/// The commands of the page, with what they print; its site is one of the test's servers.
#[test]
fn the_page_shows_what_happens() {
    let page = std::fs::read_to_string(root("docs/probe.md")).unwrap();
    let naive = Naive::start("cached");
    let site = format!("http://127.0.0.1:{}", naive.port);
    let blocks: Vec<_> = page.split("```console\n$ headwall probe ").skip(1).collect();
    assert!(!blocks.is_empty());
    for block in blocks {
        let (command, shown) = block.split("```").next().unwrap().split_once('\n').unwrap();
        let arguments: Vec<_> =
            command.split(' ').map(|word| word.replace("https://shop.example.com", &site)).collect();
        let (_, out, told) = probe(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        let out = out.replace(&site, "https://shop.example.com");
        // Rows that do not matter are left out.
        let mut rest = out.as_str();
        for part in shown.split("...\n") {
            let at = rest.find(part).unwrap_or_else(|| panic!("{part:?} is not in {out} {told}"));
            rest = &rest[at + part.len()..];
        }
        assert!(rest.is_empty(), "{rest:?}");
    }
}
