//! The key/value stores by name: those of the process, and those that a configuration asks for.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::kv::Store;
use crate::cache::purge::{Manner, Purged};
use crate::clock::Clock;

/// The stores of the process.
#[derive(Default)]
pub struct Stores(Mutex<BTreeMap<String, Arc<Store>>>);

/// Stores that a configuration names, each with its memory.
pub type Named = BTreeMap<String, (Arc<Store>, u64)>;

impl Stores {
    /// From now on these are all there are, each with its memory. What a store holds stays.
    pub fn publish(&self, named: &Named) {
        let now = named.iter().map(|(name, (store, _))| (name.clone(), store.clone())).collect();
        let before = std::mem::replace(&mut *self.0.lock(), now);
        named.values().for_each(|(store, memory)| store.set_memory(*memory));
        drop(before);
    }

    /// Takes out of all stores what has this tag.
    pub fn purge(&self, tag: &str, manner: Manner, clock: &Clock) -> Purged {
        let mut purged = Purged::default();
        for (_, store) in self.all() {
            let Purged { entries, bytes } = store.purge(tag, manner, clock);
            purged.add(entries, bytes);
        }
        purged
    }

    /// All of them.
    pub fn all(&self) -> Vec<(String, Arc<Store>)> {
        self.0.lock().iter().map(|(name, store)| (name.clone(), store.clone())).collect()
    }
}

/// Gathers the stores of a configuration while it is compiled; nothing changes before they are published.
pub struct Draft<'a> {
    there: &'a Stores,
    named: RefCell<Named>,
}

impl<'a> Draft<'a> {
    /// Stores of the process keep what they hold when they are named again.
    pub fn new(there: &'a Stores) -> Self {
        Draft { there, named: RefCell::default() }
    }

    /// The store of this name. `Err` is the memory that another route gives to it.
    pub fn get(&self, name: &str, memory: u64) -> Result<Arc<Store>, u64> {
        if let Some((store, said)) = self.named.borrow().get(name) {
            return if *said == memory { Ok(store.clone()) } else { Err(*said) };
        }
        let there = self.there.0.lock().get(name).cloned();
        let store = there.unwrap_or_else(|| Arc::new(Store::new(memory)));
        self.named.borrow_mut().insert(name.to_owned(), (store.clone(), memory));
        Ok(store)
    }

    /// All that were asked for.
    pub fn finish(self) -> Named {
        self.named.into_inner()
    }
}
