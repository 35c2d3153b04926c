//! The leak guard: what would make one client's answer everybody's, or a stranger's words part of what is stored.
//!
//! Other caches store such responses, or are made to by a setting; here they are refused, and what was refused
//! is counted by its reason. What a client says in fields that the key does not know is taken off before the
//! key is made (`fields::forwarded` has the list), so only three things are left to look at when a response is to
//! be stored: the path, fields that ask a framework for another form of the answer, and fields that say for
//! whom a proxy in front asks.

use std::time::SystemTime;

use http::HeaderName;
use pingora::http::{RequestHeader, ResponseHeader};

use super::policy::{self, Arrival, Life, Policy};
use super::rule::Rule;
use crate::fields::forwarded::{Says, says};
use crate::fields::{path, vary};

/// The reason to count when a client's field was taken off, if it could have misled an origin.
pub fn of_field(says: Says) -> Option<Rule> {
    match says {
        Says::Place | Says::Target => Some(Rule::OtherTarget),
        Says::Method => Some(Rule::MethodOverride),
        Says::Client | Says::Form | Says::Person => None,
    }
}

/// Whether this response may be stored, and for how long: what the policy says, unless there is a doubt.
///
/// `chosen` are the fields that the route has put into the key.
pub fn judge(
    request: &RequestHeader,
    response: &ResponseHeader,
    policy: &Policy,
    chosen: &[HeaderName],
    at: Arrival,
) -> Result<Life, Rule> {
    let life = policy::judge(&request.headers, response, policy, at)?;
    doubt(request, response, &life, chosen).map_or(Ok(life), Err)
}

/// Why a response must not be stored although the policy would: asked at each miss, never at a hit.
fn doubt(request: &RequestHeader, response: &ResponseHeader, life: &Life, chosen: &[HeaderName]) -> Option<Rule> {
    let target = request.raw_path();
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    // The key has the path byte for byte, so what the origin says of it holds for who asks in the same words. Where
    // it said nothing, the route was chosen by one reading and the content by another, perhaps.
    if life.rule != Rule::Explicit && !std::str::from_utf8(path).is_ok_and(|path| !path::is_ambiguous(path)) {
        return Some(Rule::AmbiguousPath);
    }
    let unkeyed = |name: &HeaderName| {
        let counts = match says(name.as_str()) {
            // There the path says it already, and Next.js's own pages always send both.
            Some(Says::Form) => !(name == "x-nextjs-data" && path.starts_with(b"/_next/data/")),
            Some(Says::Person) => !life.authorized,
            _ => false,
        };
        counts && !chosen.contains(name)
    };
    let mut names = request.headers.keys().filter(|name| unkeyed(name)).peekable();
    names.peek()?;
    let nominated = vary::nominated(&response.headers).unwrap_or_default();
    names.any(|name| !nominated.contains(name)).then_some(Rule::UnkeyedField)
}

/// Whether a cache that does not know this rule would have stored the response and given it to others.
pub fn would_have_leaked(rule: Rule, response: &ResponseHeader, policy: &Policy, wall: SystemTime) -> bool {
    let guards = matches!(
        rule,
        Rule::SetCookie
            | Rule::Private
            | Rule::Authorization
            | Rule::Cookie
            | Rule::NoHeuristic
            | Rule::VaryStar
            | Rule::RequestContent
            | Rule::UnkeyedField
            | Rule::AmbiguousPath
    );
    rule == Rule::RequestFault || guards && policy::would_be_fresh(response, policy, wall)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::metrics::LEAKS;

    const DOUBTS: [Rule; 2] = [Rule::UnkeyedField, Rule::AmbiguousPath];

    fn request(target: &str, lines: &[(&'static str, &str)]) -> RequestHeader {
        let mut head = RequestHeader::build("GET", target.as_bytes(), None).unwrap();
        for (name, value) in lines {
            head.append_header(*name, *value).unwrap();
        }
        head
    }

    fn response(lines: &[(&'static str, &str)]) -> ResponseHeader {
        let mut head = ResponseHeader::build(200, None).unwrap();
        for (name, value) in lines {
            head.append_header(*name, *value).unwrap();
        }
        head
    }

    #[test]
    fn what_is_doubted() {
        let plain = policy::a_minute();
        let explicit = Life { rule: Rule::Explicit, ..plain };
        let for_all = Life { authorized: true, ..explicit };
        let key = ["x-nextjs-data".parse().unwrap()];
        let (user, data) = (("x-forwarded-user", "ann"), ("x-nextjs-data", "1"));
        for (why, request, vary, life, chosen, expected) in [
            ("an odd path by force", request("/a;x.css", &[]), "", plain, &[][..], Some(Rule::AmbiguousPath)),
            ("an odd path of which the origin speaks", request("/a;x.css", &[]), "", explicit, &[], None),
            ("an odd query", request("/a?b=//;%2f..", &[]), "", plain, &[], None),
            ("a plain path by force", request("/a/b.css", &[]), "", plain, &[], None),
            ("JSON in place of a page", request("/news", &[data]), "", explicit, &[], Some(Rule::UnkeyedField)),
            ("the path asks for JSON", request("/_next/data/x/news.json", &[data]), "", explicit, &[], None),
            ("the response varies by it", request("/news", &[data]), "X-NextJS-Data", explicit, &[], None),
            ("the route varies by it", request("/news", &[data]), "", explicit, &key, None),
            ("a page for somebody", request("/me", &[user]), "", explicit, &[], Some(Rule::UnkeyedField)),
            ("a page for somebody, by force", request("/me", &[user]), "", plain, &[], Some(Rule::UnkeyedField)),
            ("the origin says that it is for all", request("/me", &[user]), "", for_all, &[], None),
            (
                "two fields, one of them keyed",
                request("/", &[user, data]),
                "x-nextjs-data",
                explicit,
                &[],
                Some(Rule::UnkeyedField),
            ),
            ("other fields are the origin's business", request("/", &[("x-custom", "1")]), "", explicit, &[], None),
        ] {
            assert_eq!(doubt(&request, &response(&[("vary", vary)]), &life, chosen), expected, "{why}");
        }
    }

    #[test]
    fn what_others_would_have_stored() {
        let wall = SystemTime::now();
        let respect = Policy::default();
        let ttl = policy::Ttl { any: Some(Duration::from_secs(60)), ..policy::Ttl::default() };
        let force = Policy { force: true, ttl, ..Policy::default() };
        let fresh = response(&[("cache-control", "max-age=60"), ("set-cookie", "a=b")]);
        let silent = response(&[("set-cookie", "a=b")]);
        let guessed = response(&[("last-modified", "Sat, 05 Nov 1994 08:49:37 GMT")]);
        let forbidden = response(&[("cache-control", "no-store, max-age=60")]);
        let over = response(&[("cache-control", "max-age=0")]);
        for (why, rule, response, policy, expected) in [
            ("it says how long", Rule::SetCookie, &fresh, &respect, true),
            ("nobody stores what says nothing", Rule::SetCookie, &silent, &respect, false),
            ("by force everything is stored", Rule::SetCookie, &silent, &force, true),
            ("others guess", Rule::NoHeuristic, &guessed, &respect, true),
            ("no-store is heeded by all", Rule::SetCookie, &forbidden, &respect, false),
            ("stale from the start", Rule::Private, &over, &respect, false),
            ("one client's fault, for all", Rule::RequestFault, &silent, &force, true),
            ("not a matter of leaking", Rule::TooLarge, &fresh, &respect, false),
        ] {
            assert_eq!(would_have_leaked(rule, response, policy, wall), expected, "{why}");
            assert!(!expected || LEAKS.contains(&rule.token()), "{why}");
        }
        for rule in DOUBTS.into_iter().chain([Says::Place, Says::Target, Says::Method].into_iter().filter_map(of_field))
        {
            assert!(LEAKS.contains(&rule.token()), "{rule:?} is counted");
        }
    }
}
