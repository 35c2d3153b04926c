//! Purging: what an operator wants out of the store.
//!
//! Whatever is found goes, or is made stale; and what was on its way when the purge came is not stored, for
//! the log below is asked before anything takes its place.

use std::collections::VecDeque;
use std::sync::Arc;

use ahash::RandomState;
use parking_lot::Mutex;

use super::Cache;
use super::index::{Fits, Listed, Listing};
use super::storage::Slot;
use super::stored::{Head, Stored};
use crate::clock::{Clock, Moment, Turns};
use crate::memory::Change;

/// What is to go. Without a host, on any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// One target, with all its variants.
    Target(Option<String>, String),
    /// All targets that begin so.
    Beginning(Option<String>, String),
    /// All that has this tag.
    Tag(String),
    /// Everything.
    All,
}

/// What a purge has found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Purged {
    /// Entries, variants counted one by one.
    pub entries: u64,
    /// Their weight in memory.
    pub bytes: u64,
}

impl Purged {
    /// More has been found.
    pub fn add(&mut self, entries: u64, bytes: u64) {
        self.entries += entries;
        self.bytes += bytes;
    }
}

/// How it is done.
#[derive(Debug, Clone, Copy, Default)]
pub struct Manner {
    /// Entries become stale instead of going, so that they can be validated, or stand in for a failing origin.
    pub soft: bool,
    /// Nothing changes.
    pub dry_run: bool,
}

/// How many purges are remembered one by one.
const REMEMBERED: usize = 1024;

/// The latest purges, for responses that are on their way.
#[derive(Debug, Default)]
pub struct Log {
    latest: Mutex<Latest>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Latest {
    /// The newest is the last.
    purges: VecDeque<Noted>,
    /// All that was asked for until then is taken for purged.
    forgotten: Moment,
}

#[derive(Debug)]
struct Noted {
    at: Moment,
    what: What,
    /// For a target the hashes of all its forms: one that is met by chance is not stored, that is all.
    forms: Box<[u64]>,
}

impl Log {
    /// Remembers a purge that begins now.
    fn note(&self, what: &What, forms: &[String], clock: &Clock) -> Moment {
        let forms = forms.iter().map(|form| self.hasher.hash_one(form.as_str())).collect();
        // A target is in its forms, and is not kept twice.
        let what = match what {
            What::Target(host, _) => What::Target(host.clone(), String::new()),
            other => other.clone(),
        };
        let mut latest = self.latest.lock();
        // The time is asked here, so that they stand in its order.
        let at = clock.now();
        latest.purges.push_back(Noted { at, what, forms });
        while latest.purges.len() > REMEMBERED {
            if let Some(oldest) = latest.purges.pop_front() {
                latest.forgotten = oldest.at;
            }
        }
        at
    }

    /// Whether this was purged since then.
    pub fn since(&self, moment: Moment, listing: &Listing) -> bool {
        let latest = self.latest.lock();
        let mut since = latest.purges.iter().rev().take_while(|noted| noted.at >= moment);
        latest.forgotten >= moment || since.any(|noted| self.meant(noted, listing))
    }

    fn meant(&self, noted: &Noted, listing: &Listing) -> bool {
        let here = |host: &Option<String>| host.as_ref().is_none_or(|host| host == listing.host());
        match &noted.what {
            What::Target(host, _) => here(host) && noted.forms.contains(&self.hasher.hash_one(listing.target())),
            What::Beginning(host, target) => here(host) && listing.target().starts_with(target.as_str()),
            What::Tag(tag) => listing.tags().any(|known| known == tag),
            What::All => true,
        }
    }
}

impl Cache {
    /// Under which targets a response for this one may stand: by the routes' rules for queries, and by what
    /// responses have said about them.
    pub(super) fn forms_of(&self, target: &str) -> Vec<String> {
        let said = self.forms.lock();
        let mut forms: Vec<_> = [target.to_owned()].into();
        for rules in &*self.queries.lock() {
            let form = rules.apply(target).into_owned();
            forms.push(form);
        }
        for index in 0..forms.len() {
            forms.extend(said.iter().map(|rules| rules.apply(&forms[index]).into_owned()).collect::<Vec<_>>());
        }
        forms.sort_unstable();
        forms.dedup();
        forms
    }

    /// Takes out of the store what is meant, or makes it stale. A large one takes its time.
    pub fn purge(&self, what: &What, manner: Manner) -> Purged {
        let forms = match what {
            What::Target(_, target) => self.forms_of(target),
            _ => Vec::new(),
        };
        let now = match manner.dry_run {
            true => self.clock.now(),
            // Noted first: what is stored after this look has been compared with it.
            false => self.purges.note(what, &forms, &self.clock),
        };
        let (mut purged, mut turns) = (Purged::default(), Turns::new(&self.clock));
        let mut each = |listed| {
            turns.give_way();
            if let Some(weight) = self.purge_one(listed, manner, now) {
                purged.add(1, weight);
            }
        };
        match what {
            What::Target(host, _) => {
                forms.iter().for_each(|form| self.index.under(host.as_deref(), Fits::Exactly(form), &mut each));
            }
            What::Beginning(host, target) => self.index.under(host.as_deref(), Fits::Beginning(target), &mut each),
            What::Tag(tag) => self.index.tagged(tag, &mut each),
            What::All => self.index.under(None, Fits::Beginning(""), &mut each),
        }
        purged
    }

    fn purge_one(&self, listed: Listed, manner: Manner, now: Moment) -> Option<u64> {
        let Listed { number, place } = listed;
        self.map.update(place, now, |there| match there {
            Some(Slot::Whole(stored)) if stored.head.listing.number() == number => {
                let weight = Some(stored.weight());
                match manner {
                    Manner { dry_run: true, .. } => (Change::Keep, weight),
                    Manner { soft: true, .. } => {
                        let value = stale(stored, now);
                        let expires = Some(value.head.life.kept());
                        (Change::Put { weight: value.weight(), value: Slot::Whole(value), expires }, weight)
                    }
                    _ => (Change::Remove, weight),
                }
            }
            Some(Slot::Filling(fill, before)) => {
                let arriving = fill.head.listing.number() == number;
                let meant = before.as_ref().filter(|before| before.head.listing.number() == number);
                let counted = meant.map(Stored::weight);
                if manner.dry_run || (!arriving && meant.is_none()) {
                    return (Change::Keep, counted);
                }
                if arriving {
                    // Its readers read on; whoever comes now asks anew.
                    fill.doom();
                }
                let before = match meant {
                    Some(stored) => manner.soft.then(|| stale(stored, now)),
                    None => before.clone(),
                };
                let weight = super::stored::weight(&fill.head.response) + before.as_ref().map_or(0, Stored::weight);
                let (value, expires) = (Slot::Filling(fill.clone(), before), Some(now.after(super::LONGEST_FILL)));
                (Change::Put { value, weight, expires }, counted)
            }
            Some(Slot::Sheet(sheet)) if sheet.head.listing.number() == number => {
                let weight = Some(sheet.weight());
                match manner {
                    Manner { dry_run: true, .. } => (Change::Keep, weight),
                    Manner { soft: true, .. } => {
                        let sheet = Arc::new(sheet.stale(now));
                        let expires = Some(sheet.head.life.kept());
                        (Change::Put { weight: sheet.weight(), value: Slot::Sheet(sheet), expires }, weight)
                    }
                    _ => (Change::Remove, weight),
                }
            }
            // Whether it may be used, its sheet says.
            Some(Slot::Slice(slice)) if slice.listing.number() == number => {
                let kept = manner.dry_run || manner.soft;
                (if kept { Change::Keep } else { Change::Remove }, Some(slice.weight()))
            }
            _ => (Change::Keep, None),
        })
    }
}

/// The same, stale from now on: only a validation, or the origin's failure, brings it back.
pub(super) fn stale(stored: &Stored, now: Moment) -> Stored {
    let Head { response, life, listing, .. } = &*stored.head;
    let head = stored.head.renewed(response, life.over(now), stored.content.length, listing.clone());
    Stored { head, content: stored.content.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::index::Index;
    use std::time::Duration;

    fn on(host: &str) -> Option<String> {
        Some(host.to_owned())
    }

    #[test]
    fn what_was_asked_for_before_a_purge_is_purged_if_it_is_meant() {
        let (log, clock, index) = (Log::default(), Clock::system(), Arc::new(Index::default()));
        let listing = index.list("a.test", "/x/1?y", &["t".to_owned()], [0; 16]);
        for (what, forms, meant) in [
            (What::All, &[][..], true),
            (What::Tag("t".into()), &[], true),
            (What::Tag("u".into()), &[], false),
            (What::Beginning(None, "/x/".into()), &[], true),
            (What::Beginning(on("b.test"), "/x/".into()), &[], false),
            (What::Target(on("a.test"), "/x/1?z&y".into()), &["/x/1?z&y", "/x/1?y"], true),
            (What::Target(None, "/x/1".into()), &["/x/1"], false),
        ] {
            let asked = clock.now();
            let forms: Vec<_> = forms.iter().map(|form| (*form).to_owned()).collect();
            let at = log.note(&what, &forms, &clock);
            assert_eq!(log.since(asked, &listing), meant, "{what:?}");
            assert!(!log.since(at.after(Duration::from_nanos(1)), &listing), "asked for after it: {what:?}");
        }
    }

    #[test]
    fn what_is_too_long_ago_to_be_known_counts_as_purged() {
        let (log, clock, index) = (Log::default(), Clock::system(), Arc::new(Index::default()));
        let listing = index.list("a.test", "/", &[], [0; 16]);
        let asked = clock.now();
        for _ in 0..REMEMBERED {
            log.note(&What::Tag("t".into()), &[], &clock);
        }
        assert!(!log.since(asked, &listing));
        let later = clock.now();
        log.note(&What::Tag("t".into()), &[], &clock);
        assert!(log.since(asked, &listing) && !log.since(later, &listing));
    }
}
