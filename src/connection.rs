//! A client's connection, watched: the engine reads and writes through it.
//!
//! It keeps the deadlines that the engine has not: one for a whole request head,
//! one for the first byte of an answer, one between two pieces of it, one for the next
//! request, and a pace for a client that sends content or takes what we have for it.
//! A deadline that passes looks to the engine like a read or write that failed; the
//! proxy asks [`Connection::expired`] which it was. What ended a connection that was
//! not to be served on is asked for when it is over ([`Connection::cut`]).
//!
//! A head that leaves waits for the first content, so that a small answer is one
//! packet. Content never waits, and no buffer is kept while a connection is idle.

pub mod pace;
mod watched;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use http::HeaderValue;
use pace::Pace;
use parking_lot::Mutex;
pub use watched::{LOOK, Watched, poll_timer};

/// How slowly the leader of a fill may take it while others wait for the same response.
const SLOWEST_WITH_JOINERS: Pace = Pace { rate: 8 << 10, grace: Duration::from_secs(2) };

/// What a connection is held to, from its settings (`limits`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of a head that are read before it has to be over.
    pub head: u64,
    /// A whole request head has to arrive within this: the first one from the connection on, later ones from
    /// their first byte.
    pub head_timeout: Duration,
    /// How long it may be without a request.
    pub idle: Duration,
    /// How slowly content may come.
    pub content: Pace,
    /// How slowly what we have may be taken.
    pub reading: Pace,
}

/// What the connection is doing, and so which deadline counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Between requests, or working on one without waiting for anybody.
    Quiet = 0,
    /// A head is arriving.
    Head = 1,
    /// The request is with the origin; nothing has come back.
    FirstByte = 2,
    /// The response is arriving.
    Reading = 3,
    /// The next request is awaited.
    Idle = 4,
    /// The request's content is awaited; it is whatever else is, too, so it is only ever what expired.
    Content = 5,
}

impl Phase {
    fn of(number: u8) -> Self {
        match number {
            1 => Phase::Head,
            2 => Phase::FirstByte,
            3 => Phase::Reading,
            4 => Phase::Idle,
            5 => Phase::Content,
            _ => Phase::Quiet,
        }
    }
}

/// Why a connection ended that was not to be served on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Cut {
    /// A head did not arrive in time.
    SlowHead = 1,
    /// A head grew past what it may be.
    LongHead = 2,
    /// The engine could not read a head.
    Unreadable = 3,
    /// Content came too slowly.
    SlowContent = 4,
    /// What we had was taken too slowly.
    SlowReader = 5,
}

impl Cut {
    const ALL: [Cut; 5] = [Cut::SlowHead, Cut::LongHead, Cut::Unreadable, Cut::SlowContent, Cut::SlowReader];

    /// For metrics and the log.
    pub fn reason(self) -> &'static str {
        match self {
            Cut::SlowHead => "slow-head",
            Cut::LongHead => "head-size",
            Cut::Unreadable => "unreadable",
            Cut::SlowContent => "slow-content",
            Cut::SlowReader => "slow-reader",
        }
    }
}

/// Whether content is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Awaited {
    No = 0,
    /// Its client waits to be told that it may send it.
    Offered = 1,
    Yes = 2,
}

/// What the proxy knows of a connection.
#[derive(Debug)]
pub struct Connection {
    /// The other end.
    pub peer: SocketAddr,
    born: Instant,
    bounds: Mutex<Bounds>,
    /// Bytes of the head that is arriving.
    head: AtomicU64,
    content: AtomicU8,
    /// It was answered before all of its content was read.
    unread: AtomicBool,
    cut: AtomicU8,
    phase: AtomicU8,
    limit_ms: AtomicU64,
    active_ms: AtomicU64,
    expired: AtomicU8,
    gone: AtomicBool,
    hold: AtomicBool,
    date: Mutex<Option<HeaderValue>>,
    reset: AtomicBool,
    joiners: Mutex<Option<Arc<AtomicUsize>>>,
    exchanges: AtomicU64,
}

impl Connection {
    /// One that has just begun.
    pub fn new(peer: SocketAddr, bounds: Bounds) -> Self {
        Connection {
            peer,
            born: Instant::now(),
            head: AtomicU64::new(0),
            content: AtomicU8::new(Awaited::No as u8),
            unread: AtomicBool::new(false),
            cut: AtomicU8::new(0),
            phase: AtomicU8::new(Phase::Head as u8),
            limit_ms: AtomicU64::new(bounds.head_timeout.as_millis() as u64),
            bounds: Mutex::new(bounds),
            active_ms: AtomicU64::new(0),
            expired: AtomicU8::new(0),
            gone: AtomicBool::new(false),
            hold: AtomicBool::new(false),
            date: Mutex::new(None),
            reset: AtomicBool::new(false),
            joiners: Mutex::new(None),
            exchanges: AtomicU64::new(0),
        }
    }

    /// From now on it is held to this.
    pub fn hold_to(&self, bounds: Bounds) {
        *self.bounds.lock() = bounds;
    }

    /// What it is held to.
    pub fn bounds(&self) -> Bounds {
        *self.bounds.lock()
    }

    fn now_ms(&self) -> u64 {
        self.born.elapsed().as_millis() as u64
    }

    /// A request's head is here; from now on the connection is held to this. Gives its number, from 1 on.
    pub fn head_here(&self, bounds: Bounds) -> u64 {
        self.hold_to(bounds);
        self.expired.store(0, Relaxed);
        self.content_over();
        self.enter(Phase::Quiet, Duration::ZERO);
        self.exchanges.fetch_add(1, Relaxed) + 1
    }

    /// The request has content, which its client may not send before it is told to ([`Connection::content_welcome`]).
    pub fn content_offered(&self) {
        self.content.store(Awaited::Offered as u8, Relaxed);
    }

    /// The client was told to go on; without an offer that means nothing.
    pub fn content_welcome(&self) {
        let _ = self.content.compare_exchange(Awaited::Offered as u8, Awaited::Yes as u8, Relaxed, Relaxed);
    }

    /// Content is awaited: from now on it has to come at its pace, whenever we wait for it.
    pub fn await_content(&self) {
        self.content.store(Awaited::Yes as u8, Relaxed);
    }

    /// Whether content is awaited.
    pub fn awaits_content(&self) -> bool {
        self.content.load(Relaxed) == Awaited::Yes as u8
    }

    /// No content is awaited any more: all of it is here, or what comes belongs to another protocol.
    pub fn content_over(&self) {
        self.content.store(Awaited::No as u8, Relaxed);
    }

    /// The exchange is over; the next byte begins a new head.
    pub fn exchange_over(&self) {
        *self.joiners.lock() = None;
        self.unread.store(self.content.swap(Awaited::No as u8, Relaxed) != Awaited::No as u8, Relaxed);
        let idle = self.bounds.lock().idle;
        self.enter(Phase::Idle, idle);
    }

    /// The request is with the origin: from now on its first byte is awaited, unless it is here already.
    pub fn await_first_byte(&self, limit: Duration) {
        if Phase::of(self.phase.load(Relaxed)) != Phase::Reading {
            self.enter(Phase::FirstByte, limit);
        }
    }

    /// From now on this deadline counts. A protocol that keeps its own ones enters [`Phase::Quiet`], where
    /// there is none, before it writes anything.
    pub fn enter(&self, phase: Phase, limit: Duration) {
        self.limit_ms.store(limit.as_millis() as u64, Relaxed);
        self.touch();
        self.phase.store(phase as u8, Relaxed);
    }

    /// Something moved: the deadline begins anew.
    pub fn touch(&self) {
        self.active_ms.store(self.now_ms(), Relaxed);
    }

    /// The deadline that passed, if one did.
    pub fn expired(&self) -> Option<Phase> {
        Some(Phase::of(self.expired.load(Relaxed))).filter(|phase| *phase != Phase::Quiet)
    }

    /// Why it was not served on, if that is how it ended.
    pub fn cut(&self) -> Option<Cut> {
        let number = self.cut.load(Relaxed);
        Cut::ALL.into_iter().find(|cut| *cut as u8 == number)
    }

    /// It is not to be served on. The first reason is the reason.
    pub fn cut_for(&self, reason: Cut) {
        let _ = self.cut.compare_exchange(0, reason as u8, Relaxed, Relaxed);
    }

    fn phase(&self) -> Phase {
        Phase::of(self.phase.load(Relaxed))
    }

    /// A head is arriving, and is longer than it may be.
    fn too_long(&self) -> bool {
        self.phase() == Phase::Head && self.head.load(Relaxed) > self.bounds.lock().head
    }

    /// A deadline passed.
    pub fn expire(&self, phase: Phase) {
        self.expired.store(phase as u8, Relaxed);
        match phase {
            // Who connects and says nothing is only idle.
            Phase::Head if self.head.load(Relaxed) > 0 => self.cut_for(Cut::SlowHead),
            Phase::Content => self.cut_for(Cut::SlowContent),
            _ => {}
        }
    }

    /// Whether the client has closed, or nothing can be sent to it.
    pub fn gone(&self) -> bool {
        self.gone.load(Relaxed)
    }

    /// The client has left, or is to be left alone.
    pub fn leave(&self) {
        self.gone.store(true, Relaxed);
    }

    /// A head is about to be written: it may wait for its first content. The engine puts its own time on it;
    /// `date` is the one that it came with.
    pub fn hold_head(&self, date: Option<HeaderValue>) {
        *self.date.lock() = date;
        self.hold.store(true, Relaxed);
    }

    /// The message broke and its end would look like a clean one: the connection is to be reset.
    pub fn reset(&self) {
        self.reset.store(true, Relaxed);
    }

    /// This client leads a fill; it must not keep so many others waiting.
    pub fn lead(&self, joiners: Arc<AtomicUsize>) {
        *self.joiners.lock() = Some(joiners);
    }

    /// When the deadline that counts passes, if one does, and which it is.
    pub fn deadline(&self) -> Option<(Instant, Phase)> {
        let phase = self.phase();
        if phase == Phase::Quiet {
            return None;
        }
        let ms = self.active_ms.load(Relaxed) + self.limit_ms.load(Relaxed);
        Some((self.born + Duration::from_millis(ms), phase))
    }

    fn read(&self, bytes: usize) {
        if bytes == 0 {
            return self.gone.store(true, Relaxed);
        }
        match self.phase() {
            Phase::Idle => {
                let limit = self.bounds.lock().head_timeout;
                self.head.store(bytes as u64, Relaxed);
                self.enter(Phase::Head, limit);
            }
            Phase::Head => {
                self.head.fetch_add(bytes as u64, Relaxed);
            }
            _ => {
                // Who sends it unasked does not wait to be told.
                self.content_welcome();
                self.touch();
            }
        }
    }

    /// How slow this client may be now.
    pub fn slowest(&self) -> Pace {
        let waiting = self.joiners.lock().as_ref().is_some_and(|joiners| joiners.load(Relaxed) > 0);
        if waiting { SLOWEST_WITH_JOINERS } else { self.bounds.lock().reading }
    }
}
