//! Plugins that we did not write: one that panics at each door, and a crate outside the tree.

use std::process::Command;
use std::sync::Arc;

use headwall::bytes::Bytes;
use headwall::exchange::{Broken, ContentFilter, Exchange};
use headwall::handler::Reply;
use headwall::plugin::{
    Entry, Hooks, OnLog, OnRequest, OnRequestBody, OnRequestHead, OnResponse, OnUpstreamRequest, OnUpstreamResponse,
    Plugin,
};
use headwall::{RequestHeader, ResponseHeader};

use crate::support::{Client, Headwall, Origin, Process, TempFile, free_port, root, run};

/// Panics where the request says so.
struct Panics;

struct Where(String);

fn panics(exchange: &Exchange, door: &str) {
    let here = exchange.note::<Where>().is_some_and(|Where(there)| there == door);
    assert!(!here, "on purpose, at {door}");
}

impl Plugin for Panics {
    const NAME: &'static str = "panics";
    type Settings = Option<bool>;

    fn build(_: Option<bool>) -> Result<Hooks, String> {
        let this = Arc::new(Panics);
        Ok(Hooks::new()
            .request(this.clone())
            .request_head(this.clone())
            .request_body(this.clone())
            .upstream_request(this.clone())
            .upstream_response(this.clone())
            .response(this.clone())
            .log(this))
    }
}

#[headwall::async_trait]
impl OnRequest for Panics {
    async fn on_request(&self, request: &RequestHeader, exchange: &mut Exchange) -> Option<Reply> {
        let door = request.headers.get("x-panic")?.to_str().ok()?.to_owned();
        exchange.set_note(Where(door));
        panics(exchange, "request");
        None
    }
}

impl OnRequestHead for Panics {
    fn on_request_head(&self, _: &mut RequestHeader, exchange: &mut Exchange) {
        panics(exchange, "head");
    }
}

impl OnRequestBody for Panics {
    fn on_request_body(&self, _: &mut Option<Bytes>, _: bool, exchange: &mut Exchange) -> Result<(), u16> {
        panics(exchange, "body");
        Ok(())
    }
}

impl OnUpstreamRequest for Panics {
    fn on_upstream_request(&self, _: &mut RequestHeader, exchange: &mut Exchange) {
        panics(exchange, "upstream-request");
    }
}

impl OnUpstreamResponse for Panics {
    fn on_upstream_response(&self, _: &mut ResponseHeader, exchange: &mut Exchange) {
        panics(exchange, "upstream-response");
    }
}

impl OnResponse for Panics {
    fn on_response(&self, _: &RequestHeader, _: &mut ResponseHeader, exchange: &mut Exchange) {
        panics(exchange, "response");
        if exchange.note::<Where>().is_some_and(|Where(there)| there == "content") {
            exchange.push_filter(Box::new(Panics));
        }
    }
}

impl OnLog for Panics {
    fn on_log(&self, exchange: &mut Exchange) {
        panics(exchange, "log");
    }
}

impl ContentFilter for Panics {
    fn chunk(&mut self, _: Bytes) -> Result<Bytes, Broken> {
        panic!("on purpose, in the content");
    }
}

#[test]
pub fn a_panic_costs_its_request_a_500_and_nothing_else() {
    let origin = Origin::start();
    let yaml = format!(
        "upstreams: {{ app: {{ servers: [\"127.0.0.1:{}\"] }} }}\nroutes:\n  - match: {{ prefix: /cache/ }}\n    to: {{ kv: {{}} }}\n    plugins: [{{ panics: }}]\n  - to: {{ proxy: app }}\n    cache: {{}}\n    plugins: [{{ panics: }}]\n",
        origin.port
    );
    let proxy = Headwall::with(&yaml, &[Entry::of::<Panics>()]);
    let page = "/page?say=fine&h.Cache-Control=max-age=60";
    proxy.put("PUT", "/cache/k", "", b"value").whole(201);
    proxy.get(page).whole(200);
    let mut other = proxy.client();
    let mut panics = 0.0;
    for (door, method, target) in [
        ("request", "GET", page),
        ("request", "GET", "/cache/k"),
        ("head", "GET", page),
        ("head", "GET", "/cache/k"),
        ("body", "POST", "/upload"),
        ("body", "PUT", "/cache/k"),
        ("upstream-request", "GET", "/new?1"),
        ("upstream-response", "GET", "/new?h.Cache-Control=max-age=60"),
        ("response", "GET", page),
        ("response", "HEAD", page),
        ("response", "GET", "/other?h.Cache-Control=max-age=60"),
        ("response", "GET", "/cache/k"),
    ] {
        let field = format!("X-Panic: {door}\r\n");
        let reply = match method {
            "POST" | "PUT" => proxy.put(method, target, &field, b"content"),
            _ => proxy.ask(method, target, &field),
        };
        assert!(reply.status == 500 && reply.complete, "{door} {method} {target}: {} {:?}", reply.status, reply.fields);
        assert!(!reply.text().contains("fine") && !reply.text().contains("value"), "{door} {target}");
        assert!(proxy.metric("headwall_panics_total") > panics, "{door} {target} is counted");
        panics = proxy.metric("headwall_panics_total");
        other.request("GET", page, "");
        assert!(other.response("GET").whole(200).cache().contains("; hit"), "{door}: others go on");
    }
    assert_eq!(proxy.get("/cache/k").whole(200).text(), "value", "nothing was changed");
    assert!(!proxy.get("/new?h.Cache-Control=max-age=60").whole(200).cache().contains("; hit"), "nor stored");
    proxy.ask("GET", page, "X-Panic: log\r\n").whole(200);
    let cut = proxy.ask("GET", page, "X-Panic: content\r\n");
    assert_eq!((cut.status, cut.complete), (200, false), "a head that has left is not followed by a whole content");
    proxy.get(page).whole(200);
}

#[test]
fn a_crate_outside_the_tree_brings_a_plugin() {
    let folder = std::env::temp_dir().join(format!("headwall-stranger-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(folder.join("src")).unwrap();
    let readme = std::fs::read_to_string(root("README.md")).unwrap();
    let block = |kind: &str, number: usize| {
        let fence = format!("```{kind}\n");
        let mut blocks = readme.split(&fence).skip(number + 1);
        blocks.next().unwrap_or_else(|| panic!("no {kind} block")).split("```").next().unwrap().to_owned()
    };
    // What the README says, word for word, but for where Headwall is.
    let manifest = block("toml", 0).replace("../headwall", root("").to_str().unwrap());
    // The profile and the lock of this tree, so that its engine is not built once more.
    let profile = "\n[workspace]\n[profile.dev]\ndebug = \"line-tables-only\"\n[profile.dev.package.\"*\"]\ndebug = false\nopt-level = 1\n[profile.dev.package.headwall]\ndebug = \"line-tables-only\"\nopt-level = 0\n";
    std::fs::write(folder.join("Cargo.toml"), manifest + profile).unwrap();
    std::fs::copy(root("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    std::fs::write(folder.join("src/main.rs"), block("rust", 0)).unwrap();
    let target = std::path::Path::new(env!("CARGO_BIN_EXE_headwall")).parent().unwrap().parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(&folder).args(["build", "--offline"]).env("CARGO_TARGET_DIR", target);
    let (code, _, told) = run(&mut cargo);
    assert_eq!(code, 0, "{told}");
    let port = free_port();
    let yaml = block("yaml", 1);
    let file = TempFile::new("stranger.yaml", &yaml.replace("127.0.0.1:8080", &format!("127.0.0.1:{port}")));
    let binary = target.join("debug/my-proxy");
    let process = Process::start_binary(binary.to_str().unwrap(), &["run", "--config", file.path()]).ready(port);
    let mut client = Client::to(([127, 0, 0, 1], port).into());
    client.request("GET", "/", "");
    let reply = client.response("GET").whole(200);
    assert_eq!(reply.field("x-hello"), "World");
    drop(process);
    let (_, schema, _) = run(Command::new(&binary).arg("schema"));
    assert!(schema.contains("Who is greeted"), "its settings are in its schema");
    let (_, tests, told) = run(Command::new(env!("CARGO"))
        .current_dir(&folder)
        .args(["test", "--offline"])
        .env("CARGO_TARGET_DIR", target));
    assert!(tests.contains("1 passed"), "{tests}{told}");
    let _ = std::fs::remove_dir_all(&folder);
}
