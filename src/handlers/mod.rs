//! What answers without an upstream, one file each; their table.

pub mod kv;
pub mod redirect;
pub mod respond;
mod stores;

use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator};

use crate::clock::Clock;
use crate::handler::Handler;
use crate::plugin::Complaint;
pub use stores::{Draft, Named, Stores};

/// What a handler may need beside its settings.
pub struct Surroundings<'a> {
    /// The prefix of its route, if the route has one.
    pub prefix: Option<&'a str>,
    /// The key/value stores, by name; routes that name the same one share it.
    pub stores: &'a Draft<'a>,
    /// The time.
    pub clock: &'a Clock,
}

/// Builds a handler from its settings.
pub type Build = fn(&serde_yaml::Value, &Surroundings<'_>) -> Result<Arc<dyn Handler>, Complaint>;

/// One row of the table.
pub struct Entry {
    /// The key under `to`.
    pub name: &'static str,
    /// Builds it.
    pub build: Build,
    /// The schema of its settings.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
}

/// All of them, by name.
pub const BUILT_IN: &[Entry] = &[
    Entry { name: "kv", build: kv::build, schema: kv::Settings::json_schema },
    Entry { name: "redirect", build: redirect::build, schema: redirect::Settings::json_schema },
    Entry { name: "respond", build: respond::build, schema: respond::Settings::json_schema },
];

/// A complaint about one setting.
fn complaint(path: &str, message: impl Into<String>) -> Complaint {
    Complaint { path: path.to_owned(), message: message.into() }
}
