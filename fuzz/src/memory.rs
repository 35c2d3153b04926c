//! The map that the store and the key/value stores keep all in, beside a map without a bound: what is found was put
//! there last, each byte is counted once, and nothing goes without a reason.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use headwall::clock::{Clock, Moment};
use headwall::memory::tags::{Tagged, Tags};
use headwall::memory::{Change, Memory};

/// What an entry costs beside its key and value.
const OVERHEAD: u64 = 256;

#[derive(Debug, Arbitrary)]
enum Step {
    Put { key: u8, weight: u16, seconds: Option<u8>, tags: u8 },
    Get { key: u8 },
    Remove { key: u8 },
    Keep { key: u8 },
    Wait { seconds: u8 },
    Sweep,
    Budget { bytes: u16 },
    Purge { tag: u8 },
}

struct Value {
    number: u64,
    tagged: Tagged<u8>,
}

struct Known {
    number: u64,
    weight: u64,
    expires: Option<Moment>,
    tags: u8,
    value: Weak<Value>,
}

struct Model {
    map: Memory<Vec<u8>, Arc<Value>>,
    tags: Arc<Tags<u8>>,
    known: HashMap<u8, Known>,
    budget: u64,
    evicted: u64,
}

fn name(key: u8) -> Vec<u8> {
    vec![key; 1 + usize::from(key % 3)]
}

/// A few steps.
pub fn run(data: &[u8]) {
    let Ok(steps) = Vec::<Step>::arbitrary(&mut Unstructured::new(data)) else { return };
    let budget = 20_000;
    let mut model = Model { map: Memory::new(budget), tags: Arc::default(), known: HashMap::new(), budget, evicted: 0 };
    let mut now = Clock::system().now();
    for (number, step) in steps.iter().take(400).enumerate() {
        model.step(step, number as u64, &mut now);
        model.check(step);
    }
    let Model { map, tags, .. } = model;
    drop(map);
    assert!(tags.is_empty(), "something stays listed that is gone");
}

impl Model {
    /// Forgets what has gone, for which there was no other reason than room.
    fn evict(&mut self) {
        let before = self.known.len();
        self.known.retain(|_, known| known.value.strong_count() > 0);
        self.evicted += (before - self.known.len()) as u64;
    }

    fn step(&mut self, step: &Step, number: u64, now: &mut Moment) {
        match *step {
            Step::Put { key, weight, seconds, tags } => {
                let key = key % 48;
                let names: Vec<_> = (0..3).filter(|tag| tags & 1 << tag != 0).map(|tag| format!("t{tag}")).collect();
                let value = Arc::new(Value { number, tagged: self.tags.list(&names, key) });
                let expires = seconds.map(|seconds| now.after(Duration::from_secs(seconds.into())));
                let (weak, weight) = (Arc::downgrade(&value), u64::from(weight % 8192));
                let fits = weight + name(key).len() as u64 + OVERHEAD <= self.budget;
                assert_eq!(self.map.fits(name(key).len(), weight), fits);
                self.map.put(name(key), value, weight, expires, *now);
                self.known.remove(&key);
                if fits {
                    self.known.insert(key, Known { number, weight, expires, tags: tags & 7, value: weak });
                    assert!(self.known[&key].value.strong_count() > 0, "what was just put in is not the first to go");
                }
            }
            Step::Get { key } => {
                let found = self.map.get(&name(key % 48), *now).map(|value| value.number);
                assert_eq!(found, self.current(key % 48, *now), "{key}");
            }
            Step::Keep { key } => {
                let found =
                    self.map.update(name(key % 48), *now, |there| (Change::Keep, there.map(|value| value.number)));
                assert_eq!(found, self.current(key % 48, *now), "{key}");
            }
            Step::Remove { key } => {
                let expected = self.current(key % 48, *now);
                let found = self.map.remove(name(key % 48), *now).map(|value| value.number);
                assert_eq!(found, expected, "{key}");
                self.known.remove(&(key % 48));
            }
            Step::Wait { seconds } => *now = now.after(Duration::from_secs(seconds.into())),
            Step::Sweep => {
                let before = self.known.len();
                self.known.retain(|_, known| known.expires.is_none_or(|at| at > *now));
                assert_eq!(
                    self.map.sweep(*now),
                    before - self.known.len(),
                    "all that has expired goes, and nothing else"
                );
            }
            Step::Budget { bytes } => {
                self.budget = u64::from(bytes);
                self.map.set_budget(self.budget);
            }
            Step::Purge { tag } => {
                let tag = tag % 3;
                let mut gone = Vec::new();
                self.tags.each(&format!("t{tag}"), |found| {
                    let same =
                        |there: Option<&Arc<Value>>| there.is_some_and(|value| value.tagged.number() == found.number);
                    let change =
                        |there: Option<&Arc<Value>>| (if same(there) { Change::Remove } else { Change::Keep }, ());
                    self.map.update(name(found.place), *now, change);
                    gone.push(found.place);
                });
                for (key, known) in &self.known {
                    assert_eq!(gone.contains(key), known.tags & 1 << tag != 0, "{key} and its tag {tag}");
                }
                // What has expired and was not swept is not seen, and stays.
                self.known.retain(|key, known| !gone.contains(key) || known.value.strong_count() > 0);
            }
        }
    }

    /// What has to be found there; what had to make room is not known any more.
    fn current(&self, key: u8, now: Moment) -> Option<u64> {
        let known = self.known.get(&key)?;
        let fresh = known.expires.is_none_or(|at| at > now);
        (fresh && known.value.strong_count() > 0).then_some(known.number)
    }

    fn check(&mut self, step: &Step) {
        self.evict();
        let usage = self.map.usage();
        let weight = |(key, known): (&u8, &Known)| known.weight + name(*key).len() as u64 + OVERHEAD;
        assert_eq!(usage.bytes, self.known.iter().map(weight).sum::<u64>(), "after {step:?}");
        assert_eq!(usage.entries, self.known.len() as u64, "after {step:?}");
        assert_eq!(usage.evicted, self.evicted, "after {step:?}");
        assert!(usage.bytes <= self.budget, "{} of {} after {step:?}", usage.bytes, self.budget);
    }
}
