//! The recipes of docs/cookbook before the real frameworks: what people fear does not happen.

use std::process::Command;
use std::time::Duration;

use crate::apps::App;
use crate::support::{Client, Headwall, Response, TempFile, root, run, wait_until};

/// The app of a recipe, and Headwall before it with the recipe's file.
fn served(recipe: &str, app: &str) -> (App, Headwall) {
    let app = App::start(app);
    let text = std::fs::read_to_string(root("conf").join(recipe)).unwrap();
    let rest: Vec<_> = text.lines().filter(|line| !line.starts_with("listen:")).collect();
    let proxy = Headwall::start(&rest.join("\n").replace("127.0.0.1:3000", &format!("127.0.0.1:{}", app.port)));
    (app, proxy)
}

/// The cookie that a response sets, as the next request sends it.
fn cookie(response: &Response) -> String {
    let value = response.field("set-cookie").split(';').next().unwrap();
    assert!(!value.is_empty(), "{:?}", response.fields);
    format!("Cookie: {value}\r\n")
}

/// What stands between two words.
fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let rest = text.split_once(before).unwrap_or_else(|| panic!("no {before} in {text}")).1;
    rest.split_once(after).unwrap().0
}

/// The first link of a page that begins so and ends so.
fn link(page: &str, start: &str, end: &str) -> String {
    format!("{start}{}{end}", between(page, &format!("\"{start}"), &format!("{end}\"")))
}

/// The next event of a stream whose head has come.
fn event(client: &mut Client) -> String {
    let mut text = String::new();
    while !text.ends_with("\n\n") {
        let chunk = client.chunk().expect("the stream goes on");
        assert!(!chunk.is_empty(), "the stream ended");
        text.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    text
}

/// Listens, has the second event sent when the first has come, and leaves. `send` says who listens.
fn events_come_one_by_one(proxy: &Headwall, send: impl Fn() -> String) {
    let mut client = proxy.client();
    client.request("GET", "/events", "Accept: text/event-stream\r\n");
    let head = client.head();
    assert_eq!((head.status, head.cache()), (200, "headwall; fwd=uri-miss; detail=event-stream"));
    assert_eq!(event(&mut client), "data: welcome\n\n");
    assert_eq!(send(), "1");
    assert_eq!(event(&mut client), "data: rope\n\n");
    drop(client);
    wait_until(|| send() == "0");
}

/// A page is stored, is used while it is refreshed, and is fresh again: as often as its time is over.
fn stale_while_revalidate(proxy: &Headwall, target: &str, rounds: usize) {
    let miss = proxy.get(target).whole(200);
    assert_eq!(miss.cache(), "headwall; fwd=uri-miss; stored");
    let hit = proxy.get(target).whole(200);
    assert!(hit.cache().starts_with("headwall; hit; ttl="), "{}", hit.cache());
    assert_eq!(hit.content, miss.content);
    for round in 0..rounds {
        proxy.clock.advance(Duration::from_secs(61));
        let stale = proxy.get(target).whole(200);
        assert!(stale.cache().ends_with("; detail=stale-while-revalidate"), "{round}: {}", stale.cache());
        assert!(stale.cache().starts_with("headwall; hit; ttl=-"), "{round}: {}", stale.cache());
        wait_until(|| !proxy.get(target).cache().contains("ttl=-"));
    }
}

/// It is stored for a year, and its name changes before.
fn kept_for_good(proxy: &Headwall, target: &str) {
    let miss = proxy.get(target).whole(200);
    assert_eq!(miss.cache(), "headwall; fwd=uri-miss; stored", "{target}");
    assert!(miss.field("cache-control").contains("immutable"), "{target}: {:?}", miss.fields);
    proxy.clock.advance(Duration::from_secs(30 * 86_400));
    let hit = proxy.get(target).whole(200);
    assert!(hit.cache().starts_with("headwall; hit; ttl=2"), "{target}: {}", hit.cache());
    assert_eq!(hit.content, miss.content, "{target}");
}

#[test]
fn express_visitors_never_see_each_others_pages() {
    let (_app, proxy) = served("express.yaml", "express");
    let visit = |fields: &str| proxy.ask("GET", "/basket", fields).whole(200);
    let (ann, bob) = (visit(""), visit(""));
    for (first, who) in [(&ann, "ann"), (&bob, "bob")] {
        assert_eq!(first.cache(), "headwall; fwd=uri-miss; detail=set-cookie", "{who}");
        let again = visit(&cookie(first));
        assert_eq!(again.text(), first.text().replace("visit 1", "visit 2"), "{who}");
        assert_eq!(again.cache(), "headwall; fwd=uri-miss; detail=no-heuristic", "{who}");
    }
    assert_ne!(ann.text(), bob.text());

    let login = |name: &str| {
        let json = format!("{{\"name\":\"{name}\"}}");
        let reply = proxy.put("POST", "/login", "Content-Type: application/json\r\n", json.as_bytes()).whole(204);
        cookie(&reply)
    };
    let (ann, bob) = (login("ann"), login("bob"));
    // Express does not tell /Account from /account: where the file does not know the page, the page knows itself.
    for (target, status) in [("/account", ""), ("/Account", "headwall; fwd=uri-miss; detail=no-store")] {
        for (fields, name) in [(&ann, "ann"), (&bob, "bob"), (&ann, "ann"), (&String::new(), "nobody")] {
            let page = proxy.ask("GET", target, fields).whole(200);
            assert_eq!(page.text(), format!("account of {name}"), "{target}");
            assert_eq!(page.cache(), status, "{target} of {name}");
        }
    }
}

#[test]
fn express_assets_and_answers_for_all_are_hits() {
    let (_app, proxy) = served("express.yaml", "express");
    stale_while_revalidate(&proxy, "/api/products", 2);
    let json = "Content-Type: application/json\r\n";
    let made = proxy.put("POST", "/api/products", json, b"{\"name\":\"axe\"}").whole(201);
    assert_eq!((made.text().as_str(), made.cache()), ("{\"name\":\"axe\"}", "headwall; fwd=method; detail=method"));
    let list = proxy.get("/api/products").whole(200);
    assert_eq!(list.text(), "[\"rope\",\"axe\"]", "what changed is asked for again at once");
    assert_eq!(list.cache(), "headwall; fwd=uri-miss; stored");
    kept_for_good(&proxy, "/assets/shop.3f9a1c.js");
    assert!(proxy.get("/assets/shop.000000.js").whole(404).cache().contains("detail="), "not for a year");
}

#[test]
fn express_events_come_one_by_one() {
    let (_app, proxy) = served("express.yaml", "express");
    events_come_one_by_one(&proxy, || {
        let json = "Content-Type: application/json\r\n";
        proxy.put("POST", "/orders", json, b"{\"name\":\"rope\"}").text()
    });
}

#[test]
fn next_pages_are_stale_while_they_are_generated_anew() {
    let (_app, proxy) = served("nextjs.yaml", "next");
    stale_while_revalidate(&proxy, "/news", 2);
    assert_eq!(proxy.get("/news").field("cache-control"), "s-maxage=60, stale-while-revalidate=3600");
}

const RSC: &str = "RSC: 1\r\n";
const PREFETCH: &str = "RSC: 1\r\nNext-Router-Prefetch: 1\r\n";
const SEGMENT: &str = "RSC: 1\r\nNext-Router-Prefetch: 1\r\nNext-Router-Segment-Prefetch: /_tree\r\n";

/// What the app says now, on the host where nothing is stored.
fn preview(proxy: &Headwall, target: &str, fields: &str) -> Response {
    let mut client = proxy.client();
    client.send(&format!("GET {target} HTTP/1.1\r\nHost: preview.example.com\r\n{fields}\r\n"));
    client.response("GET").whole(200)
}

#[test]
fn next_html_and_rsc_never_answer_for_each_other() {
    let (_app, proxy) = served("nextjs.yaml", "next");
    let kind = |target: &str, fields: &str| {
        let reply = proxy.ask("GET", target, fields).whole(200);
        (reply.field("content-type").to_owned(), reply.cache().contains("; hit"), reply.content)
    };
    let mut contents = Vec::new();
    for (number, fields) in [RSC, PREFETCH, SEGMENT].into_iter().enumerate() {
        // Next.js sends a client that asks at the wrong address to the right one.
        let target = proxy.ask("GET", "/news", fields).whole(307).field("location").to_owned();
        assert!(target.starts_with("/news?_rsc"), "{target}");
        // The same address, with the fields and without; once the one comes first, once the other.
        let mut asked = vec![(fields, "text/x-component"), ("", "text/html; charset=utf-8")];
        if number == 0 {
            asked.reverse();
        }
        for hit in [false, true] {
            for (fields, expected) in &asked {
                let (found, was_hit, content) = kind(&target, fields);
                assert_eq!((found.as_str(), was_hit), (*expected, hit), "{target} with {fields}");
                contents.push((*expected, content));
            }
        }
    }
    for (kind, content) in &contents {
        assert_eq!(content.starts_with(b"<!DOCTYPE html>"), *kind == "text/html; charset=utf-8");
    }
    // Nor does the redirect stand in for the page.
    for _ in 0..2 {
        proxy.ask("GET", "/news", RSC).whole(307);
        assert_eq!(kind("/news", "").0, "text/html; charset=utf-8");
    }
}

#[test]
fn next_pages_that_read_cookies_are_not_shared() {
    let (_app, proxy) = served("nextjs.yaml", "next");
    for fields in ["", RSC] {
        let target = if fields.is_empty() { "/me" } else { "/me?_rsc" };
        for name in ["ann", "bob", "ann"] {
            let page = proxy.ask("GET", target, &format!("Cookie: name={name}\r\n{fields}")).whole(200);
            assert_eq!(page.cache(), "headwall; fwd=uri-miss; detail=no-store");
            let text = page.text();
            let other = if name == "ann" { "bob" } else { "ann" };
            assert!(text.contains(name) && !text.contains(other), "{text}");
        }
        assert!(proxy.ask("GET", target, fields).whole(200).text().contains("nobody"));
    }
}

#[test]
fn next_pages_that_are_guarded_stay_guarded() {
    let (_app, proxy) = served("nextjs.yaml", "next");
    for (target, fields) in [("/members", ""), ("/members?_rsc", RSC)] {
        let member = proxy.ask("GET", target, &format!("Cookie: member=1\r\n{fields}")).whole(200);
        assert!(member.text().contains("members only"));
        assert_eq!(member.cache(), "headwall; fwd=uri-miss; detail=no-store");
        let refused = proxy.ask("GET", target, fields).whole(307);
        assert_eq!(refused.field("location"), "/", "{target}");
        assert_eq!(refused.cache(), "headwall; fwd=uri-miss; detail=no-freshness");
    }
}

#[test]
fn next_assets_and_images_are_hits() {
    let (_app, proxy) = served("nextjs.yaml", "next");
    let image = "/_next/image?url=/square.png&w=32&q=75";
    for (accept, kind) in [("image/webp,*/*", "image/webp"), ("image/png", "image/png")] {
        let fields = format!("Accept: {accept}\r\n");
        for hit in [false, true] {
            let reply = proxy.ask("GET", image, &fields).whole(200);
            assert_eq!((reply.field("content-type"), reply.cache().contains("; hit")), (kind, hit), "{accept}");
        }
    }
    let script = link(&proxy.get("/news").whole(200).text(), "/_next/static/", ".js");
    kept_for_good(&proxy, &script);
    assert!(proxy.get("/_next/static/gone.js").whole(404).cache().ends_with("detail=no-store"));
}

#[test]
fn next_server_actions_work_and_are_seen_at_once() {
    let (_app, proxy) = served("nextjs.yaml", "next");
    // What has another address is not the page that the action was sent to.
    let others = [("/news", ""), ("/guestbook?_rsc", RSC)];
    for (target, fields) in others {
        proxy.ask("GET", target, fields).whole(200);
    }
    // An action that comes while Next.js generates its page anew may get lost there.
    wait_until(|| preview(&proxy, "/guestbook", "").field("x-nextjs-cache") == "HIT");
    let form = proxy.get("/guestbook").whole(200).text();
    assert!(proxy.get("/guestbook").cache().contains("; hit"));
    let action = format!("$ACTION_ID_{}", between(&form, "$ACTION_ID_", "\""));
    assert!(form.contains("entries: <"), "nobody has signed yet");
    for entry in ["first entry", "second entry"] {
        let parts = [(action.as_str(), ""), ("entry", entry)]
            .map(|(name, value)| format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"));
        let content = format!("{}--b--\r\n", parts.concat());
        let fields = "Origin: http://site.test\r\nContent-Type: multipart/form-data; boundary=b\r\n";
        let signed = proxy.put("POST", "/guestbook", fields, content.as_bytes()).whole(200);
        assert!(signed.text().contains(entry));
        assert_eq!(signed.cache(), "headwall; fwd=method; detail=method");
        let page = proxy.get("/guestbook").whole(200);
        assert_eq!(page.cache(), "headwall; fwd=uri-miss; stored");
        assert!(page.text().contains(entry), "{:?}\n{}", page.fields, page.text());
        assert!(proxy.get("/guestbook").cache().contains("; hit"));
    }
    for (target, fields) in others {
        assert!(proxy.ask("GET", target, fields).whole(200).cache().contains("; hit"), "{target} stays");
    }
}

#[test]
fn next_drafts_are_for_editors_and_on_their_host() {
    let (_app, proxy) = served("nextjs.yaml", "next");
    let enabled = proxy.get("/draft").whole(200);
    assert_eq!(enabled.cache(), "headwall; fwd=uri-miss; detail=set-cookie");
    let editor = cookie(&enabled);
    let draft = proxy.ask("GET", "/news", &editor).whole(200);
    assert_eq!(draft.cache(), "headwall; fwd=uri-miss; detail=no-store", "a draft is not kept for visitors");
    let published = proxy.get("/news").whole(200);
    assert_ne!(published.content, draft.content);
    assert_eq!(published.cache(), "headwall; fwd=uri-miss; stored");
    let hit = proxy.ask("GET", "/news", &editor).whole(200);
    assert_eq!(hit.content, published.content, "on the public host an editor sees what is public");
    for _ in 0..2 {
        let draft = preview(&proxy, "/news", &editor);
        assert!(!draft.has("cache-status") && draft.content != published.content);
        assert!(draft.field("cache-control").contains("no-store"));
    }
}

#[test]
fn next_events_come_one_by_one() {
    let (_app, proxy) = served("nextjs.yaml", "next");
    events_come_one_by_one(&proxy, || proxy.put("POST", "/events", "Content-Type: text/plain\r\n", b"rope").text());
}

#[test]
fn nuxt_pages_are_stale_while_they_are_rendered_anew() {
    let (_app, proxy) = served("nuxt.yaml", "nuxt");
    // Twice, because the second time something is there to be validated.
    stale_while_revalidate(&proxy, "/news", 2);
    assert_eq!(proxy.get("/news").field("cache-control"), "s-maxage=60, stale-while-revalidate=600");
}

#[test]
fn nuxt_payloads_and_assets_are_hits_of_their_own() {
    let (_app, proxy) = served("nuxt.yaml", "nuxt");
    let page = proxy.get("/news").whole(200).text();
    let payload = between(&page, "href=\"/news/_payload.json", "\"");
    for (target, kind) in [
        ("/news", "text/html;charset=utf-8"),
        (&format!("/news/_payload.json{payload}"), "application/json;charset=utf-8"),
    ] {
        proxy.get(target).whole(200);
        for accept in ["text/html", "application/json"] {
            let hit = proxy.ask("GET", target, &format!("Accept: {accept}\r\n")).whole(200);
            assert_eq!((hit.field("content-type"), hit.cache().contains("; hit")), (kind, true), "{target}");
        }
    }
    kept_for_good(&proxy, &link(&page, "/_nuxt/", ".js"));
    let gone = proxy.get("/_nuxt/gone.js").whole(404);
    assert_eq!(gone.cache(), "headwall; fwd=uri-miss; detail=no-validator");
    let news_of_the_build = proxy.get("/_nuxt/builds/latest.json").whole(200);
    assert!(news_of_the_build.field("cache-control").starts_with("public, max-age=1,"));
}

#[test]
fn nuxt_pages_without_a_rule_are_not_shared() {
    let (_app, proxy) = served("nuxt.yaml", "nuxt");
    for name in ["ann", "bob", "ann"] {
        let page = proxy.ask("GET", "/me", &format!("Cookie: name={name}\r\n")).whole(200);
        assert_eq!(page.cache(), "headwall; fwd=uri-miss; detail=no-heuristic");
        assert!(page.text().contains(&format!("hello {name}")), "{}", page.text());
    }
    assert!(proxy.get("/me").whole(200).text().contains("hello nobody"));
    let archive = proxy.get("/archive").whole(200);
    assert_eq!((archive.has("cache-control"), archive.cache()), (false, "headwall; fwd=uri-miss; detail=no-freshness"));
    // What is kept for all was rendered for nobody.
    let news = proxy.ask("GET", "/news", "Cookie: name=ann\r\n").whole(200);
    assert!(news.cache().ends_with("stored") && !news.text().contains("ann"));
}

#[test]
fn a_static_site_outlives_its_server() {
    let (mut app, proxy) = served("static.yaml", "static");
    let page = proxy.get("/").whole(200);
    assert_eq!((page.cache(), page.field("cache-control")), ("headwall; fwd=uri-miss; stored", "max-age=60"));
    assert!(proxy.get("/").cache().starts_with("headwall; hit; ttl="));
    let style = link(&page.text(), "/assets/", ".css");
    assert_eq!(proxy.get(&style).whole(200).cache(), "headwall; fwd=uri-miss; stored");
    proxy.clock.advance(Duration::from_secs(61));
    assert_eq!(proxy.get("/").whole(200).cache(), "headwall; fwd=stale; fwd-status=304; stored");
    assert_eq!(proxy.get("/gone").whole(404).cache(), "headwall; fwd=uri-miss; detail=no-store");

    app.kill();
    proxy.clock.advance(Duration::from_secs(61));
    let stale = proxy.get("/").whole(200);
    assert_eq!(stale.content, page.content);
    assert!(stale.cache().starts_with("headwall; fwd=stale; fwd-status=502"), "{}", stale.cache());
    assert!(stale.cache().ends_with("detail=stale-if-error"), "{}", stale.cache());
    proxy.get("/never-seen").whole(502);
    proxy.clock.advance(Duration::from_secs(86_400));
    proxy.get("/").whole(502);
    let kept = proxy.get(&style).whole(200);
    assert!(kept.cache().starts_with("headwall; hit; ttl=3") && kept.field("cache-control").contains("immutable"));
}

fn page(recipe: &str) -> String {
    std::fs::read_to_string(root("docs/cookbook").join(format!("{recipe}.md"))).unwrap()
}

/// The fenced blocks of a page in this language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    page.split(&format!("```{language}\n")).skip(1).map(|block| block.split("```").next().unwrap()).collect()
}

#[test]
fn every_yaml_of_the_cookbook_is_fine() {
    for recipe in ["express", "nextjs", "nuxt", "static"] {
        let page = page(recipe);
        let yaml = blocks(&page, "yaml");
        assert!(!yaml.is_empty(), "{recipe}");
        for yaml in yaml {
            let origin = "upstreams: { app: { servers: [\"127.0.0.1:1\"] } }\n";
            let whole = if yaml.contains("upstreams:") { yaml.to_owned() } else { format!("{origin}{yaml}") };
            let file = TempFile::new("cookbook.yaml", &whole);
            let (code, _, told) =
                run(Command::new(env!("CARGO_BIN_EXE_headwall")).args(["check", "--config", file.path()]));
            assert_eq!(code, 0, "{recipe}: {told}");
        }
    }
}

/// What a page shows on a console is typed into a shell, and what comes back has to be what it shows.
/// A comment that begins with a number of seconds lets them pass; one that ends with the server stopped
/// stops it.
fn shows_what_happens(recipe: &str, app: &str) {
    let (mut app, proxy) = served(&format!("{recipe}.yaml"), app);
    let mut commands = 0;
    for block in blocks(&page(recipe), "console") {
        let mut lines = block.lines().filter(|line| !line.is_empty()).peekable();
        while let Some(line) = lines.next() {
            if let Some(comment) = line.strip_prefix("# ") {
                let seconds = comment.split_once(" seconds").and_then(|(number, _)| number.parse().ok());
                proxy.clock.advance(Duration::from_secs(seconds.unwrap_or(0)));
                if comment.ends_with("the server is stopped") {
                    app.kill();
                }
                continue;
            }
            let typed = line.strip_prefix("$ ").unwrap_or_else(|| panic!("{recipe}: {line:?} is no command"));
            let mut shown = Vec::new();
            while let Some(line) = lines.next_if(|line| !line.starts_with(['$', '#'])) {
                shown.push(about(line));
            }
            let typed = typed.replace("127.0.0.1:8080", &proxy.address.to_string());
            let (_, out, told) = run(Command::new("sh").arg("-c").arg(&typed));
            let out: Vec<_> = out.lines().map(|line| about(line.trim_end())).collect();
            assert_eq!(out, shown, "{recipe}: {typed}\n{told}");
            commands += 1;
        }
    }
    assert!(commands > 3, "{recipe}: {commands}");
}

/// A line without the seconds that a busy machine may add to it.
fn about(line: &str) -> String {
    let Some((before, rest)) = line.split_once("; ttl=") else { return line.to_owned() };
    let end = rest.find(|c: char| c != '-' && !c.is_ascii_digit()).unwrap_or(rest.len());
    let ttl: i64 = rest[..end].parse().unwrap();
    format!("{before}; ttl={}{}", if ttl < 0 { "-" } else { "+" }, &rest[end..])
}

#[test]
fn the_page_about_express_shows_what_happens() {
    shows_what_happens("express", "express");
}

#[test]
fn the_page_about_nextjs_shows_what_happens() {
    shows_what_happens("nextjs", "next");
}

#[test]
fn the_page_about_nuxt_shows_what_happens() {
    shows_what_happens("nuxt", "nuxt");
}

#[test]
fn the_page_about_static_sites_shows_what_happens() {
    shows_what_happens("static", "static");
}
