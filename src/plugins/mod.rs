//! The built-in plugins, one file each; their table.

pub mod headers;

use crate::plugin::Entry;

/// All of them, by name.
pub const BUILT_IN: &[Entry] = &[Entry::of::<headers::Headers>()];
