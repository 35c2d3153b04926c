//! One row per sentence; the failing row names itself.

use super::*;
use crate::clock::Clock;
use crate::fields::fields;

const DAY: u64 = 86_400;

/// Sun, 06 Nov 1994 08:49:37 GMT
fn wall() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777)
}

fn head(lines: &str) -> ResponseHeader {
    let mut status = 200;
    let mut rest = String::new();
    for line in lines.lines() {
        match line.trim().parse::<u16>() {
            Ok(number) => status = number,
            Err(_) => {
                rest.push_str(line);
                rest.push('\n');
            }
        }
    }
    let mut head = ResponseHeader::build(status, None).unwrap();
    for (name, value) in &fields(&rest) {
        head.append_header(name, value).unwrap();
    }
    head
}

fn arrival() -> Arrival {
    Arrival { now: Clock::system().now(), wall: wall(), delay: Duration::ZERO, age: Duration::ZERO }
}

fn verdict(request: &str, response: &str, policy: &Policy) -> Result<Life, Rule> {
    let response = head(response);
    judge(&fields(request), &response, policy, Arrival { age: said_age(&response.headers), ..arrival() })
}

#[test]
fn what_is_stored_and_what_is_not() {
    let respect = Policy::default();
    let lm = "last-modified: Sat, 05 Nov 1994 08:49:37 GMT";
    for (why, request, response, expected) in [
        ("explicit freshness (§3)", "", "cache-control: max-age=60", Ok(Rule::Explicit)),
        ("any final status with explicit freshness (§3)", "", "500\ncache-control: max-age=60", Ok(Rule::Explicit)),
        ("redirects too", "", "302\ncache-control: max-age=60", Ok(Rule::Explicit)),
        ("nothing said, nothing known", "", "", Err(Rule::NoFreshness)),
        ("a 404 without a word", "", "404", Err(Rule::NoFreshness)),
        ("no-store (§5.2.2.5)", "", "cache-control: max-age=60, no-store", Err(Rule::NoStore)),
        ("private (§5.2.2.7)", "", "cache-control: max-age=60, private", Err(Rule::Private)),
        ("private for some fields (§5.2.2.7)", "", "cache-control: max-age=60, private=\"x\"", Ok(Rule::Explicit)),
        ("private for all and for some", "", "cache-control: max-age=60, private, private=\"x\"", Err(Rule::Private)),
        (
            "a cookie that is for the first client alone",
            "",
            "cache-control: max-age=60, private=\"set-cookie\"\nset-cookie: a=b",
            Ok(Rule::Explicit),
        ),
        (
            "or that is left out of what is reused (§5.2.2.4)",
            "",
            "cache-control: max-age=60, no-cache=\"Set-Cookie\"\nset-cookie: a=b",
            Ok(Rule::Explicit),
        ),
        (
            "another field for the first client does not help a cookie",
            "",
            "cache-control: max-age=60, private=\"x\"\nset-cookie: a=b",
            Err(Rule::SetCookie),
        ),
        (
            "must-understand lifts no-store for what we understand (§5.2.2.3)",
            "",
            "cache-control: max-age=60, no-store, must-understand",
            Ok(Rule::Explicit),
        ),
        (
            "and forbids to store what we do not",
            "",
            "299\ncache-control: max-age=60, must-understand",
            Err(Rule::Status),
        ),
        (
            "an unknown final status may be stored otherwise (§3)",
            "",
            "299\ncache-control: max-age=60",
            Ok(Rule::Explicit),
        ),
        ("an invalid age is stale (§4.2.1)", "", "cache-control: max-age=soon", Err(Rule::NoFreshness)),
        ("private on a second line", "", "cache-control: max-age=60\ncache-control: private", Err(Rule::Private)),
        ("a cookie is somebody's", "", "cache-control: max-age=60\nset-cookie: a=b", Err(Rule::SetCookie)),
        (
            "public does not make a cookie everybody's",
            "",
            "cache-control: public, max-age=60\nset-cookie: a=b",
            Err(Rule::SetCookie),
        ),
        ("Vary: * (§4.1)", "", "cache-control: max-age=60\nvary: accept, *", Err(Rule::VaryStar)),
        (
            "Vary on what we write ourselves",
            "",
            "cache-control: max-age=60\nvary: X-Forwarded-For",
            Err(Rule::VaryStar),
        ),
        (
            "CDN-Cache-Control counts instead (RFC 9213)",
            "",
            "cache-control: max-age=60\ncdn-cache-control: no-store",
            Err(Rule::NoStore),
        ),
        ("and instead of private too", "", "cache-control: private\ncdn-cache-control: max-age=60", Ok(Rule::Explicit)),
        (
            "and instead of Expires (RFC 9213 §2.2)",
            "",
            "expires: Sun, 06 Nov 1994 09:49:37 GMT\ncdn-cache-control: max-age=0",
            Err(Rule::NoFreshness),
        ),
        (
            "unless it is not well-formed (RFC 9213 §2.1)",
            "",
            "cache-control: no-store\ncdn-cache-control: max-age=60, &",
            Err(Rule::NoStore),
        ),
        ("or empty", "", "cache-control: max-age=60\ncdn-cache-control:", Ok(Rule::Explicit)),
        (
            "another target is none of ours",
            "",
            "cache-control: no-store\nother-cache-control: max-age=9",
            Err(Rule::NoStore),
        ),
        (
            "event streams never end",
            "",
            "cache-control: max-age=60\ncontent-type: text/event-stream; charset=utf-8",
            Err(Rule::EventStream),
        ),
        (
            "a part is not the whole (§3.3)",
            "",
            "206\ncache-control: max-age=60\ncontent-range: bytes 0-1/9",
            Err(Rule::Partial),
        ),
        (
            "Content-Range means nothing elsewhere (RFC 9110 §14.4)",
            "",
            "cache-control: max-age=60\ncontent-range: bytes 0-1/9",
            Ok(Rule::Explicit),
        ),
        ("304 has no content", "", "304\ncache-control: max-age=60", Err(Rule::Status)),
        ("credentials (§3.5)", "authorization: x", "cache-control: max-age=60", Err(Rule::Authorization)),
        ("credentials, public", "authorization: x", "cache-control: max-age=60, public", Ok(Rule::Explicit)),
        ("credentials, s-maxage", "authorization: x", "cache-control: s-maxage=60", Ok(Rule::Explicit)),
        (
            "credentials, must-revalidate",
            "authorization: x",
            "cache-control: max-age=60, must-revalidate",
            Ok(Rule::Explicit),
        ),
        ("heuristic freshness (§4.2.2)", "", lm, Ok(Rule::Heuristic)),
        ("never for a request with a cookie", "cookie: a=b", lm, Err(Rule::NoHeuristic)),
        (
            "never for one with credentials",
            "authorization: x",
            &format!("cache-control: public\n{lm}"),
            Err(Rule::NoHeuristic),
        ),
        ("only for statuses that allow it", "", &format!("302\n{lm}"), Err(Rule::NoFreshness)),
        ("no-cache with a validator", "", "cache-control: no-cache\netag: \"a\"", Ok(Rule::Explicit)),
        ("no-cache without one", "", "cache-control: no-cache", Err(Rule::NoValidator)),
        ("stale on arrival, nothing to validate with", "", "cache-control: max-age=0", Err(Rule::NoFreshness)),
        ("stale on arrival with a validator", "", "cache-control: max-age=0\netag: \"a\"", Ok(Rule::Explicit)),
        ("stale on arrival by Age", "", "cache-control: max-age=60\nage: 120", Err(Rule::NoFreshness)),
        (
            "stale on arrival within a window",
            "",
            "cache-control: max-age=0, stale-while-revalidate=9",
            Ok(Rule::Explicit),
        ),
    ] {
        assert_eq!(verdict(request, response, &respect).map(|life| life.rule), expected, "{why}");
    }
}

#[test]
fn freshness_lifetime() {
    let date = "date: Sun, 06 Nov 1994 08:49:37 GMT";
    for (why, response, expected) in [
        ("s-maxage wins over max-age (§5.2.2.10)", "cache-control: max-age=1, s-maxage=9".to_owned(), 9),
        ("whatever max-age says", "cache-control: max-age=soon, s-maxage=9".to_owned(), 9),
        (
            "a targeted max-age wins (RFC 9213 §2.2)",
            "cache-control: s-maxage=1\ncdn-cache-control: max-age=9".to_owned(),
            9,
        ),
        ("a weekday that does not fit", format!("{date}\nexpires: Mon, 06 Nov 1994 08:50:37 gmt"), 60),
        ("max-age wins over Expires (§5.3)", "cache-control: max-age=5\nexpires: 0".to_owned(), 5),
        ("Expires minus Date (§4.2.1)", format!("{date}\nexpires: Sun, 06 Nov 1994 08:50:37 GMT"), 60),
        ("a date in an old form", format!("{date}\nexpires: Sunday, 06-Nov-94 08:50:37 GMT"), 60),
        ("the most restrictive of two (§4.2.1)", "cache-control: max-age=60, max-age=7".to_owned(), 7),
        ("a tenth of its age (§4.2.2)", "last-modified: Sun, 06 Nov 1994 08:32:57 GMT".to_owned(), 100),
        ("at most a day", "last-modified: Thu, 06 Nov 1980 08:32:57 GMT".to_owned(), DAY),
    ] {
        let life = verdict("", &response, &Policy::default()).unwrap_or_else(|rule| panic!("{why}: {rule:?}"));
        assert_eq!(life.lifetime.as_secs(), expected, "{why}");
    }
    for broken in [
        "expires: soon",
        "expires: 0",
        "expires: Sun, 06 Nov 1994 08:50:37 GMT\nexpires: 0",
        "cache-control: max-age=x",
    ] {
        let life = verdict("", &format!("{date}\netag: \"a\"\n{broken}"), &Policy::default()).unwrap();
        assert_eq!(life.lifetime, Duration::ZERO, "{broken} means stale");
    }
}

#[test]
fn age_on_arrival() {
    let at = Arrival { delay: Duration::from_secs(2), ..arrival() };
    for (why, response, expected) in [
        ("the Age it came with, plus our wait (§4.2.3)", "age: 30", 32),
        ("only our wait", "", 2),
        ("the apparent age, if that is more", "date: Sun, 06 Nov 1994 08:48:37 GMT\nage: 30", 60),
        ("a date ahead of us", "date: Sun, 06 Nov 1994 09:49:37 GMT", 2),
        ("the first of two lines (§5.1)", "age: 5\nage: 9", 7),
        ("the first of two members (§5.1)", "age: 9, 5", 11),
        ("not even the number before what is none", "age: 9;x=1", 2),
        ("no number", "age: old", 2),
    ] {
        let response = head(&format!("cache-control: max-age=600\n{response}"));
        let at = Arrival { age: said_age(&response.headers), ..at };
        let life = judge(&fields(""), &response, &Policy::default(), at).unwrap();
        assert_eq!(life.age(at.now).as_secs(), expected, "{why}");
    }
}

#[test]
fn an_age_has_a_largest_one() {
    assert_eq!(said_age(&fields("age: 99999999999999999999")).as_secs(), 2_147_483_648, "§1.2.2");
}

#[test]
fn stale_windows() {
    let grants = Policy {
        stale_while_revalidate: Duration::from_secs(7),
        stale_if_error: Duration::from_secs(8),
        ..Policy::default()
    };
    for (why, response, policy, expected) in [
        (
            "as the origin says (RFC 5861)",
            "max-age=1, stale-while-revalidate=60, stale-if-error=90",
            &Policy::default(),
            (60, 90),
        ),
        ("nothing by default", "max-age=1", &Policy::default(), (0, 0)),
        ("a grant of the operator", "max-age=1", &grants, (7, 8)),
        ("the origin's word comes first", "max-age=1, stale-if-error=0", &grants, (7, 0)),
        ("as Next.js sends it", "s-maxage=60, stale-while-revalidate=600", &Policy::default(), (600, 0)),
        ("s-maxage alone forbids it (§5.2.2.10)", "s-maxage=60", &grants, (0, 0)),
        ("must-revalidate (§5.2.2.2)", "max-age=1, must-revalidate, stale-while-revalidate=60", &grants, (0, 0)),
        ("proxy-revalidate (§5.2.2.8)", "max-age=1, proxy-revalidate, stale-if-error=60", &grants, (0, 0)),
        ("no-cache (§5.2.2.4)", "no-cache, stale-if-error=60", &grants, (0, 0)),
    ] {
        let life = verdict("", &format!("cache-control: {response}\netag: \"a\""), policy).unwrap();
        assert_eq!((life.stale_while_revalidate.as_secs(), life.stale_if_error.as_secs()), expected, "{why}");
    }
}

#[test]
fn force_stores_by_ttl() {
    let ttl = Ttl { any: None, by_status: [(200, Duration::from_secs(60)), (404, Duration::from_secs(5))].into() };
    let force = Policy { force: true, ttl, ..Policy::default() };
    for (why, response, expected) in [
        ("whatever Cache-Control says", "cache-control: no-store, private\nexpires: 0", Ok(60)),
        ("by status", "404", Ok(5)),
        ("a status that is not listed", "500", Err(Rule::Status)),
        ("a cookie is still somebody's", "set-cookie: a=b", Err(Rule::SetCookie)),
        ("Vary: * still cannot be matched", "vary: *", Err(Rule::VaryStar)),
        ("an event stream still has no end", "content-type: text/event-stream", Err(Rule::EventStream)),
        ("a part is still no whole", "206\ncontent-range: bytes 0-1/9", Err(Rule::Partial)),
    ] {
        assert_eq!(verdict("", response, &force).map(|life| life.lifetime.as_secs()), expected, "{why}");
    }
    let strip = Policy { strip_set_cookie: true, ..force };
    assert!(verdict("", "set-cookie: a=b", &strip).is_ok());
    let any = Some(Duration::from_secs(60));
    let all = Policy { force: true, ttl: Ttl { any, by_status: BTreeMap::new() }, ..Policy::default() };
    let some = Policy { ttl: Ttl { any, by_status: [(400, Duration::from_secs(5))].into() }, ..all.clone() };
    for (status, policy, expected) in [
        ("404", &all, Ok(60)),
        ("500", &all, Ok(60)),
        ("400", &all, Err(Rule::RequestFault)),
        ("431", &all, Err(Rule::RequestFault)),
        ("400", &some, Ok(5)),
        ("431", &some, Err(Rule::RequestFault)),
    ] {
        assert_eq!(verdict("", status, policy).map(|life| life.lifetime.as_secs()), expected, "{status}");
    }
}

#[test]
fn which_requests_the_cache_looks_at() {
    let force = Policy { force: true, ..Policy::default() };
    let ignore = Policy { ignore_cookies: true, ..force.clone() };
    let respect = Policy::default();
    let deaf = Policy { ignore_client_directives: true, ..Policy::default() };
    for (method, lines, content, policy, expected) in [
        ("GET", "", false, &respect, Ok(())),
        ("HEAD", "cookie: a=b", false, &respect, Ok(())),
        ("GET", "authorization: x", false, &respect, Ok(())),
        ("POST", "", true, &respect, Err((Forward::Method, Rule::Method))),
        ("OPTIONS", "", false, &respect, Err((Forward::Method, Rule::Method))),
        ("GET", "", true, &respect, Err((Forward::Bypass, Rule::RequestContent))),
        ("GET", "upgrade: websocket", false, &respect, Err((Forward::Bypass, Rule::Upgrade))),
        ("GET", "cache-control: no-store", false, &respect, Err((Forward::Request, Rule::RequestNoStore))),
        ("GET", "cache-control: no-store", false, &force, Ok(())),
        ("GET", "cache-control: no-store", false, &deaf, Ok(())),
        ("GET", "cookie: a=b", false, &force, Err((Forward::Bypass, Rule::Cookie))),
        ("GET", "cookie: a=b", false, &ignore, Ok(())),
        ("GET", "authorization: x", false, &ignore, Err((Forward::Bypass, Rule::Authorization))),
    ] {
        let mut request = RequestHeader::build(method, b"/", None).unwrap();
        for (name, value) in &fields(lines) {
            request.append_header(name, value).unwrap();
        }
        assert_eq!(admit(&request, content, policy), expected, "{method} {lines}");
    }
}

#[test]
fn reuse_of_what_is_stored() {
    let at = arrival();
    let secs = Duration::from_secs;
    let came = at.now.after(secs(100));
    let stored = |cc: &str| verdict("", &format!("cache-control: {cc}\netag: \"a\""), &Policy::default()).unwrap();
    for (why, request, response, after, expected) in [
        ("fresh", "", "max-age=60", 30, Reuse::Fresh),
        ("stale from the second its lifetime is over (§4.2)", "", "max-age=60", 60, Reuse::Stale),
        ("no-cache is never fresh (§5.2.2.4)", "", "no-cache, max-age=60", 1, Reuse::Validate),
        ("the client insists (§5.2.1.4)", "cache-control: no-cache", "max-age=60", 1, Reuse::Validate),
        ("an old client insists (§5.4)", "pragma: no-cache", "max-age=60", 1, Reuse::Validate),
        ("max-age of the request (§5.2.1.1)", "cache-control: max-age=5", "max-age=60", 6, Reuse::Validate),
        ("min-fresh (§5.2.1.3)", "cache-control: min-fresh=40", "max-age=60", 30, Reuse::Validate),
        ("max-stale (§5.2.1.2)", "cache-control: max-stale", "max-age=60", 90, Reuse::Accepted),
        ("max-stale, so much", "cache-control: max-stale=30", "max-age=60", 90, Reuse::Accepted),
        ("max-stale, not so much", "cache-control: max-stale=29", "max-age=60", 90, Reuse::Stale),
        ("max-stale of what is fresh", "cache-control: max-stale", "max-age=60", 30, Reuse::Fresh),
        (
            "max-stale against must-revalidate (§5.2.2.2)",
            "cache-control: max-stale",
            "max-age=60, must-revalidate",
            90,
            Reuse::Stale,
        ),
        ("max-stale against s-maxage (§5.2.2.10)", "cache-control: max-stale", "s-maxage=60", 90, Reuse::Stale),
        (
            "max-stale against no-cache (§5.2.2.4)",
            "cache-control: max-stale",
            "no-cache, max-age=60",
            90,
            Reuse::Validate,
        ),
        (
            "Pragma counts only without Cache-Control (§5.4)",
            "pragma: no-cache\ncache-control: max-stale",
            "max-age=60",
            1,
            Reuse::Fresh,
        ),
        ("credentials (§3.5)", "authorization: x", "max-age=60", 1, Reuse::NotForThis),
        ("credentials, public", "authorization: x", "max-age=60, public", 1, Reuse::Fresh),
    ] {
        let mut life = stored(response);
        life.received = came.before(secs(1));
        life.born = came;
        let now = came.after(secs(after));
        assert_eq!(reuse(&fields(request), &life, &Policy::default(), came, now), expected, "{why}");
    }
    let deaf = Policy { ignore_client_directives: true, ..Policy::default() };
    for (why, request, after, expected) in [
        ("no-cache has no say", "cache-control: no-cache", 1, Reuse::Fresh),
        ("nor has Pragma", "pragma: no-cache", 1, Reuse::Fresh),
        ("nor max-age", "cache-control: max-age=0", 30, Reuse::Fresh),
        ("nor max-stale", "cache-control: max-stale", 90, Reuse::Stale),
        ("credentials have", "authorization: x", 1, Reuse::NotForThis),
    ] {
        let mut life = stored("max-age=60");
        (life.received, life.born) = (came.before(secs(1)), came);
        assert_eq!(reuse(&fields(request), &life, &deaf, came, came.after(secs(after))), expected, "{why}");
    }
    assert!(only_if_cached(&fields("cache-control: only-if-cached"), &Policy::default()), "§5.2.1.7");
    assert!(!only_if_cached(&fields("cache-control: only-if-cached"), &deaf));
    let ttl = Ttl { any: Some(secs(60)), ..Ttl::default() };
    let forced = Policy { force: true, ttl, ..Policy::default() };
    let mut life = verdict("", "cache-control: private", &forced).unwrap();
    (life.received, life.born) = (came.before(secs(1)), came);
    assert_eq!(reuse(&fields(""), &life, &forced, came, came), Reuse::Fresh);
    assert_eq!(reuse(&fields(""), &life, &Policy::default(), came, came), Reuse::Outdated, "force was taken back");
    let life = stored("no-cache");
    assert_eq!(
        reuse(&fields(""), &life, &Policy::default(), life.received, came),
        Reuse::Collapsed,
        "what arrived after the request came is as good as an answer of its own"
    );
}

#[test]
fn unsafe_methods_invalidate_when_they_succeed() {
    for (method, status, expected) in [
        (Method::POST, 200, true),
        (Method::PUT, 204, true),
        (Method::DELETE, 303, true),
        (Method::PATCH, 200, true),
        (Method::from_bytes(b"FROB").unwrap(), 200, true),
        (Method::POST, 404, false),
        (Method::POST, 500, false),
        (Method::GET, 200, false),
        (Method::OPTIONS, 200, false),
    ] {
        assert_eq!(invalidates(&method, http::StatusCode::from_u16(status).unwrap()), expected, "{method} {status}");
    }
}

#[test]
fn cookies_that_are_the_same_for_everybody() {
    let shared = Policy { shared_cookies: vec!["lang".into(), "theme".into()], ..Policy::default() };
    let force =
        Policy { force: true, ttl: Ttl { any: Some(Duration::from_secs(9)), ..Ttl::default() }, ..shared.clone() };
    for (set, stored) in [
        ("", true),
        ("set-cookie: lang=de; Path=/", true),
        ("set-cookie: lang=de\nset-cookie: theme=dark", true),
        ("set-cookie: lang=de\nset-cookie: sid=1", false),
        ("set-cookie: LANG=de", false),
        ("set-cookie: sid=1; lang=de", false),
        ("set-cookie: lang", false),
    ] {
        for policy in [&shared, &force] {
            let verdict = verdict("", &format!("cache-control: max-age=60\n{set}"), policy).map(|life| life.rule);
            assert_eq!(verdict.is_ok(), stored, "{set}");
            assert!(stored || verdict == Err(Rule::SetCookie), "{set}");
        }
    }
}

#[test]
fn what_is_for_the_first_client_alone() {
    let of = |value: &str| withheld(&fields(&format!("cache-control: {value}")), &Policy::default());
    assert_eq!(of("private=\"X-User, set-cookie\""), ["x-user", "set-cookie"]);
    assert_eq!(of("no-cache=\"x-user\""), ["x-user"]);
    assert_eq!(of("private"), Vec::<HeaderName>::new());
    assert_eq!(of("private=\"vary, content-type, etag, x\""), ["x"], "without these it would be another response");
    let targeted = fields("cache-control: private=\"x\"\ncdn-cache-control: max-age=1");
    assert_eq!(withheld(&targeted, &Policy::default()), Vec::<HeaderName>::new());
    let force = Policy { force: true, ..Policy::default() };
    assert_eq!(withheld(&fields("cache-control: private=\"x\""), &force), Vec::<HeaderName>::new());
}

#[test]
fn targeted_fields_in_the_order_of_the_list() {
    let list = |names: &[&str]| Policy {
        targeted: names.iter().map(|name| name.parse().unwrap()).collect(),
        ..Policy::default()
    };
    let response = "cache-control: max-age=1\ncdn-cache-control: max-age=2\nours-cache-control: max-age=3";
    for (names, expected) in [
        (&["ours-cache-control", "cdn-cache-control"][..], 3),
        (&["cdn-cache-control", "ours-cache-control"], 2),
        (&["absent", "cdn-cache-control"], 2),
        (&[], 1),
    ] {
        assert_eq!(verdict("", response, &list(names)).unwrap().lifetime.as_secs(), expected, "{names:?}");
    }
}

#[test]
fn a_304_speaks_of_what_is_stored_or_of_something_else() {
    for (why, not_modified, stored, expected) in [
        ("the same tag (§4.3.4)", "etag: \"a\"", "etag: \"a\"", Ok(())),
        ("weak comparison is enough", "etag: W/\"a\"", "etag: \"a\"", Ok(())),
        ("another tag", "etag: \"b\"", "etag: \"a\"", Err(Rule::WrongValidator)),
        ("a tag where there was none", "etag: \"a\"", "last-modified: x", Err(Rule::WrongValidator)),
        ("nothing said", "x: y", "etag: \"a\"", Ok(())),
        ("the same date", "last-modified: x", "last-modified: x", Ok(())),
        ("another date", "last-modified: y", "last-modified: x", Err(Rule::WrongValidator)),
        ("the tag decides", "etag: \"a\"\nlast-modified: y", "etag: \"a\"\nlast-modified: x", Ok(())),
        ("chosen by the same fields", "vary: B, a", "vary: a\nvary: b", Ok(())),
        ("chosen by fewer, as far as the 304 says", "vary: a", "vary: a, b", Ok(())),
        ("chosen by more", "vary: a, b", "vary: a", Err(Rule::VaryChanged)),
        ("chosen by more than fields", "vary: *", "vary: a", Err(Rule::VaryChanged)),
        ("nothing said about that", "x: y", "vary: a", Ok(())),
    ] {
        assert_eq!(validates(&fields(not_modified), &fields(stored)), expected, "{why}");
    }
}

#[test]
fn what_a_head_says_of_a_stored_response() {
    let stored = "etag: \"a\"\nlast-modified: x\ncontent-length: 5";
    for (why, response, expected) in [
        ("all the same (§4.3.5)", stored, false),
        ("nothing to compare", "x: y", false),
        ("another tag", "etag: \"b\"\ncontent-length: 5", true),
        ("another date", "last-modified: y", true),
        ("another length", "etag: \"a\"\ncontent-length: 6", true),
        ("a failure says nothing", "500\ncontent-length: 6", false),
        ("nor does a 410", "410\ncontent-length: 6", false),
    ] {
        assert_eq!(refutes(&head(response), &head(stored)), expected, "{why}");
    }
    assert!(!refutes(&head(stored), &head("404")));
}

#[test]
fn a_post_that_stands_for_a_get() {
    let target = "/a?b=1";
    for (why, response, expected) in [
        (
            "named by the whole (RFC 9110 §9.3.3)",
            "cache-control: max-age=60\ncontent-location: http://a.test/a?b=1",
            true,
        ),
        ("named by the path", "cache-control: max-age=60\ncontent-location: /a?b=1", true),
        ("Expires is explicit too", "expires: Sun, 06 Nov 1994 09:49:37 GMT\ncontent-location: /a?b=1", true),
        ("another place", "cache-control: max-age=60\ncontent-location: /a", false),
        ("another host", "cache-control: max-age=60\ncontent-location: http://b.test/a?b=1", false),
        ("two places", "cache-control: max-age=60\ncontent-location: /a?b=1\ncontent-location: /a?b=1", false),
        ("no place", "cache-control: max-age=60", false),
        ("no explicit freshness", "last-modified: Thu, 06 Nov 1980 08:32:57 GMT\ncontent-location: /a?b=1", false),
        ("only after validation", "cache-control: no-cache\netag: \"a\"\ncontent-location: /a?b=1", false),
        ("another status", "201\ncache-control: max-age=60\ncontent-location: /a?b=1", false),
    ] {
        let policy = Policy::default();
        let life = verdict("", response, &policy).ok();
        let stands = life.is_some_and(|life| stands_for_get(&head(response), &life, "a.test", target, &policy));
        assert_eq!(stands, expected, "{why}");
    }
}
