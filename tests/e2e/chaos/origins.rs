//! Origins that reset, hang, die and come back.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use super::breaking::{Breaking, Then, fine};
use crate::support::{Client, Headwall, Origin, together, wait_until};

const CACHED: &str = "routes: [{ to: { proxy: app }, cache: {} }]";
const PLAIN: &str = "routes: [{ to: { proxy: app } }]";

fn before(origin: &Breaking, timeouts: &str, routes: &str) -> Headwall {
    Headwall::start(&format!("upstreams: {{ app: {{ servers: [\"{}\"]{timeouts} }} }}\n{routes}", origin.address))
}

pub fn resets_in_mid_content() -> String {
    let content = "whole ".repeat(200);
    let (half, whole) = (content[..600].to_owned(), content.clone());
    let origin = Breaking::start(move |asked, connection| {
        if asked.before > 0 {
            return fine(connection, "Cache-Control: max-age=60\r\n", &whole);
        }
        let framing = match asked.target.as_str() {
            "/length" => "Content-Length: 1200\r\n\r\n".to_owned(),
            "/chunks" => "Transfer-Encoding: chunked\r\n\r\n4b0\r\n".to_owned(),
            _ => "Connection: close\r\n\r\n".to_owned(),
        };
        let _ = write!(connection, "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\n{framing}{half}");
        // The others have to be there before it breaks.
        std::thread::sleep(Duration::from_millis(200));
        Then::Reset
    });
    let proxy = before(&origin, "", CACHED);
    for target in ["/length", "/chunks", "/close"] {
        let replies = together(3, |_| proxy.get(target));
        for reply in &replies {
            let cut = reply.status >= 500 || (!reply.complete && content.as_bytes().starts_with(&reply.content));
            // Who came after it broke has an answer of its own.
            assert!(cut || reply.text() == content, "{target}: {} {} {:?}", reply.status, reply.text(), reply.fields);
        }
        assert!(replies.iter().any(|reply| !reply.complete), "{target}: {replies:?}");
        assert_eq!(proxy.get(target).whole(200).text(), content, "{target}");
    }
    "cut with a length, with chunks and without both; the next answer is whole".to_owned()
}

pub fn hangs_before_the_head() -> String {
    let healthy = Arc::new(AtomicBool::new(false));
    let well = healthy.clone();
    let origin = Breaking::start(move |_, connection| {
        if well.load(Relaxed) { fine(connection, "Cache-Control: max-age=60\r\n", "well") } else { Then::Hang }
    });
    let proxy = before(&origin, ", timeouts: { first_byte: 400ms }", CACHED);
    let replies = together(10, |_| proxy.get("/x").whole(504));
    let asked = origin.count("GET /x");
    assert!(asked <= 2 * replies.len(), "each waiter asks once more at most: {asked}");
    healthy.store(true, Relaxed);
    assert_eq!(proxy.get("/x").whole(200).text(), "well", "nothing is locked any more");
    assert!(proxy.get("/x").whole(200).cache().contains("hit"));
    format!("504 for 10 clients, {asked} requests at the origin; the next one is answered and stored")
}

pub fn resets() -> String {
    let origin = Breaking::start(|_, _| Then::Reset);
    let proxy = before(&origin, "", CACHED);
    proxy.get("/get").whole(502);
    proxy.put("POST", "/post", "", b"x").whole(502);
    let (gets, posts) = (origin.count("GET /get"), origin.count("POST /post"));
    assert!(gets <= 3 && posts == 1, "{gets} {posts}");
    // Where there is another server, it may do better.
    let other = Breaking::start(|_, connection| fine(connection, "", "well"));
    let proxy = Headwall::start(&format!(
        "upstreams: {{ app: {{ servers: [\"{}\", \"{}\"] }} }}\n{PLAIN}",
        origin.address, other.address
    ));
    for number in 0..6 {
        assert_eq!(proxy.get(&format!("/{number}")).whole(200).text(), "well");
    }
    let statuses: Vec<_> = (0..6).map(|n| proxy.put("POST", &format!("/p{n}"), "", b"x").status).collect();
    let sent: Vec<_> =
        (0..6).map(|n| origin.count(&format!("POST /p{n}")) + other.count(&format!("POST /p{n}"))).collect();
    assert!(statuses.contains(&502) && sent == [1; 6], "{statuses:?} {sent:?}");
    format!("502; GET sent {gets} time(s), POST once; with a second server every GET is answered")
}

/// Eight connections that are kept, and die with the next request.
pub fn kept_connections_died() -> String {
    const KEPT: usize = 8;
    let together_here = Arc::new(Barrier::new(KEPT));
    let fresh = Arc::new(AtomicUsize::new(0));
    let new = fresh.clone();
    let origin = Breaking::start(move |asked, connection| {
        if asked.served > 0 {
            return Then::Reset;
        }
        if asked.target.starts_with("/warm") {
            together_here.wait();
        } else {
            new.fetch_add(1, Relaxed);
        }
        fine(connection, "", "well")
    });
    let proxy = before(&origin, ", timeouts: { idle: 30s }", PLAIN);
    together(KEPT, |number| proxy.get(&format!("/warm{number}")).whole(200));
    // Whether all of them have come back to be kept is seen by what is sent again.
    let post = proxy.put("POST", "/post", "", b"x").status;
    assert_eq!(origin.count("POST /post"), 1, "{post}");
    let reply = proxy.get("/get");
    let sent = origin.count("GET /get");
    assert!(sent <= 3 && reply.status == 200, "{} after {sent}", reply.status);
    assert_eq!(fresh.load(Relaxed), if post == 200 { 2 } else { 1 });
    format!("GET sent {sent} times, the last time on a new connection, and answered; POST once")
}

pub fn socket_file_gone() -> String {
    let path = std::env::temp_dir().join(format!(
        "headwall-chaos-{}-{}.sock",
        std::process::id(),
        crate::support::free_port()
    ));
    let path = path.to_str().unwrap();
    let start = || Origin::on(path);
    let origin = start();
    let proxy = Headwall::start(&format!("upstreams: {{ app: {{ servers: [\"unix:{path}\"] }} }}\n{PLAIN}"));
    proxy.get("/x").whole(200);
    drop(origin);
    proxy.get("/x").whole(502);
    let _ = std::fs::remove_file(path);
    proxy.get("/x").whole(502);
    let origin = start();
    wait_until(|| proxy.get("/x").status == 200);
    drop(origin);
    let _ = std::fs::remove_file(path);
    "502 while nobody listens and while the file is gone, 200 when it is back".to_owned()
}

pub fn half_of_them_killed() -> String {
    let (stays, goes) = (Origin::start(), Origin::start());
    let proxy = Headwall::start(&format!(
        "upstreams: {{ app: {{ servers: [\"127.0.0.1:{}\", \"127.0.0.1:{}\"] }} }}\n{PLAIN}",
        stays.port, goes.port
    ));
    let (over, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    let failed: Vec<_> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|client| {
                let (over, asked, proxy) = (&over, &asked, &proxy);
                scope.spawn(move || {
                    let mut failed = Vec::new();
                    let mut kept = proxy.client();
                    while !over.load(Relaxed) {
                        let number = asked.fetch_add(1, Relaxed);
                        // Half of them are under way when it happens.
                        let target = format!("/page?say={number}&wait={}", if client % 2 == 0 { 0 } else { 30 });
                        kept.request("GET", &target, "");
                        let reply = kept.response("GET");
                        if reply.status != 200 || reply.text() != number.to_string() {
                            failed.push(reply.status);
                            kept = Client::to(proxy.address);
                        }
                    }
                    failed
                })
            })
            .collect();
        wait_until(|| asked.load(Relaxed) > 400);
        drop(goes);
        let then = asked.load(Relaxed);
        wait_until(|| asked.load(Relaxed) > then + 600);
        over.store(true, Relaxed);
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let asked = asked.load(Relaxed);
    assert!(failed.is_empty(), "{} of {asked}: {failed:?}", failed.len());
    format!("{asked} GETs, none failed")
}
