//! What clients may take: each limit of `limits`, from its own side.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{Client, Headwall, Origin, Process, TempFile, free_port, metric, run, wait_until};

/// Routes of each kind, behind a plugin that marks what passed the seal.
const ROUTES: &str = r#"
plugins: [{ headers: { response: { set: { X-Seal: "yes" } } } }]
routes:
  - match: { prefix: /kv/ }
    to: { kv: {} }
  - match: { path: /here }
    to: { respond: { content: here } }
  - to: { proxy: app }
    cache: {}
"#;

fn limited(origin: &Origin, limits: &str) -> Headwall {
    Headwall::before(origin, &format!("limits: {{ {limits} }}{ROUTES}"))
}

/// What was counted as refused for this reason, once it is as much as expected.
fn refused(proxy: &Headwall, reason: &str, expected: f64) {
    let name = format!("headwall_refused_total{{reason=\"{reason}\"}}");
    wait_until(|| proxy.metric(&name) >= expected);
    assert_eq!(proxy.metric(&name), expected, "{reason}");
}

/// A short text through the seal, and the end of the connection.
fn turned_away(client: &mut Client, status: u16) {
    let reply = client.response("GET").whole(status);
    assert_eq!(reply.field("content-type"), "text/plain; charset=utf-8", "{:?}", reply.fields);
    assert_eq!((reply.field("connection"), reply.field("x-seal")), ("close", "yes"), "{:?}", reply.fields);
    assert!(client.closed());
}

/// A connection that is closed before it is served.
fn is_refused(address: SocketAddr) -> bool {
    let mut client = Client::to(address);
    client.closed()
}

fn ask(client: &mut Client, target: &str) -> u16 {
    client.request("GET", target, "");
    client.response("GET").status
}

#[test]
fn sizes_of_a_request_are_what_the_file_says() {
    let origin = Origin::start();
    let proxy = limited(&origin, "head: 2KiB, fields: 20, target: 256B");
    let target = |length: usize| format!("/{}", "t".repeat(length - 1));
    let fields = |count: usize| (1..count).map(|n| format!("A{n}: b\r\n")).collect::<String>();
    let head = |length: usize| {
        format!("A: {}\r\n", "b".repeat(length - "GET / HTTP/1.1\r\nHost: site.test\r\nA: \r\n\r\n".len()))
    };
    for (why, at, field, status) in [
        ("a target as long as it may be", target(256), String::new(), 200),
        ("a longer one", target(257), String::new(), 414),
        ("as many fields as there may be", "/".into(), fields(20), 200),
        ("more", "/".into(), fields(21), 431),
        ("a head as long as it may be", "/".into(), head(2048), 200),
        ("a longer one", "/".into(), head(2049), 431),
    ] {
        let mut client = proxy.client();
        client.request("GET", &at, &field);
        match status {
            200 => assert_eq!(client.response("GET").status, 200, "{why}"),
            _ => turned_away(&mut client, status),
        }
    }
    assert_eq!(origin.count("/"), 3);
    for reason in ["target-size", "field-count", "head-size"] {
        refused(&proxy, reason, 1.0);
    }
}

#[test]
fn what_two_could_read_in_two_ways_is_refused_and_the_connection_closed() {
    let origin = Origin::start();
    let proxy = limited(&origin, "");
    for (head, status, reason) in [
        ("GET / HTTP/1.1\r\n\r\n", 400, "host"),
        ("GET / HTTP/1.1\r\nHost:\r\n\r\n", 400, "host"),
        ("GET /#f HTTP/1.1\r\nHost: a\r\n\r\n", 400, "target"),
        ("GET  /a HTTP/1.1\r\nHost: a\r\n\r\n", 400, "target"),
        ("TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", 405, "method"),
        ("MMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMM / HTTP/1.1\r\nHost: a\r\n\r\n", 501, "method"),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501, "transfer-encoding"),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 3\r\n\r\nabc",
            400,
            "upgrade-content",
        ),
    ] {
        let name = format!("headwall_refused_total{{reason=\"{reason}\"}}");
        let before = proxy.metric(&name);
        let mut client = proxy.client();
        client.send(head);
        turned_away(&mut client, status);
        assert_eq!(proxy.metric(&name), before + 1.0, "{head:?}");
    }
    // The engine answers what it cannot read; that is counted, too.
    for (number, head) in [
        "GET /\r\n\r\n",
        "GET / HTTP/2.0\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nB: c\r\n d\r\n\r\n",
        "GET http:///a HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n",
        "GET http://u@a/ HTTP/1.1\r\nHost: u@a\r\n\r\n",
        "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    ]
    .iter()
    .enumerate()
    {
        let mut client = proxy.client();
        client.send(head);
        let reply = client.response("GET");
        assert_eq!((reply.status, reply.field("connection")), (400, "close"), "{head:?}");
        assert!(client.closed(), "{head:?}");
        refused(&proxy, "unreadable", number as f64 + 1.0);
    }
    assert_eq!(origin.count("/"), 0);
}

#[test]
fn the_host_of_an_old_client_may_stand_in_the_target_alone() {
    let origin = Origin::start();
    let proxy = limited(&origin, "");
    let mut client = proxy.client();
    client.send("GET http://Old.Test:81/page HTTP/1.0\r\n\r\n");
    assert_eq!(client.response("GET").status, 200);
    assert_eq!(origin.field("/page", "host").as_deref(), Some("old.test:81"));
}

#[test]
fn a_head_that_grows_too_long_is_answered_before_it_ends() {
    let origin = Origin::start();
    let proxy = limited(&origin, "head: 8KiB");
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nA: ");
    // More than it may be, and far less than the engine would take.
    client.send(&"b".repeat(64 << 10));
    let reply = client.response("GET").whole(431);
    assert_eq!((reply.field("connection"), reply.text().as_str()), ("close", "the request head is too long\n"));
    assert!(client.closed());
    refused(&proxy, "head-size", 1.0);
}

#[test]
fn a_head_has_to_be_over_in_time_and_a_silent_client_is_nobody() {
    let origin = Origin::start();
    let proxy = limited(&origin, "head_timeout: 200ms");
    let mut slow = proxy.client();
    slow.send("GET / HTTP/1.1\r\nHost: ");
    let mut silent = proxy.client();
    assert_eq!((slow.more(), silent.more()), (0, 0), "closed without an answer");
    let mut second = proxy.client();
    assert_eq!(ask(&mut second, "/here"), 200);
    second.send("GET /here HTTP/1.1\r\n");
    assert!(second.closed(), "a later head, too");
    refused(&proxy, "slow-head", 2.0);
}

#[test]
fn an_idle_connection_is_closed_without_a_word() {
    let origin = Origin::start();
    let proxy = limited(&origin, "idle: 200ms");
    let mut client = proxy.client();
    for target in ["/here", "/page", "/kv/none"] {
        assert_ne!(ask(&mut client, target), 0);
    }
    assert!(client.closed());
    assert_eq!(proxy.metric("headwall_refused_total{reason=\"slow-head\"}"), 0.0);
}

#[test]
fn content_that_comes_too_slowly_gets_408_whoever_wants_it() {
    let origin = Origin::start();
    let proxy = limited(&origin, "content_rate: 1MiB, content_grace: 300ms");
    let mut number = 0.0;
    for (method, target) in [("PUT", "/kv/a"), ("POST", "/upload")] {
        for (framing, first) in [("Content-Length: 100000", "x"), ("Transfer-Encoding: chunked", "1\r\nx\r\n")] {
            let mut client = proxy.client();
            client.request(method, target, &format!("{framing}\r\n"));
            client.send(first);
            let reply = client.response(method).whole(408);
            assert_eq!((reply.field("connection"), reply.field("x-seal")), ("close", "yes"), "{target} {framing}");
            assert!(client.closed(), "{target} {framing}");
            number += 1.0;
            refused(&proxy, "slow-content", number);
        }
    }
    proxy.get("/kv/a").whole(404);
    // Content that nobody wants is not waited for any longer.
    let mut client = proxy.client();
    client.request("POST", "/here", "Content-Length: 1000\r\n");
    assert_eq!(client.response("POST").whole(200).field("connection"), "close");
    assert!(client.closed());
}

/// An origin for one request: does this with its connection once the head is there.
fn one_request(serve: impl FnOnce(TcpStream) + Send + 'static) -> (u16, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        let (mut tcp, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            tcp.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        serve(tcp);
    });
    (port, thread)
}

/// Much longer than the grace of these tests.
const LONG: Duration = Duration::from_millis(1500);
const QUICK: &str = "limits: { content_rate: 1KiB, content_grace: 600ms }";

fn before(port: u16) -> Headwall {
    Headwall::start(&format!(
        "{QUICK}\nupstreams: {{ app: {{ servers: [\"127.0.0.1:{port}\"] }} }}\nroutes: [{{ to: {{ proxy: app }} }}]"
    ))
}

#[test]
fn an_origin_that_takes_nothing_costs_its_client_nothing() {
    const LENGTH: usize = 16 << 20;
    let (port, origin) = one_request(|mut tcp| {
        std::thread::sleep(LONG);
        let mut content = vec![0; LENGTH];
        tcp.read_exact(&mut content).unwrap();
        tcp.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
    });
    let proxy = before(port);
    proxy.put("POST", "/", "", &vec![b'x'; LENGTH]).whole(200);
    origin.join().unwrap();
}

#[test]
fn who_waits_to_be_told_to_go_on_is_not_late() {
    let (port, origin) = one_request(|mut tcp| {
        std::thread::sleep(LONG);
        tcp.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
        tcp.read_exact(&mut [0; 5]).unwrap();
        tcp.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
    });
    let proxy = before(port);
    let mut client = proxy.client();
    client.request("POST", "/", "Content-Length: 5\r\nExpect: 100-continue\r\n");
    assert_eq!(client.take(25), b"HTTP/1.1 100 Continue\r\n\r\n");
    client.send("hello");
    client.response("POST").whole(200);
    origin.join().unwrap();
}

#[test]
fn who_was_told_to_go_on_and_does_not_is_late() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, &format!("{QUICK}{ROUTES}"));
    for target in ["/kv/a", "/upload"] {
        let mut client = proxy.client();
        client.request("PUT", target, "Content-Length: 5\r\nExpect: 100-continue\r\n");
        let reply = client.response("PUT").whole(408);
        assert_eq!(reply.interim, [100], "{target}");
    }
    refused(&proxy, "slow-content", 2.0);
}

#[test]
fn a_tunnel_may_be_silent() {
    let (port, origin) = one_request(|mut tcp| {
        tcp.write_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n")
            .unwrap();
        std::thread::sleep(LONG);
        tcp.write_all(b"still here").unwrap();
        tcp.shutdown(Shutdown::Write).unwrap();
    });
    let proxy = before(port);
    let mut client = proxy.client();
    client.request("GET", "/", "Connection: upgrade\r\nUpgrade: websocket\r\n");
    assert_eq!(client.head().status, 101);
    assert_eq!(client.take(10), b"still here");
    origin.join().unwrap();
}

#[test]
fn who_takes_too_little_of_a_response_is_cut() {
    let origin = Origin::start();
    let proxy = limited(&origin, "read_rate: 1MiB, read_grace: 200ms");
    let mut client = proxy.client();
    client.request("GET", "/bytes?size=50000000&sized=1", "");
    refused(&proxy, "slow-reader", 1.0);
    origin.wait_closed("/bytes");
    assert!(!client.response("GET").complete);
}

#[test]
fn a_connection_ends_with_the_last_of_its_requests() {
    let origin = Origin::start();
    let proxy = limited(&origin, "requests_per_connection: 3");
    let mut client = proxy.client();
    for (target, connection) in [("/here", "keep-alive"), ("/page", "keep-alive"), ("/page", "close")] {
        client.request("GET", target, "");
        assert_eq!(client.response("GET").whole(200).field("connection"), connection);
    }
    assert!(client.closed());
}

#[test]
fn one_connection_too_many_is_closed_and_the_others_are_served() {
    let origin = Origin::start();
    let proxy = limited(&origin, "connections: 2");
    let (mut first, mut second) = (proxy.client(), proxy.client());
    assert_eq!((ask(&mut first, "/page"), ask(&mut second, "/page")), (200, 200), "loopback is no network");
    assert!(is_refused(proxy.address));
    assert_eq!(proxy.metric("headwall_connections_refused_total{reason=\"connections\"}"), 1.0);
    assert_eq!((ask(&mut first, "/page"), ask(&mut second, "/page")), (200, 200));
    drop(second);
    wait_until(|| proxy.metric("headwall_connections") == 1.0);
    let mut third = proxy.client();
    assert_eq!(ask(&mut third, "/page"), 200);
    assert_eq!(proxy.metric("headwall_connections_refused_total{reason=\"connections\"}"), 1.0);
}

#[test]
fn operators_are_held_to_the_same_and_are_not_many() {
    let origin = Origin::start();
    let proxy = limited(&origin, "head_timeout: 1m, content_rate: 1MiB, content_grace: 200ms, idle: 1h");
    let mut slow = Client::to(proxy.admin);
    slow.send(
        "POST /purge HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
    );
    assert_eq!(slow.response("POST").whole(408).text(), "the content came too slowly\n");
    drop(slow);
    refused(&proxy, "slow-content", 1.0);
    let mut operators: Vec<Client> = Vec::new();
    // Those that asked above may still be there for a moment.
    wait_until(|| {
        operators.extend((operators.len()..32).map(|_| Client::to(proxy.admin)));
        operators.retain_mut(|operator| {
            operator.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
            operator.response("GET").status == 200
        });
        operators.len() == 32
    });
    assert!(is_refused(proxy.admin));
    drop(operators.pop());
    wait_until(|| !is_closed_soon(proxy.admin));
    let proxy = limited(&origin, "head_timeout: 200ms, idle: 200ms");
    for first in ["GET /health HTTP/1.1\r\nHost: x\r\n\r\n", "GET /hea"] {
        let mut client = Client::to(proxy.admin);
        client.send(first);
        while client.more() > 0 {}
    }
    refused(&proxy, "slow-head", 1.0);
}

/// Whether a connection there is not answered.
fn is_closed_soon(address: SocketAddr) -> bool {
    let mut client = Client::to(address);
    let sent = client.tcp.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    sent.is_err() || client.response("GET").status != 200
}

/// The binary with this file, as this user of a shell would start it; what it says goes to the second one.
fn start(before: &str, port: u16, file: &TempFile, told: &TempFile) -> Process {
    let binary = env!("CARGO_BIN_EXE_headwall");
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{before} exec {binary} run --config {}", file.path())]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(std::fs::File::create(&told.0).unwrap());
    Process { child: command.spawn().unwrap() }.ready(port)
}

fn file(port: u16, admin: u16, limits: &str) -> String {
    format!(
        "threads: 2\nlisten: [\"127.0.0.1:{port}\"]\nadmin: {{ listen: \"127.0.0.1:{admin}\" }}\nlimits: {{ {limits} }}\nroutes: [{{ to: {{ respond: {{}} }} }}]\n"
    )
}

#[test]
fn a_reload_takes_all_of_them_over() {
    let (port, admin) = (free_port(), free_port());
    let (config, told) =
        (TempFile::new("limits.yaml", &file(port, admin, "connections: 10")), TempFile::new("told", ""));
    let process = start("", port, &config, &told);
    let (address, admin_address) = (([127, 0, 0, 1], port).into(), ([127, 0, 0, 1], admin).into());
    let reload = |limits: &str, number: f64| {
        std::fs::write(&config.0, file(port, admin, limits)).unwrap();
        process.signal("HUP");
        wait_until(|| metric(admin_address, "headwall_reloads_total{result=\"ok\"}") == number);
    };
    wait_until(|| metric(admin_address, "headwall_connections") == 0.0);
    let mut client = Client::to(address);
    assert_eq!(ask(&mut client, &format!("/{}", "a".repeat(200))), 200);
    let mut other = Client::to(address);
    assert_eq!(ask(&mut other, "/"), 200);
    reload("target: 100B, connections: 1, requests_per_connection: 3, idle: 100ms", 1.0);
    assert!(is_refused(address), "there are two, and may be one; nobody had to go");
    assert_eq!(ask(&mut other, "/"), 200);
    assert!(other.closed(), "idle is short since its last request");
    assert_eq!(ask(&mut client, &format!("/{}", "a".repeat(200))), 414);
    reload("head_timeout: 100ms, connections: 20", 2.0);
    let mut slow = Client::to(address);
    slow.send("GET ");
    assert_eq!(slow.more(), 0);
}

#[test]
fn descriptors_bound_what_there_may_be_and_that_is_said() {
    let (port, admin) = (free_port(), free_port());
    let (config, told) = (TempFile::new("limits.yaml", &file(port, admin, "")), TempFile::new("told", ""));
    let _process = start("ulimit -n 102;", port, &config, &told);
    let address = ([127, 0, 0, 1], port).into();
    let said = std::fs::read_to_string(&told.0).unwrap();
    assert!(said.contains("limit=102 connections=3") && said.contains("limits.connections` (20000)"), "{said}");
    wait_until(|| metric(([127, 0, 0, 1], admin).into(), "headwall_connections") == 0.0);
    let mut three: Vec<_> = (0..3).map(|_| Client::to(address)).collect();
    assert!(three.iter_mut().all(|client| ask(client, "/") == 200));
    assert!(is_refused(address));
    assert!(three.iter_mut().all(|client| ask(client, "/") == 200));
}

/// Ticks of the processor that a process has had.
fn ticks(process: &Process) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.child.id())).unwrap();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn at_the_limit_of_descriptors_who_waits_is_taken_as_soon_as_one_leaves() {
    let (port, admin) = (free_port(), free_port());
    let (config, told) = (TempFile::new("limits.yaml", &file(port, admin, "")), TempFile::new("told", ""));
    let process = start("", port, &config, &told);
    let address = ([127, 0, 0, 1], port).into();
    let mut there: Vec<_> = (0..4).map(|_| Client::to(address)).collect();
    assert!(there.iter_mut().all(|client| ask(client, "/") == 200));
    let count = || std::fs::read_dir(format!("/proc/{}/fd", process.child.id())).unwrap().count();
    let mut open = count();
    wait_until(|| {
        // Whoever looked whether it is there may not have left yet.
        std::thread::sleep(Duration::from_millis(100));
        std::mem::replace(&mut open, count()) == open
    });
    let id = process.child.id().to_string();
    let (code, _, error) = run(Command::new("prlimit").args(["--pid", &id, &format!("--nofile={open}:{open}")]));
    assert_eq!(code, 0, "{error}");
    // The kernel has taken it; the process cannot.
    let mut waits = Client::to(address);
    waits.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until(|| std::fs::read_to_string(&told.0).unwrap().contains("cannot accept"));
    let before = ticks(&process);
    std::thread::sleep(Duration::from_millis(500));
    assert!(ticks(&process) - before < 20, "it tries again now and then, and not all the time");
    assert!(there.iter_mut().all(|client| ask(client, "/") == 200), "those that are there are served");
    drop(there.pop());
    assert_eq!(waits.response("GET").status, 200);
    let lines = std::fs::read_to_string(&told.0).unwrap().matches("cannot accept").count();
    assert!(lines <= 3, "{lines}");
}
