//! The built-in plugins, one file each; their table.

pub mod basic_auth;
pub mod body_limit;
pub mod compress;
pub mod cors;
pub mod headers;
pub mod ip_filter;
pub mod rate_limit;
pub mod redirect_https;
pub mod request_id;
pub mod rewrite;
pub mod security_headers;

use crate::plugin::Entry;

/// All of them, by name.
pub const BUILT_IN: &[Entry] = &[
    Entry::of::<basic_auth::BasicAuth>(),
    Entry::of::<body_limit::BodyLimit>(),
    Entry::of::<compress::Compress>(),
    Entry::of::<cors::Cors>(),
    Entry::of::<headers::Headers>(),
    Entry::of::<ip_filter::IpFilter>(),
    Entry::of::<rate_limit::RateLimit>(),
    Entry::of::<redirect_https::RedirectHttps>(),
    Entry::of::<request_id::RequestId>(),
    Entry::of::<rewrite::Rewrite>(),
    Entry::of::<security_headers::SecurityHeaders>(),
];
