//! What was decided about a request, for who asks why: each decision with its rule, the sentence that it stands on,
//! and what to change.

use http::Method;
use http::header::{CONTENT_LENGTH, RANGE};
use pingora::http::ResponseHeader;
use pingora::proxy::Session;

use super::context::Ctx;
use super::explain::{Explain, seconds};
use super::{account, serving};
use crate::cache::leak;
use crate::cache::rule::Rule;
use crate::fields::explained::Member;
use crate::fields::forwarded::says;

/// That the app did not answer, where nothing stands in for it.
pub fn failed(explain: &Explain, session: &Session, head: &ResponseHeader, ctx: &Ctx) -> Option<Member> {
    let notes = &ctx.cache;
    let ours = notes.declined.is_some() || notes.composed.is_some() || serving::from_store(session);
    let failed = ctx.upstream().is_some() && explain.origin.is_none() && !ours;
    let why = match head.status.as_u16() {
        502 => "the app was not reached, or broke off",
        504 => "the app did not answer in time",
        _ => return None,
    };
    failed.then(|| Member::new("decision").word("to", "fail").word("rule", "no-answer").text("why", why))
}

/// Each decision with its rule, the sentence that it stands on, and what to change.
pub fn all(explain: &Explain, ctx: &Ctx, session: &Session) -> Vec<Member> {
    let decision = |to: &str, rule: Rule| decision(to, rule, explain, ctx);
    let notes = &ctx.cache;
    let mut members = Vec::new();
    let mut seen = Vec::new();
    for rule in notes.kept_back.iter().filter_map(|name| says(name.as_str()).and_then(leak::of_field)) {
        if !seen.contains(&rule) {
            members.push(decision("taken-off", rule));
            seen.push(rule);
        }
    }
    if let Some(declined) = notes.declined {
        let why = explain.refused.unwrap_or_else(|| why(declined));
        members.push(Member::new("decision").word("to", "decline").word("rule", declined).text("why", why));
    }
    let found = found(ctx, session);
    if let Some((rule, section, why)) = found {
        let section = section.replace('§', "Section ");
        members.push(
            Member::new("decision").word("to", "reuse").word("rule", rule).text("section", section).text("why", why),
        );
    }
    match (account::passed_by(ctx), notes.refused, account::kept_by(ctx)) {
        (Some(rule), ..) => members.push(decision("pass-by", rule)),
        (_, Some(rule), _) => members.push(decision("not-store", rule)),
        (_, _, Some(rule)) => {
            let there = serving::from_store(session) || ctx.exchange.cache.is_some_and(|status| status.hit);
            members.push(decision(if there { "keep" } else { "store" }, rule));
        }
        _ => {}
    }
    members
}

fn decision(to: &str, rule: Rule, explain: &Explain, ctx: &Ctx) -> Member {
    let advice = rule.advice();
    let member = Member::new("decision").word("to", to).word("rule", rule.token());
    let member = member.text("section", rule.section().replace('§', "Section ")).text("why", rule.meaning());
    let (mut app, mut file) = (advice.app, advice.file);
    let force = ctx.route_cache().is_some_and(|cache| cache.policy.force);
    match rule {
        // Where the app has no say, and where it is force that is in the way.
        Rule::Authorization if force => app = "",
        Rule::Authorization => file = "",
        // By force nothing that the app says counts.
        Rule::AmbiguousPath if force => app = "link to it by a plain path",
        // Only by force a `ttl` counts.
        Rule::Status if !force => file = "",
        Rule::TooLarge if explain.origin.as_ref().is_some_and(|head| head.headers.contains_key(CONTENT_LENGTH)) => {
            app = ""
        }
        // What the route has already need not be asked for.
        _ if force && file.contains("`mode: force`") => file = "",
        _ => {}
    }
    let member = match ctx.cache.life.filter(|_| matches!(to, "store" | "keep")) {
        Some(life) => member
            .number("lifetime", seconds(life.lifetime))
            .number("stale-while-revalidate", seconds(life.stale_while_revalidate))
            .number("stale-if-error", seconds(life.stale_if_error))
            .flag("validate", life.validate_always),
        None => member,
    };
    member.flag("would-have-leaked", ctx.cache.leak == Some(rule)).some("app", app).some("file", file)
}

fn why(declined: &str) -> &'static str {
    match declined {
        "plugin" => "a plugin answered; neither the store nor the app was asked",
        "purge" => "the method was PURGE: answered here, or refused",
        "refused" => "it was refused before a route was chosen",
        "only-if-cached" => "the request wanted an answer from the store alone, and there was none",
        _ => "it waited for another request's answer as long as it would have for its own",
    }
}

/// What became of a stored response that was found, with the sentence that it stands on.
fn found(ctx: &Ctx, session: &Session) -> Option<(&'static str, &'static str, &'static str)> {
    let notes = &ctx.cache;
    let from_store = serving::from_store(session);
    let request = session.req_header();
    let unasked = ctx.exchange.cache.is_some() && notes.passed_by.is_none();
    Some(match () {
        () if notes.composed.is_some() => ("parts", "RFC 9111 §3.4", "it is put together of parts"),
        () if notes.collapsed && from_store => {
            ("collapsed", "RFC 9111 §4", "it arrived meanwhile on behalf of another request")
        }
        () if notes.accepted => ("max-stale", "RFC 9111 §5.2.1.2", "it is stale, and the request accepts that"),
        () if notes.not_for_this && notes.found.is_none() => {
            ("credentials", "RFC 9111 §3.5", "something is stored, though not for requests with credentials")
        }
        () if notes.not_for_this => (
            "as-it-is",
            "RFC 9111 §4.3",
            "what is stored cannot be validated, so a HEAD, or a request for a part, goes to the app as it is",
        ),
        () if notes.failure.is_some() => {
            ("stale-if-error", "RFC 5861 §4", "the app failed, and what is stored may stand in")
        }
        () if notes.asked => (
            "validate",
            "RFC 9111 §5.2.1",
            "it is fresh, and the request wants the app to be asked whether it still holds",
        ),
        () if notes.stale && notes.found.as_ref().is_some_and(|found| found.life.validate_always) => {
            ("validate", "RFC 9111 §5.2.2.4", "it says `no-cache`, and the app was asked whether it still holds")
        }
        () if notes.stale && ctx.exchange.cache.is_some_and(|status| status.hit) => {
            ("stale-while-revalidate", "RFC 5861 §3", "it is stale, and is refreshed behind")
        }
        () if notes.stale => ("stale", "RFC 9111 §4.2.4", "it is stale, and the app was asked whether it still holds"),
        () if from_store => ("fresh", "RFC 9111 §4.2", "it is fresh"),
        () if notes.varied && notes.found.is_none() => {
            ("vary", "RFC 9111 §4.1", "something is stored, though not for these request fields")
        }
        () if notes.partly => {
            ("completed", "RFC 9111 §3.4", "parts of it are stored, and the app was asked for the rest")
        }
        () if unasked && request.method == Method::HEAD => {
            ("as-it-is", "RFC 9111 §3", "a HEAD goes to the app as it is and fills nothing")
        }
        () if unasked && request.headers.contains_key(RANGE) => (
            "as-it-is",
            "RFC 9111 §3.3",
            "a request for a part goes to the app as it is; a part that comes may be kept",
        ),
        () => return None,
    })
}
