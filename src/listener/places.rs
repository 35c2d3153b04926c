//! Who is connected: how many in all, and how many of one network.
//!
//! A network stands in the table as long as a connection of it is open, so the table
//! is never longer than there are connections.

use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::*};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::fields::forwarded::canonical;
use crate::metrics::Metrics;

/// An IPv4 address, or the first 64 bits of an IPv6 address: what one client has, at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Of {
    V4(u32),
    V6(u64),
}

impl Of {
    fn new(peer: IpAddr) -> Self {
        match canonical(peer) {
            IpAddr::V4(address) => Of::V4(address.into()),
            IpAddr::V6(address) => Of::V6((u128::from(address) >> 64) as u64),
        }
    }
}

/// How many connections there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Most {
    /// In all.
    pub all: usize,
    /// Of the network of the one that comes; `None` where that is not counted.
    pub of_network: Option<u32>,
}

/// Why there is no place; the setting that says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// There are as many as there may be.
    All,
    /// There are as many as there may be of one network.
    Network,
}

impl Full {
    /// The setting.
    pub fn reason(self) -> &'static str {
        match self {
            Full::All => "connections",
            Full::Network => "connections_per_network",
        }
    }
}

/// Connections that are open, and a word when one closes.
#[derive(Default)]
pub struct Places {
    count: AtomicUsize,
    networks: Mutex<ahash::HashMap<Of, u32>>,
    one_left: Notify,
    none_left: Notify,
}

impl Places {
    /// Takes a place for a connection, if there is one; it is given back when the guard goes.
    pub fn take(self: &Arc<Self>, peer: IpAddr, most: Most, metrics: Arc<Metrics>) -> Result<Place, Full> {
        let taken = self.count.fetch_update(AcqRel, Acquire, |count| (count < most.all).then_some(count + 1));
        if taken.is_err() {
            return Err(Full::All);
        }
        let network = match most.of_network.map(|most| self.enter(Of::new(peer), most, &metrics)).transpose() {
            Ok(network) => network,
            Err(full) => {
                self.leave();
                return Err(full);
            }
        };
        metrics.connections_accepted.inc();
        metrics.connections.inc();
        Ok(Place { places: self.clone(), network, metrics })
    }

    fn enter(&self, network: Of, most: u32, metrics: &Metrics) -> Result<Of, Full> {
        let mut networks = self.networks.lock();
        let open = networks.get(&network).copied().unwrap_or(0);
        if open >= most {
            return Err(Full::Network);
        }
        if networks.insert(network, open + 1).is_none() {
            metrics.networks.inc();
        }
        Ok(network)
    }

    fn leave(&self) {
        if self.count.fetch_sub(1, AcqRel) == 1 {
            self.none_left.notify_waiters();
        }
        self.one_left.notify_waiters();
    }

    /// Waits until a connection closes.
    pub async fn one_left(&self) {
        self.one_left.notified().await;
    }

    /// Waits until nothing is open.
    pub async fn drained(&self) {
        loop {
            let none_left = self.none_left.notified();
            tokio::pin!(none_left);
            none_left.as_mut().enable();
            if self.count.load(Acquire) == 0 {
                return;
            }
            none_left.await;
        }
    }

    /// How many are open.
    pub fn count(&self) -> usize {
        self.count.load(Acquire)
    }
}

/// The place of one connection.
pub struct Place {
    places: Arc<Places>,
    network: Option<Of>,
    metrics: Arc<Metrics>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.metrics.connections.dec();
        if let Some(network) = self.network
            && let Entry::Occupied(mut open) = self.places.networks.lock().entry(network)
        {
            match open.get().checked_sub(1).filter(|left| *left > 0) {
                Some(left) => *open.get_mut() = left,
                None => {
                    open.remove();
                    self.metrics.networks.dec();
                }
            }
        }
        self.places.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(places: &Arc<Places>, peer: &str, all: usize, of_network: Option<u32>) -> Result<Place, Full> {
        take_counted(places, peer, all, of_network, &Arc::new(Metrics::new().unwrap()))
    }

    fn take_counted(
        places: &Arc<Places>,
        peer: &str,
        all: usize,
        of_network: Option<u32>,
        metrics: &Arc<Metrics>,
    ) -> Result<Place, Full> {
        places.take(peer.parse().unwrap(), Most { all, of_network }, metrics.clone())
    }

    #[test]
    fn each_network_has_its_share() {
        let (places, metrics) = (Arc::new(Places::default()), Arc::new(Metrics::new().unwrap()));
        let mut open = Vec::new();
        for (peer, there_is) in [
            ("192.0.2.1", true),
            ("192.0.2.1", true),
            ("192.0.2.1", false),
            ("::ffff:192.0.2.1", false),
            ("192.0.2.2", true),
            ("2001:db8::1", true),
            ("2001:db8::ffff:1", true),
            ("2001:db8:0:0:1::", false),
            ("2001:db8:0:1::", true),
        ] {
            let place = take_counted(&places, peer, 100, Some(2), &metrics);
            assert_eq!(place.as_ref().err(), (!there_is).then_some(&Full::Network), "{peer}");
            open.extend(place);
        }
        open.extend(take_counted(&places, "192.0.2.1", 100, None, &metrics));
        assert_eq!(open.len(), 7, "who is not counted comes in");
        assert_eq!((places.networks.lock().len(), metrics.networks.get()), (4, 4));
        drop(open.remove(0));
        assert!(take(&places, "192.0.2.1", 100, Some(2)).is_ok());
        open.clear();
        let left = (places.count(), places.networks.lock().len(), metrics.networks.get());
        assert_eq!(left, (0, 0, 0), "nothing is left behind");
    }

    #[test]
    fn there_are_as_many_places_as_are_said_at_the_moment() {
        let places = Arc::new(Places::default());
        let first = take(&places, "192.0.2.1", 2, Some(9));
        let second = take(&places, "192.0.2.2", 2, Some(9));
        assert_eq!(take(&places, "192.0.2.3", 2, Some(9)).err(), Some(Full::All));
        assert_eq!(take(&places, "192.0.2.3", 1, Some(9)).err(), Some(Full::All), "nobody had to go");
        assert!(take(&places, "192.0.2.3", 3, Some(9)).is_ok());
        drop((first, second));
        assert_eq!(places.networks.lock().len(), 0);
    }
}
