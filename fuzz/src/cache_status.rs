//! `Cache-Status` and `Headwall-Explain`: what we write is a structured field that says what was meant.

use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use headwall::fields::cache_status::{CacheStatus, Forward, ttl};
use headwall::fields::explained::{Member, read, value};
use sfv::{BareItem, ListEntry, Parser};

/// A word, and what is said with it.
type Words = (u8, Vec<Vec<u8>>);

#[derive(Debug, Arbitrary)]
struct Input {
    hit: bool,
    forward: Option<u8>,
    forward_status: Option<u16>,
    ttl: Option<i32>,
    stored: bool,
    collapsed: bool,
    detail: bool,
    lifetime: u32,
    age_ms: u32,
    members: Vec<Words>,
}

const FORWARDS: [Forward; 7] = [
    Forward::UriMiss,
    Forward::VaryMiss,
    Forward::Partial,
    Forward::Stale,
    Forward::Bypass,
    Forward::Method,
    Forward::Request,
];

/// A status and an explanation.
pub fn run(data: &[u8]) {
    let Ok(input) = Input::arbitrary(&mut Unstructured::new(data)) else { return };
    let status = CacheStatus {
        hit: input.hit,
        forward: input.forward.map(|index| FORWARDS[usize::from(index) % FORWARDS.len()]),
        forward_status: input.forward_status,
        ttl: input.ttl.map(i64::from),
        stored: input.stored,
        collapsed: input.collapsed,
        detail: input.detail.then_some("no-store"),
    };
    printed(&status);
    let left = ttl(Duration::from_secs(input.lifetime.into()), Duration::from_millis(input.age_ms.into()));
    let exact = i128::from(input.lifetime) * 1000 - i128::from(input.age_ms);
    assert_eq!(i128::from(left), exact.div_euclid(1000), "of {} and {} ms", input.lifetime, input.age_ms);
    explained(&input.members);
}

fn printed(status: &CacheStatus) {
    let value = status.value();
    let list = Parser::parse_list(value.as_bytes()).unwrap_or_else(|error| panic!("{value}: {error}"));
    let [ListEntry::Item(item)] = &list[..] else { panic!("{value} is one member") };
    assert_eq!(item.bare_item, BareItem::Token("headwall".into()));
    let flag = |name: &str| item.params.get(name).and_then(BareItem::as_bool) == Some(true);
    let token = |name: &str| item.params.get(name).and_then(|item| item.as_token()).map(str::to_owned);
    let number = |name: &str| item.params.get(name).and_then(BareItem::as_int);
    assert_eq!(
        (flag("hit"), flag("stored"), flag("collapsed")),
        (status.hit, status.stored, status.collapsed),
        "{value}"
    );
    assert_eq!(token("fwd"), status.forward.map(|forward| forward.word().to_owned()), "{value}");
    assert_eq!(token("detail"), status.detail.map(str::to_owned), "{value}");
    assert_eq!((number("ttl"), number("fwd-status")), (status.ttl, status.forward_status.map(i64::from)), "{value}");
    assert!(!status.word().is_empty());
}

fn explained(members: &[Words]) {
    let words = ["route", "key", "rule", "request", "origin", "then"];
    let names = ["a", "b", "c", "d"];
    let word = |index: u8| words[usize::from(index) % words.len()];
    let written = members.iter().map(|(index, parameters)| {
        parameters
            .iter()
            .take(names.len())
            .enumerate()
            .fold(Member::new(word(*index)), |member, (at, text)| member.text(names[at], text))
    });
    let value = value(written.collect());
    assert!(value.len() <= 4096 && value.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{value:?}");
    let told = read(value.as_bytes());
    let cut = told.last().is_some_and(|last| last.word == "cut");
    if cut {
        assert!(told.len() <= members.len());
        return;
    }
    assert_eq!(told.len(), members.len(), "{value}");
    for (told, (index, parameters)) in told.iter().zip(members) {
        assert_eq!(told.word, word(*index));
        for (at, text) in parameters.iter().take(names.len()).enumerate() {
            let plain = text.iter().all(|byte| (b' '..=b'~').contains(byte)) && text.len() < 250;
            assert!(!plain || told.get(names[at]).as_bytes() == text, "{text:?} in {value}");
            assert!(told.has(names[at]));
        }
    }
}
