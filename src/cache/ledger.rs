//! Bytes that responses may hold while they arrive, for all of them together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Bytes that all fills together may hold.
#[derive(Debug)]
pub struct Ledger {
    limit: AtomicU64,
    held: AtomicU64,
}

impl Ledger {
    /// An empty ledger.
    pub fn new(limit: u64) -> Self {
        Ledger { limit: AtomicU64::new(limit), held: AtomicU64::new(0) }
    }

    fn grow(&self, bytes: u64) -> bool {
        let limit = self.limit.load(Relaxed);
        let fits = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= limit);
        self.held.fetch_update(AcqRel, Acquire, fits).is_ok()
    }

    /// Sets bytes aside for one fill, if there is room.
    pub fn reserve(self: &Arc<Self>, bytes: u64) -> Option<Reservation> {
        self.grow(bytes).then(|| Reservation { ledger: self.clone(), bytes })
    }

    /// Whether so much could be set aside now.
    pub fn fits(&self, bytes: u64) -> bool {
        self.held().checked_add(bytes).is_some_and(|sum| sum <= self.limit.load(Relaxed))
    }

    /// From now on there is so much room; what is set aside already stays.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Relaxed);
    }

    /// Bytes set aside now.
    pub fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }
}

/// Room in the ledger; given back when dropped.
#[derive(Debug)]
pub struct Reservation {
    ledger: Arc<Ledger>,
    bytes: u64,
}

impl Reservation {
    /// Makes the room at least so large, if it can be had.
    pub fn cover(&mut self, bytes: u64) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let grown = more == 0 || self.ledger.grow(more);
        if grown {
            self.bytes += more;
        }
        grown
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.ledger.held.fetch_sub(self.bytes, AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ledger_holds_and_gives_back() {
        let ledger = Arc::new(Ledger::new(100));
        let first = ledger.reserve(60).unwrap();
        assert!(ledger.reserve(60).is_none());
        drop(first);
        assert!(ledger.reserve(100).is_some());
        assert_eq!(ledger.held(), 0);
    }
}
