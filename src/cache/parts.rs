//! Responses of which only parts are stored (RFC 9111 §3.3 and §3.4).
//!
//! A [`Sheet`] says what is known of the whole. The content lies in slices of one size, each with a place of its
//! own in the store, so that a long one comes, goes and is evicted slice by slice. What is put together has one
//! strong validator: a part with another one, or with none, begins a new sheet, and what belonged to the old one
//! is not found any more.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, DATE, ETAG, LAST_MODIFIED, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use pingora::cache::CacheKey;
use pingora::cache::key::{CacheHashKey, HashBinary};
use pingora::http::ResponseHeader;

use super::Cache;
use super::index::Listing;
use super::policy::Life;
use super::storage::Slot;
use super::stored::{Content, Head, compact, set_length, weight};
use crate::clock::Moment;
use crate::fields::range::Part;
use crate::fields::{date, vary};
use crate::memory::Change;

/// Slices where the route does not say how long they are.
pub const SLICE: u64 = 1 << 20;

/// Between a change and a response whose date then names the bytes.
const A_WHILE: Duration = Duration::from_secs(60);

/// So many stretches of one slice that do not touch are kept apart.
const RUNS: usize = 64;

/// A whole of more slices than this is not completed.
const MOST_SLICES: u64 = 4096;

/// What is known of a response of which parts are stored.
#[derive(Debug)]
pub struct Sheet {
    /// The head that the whole would have.
    pub head: Arc<Head>,
    /// The length of the whole.
    pub length: u64,
    /// The length of its slices, but for the last one.
    pub slice: u64,
    /// Tells it from all others: what is stored for another one is not for this.
    pub generation: u64,
    /// Parts that come later may belong to it.
    strong: bool,
    primary: HashBinary,
    place: HashBinary,
}

/// What is stored of one slice.
#[derive(Debug)]
pub struct Slice {
    generation: u64,
    pub(super) listing: Arc<Listing>,
    runs: Vec<Run>,
}

/// Bytes that stand in a row.
#[derive(Debug, Clone)]
struct Run {
    first: u64,
    content: Arc<Content>,
}

/// What is stored of a whole before and behind a gap.
#[derive(Debug, Clone, Default)]
pub struct Seed {
    /// In the order of the content.
    pub before: Vec<Bytes>,
    /// In the order of the content.
    pub after: Vec<Bytes>,
}

impl Run {
    fn end(&self) -> u64 {
        self.first + self.content.length
    }

    /// The pieces between two bytes, which lie within.
    fn pieces(&self, from: u64, to: u64, out: &mut Vec<Bytes>) {
        let mut at = self.first;
        for piece in &self.content.pieces {
            let (first, end) = (at, at + piece.len() as u64);
            at = end;
            if end > from && first < to {
                out.push(piece.slice(from.saturating_sub(first) as usize..(to.min(end) - first) as usize));
            }
        }
    }
}

impl Slice {
    /// What a slice weighs in memory.
    pub(super) fn weight(&self) -> u64 {
        let content = |run: &Run| run.content.length + run.content.pieces.len() as u64 * 48 + 160;
        self.runs.iter().map(content).sum::<u64>() + self.listing.weight() + 96
    }

    /// How far what stands in a row from this byte on goes.
    fn reach(&self, from: u64, to: u64) -> u64 {
        self.runs.iter().fold(from, |at, run| if run.first <= at && at < run.end() { run.end().min(to) } else { at })
    }

    /// What stands in a row from this byte on; where it ends.
    fn stretch(&self, from: u64, to: u64, out: &mut Vec<Bytes>) -> u64 {
        let mut at = from;
        for run in &self.runs {
            if run.first <= at && at < run.end() {
                let end = run.end().min(to);
                run.pieces(at, end, out);
                at = end;
            }
        }
        at
    }

    /// The same and what of this part was not there before; `None` when nothing is new, or there are too many
    /// stretches apart.
    fn with(&self, first: u64, content: &Arc<Content>) -> Option<Vec<Run>> {
        let new = Run { first, content: content.clone() };
        let mut runs = self.runs.clone();
        let mut at = first;
        for run in self.runs.iter().chain([&Run { first: new.end(), content: Arc::default() }]) {
            let end = run.first.min(new.end());
            if at < end {
                let mut pieces = Vec::new();
                new.pieces(at, end, &mut pieces);
                let content = Content { pieces: pieces.into(), length: end - at, coded: Arc::default() };
                runs.push(Run { first: at, content: Arc::new(content) });
            }
            at = at.max(run.end());
        }
        if runs.len() == self.runs.len() {
            return None;
        }
        runs.sort_by_key(|run| run.first);
        let runs = joined(runs);
        (runs.len() <= RUNS).then_some(runs)
    }
}

/// Stretches that touch become one.
fn joined(runs: Vec<Run>) -> Vec<Run> {
    let mut joined: Vec<Run> = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(last) if last.end() == run.first => {
                let pieces = last.content.pieces.iter().chain(&run.content.pieces).cloned();
                last.content = Arc::new(Content::new(pieces));
            }
            _ => joined.push(run),
        }
    }
    joined
}

/// What names the bytes of a representation for certain (RFC 9110 §8.8.1): a strong tag, or a date a while before
/// the response was made (§8.8.2.2).
fn strong(fields: &HeaderMap) -> bool {
    strong_tag(fields).is_some() || strong_date(fields).is_some()
}

fn strong_tag(fields: &HeaderMap) -> Option<&HeaderValue> {
    fields.get(ETAG).filter(|tag| !tag.as_bytes().starts_with(b"W/"))
}

fn strong_date(fields: &HeaderMap) -> Option<&HeaderValue> {
    // Only what a year of two digits means depends on today.
    let today = SystemTime::now();
    let (modified, made) = (date::of(fields, LAST_MODIFIED, today)?, date::of(fields, DATE, today)?);
    fields.get(LAST_MODIFIED).filter(|_| made.duration_since(modified).is_ok_and(|since| since >= A_WHILE))
}

/// Whether two heads name the same bytes for certain.
fn same(one: &HeaderMap, other: &HeaderMap) -> bool {
    // A weak tag says too little, but what it says counts beside a date.
    let dated = || strong_date(one).is_some() && strong_date(one) == strong_date(other);
    one.get(ETAG) == other.get(ETAG) && (strong_tag(one).is_some() || dated())
}

/// Which part a response brings, as far as it is one that can be kept.
pub fn part(response: &ResponseHeader) -> Option<Part> {
    let fields = &response.headers;
    let said = fields.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.trim().parse::<u64>().ok());
    if response.status == StatusCode::OK {
        let length = said?;
        return Part::of(0, length.checked_sub(1)?, length);
    }
    let mut lines = fields.get_all(CONTENT_RANGE).iter();
    let part = Part::read(lines.next()?.as_bytes()).filter(|_| lines.next().is_none())?;
    match said {
        None => Some(part),
        Some(said) if said == part.size() => Some(part),
        // Off by some at the end of the whole: what is there counts, and the whole ends there. Nothing is ever put
        // together with it.
        Some(said) if said > 0 && said < part.size() && part.last + 1 == part.length && !strong(fields) => {
            let end = part.first + said;
            Some(Part { last: end - 1, length: end, ..part })
        }
        Some(_) => None,
    }
}

/// The head that the whole would have.
pub fn whole(response: &ResponseHeader, length: u64) -> ResponseHeader {
    let mut whole = response.clone();
    let _ = whole.set_status(StatusCode::OK);
    for name in [&CONTENT_RANGE, &TRANSFER_ENCODING] {
        whole.remove_header(name);
    }
    set_length(&mut whole, length);
    whole
}

/// The stored head with what a newer one says (RFC 9111 §3.4).
pub fn merged(stored: &ResponseHeader, newer: &ResponseHeader) -> ResponseHeader {
    let mut merged = stored.clone();
    for name in newer.headers.keys().filter(|name| **name != CONTENT_LENGTH) {
        merged.remove_header(name);
        for value in newer.headers.get_all(name) {
            let _ = merged.append_header(name, value.clone());
        }
    }
    merged
}

impl Sheet {
    /// Whether a part may be put together with those of this sheet (RFC 9111 §3.4).
    pub fn fits(&self, part: &Part, fields: &HeaderMap) -> bool {
        self.strong && self.length == part.length && same(&self.head.response.headers, fields)
    }

    /// The condition under which the origin sends another part of it, and not of something else.
    pub fn condition(&self) -> Option<&HeaderValue> {
        let fields = &self.head.response.headers;
        // Where there is a weak tag, a date is no condition for a part (RFC 9110 §13.1.5).
        strong_tag(fields).or_else(|| strong_date(fields).filter(|_| !fields.contains_key(ETAG)))
    }

    fn index(&self, at: u64) -> u64 {
        at / self.slice
    }

    /// The same, stale from now on.
    pub(super) fn stale(&self, now: Moment) -> Sheet {
        let Head { response, life, listing, .. } = &*self.head;
        Sheet { head: self.head.renewed(response, life.over(now), self.length, listing.clone()), ..*self }
    }

    pub(super) fn weight(&self) -> u64 {
        weight(&self.head.response) + self.head.listing.weight() + self.head.key.len() as u64 + 160
    }
}

impl Cache {
    /// Where the sheet of a target stands, and of one of its variants.
    fn sheet_place(&self, primary: HashBinary, variance: Option<HashBinary>) -> HashBinary {
        let mut from = primary;
        for (byte, other) in from.iter_mut().zip(variance.unwrap_or_default()) {
            *byte ^= other;
        }
        self.keys.derived(from, u64::MAX)
    }

    fn sheet_at(&self, place: HashBinary, key: &CacheKey) -> Option<Arc<Sheet>> {
        match self.map.get(&place, self.clock.now())? {
            Slot::Sheet(sheet) if *sheet.head.key == *key.primary_key() => Some(sheet),
            _ => None,
        }
    }

    /// What is known of a target of which parts are stored; `variant` names the one that is asked for.
    pub fn sheet(&self, key: &CacheKey, variant: impl Fn(&[HeaderName]) -> Option<HashBinary>) -> Option<Arc<Sheet>> {
        let primary = key.primary_bin();
        let first = self.sheet_at(self.sheet_place(primary, None), key)?;
        let variance = variant(&first.head.nominated);
        if first.head.variance == variance {
            return Some(first);
        }
        let other = self.sheet_at(self.sheet_place(primary, variance), key)?;
        (other.head.variance == variant(&other.head.nominated)).then_some(other)
    }

    /// Where the sheet of this variant stands, as far as it is known what chooses.
    pub(super) fn place_of_sheet(
        &self,
        key: &CacheKey,
        variant: impl Fn(&[HeaderName]) -> Option<HashBinary>,
    ) -> HashBinary {
        let primary = key.primary_bin();
        let first = self.sheet_place(primary, None);
        match self.sheet_at(first, key).map(|sheet| (sheet.head.variance, variant(&sheet.head.nominated))) {
            Some((there, asked)) if there != asked => self.sheet_place(primary, asked),
            _ => first,
        }
    }

    /// The sheet of a part that has come: the one that is there, freshened, or a new one. `None` when the target
    /// was changed meanwhile.
    pub fn open(
        &self,
        key: &CacheKey,
        variant: impl Fn(&[HeaderName]) -> Option<HashBinary>,
        response: &ResponseHeader,
        part: &Part,
        life: Life,
        slice: u64,
    ) -> Option<Arc<Sheet>> {
        let (primary, now) = (key.primary_bin(), self.clock.now());
        let nominated: Arc<[HeaderName]> = vary::nominated(&response.headers).ok()?.into();
        let variance = variant(&nominated);
        let first = self.sheet_place(primary, None);
        // The first one that came stands where all look first, as long as the same fields choose.
        let place = match self.sheet_at(first, key) {
            Some(there) if there.head.nominated == nominated && there.head.variance != variance => {
                self.sheet_place(primary, variance)
            }
            _ => first,
        };
        let there = self.sheet_at(place, key);
        let kept = there.as_ref().filter(|there| {
            let chosen = there.head.nominated == nominated && there.head.variance == variance;
            chosen && there.slice == slice && there.fits(part, &response.headers)
        });
        // The newer of two words counts.
        if let Some(newer) = kept.filter(|there| there.head.life.received > life.received) {
            return Some(newer.clone());
        }
        let mut head = whole(response, part.length);
        if let Some(there) = kept {
            head = merged(&there.head.response, &head);
        }
        let listing = match kept {
            Some(there) => self.list_again(&there.head, &head, place),
            None => self.list(key.primary_key(), &head, place),
        };
        let strong = strong(&head.headers);
        let sheet = Arc::new(Sheet {
            head: Arc::new(Head {
                key: key.primary_key().into(),
                variance,
                response: compact(&head),
                nominated,
                life,
                created: self.clock.steady(),
                listing,
            }),
            length: part.length,
            slice,
            generation: kept.map_or_else(|| self.next_fill(), |there| there.generation),
            strong,
            primary,
            place,
        });
        for gone in self.families.add(primary, place, life.kept(), now) {
            self.forget(gone);
        }
        self.parted.store(true, Relaxed);
        let put = self.map.update(place, now, |now_there| {
            let changed = match (now_there, &there) {
                (Some(Slot::Sheet(now_there)), Some(there)) => !Arc::ptr_eq(now_there, there),
                (Some(Slot::Sheet(_)), None) => true,
                _ => false,
            };
            // Noted before it takes things out, so no invalidation gets between this look and the change.
            if changed || self.spoilt(primary, &sheet.head) {
                return (Change::Keep, false);
            }
            let (weight, expires) = (sheet.weight(), Some(life.kept()));
            (Change::Put { value: Slot::Sheet(sheet.clone()), weight, expires }, true)
        });
        put.then_some(sheet)
    }

    /// Keeps bytes of one slice, which were asked for then, unless the target was changed since.
    pub fn keep(&self, sheet: &Sheet, first: u64, content: Content, asked: Moment) {
        let (index, now) = (sheet.index(first), self.clock.now());
        let end = ((index + 1) * sheet.slice).min(sheet.length);
        if content.length == 0 || first + content.length > end {
            return;
        }
        let place = self.keys.derived(sheet.place, index);
        let listing = self.list(&sheet.head.key, &sheet.head.response, place);
        let content = Arc::new(content);
        self.map.update(place, now, |there| {
            if self.spoilt_since(sheet.primary, asked, &sheet.head.listing) {
                return (Change::Keep, ());
            }
            let (listing, runs) = match there {
                Some(Slot::Slice(there)) if there.generation == sheet.generation => match there.with(first, &content) {
                    Some(runs) => (there.listing.clone(), runs),
                    None => return (Change::Keep, ()),
                },
                _ => (listing, vec![Run { first, content }]),
            };
            let slice = Arc::new(Slice { generation: sheet.generation, listing, runs });
            let (weight, expires) = (slice.weight(), Some(sheet.head.life.kept()));
            (Change::Put { value: Slot::Slice(slice), weight, expires }, ())
        });
    }

    fn slice(&self, sheet: &Sheet, index: u64) -> Option<Arc<Slice>> {
        match self.map.get(&self.keys.derived(sheet.place, index), self.clock.now())? {
            Slot::Slice(slice) if slice.generation == sheet.generation => Some(slice),
            _ => None,
        }
    }

    /// What is stored in a row from one byte to another, at most to the end of a slice; where it ends.
    pub fn stretch(&self, sheet: &Sheet, from: u64, to: u64, out: &mut Vec<Bytes>) -> u64 {
        let index = sheet.index(from);
        let to = to.min((index + 1) * sheet.slice);
        self.slice(sheet, index).map_or(from, |slice| slice.stretch(from, to, out))
    }

    /// How far what is stored in a row goes, over all slices.
    pub fn reach(&self, sheet: &Sheet, from: u64, to: u64) -> u64 {
        let mut at = from;
        while at < to {
            let index = sheet.index(at);
            let stop = to.min((index + 1) * sheet.slice);
            at = self.slice(sheet, index).map_or(at, |slice| slice.reach(at, stop));
            if at < stop {
                break;
            }
        }
        at
    }

    /// The gap between what is stored in a row from the beginning and in a row up to the end: its first byte and the
    /// one behind it, the same where nothing is missing. `None` when the slices cannot all be looked at.
    pub fn gap(&self, sheet: &Sheet) -> Option<(u64, u64)> {
        let slices = sheet.length.div_ceil(sheet.slice);
        let first = self.reach(sheet, 0, sheet.length);
        if first == sheet.length || slices > MOST_SLICES {
            return (first == sheet.length).then_some((first, first));
        }
        let mut end = sheet.length;
        for index in (sheet.index(first)..slices).rev() {
            let runs = self.slice(sheet, index);
            for run in runs.iter().flat_map(|slice| slice.runs.iter().rev()) {
                if run.end() < end {
                    break;
                }
                end = run.first.min(end);
            }
            if end > index * sheet.slice {
                break;
            }
        }
        Some((first, end.max(first)))
    }

    /// What is stored in a row from one byte on, over all slices; where it ends.
    pub fn row(&self, sheet: &Sheet, from: u64, to: u64, out: &mut Vec<Bytes>) -> u64 {
        let mut at = from;
        while at < to {
            let end = self.stretch(sheet, at, to, out);
            if end == at {
                break;
            }
            at = end;
        }
        at
    }

    /// The whole is stored now: its parts are not looked at any more.
    pub(super) fn parts_are_over(&self, primary: HashBinary, variance: Option<HashBinary>) {
        if self.parted.load(Relaxed) {
            self.forget(self.sheet_place(primary, variance));
            self.forget(self.sheet_place(primary, None));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::index::Index;
    use crate::fields::fields;

    fn response(status: u16, lines: &str) -> ResponseHeader {
        let mut response = ResponseHeader::build(status, None).unwrap();
        for (name, value) in &fields(lines) {
            response.append_header(name.clone(), value.clone()).unwrap();
        }
        response
    }

    #[test]
    fn a_slice_is_what_its_parts_add_up_to() {
        let whole: Vec<u8> = (0..200).collect();
        let listing = Arc::new(Arc::new(Index::default()).list("", "", &[], [0; 16]));
        // The same every time, and of no pattern.
        let mut seed = 7_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..300 {
            let mut slice = Slice { generation: 1, listing: listing.clone(), runs: Vec::new() };
            let mut there = [false; 200];
            for _ in 0..12 {
                let first = random(190);
                let end = (first + 1 + random(40)).min(200);
                let bytes = Bytes::copy_from_slice(&whole[first as usize..end as usize]);
                let content = Arc::new(Content::new([bytes]));
                let new = (first..end).any(|at| !there[at as usize]);
                match slice.with(first, &content) {
                    Some(runs) => slice.runs = runs,
                    None => assert!(!new),
                }
                there[first as usize..end as usize].fill(true);
                let from = random(200);
                let expected = (from..200).take_while(|at| there[*at as usize]).last().map_or(from, |last| last + 1);
                let mut pieces = Vec::new();
                assert_eq!((slice.stretch(from, 200, &mut pieces), slice.reach(from, 200)), (expected, expected));
                assert_eq!(pieces.concat(), whole[from as usize..expected as usize]);
                assert!(slice.runs.windows(2).all(|pair| pair[0].end() < pair[1].first), "what touches is one");
            }
        }
    }

    #[test]
    fn which_part_a_response_brings() {
        let part = |first, last, length| Some(Part { first, last, length });
        for (status, lines, expected) in [
            (206, "content-range: bytes 4-9/10\ncontent-length: 6", part(4, 9, 10)),
            (206, "content-range: bytes 4-9/10", part(4, 9, 10)),
            (206, "content-range: bytes 0-4/10\ncontent-length: 6", None),
            (206, "content-range: bytes 0-4/10\ncontent-length: 4", None),
            // One too many is announced, at the very end.
            (206, "content-range: bytes 4-9/10\ncontent-length: 5", part(4, 8, 9)),
            (206, "content-range: bytes 4-9/10\ncontent-length: 5\netag: \"a\"", None),
            (206, "content-range: bytes 4-9/10\ncontent-range: bytes 4-9/10", None),
            (206, "content-type: multipart/byteranges; boundary=x\ncontent-length: 5", None),
            (206, "content-range: bytes 4-9/*", None),
            (200, "content-length: 10", part(0, 9, 10)),
            (200, "content-length: 0", None),
            (200, "", None),
        ] {
            assert_eq!(super::part(&response(status, lines)), expected, "{status} {lines}");
        }
    }

    #[test]
    fn what_names_the_same_bytes() {
        let (old, date) = ("last-modified: Mon, 30 Nov 2020 00:00:00 GMT", "date: Tue, 01 Dec 2020 00:00:00 GMT");
        for (one, other, expected) in [
            ("etag: \"a\"", "etag: \"a\"", true),
            ("etag: \"a\"", "etag: \"b\"", false),
            ("etag: W/\"a\"", "etag: W/\"a\"", false),
            ("etag: \"a\"", "", false),
            ("", "", false),
            (&format!("{old}\n{date}"), &format!("{old}\n{date}"), true),
            (&format!("{old}\n{date}\netag: W/\"a\""), &format!("{old}\n{date}\netag: W/\"a\""), true),
            (&format!("{old}\n{date}\netag: W/\"a\""), &format!("{old}\n{date}\netag: W/\"b\""), false),
            (old, old, false),
            // Changed in the second before: perhaps twice.
            (&format!("{old}\ndate: Mon, 30 Nov 2020 00:00:01 GMT"), &format!("{old}\n{date}"), false),
        ] {
            assert_eq!(same(&fields(one), &fields(other)), expected, "{one} / {other}");
        }
    }
}
