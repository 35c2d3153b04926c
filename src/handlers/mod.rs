//! What answers without an upstream, one file each; their table.

pub mod kv;
pub mod redirect;
pub mod respond;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::clock::Clock;
use crate::handler::Handler;
use crate::plugin::Complaint;

/// What a handler may need beside its settings.
pub struct Surroundings<'a> {
    /// The prefix of its route, if the route has one.
    pub prefix: Option<&'a str>,
    /// The key/value stores, by name; routes that name the same one share it.
    pub stores: &'a Stores,
    /// The memory that this configuration gives to each store it names.
    pub declared: &'a RefCell<BTreeMap<String, u64>>,
    /// The time.
    pub clock: &'a Clock,
}

/// The key/value stores of the process, by name.
#[derive(Default)]
pub struct Stores(Mutex<BTreeMap<String, Arc<kv::Store>>>);

impl Stores {
    /// The store of this name, made when it is not there yet.
    pub fn get(&self, name: &str, make: impl FnOnce() -> kv::Store) -> Arc<kv::Store> {
        self.0.lock().entry(name.to_owned()).or_insert_with(|| Arc::new(make())).clone()
    }

    /// Gives each store its memory, and lets go of those that are not named. Content stays.
    pub fn settle(&self, declared: &BTreeMap<String, u64>) {
        let mut stores = self.0.lock();
        stores.retain(|name, _| declared.contains_key(name));
        for (name, store) in stores.iter() {
            store.set_memory(declared[name]);
        }
    }

    /// All of them.
    pub fn all(&self) -> Vec<(String, Arc<kv::Store>)> {
        self.0.lock().iter().map(|(name, store)| (name.clone(), store.clone())).collect()
    }
}

/// Builds a handler from its settings.
pub type Build = fn(&serde_yaml::Value, &Surroundings<'_>) -> Result<Arc<dyn Handler>, Complaint>;

/// One row of the table.
pub struct Entry {
    /// The key under `to`.
    pub name: &'static str,
    /// Builds it.
    pub build: Build,
}

/// All of them, by name.
pub const BUILT_IN: &[Entry] = &[
    Entry { name: "kv", build: kv::build },
    Entry { name: "redirect", build: redirect::build },
    Entry { name: "respond", build: respond::build },
];

/// A complaint about one setting.
fn complaint(path: &str, message: impl Into<String>) -> Complaint {
    Complaint { path: path.to_owned(), message: message.into() }
}
