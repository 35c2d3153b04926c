//! The one way out for responses that we make.

use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, TRANSFER_ENCODING};
use http::{HeaderValue, Method, Version};
use pingora::http::ResponseHeader;
use pingora::prelude::*;
use pingora::proxy::Session;
use pingora::{ErrorSource, ErrorType};

use super::content::through;
use super::context::Ctx;
use super::seal::{Made, seal};
use crate::clock::Clock;
use crate::connection::Phase;
use crate::fields::connection::strip;
use crate::handler::Reply;

/// What is left of a request's content is read up to this much, so that the connection stays usable.
const SMALL_REST: u64 = 64 << 10;

/// How long that may take.
const DISCARD: Duration = Duration::from_secs(5);

/// Sends a whole response.
pub async fn send(session: &mut Session, ctx: &mut Ctx, clock: &Clock, reply: Reply) -> Result<()> {
    let _ = tokio::time::timeout(DISCARD, discard_rest(session)).await;
    if session.as_downstream_mut().is_body_done() {
        ctx.content_over();
    }
    let Reply { mut head, mut content } = reply;
    let sealed = seal(session, &mut head, ctx, clock, Made::Here);
    let filtered = match (sealed, std::mem::take(&mut ctx.filters)) {
        (Err(_), _) => None,
        (Ok(()), filters) if filters.is_empty() => Some(content),
        (Ok(()), filters) => {
            let filtered = through(filters, content).await;
            if let Some(content) = &filtered {
                let _ = head.insert_header(CONTENT_LENGTH, content.len());
            }
            filtered
        }
    };
    match filtered {
        Some(filtered) => content = filtered,
        None => {
            Reply { head, content } = page(500, ctx);
            session.as_downstream_mut().set_keepalive(None);
            ctx.exchange.status = 500;
        }
    }
    let empty = content.is_empty() || ctx.exchange.method == Method::HEAD || matches!(head.status.as_u16(), 204 | 304);
    session.write_response_header(Box::new(head), empty).await?;
    if !empty {
        session.write_response_body(Some(content), true).await?;
    }
    Ok(())
}

/// Passes an interim response on at once (RFC 9110 §15.2). The engine loses one that arrives together with a
/// final response that is being stored, so it leaves them to us, but for a 100 that the client waits for.
pub async fn interim(session: &mut Session, head: &ResponseHeader) {
    let downstream = session.as_downstream_mut();
    let (version, expects) = (downstream.req_header().version, downstream.req_header().headers.contains_key(EXPECT));
    // Over HTTP/2 the engine passes none on.
    let ours = version == Version::HTTP_2 || !(head.status == 100 && expects);
    if downstream.is_subrequest() || version == Version::HTTP_10 || !ours {
        return;
    }
    let mut head = head.clone();
    strip(&mut head);
    head.remove_header(&CONTENT_LENGTH);
    head.remove_header(&TRANSFER_ENCODING);
    downstream.set_ignore_info_resp(false);
    if let Err(error) = downstream.write_response_header(Box::new(head)).await {
        tracing::debug!(%error, "the client did not wait for an interim response");
    }
    downstream.set_ignore_info_resp(true);
}

/// Reads a small rest of the request's content. A client that waits for `100 Continue` sends none.
async fn discard_rest(session: &mut Session) {
    let downstream = session.as_downstream_mut();
    if downstream.is_body_done() || downstream.req_header().headers.contains_key(EXPECT) {
        return;
    }
    let announced = downstream.req_header().headers.get(http::header::CONTENT_LENGTH);
    let announced = announced.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let read = downstream.body_bytes_read() as u64;
    if announced.is_some_and(|length| length.saturating_sub(read) > SMALL_REST) {
        return;
    }
    let mut rest = 0;
    while rest <= SMALL_REST {
        match downstream.read_request_body().await {
            Ok(Some(chunk)) => rest += chunk.len() as u64,
            Ok(None) => return,
            // Nobody knows where the next request would begin.
            Err(_) => return downstream.set_keepalive(None),
        }
    }
}

/// The status for something that went wrong; `None` when there is nobody left to tell.
pub fn status_of(error: &Error, ctx: &Ctx) -> Option<u16> {
    use ErrorType::*;
    if let HTTPStatus(status) = error.etype() {
        return Some(*status);
    }
    match error.esource() {
        ErrorSource::Upstream => Some(match error.etype() {
            ConnectTimedout | ReadTimedout | WriteTimedout => 504,
            _ => 502,
        }),
        ErrorSource::Downstream => match error.etype() {
            ReadTimedout => Some(408),
            WriteError | WriteTimedout | ReadError | ConnectionClosed | ConnectError => {
                let waited = ctx.connection.as_ref().and_then(|connection| connection.expired());
                match waited? {
                    Phase::FirstByte => Some(504),
                    Phase::Content => Some(408),
                    _ => None,
                }
            }
            _ => Some(400),
        },
        ErrorSource::Internal | ErrorSource::Unset => Some(500),
    }
}

/// A small page for a failure: what happened, whom to tell which name, and nothing about our inside.
pub fn page(status: u16, ctx: &mut Ctx) -> Reply {
    let (title, sentence) = match status {
        400 => ("Bad request", "The request could not be understood."),
        404 => ("Not found", "There is nothing at this address."),
        408 => ("Request timed out", "The request did not arrive in time."),
        413 => ("Content too large", "The request is larger than what is accepted here."),
        500 => ("Internal error", "Something went wrong on this server."),
        502 => ("Bad gateway", "The application behind this server did not answer properly."),
        503 => ("Service unavailable", "The application behind this server is not available."),
        504 => ("Gateway timed out", "The application behind this server did not answer in time."),
        _ => ("The request failed", "The request could not be answered."),
    };
    let id = ctx.exchange.id();
    let page = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{status} {title}</title>\n<h1>{title}</h1>\n<p>{sentence}</p>\n<p>Request <code>{id}</code></p>\n</html>\n"
    );
    Reply::new(status, page)
        .with(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"))
        .with(CACHE_CONTROL, HeaderValue::from_static("no-store"))
}
