//! The last hand on every final head, whoever made it.

use http::header::{AGE, CACHE_CONTROL, CONTENT_LENGTH, DATE, TRANSFER_ENCODING, VIA};
use http::{HeaderName, HeaderValue, Version};
use pingora::http::ResponseHeader;
use pingora::proxy::Session;

use super::content::Filters;
use super::context::Ctx;
use super::{explain, forward, serving};
use crate::catch::Panicked;
use crate::clock::Clock;
use crate::exchange::Pushed;
use crate::fields::cache_status::CacheStatus;
use crate::fields::tags;
use crate::handler::Reply;

const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

/// Whether the head was made here, or came from an origin or the store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Made {
    /// By us.
    Here,
    /// By an origin; perhaps it was stored meanwhile.
    There,
}

/// Age, Via, Cache-Status, then the plugins. Fails only when one of them panics, or pushes a filter where one
/// has given up before, and then with nothing of theirs at work on the content.
pub fn seal(
    session: &mut Session,
    head: &mut ResponseHeader,
    ctx: &mut Ctx,
    clock: &Clock,
    made: Made,
) -> Result<(), Panicked> {
    if made == Made::There {
        let _ = head.append_header(VIA, forward::via(head.version));
    }
    if let Some(cache) = ctx.route_cache() {
        if cache.strip_tags {
            for name in tags::FIELDS {
                head.remove_header(name);
            }
        }
        let status = serving::status(session, ctx, clock);
        age(session, head, ctx, clock);
        tell(head, ctx, status);
        ctx.exchange.cache = Some(status);
    }
    if made == Made::There && ctx.chain().rewrites_responses() {
        ctx.exchange.stored = serving::is_shared(session);
        let confirms = head.status == 304;
        ctx.exchange.unconditional = if confirms { serving::unconditional(session, ctx) } else { None };
    }
    explain::leaves(ctx, head);
    let request = session.req_header();
    // Of a refresh in the background nothing leaves.
    let mut rewritten = match ctx.exchange.background {
        true => Ok(()),
        false => ctx.plugins(|chain, exchange| chain.response(request, head, exchange)),
    };
    let pushed = ctx.exchange.take_filters();
    // A filter that has given up in this exchange is not asked about the page that says so.
    if rewritten.is_err() || (filtering_failed(session) && !pushed.is_empty()) {
        rewritten = Err(Panicked);
        session.as_downstream_mut().set_keepalive(None);
        filters(session, head, ctx, Vec::new(), made);
    } else {
        filters(session, head, ctx, pushed, made);
    }
    explain::tell(session, head, ctx, clock);
    // An HTTP/1.0 client would take chunk sizes for content; the end of the connection tells it the end.
    let unframed = ctx.exchange.version == Version::HTTP_10 && head.remove_header(&TRANSFER_ENCODING).is_some();
    if unframed || ctx.draining {
        session.as_downstream_mut().set_keepalive(None);
    }
    if let Some(connection) = &ctx.connection {
        // A date that is one: the engine writes all dates in the one form (RFC 9110 §6.6.1).
        let date = head.headers.get(DATE).filter(|date| made == Made::There && date.len() == 29).cloned();
        connection.hold_head(date);
    }
    ctx.exchange.status = head.status.as_u16();
    rewritten
}

/// What leaves in place of a head that a plugin panicked over, when nothing else can.
pub fn instead(ctx: &mut Ctx) -> ResponseHeader {
    ctx.exchange.status = 500;
    Reply::new(500, "").with(CACHE_CONTROL, HeaderValue::from_static("no-store")).head
}

/// The current age of what comes from the store; what passed through keeps the one it came with.
fn age(session: &Session, head: &mut ResponseHeader, ctx: &Ctx, clock: &Clock) {
    match ctx.cache.life {
        Some(life) if serving::from_store(session) || ctx.cache.composed.is_some() => {
            let _ = head.insert_header(AGE, HeaderValue::from(life.age(clock.now()).as_secs()));
        }
        _ => {
            head.remove_header(&AGE);
            for line in &ctx.cache.age_lines {
                let _ = head.append_header(AGE, line.clone());
            }
        }
    }
}

fn tell(head: &mut ResponseHeader, ctx: &Ctx, status: CacheStatus) {
    if let Ok(value) = HeaderValue::try_from(status.value()) {
        // The last cache in the chain stands last (RFC 9211 §2).
        let _ = head.append_header(CACHE_STATUS, value);
    }
    if let Some(name) = ctx.route_cache().and_then(|cache| cache.status_header.as_ref()) {
        let _ = head.insert_header(name, HeaderValue::from_static(status.word()));
    }
}

fn filtering_failed(session: &mut Session) -> bool {
    session.downstream_modules_ctx.get_mut::<Filters>().is_some_and(|filters| filters.failed)
}

/// Puts filters to work, these and no earlier ones. What we made is sent through them before it leaves;
/// all other content has another length then, and nobody knows it yet.
fn filters(session: &mut Session, head: &mut ResponseHeader, ctx: &mut Ctx, mut list: Vec<Pushed>, made: Made) {
    let without = ctx.exchange.method == http::Method::HEAD || matches!(head.status.as_u16(), 204 | 304);
    // After a 101 the bytes belong to another protocol.
    if head.status == 101 {
        list.clear();
    }
    let filtered = !list.is_empty();
    let mut length = None;
    // One coding alone is a form of what is stored, and may be there already.
    if let (Made::There, [Pushed { coding: Some(coding), .. }]) = (made, list.as_slice()) {
        let coding = *coding;
        for Pushed { filter, .. } in std::mem::take(&mut list) {
            match serving::recode(session, coding, filter, without) {
                Ok(known) => length = known,
                Err(filter) => list.push(Pushed { filter, coding: Some(coding) }),
            }
        }
    }
    if filtered {
        let framed = head.remove_header(&CONTENT_LENGTH).is_some();
        match length {
            Some(length) => {
                // What arrived without a length was found with one.
                head.remove_header(&TRANSFER_ENCODING);
                let _ = head.insert_header(CONTENT_LENGTH, length);
            }
            None if framed && !without && made == Made::There => {
                let _ = head.insert_header(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
            None => {}
        }
    }
    if without {
        list.clear();
    }
    let mut list = list.into_iter().map(|pushed| pushed.filter).collect();
    if made == Made::Here {
        ctx.filters = std::mem::take(&mut list);
    }
    if let Some(module) = session.downstream_modules_ctx.get_mut::<Filters>() {
        module.set(list);
    }
}
