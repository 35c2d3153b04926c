//! The binary: command line, exit codes, signals, logs.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::support::{Client, Origin, Process, TempFile, free_port, metric, run, wait_until};

fn headwall(arguments: &[&str]) -> (i32, String, String) {
    run(Command::new(env!("CARGO_BIN_EXE_headwall")).args(arguments))
}

fn config(port: u16, origin: u16, rest: &str) -> TempFile {
    TempFile::new(
        "config.yaml",
        &format!(
            "threads: 2\nlisten: [\"127.0.0.1:{port}\"]\nupstreams: {{ app: {{ servers: [\"127.0.0.1:{origin}\"] }} }}\n{rest}"
        ),
    )
}

const ROUTE: &str = "routes: [{ to: { proxy: app } }]\n";

#[test]
fn check_says_fine_or_what_is_wrong() {
    let good = config(1, 2, ROUTE);
    let (code, out, _) = headwall(&["check", "--config", good.path()]);
    assert_eq!((code, out.contains("fine")), (0, true));
    let bad = config(1, 2, "routes: [{ to: { proxy: shp } }]\n");
    let (code, _, told) = headwall(&["check", "--config", bad.path()]);
    assert_eq!(code, 1);
    assert!(told.contains(":4:25: no upstream named `shp`; there are: app"), "{told}");
    let (code, _, told) = headwall(&["run", "--config", bad.path()]);
    assert!(code == 1 && told.contains("shp"), "run refuses what check refuses");
    let (code, _, told) = headwall(&["check", "--config", "/no/such/file.yaml"]);
    assert!(code == 1 && told.contains("/no/such/file.yaml: cannot be read"), "{told}");
}

#[test]
fn wrong_usage_is_2_and_help_helps() {
    for arguments in [
        &["run"][..],
        &["frob"],
        &["run", "--config", "a", "--to", "b"],
        &["check"],
        &["run", "--to", "x"],
        &["run", "--to", "localhost:1", "--listen", "zz"],
        &["run", "--config", "a", "--listen", "127.0.0.1:1"],
    ] {
        assert_eq!(headwall(arguments).0, 2, "{arguments:?}");
    }
    let (code, out, _) = headwall(&["run", "--help"]);
    assert_eq!(code, 0);
    for word in ["--config", "--to", "--listen", "127.0.0.1:8080", "SIGTERM"] {
        assert!(out.contains(word), "{word}");
    }
    assert!(headwall(&["--help"]).1.contains("3 could not start"));
}

#[test]
fn a_taken_port_is_3_at_once_and_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let file = config(port, 2, ROUTE);
    let since = Instant::now();
    for arguments in [
        &["run", "--config", file.path()][..],
        &["run", "--to", "localhost:3000", "--listen", &format!("127.0.0.1:{port}")],
    ] {
        let (code, _, told) = headwall(arguments);
        assert_eq!(code, 3);
        assert!(told.contains(&format!("127.0.0.1:{port}: this address is in use")), "{told}");
    }
    assert!(since.elapsed() < Duration::from_secs(5));
}

#[test]
fn run_to_proxies_caches_and_keeps_values() {
    let origin = Origin::start();
    let port = free_port();
    let to = format!("localhost:{}", origin.port);
    let mut process = Process::start(&["run", "--to", &to, "--listen", &format!("127.0.0.1:{port}")]).ready(port);
    let ask = |method: &str, target: &str, content: &str| {
        let mut client = Client::to(([127, 0, 0, 1], port).into());
        client.request(method, target, &format!("Content-Length: {}\r\n", content.len()));
        client.send(content);
        client.response(method)
    };
    assert!(ask("GET", "/?h.Cache-Control=max-age=60", "").whole(200).cache().contains("stored"));
    let mut client = Client::to(([127, 0, 0, 1], port).into());
    client.request("GET", "/?h.Cache-Control=max-age=60", "");
    assert!(client.response("GET").cache().contains("hit"));
    ask("PUT", "/cache/k", "v").whole(201);
    assert_eq!(ask("GET", "/cache/k", "").whole(200).text(), "v");
    process.signal("INT");
    assert_eq!(process.exit_code(), 0);
}

#[test]
fn term_lets_what_runs_finish_and_closes_the_rest() {
    let origin = Origin::start();
    let port = free_port();
    let file = config(port, origin.port, "routes: [{ to: { proxy: app }, cache: {} }]\n");
    let mut process = Process::start(&["run", "--config", file.path()]).ready(port);
    let address = ([127, 0, 0, 1], port).into();
    let mut idle = Client::to(address);
    idle.request("GET", "/warm", "");
    idle.response("GET").whole(200);
    let mut running = Client::to(address);
    running.request("GET", "/chunks?pieces=begin%20end&pace=1000&wait=500", "");
    wait_until(|| origin.count("/chunks") == 1);
    process.signal("TERM");
    let told = Instant::now();
    assert!(idle.closed());
    assert!(told.elapsed() < Duration::from_millis(700), "an idle connection is closed at once");
    assert_eq!(running.response("GET").whole(200).text(), "beginend");
    let finished = Instant::now();
    assert_eq!(process.exit_code(), 0);
    assert!(finished.elapsed() < Duration::from_secs(1));
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
pub fn a_log_that_nobody_reads_does_not_hold_up_the_end() {
    let origin = Origin::start();
    let port = free_port();
    let pipe = TempFile(std::env::temp_dir().join(format!("headwall-{}-{port}.pipe", std::process::id())));
    assert!(Command::new("mkfifo").arg(&pipe.0).status().unwrap().success());
    // A reader that never reads, so that it can be opened.
    let _reader = std::fs::OpenOptions::new().read(true).write(true).open(&pipe.0).unwrap();
    let log = format!("log: {{ access: {{ file: \"{}\" }} }}\n{ROUTE}", pipe.path());
    let file = config(port, origin.port, &log);
    let mut process = Process::start(&["run", "--config", file.path()]).ready(port);
    let mut client = Client::to(([127, 0, 0, 1], port).into());
    let long = format!("User-Agent: {}\r\n", "x".repeat(900));
    for _ in 0..120 {
        client.request("GET", "/", &long);
        client.response("GET").whole(200);
    }
    process.signal("TERM");
    assert_eq!(process.exit_code(), 0);
}

#[test]
fn term_cuts_what_does_not_finish_in_time() {
    let origin = Origin::start();
    let port = free_port();
    let file = config(port, origin.port, &format!("shutdown: {{ drain: 300ms }}\n{ROUTE}"));
    let mut process = Process::start(&["run", "--config", file.path()]).ready(port);
    let mut endless = Client::to(([127, 0, 0, 1], port).into());
    endless.request("GET", "/events", "");
    endless.head();
    process.signal("TERM");
    let since = Instant::now();
    assert_eq!(process.exit_code(), 0);
    assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
}

/// Twenty files, every fourth of them broken, while clients ask and an event stream runs.
#[test]
pub fn hup_takes_a_new_file_over_and_drops_nothing() {
    let origin = Origin::start();
    let (port, admin_port) = (free_port(), free_port());
    let (here, admin) = (([127, 0, 0, 1], port).into(), ([127, 0, 0, 1], admin_port).into());
    let yaml = |version: usize| {
        let broken = if version.is_multiple_of(4) { "x" } else { "" };
        format!(
            "threads: 2\nlisten: [\"127.0.0.1:{port}\"]\nadmin: {{ listen: \"127.0.0.1:{admin_port}\" }}\n\
             upstreams: {{ app: {{ servers: [\"localhost:{}\"] }} }}\nroutes:\n\
             - {{ match: {{ path: /version }}, to: {{ respond{broken}: {{ content: \"{version}\" }} }} }}\n\
             - {{ match: {{ prefix: /cache/ }}, to: {{ kv: {{ memory: {}MiB }} }} }}\n\
             - {{ to: {{ proxy: app }}, cache: {{}} }}\n",
            origin.port,
            32 + version
        )
    };
    let file = TempFile::new("reloaded.yaml", &yaml(1));
    let process = Process::start(&["run", "--config", file.path()]).ready(port).ready(admin_port);
    let ask = |client: &mut Client, target: &str| {
        client.request("GET", target, "");
        client.response("GET").whole(200)
    };
    let client = || Client::to(here);
    let mut keeper = client();
    keeper.request("PUT", "/cache/kept", "Content-Length: 4\r\n");
    keeper.send("kept");
    assert_eq!(keeper.response("PUT").status, 201);
    ask(&mut keeper, "/stored?h.Cache-Control=max-age=600");
    let mut events = client();
    events.request("GET", "/events?every=20", "");
    events.head();

    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = |name: &'static str| {
            let over = &over;
            scope.spawn(move || {
                let mut kept_alive = client();
                let mut asked = 0;
                while !over.load(Relaxed) {
                    ask(&mut kept_alive, &format!("/{name}?n={asked}"));
                    ask(&mut client(), "/stored?h.Cache-Control=max-age=600");
                    asked += 1;
                }
                asked
            })
        };
        let loads = [load("a"), load("b")];
        for version in 2..=21 {
            std::fs::write(&file.0, yaml(version)).unwrap();
            let good = !version.is_multiple_of(4);
            let counter = format!("headwall_reloads_total{{result=\"{}\"}}", if good { "ok" } else { "failed" });
            let before = metric(admin, &counter);
            process.signal("HUP");
            wait_until(|| metric(admin, &counter) == before + 1.0);
            // A bad file changes nothing.
            let serves = if good { version } else { version - 1 };
            assert_eq!(ask(&mut keeper, "/version").text(), serves.to_string());
            assert!(events.chunk().is_some_and(|chunk| !chunk.is_empty()), "the stream goes on");
        }
        over.store(true, Relaxed);
        for load in loads {
            assert!(load.join().unwrap() > 10, "there was load");
        }
    });
    assert_eq!(ask(&mut keeper, "/cache/kept").text(), "kept");
    assert_eq!(origin.count("/stored"), 1, "stored responses stay");
    assert_eq!(origin.count("/events"), 1);
}

#[test]
fn hup_changes_upstreams_policies_and_logs() {
    let (first, second) = (Origin::start(), Origin::start());
    let (port, admin_port) = (free_port(), free_port());
    let admin = ([127, 0, 0, 1], admin_port).into();
    let log = TempFile::new("access.log", "");
    let yaml = |origin: u16, cache: &str, log: &str| {
        format!(
            "threads: 2\nlisten: [\"127.0.0.1:{port}\"]\nadmin: {{ listen: \"127.0.0.1:{admin_port}\" }}\n{log}\
             upstreams: {{ app: {{ servers: [\"localhost:{origin}\"] }} }}\n\
             routes: [{{ to: {{ proxy: app }}{cache} }}]\n"
        )
    };
    let file = TempFile::new("reloaded.yaml", &yaml(first.port, ", cache: { mode: force, ttl: 10m }", ""));
    let process = Process::start(&["run", "--config", file.path()]).ready(port).ready(admin_port);
    let reload = |yaml: &str| {
        std::fs::write(&file.0, yaml).unwrap();
        let before = metric(admin, "headwall_reloads_total{result=\"ok\"}");
        process.signal("HUP");
        wait_until(|| metric(admin, "headwall_reloads_total{result=\"ok\"}") == before + 1.0);
    };
    let get = |target: &str| {
        let mut client = Client::to(([127, 0, 0, 1], port).into());
        client.request("GET", target, "");
        client.response("GET").whole(200)
    };
    let private = "/mine?h.Cache-Control=private";
    get(private);
    assert!(get(private).cache().starts_with("headwall; hit"), "stored by force");

    reload(&yaml(
        second.port,
        ", cache: {}",
        &format!("log: {{ access: {{ file: \"{}\", format: json }} }}\n", log.path()),
    ));
    for _ in 0..2 {
        assert_eq!(get(private).cache(), "headwall; fwd=uri-miss; detail=private", "force was taken back");
    }
    assert_eq!((first.count("/mine"), second.count("/mine")), (1, 2));
    wait_until(|| std::fs::read_to_string(&log.0).unwrap().contains("\"route\":\"*\""));

    let unsized_one = "/bytes?size=200000&h.Cache-Control=max-age=600";
    let bounded = |bound| yaml(second.port, ", cache: {}", &format!("cache: {{ max_unsized: {bound} }}\n"));
    reload(&bounded("64KiB"));
    get(unsized_one);
    assert_eq!(get(unsized_one).cache(), "headwall; fwd=uri-miss; detail=too-large");
    reload(&bounded("1MiB"));
    assert_eq!(get(unsized_one).cache(), "headwall; fwd=uri-miss; stored", "the new bound holds at once");

    reload(&yaml(second.port, "", ""));
    let logged = || std::fs::read_to_string(&log.0).unwrap().lines().count();
    assert_eq!(get("/unlogged").field("cache-status"), "");
    assert_eq!(logged(), 2);
}

#[test]
fn hup_without_a_file_changes_nothing() {
    let origin = Origin::start();
    let port = free_port();
    let (to, listen) = (format!("127.0.0.1:{}", origin.port), format!("127.0.0.1:{port}"));
    let process = Process::start(&["run", "--to", &to, "--listen", &listen]).ready(port);
    process.signal("HUP");
    for _ in 0..20 {
        let mut client = Client::to(([127, 0, 0, 1], port).into());
        client.request("GET", "/", "");
        client.response("GET").whole(200);
    }
}

#[test]
fn usr1_opens_the_log_again() {
    let origin = Origin::start();
    let port = free_port();
    let log = TempFile::new("access.log", "");
    let file =
        config(port, origin.port, &format!("log: {{ access: {{ file: \"{}\", format: json }} }}\n{ROUTE}", log.path()));
    let process = Process::start(&["run", "--config", file.path()]).ready(port);
    let get = |target: &str| {
        let mut client = Client::to(([127, 0, 0, 1], port).into());
        client.request("GET", target, "User-Agent: test\r\n");
        client.response("GET").whole(200)
    };
    get("/one");
    let read = || std::fs::read_to_string(&log.0).unwrap_or_default();
    wait_until(|| read().contains("/one"));
    let line: serde_json::Value = serde_json::from_str(read().lines().last().unwrap()).unwrap();
    assert_eq!(
        (line["status"].as_u64(), line["user_agent"].as_str(), line["route"].as_str()),
        (Some(200), Some("test"), Some("*"))
    );
    let moved = log.path().to_owned() + ".1";
    std::fs::rename(&log.0, &moved).unwrap();
    process.signal("USR1");
    wait_until(|| log.0.exists());
    get("/two");
    wait_until(|| read().contains("/two"));
    assert!(!std::fs::read_to_string(&moved).unwrap().contains("/two"));
    std::fs::remove_file(moved).unwrap();
}

#[test]
fn operators_see_health_metrics_and_numbers() {
    let origin = Origin::start();
    let proxy = crate::support::Headwall::before(&origin, "routes: [{ to: { proxy: app }, cache: {} }]");
    proxy.get("/a?h.Cache-Control=max-age=60").whole(200);
    proxy.get("/a?h.Cache-Control=max-age=60").whole(200);
    let ask = |path: &str| {
        let mut client = Client::to(proxy.admin);
        client.send(&format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
        client.response("GET")
    };
    assert_eq!(ask("/health").whole(200).text(), "ok\n");
    ask("/nothing").whole(404);
    // A request is counted when it is over, which is after the client has the response.
    for cache in ["hit", "uri-miss"] {
        let counter = format!("headwall_requests_total{{cache=\"{cache}\",route=\"*\",status=\"2xx\"}}");
        wait_until(|| proxy.metric(&counter) == 1.0);
    }
    let stats: serde_json::Value = serde_json::from_str(&ask("/stats").whole(200).text()).unwrap();
    assert_eq!(stats["cache"]["entries"], 1);
    assert!(stats["cache"]["bytes"].as_u64().unwrap() > 500);
    assert!(stats["bytes"]["sent"].as_u64().unwrap() > 10);
}

#[test]
fn health_asks_the_admin_listener() {
    let (port, admin) = (free_port(), free_port());
    let file = TempFile::new(
        "health.yaml",
        &format!(
            "listen: [\"127.0.0.1:{port}\"]\nadmin: {{ listen: \"127.0.0.1:{admin}\" }}\nroutes: [{{ to: {{ respond: {{}} }} }}]\n"
        ),
    );
    let address = format!("127.0.0.1:{admin}");
    let health = |arguments: &[&str]| run(Command::new(env!("CARGO_BIN_EXE_headwall")).arg("health").args(arguments));
    let (code, _, told) = health(&["--admin", &address]);
    assert_eq!((code, told.contains(&address)), (1, true), "nobody is there: {told}");
    let process = Process::start(&["run", "--config", file.path()]).ready(admin);
    assert_eq!(health(&["--admin", &address]).0, 0);
    assert_eq!(health(&["--config", file.path()]), (0, "ok\n".into(), String::new()));
    drop(process);
    let none = TempFile::new("none.yaml", "routes: [{ to: { respond: {} } }]\n");
    assert!(health(&["--config", none.path()]).2.contains("no `admin` listener"));
    assert_eq!(health(&["--admin", "nowhere"]).0, 2);
}

#[test]
fn a_reload_leaves_what_plugins_count_as_it_is() {
    let (port, admin) = (free_port(), free_port());
    let yaml = |limit: &str, content: &str| {
        format!(
            "listen: [\"127.0.0.1:{port}\"]\nadmin: {{ listen: \"127.0.0.1:{admin}\" }}\nplugins: [{{ rate_limit: {{ {limit} }} }}]\nroutes: [{{ to: {{ respond: {{ content: {content} }} }} }}]\n"
        )
    };
    let file = TempFile::new("limits.yaml", &yaml("requests: 1, per: 1h", "one"));
    let process = Process::start(&["run", "--config", file.path()]).ready(port).ready(admin);
    let ask = || {
        let mut client = Client::to(([127, 0, 0, 1], port).into());
        client.request("GET", "/", "");
        client.response("GET")
    };
    assert_eq!(ask().status, 200);
    let reloads = || metric(([127, 0, 0, 1], admin).into(), "headwall_reloads_total{result=\"ok\"}");
    let changes = [
        ("requests: 1, per: 1h", "two", 429),
        ("per: 1h, requests: 1", "two", 429),
        ("requests: 2, per: 1h", "two", 200),
    ];
    for (number, (limit, content, status)) in changes.into_iter().enumerate() {
        std::fs::write(&file.0, yaml(limit, content)).unwrap();
        process.signal("HUP");
        wait_until(|| reloads() == number as f64 + 1.0);
        assert_eq!(ask().status, status, "the same settings keep their counts");
    }
}

/// Whose rights a process has: user, group, other groups.
fn rights(process: &str) -> [String; 3] {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    ["Uid:", "Gid:", "Groups:"].map(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    })
}

#[test]
fn root_becomes_the_user_and_reloads_as_such() {
    let (port, admin) = (free_port(), free_port());
    let text = |content: &str| {
        format!(
            "user: nobody\nthreads: 2\nlisten: [\"127.0.0.1:{port}\"]\nadmin: {{ listen: \"127.0.0.1:{admin}\" }}\nroutes: [{{ to: {{ respond: {{ content: {content} }} }} }}]\n"
        )
    };
    let file = TempFile::new("user.yaml", &text("before"));
    let process = Process::start(&["run", "--config", file.path()]).ready(port).ready(admin);
    let reloads = |result: &str| {
        metric(([127, 0, 0, 1], admin).into(), &format!("headwall_reloads_total{{result=\"{result}\"}}"))
    };
    // It accepts before it lets go of root, and answers after that.
    assert_eq!(reloads("failed"), 0.0);
    if !rights("self")[0].starts_with("0 ") {
        // Nobody else can; the server says so and stays who it is.
        return assert!(!rights(&process.id().to_string())[0].starts_with("65534 "));
    }
    let [uid, gid, groups] = rights(&process.id().to_string());
    assert_eq!(uid, "65534 65534 65534 65534");
    assert_eq!(gid, "65534 65534 65534 65534");
    assert!(groups.split(' ').all(|group| group != "0"), "{groups}");
    std::fs::write(&file.0, text("after")).unwrap();
    process.signal("HUP");
    wait_until(|| reloads("ok") == 1.0);
    // What root could read and its successor cannot is a reload that fails.
    run(Command::new("chmod").args(["600", file.path()]));
    process.signal("HUP");
    wait_until(|| reloads("failed") == 1.0);
    let mut client = Client::to(([127, 0, 0, 1], port).into());
    client.request("GET", "/", "");
    assert_eq!(client.response("GET").whole(200).text(), "after");
}

#[test]
fn an_admin_listener_beyond_loopback_keeps_a_token() {
    let (port, admin) = (free_port(), free_port());
    let text = |admin: &str| {
        format!("threads: 2\nlisten: [\"127.0.0.1:{port}\"]\n{admin}\nroutes: [{{ to: {{ respond: {{}} }} }}]\n")
    };
    let guarded = format!("admin: {{ listen: \"0.0.0.0:{admin}\", token: a-token-of-this-test }}");
    let file = TempFile::new("beyond.yaml", &text(&guarded));
    let process = Process::start(&["run", "--config", file.path()]).ready(port).ready(admin);
    let ask = |token: &str| {
        let mut client = Client::to(([127, 0, 0, 1], admin).into());
        client.request("GET", "/metrics", &format!("Authorization: Bearer {token}\r\nConnection: close\r\n"));
        client.response("GET")
    };
    assert_eq!(ask("somebody-elses-guess").status, 401);
    let failed = || ask("a-token-of-this-test").text().contains("headwall_reloads_total{result=\"failed\"} 1");
    assert!(!failed());
    assert_eq!(headwall(&["health", "--config", file.path()]).0, 0, "it is on loopback, too");
    // The listener would stay where it is, open to everybody.
    std::fs::write(&file.0, text(&format!("admin: {{ listen: \"127.0.0.1:{admin}\" }}"))).unwrap();
    process.signal("HUP");
    wait_until(failed);
    assert_eq!(ask("somebody-elses-guess").status, 401);
}
