//! The store, beside a model: what is returned was put there whole under that key, what was purged or changed never
//! comes back, nothing is over the bound, and what is listed is what is there.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use arbitrary::{Arbitrary, Unstructured};
use bytes::Bytes;
use headwall::ResponseHeader;
use headwall::cache::fill::Terms;
use headwall::cache::key::Parts;
use headwall::cache::parts::Arrived;
use headwall::cache::policy::{Arrival, Life, Policy, Ttl, judge};
use headwall::cache::purge::{Manner, Purged, What};
use headwall::cache::reading::Handler;
use headwall::cache::storage::Decision;
use headwall::cache::{Cache, Limits};
use headwall::clock::{Clock, Moment};
use headwall::fields::range::Part;
use headwall::fuzzing::lists_nothing;
use headwall::memory::Usage;
use http::{HeaderMap, HeaderName};
use pingora::cache::key::HashBinary;
use pingora::cache::storage::{MissHandler, Storage};
use pingora::cache::trace::{Span, SpanHandle};
use pingora::cache::{CacheKey, CacheMeta};
use tokio::runtime::Runtime;

const KEYS: u8 = 6;
const VARIANTS: u8 = 3;
/// Parts are of a whole of this length, in slices of that one.
const LENGTH: u64 = 1000;
const SLICE: u64 = 256;
/// What an entry costs beside what it weighs: its key and its place.
const OVERHEAD: u64 = 16 + 256;
const PATIENCE: Duration = Duration::from_secs(60);
const LIMITS: Limits =
    Limits { memory: 60_000, max_object: 20_000, max_unsized: 10_000, fills: 30_000, max_variants: 3 };

#[derive(Debug, Arbitrary)]
enum Step {
    /// A response arrives; `pieces` says how much of it before the next step, and whether it ends then.
    Begin {
        key: u8,
        variant: u8,
        tag: u8,
        seconds: u8,
        pieces: u8,
        ends: bool,
    },
    /// One that is arriving goes on, and ends, or breaks off.
    Go {
        which: u8,
        pieces: u8,
        ends: Option<bool>,
    },
    Look {
        key: u8,
        variant: u8,
    },
    Freshen {
        key: u8,
        variant: u8,
        seconds: u8,
    },
    Part {
        key: u8,
        tag: u8,
        first: u16,
        length: u16,
        again: bool,
    },
    Row {
        key: u8,
        from: u16,
    },
    Purge {
        what: u8,
        soft: bool,
    },
    Change {
        key: u8,
    },
    Wait {
        seconds: u8,
    },
    Sweep,
}

thread_local! {
    /// The store lives for ever, so there is one for all runs.
    static KNOWN: OnceCell<(Runtime, &'static Cache, Clock)> = const { OnceCell::new() };
}

/// A few steps.
pub fn run(data: &[u8]) {
    let Ok(steps) = Vec::<Step>::arbitrary(&mut Unstructured::new(data)) else { return };
    KNOWN.with(|known| {
        let (runtime, cache, clock) = known.get_or_init(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let clock = Clock::system();
            (runtime, Cache::leak(LIMITS, clock.clone()), clock)
        });
        let _within = runtime.enter();
        let mut model = Model::new(cache, clock);
        for step in steps.iter().take(200) {
            model.step(step);
            assert!(cache.usage().bytes <= LIMITS.memory, "{:?} after {step:?}", cache.usage());
            assert!(cache.filling().1 <= LIMITS.fills, "{:?} after {step:?}", cache.filling());
        }
        model.end();
    });
}

/// A response that is arriving.
struct Arriving {
    number: u64,
    place: (u8, u8),
    writer: MissHandler,
    written: u64,
    /// What names it for a purge.
    tag: u8,
    /// Until when it will be fresh.
    until: Until,
    spoilt: bool,
    since: Moment,
}

/// A moment, at the earliest and at the latest: time passes while something is done, too.
type Until = (Moment, Moment);

/// One that has arrived.
struct Whole {
    place: (u8, u8),
    tag: u8,
    length: u64,
    /// Until when it is fresh.
    until: Until,
    /// It must not come back.
    gone: bool,
}

struct Model<'a> {
    cache: &'static Cache,
    clock: &'a Clock,
    next: u64,
    arriving: Vec<Arriving>,
    whole: HashMap<u64, Whole>,
    /// Tags of parts by what they were stored with, since the last change of their key.
    parts: HashMap<u8, HashSet<u8>>,
    /// There was a soft purge.
    softened: bool,
}

/// What must not wait, does not.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

fn nobody() -> SpanHandle {
    Span::inactive().handle()
}

fn no_variant(_: &[HeaderName]) -> Option<HashBinary> {
    None
}

fn host(key: u8) -> String {
    format!("{}.test", key % 2)
}

fn target(key: u8) -> String {
    format!("/{}/{key}", key % 3)
}

/// Content tells its number in every eight bytes.
fn content(number: u64, from: u64, length: u64) -> Bytes {
    (from..from + length).map(|at| number.to_be_bytes()[(at % 8) as usize]).collect()
}

/// The byte of a part: it tells the tag.
fn byte(tag: u8, at: u64) -> u8 {
    tag.wrapping_mul(31).wrapping_add(at as u8)
}

impl<'a> Model<'a> {
    fn new(cache: &'static Cache, clock: &'a Clock) -> Self {
        Model {
            cache,
            clock,
            next: 1,
            arriving: Vec::new(),
            whole: HashMap::new(),
            parts: HashMap::new(),
            softened: false,
        }
    }

    fn key(&self, key: u8, variant: u8) -> CacheKey {
        let (host, target) = (host(key), target(key));
        let parts = Parts {
            scheme: "http",
            host: &host,
            forwarded_host: b"",
            target: target.as_bytes(),
            upstream: "app",
            selector: "",
        };
        let mut key = self.cache.key(&parts).0;
        if variant > 0 {
            key.set_variance_key([variant; 16]);
        }
        key
    }

    fn life(&self, seconds: u8) -> Life {
        let at = Arrival { now: self.clock.now(), wall: SystemTime::now(), delay: Duration::ZERO, age: Duration::ZERO };
        let ttl = Ttl { any: Some(Duration::from_secs(seconds.into())), ..Ttl::default() };
        let policy = Policy { force: true, ttl, ..Policy::default() };
        let head = ResponseHeader::build(200, None).unwrap();
        judge(&HeaderMap::new(), &head, &policy, at).unwrap()
    }

    fn head(&self, status: u16, tag: u8, name: u64) -> ResponseHeader {
        let mut head = ResponseHeader::build(status, None).unwrap();
        head.insert_header("cache-tag", format!("all, t{}", tag % 4)).unwrap();
        head.insert_header("etag", format!("\"{name}\"")).unwrap();
        head
    }

    fn meta(&self, tag: u8, number: u64, seconds: u8, variant: u8) -> CacheMeta {
        let terms = Terms { length: None, limit: LIMITS.max_unsized, patience: PATIENCE };
        let decision = Decision { life: self.life(seconds), terms, validated: None, seed: None };
        let mut meta = self.cache.meta(self.head(200, tag, number), decision);
        if variant > 0 {
            meta.set_variance([variant; 16]);
        }
        meta
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Begin { key, variant, tag, seconds, pieces, ends } => {
                let (place, number) = ((key % KEYS, variant % VARIANTS), self.next);
                self.next += 1;
                let (key, since) = (self.key(place.0, place.1), self.clock.now());
                let meta = self.meta(tag, number, seconds, place.1);
                let until = self.until(since, seconds);
                let opened = at_once(self.cache.get_miss_handler(&key, &meta, &nobody())).expect("it does not wait");
                let Ok(writer) = opened else { return };
                self.arriving.push(Arriving {
                    number,
                    place,
                    writer,
                    written: 0,
                    tag: tag % 4,
                    until,
                    spoilt: false,
                    since,
                });
                let last = self.arriving.len() - 1;
                self.go(last, pieces, ends.then_some(true));
            }
            Step::Go { which, pieces, ends } if !self.arriving.is_empty() => {
                self.go(usize::from(which) % self.arriving.len(), pieces, ends);
            }
            Step::Look { key, variant } => self.look(key % KEYS, variant % VARIANTS),
            Step::Freshen { key, variant, seconds } => self.freshen(key % KEYS, variant % VARIANTS, seconds),
            Step::Part { key, tag, first, length, again } => {
                self.part(key % KEYS, tag, first.into(), length.into(), again)
            }
            Step::Row { key, from } => self.row(key % KEYS, from.into()),
            Step::Purge { what, soft } => self.purge(what, soft),
            Step::Change { key } => {
                let key = key % KEYS;
                self.cache.invalidate(&self.key(key, 0));
                self.gone(|place, _| place.0 == key, false);
                self.parts.remove(&key);
            }
            Step::Wait { seconds } => {
                let span = Duration::from_secs(seconds.into());
                // What a change has spoilt is remembered for two minutes, longer than any response may take here.
                let then = self.clock.now().after(span);
                self.arriving.retain(|arriving| then.since(arriving.since) < Duration::from_secs(100));
                self.clock.advance(span);
            }
            Step::Sweep => {
                self.cache.sweep();
                self.count();
            }
            Step::Go { .. } => {}
        }
    }

    fn go(&mut self, which: usize, pieces: u8, ends: Option<bool>) {
        let arriving = &mut self.arriving[which];
        for piece in 0..pieces % 8 {
            let length = 1 + u64::from(pieces) * 7 * u64::from(piece);
            let bytes = content(arriving.number, arriving.written, length);
            if at_once(arriving.writer.write_body(bytes, false)).expect("it does not wait").is_err() {
                break;
            }
            arriving.written += length;
        }
        let Some(whole) = ends else { return };
        let Arriving { number, place, writer, written, tag, until, spoilt, .. } = self.arriving.swap_remove(which);
        if whole {
            let _ = at_once(writer.finish()).expect("it does not wait");
            self.whole.insert(number, Whole { place, tag, length: written, until, gone: spoilt });
        }
    }

    /// From now on what fits does not come back, or with `soft` is stale.
    fn gone(&mut self, fits: impl Fn((u8, u8), u8) -> bool, soft: bool) {
        let now = self.clock.now();
        for whole in self.whole.values_mut().filter(|whole| fits(whole.place, whole.tag)) {
            whole.gone |= !soft;
            whole.until = (whole.until.0.min(now), whole.until.1.min(now));
        }
        // What is on its way is not stored, in any case.
        for arriving in self.arriving.iter_mut().filter(|arriving| fits(arriving.place, arriving.tag)) {
            arriving.spoilt = true;
        }
    }

    fn look(&self, key: u8, variant: u8) {
        let name = self.key(key, variant);
        let Some((meta, mut handler)) =
            at_once(self.cache.lookup(&name, &nobody())).expect("it does not wait").unwrap()
        else {
            return;
        };
        let head = meta.response_header();
        let number: u64 = head.headers["etag"].to_str().unwrap().trim_matches('"').parse().unwrap();
        let mut read = Vec::new();
        // `None` is "not yet".
        let complete = loop {
            match at_once(handler.read_body()) {
                Some(Ok(Some(piece))) => read.extend_from_slice(&piece),
                Some(Ok(None)) => break true,
                Some(Err(_)) | None => break false,
            }
        };
        assert_eq!(read, content(number, 0, read.len() as u64), "{number} at {key}, {variant}");
        if let Some(arriving) = self.arriving.iter().find(|arriving| arriving.number == number) {
            assert!(!complete && !arriving.spoilt && arriving.place == (key, variant), "{number} was joined");
            return;
        }
        let whole = self.whole.get(&number).unwrap_or_else(|| panic!("{number} never was whole"));
        assert!(!whole.gone, "{number} has come back");
        assert_eq!(whole.place, (key, variant), "{number} is not from there");
        assert_eq!((complete, read.len() as u64), (true, whole.length), "{number}");
        assert_eq!(head.headers["content-length"].to_str().unwrap(), whole.length.to_string());
        let before = self.clock.now();
        let fresh = meta.is_fresh(SystemTime::now());
        assert!(!fresh || before <= whole.until.1, "{number} is fresh no more");
        assert!(fresh || self.clock.now() >= whole.until.0, "{number} is fresh");
    }

    fn until(&self, before: Moment, seconds: u8) -> Until {
        let span = Duration::from_secs(seconds.into());
        (before.after(span), self.clock.now().after(span))
    }

    fn freshen(&mut self, key: u8, variant: u8, seconds: u8) {
        let name = self.key(key, variant);
        let Some((_, handler)) = at_once(self.cache.lookup(&name, &nobody())).expect("it does not wait").unwrap()
        else {
            return;
        };
        let head = handler.as_any().downcast_ref::<Handler>().and_then(Handler::head).unwrap().clone();
        let number: u64 = head.response.headers["etag"].to_str().unwrap().trim_matches('"').parse().unwrap();
        let Some(whole) = self.whole.get_mut(&number) else { return };
        let tag = whole.tag;
        let terms = Terms { length: None, limit: LIMITS.max_unsized, patience: PATIENCE };
        let before = self.clock.now();
        let (life, seed) = (self.life(seconds), None);
        let until = self.until(before, seconds);
        let meta = self.cache.meta(self.head(200, tag, number), Decision { life, terms, validated: Some(head), seed });
        if at_once(self.cache.update_meta(&name, &meta, &nobody())).expect("it does not wait").unwrap()
            && let Some(whole) = self.whole.get_mut(&number)
        {
            whole.until = until;
        }
    }

    fn part(&mut self, key: u8, tag: u8, first: u64, length: u64, again: bool) {
        let first = first % LENGTH;
        let last = (first + length % LENGTH).min(LENGTH - 1);
        let (name, part) = (self.key(key, 0), Part::of(first, last, LENGTH).unwrap());
        let (response, life) = (self.head(206, 0, u64::from(tag)), self.life(60));
        let arrived = Arrived { response: &response, part, life, slice: SLICE, conditional: again };
        let Some(sheet) = self.cache.open(&name, no_variant, &arrived) else {
            assert!(again, "a part is refused for no reason");
            return;
        };
        self.parts.entry(key).or_default().insert(tag);
        let mut taking = self.cache.take_part(sheet, &part, life.asked, PATIENCE, None);
        taking.write((first..=last).map(|at| byte(tag, at)).collect());
    }

    fn row(&self, key: u8, from: u64) {
        let from = from % LENGTH;
        let Some(sheet) = self.cache.sheet(&self.key(key, 0), no_variant) else { return };
        let tag: u64 = sheet.head.response.headers["etag"].to_str().unwrap().trim_matches('"').parse().unwrap();
        let known = self.parts.get(&key).is_some_and(|tags| tags.contains(&(tag as u8)));
        assert!(known, "parts of {tag} have come back at {key}");
        let mut pieces = Vec::new();
        let end = self.cache.row(&sheet, from, LENGTH, &mut pieces);
        let expected: Vec<u8> = (from..end).map(|at| byte(tag as u8, at)).collect();
        assert_eq!(pieces.concat(), expected, "of {tag} at {key}");
        assert_eq!(self.cache.reach(&sheet, from, LENGTH), end);
        if let Some((first, behind)) = self.cache.gap(&sheet) {
            assert!(first <= behind && behind <= LENGTH);
            assert_eq!(self.cache.reach(&sheet, 0, LENGTH), first);
            assert_eq!(self.cache.reach(&sheet, behind, LENGTH).max(behind), LENGTH, "behind the gap all is there");
        }
    }

    fn purge(&mut self, what: u8, soft: bool) {
        let key = what / 8 % KEYS;
        let (what, tag) = match what % 8 {
            0 => (What::All, None),
            1 => (What::Tag("all".into()), None),
            2 | 3 => (What::Tag(format!("t{}", key % 4)), Some(key % 4)),
            4 => (What::Target(Some(host(key)), target(key)), None),
            5 => (What::Target(None, target(key)), None),
            6 => (What::Beginning(Some(host(key)), "/".into()), None),
            _ => (What::Beginning(None, format!("/{}/", key % 3)), None),
        };
        let named = |other: u8| match &what {
            What::All | What::Tag(_) => true,
            What::Target(..) => other == key,
            What::Beginning(Some(_), _) => host(other) == host(key),
            What::Beginning(None, _) => other % 3 == key % 3,
        };
        let dry = self.cache.purge(&what, Manner { soft, dry_run: true });
        let done = self.cache.purge(&what, Manner { soft, dry_run: false });
        // What a soft purge has made stale, and cannot be validated, may expire in between.
        assert!(
            dry == done || (self.softened && done.entries < dry.entries),
            "{what:?} counts {dry:?} and does {done:?}"
        );
        self.softened |= soft;
        if !soft {
            assert_eq!(self.cache.purge(&what, Manner { soft, dry_run: true }).entries, 0, "{what:?} leaves something");
            // Parts have the tag t0.
            self.parts.retain(|other, _| !(named(*other) && tag.is_none_or(|tag| tag == 0)));
        }
        self.gone(|place, its| named(place.0) && tag.is_none_or(|tag| tag == its), soft);
    }

    /// What is listed is what is there, and weighs what it is said to weigh.
    fn count(&self) {
        let dry = Manner { soft: false, dry_run: true };
        let look = || {
            self.cache.sweep();
            let on = |key| self.cache.purge(&What::Beginning(Some(host(key)), String::new()), dry).entries;
            let listed = self.cache.purge(&What::All, dry);
            (self.cache.usage(), listed, self.cache.purge(&What::Tag("all".into()), dry), on(0) + on(1))
        };
        // What expires between two of these looks was there for one of them only: then they are repeated.
        let agree =
            |(_, listed, tagged, hosts): &(_, Purged, Purged, u64)| listed == tagged && listed.entries == *hosts;
        // What is arriving is stored, and listed for nobody.
        let busy = !self.arriving.is_empty();
        let same = |seen: &(Usage, Purged, Purged, u64)| agree(seen) && (busy || seen.0.entries == seen.1.entries);
        let (usage, listed, tagged, hosts) = (0..5).map(|_| look()).find(same).unwrap_or_else(look);
        assert_eq!((listed, listed.entries), (tagged, hosts));
        if self.arriving.is_empty() {
            assert_eq!(self.cache.filling(), (0, 0), "nothing is arriving");
            assert_eq!(usage.entries, listed.entries, "all that is stored is listed, and nothing else");
            assert_eq!(usage.bytes, listed.bytes + listed.entries * OVERHEAD, "{} entries", listed.entries);
        }
    }

    fn end(mut self) {
        self.arriving.clear();
        self.cache.sweep();
        self.count();
        let all = (0..KEYS).flat_map(|key| (0..VARIANTS).map(move |variant| (key, variant)));
        all.for_each(|(key, variant)| self.look(key, variant));
        (0..KEYS).for_each(|key| self.row(key, 0));
        self.cache.purge(&What::All, Manner::default());
        // What has expired meanwhile was not there for the purge.
        self.cache.sweep();
        let usage = self.cache.usage();
        assert_eq!((usage.entries, usage.bytes), (0, 0), "all was purged");
        assert!(lists_nothing(self.cache), "something stays listed that is gone");
        // What is remembered of changes and purges is old for the next run.
        self.clock.advance(Duration::from_secs(86_400));
        self.cache.sweep();
    }
}
