//! What an origin must not send: refused, not stored, and its connection is not used again.

use std::io::Write;
use std::sync::{Arc, Mutex};

use crate::chaos::breaking::{Breaking, Then, fine};
use crate::support::{Client, Headwall, Process, TempFile, free_port, metric, together, wait_until};

const KEPT: &str = "headwall_upstream_kept_connections";
const FRESH: &str = "Cache-Control: max-age=60\r\n";

/// Method, what the origin sends, and the reason; none where it is fine.
type Row = (&'static str, String, Option<&'static str>);

fn rows() -> Vec<Row> {
    let head = |fields: &str| format!("HTTP/1.1 200 OK\r\n{FRESH}{fields}\r\n");
    let chunks = |content: &str| head("Transfer-Encoding: chunked\r\n") + content;
    vec![
        ("GET", head("Content-Length: 5\r\nContent-Length: 5\r\n") + "hello", Some("content-length")),
        ("GET", head("Content-Length: 5\r\nContent-Length: 6\r\n") + "hello", Some("content-length")),
        ("GET", head("Content-Length: 5, 5\r\n") + "hello", Some("content-length")),
        ("GET", head("Content-Length: -5\r\n") + "hello", Some("content-length")),
        ("GET", head("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\n", Some("two-framings")),
        ("GET", head("Transfer-Encoding: gzip, chunked\r\n") + "0\r\n\r\n", Some("transfer-encoding")),
        ("GET", chunks("").replace("1.1 200", "1.0 200") + "0\r\n\r\n", Some("transfer-encoding")),
        ("GET", head("Content-Length: 5\r\nX: a\r\n b\r\n") + "hello", Some("folded-line")),
        ("GET", head("Content-Length: 5\r\nno colon\r\n") + "hello", Some("field-line")),
        ("GET", head("Content-Length: 5\r\nX: a\0b\r\n") + "hello", Some("field-line")),
        ("GET", head("Content-Length: 5\r\nX: a\nY: b\r\n") + "hello", Some("bare-line-end")),
        ("GET", head("Content-Length: 5\r\n").replace("\r\n", "\n") + "hello", Some("bare-line-end")),
        ("GET", "\x16\x03\x01 what is this\r\n\r\n".into(), Some("status-line")),
        ("GET", head("Content-Length: 5\r\n").replace("1.1", "1.7") + "hello", Some("status-line")),
        (
            "GET",
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n".into(),
            Some("unasked-101"),
        ),
        ("GET", chunks("5\nhello\r\n0\r\n\r\n"), Some("chunk")),
        ("GET", chunks("5;a\0\r\nhello\r\n0\r\n\r\n"), Some("chunk")),
        ("GET", chunks("5\r\nhello, no end\r\n"), Some("chunk")),
        ("GET", chunks("\r\n"), Some("chunk")),
        ("GET", chunks("5\r\nhello\r\n0\r\nno colon\r\n\r\n"), Some("field-line")),
        ("GET", head("Content-Length: 5\r\n") + "hello", None),
        ("GET", chunks("5;a=b\r\nhello\r\n0\r\nTrailer: x\r\n\r\n"), None),
        (
            "GET",
            "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n".to_owned() + &head("Content-Length: 5\r\n") + "hello",
            None,
        ),
        ("GET", head("Blank : x\r\nContent-Length: 5\r\n").replace(" OK", "") + "hello", None),
        ("HEAD", head("Content-Length: 5\r\n"), None),
    ]
}

#[test]
fn what_it_must_not_send_is_refused_and_forgotten() {
    for slowly in [false, true] {
        let rows = rows();
        let sent: Vec<_> = rows.iter().map(|(_, bytes, _)| bytes.clone().into_bytes()).collect();
        let origin = Breaking::start(move |asked, connection| {
            let row = asked.target.rsplit('/').next().unwrap();
            let Some(bytes) = row.parse().ok().filter(|_| asked.before == 0).map(|row: usize| &sent[row]) else {
                return fine(connection, FRESH, &format!("served {}", asked.served));
            };
            for piece in bytes.chunks(if slowly { 1 } else { bytes.len() }) {
                if connection.write_all(piece).is_err() {
                    break;
                }
            }
            Then::Keep
        });
        // The store asks with GET for a HEAD.
        let proxy = Headwall::start(&format!(
            "upstreams: {{ app: {{ servers: [\"{}\"] }} }}\n\
             routes: [{{ match: {{ prefix: /head/ }}, to: {{ proxy: app }} }}, {{ to: {{ proxy: app }}, cache: {{}} }}]",
            origin.address
        ));
        for (number, (method, bytes, reason)) in rows.iter().enumerate() {
            let target = if *method == "HEAD" { format!("/head/{number}") } else { format!("/{number}") };
            let counted = |reason: &str| proxy.metric(&format!("headwall_origin_refused_total{{reason=\"{reason}\"}}"));
            // A piece of a line may be enough for the engine to give up.
            let counted = |reason: &str| counted(reason) + if slowly { counted("unreadable") } else { 0.0 };
            let before = reason.map_or(0.0, counted);
            let mut client = proxy.client();
            client.request(method, &target, "");
            let reply = client.response(method);
            let Some(reason) = *reason else {
                assert_eq!((reply.status, reply.complete), (200, true), "{bytes:?}");
                assert!(*method == "HEAD" || reply.text() == "hello", "{bytes:?}: {}", reply.text());
                wait_until(|| proxy.metric(KEPT) >= 1.0);
                let next = proxy.get("/head/x").whole(200).text();
                assert_ne!(next, "served 0", "its connection is kept: {bytes:?}");
                continue;
            };
            // What has left cannot be taken back.
            let cut = slowly && reply.status == 200 && !reply.complete;
            assert!(reply.status == 502 || cut, "{bytes:?}: {} {:?}", reply.status, reply.fields);
            assert_eq!(origin.count(&format!("{method} {target}")), 1, "it is not asked for again: {bytes:?}");
            assert_eq!(counted(reason), before + 1.0, "{reason}: {bytes:?}");
            // Nothing of it is stored, and its connection is not used again.
            let next = if *method == "GET" { proxy.get(&target) } else { proxy.get("/head/x") }.whole(200);
            assert_eq!(next.text(), "served 0", "{bytes:?}");
            assert!(!next.cache().contains("hit"), "{bytes:?}: {}", next.cache());
        }
    }
}

#[test]
fn what_comes_behind_the_end_is_dropped_with_its_connection() {
    let head = |fields: &str| format!("HTTP/1.1 200 OK\r\n{FRESH}{fields}\r\n");
    let rows = [
        ("GET", head("Content-Length: 5\r\n") + "hello, who is there?", "hello"),
        ("GET", head("Content-Length: 5\r\n") + "helloHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", "hello"),
        ("GET", head("Transfer-Encoding: chunked\r\n") + "5\r\nhello\r\n0\r\n\r\nmore", "hello"),
        ("HEAD", head("Content-Length: 5\r\n") + "hello", ""),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\nhello".to_owned(), ""),
        ("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\nhello".to_owned(), ""),
    ];
    let sent: Vec<_> = rows.iter().map(|(_, bytes, _)| bytes.clone()).collect();
    let origin = Breaking::start(move |asked, connection| match asked.target[1..].parse::<usize>() {
        Ok(row) => {
            let _ = connection.write_all(sent[row].as_bytes());
            Then::Keep
        }
        Err(_) => fine(connection, "", &format!("served {}", asked.served)),
    });
    let proxy = Headwall::start(&format!(
        "upstreams: {{ app: {{ servers: [\"{}\"] }} }}\nroutes: [{{ to: {{ proxy: app }} }}]",
        origin.address
    ));
    for (number, (method, bytes, content)) in rows.iter().enumerate() {
        let mut client = proxy.client();
        client.request(method, &format!("/{number}"), "");
        let reply = client.response(method);
        assert!(reply.complete && reply.status < 400, "{bytes:?}: {}", reply.status);
        assert_eq!(reply.text(), *content, "{bytes:?}");
        let counted = || proxy.metric("headwall_origin_refused_total{reason=\"after-end\"}");
        wait_until(|| counted() == (number + 1) as f64);
        assert_eq!(proxy.get("/next").whole(200).text(), "served 0", "{bytes:?}");
        wait_until(|| proxy.metric(KEPT) == 1.0);
    }
}

#[test]
fn connections_are_kept_and_the_latest_is_used_first() {
    let origin = Breaking::start(|asked, connection| fine(connection, "", &format!("served {}", asked.served)));
    let start = |idle: &str| {
        Headwall::start(&format!(
            "upstreams: {{ app: {{ servers: [\"{}\"], timeouts: {{ idle: {idle} }} }} }}\nroutes: [{{ to: {{ proxy: app }} }}]",
            origin.address
        ))
    };
    let proxy = start("30s");
    // A client may have its response before its connection is back.
    let kept = |count: usize| wait_until(|| proxy.metric(KEPT) == count as f64);
    let one_by_one = |count: usize| {
        for served in 0..20 {
            let text = proxy.get("/x").whole(200).text();
            kept(count);
            assert!(count > 1 || text == format!("served {served}"), "{text} is not the same connection");
        }
    };
    one_by_one(1);
    let new: usize = together(8, |_| {
        let mut client = proxy.client();
        let mut asked = || {
            client.request("GET", "/x", "");
            client.response("GET").whole(200).text()
        };
        (0..50).filter(|_| asked() == "served 0").count()
    })
    .into_iter()
    .sum();
    assert!(new <= 15, "two for each client, of which one is there: {new}");
    kept(1 + new);
    one_by_one(1 + new);
    // Those that nobody uses are closed.
    let proxy = start("50ms");
    proxy.get("/x").whole(200);
    wait_until(|| proxy.metric(KEPT) == 0.0);
    assert_eq!(proxy.get("/x").whole(200).text(), "served 0");
}

#[test]
fn a_reload_takes_kept_connections_over_and_leaves_none_behind() {
    let origin = Breaking::start(|asked, connection| fine(connection, "", &format!("served {}", asked.served)));
    let (port, admin) = (free_port(), free_port());
    let text = format!(
        "listen: [\"127.0.0.1:{port}\"]\nadmin: {{ listen: \"127.0.0.1:{admin}\" }}\n\
         upstreams: {{ app: {{ servers: [\"{}\"], timeouts: {{ idle: 30s }} }} }}\nroutes: [{{ to: {{ proxy: app }} }}]\n",
        origin.address
    );
    let file = TempFile::new("lines.yaml", &text);
    let process = Process::start(&["run", "--config", file.path()]).ready(port).ready(admin);
    let number = |name: &str| metric(([127, 0, 0, 1], admin).into(), name);
    let reload = |count: usize| {
        process.signal("HUP");
        wait_until(|| number("headwall_reloads_total{result=\"ok\"}") == count as f64);
    };
    for served in 0..4 {
        let mut client = Client::to(([127, 0, 0, 1], port).into());
        client.request("GET", "/x", "");
        assert_eq!(client.response("GET").whole(200).text(), format!("served {served}"));
        wait_until(|| number(KEPT) == 1.0);
        reload(served + 1);
        assert_eq!(number(KEPT), 1.0);
    }
    std::fs::write(file.path(), text.replace(&origin.address.to_string(), "127.0.0.1:9")).unwrap();
    reload(5);
    wait_until(|| origin.open() == 0);
}

#[test]
fn what_comes_while_nobody_asks_is_nobodys_answer() {
    let kept = Arc::new(Mutex::new(None));
    let keep = kept.clone();
    let origin = Breaking::start(move |asked, connection| {
        *keep.lock().unwrap() = Some(connection.try_clone().unwrap());
        fine(connection, "", if asked.served == 0 { "well" } else { "on a connection that was not silent" })
    });
    let proxy = Headwall::start(&format!(
        "upstreams: {{ app: {{ servers: [\"{}\"] }} }}\nroutes: [{{ to: {{ proxy: app }} }}]",
        origin.address
    ));
    for _ in 0..20 {
        assert_eq!(proxy.get("/x").whole(200).text(), "well");
        let mut connection = kept.lock().unwrap().take().unwrap();
        // The connection may be closed by then: it has seen that no more can come.
        let _ = connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil");
    }
}
