//! The same streams of requests, as a client means them, as the proxy writes them to the app, and as Node understands
//! them: nobody may see a request that another one does not see.
//!
//! Half of the streams are sound, with all that is legal and odd; half are damaged where it hurts. `make differential`
//! sends many of them (`STREAMS`, `SEED`); with every other test it is some thousands of one seed.

mod client;
mod reader;
mod streams;
mod tap;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use serde_json::Value;

use crate::support::{Headwall, Origin, together, wait_until};
use client::Answer;
use reader::{Message, OVER, Stream};
use streams::{Random, Sent};
use tap::Tap;

/// So many connections at once.
const CLIENTS: usize = 8;
const FRAMING: [&str; 2] = ["content-length", "transfer-encoding"];
/// A proxy of its own for so many streams, so that all its bytes can be kept.
const ROUND: usize = 2000;

/// A stream, and what it means.
struct Case {
    number: usize,
    sent: Sent,
    meant: Stream,
    answers: Vec<Answer>,
}

#[derive(Debug, Default)]
struct Tally {
    streams: usize,
    damaged: usize,
    requests: usize,
    passed: usize,
    refused: usize,
    cut: usize,
    /// Content that a strict reader does not take, by what it says.
    lenient: BTreeMap<&'static str, usize>,
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn what_the_client_meant_is_what_the_app_sees() {
    let seed = number("SEED").unwrap_or(1);
    let count = number("STREAMS").unwrap_or(2000) as usize;
    let app = Origin::of("tests/e2e/differential.js", "");
    let (mut tally, mut differences) = (Tally::default(), Vec::new());
    for start in (0..count).step_by(ROUND) {
        let before = differences.len();
        round(&app, seed, start..count.min(start + ROUND), &mut tally, &mut differences);
        if count > ROUND {
            differences[before..].iter().for_each(|difference| eprintln!("{difference}\n"));
            eprintln!("{tally:?}, {} differences", differences.len());
        }
        if differences.len() > 20 {
            break;
        }
    }
    let told = differences.iter().take(10).map(String::as_str).collect::<Vec<_>>().join("\n\n");
    assert!(differences.is_empty(), "SEED={seed}: {} differences\n{told}", differences.len());
    // Or the test proves nothing.
    assert!(tally.passed * 2 > tally.requests && tally.refused > 0 && tally.damaged > 0, "{tally:?}");
}

fn case(seed: u64, number: usize) -> Case {
    let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ number as u64);
    let sent = streams::stream(&mut random);
    let meant = reader::read(&sent.bytes());
    Case { number, sent, meant, answers: Vec::new() }
}

fn round(app: &Origin, seed: u64, numbers: Range<usize>, tally: &mut Tally, differences: &mut Vec<String>) {
    let tap = Tap::before(app.port);
    let proxy = Headwall::start(&format!(
        "upstreams: {{ app: {{ servers: [\"127.0.0.1:{}\"] }} }}\nroutes:\n  - {{ match: {{ prefix: /c/ }}, to: {{ proxy: app }}, \
         cache: {{}} }}\n  - to: {{ proxy: app }}\n",
        tap.port
    ));
    let (next, done) = (AtomicUsize::new(numbers.start), Mutex::new(Vec::new()));
    together(CLIENTS, |_| {
        loop {
            let number = next.fetch_add(1, Relaxed);
            if number >= numbers.end {
                return;
            }
            let mut case = case(seed, number);
            let methods: Vec<_> = case.meant.messages.iter().map(|message| message.method.as_str()).collect();
            let whole = case.meant.messages.iter().filter(|message| message.complete).count();
            case.answers = client::exchange(proxy.address, &case.sent, &methods, whole);
            done.lock().unwrap().push(case);
        }
    });
    drop(proxy);
    let written = tap.end();
    wait_until(|| app.ask("/open") == 0);
    let log = app.ask("/take");
    let mut cases = done.into_inner().unwrap();
    cases.sort_by_key(|case| case.number);
    let mut judge = Judge { cases: &cases, differences, tally };
    judge.answers();
    let seen = judge.log(log.as_array().unwrap());
    judge.writes(&written, log.as_array().unwrap());
    judge.count(&seen);
}

struct Judge<'a> {
    cases: &'a [Case],
    differences: &'a mut Vec<String>,
    tally: &'a mut Tally,
}

fn text(bytes: &[u8]) -> String {
    let shown: String =
        bytes.iter().take(1500).flat_map(|byte| std::ascii::escape_default(*byte)).map(char::from).collect();
    shown.replace("\\r\\n", "\\r\\n\n  ")
}

/// As Node tells bytes.
fn latin1(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

impl Judge<'_> {
    fn differs(&mut self, case: &Case, what: String) {
        let Case { number, sent, meant, answers } = case;
        let answers: Vec<_> = answers.iter().map(|answer| (answer.status, &answer.seen)).collect();
        let why = meant.fault.unwrap_or("its end");
        self.differences.push(format!(
            "stream {number}, {what}\n  a strict reader sees {} requests and then {why}; the client got {answers:?}\n  {}",
            meant.messages.len(),
            text(&sent.bytes())
        ));
    }

    /// Responses come to their connection, in order, and none behind a refusal.
    fn answers(&mut self) {
        for case in self.cases {
            let Case { sent, meant, answers, .. } = case;
            for (at, answer) in answers.iter().enumerate() {
                let message = meant.messages.get(at);
                match (&answer.seen, message) {
                    (Some(seen), Some(message)) if *seen == message.target => {
                        if answer.complete && answer.content != expected(message) {
                            self.differs(case, format!("response {at} has other content"));
                        }
                    }
                    (Some(seen), _) => self.differs(case, format!("response {at} is for {seen}")),
                    (None, Some(_)) if answer.by_app => {}
                    (None, _) if answer.status < 400 => self.differs(case, format!("response {at} comes from nowhere")),
                    (None, _) if at + 1 < answers.len() => {
                        self.differs(case, format!("a response behind refusal {at}"))
                    }
                    (None, None) if at > meant.messages.len() => {
                        self.differs(case, format!("response {at} is for nothing"))
                    }
                    (None, _) => {}
                }
            }
            let got = answers.iter().filter(|answer| answer.seen.is_some() && answer.complete).count();
            // What comes unasked for behind content is not read: the connection is closed, and what was on its way to the
            // client may be lost with it.
            let framed = |message: &Message| message.fields.iter().any(|(name, _)| FRAMING.contains(&name.as_str()));
            // Nor what comes behind content that the app did not wait for.
            let early = |message: &Message| framed(message) && message.target.contains("/early");
            let needed = match sent.waits {
                true => meant.messages.iter().position(early).map_or(meant.messages.len(), |at| at + 1),
                false => usize::from(meant.messages.first().is_some_and(|first| !framed(first))),
            };
            // A response may say that it is the last.
            let closes = answers.last().is_some_and(|last| last.closes);
            if sent.sound && (meant.fault.is_some() || (got < needed && !closes)) {
                self.differs(case, "a sound stream is not answered".into());
            }
        }
    }

    /// Each request that Node saw is one that was meant, as it was meant; where they stand.
    fn log(&mut self, log: &[Value]) -> HashMap<(usize, usize), bool> {
        let mut places = HashMap::new();
        for (number, case) in self.cases.iter().enumerate() {
            for (at, message) in case.meant.messages.iter().enumerate() {
                places.insert(message.target.as_str(), (number, at));
            }
        }
        let (mut seen, mut latest) = (HashMap::new(), HashMap::new());
        let cases = self.cases;
        for entry in log {
            if let Some(code) = entry["refused"].as_str() {
                // So it tells that a request was cut, and that it knows no such method.
                if !["HPE_INVALID_EOF_STATE", "ECONNRESET", "HPE_INVALID_METHOD"].contains(&code) {
                    self.differences.push(format!("Node refuses what it gets: {code}"));
                }
                continue;
            }
            let target = entry["target"].as_str().unwrap();
            let Some(place) = places.get(target) else {
                self.differences.push(format!("Node saw what nobody meant: {} {target}", entry["method"]));
                continue;
            };
            let case = &cases[place.0];
            let message = &case.meant.messages[place.1];
            // How content is framed may be read leniently, as long as nothing is read behind it: the judge does not, so
            // whatever else Node sees of this stream is a difference.
            let lenient = case.meant.fault.filter(|fault| *fault != OVER && !message.complete);
            match (lenient, unlike(message, entry)) {
                (Some(fault), Some(_)) if begins_alike(message, entry) => {
                    *self.tally.lenient.entry(fault).or_default() += 1
                }
                (_, Some(what)) => self.differs(case, format!("request {}: {what}", place.1)),
                (_, None) => {}
            }
            if seen.insert(*place, entry["complete"] == true).is_some() {
                self.differs(case, format!("request {} came twice", place.1));
            }
            if latest.insert(place.0, place.1).is_some_and(|before| before > place.1) {
                self.differs(case, format!("request {} came out of order", place.1));
            }
        }
        seen
    }

    /// What the proxy wrote is strict, nothing stands between requests, and Node read the same.
    fn writes(&mut self, written: &BTreeMap<String, Vec<u8>>, log: &[Value]) {
        for (connection, bytes) in written {
            let Stream { messages, fault, left } = reader::read(bytes);
            if fault.is_some_and(|fault| fault != OVER) || (left > 0 && fault.is_none()) {
                self.differences.push(format!("the proxy wrote {fault:?}, {left} bytes left: {}", text(bytes)));
            }
            let seen: Vec<_> =
                log.iter().filter(|entry| entry["connection"] == **connection && entry["target"].is_string()).collect();
            if seen.len() > messages.len() {
                self.differences.push(format!(
                    "Node saw {} requests in {}: {}",
                    seen.len(),
                    messages.len(),
                    text(bytes)
                ));
            }
            for (message, entry) in messages.iter().zip(seen) {
                if message.target != entry["target"].as_str().unwrap() {
                    self.differences.push(format!("Node saw {} in {}", entry["target"], text(bytes)));
                } else if let Some(what) = unlike(message, entry) {
                    self.differences.push(format!("{what}, as the proxy wrote it: {}", text(bytes)));
                }
            }
        }
    }

    fn count(&mut self, seen: &HashMap<(usize, usize), bool>) {
        for (number, case) in self.cases.iter().enumerate() {
            self.tally.streams += 1;
            self.tally.damaged += usize::from(!case.sent.sound);
            for at in 0..case.meant.messages.len() {
                self.tally.requests += 1;
                match seen.get(&(number, at)) {
                    Some(true) => self.tally.passed += 1,
                    Some(false) => self.tally.cut += 1,
                    None => {}
                }
            }
            self.tally.refused += case.answers.iter().filter(|answer| answer.seen.is_none()).count();
        }
    }
}

/// What the app answers.
fn expected(message: &Message) -> &'static [u8] {
    let kind = message.target.rsplit('/').next().unwrap_or_default();
    match kind {
        _ if message.method == "HEAD" => b"",
        "empty" => b"",
        "chunks" => b"in pieces",
        _ => b"answer",
    }
}

/// Whether one content is the beginning of the other.
fn begins_alike(message: &Message, entry: &Value) -> bool {
    let (content, told) = (latin1(&message.content), entry["content"].as_str().unwrap());
    content.starts_with(told) || told.starts_with(&content)
}

/// What Node understood otherwise.
fn unlike(message: &Message, entry: &Value) -> Option<String> {
    let content = latin1(&message.content);
    let told = entry["content"].as_str().unwrap();
    if message.method != entry["method"].as_str().unwrap() {
        return Some(format!("Node saw the method {}", entry["method"]));
    }
    let complete = entry["complete"] == true;
    if complete && (!message.complete || content != told) {
        return Some(format!(
            "Node saw {} bytes of content, of {} that {} meant",
            told.len(),
            content.len(),
            if message.complete { "were" } else { "perhaps were" }
        ));
    }
    if !content.starts_with(told) {
        return Some("Node saw other content".into());
    }
    if entry["trailers"].as_array().is_some_and(|trailers| !trailers.is_empty()) {
        return Some("Node saw trailers".into());
    }
    let ours = |name: &str| ["x-ta-", "x-tb-", "x-tc_d-"].iter().any(|start| name.starts_with(start));
    let named: Vec<String> = message
        .fields
        .iter()
        .filter(|(name, _)| name == "connection")
        .flat_map(|(_, list)| {
            latin1(list).to_ascii_lowercase().split(',').map(|option| option.trim().to_owned()).collect::<Vec<_>>()
        })
        .collect();
    let meant: Vec<_> = message
        .fields
        .iter()
        .filter(|(name, _)| ours(name) && !named.contains(name))
        .map(|(name, value)| (name.clone(), latin1(value)))
        .collect();
    let raw: Vec<&str> = entry["fields"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let told: Vec<_> = raw
        .chunks(2)
        .map(|pair| (pair[0].to_ascii_lowercase(), pair[1].to_owned()))
        .filter(|(name, _)| ours(name))
        .collect();
    let sorted = |mut all: Vec<(String, String)>| {
        all.sort();
        all
    };
    let (meant, told) = (sorted(meant), sorted(told));
    (meant != told).then(|| format!("Node saw the fields {told:?}, not {meant:?}"))
}
