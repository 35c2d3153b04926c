//! What names a stored response: everything that chose it and reaches the origin.
//!
//! Each part is preceded by its length, so no two requests share a key by accident
//! (`a` + `bc` is not `ab` + `c`). The bytes of the target go in as the origin sees
//! them, or in the form that its responses have said to be as good (`No-Vary-Search`).

use ahash::RandomState;
use pingora::cache::CacheKey;
use pingora::cache::key::HashBinary;
use std::hash::{BuildHasher, Hasher};

use crate::fields::authority;

/// The parts of a key.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    /// `http` or `https`, as the client used it.
    pub scheme: &'a str,
    /// The `Host` field in lower case.
    pub host: &'a str,
    /// What a trusted proxy says the host was; it reaches the origin, so it counts.
    pub forwarded_host: &'a [u8],
    /// Path and query, byte for byte.
    pub target: &'a [u8],
    /// The upstream that answers.
    pub upstream: &'a str,
    /// What else chose the route: the fields its `match` names.
    pub selector: &'a str,
}

/// What a key says that is not text by itself.
pub struct Read<'a> {
    /// The `Host` field.
    pub host: &'a [u8],
    /// What a trusted proxy says.
    pub forwarded_host: &'a [u8],
    /// Path and query.
    pub target: &'a [u8],
}

/// Reads a key that was made here; of another one, nothing.
pub fn read(key: &[u8]) -> Read<'_> {
    let mut rest = key;
    let mut next = || {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (part, after) = after.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        rest = after;
        Some(part)
    };
    let _scheme = next();
    let mut part = || next().unwrap_or_default();
    Read { host: part(), forwarded_host: part(), target: part() }
}

/// The host that a key is listed under: the one that the client named.
pub fn listed_host(host: &[u8], forwarded_host: &[u8]) -> String {
    authority::plain(&String::from_utf8_lossy(if forwarded_host.is_empty() { host } else { forwarded_host }))
}

/// Makes keys; two of the hash's halves are seeded differently, both at random.
#[derive(Clone)]
pub struct Keys {
    low: RandomState,
    high: RandomState,
}

impl Keys {
    /// Makes keys that no other maker of keys would make.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Keys { low: RandomState::new(), high: RandomState::new() }
    }

    /// The place of something that belongs to what stands at another place.
    pub(super) fn derived(&self, from: HashBinary, number: u64) -> HashBinary {
        self.hash(&[&from[..], &number.to_be_bytes()].concat())
    }

    fn hash(&self, bytes: &[u8]) -> HashBinary {
        let mut hash = [0; 16];
        for (half, state) in [&self.low, &self.high].into_iter().enumerate() {
            let mut hasher = state.build_hasher();
            hasher.write(bytes);
            hash[half * 8..half * 8 + 8].copy_from_slice(&hasher.finish().to_be_bytes());
        }
        hash
    }

    /// The key of these parts.
    pub fn key(&self, parts: &Parts<'_>) -> CacheKey {
        let all: [&[u8]; 6] = [
            parts.scheme.as_bytes(),
            parts.host.as_bytes(),
            parts.forwarded_host,
            parts.target,
            parts.upstream.as_bytes(),
            parts.selector.as_bytes(),
        ];
        let mut bytes = Vec::with_capacity(all.iter().map(|part| part.len() + 4).sum());
        for part in all {
            bytes.extend_from_slice(&(part.len() as u32).to_be_bytes());
            bytes.extend_from_slice(part);
        }
        let hash = self.hash(&bytes);
        let mut key = CacheKey::new(bytes, "");
        key.set_primary_bin_override(hash);
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pingora::cache::key::CacheHashKey;

    const BASE: Parts<'static> =
        Parts { scheme: "http", host: "a.test", forwarded_host: b"", target: b"/x?y", upstream: "app", selector: "" };

    #[test]
    fn every_part_counts_and_boundaries_too() {
        let keys = Keys::new();
        let others = [
            Parts { scheme: "https", ..BASE },
            Parts { host: "b.test", ..BASE },
            Parts { host: "a.tes", forwarded_host: b"t", ..BASE },
            Parts { forwarded_host: b"a.test", ..BASE },
            Parts { target: b"/x?Y", ..BASE },
            Parts { target: b"/x%3Fy", ..BASE },
            Parts { host: "a.test/", target: b"x?y", ..BASE },
            Parts { upstream: "ap", selector: "p", ..BASE },
            Parts { selector: "x=1", ..BASE },
        ];
        let base = keys.key(&BASE);
        assert_eq!(base.primary_bin(), keys.key(&BASE).primary_bin());
        let read = read(base.primary_key());
        assert_eq!((read.host, read.forwarded_host, read.target), (&b"a.test"[..], &b""[..], &b"/x?y"[..]));
        for other in others {
            let key = keys.key(&other);
            assert_ne!(key.primary_key(), base.primary_key(), "{other:?}");
            assert_ne!(key.primary_bin(), base.primary_bin(), "{other:?}");
        }
    }
}
