//! HTTP/2 in clear text, with prior knowledge, beside HTTP/1.1 on one listener (RFC 9113 §3.3).
//!
//! What has arrived decides which of the two a client speaks, as soon as it differs from the preface of HTTP/2. From
//! there on a stream is to the engine what a connection is: it has its own [`Connection`] with the same deadlines, because
//! the engine has none for HTTP/2. What belongs to the connection as a whole is kept here: how long it may be without a
//! stream, how many it may have, and how often its client may change its mind.

mod head;
mod session;
mod stream;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use h2::Reason;
use pingora::apps::{HttpServerApp, ServerApp};
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v2::server::{H2Options, default_h2_options};
use pingora::protocols::{Digest, GetSocketDigest, Stream as AnyStream};
use pingora::server::ShutdownWatch;
use tokio::sync::Notify;

use crate::cache::storage::FILLING;
use crate::connection::{Bounds, Connection, Watched};
use crate::refusals::Refusals;
pub use head::Unfit;
use stream::Stream;

/// What a client of HTTP/2 says first (RFC 9113 §3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long the client of a connection that was told to end may take to close it, once there is no stream.
const CLOSE: Duration = Duration::from_secs(1);
/// Streams at a time.
const STREAMS: u32 = 100;
/// Exchanges at a time; one goes on for a moment when its client has cancelled it.
const EXCHANGES: usize = 2 * STREAMS as usize;
/// Streams that a client may cancel, beyond as many as it let us finish.
const CANCELLED: usize = 100;
/// What a client may send on one stream before we take it.
const STREAM_WINDOW: u32 = 64 << 10;
/// The same for all streams of a connection.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Heads beyond this, as HTTP/2 counts, are answered by nobody, unless `limits.head` allows half of it.
const HEADS: u64 = 64 << 10;
/// What waits to be sent on one stream.
const SEND_BUFFER: usize = 64 << 10;

tokio::task_local! {
    static STREAM: Arc<Connection>;
}

/// The connection that a session has to itself, whichever version it speaks: its own, or that of its stream.
pub fn connection(session: &ServerSession) -> Option<Arc<Connection>> {
    match session.is_custom() {
        true => STREAM.try_with(Arc::clone).ok(),
        false => Watched::below(session).map(|watched| watched.connection().clone()),
    }
}

/// An app for a listener where clients speak either.
pub struct Either<A> {
    /// Who serves them.
    pub app: Arc<A>,
    /// What a connection of HTTP/2 is held to, and how many requests it may bring.
    pub terms: Box<Terms>,
    /// What is refused.
    pub refusals: Arc<Refusals>,
}

/// What counts at the moment.
pub type Terms = dyn Fn() -> (Bounds, u32) + Send + Sync;

#[async_trait]
impl<A: HttpServerApp + Send + Sync + 'static> ServerApp for Either<A> {
    async fn process_new(self: &Arc<Self>, stream: AnyStream, stop: &ShutdownWatch) -> Option<AnyStream> {
        let Ok(mut watched) = stream.into_any().downcast::<Watched>() else { return None };
        let mut stopped = stop.clone();
        let speaks = tokio::select! {
            biased;
            speaks = watched.begins_with(PREFACE) => speaks,
            _ = stopped.wait_for(|stop| *stop) => return None,
        };
        match speaks {
            Ok(true) => self.converse(watched, stop).await,
            Ok(false) => return self.app.process_new(watched, stop).await,
            // Gone, or silent for too long.
            Err(error) => tracing::debug!(%error, "nothing was asked"),
        }
        None
    }
}

/// What the engine sets itself bounds what heads may take; beyond that, tighter ones.
fn options(bounds: &Bounds) -> H2Options {
    let mut options = default_h2_options();
    // A head that is too long is answered as any other one is; this is for those that are much too long.
    let heads = (2 * bounds.head).max(HEADS);
    options
        .max_header_list_size(u32::try_from(heads).unwrap_or(u32::MAX))
        .max_concurrent_streams(STREAMS)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(20)
        .max_concurrent_reset_streams(STREAMS as usize)
        .max_local_error_reset_streams(Some(STREAMS as usize));
    options
}

impl<A: HttpServerApp + Send + Sync + 'static> Either<A> {
    /// Serves the streams of a connection until it is over.
    async fn converse(&self, watched: Box<Watched>, stop: &ShutdownWatch) {
        let peer = watched.connection().peer;
        // From here on it is silent on its own account; each stream has deadlines of its own.
        let own = watched.connection().clone();
        let (mut bounds, _) = (self.terms)();
        own.head_here(bounds);
        let digest = Arc::new(Digest { socket_digest: watched.get_socket_digest(), ..Digest::default() });
        let mut http = match options(&bounds).handshake::<_, Bytes>(watched).await {
            Ok(http) => http,
            Err(error) => return tracing::debug!(%peer, %error, "no HTTP/2 after its preface"),
        };
        let (mut stopped, mut closing) = (stop.clone(), false);
        let (open, tally) = (Arc::new(Open::default()), Arc::new(Tally::default()));
        let mut begun = 0_u32;
        loop {
            let patience = match () {
                () if closing => CLOSE,
                () if begun == 0 => bounds.head_timeout,
                () => bounds.idle,
            };
            // Waiting for a stream is what drives all of them.
            let accepted = tokio::select! {
                biased;
                _ = stopped.wait_for(|stop| *stop), if !closing => {
                    http.graceful_shutdown();
                    closing = true;
                    continue;
                }
                accepted = http.accept() => accepted,
                () = open.idle_for(patience) => {
                    if closing {
                        return;
                    }
                    http.graceful_shutdown();
                    closing = true;
                    continue;
                }
            };
            let (request, mut respond) = match accepted {
                Some(Ok(accepted)) => accepted,
                Some(Err(error)) => {
                    if error.is_library() && error.reason() == Some(Reason::ENHANCE_YOUR_CALM) {
                        self.refusals.request("flood", peer.ip());
                    }
                    return tracing::debug!(%peer, %error, "the connection broke");
                }
                None => return,
            };
            begun = begun.saturating_add(1);
            let most;
            (bounds, most) = (self.terms)();
            own.hold_to(bounds);
            if tally.changes_its_mind() {
                self.refusals.request("cancelled", peer.ip());
                http.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                closing = true;
                continue;
            }
            if open.count() >= EXCHANGES {
                respond.send_reset(Reason::REFUSED_STREAM);
                continue;
            }
            if begun >= most && !closing {
                http.graceful_shutdown();
                closing = true;
            }
            let connection = Arc::new(Connection::new(peer, bounds));
            let mut stream = Stream::new(request, respond, connection.clone(), digest.clone(), tally.clone());
            let (app, stop, one) = (self.app.clone(), stop.clone(), open.enter());
            let (refusals, its_own) = (self.refusals.clone(), connection.clone());
            let exchange = async move {
                if stream.keeps_its_word().await {
                    app.process_new_http(ServerSession::new_custom(Box::new(stream)), &stop).await;
                }
                if let Some(cut) = its_own.cut() {
                    refusals.request(cut.reason(), peer.ip());
                }
                drop(one);
            };
            tokio::spawn(FILLING.scope(Cell::new(false), STREAM.scope(connection, exchange)));
        }
    }
}

/// How the streams of a connection ended.
#[derive(Default)]
struct Tally {
    answered: AtomicUsize,
    cancelled: AtomicUsize,
}

impl Tally {
    /// A client that cancels what it asks for costs us what it asked for.
    fn changes_its_mind(&self) -> bool {
        self.cancelled.load(Relaxed) > CANCELLED + self.answered.load(Relaxed)
    }
}

/// The exchanges that are under way on a connection.
#[derive(Default)]
struct Open {
    count: AtomicUsize,
    none_left: Notify,
}

struct One(Arc<Open>);

impl Drop for One {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Relaxed) == 1 {
            self.0.none_left.notify_one();
        }
    }
}

impl Open {
    fn enter(self: &Arc<Self>) -> One {
        self.count.fetch_add(1, Relaxed);
        One(self.clone())
    }

    fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Ready when there was none for so long.
    async fn idle_for(&self, patience: Duration) {
        while self.count() > 0 {
            self.none_left.notified().await;
        }
        tokio::time::sleep(patience).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cancels_more_than_it_lets_finish_is_told_to_calm_down() {
        for (answered, cancelled, expected) in [(0, 100, false), (0, 101, true), (50, 150, false), (50, 151, true)] {
            let tally = Tally { answered: answered.into(), cancelled: cancelled.into() };
            assert_eq!(tally.changes_its_mind(), expected, "{cancelled} of {answered}");
        }
    }

    #[tokio::test]
    async fn a_connection_is_idle_when_its_last_exchange_is_over() {
        let open = Arc::new(Open::default());
        let (first, second) = (open.enter(), open.enter());
        let waits = tokio::spawn({
            let open = open.clone();
            async move { open.idle_for(Duration::ZERO).await }
        });
        drop(first);
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        drop(second);
        waits.await.unwrap();
        assert_eq!(open.count(), 0);
    }
}
