//! End to end: real Node origins, real connections, the real binary.
//!
//! One test binary, because each one links the engine again.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

mod apps;
mod binary;
mod built_in;
mod cache;
mod chaos;
mod conformance;
mod cookbook;
mod differential;
mod documents;
mod explain;
mod h2;
mod leaks;
mod limits;
mod mistakes;
mod origin_guard;
mod pages;
mod parts;
mod plugins;
mod probe;
mod purge;
mod replay;
mod sealed;
mod shared;
mod store;
mod strangers;
mod stream;
