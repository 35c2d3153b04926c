//! What is assumed where a log does not say it.

use std::borrow::Cow;
use std::time::Duration;

use http::HeaderName;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, EXPIRES, LAST_MODIFIED};
use pingora::http::ResponseHeader;

use super::line::Line;
use crate::cache::policy::Policy;
use crate::units::Span;

/// How long responses are fresh, below a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fresh {
    /// The beginning of the path; empty is everywhere.
    pub prefix: String,
    /// How long; `None`: such responses are not stored.
    pub lifetime: Option<Duration>,
}

impl std::str::FromStr for Fresh {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (prefix, span) = text.rsplit_once('=').unwrap_or(("", text));
        if !prefix.is_empty() && !prefix.starts_with('/') {
            return Err(format!("`{prefix}` is no path; write 60s, or /news/=60s"));
        }
        let lifetime = match span {
            "no" => None,
            span => Some(Span::parse(span).ok_or(format!("`{span}` is neither a duration, such as 60s, nor `no`"))?.0),
        };
        let lifetime = match lifetime {
            Some(span) if span.subsec_nanos() > 0 => {
                return Err(format!("`{text}`: responses are fresh for whole seconds, as `max-age` says it"));
            }
            other => other,
        };
        Ok(Fresh { prefix: prefix.to_owned(), lifetime })
    }
}

/// All assumptions.
#[derive(Debug, Clone, Default)]
pub struct Assumptions {
    /// The one with the longest prefix counts.
    pub fresh: Vec<Fresh>,
    /// Responses have an `ETag`, and it stays the same as long as their length does.
    pub validators: bool,
    /// The host of requests whose log does not say it.
    pub host: String,
}

/// Where the freshness of a response comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The route's `ttl`.
    Route,
    /// The log.
    Log,
    /// `--fresh`.
    Assumed,
    /// From nowhere: it is not stored.
    Nowhere,
}

/// Statuses that are cacheable without being told (RFC 9110 §15.1).
fn by_default(status: u16) -> bool {
    matches!(status, 200 | 203 | 204 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501)
}

impl Assumptions {
    fn lifetime(&self, path: &str) -> Option<Duration> {
        let fitting = self.fresh.iter().filter(|fresh| path.starts_with(&fresh.prefix));
        fitting.max_by_key(|fresh| fresh.prefix.len())?.lifetime
    }

    /// Whose word about freshness counts for the response of this line.
    pub fn source(&self, line: &Line, policy: &Policy) -> Source {
        if policy.force {
            return Source::Route;
        }
        let says = |name: &HeaderName| *name == EXPIRES || *name == LAST_MODIFIED || policy.targeted.contains(name);
        if line.says_freshness || line.response.iter().any(|(name, _)| says(name)) {
            return Source::Log;
        }
        let path = line.target.split('?').next().unwrap_or_default();
        if self.lifetime(path).is_some() { Source::Assumed } else { Source::Nowhere }
    }

    /// The response of the origin as far as it is known, with so much content. `None` when nothing is: the client left
    /// before there was one.
    pub fn response(&self, line: &Line, status: u16, length: u64, policy: &Policy) -> Option<ResponseHeader> {
        if matches!(status, 0 | 499) {
            return None;
        }
        let mut head = ResponseHeader::build_no_case(status, Some(8)).ok()?;
        for (name, value) in &line.response {
            head.append_header(name.clone(), value.clone()).ok()?;
        }
        let path = line.target.split('?').next().unwrap_or_default();
        if self.source(line, policy) == Source::Assumed
            && by_default(status)
            && let Some(lifetime) = self.lifetime(path)
        {
            head.insert_header(CACHE_CONTROL, format!("max-age={}", lifetime.as_secs())).ok()?;
        }
        if self.validators && !head.headers.contains_key(ETAG) && !head.headers.contains_key(LAST_MODIFIED) {
            head.insert_header(ETAG, format!("\"{length}\"")).ok()?;
        }
        if !head.headers.contains_key(CONTENT_TYPE) {
            // What a log does not tell weighs in the store all the same.
            head.insert_header(CONTENT_TYPE, "text/html; charset=utf-8").ok()?;
        }
        head.insert_header(CONTENT_LENGTH, length).ok()?;
        Some(head)
    }

    /// Whether a stored response would be confirmed by the origin, as far as can be told.
    pub fn confirms(&self, stored: &ResponseHeader, now: &ResponseHeader) -> bool {
        let same = |name: &HeaderName| {
            let (before, now) = (stored.headers.get(name), now.headers.get(name));
            before.is_some() && before == now
        };
        let etag = same(&ETAG) || (!stored.headers.contains_key(ETAG) && same(&LAST_MODIFIED));
        etag && stored.status == now.status
    }

    /// The host of a request, as its `Host` field would say it.
    pub fn host<'a>(&'a self, line: &'a Line) -> Cow<'a, str> {
        Cow::Borrowed(line.host.as_deref().unwrap_or(&self.host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_counts() {
        let fresh = |text: &str| text.parse::<Fresh>();
        let all = ["60s", "/news/=5s", "/news/old=1h", "/me=no"].map(|text| fresh(text).unwrap());
        let assume = Assumptions { fresh: all.into(), ..Assumptions::default() };
        for (path, seconds) in
            [("/", Some(60)), ("/news/x", Some(5)), ("/news/older", Some(3600)), ("/me", None), ("/meeting", None)]
        {
            assert_eq!(assume.lifetime(path), seconds.map(Duration::from_secs), "{path}");
        }
        assert_eq!(Assumptions::default().lifetime("/"), None);
        for wrong in ["", "60", "news=60s", "/news=soon", "=", "500ms", "/news=1500ms"] {
            assert!(fresh(wrong).is_err(), "{wrong}");
        }
    }
}
