//! A response that is still arriving, and those who read it meanwhile.
//!
//! The leader is the request that went to the origin; it reads what it brings in
//! through this same fill, and so do the joiners, who asked for the same thing
//! meanwhile. What was written is kept until the response is complete.
//!
//! A response longer than its limit cannot be stored. The fill then takes no more
//! joiners and keeps a window only: what the leader has not read yet, and at most
//! a MiB behind the newest byte. A joiner that falls out of it gets an error,
//! never a clean end; and so does everybody when the origin breaks off.
//!
//! Writing never waits. Who paces the origin is decided where the response is
//! admitted: a known length is read at the origin's speed, an unknown one at the
//! leader's, who is cut when joiners wait for it (see the connection's stall rule).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use pingora::{Error, ErrorType, Result};
use tokio::sync::Notify;

use super::coded::Coded;
use super::ledger::Reservation;
use super::stored::{Content, Head};

/// How far a joiner may lag behind in a response that is too long to be stored.
const WINDOW: u64 = 1 << 20;

/// Milliseconds that all joiners of a fill may hold its origin up, together.
const LONGEST_HOLD_UP: u64 = 5000;

/// The leader takes up to this much at once when it lags, so that it catches up.
const GULP: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Complete,
    Broken,
}

#[derive(Debug, Default)]
struct State {
    pieces: VecDeque<Bytes>,
    /// How many pieces, and bytes, were let go before the first one here.
    dropped: u64,
    dropped_bytes: u64,
    /// Bytes that arrived in all.
    arrived: u64,
    end: Option<End>,
    oversize: bool,
    /// How far each joiner has read, by its number; where the leader paces.
    joined: HashMap<u64, u64>,
}

/// How a fill is bounded.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// The announced length, if any.
    pub length: Option<u64>,
    /// Beyond so many bytes it is not stored.
    pub limit: u64,
    /// How long a reader waits for the next byte.
    pub patience: Duration,
}

/// The fill.
#[derive(Debug)]
pub struct Fill {
    /// All but the content.
    pub head: Arc<Head>,
    /// Names it among the fills under way.
    pub id: u64,
    terms: Terms,
    state: Mutex<State>,
    news: Notify,
    joiners: Arc<AtomicUsize>,
    numbers: AtomicU64,
    /// Milliseconds that the origin was held up for joiners.
    held_up: AtomicU64,
    /// Pieces the leader has read; `u64::MAX` when it is gone.
    leader_at: AtomicU64,
    doomed: AtomicBool,
    /// The same content in other codings, for joiners and for the store.
    pub coded: Arc<Coded>,
    /// Given back when the response is complete, and weighed where it is stored.
    room: Mutex<Option<Reservation>>,
}

/// What became of a write.
#[derive(Debug, PartialEq, Eq)]
pub enum Written {
    /// Kept.
    Kept,
    /// This piece made it too long to be stored.
    Outgrown,
    /// Nobody reads it and it cannot be stored: there is no point in going on.
    Pointless,
}

impl Fill {
    /// A fill that has its head and no content yet.
    pub fn new(id: u64, head: Arc<Head>, terms: Terms, room: Option<Reservation>) -> Arc<Self> {
        Arc::new(Fill {
            head,
            id,
            terms,
            state: Mutex::default(),
            news: Notify::new(),
            joiners: Arc::default(),
            numbers: AtomicU64::new(0),
            held_up: AtomicU64::new(0),
            leader_at: AtomicU64::new(u64::MAX),
            doomed: AtomicBool::new(false),
            coded: Arc::default(),
            room: Mutex::new(room),
        })
    }

    /// Takes the next piece. Never waits.
    pub fn write(&self, piece: Bytes) -> Written {
        let mut written = Written::Kept;
        {
            let mut state = self.state.lock();
            if state.end.is_some() || piece.is_empty() {
                return Written::Kept;
            }
            state.arrived += piece.len() as u64;
            state.pieces.push_back(piece);
            // Without a length, room is taken as it is needed.
            let fits = state.arrived <= self.terms.limit
                && self.room.lock().as_mut().is_none_or(|room| room.cover(state.arrived));
            if !state.oversize && !fits {
                state.oversize = true;
                written = Written::Outgrown;
                // From here on it holds what any exchange holds.
                self.room.lock().take();
            }
            if state.oversize {
                let leader_at = self.leader_at.load(Acquire);
                // Nobody joins any more: without joiners, only the leader's own backlog is kept.
                let window = if self.joiners.load(Acquire) > 0 { WINDOW } else { 0 };
                while state.arrived - state.dropped_bytes > window && state.dropped < leader_at {
                    let Some(piece) = state.pieces.pop_front() else { break };
                    state.dropped += 1;
                    state.dropped_bytes += piece.len() as u64;
                }
                if leader_at == u64::MAX && self.joiners.load(Acquire) == 0 {
                    written = Written::Pointless;
                }
            }
        }
        self.news.notify_waiters();
        written
    }

    /// The origin said that this was all. The content, if it may be stored.
    pub fn complete(&self) -> Option<Content> {
        let content = {
            let mut state = self.state.lock();
            if state.end.is_some() {
                return None;
            }
            let short = self.terms.length.is_some_and(|length| length != state.arrived);
            state.end = Some(if short { End::Broken } else { End::Complete });
            (!short && !state.oversize).then(|| {
                let mut content = Content::new(state.pieces.iter().cloned());
                content.coded = self.coded.clone();
                content
            })
        };
        self.room.lock().take();
        self.news.notify_waiters();
        content
    }

    /// The origin broke off: readers get an error.
    pub fn fail(&self) {
        self.state.lock().end.get_or_insert(End::Broken);
        self.room.lock().take();
        self.news.notify_waiters();
    }

    /// Whether somebody else may still join.
    pub fn joinable(&self) -> bool {
        let state = self.state.lock();
        !state.oversize && state.end != Some(End::Broken) && !self.doomed.load(Acquire)
    }

    /// Whether anybody joined and still reads.
    pub fn has_joiners(&self) -> bool {
        self.joiners.load(Acquire) > 0
    }

    /// Whether it became too long to be stored, and nobody but its leader reads it.
    pub fn pointless(&self) -> bool {
        self.state.lock().oversize && !self.has_joiners()
    }

    /// How long the origin should wait with its next piece, so that joiners who are only a little slower do
    /// not fall out of the window when the response becomes too long to be stored. All waits together are
    /// bounded; who is slower than that falls out.
    pub fn hold_up(&self) -> Option<Duration> {
        let lag = {
            let state = self.state.lock();
            let close = state.oversize || state.arrived + WINDOW / 2 >= self.terms.limit;
            let slowest = state.joined.values().min().filter(|_| close && self.paced())?;
            state.arrived.saturating_sub(*slowest)
        };
        let wait = (lag * 100 / WINDOW).min(200);
        let within = |held: u64| Some(held + wait).filter(|sum| *sum <= LONGEST_HOLD_UP);
        let granted = lag >= WINDOW / 2 && self.held_up.fetch_update(AcqRel, Acquire, within).is_ok();
        granted.then(|| Duration::from_millis(wait))
    }

    /// It is not to be stored: what it answers is no longer true.
    pub fn doom(&self) {
        self.doomed.store(true, Release);
    }

    /// Whether it was doomed.
    pub fn doomed(&self) -> bool {
        self.doomed.load(Acquire)
    }

    /// The leader's client is gone; the fill goes on for the others and for the store.
    pub fn leader_left(&self) {
        self.leader_at.store(u64::MAX, Release);
    }

    /// Whether the leader's client is gone, or wants no content.
    pub fn unled(&self) -> bool {
        self.leader_at.load(Acquire) == u64::MAX
    }

    /// How many joiners read it now; the connection asks this before it lets a slow leader pace them.
    pub fn joiners(&self) -> Arc<AtomicUsize> {
        self.joiners.clone()
    }

    /// The announced length.
    pub fn length(&self) -> Option<u64> {
        self.terms.length
    }

    /// Beyond so many bytes it is not stored.
    pub fn limit(&self) -> u64 {
        self.terms.limit
    }

    /// How long its readers wait for the next byte.
    pub fn patience(&self) -> Duration {
        self.terms.patience
    }

    /// Whether the leader paces it.
    pub fn paced(&self) -> bool {
        self.terms.length.is_none()
    }
}

/// Reads a fill from its beginning.
#[derive(Debug)]
pub struct Reader {
    /// What it reads.
    pub fill: Arc<Fill>,
    leader: bool,
    number: u64,
    piece: u64,
    offset: usize,
    position: u64,
    skip_to: u64,
    until: u64,
}

impl Reader {
    /// For the request that brings the response in.
    pub fn leader(fill: Arc<Fill>) -> Self {
        fill.leader_at.store(0, Release);
        Self::new(fill, true)
    }

    /// For a request that came meanwhile.
    pub fn joiner(fill: Arc<Fill>) -> Self {
        fill.joiners.fetch_add(1, AcqRel);
        let reader = Self::new(fill, false);
        if reader.fill.paced() {
            reader.fill.state.lock().joined.insert(reader.number, 0);
        }
        reader
    }

    fn new(fill: Arc<Fill>, leader: bool) -> Self {
        let number = fill.numbers.fetch_add(1, Relaxed);
        Reader { fill, leader, number, piece: 0, offset: 0, position: 0, skip_to: 0, until: u64::MAX }
    }

    /// Whether it joined somebody else's fill.
    pub fn joined(&self) -> bool {
        !self.leader
    }

    /// Whether parts can be read: the length is known.
    pub fn can_seek(&self) -> bool {
        self.fill.terms.length.is_some()
    }

    /// From now on reads this part only.
    pub fn seek(&mut self, start: u64, end: Option<u64>) -> Result<()> {
        if start < self.position {
            if self.fill.state.lock().dropped > 0 {
                return Error::e_explain(ErrorType::InternalError, "the part was let go");
            }
            (self.piece, self.offset, self.position) = (0, 0, 0);
        }
        self.skip_to = start;
        self.until = end.unwrap_or(u64::MAX);
        Ok(())
    }

    /// The next bytes; `None` at the end. Safe to drop and call again.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        let fill = self.fill.clone();
        loop {
            let news = fill.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            if let Some(answer) = self.take(&fill)? {
                return Ok(answer);
            }
            if tokio::time::timeout(fill.terms.patience, news).await.is_err() {
                return Error::e_explain(ErrorType::ReadTimedout, "the response stopped arriving");
            }
        }
    }

    /// What is there already: `None` nothing, `Some(None)` the end.
    fn take(&mut self, fill: &Fill) -> Result<Option<Option<Bytes>>> {
        let mut state = fill.state.lock();
        loop {
            if self.position >= self.until {
                return Ok(Some(None));
            }
            if self.piece < state.dropped {
                return Error::e_explain(ErrorType::ReadError, "fell too far behind a response that is not stored");
            }
            let Some(piece) = state.pieces.get((self.piece - state.dropped) as usize) else {
                return match state.end {
                    None => Ok(None),
                    Some(End::Complete) => Ok(Some(None)),
                    Some(End::Broken) => Error::e_explain(ErrorType::ConnectionClosed, "the origin broke off"),
                };
            };
            let rest = piece.slice(self.offset..);
            let skip = self.skip_to.saturating_sub(self.position).min(rest.len() as u64);
            let left = self.until.saturating_sub(self.position + skip);
            let take = left.min(rest.len() as u64 - skip);
            self.position += skip + take;
            if skip + take == rest.len() as u64 {
                self.piece += 1;
                self.offset = 0;
            } else {
                self.offset += (skip + take) as usize;
            }
            if !self.leader && fill.paced() {
                state.joined.insert(self.number, self.position);
            }
            if take == 0 {
                continue;
            }
            let mut bytes = rest.slice(skip as usize..(skip + take) as usize);
            if self.leader {
                if fill.paced() && self.until == u64::MAX {
                    bytes = self.gulp(&state, bytes);
                }
                // A leader that is gone stays gone.
                let _ = fill.leader_at.fetch_update(AcqRel, Acquire, |at| (at != u64::MAX).then_some(self.piece));
            }
            return Ok(Some(Some(bytes)));
        }
    }

    /// The leader takes all that has piled up, so that it never falls behind by more and more.
    fn gulp(&mut self, state: &State, first: Bytes) -> Bytes {
        let index = (self.piece - state.dropped) as usize;
        if self.offset != 0 || state.pieces.len() <= index {
            return first;
        }
        let mut all = BytesMut::from(first.as_ref());
        for piece in state.pieces.iter().skip(index) {
            if all.len() + piece.len() > GULP {
                break;
            }
            all.extend_from_slice(piece);
            self.piece += 1;
            self.position += piece.len() as u64;
        }
        all.freeze()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.leader {
            self.fill.leader_left();
        } else {
            self.fill.state.lock().joined.remove(&self.number);
            self.fill.joiners.fetch_sub(1, AcqRel);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cache::policy::a_minute;
    use pingora::http::ResponseHeader;
    use std::time::SystemTime;

    pub fn head() -> Arc<Head> {
        let response = ResponseHeader::build(200, None).unwrap();
        Arc::new(Head {
            key: Box::from(*b"k"),
            variance: None,
            response,
            nominated: Arc::from([]),
            life: a_minute(),
            created: SystemTime::now(),
            listing: Arc::new(Arc::new(crate::cache::index::Index::default()).list("", "", &[], [0; 16])),
        })
    }

    fn fill(length: Option<u64>, limit: u64) -> Arc<Fill> {
        Fill::new(1, head(), Terms { length, limit, patience: Duration::from_secs(60) }, None)
    }

    async fn all(mut reader: Reader) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while let Some(piece) = reader.next().await? {
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }

    #[tokio::test]
    async fn a_joiner_that_lags_holds_the_origin_up_for_a_while() {
        let fill = fill(None, 2 << 20);
        let mut joiner = Reader::joiner(fill.clone());
        let piece = Bytes::from(vec![0; 64 << 10]);
        for _ in 0..23 {
            fill.write(piece.clone());
            assert_eq!(fill.hold_up(), None, "there is room");
        }
        fill.write(piece.clone());
        assert_eq!(fill.hold_up(), Some(Duration::from_millis(150)));
        while let Ok(Ok(Some(_))) = tokio::time::timeout(Duration::ZERO, joiner.next()).await {}
        assert_eq!(fill.hold_up(), None, "it has caught up");
        (0..16).for_each(|_| _ = fill.write(piece.clone()));
        let mut waited = Duration::ZERO;
        while let Some(wait) = fill.hold_up() {
            waited += wait;
        }
        assert!(waited > Duration::from_secs(4) && waited <= Duration::from_secs(5), "{waited:?}");
        drop(joiner);
        assert!(fill.state.lock().joined.is_empty());
    }

    #[tokio::test]
    async fn readers_follow_and_get_every_byte() {
        let fill = fill(None, 100);
        let early = tokio::spawn(all(Reader::joiner(fill.clone())));
        for piece in ["one ", "two ", "three"] {
            fill.write(Bytes::from_static(piece.as_bytes()));
            tokio::task::yield_now().await;
        }
        let late = tokio::spawn(all(Reader::leader(fill.clone())));
        tokio::task::yield_now().await;
        let content = fill.complete().unwrap();
        assert_eq!(content.length, 13);
        assert_eq!(early.await.unwrap().unwrap(), b"one two three");
        assert_eq!(late.await.unwrap().unwrap(), b"one two three");
    }

    #[tokio::test]
    async fn a_broken_origin_is_an_error_for_everybody_and_never_an_end() {
        let fill = fill(Some(10), 100);
        fill.write(Bytes::from_static(b"half"));
        let reader = tokio::spawn(all(Reader::joiner(fill.clone())));
        tokio::task::yield_now().await;
        fill.fail();
        assert!(reader.await.unwrap().is_err());
        assert!(!fill.joinable());
        assert!(fill.complete().is_none());
    }

    #[tokio::test]
    async fn a_short_content_is_broken_even_if_somebody_calls_it_complete() {
        let fill = fill(Some(10), 100);
        fill.write(Bytes::from_static(b"half"));
        assert!(fill.complete().is_none());
        assert!(all(Reader::joiner(fill)).await.is_err());
    }

    #[tokio::test]
    async fn parts_can_be_read_before_they_are_there() {
        let fill = fill(Some(10), 100);
        let mut reader = Reader::joiner(fill.clone());
        reader.seek(3, Some(7)).unwrap();
        let part = tokio::spawn(all(reader));
        for piece in ["01", "234", "56789"] {
            fill.write(Bytes::from_static(piece.as_bytes()));
            tokio::task::yield_now().await;
        }
        fill.complete();
        assert_eq!(part.await.unwrap().unwrap(), b"3456");
    }

    #[tokio::test]
    async fn too_long_keeps_a_window_and_the_leader_stays_in_it() {
        let fill = fill(None, 1 << 20);
        let mut leader = Reader::leader(fill.clone());
        let mut joiner = Reader::joiner(fill.clone());
        let piece = Bytes::from(vec![7; 64 << 10]);
        let mut outgrown = 0;
        for _ in 0..64 {
            outgrown += usize::from(fill.write(piece.clone()) == Written::Outgrown);
        }
        assert_eq!(outgrown, 1);
        assert!(!fill.joinable());
        assert_eq!(fill.state.lock().pieces.len(), 64, "the leader has read nothing: all is kept for it");
        let mut read = 0;
        while read < 64 * piece.len() {
            read += leader.next().await.unwrap().unwrap().len();
        }
        fill.write(piece.clone());
        assert!(fill.state.lock().pieces.len() <= 17, "what the leader has read goes, but for the joiners' window");
        assert!(joiner.next().await.is_err(), "who reads nothing falls out, with an error");
        drop(joiner);
        fill.write(piece.clone());
        assert!(fill.state.lock().pieces.len() <= 3, "without joiners there is no window");
        fill.leader_left();
        assert_eq!(fill.write(piece), Written::Pointless);
    }
}
