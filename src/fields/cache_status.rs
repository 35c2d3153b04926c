//! `Cache-Status` (RFC 9211) and its one-word form that nginx users know.

use std::fmt::Write;
use std::time::Duration;

/// Why a request went on to the origin (RFC 9211 §2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forward {
    /// Nothing is stored under this key.
    UriMiss,
    /// Something is stored, but not for these nominated fields.
    VaryMiss,
    /// Part of it is stored, and the rest is not.
    Partial,
    /// What is stored is stale.
    Stale,
    /// The route says not to look for such a request.
    Bypass,
    /// The method is not one we answer.
    Method,
    /// The request asked not to be answered from the store.
    Request,
}

/// What the cache did for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStatus {
    /// `hit`: answered from the store without going on.
    pub hit: bool,
    /// `fwd`
    pub forward: Option<Forward>,
    /// `fwd-status`, where it differs from what the client sees.
    pub forward_status: Option<u16>,
    /// `ttl` in seconds, negative when stale.
    pub ttl: Option<i64>,
    /// `stored`
    pub stored: bool,
    /// `collapsed`
    pub collapsed: bool,
    /// `detail`, a token.
    pub detail: Option<&'static str>,
}

impl Forward {
    /// The word of the RFC.
    pub fn word(self) -> &'static str {
        match self {
            Forward::UriMiss => "uri-miss",
            Forward::VaryMiss => "vary-miss",
            Forward::Partial => "partial",
            Forward::Stale => "stale",
            Forward::Bypass => "bypass",
            Forward::Method => "method",
            Forward::Request => "request",
        }
    }
}

impl CacheStatus {
    /// A plain hit with so much freshness left.
    pub fn hit(ttl: i64) -> Self {
        CacheStatus { hit: true, ttl: Some(ttl), ..CacheStatus::default() }
    }

    /// Went on to the origin.
    pub fn forwarded(forward: Forward) -> Self {
        CacheStatus { forward: Some(forward), ..CacheStatus::default() }
    }

    /// The field value.
    pub fn value(&self) -> String {
        let mut out = String::with_capacity(64);
        out.push_str("headwall");
        if self.hit {
            out.push_str("; hit");
        }
        if let Some(forward) = self.forward {
            let _ = write!(out, "; fwd={}", forward.word());
        }
        if let Some(status) = self.forward_status {
            let _ = write!(out, "; fwd-status={status}");
        }
        if self.stored {
            out.push_str("; stored");
        }
        if self.collapsed {
            out.push_str("; collapsed");
        }
        if let Some(ttl) = self.ttl {
            let _ = write!(out, "; ttl={ttl}");
        }
        if let Some(detail) = self.detail {
            let _ = write!(out, "; detail={detail}");
        }
        out
    }

    /// The word nginx would put into `$upstream_cache_status`.
    pub fn word(&self) -> &'static str {
        match (self.hit, self.forward) {
            (true, _) => match self.ttl {
                Some(ttl) if ttl < 0 => "UPDATING",
                _ => "HIT",
            },
            (false, Some(Forward::UriMiss | Forward::VaryMiss | Forward::Partial)) if self.collapsed => "HIT",
            (false, Some(Forward::UriMiss | Forward::VaryMiss | Forward::Partial)) => "MISS",
            (false, Some(Forward::Stale)) => match self.forward_status {
                Some(304) => "REVALIDATED",
                Some(_) => "STALE",
                None => "EXPIRED",
            },
            (false, _) => "BYPASS",
        }
    }
}

/// Whole seconds of freshness left, negative when it is over.
pub fn ttl(lifetime: Duration, age: Duration) -> i64 {
    let left = lifetime.as_millis() as i64 - age.as_millis() as i64;
    // Something that is stale by half a second must not read as `ttl=0`.
    if left < 0 { (left - 999) / 1000 } else { left / 1000 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_words() {
        let miss = CacheStatus::forwarded(Forward::UriMiss);
        for (status, value, word) in [
            (CacheStatus::hit(52), "headwall; hit; ttl=52", "HIT"),
            (CacheStatus { stored: true, ..miss }, "headwall; fwd=uri-miss; stored", "MISS"),
            (CacheStatus { collapsed: true, ..miss }, "headwall; fwd=uri-miss; collapsed", "HIT"),
            (CacheStatus { detail: Some("set-cookie"), ..miss }, "headwall; fwd=uri-miss; detail=set-cookie", "MISS"),
            (CacheStatus::forwarded(Forward::Bypass), "headwall; fwd=bypass", "BYPASS"),
            (CacheStatus::forwarded(Forward::Method), "headwall; fwd=method", "BYPASS"),
            (
                CacheStatus { detail: Some("stale-while-revalidate"), ..CacheStatus::hit(-3) },
                "headwall; hit; ttl=-3; detail=stale-while-revalidate",
                "UPDATING",
            ),
            (
                CacheStatus { forward_status: Some(304), stored: true, ..CacheStatus::forwarded(Forward::Stale) },
                "headwall; fwd=stale; fwd-status=304; stored",
                "REVALIDATED",
            ),
            (
                CacheStatus { forward_status: Some(503), ..CacheStatus::forwarded(Forward::Stale) },
                "headwall; fwd=stale; fwd-status=503",
                "STALE",
            ),
            (
                CacheStatus { stored: true, ..CacheStatus::forwarded(Forward::Stale) },
                "headwall; fwd=stale; stored",
                "EXPIRED",
            ),
        ] {
            assert_eq!(status.value(), value);
            assert_eq!(status.word(), word, "{value}");
        }
    }

    #[test]
    fn ttl_is_negative_as_soon_as_it_is_stale() {
        let ms = Duration::from_millis;
        assert_eq!(ttl(ms(60_000), ms(7_999)), 52);
        assert_eq!(ttl(ms(1_000), ms(1_000)), 0);
        assert_eq!(ttl(ms(1_000), ms(1_001)), -1);
        assert_eq!(ttl(ms(1_000), ms(3_000)), -2);
    }
}
