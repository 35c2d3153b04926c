//! One stream, as the engine sees it: a request with its content, and the response.
//!
//! Its deadlines are those of a connection of HTTP/1, counted for this stream alone. A deadline that passes is an error
//! of the read that waits; a client that opens its window too slowly is cut like one that reads too slowly. A response
//! that does not end as it began is reset, never ended.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONTENT_LENGTH, DATE};
use http::{HeaderMap, Method, Request, Response};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::Digest;
use pingora::protocols::http::HttpTask;
use pingora::protocols::http::body_buffer::FixedBuffer;
use pingora::protocols::http::date::get_cached_date;
use pingora::{Error, ErrorType, Result};
use tokio::time::Sleep;

use super::{Tally, head};
use crate::connection::pace::{Behind, Waiting};
use crate::connection::{Connection, Cut, LOOK, Phase, poll_timer};

/// How long a client that waits to be told to send its content may do so.
const UNTOLD: Duration = Duration::from_secs(30);

/// Interim responses that are passed on; heads know no window, so what is not taken would pile up.
const INTERIM: u8 = 16;

/// One request and its response.
pub struct Stream {
    pub(super) request: RequestHeader,
    pub(super) as_http1: Bytes,
    pub(super) content: RecvStream,
    respond: SendResponse<Bytes>,
    out: Option<SendStream<Bytes>>,
    pub(super) written: Option<Box<ResponseHeader>>,
    interim: u8,
    connection: Arc<Connection>,
    pub(super) digest: Arc<Digest>,
    tally: Arc<Tally>,
    /// All content was read.
    pub(super) read: bool,
    pub(super) received: usize,
    pub(super) kept: Option<FixedBuffer>,
    behind: Behind,
    read_timer: Option<Pin<Box<Sleep>>>,
    pub(super) drain: Option<Duration>,
    /// Nothing more can be sent.
    ended: bool,
    /// All of the response was.
    whole: bool,
    pub(super) sent: usize,
    /// What is missing of the length that the head names.
    missing: Option<u64>,
    waiting: Waiting,
    write_timer: Option<Pin<Box<Sleep>>>,
    /// What is to be sent while the engine goes on reading from the origin.
    pub(super) tasks: VecDeque<HttpTask>,
    pub(super) queues: bool,
}

pub(super) fn down<T>(kind: ErrorType, why: &'static str) -> Result<T> {
    Err(Error::explain(kind, why).into_down())
}

impl Stream {
    pub(super) fn new(
        request: Request<RecvStream>,
        respond: SendResponse<Bytes>,
        connection: Arc<Connection>,
        digest: Arc<Digest>,
        tally: Arc<Tally>,
    ) -> Self {
        let (parts, content) = request.into_parts();
        let request = head::read(parts);
        Stream {
            as_http1: head::as_http1(&request),
            request,
            content,
            respond,
            out: None,
            written: None,
            interim: 0,
            connection,
            digest,
            tally,
            read: false,
            received: 0,
            kept: None,
            behind: Behind::default(),
            read_timer: None,
            drain: None,
            ended: false,
            whole: false,
            sent: 0,
            missing: None,
            waiting: Waiting::default(),
            write_timer: None,
            tasks: VecDeque::new(),
            queues: false,
        }
    }

    /// A request that announces no content has none. With a length above nothing, the frames are counted as they come.
    pub(super) async fn keeps_its_word(&mut self) -> bool {
        let nothing = self.request.headers.get(CONTENT_LENGTH).is_some_and(|length| length.as_bytes() == b"0");
        let kept =
            !nothing || self.content.is_end_stream() || matches!(poll_fn(|cx| self.poll_content(cx)).await, Ok(None));
        if !kept {
            self.reset(Reason::PROTOCOL_ERROR);
        }
        kept
    }

    /// The client is not there any more.
    fn left(&mut self) {
        if !self.connection.gone() && !self.ended {
            self.tally.cancelled.fetch_add(1, Relaxed);
        }
        self.connection.leave();
    }

    pub(super) fn poll_content(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>>> {
        if self.read {
            return Poll::Ready(Ok(None));
        }
        loop {
            match self.content.poll_data(cx) {
                Poll::Ready(Some(Ok(piece))) => {
                    let _ = self.content.flow_control().release_capacity(piece.len());
                    self.connection.content_welcome();
                    self.behind.sent(piece.len(), self.connection.bounds().content, Instant::now());
                    self.connection.touch();
                    // To HTTP/1 an empty piece would be the end.
                    if piece.is_empty() {
                        continue;
                    }
                    self.received += piece.len();
                    if let Some(kept) = &mut self.kept {
                        kept.write_to_buffer(&piece);
                    }
                    return Poll::Ready(Ok(Some(piece)));
                }
                Poll::Ready(Some(Err(error))) => {
                    tracing::debug!(%error, "the content broke off");
                    self.left();
                    return Poll::Ready(down(ErrorType::ReadError, "the content broke off"));
                }
                // Trailers, if there are any, go no further.
                Poll::Ready(None) => {
                    self.read = true;
                    return Poll::Ready(Ok(None));
                }
                Poll::Pending => {
                    let mut pace = self.connection.bounds().content;
                    // Who waits to be told to send it may wait for longer.
                    if !self.connection.awaits_content() {
                        pace.grace = UNTOLD.max(pace.grace * 2);
                    }
                    let late = self.behind.wait(pace, 1, Instant::now());
                    return self.poll_late(cx, Some(late)).map(Err);
                }
            }
        }
    }

    /// Ready when the client has left or a deadline has passed.
    pub(super) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<Box<Error>> {
        let reset = match &mut self.out {
            Some(out) => out.poll_reset(cx),
            None => self.respond.poll_reset(cx),
        };
        if reset.is_ready() {
            self.left();
            return Poll::Ready(Error::explain(ErrorType::ConnectionClosed, "the client cancelled it").into_down());
        }
        self.poll_late(cx, None)
    }

    /// Ready when the deadline of what the stream is doing passes, or the one for content.
    fn poll_late(&mut self, cx: &mut Context<'_>, content: Option<Instant>) -> Poll<Box<Error>> {
        loop {
            let content = content.map(|late| (late, Phase::Content));
            let next = self.connection.deadline().into_iter().chain(content).min_by_key(|(at, _)| *at);
            let Some((at, phase)) = next else { return Poll::Pending };
            if Instant::now() >= at {
                self.connection.expire(phase);
                return Poll::Ready(Error::explain(ErrorType::ReadError, "a deadline passed").into_down());
            }
            ready!(poll_timer(&mut self.read_timer, at, cx));
        }
    }

    /// The client opens its window more slowly than it may.
    fn poll_too_slow(&mut self, cx: &mut Context<'_>) -> Poll<Box<Error>> {
        loop {
            // Joiners may come while we wait.
            let now = Instant::now();
            let left = self.waiting.wait(self.connection.slowest(), 1, now);
            if left.is_zero() {
                self.connection.leave();
                self.connection.cut_for(Cut::SlowReader);
                self.reset(Reason::CANCEL);
                return Poll::Ready(
                    Error::explain(ErrorType::WriteTimedout, "the client takes too little").into_down(),
                );
            }
            ready!(poll_timer(&mut self.write_timer, now + LOOK.min(left), cx));
        }
    }

    /// Sends as much as there is room for; what is left stays in `data`.
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>, data: &mut Bytes, end: bool) -> Poll<Result<()>> {
        self.behind.pause(Instant::now());
        while !data.is_empty() && !self.ended {
            let Some(out) = &mut self.out else {
                return Poll::Ready(down(ErrorType::WriteError, "content before a head"));
            };
            let room = match out.capacity() {
                0 => {
                    out.reserve_capacity(data.len());
                    match out.poll_capacity(cx) {
                        Poll::Ready(Some(Ok(room))) => room,
                        Poll::Ready(_) => {
                            self.left();
                            return Poll::Ready(down(ErrorType::WriteError, "the client cancelled it"));
                        }
                        Poll::Pending => return self.poll_too_slow(cx).map(Err),
                    }
                }
                room => room,
            };
            let piece = data.split_to(room.min(data.len()));
            let size = piece.len();
            if let Some(missing) = &mut self.missing {
                let Some(less) = missing.checked_sub(size as u64) else {
                    self.reset(Reason::INTERNAL_ERROR);
                    return Poll::Ready(down(ErrorType::WriteError, "more content than the head named"));
                };
                *missing = less;
            }
            let last = end && data.is_empty() && self.missing.is_none_or(|missing| missing == 0);
            if out.send_data(piece, last).is_err() {
                self.left();
                return Poll::Ready(down(ErrorType::WriteError, "the client cancelled it"));
            }
            (self.ended, self.whole) = (last, last);
            self.sent += size;
            self.connection.touch();
            if self.waiting.is_on() {
                self.waiting.took(size, self.connection.slowest(), Instant::now());
            }
        }
        data.clear();
        Poll::Ready(if end { self.end() } else { Ok(()) })
    }

    /// Sends the head. Interim ones may come before it.
    pub(super) fn send_head(&mut self, mut head: Box<ResponseHeader>, end: bool) -> Result<()> {
        if self.ended || self.written.is_some() {
            return Ok(());
        }
        if head.status == 101 {
            return Error::e_explain(ErrorType::InternalError, "HTTP/2 knows no upgrade");
        }
        head::strip(&mut head);
        if head.status.is_informational() {
            if self.interim == INTERIM {
                return Ok(());
            }
            self.interim += 1;
            let interim = Response::from_parts(head.as_owned_parts(), ());
            return self
                .respond
                .send_informational(interim)
                .or_else(|_| down(ErrorType::WriteError, "no interim head"));
        }
        if !head.headers.contains_key(DATE) {
            head.insert_header(DATE, get_cached_date())?;
        }
        let without = self.request.method == Method::HEAD || matches!(head.status.as_u16(), 204 | 304);
        let length = head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        self.missing = length.filter(|_| !without);
        let end = without || self.missing == Some(0) || (end && self.missing.is_none());
        match self.respond.send_response(Response::from_parts(head.as_owned_parts(), ()), end) {
            Ok(out) => {
                (self.out, self.written) = (Some(out), Some(head));
                (self.ended, self.whole) = (end, end);
            }
            Err(error) => {
                tracing::debug!(%error, "a head cannot be sent");
                self.left();
                return down(ErrorType::WriteError, "the client cancelled it");
            }
        }
        Ok(())
    }

    pub(super) fn send_trailers(&mut self, trailers: HeaderMap) -> Result<()> {
        let whole = self.missing.is_none_or(|missing| missing == 0);
        if let Some(out) = self.out.as_mut().filter(|_| whole && !self.ended) {
            self.whole = out.send_trailers(trailers).is_ok();
            self.ended = self.whole;
        }
        self.end()
    }

    /// Ends a response that is whole; one that is not is reset.
    pub(super) fn end(&mut self) -> Result<()> {
        if self.ended {
            return Ok(());
        }
        let Some(out) = &mut self.out else { return Ok(()) };
        if self.missing.is_some_and(|missing| missing > 0) {
            self.reset(Reason::INTERNAL_ERROR);
            return down(ErrorType::WriteError, "less content than the head named");
        }
        self.whole = out.send_data(Bytes::new(), true).is_ok();
        self.ended = self.whole;
        if self.whole { Ok(()) } else { down(ErrorType::WriteError, "the client cancelled it") }
    }

    pub(super) fn reset(&mut self, reason: Reason) {
        if !std::mem::replace(&mut self.ended, true) {
            self.respond.send_reset(reason);
        }
    }

    /// Sends what is queued; `true` when that was the end of the response.
    pub(super) fn poll_tasks(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool>> {
        self.poll_queue(cx).map(|sent| sent.inspect_err(|_| self.tasks.clear()))
    }

    fn poll_queue(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool>> {
        let mut end = false;
        while let Some(task) = self.tasks.pop_front() {
            end |= match task {
                // Interim responses have left already.
                HttpTask::Header(head, _) if head.status.is_informational() && head.status != 101 => false,
                HttpTask::Header(head, end) => {
                    self.send_head(head, end)?;
                    end
                }
                HttpTask::Body(Some(mut data), end) => match self.poll_send(cx, &mut data, end) {
                    Poll::Ready(sent) => sent.map(|()| end)?,
                    Poll::Pending => {
                        self.tasks.push_front(HttpTask::Body(Some(data), end));
                        return Poll::Pending;
                    }
                },
                HttpTask::Body(None, end) => end,
                HttpTask::UpgradedBody(..) => {
                    return Poll::Ready(Error::e_explain(ErrorType::InternalError, "HTTP/2 knows no upgrade"));
                }
                HttpTask::Trailer(Some(trailers)) => {
                    self.send_trailers(*trailers)?;
                    true
                }
                HttpTask::Trailer(None) | HttpTask::Done => true,
                HttpTask::Failed(error) => return Poll::Ready(Err(error)),
            };
        }
        if end {
            self.end()?;
        }
        Poll::Ready(Ok(end))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.ended && self.missing == Some(0) {
            let _ = self.end();
        }
        if self.whole {
            self.tally.answered.fetch_add(1, Relaxed);
        }
        // What was begun must not look whole.
        self.reset(Reason::INTERNAL_ERROR);
    }
}
