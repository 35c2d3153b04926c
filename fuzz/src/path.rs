//! Paths and routes: the normal form is one, and the table finds what a walk down the list finds.

use std::cell::OnceCell;
use std::sync::Arc;

use headwall::clock::Clock;
use headwall::config::{self, Lasting, Parts, Plan};
use headwall::fields::path::{has_dot_segments, is_ambiguous, normalise};
use headwall::route::Conditions;
use http::{HeaderMap, HeaderValue, Method};

/// Routes whose conditions overlap.
const ROUTES: &str = "
listen: ['127.0.0.1:8080']
routes:
  - { match: { path: /a/exact }, to: { respond: { status: 200 } } }
  - { match: { host: b.test, prefix: /a/b }, to: { respond: { status: 200 } } }
  - { match: { prefix: /a/b/ }, to: { respond: { status: 200 } } }
  - { match: { regex: '^/(x|y)/[0-9]+$' }, to: { respond: { status: 200 } } }
  - { match: { prefix: /a, methods: [POST, PUT] }, to: { respond: { status: 200 } } }
  - { match: { prefix: /a, headers: { X-Kind: one } }, to: { respond: { status: 200 } } }
  - { match: { host: a.test, path: / }, to: { respond: { status: 200 } } }
  - { match: { host: a.test }, to: { respond: { status: 200 } } }
  - { match: { prefix: /a }, to: { respond: { status: 200 } } }
  - { match: { regex: '[.]css$' }, to: { respond: { status: 200 } } }
  - { match: { path: /x }, to: { respond: { status: 200 } } }
  - { match: { prefix: /x/ }, to: { respond: { status: 200 } } }
";

thread_local! {
    static PLAN: OnceCell<Plan> = const { OnceCell::new() };
}

fn plan() -> Plan {
    let (lasting, clock) = (Lasting::default(), Clock::system());
    config::parse("routes.yaml", ROUTES, &Parts { plugins: &[], lasting: &lasting, clock: &clock })
        .unwrap_or_else(|error| panic!("{error}"))
}

/// One byte chooses method, host and field, the rest is the path.
pub fn run(data: &[u8]) {
    let Some((choice, path)) = data.split_first() else { return };
    let Ok(path) = std::str::from_utf8(path) else { return };
    // The guard lets nothing else through.
    if !path.starts_with('/') {
        return;
    }
    forms(path);
    PLAN.with(|known| routes(known.get_or_init(plan), *choice, path));
}

/// A path, decoded where that changes nothing, and with what is left of its segments.
fn reference(path: &str) -> String {
    let mut decoded = String::new();
    let mut rest = path;
    while let Some(next) = rest.chars().next() {
        let escaped = rest
            .strip_prefix('%')
            .and_then(|after| after.get(..2))
            .filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
        let byte = escaped.and_then(|hex| u8::from_str_radix(hex, 16).ok()).map(char::from);
        let plain = byte.filter(|byte| byte.is_ascii_alphanumeric() || "-._~".contains(*byte));
        decoded.push(plain.unwrap_or(next));
        rest = &rest[plain.map_or(next.len_utf8(), |_| 3)..];
    }
    let mut kept = Vec::new();
    for segment in decoded.split('/') {
        match segment {
            "" | "." => {}
            ".." => _ = kept.pop(),
            other => kept.push(other),
        }
    }
    let directory = ["", ".", ".."].contains(&decoded.rsplit('/').next().unwrap_or_default());
    let end = if directory && !kept.is_empty() { "/" } else { "" };
    format!("/{}{end}", kept.join("/"))
}

fn forms(path: &str) {
    let normal = normalise(path);
    assert_eq!(normal, reference(path), "{path:?}");
    assert!(normal.starts_with('/') && !normal.contains("//"), "{path:?} became {normal:?}");
    assert!(!normal.split('/').any(|segment| matches!(segment, "." | "..")), "{path:?} became {normal:?}");
    // An escape that is none may become one.
    let hex = |at: usize| path.as_bytes().get(at).is_some_and(u8::is_ascii_hexdigit);
    if path.match_indices('%').all(|(at, _)| hex(at + 1) && hex(at + 2)) {
        assert_eq!(normalise(&normal), normal, "{path:?} twice");
    }
    if !is_ambiguous(path) {
        assert!(!has_dot_segments(path), "{path:?}");
        assert_eq!(normal.split('/').count(), path.split('/').count(), "{path:?} has as many segments as {normal:?}");
    }
}

/// Whether a route's conditions hold, looked at one by one.
fn holds(conditions: &Conditions, host: &str, path: &str, method: &Method, fields: &HeaderMap) -> bool {
    let below = |prefix: &str| match prefix.strip_suffix('/') {
        Some(_) => path.starts_with(prefix),
        None => path == prefix || path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/')),
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let matches = |regex: &str| match regex {
        "[.]css$" => path.ends_with(".css"),
        _ => ["/x/", "/y/"].iter().any(|start| path.strip_prefix(start).is_some_and(digits)),
    };
    conditions.host.as_deref().is_none_or(|wanted| wanted == host)
        && conditions.path.as_deref().is_none_or(|wanted| wanted == path)
        && conditions.prefix.as_deref().is_none_or(below)
        && conditions.regex.as_deref().is_none_or(matches)
        && (conditions.methods.is_empty() || conditions.methods.contains(method))
        && conditions.headers.iter().all(|(name, value)| fields.get(name) == Some(value))
}

fn routes(plan: &Plan, choice: u8, path: &str) {
    let method = if choice & 1 == 0 { Method::GET } else { Method::POST };
    let host = ["a.test", "b.test", "c.test", ""][usize::from(choice >> 1 & 3)];
    let mut fields = HeaderMap::new();
    if choice & 8 != 0 {
        fields.insert("x-kind", HeaderValue::from_static("one"));
    }
    let first =
        |path: &str| plan.router.routes.iter().position(|route| holds(&route.conditions, host, path, &method, &fields));
    let (raw, normal) = (first(path), first(&normalise(path)));
    match plan.router.find(host, path, &method, &fields) {
        Err(_) => assert_ne!(raw, normal, "{path:?} is said to be ambiguous"),
        Ok(found) => {
            let number =
                found.map(|found| plan.router.routes.iter().position(|route| Arc::ptr_eq(route, found)).unwrap());
            assert_eq!((number, number), (raw, normal), "{path:?} on {host}");
        }
    }
}
