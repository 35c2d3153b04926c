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
        ("private with names", "", "cache-control: max-age=60, private=\"x\"", Err(Rule::Private)),
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
        ("a part in disguise", "", "cache-control: max-age=60\ncontent-range: bytes 0-1/9", Err(Rule::Partial)),
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
        ("the larger of two", "age: 5\nage: 9", 11),
        ("no number", "age: old", 2),
    ] {
        let response = head(&format!("cache-control: max-age=600\n{response}"));
        let at = Arrival { age: said_age(&response.headers), ..at };
        let life = judge(&fields(""), &response, &Policy::default(), at).unwrap();
        assert_eq!(life.age(at.now).as_secs(), expected, "{why}");
    }
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
}

#[test]
fn which_requests_the_cache_looks_at() {
    let force = Policy { force: true, ..Policy::default() };
    let ignore = Policy { ignore_cookies: true, ..force.clone() };
    let respect = Policy::default();
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
        ("credentials (§3.5)", "authorization: x", "max-age=60", 1, Reuse::NotForThis),
        ("credentials, public", "authorization: x", "max-age=60, public", 1, Reuse::Fresh),
    ] {
        let mut life = stored(response);
        life.received = came.before(secs(1));
        life.born = came;
        let now = came.after(secs(after));
        assert_eq!(reuse(&fields(request), &life, &Policy::default(), came, now), expected, "{why}");
    }
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
