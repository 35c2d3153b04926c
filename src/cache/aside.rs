//! What comes into the store without the engine: it looks only at what was asked for with `GET`.
//!
//! A response to `POST` that stands for what a `GET` would get is taken in while it passes by; one to
//! `HEAD` says whether what is stored is still the same.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pingora::cache::CacheKey;
use pingora::cache::key::{CacheHashKey, HashBinary};
use pingora::http::ResponseHeader;

use super::fill::Fill;
use super::policy::Life;
use super::purge::stale;
use super::storage::{Decision, Slot};
use super::stored::{Head, Stored, compact};
use super::writing::Writer;
use super::{Cache, LONGEST_FILL};
use crate::memory::Change;

/// A response that is being taken in; nobody sees it before its end.
pub struct Aside {
    cache: &'static Cache,
    place: HashBinary,
    fill: Arc<Fill>,
}

impl Aside {
    /// The next piece.
    pub fn write(&mut self, piece: Bytes) {
        let _ = self.fill.write(piece);
    }

    /// That was all.
    pub fn finish(self) {
        if let Some(content) = self.fill.complete() {
            self.cache.publish(self.place, self.place, &self.fill, content);
        }
    }
}

impl Cache {
    /// Takes in a response under a key without variants, unless it was invalidated or purged while it was on its
    /// way. Its own invalidation comes before, and does not count.
    pub fn take_aside(&'static self, key: &CacheKey, response: &ResponseHeader, decision: Decision) -> Option<Aside> {
        let listing = self.list(key.primary_key(), response, key.primary_bin());
        // A purge is before this moment, and seen now, or after it, and seen when the response is whole.
        let after = self.clock.now().after(Duration::from_nanos(1));
        if self.purges.since(decision.life.asked, &listing) {
            return None;
        }
        let life = Life { asked: after, received: after, ..decision.life };
        let head = Head {
            key: key.primary_key().into(),
            variance: None,
            response: compact(response),
            nominated: Arc::from([]),
            life,
            created: self.clock.steady(),
            listing,
        };
        let room = self.ledger.reserve(decision.terms.length.unwrap_or(0))?;
        // Nobody reads it, and its length is known: nothing is let go before it is whole.
        let fill = Fill::new(self.next_fill(), Arc::new(head), decision.terms, Some(room));
        Some(Aside { cache: self, place: key.primary_bin(), fill })
    }

    /// What is stored is stale from now on, unless it has been replaced meanwhile.
    pub fn expire(&self, mut key: CacheKey, stored: &Arc<Head>) {
        let now = self.clock.now();
        let mut places = vec![key.primary_bin()];
        if let Some(variance) = stored.variance {
            key.set_variance_key(variance);
            places.push(key.combined_bin());
        }
        for place in places {
            self.map.update(place, now, |there| match there {
                Some(Slot::Whole(same)) if Arc::ptr_eq(&same.head, stored) => {
                    let value = stale(same, now);
                    let (weight, expires) = (self.weigh(&value), Some(value.head.life.kept()));
                    (Change::Put { value: Slot::Whole(value), weight, expires }, ())
                }
                _ => (Change::Keep, ()),
            });
        }
    }

    /// A fill takes its place in the store; what was there before is kept until it is complete.
    pub(super) fn writer(&'static self, key: &CacheKey, fill: Arc<Fill>) -> Writer {
        let (primary, hash) = (key.primary_bin(), key.combined_bin());
        let now = self.clock.now();
        self.fills.lock().insert(fill.id, fill.clone());
        let until = fill.head.life.kept().max(now.after(LONGEST_FILL));
        if hash != primary {
            for gone in self.families.add(primary, hash, until, now) {
                self.forget_all(gone);
            }
        }
        let weight = super::stored::weight(&fill.head.response);
        self.map.update(hash, now, |there| {
            // What was invalidated or purged before it stands there could not be found there; from now on it is.
            if self.spoilt(primary, &fill.head) {
                fill.doom();
            }
            let before = match there {
                Some(Slot::Whole(stored)) => Some(stored.clone()),
                Some(Slot::Filling(_, before)) => before.clone(),
                _ => None,
            };
            let weight = weight + before.as_ref().map_or(0, Stored::weight);
            (Change::Put { value: Slot::Filling(fill.clone(), before), weight, expires: Some(until) }, ())
        });
        Writer::new(self, primary, hash, fill)
    }
}
