//! Headwall: a plugin-based caching edge proxy built on Pingora, configured by one
//! YAML file, with a key/value store in the same process.
//!
//! The binary is this library in one line ([`run`]); a binary with plugins of its own
//! is the same line with their table. What a plugin needs is in [`plugin`],
//! [`exchange`] and [`handler`]; how to test one is in [`testing`].
//!
//! The floors of the house, and what each module is for, are in ARCHITECTURE.md.

pub mod access_log;
pub mod admin;
pub mod cache;
pub mod catch;
pub mod clock;
pub mod coding;
pub mod config;
pub mod connection;
pub mod exchange;
pub mod fields;
pub mod filter;
#[doc(hidden)]
pub mod fuzzing;
pub mod handler;
pub mod handlers;
pub mod http2;
pub mod identity;
pub mod listener;
pub mod memory;
pub mod metrics;
pub mod passwords;
pub mod plugin;
pub mod plugins;
pub mod proxy;
pub mod refusals;
pub mod reload;
pub mod route;
pub mod secret;
pub mod server;
pub mod template;
pub mod testing;
pub mod units;
pub mod upstream;

mod cli;
mod descriptors;
mod explain;
mod operator;
mod probe;
mod replay;
mod terminal;

pub use cli::run;
/// The heads that plugins and handlers work on, and what they are made of.
pub use pingora::http::{RequestHeader, ResponseHeader};
pub use {async_trait::async_trait, bytes, http, schemars, serde};
