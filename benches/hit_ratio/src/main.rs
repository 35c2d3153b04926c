//! Compares what the memory keeps with what an exact LRU and moka (TinyLFU) keep, on the same requests.
//!
//! ```text
//! cargo run --release --manifest-path benches/hit_ratio/Cargo.toml
//! ```
//!
//! The first trace guards a claim, and the program fails if it does not hold: on a Zipf trace with room for a tenth
//! of the keys our hit ratio is well above an LRU's and not noticeably below moka's. The other traces are there to
//! be looked at: no policy is best on all of them, and none of ours should be a surprise.

#[allow(dead_code)]
#[path = "../../../src/clock.rs"]
mod clock;
mod lru;
#[allow(dead_code)]
#[path = "../../../src/memory/mod.rs"]
mod memory;
mod trace;

use std::process::ExitCode;

use clock::Moment;
use lru::Lru;
use memory::Memory;

const KEYS: u32 = 1_000_000;
const ROOM: u64 = KEYS as u64 / 10;
const REQUESTS: usize = 5_000_000;
/// Requests that fill the caches and do not count.
const WARM_UP: usize = 1_000_000;
/// Keys of a scan come after those of the trace that it interrupts.
const SCANNED: u32 = 2_000_000;

/// What we claim, in percentage points.
const ABOVE_LRU: f64 = 4.0;
const BELOW_MOKA: f64 = 0.5;

struct Trace {
    name: &'static str,
    requests: Vec<u32>,
    size: fn(u32) -> u64,
    /// If sizes vary, the room is that for a tenth of all bytes instead of keys.
    sizes_vary: bool,
}

/// Asks a cache for a key, which goes in with this weight if it is not there; whether it was.
type Request = Box<dyn FnMut(u32, u64) -> bool>;

fn ours(budget: u64, beside_value: u64) -> Request {
    let (map, now) = (Memory::new(budget), Moment::default());
    Box::new(move |key, weight| {
        let key = key.to_le_bytes();
        let hit = map.get(&key, now).is_some();
        if !hit {
            map.put(key, (), weight - beside_value, None, now);
        }
        hit
    })
}

fn lru(budget: u64) -> Request {
    let mut lru = Lru::new(KEYS + SCANNED, budget);
    Box::new(move |key, weight| lru.request(key, weight))
}

/// By count where all entries weigh the same, because moka does better then.
fn moka(budget: u64, sizes_vary: bool) -> Request {
    let builder = moka::sync::Cache::builder();
    let cache = match sizes_vary {
        true => builder.max_capacity(budget).weigher(|_, weight| *weight).build(),
        false => builder.max_capacity(ROOM).build(),
    };
    Box::new(move |key, weight| {
        let hit = cache.get(&key).is_some();
        if !hit {
            cache.insert(key, weight as u32);
        }
        hit
    })
}

/// What an entry weighs beside its value: all three have the same room if the others count it too.
fn beside_value() -> u64 {
    let map = Memory::new(u64::MAX);
    map.put([0; 4], (), 0, None, Moment::default());
    map.usage().bytes
}

/// The share of requests and of bytes that were hits, in percent. Keys that are scanned once cannot be, and do not count.
fn ratios(trace: &Trace, beside_value: u64, mut request: Request) -> (f64, f64) {
    let (mut asked, mut hits, mut asked_bytes, mut hit_bytes) = (0, 0, 0, 0);
    for (n, key) in trace.requests.iter().enumerate() {
        let size = (trace.size)(*key);
        let hit = request(*key, size + beside_value);
        if n >= WARM_UP && *key < KEYS {
            asked += 1;
            asked_bytes += size;
            hits += u64::from(hit);
            hit_bytes += if hit { size } else { 0 };
        }
    }
    let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole as f64;
    (percent(hits, asked), percent(hit_bytes, asked_bytes))
}

fn traces() -> Vec<Trace> {
    let zipf = trace::zipf(KEYS, 0.9, REQUESTS, 1);
    let (before, after) = zipf.split_at(REQUESTS / 2);
    let scan = [before, &Vec::from_iter(KEYS..KEYS + SCANNED), after].concat();
    let round = (ROOM * 12 / 10) as u32;
    let rounds = (0..REQUESTS as u32).map(|n| n % round).collect();
    let same = |_| 1000;
    vec![
        Trace { name: "zipf 0.9", requests: zipf.clone(), size: same, sizes_vary: false },
        Trace { name: "1 KiB to 1 MiB", requests: zipf, size: trace::pareto, sizes_vary: true },
        Trace { name: "scan in between", requests: scan, size: same, sizes_vary: false },
        Trace { name: "loop over 120 %", requests: rounds, size: same, sizes_vary: false },
    ]
}

fn main() -> ExitCode {
    let beside_value = beside_value();
    let mut holds = None;
    println!("{:17}{:>9}{:>9}{:>9}{:>11}{:>10}", "hits in percent", "ours", "lru", "moka", "over lru", "over moka");
    for trace in traces() {
        let weight = |key| (trace.size)(key) + beside_value;
        let budget = if trace.sizes_vary { (0..KEYS).map(weight).sum::<u64>() / 10 } else { ROOM * weight(0) };
        let run = |request| ratios(&trace, beside_value, request);
        let (ours, lru, moka) =
            (run(ours(budget, beside_value)), run(lru(budget)), run(moka(budget, trace.sizes_vary)));
        let row = |name, ours: f64, lru: f64, moka: f64| {
            println!("{name:17}{ours:9.2}{lru:9.2}{moka:9.2}{:+11.2}{:+10.2}", ours - lru, ours - moka);
        };
        row(trace.name, ours.0, lru.0, moka.0);
        if trace.sizes_vary {
            row("  by bytes", ours.1, lru.1, moka.1);
        }
        holds.get_or_insert(ours.0 >= lru.0 + ABOVE_LRU && ours.0 >= moka.0 - BELOW_MOKA);
    }
    match holds {
        Some(true) => ExitCode::SUCCESS,
        _ => {
            println!("zipf 0.9 has to be {ABOVE_LRU} points above lru and at most {BELOW_MOKA} below moka; it is not");
            ExitCode::FAILURE
        }
    }
}
