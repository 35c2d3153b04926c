//! What leaves of what is stored: which part, in which coding, and what `Cache-Status` says of it.

use http::Method;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_RANGE, RANGE};
use pingora::cache::CachePhase;
use pingora::http::ResponseHeader;
use pingora::proxy::{RangeType, Session};

use super::caching::length;
use super::context::Ctx;
use super::parts::Composed;
use crate::cache::reading::Handler;
use crate::cache::rule::Rule;
use crate::clock::Clock;
use crate::exchange::ContentFilter;
use crate::fields::cache_status::{CacheStatus, Forward, ttl};
use crate::fields::{conditional, range};

/// Which parts of a stored response to send.
pub fn range(session: &Session, response: &mut ResponseHeader, ctx: &Ctx) -> RangeType {
    let request = session.req_header();
    let by_date = request.headers.get(IF_RANGE).is_some_and(|value| !value.as_bytes().ends_with(b"\""));
    if by_date && ctx.exchange.doubts_dates(response) {
        return RangeType::None;
    }
    let Some(value) = request.headers.get(RANGE).filter(|_| request.method == Method::GET && response.status == 200)
    else {
        return RangeType::None;
    };
    let Some(length) =
        length(&response.headers).filter(|_| conditional::if_range_holds(&request.headers, &response.headers))
    else {
        return RangeType::None;
    };
    match range::judge(value.as_bytes(), length) {
        range::Answer::Whole => RangeType::None,
        range::Answer::Parts => pingora::proxy::range_header_filter(request, response, Some(200)),
        range::Answer::Unsatisfiable => {
            unsatisfiable(response, length);
            RangeType::Invalid
        }
    }
}

/// Makes a 416 of a stored head (RFC 9110 §15.5.17).
pub fn unsatisfiable(response: &mut ResponseHeader, length: u64) {
    let _ = response.set_status(416);
    let _ = response.insert_header(CONTENT_RANGE, format!("bytes */{length}"));
    let _ = response.insert_header(CONTENT_LENGTH, 0);
    for name in [&CONTENT_TYPE, &ETAG] {
        response.remove_header(name);
    }
}

/// After a 304 for another response the engine has already put that one's tag and freshness on what is
/// stored; it leaves with its own.
pub fn restore(response: &mut ResponseHeader, ctx: &Ctx) {
    let (Some(Rule::WrongValidator), Some(found)) = (ctx.cache.refused, &ctx.cache.found) else { return };
    for name in ["cache-control", "cache-tag", "cdn-cache-control", "etag", "expires"] {
        response.remove_header(name);
        for value in found.response.headers.get_all(name) {
            let _ = response.append_header(name, value.clone());
        }
    }
}

/// What the cache did, in the words of RFC 9211.
pub fn status(session: &Session, ctx: &Ctx, clock: &Clock) -> CacheStatus {
    let notes = &ctx.cache;
    let missed = match notes.partly {
        true => Forward::Partial,
        false if notes.varied => Forward::VaryMiss,
        false => Forward::UriMiss,
    };
    let stale = if notes.asked { Forward::Request } else { Forward::Stale };
    let left = notes.life.map(|life| ttl(life.lifetime, life.age(clock.now())));
    let refused = notes.refused.map(Rule::token);
    if let Some(detail) = notes.declined {
        return CacheStatus { detail: Some(detail), ..CacheStatus::default() };
    }
    if let Some(composed) = notes.composed {
        let Composed { fetched, collapsed } = composed;
        return match fetched {
            true => CacheStatus { stored: !collapsed, collapsed, ..CacheStatus::forwarded(missed) },
            false => CacheStatus { hit: true, ttl: left, ..CacheStatus::default() },
        };
    }
    match session.cache.phase() {
        CachePhase::Hit if notes.accepted => {
            CacheStatus { hit: true, ttl: left, detail: Some("max-stale"), ..CacheStatus::default() }
        }
        CachePhase::Hit if notes.collapsed => CacheStatus { collapsed: true, ..CacheStatus::forwarded(missed) },
        CachePhase::Hit => CacheStatus { hit: true, ttl: left, ..CacheStatus::default() },
        CachePhase::Stale | CachePhase::StaleUpdating => match notes.failure {
            Some(0) => CacheStatus {
                ttl: left,
                detail: Some("stale-if-error"),
                forward_status: Some(502),
                ..CacheStatus::forwarded(stale)
            },
            Some(status) => CacheStatus {
                ttl: left,
                detail: Some("stale-if-error"),
                forward_status: Some(status),
                ..CacheStatus::forwarded(stale)
            },
            None => {
                CacheStatus { hit: true, ttl: left, detail: Some("stale-while-revalidate"), ..CacheStatus::default() }
            }
        },
        CachePhase::Miss => CacheStatus { stored: true, ..CacheStatus::forwarded(missed) },
        CachePhase::Expired => CacheStatus { stored: true, ..CacheStatus::forwarded(stale) },
        CachePhase::Revalidated => {
            CacheStatus { stored: true, forward_status: Some(304), ..CacheStatus::forwarded(stale) }
        }
        CachePhase::RevalidatedNoCache(_) => {
            CacheStatus { forward_status: Some(304), detail: refused, ..CacheStatus::forwarded(stale) }
        }
        _ => match notes.passed_by {
            Some((forward, _)) if notes.aside.is_some() => {
                CacheStatus { stored: true, ..CacheStatus::forwarded(forward) }
            }
            Some((forward, rule)) => CacheStatus { detail: Some(rule.token()), ..CacheStatus::forwarded(forward) },
            None => {
                let forward = if notes.stale || notes.asked { stale } else { missed };
                CacheStatus { stored: notes.taking.is_some(), detail: refused, ..CacheStatus::forwarded(forward) }
            }
        },
    }
}

/// Has what is stored read in this coding; says its length once it is known. `Err` gives the filter
/// back: what leaves is not a whole stored response.
pub fn recode(
    session: &mut Session,
    coding: &'static str,
    filter: Box<dyn ContentFilter>,
    head_only: bool,
) -> Result<Option<u64>, Box<dyn ContentFilter>> {
    match reader(session) {
        Some(handler) => handler.recode(coding, filter, head_only),
        None => Err(filter),
    }
}

/// Whether a coding of the content that leaves would be kept for others.
pub fn is_shared(session: &mut Session) -> bool {
    reader(session).is_some_and(|handler| handler.shared())
}

/// The head that a 304 stands for, if it is stored or on its way into the store.
pub fn unconditional(session: &mut Session, ctx: &Ctx) -> Option<ResponseHeader> {
    let filled = ctx.cache.fill.as_ref().map(|fill| &fill.head);
    let stored = reader(session).and_then(|handler| handler.head());
    let composed = ctx.cache.composed.and(ctx.cache.found.as_ref());
    stored.or(filled).or(composed).map(|head| head.response.clone())
}

/// Sends nothing of what is stored.
pub fn say_nothing(session: &mut Session) {
    if let Some(handler) = reader(session) {
        handler.say_nothing();
    }
}

fn reader(session: &mut Session) -> Option<&mut Handler> {
    if !from_store(session) {
        return None;
    }
    session.cache.hit_handler().as_any_mut().downcast_mut()
}

/// Whether the head that leaves comes from the store.
pub fn from_store(session: &Session) -> bool {
    matches!(
        session.cache.phase(),
        CachePhase::Hit
            | CachePhase::Stale
            | CachePhase::StaleUpdating
            | CachePhase::Revalidated
            | CachePhase::RevalidatedNoCache(_)
    )
}
