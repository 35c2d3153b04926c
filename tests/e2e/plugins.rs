//! Plugins end to end: the built-in one on its way in, and a stranger's.

use std::process::Command;
use std::sync::Arc;

use headwall::bytes::Bytes;
use headwall::exchange::{Broken, ContentFilter, Exchange};
use headwall::handler::Reply;
use headwall::plugin::{Entry, Hooks, OnLog, OnRequest, OnRequestBody, OnResponse, OnUpstreamResponse, Plugin};
use headwall::{RequestHeader, ResponseHeader};

use crate::support::{Headwall, Origin, Process, TempFile, free_port, root, run};

#[test]
fn headers_on_the_way_in() {
    let origin = Origin::start();
    let proxy = Headwall::before(
        &origin,
        "routes:\n  - to: { proxy: app }\n    plugins:\n      - headers: { request: { set: { X-A: \"{path}\" }, remove: [X-B] }, upstream_request: { add: { X-C: \"{client_ip} {host}\" } } }\n",
    );
    proxy.ask("GET", "/x?y", "X-B: 1\r\nX-C: 0\r\n").whole(200);
    assert_eq!(origin.field("/x", "x-a").as_deref(), Some("/x"));
    assert_eq!(origin.field("/x", "x-b"), None);
    assert_eq!(origin.field("/x", "x-c").as_deref(), Some("0, 127.0.0.1 site.test"));
}

/// Stands at the doors that the built-in plugin does not use.
struct Everywhere;

impl Plugin for Everywhere {
    const NAME: &'static str = "everywhere";
    type Settings = Option<bool>;

    fn build(_: Option<bool>) -> Result<Hooks, String> {
        let this = Arc::new(Everywhere);
        Ok(Hooks::new()
            .request(this.clone())
            .request_body(this.clone())
            .upstream_response(this.clone())
            .response(this.clone())
            .log(this))
    }
}

#[headwall::async_trait]
impl OnRequest for Everywhere {
    async fn on_request(&self, request: &RequestHeader, exchange: &mut Exchange) -> Option<Reply> {
        exchange.set_note(7u8);
        request.headers.contains_key("x-stop").then(|| Reply::text(429, "slow down"))
    }
}

impl OnRequestBody for Everywhere {
    fn on_request_body(&self, chunk: &mut Option<Bytes>, _: bool, _: &mut Exchange) -> Result<(), u16> {
        let refused = chunk.as_ref().is_some_and(|chunk| chunk.windows(5).any(|window| window == b"virus"));
        if refused { Err(413) } else { Ok(()) }
    }
}

impl OnUpstreamResponse for Everywhere {
    fn on_upstream_response(&self, response: &mut ResponseHeader, _: &mut Exchange) {
        let _ = response.append_header("x-stored", "once");
    }
}

impl OnResponse for Everywhere {
    fn on_response(&self, _: &RequestHeader, response: &mut ResponseHeader, exchange: &mut Exchange) {
        let note = exchange.note::<u8>().copied().unwrap_or(0);
        let _ = response.insert_header("x-note", note.to_string());
        exchange.push_filter(Box::new(Upper(Vec::new())));
    }
}

impl OnLog for Everywhere {
    fn on_log(&self, exchange: &mut Exchange) {
        assert!(exchange.status > 0);
    }
}

/// Writes everything in capitals and says at the end how much it was.
struct Upper(Vec<usize>);

impl ContentFilter for Upper {
    fn chunk(&mut self, chunk: Bytes) -> Result<Bytes, Broken> {
        self.0.push(chunk.len());
        Ok(chunk.to_ascii_uppercase().into())
    }
    fn finish(&mut self) -> Result<Bytes, Broken> {
        Ok(format!(" [{}]", self.0.iter().sum::<usize>()).into())
    }
}

#[test]
fn every_door_is_open_and_content_is_filtered_on_every_path() {
    let origin = Origin::start();
    let yaml = format!(
        "upstreams: {{ app: {{ servers: [\"127.0.0.1:{}\"] }} }}\nplugins: [{{ everywhere: }}]\nroutes:\n  - match: {{ path: /fixed }}\n    to: {{ respond: {{ content: fixed }} }}\n  - to: {{ proxy: app }}\n    cache: {{}}\n",
        origin.port
    );
    let proxy = Headwall::with(&yaml, &[Entry::of::<Everywhere>()]);
    let sized = "/a?say=hello&h.Cache-Control=max-age=60";
    let chunked = "/chunks?pieces=ab%20cd&h.Cache-Control=max-age=60";
    for (target, expected) in
        [(sized, "HELLO [5]"), (chunked, "ABCD [4]"), ("/fixed", "FIXED [5]"), ("/b?say=plain", "PLAIN [5]")]
    {
        for round in ["first", "again"] {
            let reply = proxy.get(target).whole(200);
            assert_eq!(reply.text(), expected, "{target} {round}");
            assert_eq!(reply.field("x-note"), "7");
            let stored = reply.fields.iter().filter(|(name, _)| name == "x-stored").count();
            assert_eq!(stored, usize::from(target != "/fixed"), "{target} {round}");
        }
    }
    let mut old = proxy.client();
    old.send(&format!("GET {sized} HTTP/1.0\r\nHost: site.test\r\n\r\n"));
    assert_eq!(old.response("GET").whole(200).text(), "HELLO [5]");
    assert_eq!(proxy.ask("GET", sized, "X-Stop: 1\r\n").whole(429).text(), "SLOW DOWN\n [10]");
    assert_eq!(proxy.put("POST", "/upload", "", b"a virus").status, 413);
    proxy.put("POST", "/upload", "", b"clean").whole(200);
}

#[test]
fn a_strangers_plugin_is_a_binary_in_thirty_lines() {
    let built = run(Command::new(env!("CARGO")).current_dir(root("")).args(["build", "--example", "hello_plugin"]));
    assert_eq!(built.0, 0, "{}", built.2);
    let lines = std::fs::read_to_string(root("examples/hello_plugin.rs")).unwrap();
    let code = lines.lines().filter(|line| !line.trim().is_empty() && !line.trim().starts_with("//")).count();
    assert!(code <= 35, "{code} lines");
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_headwall")).with_file_name("examples").join("hello_plugin");
    let port = free_port();
    let file = TempFile::new(
        "hello.yaml",
        &format!(
            "listen: [\"127.0.0.1:{port}\"]\nroutes:\n  - to: {{ respond: {{ content: hi }} }}\n    plugins: [{{ hello: {{ to: World }} }}]\n"
        ),
    );
    let process = Process::start_binary(binary.to_str().unwrap(), &["run", "--config", file.path()]).ready(port);
    let mut client = crate::support::Client::to(([127, 0, 0, 1], port).into());
    client.request("GET", "/", "");
    assert_eq!(client.response("GET").whole(200).field("x-hello"), "World");
    drop(process);
    let wrong =
        TempFile::new("wrong.yaml", "routes:\n  - to: { respond: {} }\n    plugins: [{ hello: { too: World } }]\n");
    let (code, _, told) = run(Command::new(&binary).args(["check", "--config", wrong.path()]));
    assert_eq!(code, 1);
    assert!(told.contains(":3:26: unknown field `too`, expected `to`"), "{told}");
}

/// Gives up at the first chunk, for pages that ask for it.
struct GivesUp;

impl Plugin for GivesUp {
    const NAME: &'static str = "gives_up";
    type Settings = Option<bool>;

    fn build(_: Option<bool>) -> Result<Hooks, String> {
        Ok(Hooks::new().response(Arc::new(GivesUp)))
    }
}

impl OnResponse for GivesUp {
    fn on_response(&self, _: &RequestHeader, response: &mut ResponseHeader, exchange: &mut Exchange) {
        let _ = response.insert_header("x-gives-up", "1");
        exchange.push_filter(Box::new(GivesUp));
    }
}

impl ContentFilter for GivesUp {
    fn chunk(&mut self, _: Bytes) -> Result<Bytes, Broken> {
        Err(Broken)
    }
}

#[test]
fn a_filter_that_gives_up_never_leaves_half_a_page_that_looks_whole() {
    let origin = Origin::start();
    let yaml = format!(
        "upstreams: {{ app: {{ servers: [\"127.0.0.1:{}\"] }} }}\nplugins: [{{ gives_up: }}, {{ compress: {{ min_length: 0B }} }}]\nroutes:\n  - match: {{ path: /fixed }}\n    to: {{ respond: {{ content: fixed }} }}\n  - to: {{ proxy: app }}\n    cache: {{}}\n",
        origin.port
    );
    let proxy = Headwall::with(&yaml, &[Entry::of::<GivesUp>()]);
    for target in ["/page?say=hello", "/page?say=hello&h.Cache-Control=max-age=60", "/chunks", "/fixed"] {
        for fields in ["", "Accept-Encoding: gzip\r\n"] {
            let reply = proxy.ask("GET", target, fields);
            let page = reply.status == 500 && reply.complete && reply.text().contains("Internal error");
            assert!(page || !reply.complete, "{target}: {} {:?} {:?}", reply.status, reply.fields, reply.text());
            assert!(!reply.text().contains("hello"), "{target}");
        }
    }
    assert_eq!(proxy.get("/fixed").status, 500, "what we made is known before it leaves");
}

#[test]
fn routes_share_what_is_stored_only_if_their_plugins_do_the_same_to_it() {
    let origin = Origin::start();
    let role = |role: &str| format!("{{ headers: {{ upstream_request: {{ set: {{ X-Role: {role} }} }} }} }}");
    let proxy = Headwall::before(
        &origin,
        &format!(
            "routes:\n  - match: {{ prefix: /old/ }}\n    to: {{ proxy: app }}\n    cache: {{}}\n    plugins: [{{ rewrite: {{ rules: [{{ from: \"^/old/(.*)\", to: /new/$1 }}] }} }}, {}]\n  - to: {{ proxy: app }}\n    cache: {{}}\n    plugins: [{}]\n",
            role("admin"),
            role("guest")
        ),
    );
    let rest = "?echo=x-role&h.Cache-Control=max-age=60";
    assert_eq!(proxy.get(&format!("/old/a{rest}")).whole(200).text(), "page v1 for admin");
    assert_eq!(proxy.get(&format!("/new/a{rest}")).whole(200).text(), "page v1 for guest");
    assert!(proxy.get(&format!("/new/a{rest}")).cache().contains("; hit"));
}

#[test]
fn an_unsafe_request_is_seen_by_every_route_that_stores_its_target() {
    let origin = Origin::start();
    let proxy = Headwall::before(
        &origin,
        "routes:\n  - match: { methods: [POST] }\n    to: { proxy: app }\n    plugins: [{ headers: { request: { set: { X-A: b } } } }]\n  - match: { headers: { X-Beta: \"1\" } }\n    to: { proxy: app }\n    cache: {}\n  - to: { proxy: app }\n    cache: {}\n    plugins: [{ compress: }]\n",
    );
    let target = "/page?h.Cache-Control=max-age=60";
    for fields in ["", "X-Beta: 1\r\n"] {
        proxy.ask("GET", target, fields).whole(200);
        assert!(proxy.ask("GET", target, fields).cache().contains("; hit"), "{fields:?}");
        proxy.put("POST", target, "", b"x").whole(200);
        assert!(!proxy.ask("GET", target, fields).whole(200).cache().contains("; hit"), "{fields:?}");
    }
}
