//! Parts on their way into the store: taken in while they pass by, or fetched by the slice for all who wait.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderName;
use parking_lot::Mutex;
use pingora::cache::CacheKey;
use pingora::cache::key::{CacheHashKey, HashBinary};
use tokio::sync::watch;

use super::fill::{Fill, Reader, Terms};
use super::ledger::Reservation;
use super::parts::Sheet;
use super::{Cache, UNCACHEABLE_FOR};
use crate::clock::Moment;
use crate::fields::range::Part;

/// Where the sheet stands, which slice it is, and how long slices are.
type Name = (HashBinary, u64, u64);

/// How long an origin that failed is not asked for slices of a target again.
const FAILED_FOR: Duration = Duration::from_secs(5);

/// Fetches under way; each goes with the last who knows it.
#[derive(Default)]
pub(super) struct Fetches(Mutex<HashMap<Name, Arc<Fetch>>>);

/// A slice that one request to the origin fetches for all who want it.
#[derive(Debug)]
pub struct Fetch {
    news: watch::Sender<News>,
}

#[derive(Debug, Clone)]
enum News {
    NotYet,
    Comes(Arc<Sheet>, Arc<Fill>),
    /// The origin has answered with something else, or not at all.
    Nothing,
}

impl Fetch {
    /// Whether the target has changed since it was asked for.
    fn spoilt(&self, cache: &Cache) -> bool {
        match &*self.news.borrow() {
            News::Comes(sheet, _) => cache.sheet_spoilt(sheet),
            // What comes will be looked at when it does.
            _ => false,
        }
    }

    /// What it belongs to and a way to read it, as soon as that is known; `None` when nothing comes, or the target has
    /// changed since it was asked for: who waits may have come after the change.
    pub async fn comes(&self, cache: &Cache, patience: Duration) -> Option<(Arc<Sheet>, Reader)> {
        let mut news = self.news.subscribe();
        let known = tokio::time::timeout(patience, news.wait_for(|news| !matches!(news, News::NotYet))).await;
        match &*known.ok()?.ok()? {
            News::Comes(sheet, fill) if !cache.sheet_spoilt(sheet) => {
                Some((sheet.clone(), Reader::joiner(fill.clone())))
            }
            _ => None,
        }
    }
}

/// The right to fetch a slice, and the duty to say what came of it.
pub struct Lead {
    cache: &'static Cache,
    name: Name,
    primary: HashBinary,
    fetch: Arc<Fetch>,
    room: Option<Reservation>,
}

impl Lead {
    /// First and last byte to ask for; the last one may lie behind the end.
    pub fn range(&self) -> (u64, u64) {
        let (_, index, slice) = self.name;
        let first = index * slice;
        (first, first.saturating_add(slice - 1))
    }

    /// How long slices are.
    pub fn slice(&self) -> u64 {
        self.name.2
    }

    /// The origin has answered with something else. Whether it was not known before what comes.
    pub fn say_nothing(&self) -> bool {
        self.fetch.news.send_if_modified(|news| {
            let silent = matches!(news, News::NotYet);
            if silent {
                *news = News::Nothing;
            }
            silent
        })
    }

    /// Whether this part is the slice.
    pub fn meant(&self, part: &Part) -> bool {
        let (first, last) = self.range();
        part.first == first && part.last == last.min(part.length - 1)
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        if self.say_nothing() {
            // No answer at all.
            self.cache.not_sliced(self.primary, true);
        }
        let mut fetches = self.cache.fetches.0.lock();
        // Another one may have taken the place of one that is no longer true.
        if fetches.get(&self.name).is_some_and(|there| Arc::ptr_eq(there, &self.fetch)) {
            fetches.remove(&self.name);
        }
    }
}

/// A part that is being taken in while it passes by.
pub struct Taking {
    cache: &'static Cache,
    sheet: Arc<Sheet>,
    asked: Moment,
    patience: Duration,
    /// The next byte, and the one behind the last.
    at: u64,
    end: u64,
    /// The slice that is being filled, and where it began.
    fill: Option<(u64, Arc<Fill>)>,
    lead: Option<Lead>,
}

impl Taking {
    /// The next piece. What was not announced does not count.
    pub fn write(&mut self, mut piece: Bytes) {
        while !piece.is_empty() && self.at < self.end {
            let end = ((self.at / self.sheet.slice + 1) * self.sheet.slice).min(self.end);
            let first = self.at;
            if self.fill.is_none() {
                self.fill = self.cache.slice_fill(&self.sheet, self.patience).map(|fill| (first, fill));
            }
            let taken = piece.split_to(piece.len().min((end - first) as usize));
            self.at += taken.len() as u64;
            // What there is no room for just now is not kept; what comes behind it may be.
            if let Some((_, fill)) = &self.fill {
                fill.write(taken);
            }
            if self.at == end {
                self.keep();
            }
        }
    }

    fn keep(&mut self) {
        let Some((first, fill)) = self.fill.take() else { return };
        if let Some(content) = fill.complete() {
            self.cache.keep(&self.sheet, first, content, self.asked);
        }
    }
}

impl Drop for Taking {
    /// What has come of a part is a part too (RFC 9111 §3.3).
    fn drop(&mut self) {
        match (&self.lead, &self.fill) {
            (Some(_), Some((_, fill))) => fill.fail(),
            _ => self.keep(),
        }
    }
}

impl Cache {
    /// The fetch of the slice that this byte is in, and the lead where nobody has it. `None` when there is no room
    /// for another one just now.
    pub fn fetch(
        &'static self,
        key: &CacheKey,
        variant: impl Fn(&[HeaderName]) -> Option<HashBinary>,
        at: u64,
        slice: u64,
    ) -> Option<(Arc<Fetch>, Option<Lead>)> {
        let name = (self.place_of_sheet(key, variant), at / slice, slice);
        let mut fetches = self.fetches.0.lock();
        // Who asks after a change does not join what was asked for before it.
        if let Some(fetch) = fetches.get(&name).filter(|fetch| !fetch.spoilt(self)) {
            return Some((fetch.clone(), None));
        }
        let room = self.ledger.reserve(slice)?;
        let fetch = Arc::new(Fetch { news: watch::Sender::new(News::NotYet) });
        fetches.insert(name, fetch.clone());
        Some((fetch.clone(), Some(Lead { cache: self, name, primary: key.primary_bin(), fetch, room: Some(room) })))
    }

    /// Takes in a part that comes. With a lead, those who wait for it read it while it comes.
    pub fn take_part(
        &'static self,
        sheet: Arc<Sheet>,
        part: &Part,
        asked: Moment,
        patience: Duration,
        mut lead: Option<Lead>,
    ) -> Taking {
        let fill = lead.as_mut().map(|lead| {
            let terms = Terms { length: Some(part.size()), limit: part.size(), patience };
            let coming = Fill::new(self.next_fill(), sheet.head.clone(), terms, lead.room.take());
            lead.fetch.news.send_replace(News::Comes(sheet.clone(), coming.clone()));
            (part.first, coming)
        });
        Taking { cache: self, sheet, asked, patience, at: part.first, end: part.last + 1, fill, lead }
    }

    fn slice_fill(&self, sheet: &Sheet, patience: Duration) -> Option<Arc<Fill>> {
        let terms = Terms { length: None, limit: sheet.slice, patience };
        let room = self.ledger.reserve(0)?;
        Some(Fill::new(self.next_fill(), sheet.head.clone(), terms, Some(room)))
    }

    /// Remembers for a while that the origin does not send slices of this target; for a short one, if it failed.
    pub fn not_sliced(&self, primary: HashBinary, failed: bool) {
        let now = self.clock.now();
        let span = if failed { FAILED_FOR } else { UNCACHEABLE_FOR };
        self.unsliced.put(primary, (), 0, Some(now.after(span)), now);
    }

    /// Whether it may be asked for slices.
    pub fn sliceable(&self, primary: HashBinary) -> bool {
        self.unsliced.get(&primary, self.clock.now()).is_none()
    }
}
