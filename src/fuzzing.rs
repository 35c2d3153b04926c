//! What the fuzz targets (fuzz/) need and nobody else should: no promise is made about it.

use pingora::proxy::Session;

pub use crate::replay::line::Line;

/// Whether the guard lets a request through, which it then has brought to its form.
pub fn admit(session: &mut Session) -> bool {
    crate::proxy::guard::check(session, &crate::config::settings::Limits::default()).is_ok()
}

/// Whether it would do so again.
pub fn admits(session: &Session) -> bool {
    crate::proxy::guard::admits(session.req_header(), &crate::config::settings::Limits::default())
}

/// Whether the store lists nothing, under no host and no tag.
pub fn lists_nothing(cache: &crate::cache::Cache) -> bool {
    cache.lists_nothing()
}
