//! What strangers write, given to the code that reads it.
//!
//! A target takes any bytes, and knows from elsewhere what has to come of them: a second reading written in another way,
//! a law, a model. It panics where that fails. libFuzzer calls the targets (fuzz_targets/), and so does a test of the
//! main build with the seeds that are kept (tests/seeds.rs).

pub mod accept_encoding;
pub mod cache_control;
pub mod cache_status;
pub mod conditional;
pub mod config;
pub mod connection;
pub mod date;
pub mod forwarded;
pub mod guard;
mod input;
pub mod kv;
pub mod memory;
pub mod origin;
pub mod path;
pub mod query;
pub mod range;
pub mod replay;
pub mod store;
pub mod tags;
pub mod vary;

/// Takes any bytes; panics where they show a fault.
pub type Target = fn(&[u8]);

/// All targets, by the names of their seeds.
pub const TARGETS: &[(&str, Target)] = &[
    ("accept_encoding", accept_encoding::run),
    ("cache_control", cache_control::run),
    ("cache_status", cache_status::run),
    ("conditional", conditional::run),
    ("config", config::run),
    ("connection", connection::run),
    ("date", date::run),
    ("forwarded", forwarded::run),
    ("guard", guard::run),
    ("kv", kv::run),
    ("memory", memory::run),
    ("origin", origin::run),
    ("path", path::run),
    ("query", query::run),
    ("range", range::run),
    ("replay", replay::run),
    ("store", store::run),
    ("tags", tags::run),
    ("vary", vary::run),
];
