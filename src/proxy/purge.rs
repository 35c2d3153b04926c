//! Purges, for the operator's listener and for clients that may.

use crate::cache::purge::{Manner, Purged, What};
use crate::fields::query::Rules;

use super::House;

impl House {
    /// Takes out of the store what is meant. `None` is a purge that did not end well.
    pub async fn purge(&self, what: What, manner: Manner) -> Option<Purged> {
        let mut rules: Vec<Rules> = Vec::new();
        for (_, known) in self.snapshot.load().plan.selectors.values().flatten() {
            if !rules.contains(known) {
                rules.push(known.clone());
            }
        }
        let cache = self.cache;
        // A large one takes its time; requests are served meanwhile.
        tokio::task::spawn_blocking(move || cache.purge(&what, &rules, manner)).await.ok()
    }
}
