//! Parts: of what is stored whole, stored themselves, put together, completed, and fetched by the slice.

use std::time::Duration;

use crate::support::{Client, Headwall, Origin, Process, Response, TempFile, free_port, metric, together, wait_until};

const ROUTE: &str = "routes: [{ to: { proxy: app }, cache: {} }]";
const SLICED: &str = "routes: [{ to: { proxy: app }, cache: { slice: 64KiB } }]";
const SLICE: u64 = 64 << 10;

/// What the origin's file has between two bytes.
fn bytes(version: u32, first: u64, end: u64) -> String {
    let lines: String = (first / 10..end.div_ceil(10)).map(|line| format!("{version}{line:08}\n")).collect();
    lines[(first % 10) as usize..][..(end - first) as usize].to_owned()
}

fn file(size: u64, more: &str) -> String {
    format!("/file?size={size}&h.Cache-Control=max-age=60{more}")
}

fn range(proxy: &Headwall, target: &str, range: &str) -> Response {
    proxy.ask("GET", target, &format!("Range: bytes={range}\r\n"))
}

/// The ranges that the origin was asked for.
fn asked(origin: &Origin) -> Vec<String> {
    let requests = origin.requests("/file");
    requests.iter().map(|one| one["headers"]["range"].as_str().unwrap_or("-").to_owned()).collect()
}

#[test]
fn parts_are_stored_answered_from_put_together_and_completed() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let target = file(1000, "");
    for (asked, status, first, end) in [
        ("0-99", "fwd=uri-miss; stored", 0, 100),
        ("100-199", "fwd=partial; stored", 100, 200),
        ("-100", "fwd=partial; stored", 900, 1000),
    ] {
        let part = range(&proxy, &target, asked).whole(206);
        assert_eq!((part.text(), part.cache()), (bytes(1, first, end), &*format!("headwall; {status}")), "{asked}");
    }
    for (asked, first, end) in
        [("0-99", 0, 100), ("50-149", 50, 150), ("950-", 950, 1000), ("-1", 999, 1000), ("900-5000", 900, 1000)]
    {
        let part = range(&proxy, &target, asked).whole(206);
        assert_eq!(part.text(), bytes(1, first, end), "{asked}");
        assert_eq!(part.field("content-range"), format!("bytes {first}-{}/1000", end - 1));
        assert_eq!(part.field("content-length"), (end - first).to_string());
        assert!(part.cache().starts_with("headwall; hit; ttl=") && part.has("age"), "{:?}", part.fields);
    }
    assert_eq!(asked(&origin), ["bytes=0-99", "bytes=100-199", "bytes=-100"]);
    let over = range(&proxy, &target, "1000-").whole(416);
    assert_eq!((over.field("content-range"), over.cache().starts_with("headwall; hit")), ("bytes */1000", true));
    range(&proxy, &target, "150-250").whole(206);
    assert_eq!(asked(&origin).len(), 4, "what is not all there is asked for");

    let whole = proxy.get(&target).whole(200);
    assert_eq!((whole.text(), whole.cache()), (bytes(1, 0, 1000), "headwall; fwd=partial; stored"));
    assert_eq!(asked(&origin)[4], "bytes=251-899");
    assert_eq!(origin.requests("/file")[4]["headers"]["if-range"], "\"f1\"");
    assert!(!whole.has("content-range"), "{:?}", whole.fields);
    for (method, fields, status) in [("GET", "", 200), ("HEAD", "", 200), ("GET", "Range: bytes=300-309\r\n", 206)] {
        let reply = proxy.ask(method, &target, fields).whole(status);
        assert!(reply.cache().starts_with("headwall; hit"), "{method} {}", reply.cache());
    }
    assert_eq!(asked(&origin).len(), 5);
}

#[test]
fn a_whole_of_which_all_parts_are_there_needs_no_origin() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let target = file(1000, "");
    for asked in ["300-599", "0-310", "580-"] {
        range(&proxy, &target, asked).whole(206);
    }
    let whole = proxy.get(&target).whole(200);
    assert_eq!((whole.text(), whole.field("content-length")), (bytes(1, 0, 1000), "1000"));
    assert!(whole.cache().starts_with("headwall; hit"), "{}", whole.cache());
    let known = proxy.ask("GET", &target, "If-None-Match: \"f1\"\r\nRange: bytes=0-1\r\n").whole(304);
    assert_eq!((known.field("etag"), known.has("content-length")), ("\"f1\"", false));
    assert_eq!(asked(&origin).len(), 3);
}

#[test]
fn only_what_has_one_strong_validator_is_put_together() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let old = "&modified=Mon,%2030%20Nov%202020%2000:00:00%20GMT";
    for (more, together) in [
        ("", true),
        ("&weak=1&n=1", false),
        ("&untagged=1", false),
        // The date names the bytes: it is old enough.
        (&*format!("&untagged=1{old}"), true),
        (&*format!("&weak=1{old}"), true),
    ] {
        let target = file(1000, more);
        let count = || origin.count(&target);
        range(&proxy, &target, "0-99").whole(206);
        range(&proxy, &target, "100-199").whole(206);
        let both = range(&proxy, &target, "150-160").whole(206);
        assert!(both.cache().starts_with("headwall; hit"), "the newest is there: {more}");
        let first = range(&proxy, &target, "50-60").whole(206);
        assert_eq!(first.cache().starts_with("headwall; hit"), together, "{more}");
        if !together {
            range(&proxy, &target, "0-99").whole(206);
        }
        let before = count();
        let whole = proxy.get(&target).whole(200);
        assert_eq!(whole.text(), bytes(1, 0, 1000), "{more}");
        // Without a validator, what comes is of no use, and all of it is asked for.
        assert_eq!(count() - before, if together { 1 } else { 2 }, "{more}");
    }
}

#[test]
fn parts_of_two_versions_never_meet() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let target = file(1000, "");
    range(&proxy, &target, "0-499").whole(206);
    // Another target, so that nothing is invalidated.
    proxy.put("POST", "/page", "", b"").whole(200);
    let whole = proxy.get(&target).whole(200);
    assert_eq!(whole.text(), bytes(2, 0, 1000), "the origin sent the whole, for the condition did not hold");
    assert_eq!(origin.requests("/file")[1]["headers"]["if-range"], "\"f1\"");

    let target = file(2000, "");
    range(&proxy, &target, "0-499").whole(206);
    proxy.put("POST", "/page", "", b"").whole(200);
    assert_eq!(range(&proxy, &target, "500-").whole(206).text(), bytes(3, 500, 2000));
    assert_eq!(range(&proxy, &target, "0-9").whole(206).text(), bytes(3, 0, 10), "the old part is gone");
    assert_eq!(proxy.get(&target).whole(200).text(), bytes(3, 0, 2000));
}

#[test]
fn what_may_not_be_shared_is_not_kept_in_parts_either() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    for (target, fields) in [
        ("/file?size=100&h.Cache-Control=no-store", ""),
        ("/file?size=100&h.Cache-Control=private,max-age=60", ""),
        ("/file?size=100&h.Cache-Control=max-age=60&h.Set-Cookie=a=b", ""),
        ("/file?size=100&h.Cache-Control=max-age=60&h.Vary=*", ""),
        ("/file?size=100&h.Cache-Control=max-age=60&a=1", "Authorization: Basic eA==\r\n"),
        ("/file?size=100&h.Cache-Control=max-age=60&b=1", "Cache-Control: no-store\r\n"),
        ("/file?size=100&z=1", ""),
    ] {
        for _ in 0..2 {
            let part = proxy.ask("GET", target, &format!("Range: bytes=0-9\r\n{fields}")).whole(206);
            assert!(!part.cache().contains("stored") && !part.cache().contains("hit"), "{target}: {}", part.cache());
        }
        assert_eq!(origin.count(target), 2, "{target}");
    }
    let shared = file(100, "&c=1").replace("max-age", "public,max-age");
    proxy.ask("GET", &shared, "Authorization: Basic eA==\r\nRange: bytes=0-9\r\n").whole(206);
    assert!(range(&proxy, &shared, "0-9").cache().starts_with("headwall; hit"));

    let target = file(100, "&h.Vary=X-V");
    let ask = |value: u32, part: &str| {
        let reply = proxy.ask("GET", &target, &format!("X-V: {value}\r\nRange: bytes={part}\r\n")).whole(206);
        reply.cache().starts_with("headwall; hit")
    };
    let seen: Vec<_> =
        [(1, "0-9"), (2, "0-9"), (1, "5-6"), (2, "5-6"), (3, "5-6")].map(|(value, part)| ask(value, part)).into();
    assert_eq!(seen, [false, false, true, true, false]);
}

#[test]
fn parts_go_when_the_target_changes_or_is_purged_and_stale_ones_are_validated_by_the_next() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let target = file(1000, "&fixed=1&h.Cache-Tag=t");
    let there = |proxy: &Headwall| {
        let fields = "Range: bytes=0-9\r\nCache-Control: only-if-cached\r\n";
        proxy.ask("GET", &target, fields).status == 206
    };
    range(&proxy, &target, "0-99").whole(206);
    assert!(there(&proxy));
    proxy.put("POST", &target, "", b"").whole(200);
    assert!(!there(&proxy), "an unsafe request invalidates parts");
    for what in ["\"tag\": \"t\"", "\"all\": true", "\"prefix\": \"/file\""] {
        range(&proxy, &target, "0-99").whole(206);
        assert!(there(&proxy));
        proxy.purge(&format!("{{{what}}}"));
        assert!(!there(&proxy), "{what}");
    }
    range(&proxy, &target, "0-99").whole(206);
    proxy.purge("{\"tag\": \"t\", \"soft\": true}");
    assert!(!there(&proxy), "stale from now on");
    range(&proxy, &target, "100-109").whole(206);
    assert!(there(&proxy), "another part with the same validator says that it is still true");
    proxy.clock.advance(Duration::from_secs(61));
    assert!(!there(&proxy));
    range(&proxy, &target, "100-109").whole(206);
    assert!(there(&proxy));
}

#[test]
fn odd_ranges_are_bounded() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let many = (0..200).map(|n| format!("{}-{}", n * 4, n * 4 + 1)).collect::<Vec<_>>().join(",");
    for (n, odd) in [&*many, "0-9,5-14", "20-29,0-9", "0-,0-,0-", "-5,-6"].into_iter().enumerate() {
        let target = file(1000, &format!("&n={n}"));
        let whole = range(&proxy, &target, odd).whole(200);
        assert_eq!((whole.text(), asked(&origin).pop().unwrap()), (bytes(1, 0, 1000), "-".to_owned()), "{odd}");
        assert!(range(&proxy, &target, odd).whole(200).cache().starts_with("headwall; hit"), "{odd}");
    }
    let target = file(1000, "&parts=1");
    range(&proxy, &target, "0-499").whole(206);
    for (odd, status) in [("-0", 416), ("1000-", 416), ("5-2", 200), ("x", 200), ("0-1,5-6", 200)] {
        let reply = range(&proxy, &target, odd).whole(status);
        let expected = if status == 200 { bytes(1, 0, 1000) } else { String::new() };
        assert_eq!(reply.text(), expected, "{odd}");
    }
    assert_eq!(range(&proxy, &file(0, ""), "0-").status, 416, "empty content has no part");
}

#[test]
fn what_has_come_of_a_part_is_kept_when_the_client_leaves_or_the_origin_breaks_off() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let cut = file(1000, "&cut=100");
    let part = range(&proxy, &cut, "0-499");
    assert!(!part.complete && part.status == 206, "it never looks complete");
    wait_until(|| range(&proxy, &cut, "20-49").cache().starts_with("headwall; hit"));
    let hung = file(1000, "&cut=300&hang=1");
    let mut client = proxy.client();
    client.request("GET", &hung, "Range: bytes=500-999\r\n");
    assert_eq!(client.head().status, 206);
    assert_eq!(client.take(300).len(), 300);
    drop(client);
    wait_until(|| range(&proxy, &hung, "500-799").cache().starts_with("headwall; hit"));
}

#[test]
fn ten_bytes_from_the_middle_of_a_gibibyte_cost_one_slice() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, "routes: [{ to: { proxy: app }, cache: { slice: 4MiB } }]");
    let (target, middle) = (file(1 << 30, ""), (1 << 29) + 7);
    let ten = format!("{middle}-{}", middle + 9);
    let first = range(&proxy, &target, &ten).whole(206);
    assert_eq!((first.text(), first.cache()), (bytes(1, middle, middle + 10), "headwall; fwd=uri-miss; stored"));
    wait_until(|| range(&proxy, &target, &ten).cache().starts_with("headwall; hit"));
    assert_eq!(range(&proxy, &target, &ten).whole(206).text(), bytes(1, middle, middle + 10));
    assert_eq!(origin.sent(&target), 4 << 20);
    assert_eq!(asked(&origin), [format!("bytes={}-{}", 1 << 29, (1 << 29) + (4 << 20) - 1)]);
}

#[test]
fn a_range_over_many_slices_is_one_answer_and_each_slice_is_fetched_once() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, SLICED);
    let size = 10 * SLICE + 5;
    let target = file(size, "");
    let texts = together(8, |_| range(&proxy, &target, "100-").whole(206).text());
    assert!(texts.iter().all(|text| *text == bytes(1, 100, size)));
    assert_eq!(asked(&origin).len(), 11, "{:?}", asked(&origin));
    let inside = range(&proxy, &target, &format!("{}-{}", SLICE - 5, 3 * SLICE)).whole(206);
    assert_eq!(inside.text(), bytes(1, SLICE - 5, 3 * SLICE + 1));
    assert!(inside.cache().starts_with("headwall; hit"), "{}", inside.cache());
    let last = range(&proxy, &target, "-3").whole(206);
    assert_eq!((last.text(), last.cache().starts_with("headwall; hit")), (bytes(1, size - 3, size), true));
    let other = file(size, "&b=1");
    range(&proxy, &other, "0-0").whole(206);
    let partly = range(&proxy, &other, &format!("0-{SLICE}")).whole(206);
    assert_eq!((partly.text(), partly.cache()), (bytes(1, 0, SLICE + 1), "headwall; fwd=partial; stored"));
    assert_eq!(range(&proxy, &other, &format!("{size}-")).status, 416);
    // One after another on one connection, the second one with slices that are not there yet.
    let mut client = proxy.client();
    for end in [SLICE + 1, 5 * SLICE] {
        client.request("GET", &other, &format!("Range: bytes=1-{}\r\n", end - 1));
        assert_eq!(client.response("GET").whole(206).text(), bytes(1, 1, end));
    }
    let stale = proxy.ask("GET", &other, "Range: bytes=0-9\r\nIf-Range: \"f0\"\r\n").whole(200);
    assert_eq!(stale.text(), bytes(1, 0, size));
    assert_eq!(proxy.ask("GET", &other, "Range: bytes=0-9\r\nIf-None-Match: \"f1\"\r\n").status, 304);
}

#[test]
fn when_too_many_slices_arrive_at_once_the_next_one_waits() {
    let origin = Origin::start();
    let limits = "cache: { memory: 16MiB, max_object: 128KiB, max_unsized: 128KiB, fills: 128KiB }";
    let proxy = Headwall::before(&origin, &format!("{limits}\n{SLICED}"));
    let size = 6 * SLICE;
    let texts = together(6, |n| range(&proxy, &file(size, &format!("&n={n}")), "10-").whole(206).text());
    assert!(texts.iter().all(|text| *text == bytes(1, 10, size)));
}

#[test]
fn a_file_that_changes_between_two_slices_is_cut_and_never_mixed() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, "routes: [{ to: { proxy: app }, cache: { slice: 1MiB } }]");
    // Longer than all that may be on its way between the two.
    let size = 32 << 20;
    let target = file(size, "");
    let mut client = proxy.client();
    client.request("GET", &target, "Range: bytes=0-\r\n");
    assert_eq!(client.head().status, 206);
    proxy.put("POST", "/page", "", b"").whole(200);
    let mut came = client.take(size as usize);
    assert!(client.closed() && (came.len() as u64) < size, "cut after {}", came.len());
    came.truncate(came.len() / 10 * 10);
    assert!(came.chunks(10).all(|line| line.starts_with(b"1")), "nothing of the new version");
    assert_eq!(range(&proxy, &target, "0-99").whole(206).text(), bytes(2, 0, 100));
}

#[test]
fn an_origin_that_sends_no_slices_is_asked_as_usual() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, SLICED);
    for (more, status) in [("&unranged=1", 200), ("&h.Set-Cookie=a=b", 206), ("&unranged=1&status=404", 200)] {
        let target = file(3 * SLICE, more);
        let expected = if status == 200 { bytes(1, 0, 3 * SLICE) } else { bytes(1, 5, 10) };
        assert_eq!(range(&proxy, &target, "5-9").whole(status).text(), expected, "{more}");
        let before = origin.count(&target);
        assert_eq!(range(&proxy, &target, "5-9").whole(status).text(), expected, "{more}");
        assert_eq!(origin.count(&target), before + 1, "it is remembered: {more}");
    }
    assert_eq!(range(&proxy, "/failing?times=100", "0-9").status, 502);
    let target = file(3 * SLICE, "&d=1");
    for far in ["999999-", "18446744073709551615-", "18446744073709551614-18446744073709551615"] {
        assert_eq!(range(&proxy, &target, far).status, 416, "{far}");
    }
    assert_eq!(range(&proxy, &target, "5-9").whole(206).cache(), "headwall; fwd=uri-miss; stored");
    assert_eq!(asked(&origin).pop().unwrap(), "bytes=0-65535", "what lies behind the end is no reason to give up");
    let credentials = file(3 * SLICE, "&c=1");
    let fields = "Range: bytes=5-9\r\nAuthorization: Basic eA==\r\n";
    assert_eq!(proxy.ask("GET", &credentials, fields).whole(206).text(), bytes(1, 5, 10));
    assert_eq!(asked(&origin).pop().unwrap(), "bytes=5-9", "as the client asked");
}

#[test]
fn a_whole_that_is_too_long_to_be_stored_is_kept_in_slices_as_it_passes() {
    let origin = Origin::start();
    let proxy =
        Headwall::before(&origin, &format!("cache: {{ memory: 8MiB, max_object: 1MiB, max_unsized: 1MiB }}\n{SLICED}"));
    let size = 2 << 20;
    let target = file(size, "");
    assert_eq!(proxy.get(&target).whole(200).text(), bytes(1, 0, size));
    let part = range(&proxy, &target, "1500000-1500099").whole(206);
    assert_eq!((part.text(), part.cache().starts_with("headwall; hit")), (bytes(1, 1_500_000, 1_500_100), true));
    assert_eq!(asked(&origin), ["-"]);
}

#[test]
fn a_whole_that_is_completed_but_not_stored_is_asked_for_again() {
    let origin = Origin::start();
    let routes = "routes: [{ match: { host: plain.test }, to: { proxy: app }, cache: {} }, { to: { proxy: app }, cache: {}, plugins: [{ compress: {} }] }]";
    let proxy = Headwall::before(
        &origin,
        &format!("cache: {{ memory: 16MiB, max_object: 128KiB, max_unsized: 128KiB, fills: 128KiB }}\n{routes}"),
    );
    for (n, later) in
        ["later.Set-Cookie=a=b", "later.Cache-Control=private", "later.Cache-Control=no-store", "later.Vary=*"]
            .iter()
            .enumerate()
    {
        let target = file(4000, &format!("&h.Content-Type=text/plain&n={n}&{later}"));
        for fields in ["", "Accept-Encoding: gzip\r\n"] {
            range(&proxy, &target, "0-499").whole(206);
            let whole = proxy.ask("GET", &target, fields).whole(200);
            if fields.is_empty() {
                assert_eq!(whole.text(), bytes(1, 0, 4000), "{later}");
            } else {
                assert_eq!(whole.field("content-encoding"), "gzip");
            }
            assert!(!whole.cache().contains("stored"), "{later}: {}", whole.cache());
        }
        assert_eq!(origin.requests(&target)[2]["headers"].get("range"), None, "{later}");
    }
    // No room for another fill: all of it comes by.
    let hung = file(128 << 10, "&cut=10&hang=1");
    let mut holder = proxy.client();
    let target = file(1000, "&full=1");
    range(&proxy, &target, "0-499").whole(206);
    holder.request("GET", &hung, "");
    assert_eq!(holder.head().status, 200);
    assert_eq!(proxy.get(&target).whole(200).text(), bytes(1, 0, 1000));
    drop(holder);
    // Changed while it was on its way.
    let target = file(1000, "&fixed=1&wait=200");
    range(&proxy, &target, "0-499").whole(206);
    std::thread::scope(|scope| {
        let whole = scope.spawn(|| proxy.get(&target));
        wait_until(|| origin.count(&target) == 2);
        proxy.put("POST", &target, "", b"");
        let whole = whole.join().unwrap();
        assert_eq!((whole.status, whole.text()), (200, bytes(1, 0, 1000)));
    });
    assert!(!proxy.ask("GET", &target, "Cache-Control: only-if-cached\r\n").cache().contains("hit"));
    // Ends what still hangs.
    drop(origin);
}

#[test]
fn slices_need_something_that_names_their_bytes() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, SLICED);
    let now = httpdate::fmt_http_date(std::time::SystemTime::now()).replace(' ', "%20");
    let size = 3 * SLICE;
    for more in ["&weak=1", "&untagged=1", &format!("&untagged=1&modified={now}"), &format!("&weak=1&modified={now}")] {
        for _ in 0..2 {
            let part = range(&proxy, &file(size, more), "100-").whole(206);
            assert_eq!(part.text(), bytes(1, 100, size), "{more}");
        }
    }
    let old = file(size, "&weak=1&modified=Mon,%2030%20Nov%202020%2000:00:00%20GMT");
    assert_eq!(range(&proxy, &old, "100-").whole(206).text(), bytes(1, 100, size));
    assert_eq!(origin.count(&old), 3, "an old date does, as Express sends it");
}

#[test]
fn before_the_head_has_left_a_slice_that_cannot_be_had_is_no_failure() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, SLICED);
    let size = 3 * SLICE;
    // Without a word about freshness, a request with a cookie may not be stored (RFC 9111 §4.2.2).
    let target = format!("/file?size={size}&modified=Mon,%2030%20Nov%202020%2000:00:00%20GMT");
    range(&proxy, &target, "0-9").whole(206);
    let far = format!("Range: bytes={}-{}\r\n", 2 * SLICE, 2 * SLICE + 9);
    let theirs = proxy.ask("GET", &target, &format!("Cookie: a=b\r\n{far}")).whole(206);
    assert_eq!(theirs.text(), bytes(1, 2 * SLICE, 2 * SLICE + 10));
    assert_eq!(proxy.ask("GET", &target, &far).whole(206).cache(), "headwall; fwd=partial; stored");
    let only = proxy.ask("GET", &target, "Cache-Control: only-if-cached\r\nRange: bytes=0-\r\n");
    assert_eq!(only.status, 504, "the rest would have to be asked for");
    let there = proxy.ask("GET", &target, "Cache-Control: only-if-cached\r\nRange: bytes=0-99\r\n").whole(206);
    assert!(there.cache().starts_with("headwall; hit"), "{}", there.cache());
    let target = file(size, "&later.Set-Cookie=a=b");
    range(&proxy, &target, "0-9").whole(206);
    assert_eq!(range(&proxy, &target, "100-200000").whole(206).text(), bytes(1, 100, size.min(200_001)));
    drop(origin);
    assert_eq!(range(&proxy, &target, "100-200000").status, 502);
}

#[test]
fn whatever_happens_to_the_sheet_an_answer_goes_on_while_the_bytes_are_the_same() {
    let origin = Origin::start();
    let proxy = Headwall::before(
        &origin,
        "cache: { memory: 512MiB }\nroutes: [{ to: { proxy: app }, cache: { slice: 1MiB } }]",
    );
    let size = 24 << 20;
    for (n, change) in ["POST", "purge", "advance"].into_iter().enumerate() {
        let target = file(size, &format!("&fixed=1&n={n}"));
        let mut client = proxy.client();
        client.request("GET", &target, "Range: bytes=0-\r\n");
        assert_eq!(client.head().status, 206);
        match change {
            "POST" => assert_eq!(proxy.put("POST", &target, "", b"").status, 200),
            "purge" => drop(proxy.purge("{\"all\": true}")),
            _ => proxy.clock.advance(Duration::from_secs(61)),
        }
        let came = client.take(size as usize);
        assert!(came == bytes(1, 0, size).as_bytes(), "{change}: {} of {size}", came.len());
    }
}

#[test]
fn a_reload_does_not_cut_an_answer_of_slices() {
    let origin = Origin::start();
    let (port, admin) = (free_port(), free_port());
    let yaml = |slice: &str, upstream: &str| {
        format!(
            "listen: [\"127.0.0.1:{port}\"]\nadmin: {{ listen: \"127.0.0.1:{admin}\" }}\nupstreams: {{ {upstream}: {{ servers: [\"127.0.0.1:{}\"] }} }}\nroutes: [{{ to: {{ proxy: {upstream} }}, cache: {{ slice: {slice} }} }}]\n",
            origin.port
        )
    };
    let config = TempFile::new("slices.yaml", &yaml("1MiB", "app"));
    let process = Process::start(&["run", "--config", config.path()]).ready(port).ready(admin);
    let size = 24 << 20;
    let mut client = Client::to(([127, 0, 0, 1], port).into());
    client.request("GET", &file(size, ""), "Range: bytes=0-\r\n");
    assert_eq!(client.head().status, 206);
    std::fs::write(&config.0, yaml("2MiB", "other")).unwrap();
    process.signal("HUP");
    wait_until(|| metric(([127, 0, 0, 1], admin).into(), "headwall_reloads_total{result=\"ok\"}") == 1.0);
    assert!(client.take(size as usize) == bytes(1, 0, size).as_bytes(), "by the file that it began with");
}

#[test]
fn a_head_that_says_less_begins_nothing_and_two_lines_ask_for_nothing() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, ROUTE);
    let target = file(1000, "&h.Content-Type=text/plain");
    let fields = "Range: bytes=0-99\r\nIf-Range: \"f1\"\r\n";
    assert!(!proxy.ask("GET", &target, fields).whole(206).cache().contains("stored"));
    range(&proxy, &target, "100-199").whole(206);
    assert!(proxy.ask("GET", &target, fields).whole(206).cache().ends_with("stored"), "what is known is added to");
    assert!(proxy.ask("GET", &target, fields).whole(206).cache().starts_with("headwall; hit"));
    let two = proxy.ask("GET", &target, "Range: bytes=0-1\r\nRange: bytes=0-,0-,0-\r\n").whole(200);
    assert_eq!(two.text(), bytes(1, 0, 1000));
    let head = proxy.ask("HEAD", &target, "").whole(200);
    assert!(head.cache().starts_with("headwall; hit"), "{}", head.cache());
}

#[test]
fn parts_leave_as_they_are_and_a_whole_of_parts_may_be_compressed() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, "routes: [{ to: { proxy: app }, cache: {}, plugins: [{ compress: {} }] }]");
    let target = file(4000, "&h.Content-Type=text/plain");
    for asked in ["0-1999", "2000-3999"] {
        let part = proxy.ask("GET", &target, &format!("Accept-Encoding: gzip\r\nRange: bytes={asked}\r\n")).whole(206);
        assert_eq!((part.content.len(), part.has("content-encoding")), (2000, false));
    }
    let part = proxy.ask("GET", &target, "Accept-Encoding: gzip\r\nRange: bytes=10-19\r\n").whole(206);
    assert_eq!((part.text(), part.cache().starts_with("headwall; hit")), (bytes(1, 10, 20), true));
    let whole = proxy.ask("GET", &target, "Accept-Encoding: gzip\r\n").whole(200);
    assert!(
        whole.field("content-encoding") == "gzip" && whole.cache().starts_with("headwall; hit"),
        "{:?}",
        whole.fields
    );
    assert_eq!(proxy.get(&target).whole(200).text(), bytes(1, 0, 4000));
    assert_eq!(origin.count("/file"), 2);
}

#[test]
fn who_asks_after_a_change_does_not_join_what_was_asked_for_before() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, SLICED);
    for (n, known) in [false, true].into_iter().enumerate() {
        for change in ["POST", "purge"] {
            // A slice that never ends.
            let target = file(3 * SLICE, &format!("&cut=100&hang=1&n={n}&{change}=1"));
            if known {
                range(&proxy, &target, "0-9").whole(206);
            }
            let version = range(&proxy, &target, "0-9").whole(206).text();
            proxy.put("POST", "/page", "", b"").whole(200);
            match change {
                "POST" => assert_eq!(proxy.put("POST", &target, "", b"").status, 200),
                _ => drop(proxy.purge("{\"all\": true}")),
            }
            let after = range(&proxy, &target, "0-9").whole(206).text();
            assert_ne!(after, version, "{change}, known before: {known}");
            assert_eq!(range(&proxy, &target, "0-9").whole(206).text(), after, "the new one is shared");
        }
    }
}

#[test]
fn a_slice_that_breaks_off_before_the_first_byte_that_is_wanted_is_no_failure() {
    let origin = Origin::start();
    let proxy = Headwall::before(&origin, SLICED);
    let target = file(3 * SLICE, "&cut=100");
    let part = range(&proxy, &target, "200-209").whole(206);
    assert_eq!(part.text(), bytes(1, 200, 210), "the origin sends what the client asked for");
    let part = range(&proxy, &file(3 * SLICE, "&cut=100&n=1"), "90-209");
    assert!(!part.complete && part.text() == bytes(1, 90, 100), "it never looks whole");
    let far = format!("{}-", 4 * SLICE);
    assert_eq!(range(&proxy, &file(3 * SLICE, "&n=2"), &far).status, 416);
}
