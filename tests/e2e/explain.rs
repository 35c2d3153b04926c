//! Why was this not cached? The response field for holders of the admin token, and the command.

use headwall::fields::explained::{Told, read};

use crate::apps::App;
use crate::support::{Client, Headwall, Origin, Process, Response, TempFile, free_port, root, run, wait_until};

const TOKEN: &str = "a-token-of-the-operator";

/// Headwall with an admin token before this origin.
fn guarded(origin: &Origin, rest: &str) -> (Process, u16, u16, TempFile) {
    let (port, admin) = (free_port(), free_port());
    let file = TempFile::new(
        "explain.yaml",
        &format!(
            "listen: [\"127.0.0.1:{port}\"]\nadmin: {{ listen: \"127.0.0.1:{admin}\", token: {TOKEN} }}\nupstreams: \
             {{ app: {{ servers: [\"127.0.0.1:{}\"] }}, nobody: {{ servers: [\"127.0.0.1:1\"] }} }}\n{rest}",
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
                      match: { prefix: /never }, to: { proxy: app } }\n  - { match: { path: /nobody }, to: { proxy: nobody }, cache: {} }\n  - { match: { host: site.test }, to: { proxy: \
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
        (format!("/page?{cc}&n=2"), "Range: bytes=0-1\r\n", "reuse", "as-it-is", "RFC 9111 Section 3.3"),
        (
            format!("/file?size=9&{cc},private"),
            "Range: bytes=0-1\r\n",
            "not-store",
            "private",
            "RFC 9111 Section 5.2.2.7",
        ),
        (format!("/file?size=99&{cc}"), "Range: bytes=0-9\r\n", "store", "explicit", "RFC 9111 Section 4.2.1"),
        (format!("/file?size=99&{cc}"), "Range: bytes=0-9\r\n", "keep", "explicit", "RFC 9111 Section 4.2.1"),
        ("/page?etag=1&h.Cache-Control=no-cache".into(), "", "store", "explicit", "RFC 9111 Section 4.2.1"),
        ("/page?etag=1&h.Cache-Control=no-cache".into(), "", "reuse", "validate", "RFC 9111 Section 5.2.2.4"),
        ("/page?h.Set-Cookie=a=b".into(), "", "not-store", "set-cookie", "RFC 9111 Section 7.3"),
        ("/page".into(), "", "not-store", "no-freshness", "RFC 9111 Section 4.2.1"),
        ("/page".into(), "Cookie: a=b\r\n", "not-store", "no-heuristic", "RFC 9111 Section 4.2.2"),
        ("/page".into(), "X-Forwarded-Host: evil.test\r\n", "taken-off", "other-target", "RFC 9111 Section 2"),
        ("/force?n=1".into(), "", "store", "forced", "the route's `cache` settings"),
        ("/force?n=2".into(), "Cookie: a=b\r\n", "pass-by", "cookie", "the route's `cache` settings"),
        ("/force/;x.css".into(), "", "not-store", "ambiguous-path", "RFC 9111 Section 2"),
        ("/nobody".into(), "", "fail", "no-answer", ""),
    ] {
        let told = explained(port, &target, fields);
        let decided = told.iter().find(|member| member.word == "decision" && member.get("to") == to);
        let decided = decided.unwrap_or_else(|| panic!("{target} {fields}: no {to} in {told:?}"));
        assert_eq!((decided.get("rule"), decided.get("section")), (rule, section), "{target}");
        assert!(!decided.get("why").is_empty(), "{decided:?}");
    }
    let range = format!("/file?size=1000&{cc}");
    let parts = |range: &str| {
        let told = explained(port, &format!("/file?size=1000&{cc}"), range);
        let found = told.iter().find(|member| member.get("to") == "reuse").map(|member| member.get("rule").to_owned());
        (found.unwrap_or_default(), member(&told, "cache").has("hit"))
    };
    ask(port, "GET", &range, "Range: bytes=0-99\r\n").whole(206);
    assert_eq!(parts("Range: bytes=10-19\r\n"), ("parts".into(), true));
    assert_eq!(parts(""), ("completed".into(), false));
    assert_eq!(parts(""), ("fresh".into(), true));
    // `Content-Location` is empty, and so names the target itself.
    let asks = format!("X-Headwall-Explain: 1\r\nX-Headwall-Token: {TOKEN}\r\nContent-Length: 0\r\n");
    let posted = ask(port, "POST", &format!("/page?{cc}&h.Content-Location="), &asks);
    let told = read(posted.field("headwall-explain").as_bytes());
    assert!(posted.cache().ends_with("stored") && member(&told, "decision").get("to") == "store", "{told:?}");
    let told = explained(port, &format!("/page?{cc},%20private"), "Cookie: sid=secret; b=c\r\nX-Country: CH\r\n");
    let decided = member(&told, "decision");
    assert!(decided.has("would-have-leaked") && decided.get("app").contains("s-maxage"), "{decided:?}");
    assert_eq!(member(&told, "request").get("cookies"), "sid, b", "names, never values");
    assert_eq!(member(&told, "route").get("upstream"), "app");
    assert_eq!((member(&told, "route").get("number"), member(&told, "route").get("plugins")), ("5", "headers"));
    assert_eq!(member(&told, "origin").get("cache-control"), "max-age=60, private");
    let told = explained(port, "/page?h.X-Secret=1&h.Set-Cookie=sid=secret", "");
    assert_eq!(member(&told, "response").get("changed-by-plugins"), "x-secret");
    assert_eq!(member(&told, "origin").get("set-cookie"), "sid");
    let advice = |target: &str| {
        let told = explained(port, target, "");
        let decided = told.iter().find(|member| member.get("to") == "not-store").unwrap();
        (decided.get("app").to_owned(), decided.get("file").to_owned())
    };
    assert_eq!(advice("/force/;y.css").0, "link to it by a plain path", "by force nothing that the app says counts");
    assert!(advice("/page/;x.css?h.Last-Modified=Sat,%2005%20Nov%201994%2008:49:37%20GMT").0.contains("s-maxage"));
    assert_eq!(advice(&format!("/page?status=299&{cc},must-understand")).1, "", "a `ttl` counts by force only");
    assert!(advice("/force?status=429").1.contains("`ttl`"));
    assert_eq!(advice(&format!("/bytes?sized=1&size=20000000&{cc}")).0, "", "it has a length");
    let key = explained(port, "/force?n=3", "");
    assert_eq!((member(&key, "key").get("target"), member(&key, "key").get("fields")), ("/force?n=3", "x-country"));
    assert_eq!(member(&explained(port, "/robots.txt", ""), "route").get("handler"), "respond");
    assert_eq!(member(&explained(port, "/never", ""), "route").get("cache"), "none");
    let hit = explained(port, &format!("/page?{cc}"), "");
    assert!(member(&hit, "cache").has("hit") && member(&hit, "cache").has("age"), "{hit:?}");
    let kept = hit.iter().find(|member| member.get("to") == "keep").unwrap();
    assert_eq!((kept.get("lifetime"), kept.get("stale-if-error")), ("60", "0"));
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
    let alike = format!("X_Headwall_Token: {TOKEN}\r\nX-Headwall_Token: {TOKEN}\r\nX_Headwall_Explain: 1\r\n");
    ask(port, "GET", "/never", &alike).whole(200);
    ask(port, "GET", "/page", &alike).whole(200);
    for request in origin.requests("/") {
        let names = request["headers"].as_object().unwrap().keys();
        assert!(!names.into_iter().any(|name| name.contains("headwall")), "{request}");
    }
    // Without a token in the file nobody may ask.
    let open = Headwall::before(&origin, "routes: [{ to: { proxy: app }, cache: {} }]");
    let asks = format!("X-Headwall-Explain: 1\r\nX-Headwall-Token: {TOKEN}\r\n");
    assert!(!open.ask("GET", "/page", &asks).has("headwall-explain"));
    assert!(!open.get("/page?h.Headwall-Explain=hit").has("headwall-explain"), "an app does not speak for us");
    assert_eq!(origin.field("/page", "x-headwall-token"), None);
}

#[test]
fn what_is_refused_or_has_no_route_is_explained_too() {
    let origin = Origin::start();
    let (_process, port, ..) = guarded(&origin, ROUTES);
    for (target, host, word, rule, why) in [
        ("/x/../force", "site.test", "decision", "refused", "the path means different things to different readers"),
        (
            "/x%00",
            "site.test",
            "decision",
            "refused",
            "the path of the request target has an encoded control character",
        ),
        ("/x", "other.test", "no-route", "", ""),
    ] {
        let mut client = Client::to(([127, 0, 0, 1], port).into());
        client.send(&format!(
            "GET {target} HTTP/1.1\r\nHost: {host}\r\nX-Headwall-Explain: 1\r\nX-Headwall-Token: {TOKEN}\r\n\r\n"
        ));
        let reply = client.response("GET");
        let told = read(reply.field("headwall-explain").as_bytes());
        assert_eq!((member(&told, word).get("rule"), member(&told, word).get("why")), (rule, why), "{told:?}");
    }
}

#[test]
fn nobody_pushes_a_decision_out_and_each_is_told_once() {
    let origin = Origin::start();
    let (_process, port, ..) = guarded(&origin, ROUTES);
    let cookies: Vec<_> = (0..500).map(|number| format!("name{number}=1")).collect();
    let odd = "X-Original-Url: /x\r\nX-Http-Method: PUT\r\nX-Host: evil.test\r\nX-Method-Override: PUT\r\nX-Rewrite-Url: /y\r\n";
    let fields = format!("{odd}Cookie: {}\r\nCache-Control: {}\r\n", cookies.join("; "), "\\\"".repeat(600));
    let target = format!("/page?h.Cache-Control=no-store{}&q={}", ",x".repeat(300), "'".repeat(1000));
    let told = explained(port, &target, &fields);
    let mut decisions: Vec<_> =
        told.iter().filter(|member| member.word == "decision").map(|told| told.get("rule")).collect();
    decisions.sort_unstable();
    assert_eq!(decisions, ["method-override", "other-target", "request-no-store"]);
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

/// The words of a line as a shell takes them apart; single quotes keep blanks.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for letter in line.chars() {
        match letter {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            letter => words.last_mut().unwrap().push(letter),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The same text whatever the clock says: seconds left count down.
fn masked(text: &str) -> String {
    let mut parts = text.split("ttl=");
    let mut out = parts.next().unwrap().to_owned();
    for part in parts {
        out.push_str("ttl=N");
        out.push_str(part.trim_start_matches(|letter: char| letter.is_ascii_digit()));
    }
    out
}

/// What the command tells, with its exit code; the file is one of conf/, before an app on this port.
fn headwall_explains(file: &str, port: u16, arguments: &[String]) -> (i32, String, String) {
    let text = std::fs::read_to_string(root(file)).unwrap();
    // Its own listener is not opened, whoever has that address.
    let file = TempFile::new("explain.yaml", &text.replace("127.0.0.1:3000", &format!("127.0.0.1:{port}")));
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_headwall"));
    run(command.args(["explain", "--config", file.path()]).args(arguments))
}

/// Each block of docs/explain.md that begins with a command says what the command says, before the app that
/// the comment above it names.
#[test]
fn the_transcripts_are_what_the_command_tells() {
    let place = root("docs/explain.md");
    let page = std::fs::read_to_string(&place).unwrap();
    let mut apps: Vec<(String, App)> = Vec::new();
    let (mut written, mut rest, mut count) = (String::new(), page.as_str(), 0);
    while let Some((before, after)) = rest.split_once("```console\n$ ") {
        let (block, after) = after.split_once("\n```").unwrap();
        let (line, told) = block.split_once('\n').unwrap_or((block, ""));
        let name = before.rsplit_once("<!-- app: ").unwrap().1.split_once(" -->").unwrap().0;
        if !apps.iter().any(|(known, _)| known == name) {
            apps.push((name.to_owned(), App::start(name)));
        }
        let port = apps.iter().find(|(known, _)| known == name).unwrap().1.port;
        let words = words(line);
        assert_eq!(&words[..3], ["headwall", "explain", "--config"], "{line}");
        let (code, out, error) = headwall_explains(&words[3], port, &words[4..]);
        assert_eq!((code, error.as_str()), (0, ""), "{line}\n{out}");
        let same = masked(&out).trim() == masked(told).trim();
        assert!(
            same || std::env::var_os("HEADWALL_WRITE").is_some(),
            "{line}\nsays now, `make docs` writes it:\n{out}"
        );
        let told = if same { told.trim() } else { out.trim() };
        written.push_str(&format!("{before}```console\n$ {line}\n{told}\n```"));
        (rest, count) = (after, count + 1);
    }
    assert!(count >= 10, "{count}");
    if written.clone() + rest != page {
        std::fs::write(&place, written + rest).unwrap();
    }
}

#[test]
fn the_command_says_what_is_wrong_by_its_exit_code() {
    let arguments = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let nobody = free_port();
    let (code, out, told) = headwall_explains("conf/minimal.yaml", nobody, &arguments(&["http://a.test/"]));
    assert!(code == 3 && out.contains("was not reached") && told.contains("did not answer"), "{code} {out} {told}");
    for wrong in [vec!["a.test"], vec!["http://a.test/", "-H", "X"], vec!["http://a.test/", "--method", "get"], vec![]]
    {
        assert_eq!(headwall_explains("conf/minimal.yaml", nobody, &arguments(&wrong)).0, 2, "{wrong:?}");
    }
    let broken = TempFile::new("broken.yaml", "routes: [{ to: { proxy: app } }]\n");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_headwall"));
    assert_eq!(run(command.args(["explain", "--config", broken.path(), "http://a.test/"])).0, 1);
}

#[test]
fn the_command_asks_the_app_and_opens_nothing_that_the_file_names() {
    let origin = Origin::start();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let log = std::env::temp_dir().join(format!("headwall-explain-{}.log", std::process::id()));
    let file = TempFile::new(
        "explain.yaml",
        &format!(
            "listen: [\"{0}\"]\nadmin: {{ listen: \"127.0.0.1:{1}\" }}\nlog: {{ access: {{ file: {2} }} }}\nupstreams: {{ app: {{ servers: \
             [\"127.0.0.1:{3}\"] }} }}\nroutes: [{{ to: {{ proxy: app }}, cache: {{}}, plugins: [{{ headers: {{ response: {{ \
             remove: [X-Secret] }} }} }}] }}]",
            taken.local_addr().unwrap(),
            free_port(),
            log.display(),
            origin.port
        ),
    );
    let explain = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_headwall"));
        let (code, out, told) = run(command.args(["explain", "--config", file.path()]).args(arguments));
        assert_eq!((code, told.as_str()), (0, ""), "{out}");
        out
    };
    let out =
        explain(&["https://site.test/page?h.Cache-Control=max-age=60&h.X-Secret=1", "-H", "Cookie: sid=very-secret"]);
    assert!(!log.exists(), "the log is the server's");
    assert_eq!(origin.count("/page"), 1, "the second time it comes from the store, and the third");
    assert_eq!(origin.field("/page", "x-forwarded-proto").as_deref(), Some("https"));
    for word in [
        "https://site.test/page",
        "plugins changed x-secret",
        "asked again",
        "asked by somebody else",
        "fresh for 60 s",
    ] {
        assert!(out.contains(word), "{word} in {out}");
    }
    assert!(!out.contains("very-secret"), "{out}");
    let out = explain(&[
        "http://site.test/page",
        "-H",
        "X-Api-Key: very-secret",
        "-H",
        "Proxy-Authorization: Basic very-secret",
    ]);
    assert!(out.contains("x-api-key: ...") && !out.contains("very-secret"), "{out}");
    assert_eq!(origin.field("/page", "x-api-key").as_deref(), Some("very-secret"), "the app gets it");
    let out = explain(&["http://site.test/chunks?h.Cache-Control=max-age=60&pieces=a%20b"]);
    assert!(out.contains("; hit") && !out.contains("not there any more"), "{out}");
    let out = explain(&["http://site.test/bytes?size=9000000&h.Cache-Control=max-age=60"]);
    let second = out.split_once("asked again").unwrap().1;
    assert!(second.contains("too-large") && second.contains("raise `cache.max_object`"), "{out}");
    let out = explain(&["http://site.test/broken?h.Cache-Control=max-age=60"]);
    assert!(out.contains("it was not there any more"), "{out}");
    assert!(explain(&["http://site.test/page/2", "--method", "POST"]).contains("method"), "asked once");
    assert_eq!(origin.count("/page/2"), 1);
    let out = explain(&["http://site.test/events"]);
    assert!(out.contains("event-stream"), "it has no end, and nobody waits for it: {out}");
    let out = explain(&["http://site.test/x/%2e%2e/y?a", "-H", "X-Forwarded-Host: evil.test"]);
    assert!(out.contains("taken off      x-forwarded-host") && out.contains("trust.proxies"), "{out}");
}
