//! Mistakes, and the text that the operator sees.

use super::*;

fn load(text: &str) -> Result<Plan, String> {
    let (lasting, clock) = (Lasting::default(), Clock::system());
    let parts = Parts { plugins: &[], lasting: &lasting, clock: &clock };
    parse("headwall.yaml", text, &parts).map_err(|error| error.to_string())
}

fn mistake(text: &str) -> String {
    load(text).err().unwrap_or_else(|| panic!("no complaint about:\n{text}"))
}

const APP: &str = "upstreams: { app: { servers: [\"127.0.0.1:3000\"] } }\n";

#[test]
fn each_mistake_says_where_and_what_would_be_right() {
    for (text, expected) in [
        (
            "routes:\n  - to: { proxy: app }\n    plugins:\n      - headers: { response: { sett: { A: b } } }\n",
            "headwall.yaml:4:32: unknown field `sett`, expected one of `remove`, `set`, `add`; did you mean `set`?\n  4 |       - headers: { response: { sett: { A: b } } }\n    |                                ^",
        ),
        (
            "routes:\n  - to: { proxy: shp }\n",
            "headwall.yaml:2:18: no upstream named `shp`; there are: app\n  2 |   - to: { proxy: shp }\n    |                  ^",
        ),
        ("routes: [{ to: { proxy: app } }]\nroutes: []\n", "the key `routes` stands here a second time, first at 2:1"),
        (
            "routes: [{ to: { proxy: app } }]\nlisten: [8080]\n",
            "headwall.yaml:3:10: invalid type: integer `8080`, expected an address",
        ),
        (
            "routes: [{ to: { proxy: app } }]\nlisten: [\":8080\"]\n",
            "is no address to listen on; write one as 127.0.0.1:8080",
        ),
        (
            "routes: [{ to: { proxy: app } }]\nlisten: [{ bnd: x }]\n",
            "headwall.yaml:3:12: unknown field `bnd`, expected `bind`",
        ),
        ("routs: []\n", "headwall.yaml:2:1: unknown field `routs`, expected one of"),
        (
            "routes: [{ to: { prxy: app } }]\n",
            "headwall.yaml:2:18: no destination named `prxy`; there are: kv, proxy, redirect, respond; did you mean `proxy`?",
        ),
        ("routes: [{ to: { proxy: app, kv: {} } }]\n", "this map takes exactly one key and has `proxy` and `kv`"),
        ("routes: [{ match: { path: /a } }]\n", "missing field `to`"),
        ("routes: [{ to: { proxy: app }, cache: { ttl: 1m } }]\n", "`ttl` does nothing in mode `respect`"),
        ("routes: [{ to: { proxy: app }, cache: { mode: force } }]\n", "`mode: force` needs a `ttl`"),
        (
            "routes: [{ to: { proxy: app }, cache: { mode: forced } }]\n",
            "unknown variant `forced`, expected `respect` or `force`",
        ),
        (
            "routes: [{ to: { proxy: app }, cache: { mode: force, ttl: 10 } }]\n",
            "expected a duration such as 1m, or a map from status to duration",
        ),
        (
            "routes: [{ to: { proxy: app }, cache: { mode: force, ttl: { 304: 1m } } }]\n",
            "expected a status from 200 to 599, but 206, 304 and 416",
        ),
        ("routes: [{ to: { proxy: app }, cache: { cookies: ignore } }]\n", "`cookies` does nothing in mode `respect`"),
        ("routes: [{ to: { proxy: app }, cache: { status_header: Content-Length } }]\n", "one that frames the message"),
        ("routes: [{ to: { respond: {} }, cache: {} }]\n", "answers of `respond` are never cached"),
        (
            "routes: [{ match: { path: /a, prefix: /b }, to: { proxy: app } }]\n",
            "`path` and `prefix` both say something about the path",
        ),
        (
            "routes: [{ match: { regex: \"(\" }, to: { proxy: app } }]\n",
            "this is no regular expression: unclosed group",
        ),
        ("routes: [{ match: { path: a }, to: { proxy: app } }]\n", "a path begins with /"),
        (
            "routes: [{ match: { methods: [get] }, to: { proxy: app } }]\n",
            "`get` is no method; they are written in capitals",
        ),
        ("routes: [{ match: { host: \"a:80\" }, to: { proxy: app } }]\n", "write a name without port"),
        ("routes: [{ to: { kv: {} } }]\n", "needs a `match` with a `prefix`"),
        ("routes: [{ match: { prefix: /c/ }, to: { kv: { memmory: 1MiB } } }]\n", "unknown field `memmory`"),
        (
            "routes: [{ match: { prefix: /c/ }, to: { kv: { memory: 1MB } } }]\n",
            "headwall.yaml:2:56: invalid value: string \"1MB\", expected a size such as 64KiB",
        ),
        (
            "routes: [{ to: { redirect: { to: /x, status: 200 } } }]\n",
            "200 does not redirect; there are 301, 302, 303, 307 and 308",
        ),
        (
            "routes: [{ to: { proxy: app }, plugins: [{ haeders: {} }] }]\n",
            "no plugin named `haeders`; there are: basic_auth, ",
        ),
        ("routes: [{ to: { proxy: app } }]\nadmin: { listen: \"0.0.0.0:9900\" }\n", "is not on loopback"),
        (
            "routes: [{ to: { proxy: app } }]\nadmin: { listen: { bind: \"127.0.0.1:9900\", h2c: true } }\n",
            "`h2c` is for `listen`",
        ),
        (
            "routes: [{ to: { proxy: app } }]\nadmin: { listen: \"127.0.0.1:9900\", insecure: true }\n",
            "headwall.yaml:3:36: the listener is on loopback, so `insecure` does nothing",
        ),
        (
            "routes: [{ to: { proxy: app } }]\nadmin: { listen: \"0.0.0.0:9900\", insecure: true, token: sixteen-letters-1 }\n",
            "there is a token, so `insecure` does nothing",
        ),
        ("routes: [{ to: { proxy: app } }]\nuser: nobody-at-all\n", "there is no user `nobody-at-all` on this machine"),
        ("routes: [{ to: { proxy: app } }]\nuser: root\n", "this is root"),
        ("routes: [{ to: { proxy: app } }]\ncache: { memory: 1MiB }\n", "16MiB is more than `memory`, which is 1MiB"),
        ("routes: [{ to: { proxy: app } }]\ntrust: { proxies: [everybody] }\n", "`everybody` is no network"),
        ("routes: [{ to: { proxy: app } }]\nshutdown: { drain: 30 }\n", "expected a duration such as 250ms"),
        ("routes: [{ to: { proxy: app } }]\nthreads: 0\n", "from 1 to 512"),
        ("routes: []\n", "there is no route"),
        ("", "there is no route"),
    ] {
        let told = mistake(&format!("{APP}{text}").replace("headwall.yaml:", ""));
        let expected = if text.contains("routes:\n") {
            // These two are compared whole; the upstream's line comes before them.
            expected.replace(":4:", ":5:").replace("  4 |", "  5 |").replace(":2:18", ":3:18").replace("  2 |", "  3 |")
        } else {
            expected.to_owned()
        };
        assert!(told.contains(&expected), "\n--- for\n{text}--- expected\n{expected}\n--- got\n{told}");
    }
}

#[test]
fn upstreams_are_checked_too() {
    for (text, expected) in [
        ("upstreams: { a: { servers: [] } }", "an upstream needs a server"),
        ("upstreams: { a: { servers: [\"http://x:1\"] } }", "is a URL; a server is `host:port`"),
        ("upstreams: { a: { servers: [localhost] } }", "`localhost` has no port"),
        (
            "upstreams:\n  a: { servers: [\"x:1\"] }\n  a: { servers: [\"x:2\"] }\n",
            "headwall.yaml:3:3: the key `a` stands here a second time, first at 2:3",
        ),
        ("upstreams: { a: { servers: [\"x:1\"], timeouts: { red: 1s } } }", "unknown field `red`"),
        ("upstreams: { a: { servers: [\"x:1\"], timeouts: { read: 0s } } }", "a timeout of nothing"),
    ] {
        let told = mistake(&format!("{text}\nroutes: [{{ to: {{ proxy: a }} }}]\n"));
        assert!(told.contains(expected), "{text}: {told}");
    }
}

#[test]
fn several_mistakes_are_told_at_once_in_the_order_of_the_file() {
    let told = mistake(&format!("{APP}routes:\n  - to: {{ proxy: b }}\n  - to: {{ proxy: c }}\n"));
    let (b, c) = (told.find("`b`").unwrap(), told.find("`c`").unwrap());
    assert!(b < c, "{told}");
}

#[test]
fn what_tells_clients_apart_is_refused_on_a_cached_route() {
    let plugin = "plugins: [{ headers: { upstream_request: { set: { X-Id: \"{request_id}\" } } } }]";
    let cached = format!("{APP}routes: [{{ to: {{ proxy: app }}, cache: {{}}, {plugin} }}]\n");
    assert!(mistake(&cached).contains("a cached response is for everybody"));
    assert!(load(&cached.replace("cache: {}, ", "")).is_ok());
    let site = format!("{APP}{plugin}\nroutes: [{{ to: {{ proxy: app }}, cache: {{}} }}]\n");
    assert!(mistake(&site).contains("a cached response is for everybody"), "the site's plugins count too");
}

#[test]
fn a_key_with_nothing_behind_it_is_there() {
    let plan = load(&format!("{APP}routes:\n  - to: {{ proxy: app }}\n    cache:\nlog: {{ access: }}\n")).unwrap();
    assert!(plan.router.routes[0].cache.is_some());
    assert!(plan.settings.log.access.is_some());
}

#[test]
fn run_to_needs_nothing_but_an_address() {
    let (lasting, clock) = (Lasting::default(), Clock::system());
    let parts = Parts { plugins: &[], lasting: &lasting, clock: &clock };
    let plan = simple("localhost:3000", "127.0.0.1:8080", &parts).ok().unwrap();
    assert_eq!(plan.router.routes.len(), 2);
    let error = simple("localhost", "127.0.0.1:8080", &parts).err().unwrap().to_string();
    assert!(error.contains("`localhost` has no port"), "{error}");
}
