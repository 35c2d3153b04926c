//! Responses of which only parts are stored (RFC 9111 §3.3 and §3.4).
//!
//! A [`Sheet`] says what is known of the whole. The content lies in slices of one size, each with a place of its
//! own in the store, so that a long one comes, goes and is evicted slice by slice. What is put together has one
//! strong validator: a part with another one, or with none, begins a new sheet, and what belonged to the old one
//! is not found any more.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use pingora::cache::CacheKey;
use pingora::cache::key::{CacheHashKey, HashBinary};
use pingora::http::ResponseHeader;

use super::Cache;
use super::policy::Life;
use super::slice::{Run, Slice};
use super::storage::Slot;
use super::stored::{Content, Head, compact, set_length, weight};
use crate::clock::Moment;
use crate::fields::range::Part;
use crate::fields::validators::{same, strong, strong_date, strong_tag};
use crate::fields::vary;
use crate::memory::Change;

/// Slices where the route does not say how long they are.
pub const SLICE: u64 = 1 << 20;

/// A whole of more slices than this is not completed, nor are its slices looked for when it goes.
const MOST_SLICES: u64 = 4096;

/// Others may change a sheet while one is opened; then it is looked at again, so often.
const TRIES: usize = 8;

/// What is known of a response of which parts are stored.
#[derive(Debug)]
pub struct Sheet {
    /// The head that the whole would have.
    pub head: Arc<Head>,
    /// The length of the whole.
    pub length: u64,
    /// The length of its slices, but for the last one.
    pub slice: u64,
    /// Something names its bytes for certain: parts that come later may belong to it.
    pub strong: bool,
    /// Tells it from all others: what is stored for another one is not for this.
    generation: u64,
    /// The first sheet of a target has a number, and those of other variants count while it is there.
    root: u64,
    primary: HashBinary,
    place: HashBinary,
}

/// What is stored of a whole before and behind a gap.
#[derive(Debug, Clone, Default)]
pub struct Seed {
    /// In the order of the content.
    pub before: Vec<Bytes>,
    /// In the order of the content.
    pub after: Vec<Bytes>,
}

/// Which part a response brings, as far as it is one that can be kept.
pub fn part(response: &ResponseHeader) -> Option<Part> {
    let fields = &response.headers;
    let said = fields.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.trim().parse::<u64>().ok());
    if response.status == StatusCode::OK {
        let length = said?;
        return Part::of(0, length.checked_sub(1)?, length);
    }
    let several = |kind: &HeaderValue| kind.as_bytes().to_ascii_lowercase().starts_with(b"multipart/");
    let mut lines = fields.get_all(CONTENT_RANGE).iter();
    let part = Part::read(lines.next()?.as_bytes()).filter(|_| lines.next().is_none())?;
    match said {
        _ if fields.get(CONTENT_TYPE).is_some_and(several) => None,
        None => Some(part),
        Some(said) if said == part.size() => Some(part),
        // One byte too many is announced, at the very end: the end was taken for the last byte. What is there counts,
        // but for nothing more: it is not the beginning, and names no bytes that others could be put together with.
        Some(said) if said + 1 == part.size() && part.first > 0 && part.last + 1 == part.length => {
            let tagged = fields.contains_key(ETAG) || fields.contains_key("last-modified");
            Part::of(part.first, part.last.checked_sub(1)?, part.length - 1).filter(|_| !tagged)
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
    /// Whether what a head speaks of is the same, byte for byte (RFC 9111 §3.4).
    pub fn fits(&self, length: u64, fields: &HeaderMap, today: SystemTime) -> bool {
        self.strong && self.length == length && same(&self.head.response.headers, fields, today)
    }

    /// Whether another sheet is of the same bytes.
    pub fn goes_on_in(&self, other: &Sheet, today: SystemTime) -> bool {
        let same = || self.fits(other.length, &other.head.response.headers, today);
        self.generation == other.generation || (self.slice == other.slice && same())
    }

    /// The condition under which the origin sends another part of it, and not of something else.
    pub fn condition(&self, today: SystemTime) -> Option<&HeaderValue> {
        let fields = &self.head.response.headers;
        // Where there is a weak tag, a date is no condition for a part (RFC 9110 §13.1.5).
        strong_tag(fields).or_else(|| strong_date(fields, today).filter(|_| !fields.contains_key(ETAG)))
    }

    /// Where the slice begins that this byte is in.
    pub fn slice_of(&self, at: u64) -> u64 {
        at / self.slice * self.slice
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

/// A part that has come.
pub struct Arrived<'a> {
    /// Its head.
    pub response: &'a ResponseHeader,
    /// Which part it is.
    pub part: Part,
    /// Until when it may be used.
    pub life: Life,
    /// How long slices are.
    pub slice: u64,
    /// It was asked for on a condition, so its head may say less than that of a whole (RFC 9110 §15.3.7).
    pub conditional: bool,
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
        if !self.parted.load(Relaxed) {
            return None;
        }
        let primary = key.primary_bin();
        let first = self.sheet_at(self.sheet_place(primary, None), key)?;
        let variance = variant(&first.head.nominated);
        if first.head.variance == variance {
            return Some(first);
        }
        let other = self.sheet_at(self.sheet_place(primary, variance), key)?;
        (other.root == first.root && other.head.variance == variant(&other.head.nominated)).then_some(other)
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
            Some(_) => first,
            // What the route chooses by is known.
            None => self.sheet_place(primary, variant(&[])),
        }
    }

    /// The sheet of a part that has come: the one that is there, freshened, or a new one. `None` when the target
    /// was changed meanwhile.
    pub fn open(
        &self,
        key: &CacheKey,
        variant: impl Fn(&[HeaderName]) -> Option<HashBinary>,
        arrived: &Arrived<'_>,
    ) -> Option<Arc<Sheet>> {
        let nominated: Arc<[HeaderName]> = vary::nominated(&arrived.response.headers).ok()?.into();
        let variance = variant(&nominated);
        for _ in 0..TRIES {
            match self.try_to_open(key, &nominated, variance, arrived) {
                Opened::Changed => {}
                Opened::Sheet(sheet) => return Some(sheet),
                Opened::Spoilt => return None,
            }
        }
        None
    }

    fn try_to_open(
        &self,
        key: &CacheKey,
        nominated: &Arc<[HeaderName]>,
        variance: Option<HashBinary>,
        arrived: &Arrived<'_>,
    ) -> Opened {
        let (primary, now, today) = (key.primary_bin(), self.clock.now(), self.clock.wall());
        let Arrived { response, part, life, slice, conditional } = arrived;
        let first_place = self.sheet_place(primary, None);
        let first = self.sheet_at(first_place, key);
        // The first one that came stands where all look first, as long as the same fields choose.
        let beside =
            first.as_ref().filter(|first| first.head.nominated == *nominated && first.head.variance != variance);
        let place = if beside.is_some() { self.sheet_place(primary, variance) } else { first_place };
        let there = if beside.is_some() { self.sheet_at(place, key) } else { first.clone() };
        let kept = there.as_ref().filter(|there| {
            let chosen = there.head.nominated == *nominated && there.head.variance == variance;
            chosen && there.slice == *slice && there.fits(part.length, &response.headers, today)
        });
        // The newer of two words counts.
        if let Some(newer) = kept.filter(|there| there.head.life.received > life.received) {
            return Opened::Sheet(newer.clone());
        }
        if *conditional && kept.is_none() {
            return Opened::Spoilt;
        }
        let mut head = whole(response, part.length);
        if let Some(there) = kept {
            head = merged(&there.head.response, &head);
        }
        let listing = match kept {
            Some(there) => self.list_again(&there.head, &head, place),
            None => self.list(key.primary_key(), &head, place),
        };
        let sheet = Arc::new(Sheet {
            head: Arc::new(Head {
                key: key.primary_key().into(),
                variance,
                response: compact(&head),
                nominated: nominated.clone(),
                life: *life,
                created: self.clock.steady(),
                listing,
            }),
            length: part.length,
            slice: *slice,
            strong: strong(&head.headers, today),
            generation: kept.map_or_else(|| self.next_fill(), |there| there.generation),
            root: first.as_ref().map_or_else(|| self.next_fill(), |first| first.root),
            primary,
            place,
        });
        // The first one is found without it.
        if place != first_place {
            for gone in self.families.add(primary, place, life.kept(), now) {
                self.forget_all(gone);
            }
        }
        self.parted.store(true, Relaxed);
        self.map.update(place, now, |now_there| {
            let same = match (now_there, &there) {
                (Some(Slot::Sheet(now_there)), Some(there)) => Arc::ptr_eq(now_there, there),
                (Some(Slot::Sheet(now_there)), None) => *now_there.head.key != *key.primary_key(),
                (_, there) => there.is_none(),
            };
            if !same {
                return (Change::Keep, Opened::Changed);
            }
            // Noted before it takes things out, so no invalidation gets between this look and the change.
            if self.spoilt(primary, &sheet.head) {
                return (Change::Keep, Opened::Spoilt);
            }
            let (weight, expires) = (sheet.weight(), Some(life.kept()));
            (Change::Put { value: Slot::Sheet(sheet.clone()), weight, expires }, Opened::Sheet(sheet.clone()))
        })
    }

    /// Whether the target has changed since the last part of it was asked for.
    pub(super) fn sheet_spoilt(&self, sheet: &Sheet) -> bool {
        self.spoilt(sheet.primary, &sheet.head)
    }

    /// Keeps bytes of one slice, which were asked for then, unless the target was changed since.
    pub fn keep(&self, sheet: &Sheet, first: u64, content: Content, asked: Moment) {
        let (index, now) = (sheet.index(first), self.clock.now());
        let end = ((index + 1) * sheet.slice).min(sheet.length);
        if content.length == 0 || first + content.length > end {
            return;
        }
        let place = self.keys.derived(sheet.place, index);
        let known = self.slice(sheet, index).map(|slice| slice.listing.clone());
        let listing = known.unwrap_or_else(|| self.list(&sheet.head.key, &sheet.head.response, place));
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
                // An old part that came slowly takes nothing from a new one.
                Some(Slot::Slice(there)) if there.generation > sheet.generation => return (Change::Keep, ()),
                _ => (listing.clone(), vec![Run { first, content: content.clone() }]),
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

    /// The whole is stored now: its parts go.
    pub(super) fn parts_are_over(&self, primary: HashBinary, variance: Option<HashBinary>) {
        if !self.parted.load(Relaxed) {
            return;
        }
        for place in [self.sheet_place(primary, variance), self.sheet_place(primary, None)] {
            if let Some(Slot::Sheet(sheet)) = self.map.get(&place, self.clock.now())
                && sheet.head.variance == variance
            {
                self.drop_sheet(place, &sheet);
            }
        }
    }

    /// The target has changed: all parts of it go. Those of other variants count no more without the first one.
    pub(super) fn forget_parts(&self, primary: HashBinary) {
        if !self.parted.load(Relaxed) {
            return;
        }
        self.forget_all(self.sheet_place(primary, None));
    }

    /// Takes out what stands at a place, with its slices if it is a sheet.
    pub(super) fn forget_all(&self, place: HashBinary) {
        match self.map.get(&place, self.clock.now()) {
            Some(Slot::Sheet(sheet)) => self.drop_sheet(place, &sheet),
            _ => {
                self.forget(place);
            }
        }
    }

    fn drop_sheet(&self, place: HashBinary, sheet: &Sheet) {
        self.forget(place);
        for index in 0..sheet.length.div_ceil(sheet.slice).min(MOST_SLICES) {
            self.forget(self.keys.derived(place, index));
        }
    }
}

enum Opened {
    Sheet(Arc<Sheet>),
    /// Another one stands there now.
    Changed,
    /// The target was changed, or it says too little to begin with.
    Spoilt,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::fields;

    fn response(status: u16, lines: &str) -> ResponseHeader {
        let mut response = ResponseHeader::build(status, None).unwrap();
        for (name, value) in &fields(lines) {
            response.append_header(name.clone(), value.clone()).unwrap();
        }
        response
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
            (206, "content-range: bytes 4-9/10\ncontent-length: 4", None),
            (206, "content-range: bytes 0-9/10\ncontent-length: 9", None),
            (206, "content-range: bytes 9-9/10\ncontent-length: 0", None),
            (
                206,
                "content-range: bytes 4-9/10\ncontent-length: 6\ncontent-type: Multipart/byteranges; boundary=x",
                None,
            ),
            (200, "content-length: 18446744073709551615", None),
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
}
