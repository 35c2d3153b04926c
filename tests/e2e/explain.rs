//! Why was this not cached? The response field for holders of the admin token, and the command.

use headwall::fields::explained::{Told, read};

use crate::support::{Client, Headwall, Origin, Process, Response, TempFile, free_port, run, wait_until};

const TOKEN: &str = "a-token-of-the-operator";

/// Headwall with an admin token before this origin.
fn guarded(origin: &Origin, rest: &str) -> (Process, u16, u16, TempFile) {
    let (port, admin) = (free_port(), free_port());
    let file = TempFile::new(
        "explain.yaml",
        &format!(
            "listen: [\"127.0.0.1:{port}\"]\nadmin: {{ listen: \"127.0.0.1:{admin}\", token: {TOKEN} }}\nupstreams: \
             {{ app: {{ servers: [\"127.0.0.1:{}\"] }} }}\n{rest}",
            origin.port
        ),
    );
    (Process::start(&["run", "--config", file.path()]).ready(port), port, admin, file)
}

fn ask(port: u16, method: &str, target: &str, fields: &str) -> Response {
    let mut client = Client::to(([127, 0, 0, 1], port).into());
    client.request(method, target, fields);
    client.response(method)
}

/// What a holder of the token is told about this request.
fn explained(port: u16, target: &str, fields: &str) -> Vec<Told> {
    let asks = format!("X-Headwall-Explain: 1\r\nX-Headwall-Token: {TOKEN}\r\n{fields}");
    let reply = ask(port, "GET", target, &asks);
    assert_eq!(reply.field("cache-control"), "private, no-store", "nobody else gets to see it");
    let told = read(reply.field("headwall-explain").as_bytes());
    assert!(!told.is_empty(), "{:?}", reply.fields);
    told
}

fn member<'a>(told: &'a [Told], word: &str) -> &'a Told {
    told.iter().find(|member| member.word == word).unwrap_or_else(|| panic!("no {word} in {told:?}"))
}

const ROUTES: &str = "routes:\n  - { match: { path: /robots.txt }, to: { respond: {} } }\n  - { match: { prefix: /force \
                      }, to: { proxy: app }, cache: { mode: force, ttl: 1m, key: { headers: [X-Country] } } }\n  - { \
                      match: { prefix: /never }, to: { proxy: app } }\n  - { match: { host: site.test }, to: { proxy: \
                      app }, cache: {}, plugins: [{ headers: { response: { remove: [X-Secret] } } }] }";

#[test]
fn each_decision_is_told_with_its_rule_and_its_section() {
    let origin = Origin::start();
    let (_process, port, ..) = guarded(&origin, ROUTES);
    let cc = "h.Cache-Control=max-age=60";
    for (target, fields, to, rule, section) in [
        (format!("/page?{cc}"), "", "store", "explicit", "RFC 9111 Section 4.2.1"),
        (format!("/page?{cc}"), "", "keep", "explicit", "RFC 9111 Section 4.2.1"),
        (format!("/page?{cc}"), "", "reuse", "fresh", "RFC 9111 Section 4.2"),
        (format!("/page?{cc}"), "Authorization: Basic YTpi\r\n", "reuse", "credentials", "RFC 9111 Section 3.5"),
        (
            format!("/page?{cc}&n=1"),
            "Authorization: Basic YTpi\r\n",
            "not-store",
            "authorization",
            "RFC 9111 Section 3.5",
        ),
        (format!("/page?{cc}&n=2"), "Range: bytes=0-1\r\n", "reuse", "as-it-is", "RFC 9111 Section 3"),
        ("/page?h.Set-Cookie=a=b".into(), "", "not-store", "set-cookie", "RFC 9111 Section 7.3"),
        ("/page".into(), "", "not-store", "no-freshness", "RFC 9111 Section 4.2.1"),
        ("/page".into(), "Cookie: a=b\r\n", "not-store", "no-heuristic", "RFC 9111 Section 4.2.2"),
        ("/page".into(), "X-Forwarded-Host: evil.test\r\n", "taken-off", "other-target", "RFC 9111 Section 2"),
        ("/force?n=1".into(), "", "store", "forced", "the route's `cache` settings"),
        ("/force?n=2".into(), "Cookie: a=b\r\n", "pass-by", "cookie", "the route's `cache` settings"),
        ("/force/;x.css".into(), "", "not-store", "ambiguous-path", "RFC 9111 Section 2"),
    ] {
        let told = explained(port, &target, fields);
        let decided = told.iter().find(|member| member.word == "decision" && member.get("to") == to);
        let decided = decided.unwrap_or_else(|| panic!("{target} {fields}: no {to} in {told:?}"));
        assert_eq!((decided.get("rule"), decided.get("section")), (rule, section), "{target}");
        assert!(!decided.get("why").is_empty(), "{decided:?}");
    }
    let told = explained(port, &format!("/page?{cc},%20private"), "Cookie: sid=secret; b=c\r\nX-Country: CH\r\n");
    let decided = member(&told, "decision");
    assert!(decided.has("would-have-leaked") && decided.get("app").contains("s-maxage"), "{decided:?}");
    assert_eq!(member(&told, "request").get("cookies"), "sid, b", "names, never values");
    assert_eq!(member(&told, "route").get("upstream"), "app");
    assert_eq!(member(&told, "route").get("number"), "4");
    assert_eq!(member(&told, "origin").get("cache-control"), "max-age=60, private");
    let told = explained(port, "/page?h.X-Secret=1&h.Set-Cookie=sid=secret", "");
    assert_eq!(member(&told, "response").get("changed-by-plugins"), "x-secret");
    assert_eq!(member(&told, "origin").get("set-cookie"), "sid");
    let key = explained(port, "/force?n=3", "");
    assert_eq!((member(&key, "key").get("target"), member(&key, "key").get("fields")), ("/force?n=3", "x-country"));
    assert_eq!(member(&explained(port, "/robots.txt", ""), "route").get("handler"), "respond");
    assert_eq!(member(&explained(port, "/never", ""), "route").get("cache"), "none");
    let hit = explained(port, &format!("/page?{cc}"), "");
    assert!(member(&hit, "cache").has("hit") && member(&hit, "cache").get("lifetime") == "60", "{hit:?}");
    let asks = format!("X-Headwall-Explain: 1;scheme=https\r\nX-Headwall-Token: {TOKEN}\r\n");
    let told = read(ask(port, "GET", "/page", &asks).field("headwall-explain").as_bytes());
    assert_eq!(member(&told, "key").get("scheme"), "https");
}

#[test]
fn who_has_no_token_learns_nothing_and_the_app_learns_neither() {
    let origin = Origin::start();
    let (_process, port, ..) = guarded(&origin, ROUTES);
    let mut first = None;
    for fields in [
        "",
        "X-Headwall-Explain: 1\r\n",
        "X-Headwall-Explain: 1\r\nX-Headwall-Token: a-token-of-the-operatox\r\n",
        "X-Headwall-Explain: 1\r\nAuthorization: Bearer a-token-of-the-operator\r\n",
        &format!("X-Headwall-Token: {TOKEN}\r\n"),
        &format!("X-Headwall-Explain: 0\r\nX-Headwall-Token: {TOKEN}\r\n"),
        &format!("X-Headwall-Explain: (\r\nX-Headwall-Token: {TOKEN}\r\n"),
    ] {
        let mut reply = ask(port, "GET", "/page?h.Set-Cookie=a=b", fields);
        reply.fields.retain(|(name, _)| name != "date");
        if fields.contains("Bearer") {
            assert!(!reply.has("headwall-explain"));
            continue;
        }
        let first = first.get_or_insert_with(|| reply.fields.clone());
        assert_eq!(*first, reply.fields, "{fields}");
    }
    explained(port, "/page?h.Cache-Control=max-age=60", "");
    assert!(!ask(port, "GET", "/page?h.Cache-Control=max-age=60", "").has("headwall-explain"), "it was not stored");
    for request in origin.requests("/") {
        let names = request["headers"].as_object().unwrap().keys();
        assert!(!names.into_iter().any(|name| name.contains("headwall")), "{request}");
    }
    // Without a token in the file nobody may ask.
    let open = Headwall::before(&origin, ROUTES);
    let asks = format!("X-Headwall-Explain: 1\r\nX-Headwall-Token: {TOKEN}\r\n");
    assert!(!open.ask("GET", "/page", &asks).has("headwall-explain"));
    assert_eq!(origin.field("/page", "x-headwall-token"), None);
}

#[test]
fn what_is_refused_or_has_no_route_is_explained_too() {
    let origin = Origin::start();
    let (_process, port, ..) = guarded(&origin, ROUTES);
    for (target, host, word, rule) in
        [("/x/../force", "site.test", "decision", "refused"), ("/x", "other.test", "no-route", "")]
    {
        let mut client = Client::to(([127, 0, 0, 1], port).into());
        client.send(&format!(
            "GET {target} HTTP/1.1\r\nHost: {host}\r\nX-Headwall-Explain: 1\r\nX-Headwall-Token: {TOKEN}\r\n\r\n"
        ));
        let reply = client.response("GET");
        let told = read(reply.field("headwall-explain").as_bytes());
        assert_eq!(member(&told, word).get("rule"), rule, "{told:?}");
    }
}

#[test]
fn the_token_opens_the_operators_listener() {
    let origin = Origin::start();
    let (process, port, admin, file) = guarded(&origin, ROUTES);
    let at = |fields: &str, path: &str| ask(admin, "GET", path, fields).status;
    let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
    for path in ["/metrics", "/stats", "/nowhere"] {
        assert_eq!(at("", path), 401, "{path}");
        assert_eq!(at("Authorization: Bearer a-token-of-the-operatox\r\n", path), 401, "{path}");
        assert_eq!(at(&bearer, path), if path == "/nowhere" { 404 } else { 200 }, "{path}");
    }
    assert_eq!(at("", "/health"), 200);
    ask(port, "GET", "/page?h.Cache-Control=max-age=60", "").whole(200);
    let address = format!("127.0.0.1:{admin}");
    let secret = TempFile::new("token", &format!("# the operator's\n{TOKEN}\n"));
    let purge = |more: &[&str], environment: &[(&str, &str)]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_headwall"));
        run(command.args(["purge", "--all"]).args(more).env_remove("HEADWALL_ADMIN_TOKEN").envs(environment.to_vec()))
    };
    let (code, _, told) = purge(&["--admin", &address], &[]);
    assert!(code == 1 && told.contains("token"), "{code} {told}");
    for (more, environment) in [
        (vec!["--admin", &address], vec![("HEADWALL_ADMIN_TOKEN", TOKEN)]),
        (vec!["--admin", &address, "--token-file", secret.path()], vec![]),
        (vec!["--config", file.path()], vec![]),
    ] {
        let (code, out, told) = purge(&more, &environment);
        assert!(code == 0 && out.starts_with("{\"entries\":"), "{more:?}: {out}{told}");
    }
    assert_eq!(purge(&["--admin", &address], &[("HEADWALL_ADMIN_TOKEN", "short")]).0, 2);
    let mut health = std::process::Command::new(env!("CARGO_BIN_EXE_headwall"));
    assert_eq!(run(health.args(["health", "--config", file.path()])).0, 0);
    let text = std::fs::read_to_string(file.path()).unwrap();
    std::fs::write(file.path(), text.replace(TOKEN, "another-token-than-before")).unwrap();
    process.signal("HUP");
    wait_until(|| at("Authorization: Bearer another-token-than-before\r\n", "/stats") == 200);
    assert_eq!(at(&bearer, "/stats"), 401, "the old one is no token any more");
}
