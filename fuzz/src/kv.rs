//! The key/value store as a client sees it, beside a map: keys are decoded once, what was put comes back, and what is
//! refused changes nothing.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use async_trait::async_trait;
use bytes::Bytes;
use headwall::RequestHeader;
use headwall::clock::{Clock, Moment};
use headwall::config::{self, Lasting, Parts, Plan};
use headwall::exchange::Exchange;
use headwall::handler::{Content, Handler, Source, Unread};
use headwall::route::Destination;
use tokio::runtime::Runtime;

const YAML: &str = "
listen: ['127.0.0.1:8080']
routes:
  - { match: { prefix: /cache/ }, to: { kv: { memory: 4MiB, max_value: 1KiB } } }
";

#[derive(Debug, Arbitrary)]
enum Step {
    Put { key: Vec<u8>, query: Vec<u8>, content: Vec<u8>, cut: bool },
    Get { key: Vec<u8> },
    Delete { key: Vec<u8> },
    Wait { seconds: u16 },
}

struct Given(Option<Bytes>, bool);

#[async_trait]
impl Source for Given {
    async fn chunk(&mut self, _: &mut Exchange) -> Result<Option<Bytes>, Unread> {
        match self.0.take() {
            None if self.1 => Err(Unread::Broken),
            chunk => Ok(chunk),
        }
    }

    async fn continue_100(&mut self) {}
}

/// One store for all runs: a run takes out what it has put in.
struct Known {
    runtime: Runtime,
    clock: Clock,
    plan: Plan,
}

thread_local! {
    static KNOWN: OnceCell<Known> = const { OnceCell::new() };
}

fn known() -> Known {
    let (lasting, clock) = (Lasting::default(), Clock::system());
    let plan = config::parse("kv.yaml", YAML, &Parts { plugins: &[], lasting: &lasting, clock: &clock });
    let plan = plan.unwrap_or_else(|error| panic!("{error}"));
    Known { runtime: tokio::runtime::Builder::new_current_thread().build().unwrap(), clock, plan }
}

/// A few steps.
pub fn run(data: &[u8]) {
    let Ok(steps) = Vec::<Step>::arbitrary(&mut Unstructured::new(data)) else { return };
    KNOWN.with(|there| {
        let Known { runtime, clock, plan } = there.get_or_init(known);
        let Destination::Local(handler) = &plan.router.routes[0].destination else {
            unreachable!("a kv route is local")
        };
        runtime.block_on(all(&**handler, clock, &steps));
    });
}

/// A key as it is decoded; `Err` with the status where it is refused.
fn decoded(raw: &[u8]) -> Result<Vec<u8>, u16> {
    if raw.is_empty() {
        return Err(404);
    }
    let (mut key, mut at) = (Vec::new(), 0);
    while at < raw.len() {
        if raw[at] != b'%' {
            key.push(raw[at]);
            at += 1;
            continue;
        }
        let digit = |at: usize| raw.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(at + 1), digit(at + 2)) else { return Err(400) };
        key.push((high * 16 + low) as u8);
        at += 3;
    }
    if key.len() > 1024 { Err(414) } else { Ok(key) }
}

/// The seconds that a query asks for.
fn ttl(query: &[u8]) -> Result<Option<u64>, u16> {
    let pairs: Vec<_> = query.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()).collect();
    match pairs[..] {
        [] => Ok(None),
        [pair] => {
            let digits = pair.strip_prefix(b"ttl=").ok_or(400u16)?;
            let number = digits.iter().all(u8::is_ascii_digit) && digits.iter().any(|digit| *digit != b'0');
            let seconds = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
            if number { Ok(Some(seconds.unwrap_or(u64::MAX).min(100_000_000_000))) } else { Err(400) }
        }
        _ => Err(400),
    }
}

async fn ask(
    handler: &dyn Handler,
    clock: &Clock,
    method: &str,
    target: &[u8],
    content: Option<(&[u8], bool)>,
) -> (u16, Bytes) {
    let request = RequestHeader::build(method, target, None).unwrap();
    let mut exchange = Exchange::new(clock.now(), [127, 0, 0, 1].into());
    let mut source =
        Given(content.map(|(bytes, _)| Bytes::copy_from_slice(bytes)), content.is_some_and(|(_, cut)| cut));
    let reply = handler.answer(&request, &mut Content::new(&mut source, None), &mut exchange).await;
    (reply.head.status.as_u16(), reply.content)
}

/// A value that was put.
struct Put {
    content: Vec<u8>,
    /// When it goes at the earliest and at the latest: time passes while it is put, too.
    goes: Option<(Moment, Moment)>,
}

impl Put {
    /// Whether it is there at a time between these two; `None` where nobody can tell.
    fn is_there(&self, before: Moment, after: Moment) -> Option<bool> {
        match self.goes {
            None => Some(true),
            Some((earliest, _)) if after < earliest => Some(true),
            Some((_, latest)) if before >= latest => Some(false),
            Some(_) => None,
        }
    }
}

async fn all(handler: &dyn Handler, clock: &Clock, steps: &[Step]) {
    let mut model: HashMap<Vec<u8>, Put> = HashMap::new();
    // What the guard lets through.
    let legal = |bytes: &[u8]| bytes.iter().all(|byte| byte.is_ascii_graphic() && !b"\\#?".contains(byte));
    for step in steps.iter().take(64) {
        let (key, query) = match step {
            Step::Put { key, query, .. } => (&key[..], &query[..]),
            Step::Get { key } | Step::Delete { key } => (&key[..], &b""[..]),
            Step::Wait { seconds } => {
                clock.advance(Duration::from_secs((*seconds).into()));
                continue;
            }
        };
        if !legal(key) || !legal(query) {
            continue;
        }
        let mut target = [b"/cache/", key].concat();
        if !query.is_empty() {
            target = [&target[..], b"?", query].concat();
        }
        // Nor does the engine read any other target.
        if RequestHeader::build("GET", &target, None).is_err() {
            continue;
        }
        let place = decoded(key);
        let before = clock.now();
        match step {
            Step::Put { content, cut, .. } => {
                let (status, _) = ask(handler, clock, "PUT", &target, Some((content, *cut))).await;
                let after = clock.now();
                let expected = match (&place, ttl(query)) {
                    (Err(refused), _) => *refused,
                    (_, Err(refused)) => refused,
                    _ if content.len() > 1024 => 413,
                    _ if *cut => 400,
                    (Ok(place), Ok(seconds)) => {
                        let goes = seconds.map(Duration::from_secs).map(|span| (before.after(span), after.after(span)));
                        let replaced = model.insert(place.clone(), Put { content: content.clone(), goes });
                        match replaced.map_or(Some(false), |there| there.is_there(before, after)) {
                            Some(true) => 200,
                            Some(false) => 201,
                            None => status.clamp(200, 201),
                        }
                    }
                };
                assert_eq!(status, expected, "PUT {:?}", String::from_utf8_lossy(&target));
            }
            Step::Get { .. } => {
                let (status, content) = ask(handler, clock, "GET", &target, None).await;
                match &place {
                    Err(refused) => assert_eq!(status, *refused),
                    Ok(place) => {
                        let there = model.get(place);
                        let sure = there.map_or(Some(false), |there| there.is_there(before, clock.now()));
                        assert!(status == 200 || status == 404, "{status}");
                        assert!(sure.is_none_or(|sure| sure == (status == 200)), "{status}, and {sure:?}");
                        assert!(status != 200 || there.is_some_and(|there| there.content == content[..]));
                    }
                }
            }
            _ => {
                let (status, _) = ask(handler, clock, "DELETE", &target, None).await;
                assert_eq!(status, place.as_ref().map_or_else(|refused| *refused, |_| 204));
                place.map(|place| model.remove(&place)).ok();
            }
        }
    }
    for place in model.keys() {
        let escaped: String = place.iter().map(|byte| format!("%{byte:02x}")).collect();
        let (status, _) = ask(handler, clock, "DELETE", format!("/cache/{escaped}").as_bytes(), None).await;
        assert_eq!(status, 204);
    }
}
