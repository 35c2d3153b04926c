//! The store, asked as a client asks it.

use super::*;
use crate::handlers::{Draft, Stores};
use crate::testing::Client;

struct Setup {
    client: Client,
    clock: Clock,
    stores: Stores,
}

fn setup(settings: &str) -> Setup {
    let (clock, stores) = (Clock::system(), Stores::default());
    let draft = Draft::new(&stores);
    let around = Surroundings { prefix: Some("/cache/"), stores: &draft, clock: &clock };
    let handler = build(&serde_yaml::from_str(settings).unwrap(), &around).unwrap();
    stores.publish(&draft.finish());
    Setup { client: Client::new(handler, clock.clone()), clock, stores }
}

#[tokio::test]
async fn keeps_content_and_type_and_forgets() {
    let Setup { client, .. } = setup("{}");
    let put = client.send("PUT /cache/Hello\nContent-Type: text/html", "World").await;
    assert_eq!(put.status(), 201);
    let again = client.send("PUT /cache/Hello\nContent-Type: text/plain", "World!").await;
    assert_eq!(again.status(), 200);
    let got = client.send("GET /cache/Hello", "").await;
    assert_eq!((got.status(), got.text()), (200, "World!"));
    for (name, value) in [
        ("content-type", "text/plain"),
        ("content-length", "6"),
        ("cache-control", "no-cache"),
        ("x-content-type-options", "nosniff"),
    ] {
        assert_eq!(got.field(name), value);
    }
    assert_eq!(got.field("etag"), again.field("etag"));
    assert_ne!(got.field("etag"), put.field("etag"));
    for _ in 0..2 {
        assert_eq!(client.send("DELETE /cache/Hello", "").await.status(), 204);
        assert_eq!(client.send("GET /cache/Hello", "").await.status(), 404);
    }
    client.send("PUT /cache/raw", "a=b").await;
    assert_eq!(client.send("GET /cache/raw", "").await.field("content-type"), "application/octet-stream");
}

#[tokio::test]
async fn keys_are_decoded_once() {
    let Setup { client, .. } = setup("{}");
    client.send("PUT /cache/a%2Fb", "slash").await;
    client.send("PUT /cache/a%252Fb", "escape").await;
    client.send("PUT /cache/a//b", "two slashes").await;
    for (path, expected) in [
        ("/cache/a/b", "slash"),
        ("/cache/a%2fb", "slash"),
        ("/cache/a%252Fb", "escape"),
        ("/cache/a//b", "two slashes"),
    ] {
        assert_eq!(client.send(&format!("GET {path}"), "").await.text(), expected, "{path}");
    }
    let long = "x".repeat(1025);
    for (path, status) in [
        ("/cache/", 404),
        ("/cache/?ttl=1", 404),
        ("/cache/a%", 400),
        ("/cache/a%2", 400),
        ("/cache/a%zz", 400),
        (&*format!("/cache/{long}"), 414),
    ] {
        assert_eq!(client.send(&format!("PUT {path}"), "x").await.status(), status, "{path}");
    }
    assert_eq!(client.send(&format!("PUT /cache/{}", "x".repeat(1024)), "x").await.status(), 201);
}

#[tokio::test]
async fn ttl_runs_out_and_the_latest_one_counts() {
    let Setup { client, clock, .. } = setup("{}");
    client.send("PUT /cache/a?ttl=10", "a").await;
    client.send("PUT /cache/b?ttl=10", "b").await;
    client.send("PUT /cache/b?ttl=100", "b").await;
    let got = client.send("GET /cache/a", "").await;
    assert_eq!((got.field("cache-control"), got.field("age")), ("max-age=10", "0"));
    clock.advance(Duration::from_secs(9));
    assert_eq!(client.send("GET /cache/a", "").await.field("age"), "9");
    clock.advance(Duration::from_secs(1));
    assert_eq!(client.send("GET /cache/a", "").await.status(), 404);
    assert_eq!(client.send("HEAD /cache/a", "").await.status(), 404);
    assert_eq!(client.send("GET /cache/b", "").await.text(), "b");
    assert_eq!(client.send("PUT /cache/a", "new").await.status(), 201, "an expired one is not there");
}

#[tokio::test]
async fn a_bad_ttl_changes_nothing() {
    let Setup { client, .. } = setup("{}");
    client.send("PUT /cache/k", "old").await;
    for query in
        ["ttl=abc", "ttl=-1", "ttl=0", "ttl=", "ttl", "ttl=1.5", "ttl=10%20", "ttl=1&ttl=2", "tll=5", "ttl=1e3"]
    {
        let refused = client.send(&format!("PUT /cache/k?{query}"), "new").await;
        assert_eq!(refused.status(), 400, "{query}");
        assert_eq!(client.send("GET /cache/k", "").await.text(), "old", "{query}");
    }
    for query in ["ttl=4294967295", "ttl=99999999999999999999999"] {
        assert_eq!(client.send(&format!("PUT /cache/k?{query}"), "new").await.status(), 200, "{query}");
    }
}

#[tokio::test]
async fn default_ttl_is_for_puts_without_one() {
    let Setup { client, clock, .. } = setup("{ default_ttl: 5s }");
    client.send("PUT /cache/a", "a").await;
    client.send("PUT /cache/b?ttl=50", "b").await;
    clock.advance(Duration::from_secs(5));
    assert_eq!(client.send("GET /cache/a", "").await.status(), 404);
    assert_eq!(client.send("GET /cache/b", "").await.status(), 200);
}

#[tokio::test]
async fn writes_can_have_conditions() {
    let Setup { client, .. } = setup("{}");
    assert_eq!(client.send("PUT /cache/k\nIf-Match: *", "x").await.status(), 412);
    assert_eq!(client.send("PUT /cache/k\nIf-None-Match: *", "one").await.status(), 201);
    assert_eq!(client.send("PUT /cache/k\nIf-None-Match: *", "two").await.status(), 412);
    let tag = client.send("GET /cache/k", "").await.field("etag").to_owned();
    assert_eq!(client.send(&format!("GET /cache/k\nIf-None-Match: {tag}"), "").await.status(), 304);
    assert_eq!(client.send(&format!("GET /cache/k\nIf-None-Match: W/{tag}"), "").await.status(), 304);
    assert_eq!(client.send(&format!("PUT /cache/k\nIf-Match: {tag}"), "two").await.status(), 200);
    assert_eq!(client.send(&format!("PUT /cache/k\nIf-Match: {tag}"), "three").await.status(), 412);
    assert_eq!(client.send(&format!("DELETE /cache/k\nIf-Match: {tag}"), "").await.status(), 412);
    assert_eq!(client.send("GET /cache/k", "").await.text(), "two");
}

#[tokio::test]
async fn what_it_does_not_do_it_says() {
    let Setup { client, .. } = setup("{ max_value: 16B }");
    let refused = client.send("POST /cache/k", "x").await;
    assert_eq!((refused.status(), refused.field("allow")), (405, "GET, HEAD, PUT, DELETE"));
    assert_eq!(client.send("PUT /cache/k", "sixteen bytes ok").await.status(), 201);
    assert_eq!(client.send("PUT /cache/k", "seventeen bytes no").await.status(), 413);
    assert_eq!(client.send("PUT /cache/k\nContent-Range: bytes 0-1/9", "x").await.status(), 400);
    assert_eq!(client.cut("PUT /cache/k", "half").await.status(), 400);
    assert_eq!(client.send("GET /cache/k", "").await.text(), "sixteen bytes ok", "none of these changed it");
}

#[tokio::test]
async fn values_on_their_way_in_have_a_bound_together() {
    let Setup { client, stores, .. } = setup("{ memory: 1MiB, max_value: 512KiB }");
    client.send("PUT /cache/k", "old").await;
    let store = stores.all().remove(0).1;
    let others = store.arriving.reserve(1 << 20).unwrap();
    let refused = client.send("PUT /cache/k", "new").await;
    assert_eq!((refused.status(), refused.field("retry-after")), (503, "1"));
    assert_eq!(client.send("GET /cache/k", "").await.text(), "old");
    drop(others);
    assert_eq!(client.send("PUT /cache/k", &"x".repeat(500 << 10)).await.status(), 200);
    assert_eq!(store.arriving(), 0, "what has arrived is given back");
}

#[tokio::test]
async fn only_those_who_may() {
    let Setup { client, .. } = setup("{ allow: [127.0.0.0/8, 192.0.2.0/24] }");
    for (peer, client_address, fields, status) in [
        ("127.0.0.1", "127.0.0.1", "", 404),
        ("192.0.2.9", "192.0.2.9", "", 404),
        ("198.51.100.1", "198.51.100.1", "", 403),
        ("127.0.0.1", "127.0.0.1", "\nX-Forwarded-For: 192.0.2.9", 403),
        ("127.0.0.1", "127.0.0.1", "\nForwarded: for=192.0.2.9", 403),
        ("10.0.0.1", "192.0.2.9", "\nX-Forwarded-For: 192.0.2.9", 404),
        ("10.0.0.1", "198.51.100.1", "\nX-Forwarded-For: 198.51.100.1", 403),
    ] {
        let got = client.from(peer, client_address, &format!("GET /cache/k{fields}")).await;
        assert_eq!(got.status(), status, "{peer} {client_address} {fields}");
    }
    // A store that wants a token wants it from loopback, too, unless the file allows that.
    for (settings, status) in [
        ("{}", 404),
        ("{ tokens: [0123456789abcdef] }", 401),
        ("{ tokens: [0123456789abcdef], allow: [127.0.0.0/8] }", 404),
        ("{ tokens: [] }", 404),
        ("{ allow: }", 403),
    ] {
        assert_eq!(setup(settings).client.send("GET /cache/k", "").await.status(), status, "{settings}");
    }
    let Setup { client, .. } = setup("{ allow: [], tokens: [0123456789abcdef] }");
    for (fields, status) in [
        ("", 401),
        ("\nAuthorization: Bearer 0123456789abcdeF", 401),
        ("\nAuthorization: Bearer 0123456789abcdef0", 401),
        ("\nAuthorization: Basic 0123456789abcdef", 401),
        ("\nAuthorization: bearer 0123456789abcdef", 404),
    ] {
        assert_eq!(
            client.from("203.0.113.1", "203.0.113.1", &format!("GET /cache/k{fields}")).await.status(),
            status,
            "{fields}"
        );
    }
}

#[tokio::test]
async fn memory_is_bounded_and_comes_back() {
    let Setup { client, clock, stores } = setup("{ memory: 1MiB, max_value: 64KiB }");
    let value = "x".repeat(10_000);
    for n in 0..500 {
        assert_eq!(client.send(&format!("PUT /cache/{n}?ttl=60"), &value).await.status(), 201);
    }
    let store = stores.all().remove(0).1;
    assert!(store.usage().bytes <= 1 << 20);
    assert!(store.usage().evicted >= 390);
    clock.advance(Duration::from_secs(60));
    store.sweep(clock.now());
    assert_eq!((store.usage().bytes, store.usage().entries), (0, 0));
}

#[tokio::test]
async fn a_store_that_shrank_keeps_what_fits_and_refuses_the_rest() {
    let Setup { client, stores, .. } = setup("{ memory: 1MiB, max_value: 512KiB }");
    assert_eq!(client.send("PUT /cache/small", "kept").await.status(), 201);
    let named = Draft::new(&stores);
    assert!(named.get("default", 128 << 10).is_ok());
    assert_eq!(named.get("default", 256 << 10).err(), Some(128 << 10));
    stores.publish(&named.finish());
    // The route still says 512 KiB: it was there before.
    let refused = client.send("PUT /cache/small", &"x".repeat(200_000)).await;
    assert_eq!((refused.status(), client.send("GET /cache/small", "").await.text()), (413, "kept"));
}

#[test]
fn stores_that_nobody_names_any_more_go() {
    let stores = Stores::default();
    for names in [&["a", "b"][..], &["b", "c"]] {
        let draft = Draft::new(&stores);
        for name in names {
            draft.get(name, 1 << 20).ok().unwrap();
        }
        stores.publish(&draft.finish());
    }
    assert_eq!(stores.all().into_iter().map(|(name, _)| name).collect::<Vec<_>>(), ["b", "c"]);
    // What is only drafted changes nothing.
    Draft::new(&stores).get("d", 1 << 20).ok().unwrap();
    assert_eq!(stores.all().len(), 2);
}

#[tokio::test]
async fn parallel_puts_leave_one_whole_value() {
    let Setup { client, .. } = setup("{}");
    let client = Arc::new(client);
    let writers: Vec<_> = (0..8u8)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move {
                let value = char::from(b'a' + n).to_string().repeat(20_000);
                for _ in 0..20 {
                    client.send("PUT /cache/k", &value).await;
                    let got = client.send("GET /cache/k", "").await;
                    let first = got.text().as_bytes()[0];
                    assert!(got.text().len() == 20_000 && got.text().bytes().all(|byte| byte == first));
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let stores = Stores::default();
    let clock = Clock::system();
    for (settings, prefix, path, message) in [
        ("{ max_value: 64MiB }", Some("/cache/"), "max_value", "does not fit"),
        ("{ tokens: [short] }", Some("/cache/"), "tokens[0]", "at least 16"),
        ("{ default_ttl: 10ms }", Some("/cache/"), "default_ttl", "at least 1s"),
        ("{}", None, "", "prefix"),
        ("{}", Some("/cache"), "", "prefix"),
        ("{ allow: [10.0.0.0/99] }", Some("/cache/"), "allow[0]", "no network"),
    ] {
        let draft = Draft::new(&stores);
        let around = Surroundings { prefix, stores: &draft, clock: &clock };
        let complaint = build(&serde_yaml::from_str(settings).unwrap(), &around).err().unwrap();
        assert!(complaint.message.contains(message) && complaint.path == path, "{settings}: {complaint:?}");
    }
    let draft = Draft::new(&stores);
    let around = Surroundings { prefix: Some("/c/"), stores: &draft, clock: &clock };
    let build = |settings: &str| build(&serde_yaml::from_str(settings).unwrap(), &around);
    assert!(build("{ store: s, memory: 32MiB }").is_ok() && build("{ store: s, memory: 32MiB }").is_ok());
    assert!(build("{ store: s, memory: 64MiB }").err().unwrap().message.contains("another route, which says 32MiB"));
}

#[tokio::test]
async fn values_go_by_their_tags_in_all_stores() {
    let (clock, stores) = (Clock::system(), Stores::default());
    let draft = Draft::new(&stores);
    let client = |settings: &str, draft: &Draft<'_>| {
        let around = Surroundings { prefix: Some("/cache/"), stores: draft, clock: &clock };
        Client::new(build(&serde_yaml::from_str(settings).unwrap(), &around).unwrap(), clock.clone())
    };
    let (one, two) = (client("{ store: one }", &draft), client("{ store: two }", &draft));
    stores.publish(&draft.finish());
    let (hard, dry) = (Manner::default(), Manner { dry_run: true, ..Manner::default() });
    let soft = Manner { soft: true, ..Manner::default() };
    let count = |tag: &str, manner| stores.purge(tag, manner, &clock).entries;
    one.send("PUT /cache/a\nCache-Tag: t, u", "a").await;
    one.send("PUT /cache/b\nSurrogate-Key: u", "b").await;
    two.send("PUT /cache/a%2Fc\nCache-Groups: \"t\"", "c").await;
    two.send("PUT /cache/d", "d").await;
    assert_eq!((count("t", dry), count("u", dry), count("none", hard)), (2, 2, 0));
    assert_eq!((count("t", hard), count("t", hard), count("u", soft)), (2, 0, 1));
    for (client, path, status) in [(&one, "a", 404), (&one, "b", 404), (&two, "a/c", 404), (&two, "d", 200)] {
        assert_eq!(client.send(&format!("GET /cache/{path}"), "").await.status(), status, "{path}");
    }
    // What was replaced, deleted or kept long enough is not listed any more.
    for (path, ttl) in [("replaced", ""), ("deleted", ""), ("expired", "?ttl=5")] {
        one.send(&format!("PUT /cache/{path}{ttl}\nCache-Tag: t"), "x").await;
    }
    assert_eq!(count("t", dry), 3);
    one.send("PUT /cache/replaced", "y").await;
    one.send("DELETE /cache/deleted", "").await;
    clock.advance(Duration::from_secs(5));
    assert_eq!(count("t", dry), 0);
    for (_, store) in stores.all() {
        store.sweep(clock.now());
        assert!(store.listed.is_empty());
    }
}

#[tokio::test]
async fn a_write_that_is_refused_leaves_the_tags_and_one_that_is_not_brings_its_own() {
    let Setup { client, clock, stores } = setup("{ memory: 600KiB, max_value: 500KiB }");
    let count = |tag: &str| stores.purge(tag, Manner { soft: false, dry_run: true }, &clock).entries;
    let all = |wanted: [u64; 5]| {
        assert_eq!(["t", "T", "a b", "x, y", "z"].map(count), wanted);
    };
    let several = "Cache-Tag: t, a b\nCache-Tag: T\nCache-Groups: \"x, y\", 5, \"t\"";
    client.send(&format!("PUT /cache/a\n{several}"), "1").await;
    all([1, 1, 1, 1, 0]);
    for (refused, status) in [
        ("PUT /cache/a\nCache-Tag: z\nIf-None-Match: *", 412),
        ("PUT /cache/a\nCache-Tag: z\nIf-Match: \"other\"", 412),
        ("PUT /cache/a?ttl=0\nCache-Tag: z", 400),
        ("DELETE /cache/a\nIf-Match: \"other\"", 412),
    ] {
        assert_eq!(client.send(refused, "2").await.status(), status, "{refused}");
        all([1, 1, 1, 1, 0]);
    }
    // It fits, but for its tags.
    let many = (0..1000).map(|number| format!("m{number}")).collect::<Vec<_>>().join(",");
    let long = "x".repeat(300 << 10);
    let refused = client.send(&format!("PUT /cache/a\nCache-Tag: {many}"), &long).await;
    assert!(refused.status() == 413 && refused.text().contains("with its tags"), "{}", refused.text());
    all([1, 1, 1, 1, 0]);
    for request in ["HEAD /cache/a", "GET /cache/a"] {
        let got = client.send(request, "").await;
        assert!(["cache-tag", "cache-groups", "surrogate-key"].iter().all(|name| got.field(name).is_empty()));
    }
    client.send("PUT /cache/a\nSurrogate-Key: z", "2").await;
    all([0, 0, 0, 0, 1]);
    // What has to go for lack of room is not listed any more.
    client.send("PUT /cache/b", &long).await;
    client.send("PUT /cache/c", &long).await;
    assert_eq!(count("z"), u64::from(client.send("GET /cache/a", "").await.status() == 200));
    client.send("PUT /cache/a", "3").await;
    all([0; 5]);
    assert!(stores.all()[0].1.listed.is_empty());
}

#[tokio::test]
async fn tags_weigh_and_are_bounded() {
    let Setup { client, stores, .. } = setup("{}");
    let used = || stores.all()[0].1.usage().bytes;
    client.send("PUT /cache/a", "a").await;
    let plain = used();
    client.send("PUT /cache/a\nCache-Tag: t", "a").await;
    assert!(used() > plain + 100);
    for tags in [format!("{}x", "t,".repeat(2)), "x".repeat(16 << 10)] {
        assert_eq!(client.send(&format!("PUT /cache/a\nCache-Tag: {tags}"), "b").await.status(), 200);
    }
    let many = (0..1001).map(|number| number.to_string()).collect::<Vec<_>>().join(",");
    for tags in [many, "x".repeat((16 << 10) + 1)] {
        let refused = client.send(&format!("PUT /cache/a\nCache-Tag: {tags}"), "c").await;
        assert!(refused.status() == 400 && refused.text().contains("1000 tags"), "{}", refused.text());
    }
    assert_eq!(client.send("GET /cache/a", "").await.text(), "b", "nothing was changed");
}
