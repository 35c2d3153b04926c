//! What the repository shows to people, executed: files in conf/, the README's lines.

use std::process::Command;

use crate::support::{Client, Headwall, Origin, Process, TempFile, free_port, root, run};

fn conf_files() -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(root("conf")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    files
}

#[test]
fn every_file_in_conf_is_fine() {
    let files = conf_files();
    assert!(files.len() >= 3, "{files:?}");
    for file in files {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headwall"));
        command.args(["check", "--config"]).arg(&file).env("HEADWALL_TOKEN", "0123456789abcdef");
        let (code, _, told) = run(&mut command);
        assert_eq!(code, 0, "{told}");
    }
}

#[test]
fn what_the_commented_file_offers_can_be_taken() {
    let text = std::fs::read_to_string(root("conf/headwall.yaml")).unwrap();
    let taken = text.lines().map(|line| line.replace("  # - ", "  - ")).collect::<Vec<_>>().join("\n");
    assert!(taken.matches("\n  - ").count() > text.matches("\n  - ").count() + 5);
    let file = TempFile::new("taken.yaml", &taken);
    let (code, _, told) = run(Command::new(env!("CARGO_BIN_EXE_headwall")).args(["check", "--config", file.path()]));
    assert_eq!(code, 0, "{told}");
}

#[test]
fn the_schema_is_current_and_fits_every_file() {
    let place = root("conf/schema.json");
    let (code, schema, _) = run(Command::new(env!("CARGO_BIN_EXE_headwall")).arg("schema"));
    assert_eq!(code, 0);
    if std::env::var_os("HEADWALL_WRITE").is_some() {
        std::fs::write(&place, &schema).unwrap();
    }
    assert!(std::fs::read_to_string(&place).unwrap() == schema, "`headwall schema > conf/schema.json` writes it anew");
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    for file in conf_files() {
        let value: serde_json::Value = serde_yaml::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let wrong: Vec<_> = schema.iter_errors(&value).map(|error| error.to_string()).collect();
        assert!(wrong.is_empty(), "{}: {wrong:?}", file.display());
    }
    for wrong in
        ["routs: []", "routes: [{ to: { proxy: a, kv: {} } }]", "plugins: [{ compres: {} }]", "cache: { memory: 5 }"]
    {
        let value: serde_json::Value = serde_yaml::from_str(wrong).unwrap();
        assert!(!schema.is_valid(&value), "{wrong}");
    }
    let first = std::fs::read_to_string(root("conf/headwall.yaml")).unwrap().lines().next().unwrap().to_owned();
    assert_eq!(first, "# yaml-language-server: $schema=schema.json", "editors find the schema");
}

/// A file of conf/, with its listeners and its app where the test has them.
fn served(name: &str, origin: &Origin) -> Headwall {
    let text = std::fs::read_to_string(root("conf").join(name)).unwrap();
    let rest: Vec<_> = text
        .lines()
        .filter(|line| !["threads:", "listen:", "admin:", "log:"].iter().any(|key| line.starts_with(key)))
        .collect();
    Headwall::start(&rest.join("\n").replace("127.0.0.1:8081", &format!("127.0.0.1:{}", origin.port)))
}

#[test]
fn the_nginx_sample_does_what_nginx_did() {
    let origin = Origin::start();
    let proxy = served("nginx-cache.yaml", &origin);
    let target = "/page?h.Cache-Control=no-store,%20private&h.Expires=0&say=Hello";
    assert_eq!(proxy.get(target).whole(200).field("x-nginx-cache"), "MISS");
    for (name, expected) in [
        ("host", "site.test"),
        ("x-real-ip", "127.0.0.1"),
        ("x-forwarded-host", "site.test"),
        ("x-forwarded-server", "site.test"),
        ("x-forwarded-for", "127.0.0.1"),
    ] {
        assert_eq!(origin.field("/page", name).as_deref(), Some(expected), "{name}");
    }
    assert_eq!(proxy.get(target).whole(200).field("x-nginx-cache"), "HIT");
    assert_eq!(proxy.get("/page?status=404").field("x-nginx-cache"), "MISS");
    assert_eq!(proxy.get("/page?status=404").whole(404).field("x-nginx-cache"), "HIT", "any status");
    proxy.clock.advance(std::time::Duration::from_secs(61));
    assert_eq!(proxy.get(target).field("x-nginx-cache"), "EXPIRED");
}

#[test]
fn the_seeds_ab_lines_ask_the_app_once() {
    let origin = Origin::start();
    let proxy = served("nginx-cache.yaml", &origin);
    for keep in [None, Some("-k")] {
        let target = format!("/ab{}?wait=300&h.Cache-Control=no-store", keep.unwrap_or(""));
        let (code, out, _) = run(Command::new("ab")
            .args(["-q", "-n", "1000", "-c", "10"])
            .args(keep)
            .arg(format!("http://{}{target}", proxy.address)));
        assert_eq!(code, 0);
        for line in ["Complete requests:      1000", "Failed requests:        0"] {
            assert!(out.contains(line), "{out}");
        }
        assert_eq!(origin.count(&target), 1);
    }
}

#[test]
fn the_commented_file_serves_each_of_its_routes() {
    let origin = Origin::start();
    let proxy = served("headwall.yaml", &origin);
    proxy.put("PUT", "/cache/k", "", b"v").whole(201);
    assert_eq!(proxy.get("/old").whole(308).field("location"), "https://site.test/new");
    assert_eq!(proxy.get("/robots.txt").whole(200).text(), "User-agent: *");
    let asset = proxy.get("/assets/x?h.Server=express").whole(200);
    assert!(asset.has("x-request-id") && asset.field("x-content-type-options") == "nosniff");
    assert_eq!(
        (asset.field("x-proxy"), asset.has("server"), asset.field("x-nginx-cache")),
        ("Headwall", false, "MISS")
    );
    assert!(proxy.get("/?h.Cache-Control=max-age=9").cache().contains("stored"));
}

#[test]
fn the_mojolicious_sample_streams_and_rewrites() {
    let origin = Origin::start();
    let proxy = served("streaming.yaml", &origin);
    let reply = proxy.get("/chunks?pieces=a%20b&h.Cache-Control=max-age=60").whole(200);
    assert_eq!((reply.field("x-proxy"), reply.text().as_str()), ("Headwall", "ab"));
    assert!(!reply.has("cache-status"), "nothing is cached there");
}

#[test]
fn the_readme_shows_what_the_code_does() {
    let readme = std::fs::read_to_string(root("README.md")).unwrap();
    for word in ["make demo", "make test", "headwall run --to", "headwall check --config"] {
        assert!(readme.contains(word), "{word}");
    }
    let mut blocks = 0;
    let yamls = readme.split("```yaml\n").skip(1).map(|block| block.split("```").next().unwrap());
    // The file of a plugin of one's own is tested with that plugin.
    for yaml in yamls.filter(|yaml| !yaml.contains("hello: ")) {
        let origin = "upstreams: { app: { servers: [\"127.0.0.1:1\"] } }\n";
        let whole = if yaml.contains("upstreams:") { yaml.to_owned() } else { format!("{origin}{yaml}") };
        let file = TempFile::new("readme.yaml", &whole);
        let (code, _, told) =
            run(Command::new(env!("CARGO_BIN_EXE_headwall")).args(["check", "--config", file.path()]));
        assert_eq!(code, 0, "{told}");
        blocks += 1;
    }
    assert!(blocks >= 1);
}

/// A file of conf/ as the binary runs it, on a free port, with this environment; the port.
fn run_conf(name: &str, environment: &[(&str, &str)], change: impl Fn(String) -> String) -> (Process, u16) {
    let (port, admin) = (free_port(), free_port());
    let text = std::fs::read_to_string(root("conf").join(name)).unwrap();
    let text = text.replace("0.0.0.0:8080", &format!("127.0.0.1:{port}"));
    let text =
        change(text.replace("127.0.0.1:8080", &format!("127.0.0.1:{port}")).replace(":9900", &format!(":{admin}")));
    let file = TempFile::new(name, &text);
    let mut command = Command::new(env!("CARGO_BIN_EXE_headwall"));
    command.args(["run", "--config", file.path()]).envs(environment.iter().copied());
    (Process::run(&mut command).ready(port), port)
}

#[test]
fn the_files_for_containers_serve_the_seeds_curl_lines() {
    let origin = Origin::start();
    let app = format!("127.0.0.1:{}", origin.port);
    let secret = "0123456789abcdef";
    let (_docker, port) =
        run_conf("docker.yaml", &[("HEADWALL_TOKEN", secret), ("HEADWALL_UPSTREAM", &app)], |text| text);
    let address = ([127, 0, 0, 1], port).into();
    let ask = |method: &str, target: &str, fields: &str| {
        let mut client = Client::to(address);
        client.request(method, target, fields);
        client.response(method)
    };
    assert!(ask("GET", "/page?h.Cache-Control=max-age=60", "").whole(200).cache().ends_with("stored"));
    let bearer = format!("Authorization: Bearer {secret}\r\nX-Forwarded-For: 192.0.2.1\r\n");
    assert_eq!(ask("GET", "/cache/none", &bearer).status, 404, "the token opens the store");
    assert_eq!(ask("GET", "/cache/none", "X-Forwarded-For: 192.0.2.1\r\n").status, 401, "nothing else does");

    let compose = |text: String| text.replace("app:8081", &app);
    let (_compose, port) = run_conf("compose.yaml", &[("HEADWALL_GATEWAY", "127.0.0.1")], compose);
    let base = format!("http://127.0.0.1:{port}");
    let curl = |arguments: &[&str]| run(Command::new("curl").args(["-s", "--max-time", "10"]).args(arguments)).1;
    curl(&["-X", "PUT", "-H", "Content-Type: text/plain", "-d", "World", &format!("{base}/cache/Hello?ttl=10")]);
    assert_eq!(curl(&[&format!("{base}/cache/Hello")]), "World");
    let first = curl(&["-D-", "-o", "/dev/null", &format!("{base}/page?h.Cache-Control=no-store")]);
    let second = curl(&["-D-", "-o", "/dev/null", &format!("{base}/page?h.Cache-Control=no-store")]);
    assert!(
        first.to_lowercase().contains("x-nginx-cache: miss") && second.to_lowercase().contains("x-nginx-cache: hit")
    );
}

#[test]
fn the_minimal_file_caches() {
    let origin = Origin::start();
    let app = format!("127.0.0.1:{}", origin.port);
    let (_minimal, port) = run_conf("minimal.yaml", &[], |text| text.replace("127.0.0.1:3000", &app));
    let mut client = Client::to(([127, 0, 0, 1], port).into());
    for end in ["stored", "ttl=59"] {
        client.request("GET", "/page?h.Cache-Control=max-age=60", "");
        let reply = client.response("GET").whole(200);
        assert!(reply.cache().ends_with(end) || reply.cache().ends_with("ttl=60"), "{}", reply.cache());
    }
}

#[test]
fn the_go_sample_keeps_what_it_is_given() {
    let origin = Origin::start();
    let proxy = served("kv.yaml", &origin);
    proxy.put("PUT", "/cache/Hello?ttl=60", "Content-Type: text/plain\r\n", b"World").whole(201);
    let kept = proxy.get("/cache/Hello").whole(200);
    assert_eq!((kept.text().as_str(), kept.field("content-type")), ("World", "text/plain"));
    proxy.ask("DELETE", "/cache/Hello", "").whole(204);
    proxy.get("/cache/Hello").whole(404);
}
