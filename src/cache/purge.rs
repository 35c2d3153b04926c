//! Purging: what an operator wants out of the store.
//!
//! Whatever is found goes, or is made stale; and what was on its way when the purge came is not stored, for
//! the log below is asked before anything takes its place.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Cache;
use super::index::{Fits, Listed, Listing};
use super::storage::Slot;
use super::stored::{Head, Stored};
use crate::clock::Moment;
use crate::fields::query::Rules;
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

/// How it is done.
#[derive(Debug, Clone, Copy, Default)]
pub struct Manner {
    /// Entries become stale instead of going, so that they can be validated, or stand in for a failing origin.
    pub soft: bool,
    /// Nothing changes.
    pub dry_run: bool,
}

impl What {
    fn meant(&self, listing: &Listing) -> bool {
        let here = |host: &Option<String>| host.as_ref().is_none_or(|host| host == listing.host());
        match self {
            What::Target(host, target) => here(host) && listing.target() == target,
            What::Beginning(host, target) => here(host) && listing.target().starts_with(target.as_str()),
            What::Tag(tag) => listing.tags().any(|known| known == tag),
            What::All => true,
        }
    }
}

/// How many purges are remembered one by one.
const REMEMBERED: usize = 256;

/// The latest purges, for responses that are on their way.
#[derive(Debug, Default)]
pub struct Log(Mutex<Latest>);

#[derive(Debug, Default)]
struct Latest {
    purges: VecDeque<(Moment, What)>,
    /// All that was asked for before this is taken for purged.
    forgotten: Moment,
}

impl Log {
    fn note(&self, what: What, now: Moment) {
        let mut latest = self.0.lock();
        latest.purges.push_back((now, what));
        while latest.purges.len() > REMEMBERED {
            if let Some((at, _)) = latest.purges.pop_front() {
                latest.forgotten = at;
            }
        }
    }

    /// Whether this was purged since then.
    pub fn since(&self, moment: Moment, listing: &Listing) -> bool {
        let latest = self.0.lock();
        latest.forgotten >= moment || latest.purges.iter().any(|(at, what)| *at >= moment && what.meant(listing))
    }
}

impl Cache {
    /// Under which targets a response for this one may stand: by the routes' rules for queries, and by what
    /// responses have said about them.
    fn forms(&self, target: &str, rules: &[&Rules]) -> Vec<String> {
        let said = self.forms.lock();
        let mut forms: Vec<_> = [target.to_owned()].into();
        for rules in rules {
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

    /// Takes out of the store what is meant, or makes it stale. `rules` are those of the routes.
    pub fn purge(&self, what: &What, rules: &[&Rules], manner: Manner) -> Purged {
        let What::Target(host, target) = what else { return self.purge_what(what, manner) };
        let all: Vec<_> = self.forms(target, rules).into_iter().map(|form| What::Target(host.clone(), form)).collect();
        all.iter().map(|what| self.purge_what(what, manner)).fold(Purged::default(), |sum, one| Purged {
            entries: sum.entries + one.entries,
            bytes: sum.bytes + one.bytes,
        })
    }

    fn purge_what(&self, what: &What, manner: Manner) -> Purged {
        let now = self.clock.now();
        if !manner.dry_run {
            // Noted first: what is stored after this look has been compared with it.
            self.purges.note(what.clone(), now);
        }
        let mut purged = Purged::default();
        let mut each = |listed| {
            if let Some(weight) = self.purge_one(listed, manner, now) {
                purged.entries += 1;
                purged.bytes += weight;
            }
        };
        match what {
            What::Target(host, target) => self.index.under(host.as_deref(), Fits::Exactly(target), &mut each),
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
                let replaced = before.as_ref().filter(|before| before.head.listing.number() == number);
                if manner.dry_run || (!arriving && replaced.is_none()) {
                    return (Change::Keep, replaced.map(Stored::weight));
                }
                if arriving {
                    fill.doom();
                }
                // Its readers read on; whoever comes now asks anew.
                let value = Slot::Filling(fill.clone(), before.clone().filter(|_| replaced.is_none()));
                let weight = super::stored::weight(&fill.head.response);
                let expires = Some(now.after(super::LONGEST_FILL));
                (Change::Put { value, weight, expires }, replaced.map(Stored::weight))
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
