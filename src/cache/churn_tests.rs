//! What the store lists after much has come and gone: nothing that is not there.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderName;
use pingora::cache::key::{CacheHashKey, HashBinary};
use pingora::cache::storage::Storage;
use pingora::cache::trace::{Span, SpanHandle};
use pingora::cache::{CacheKey, CacheMeta};
use pingora::http::ResponseHeader;

use super::fill::Terms;
use super::key::Parts;
use super::parts::Arrived;
use super::policy::Life;
use super::purge::{Manner, Purged, What};
use super::storage::Decision;
use super::{Cache, Limits};
use crate::clock::Clock;
use crate::fields::range::Part;

const LENGTH: u64 = 1000;
const SLICE: u64 = 256;

fn cache(memory: u64) -> (&'static Cache, Clock) {
    let clock = Clock::system();
    let limits = Limits { memory, max_object: 1 << 20, max_unsized: 1 << 20, fills: 1 << 20, max_variants: 4 };
    (Cache::leak(limits, clock.clone()), clock)
}

fn nobody() -> SpanHandle {
    Span::inactive().handle()
}

fn key(cache: &Cache, number: u64) -> CacheKey {
    let (host, target) = (format!("{}.test", number % 7), format!("/{number}"));
    let parts = Parts {
        scheme: "http",
        host: &host,
        forwarded_host: b"",
        target: target.as_bytes(),
        upstream: "app",
        selector: "",
    };
    cache.key(&parts).0
}

/// A minute from now on.
fn life(clock: &Clock) -> Life {
    let now = clock.now();
    Life { asked: now, received: now, ..super::policy::a_minute() }
}

fn response(status: u16, tag: u64) -> ResponseHeader {
    let mut response = ResponseHeader::build(status, None).unwrap();
    response.insert_header("cache-tag", format!("all, t{}", tag % 5)).unwrap();
    response.insert_header("etag", format!("\"{tag}\"")).unwrap();
    response
}

fn meta(cache: &Cache, clock: &Clock, tag: u64) -> CacheMeta {
    let terms = Terms { length: None, limit: 1 << 20, patience: Duration::from_secs(60) };
    let decision = Decision { life: life(clock), terms, validated: None, seed: None };
    cache.meta(response(200, tag), decision)
}

fn no_variant(_: &[HeaderName]) -> Option<HashBinary> {
    None
}

async fn fill(cache: &'static Cache, clock: &Clock, number: u64, tag: u64, whole: bool) {
    let key = key(cache, number);
    let meta = meta(cache, clock, tag);
    let mut writer = cache.get_miss_handler(&key, &meta, &nobody()).await.unwrap();
    writer.write_body(Bytes::from(vec![0; 300]), whole).await.unwrap();
    if whole {
        writer.finish().await.unwrap();
    }
}

/// A part comes that goes over several slices.
fn part(cache: &'static Cache, clock: &Clock, number: u64, tag: u64) {
    let (key, part) = (key(cache, number), Part::of(100, 899, LENGTH).unwrap());
    let arrived = Arrived { response: &response(206, tag), part, life: life(clock), slice: SLICE, conditional: false };
    let sheet = cache.open(&key, no_variant, &arrived).unwrap();
    let mut taking = cache.take_part(sheet, &part, clock.now(), Duration::from_secs(60), None);
    taking.write(Bytes::from(vec![0; 800]));
}

#[tokio::test]
async fn nothing_stays_listed_that_is_not_stored() {
    // There is room for some of it only.
    let (cache, clock) = cache(200_000);
    let dry = Manner { dry_run: true, ..Manner::default() };
    let purge = |what: What, manner| cache.purge(&what, manner).entries;
    for round in 0..3000u64 {
        let number = round * 7 % 200;
        match round % 4 {
            0 => fill(cache, &clock, number, round, true).await,
            1 => fill(cache, &clock, number, round, false).await,
            2 => part(cache, &clock, number, round),
            _ => part(cache, &clock, number + 1000, round / 40),
        }
        match round % 97 {
            0 => _ = cache.invalidate(&key(cache, number)),
            1 => _ = purge(What::Tag("t1".into()), Manner::default()),
            2 => _ = purge(What::Tag("t2".into()), Manner { soft: true, dry_run: false }),
            3 => _ = purge(What::Target(None, format!("/{number}")), Manner::default()),
            4 => clock.advance(Duration::from_secs(61)),
            5 => cache.sweep(),
            _ => {}
        }
    }
    let usage = cache.usage();
    assert!(usage.entries > 50 && usage.evicted > 100, "{usage:?}");
    cache.sweep();
    let entries = cache.usage().entries;
    assert_eq!(purge(What::All, dry), entries, "all that is stored is listed, and nothing else");
    assert_eq!(purge(What::Tag("all".into()), dry), entries);
    assert_eq!(purge(What::Beginning(None, "/".into()), dry), entries);
    let hosts = (0..7).map(|host| purge(What::Beginning(Some(format!("{host}.test")), String::new()), dry));
    assert_eq!(hosts.sum::<u64>(), entries);
    assert_eq!(purge(What::All, Manner::default()), entries);
    assert_eq!((cache.usage().entries, cache.usage().bytes), (0, 0));
    assert!(cache.lists_nothing(), "a listing was left behind");
    assert_eq!(purge(What::All, Manner::default()), 0);
}

#[test]
fn parts_are_counted_with_their_slices_and_go_with_them() {
    let (cache, clock) = cache(1 << 20);
    part(cache, &clock, 1, 1);
    let (what, dry) = (What::Target(None, "/1".into()), Manner { dry_run: true, ..Manner::default() });
    let counted = cache.purge(&what, dry);
    assert_eq!((counted.entries, counted.bytes < cache.usage().bytes), (5, true));
    assert_eq!(cache.purge(&what, Manner { soft: true, dry_run: false }), counted);
    assert_eq!(cache.purge(&what, Manner::default()), counted);
    assert_eq!(cache.purge(&what, dry), Purged::default());
    assert!(cache.lists_nothing());
}

/// The head is here, and before anybody is told the target is purged: who came after that and waits gets nothing.
#[tokio::test]
async fn who_waits_for_a_slice_gets_none_from_before_a_purge() {
    let (cache, clock) = cache(1 << 20);
    let (key, part) = (key(cache, 1), Part::of(0, SLICE - 1, LENGTH).unwrap());
    for purged in [false, true] {
        let (_, lead) = cache.fetch(&key, no_variant, 0, SLICE).unwrap();
        let (response, patience) = (response(206, 1), Duration::from_secs(60));
        let arrived = Arrived { response: &response, part, life: life(&clock), slice: SLICE, conditional: false };
        let sheet = cache.open(&key, no_variant, &arrived).unwrap();
        if purged {
            cache.purge(&What::All, Manner::default());
        }
        let (joined, none) = cache.fetch(&key, no_variant, 0, SLICE).unwrap();
        assert!(none.is_none(), "it is under way");
        let mut taking = cache.take_part(sheet, &part, arrived.life.asked, patience, lead);
        assert_eq!(joined.comes(cache, patience).await.is_none(), purged);
        taking.write(Bytes::from(vec![0; SLICE as usize]));
        drop(taking);
        assert_eq!(cache.usage().entries, if purged { 0 } else { 2 });
    }
}

/// Each of these was asked for before a purge, and comes to the store at another moment after it.
#[tokio::test]
async fn what_was_asked_for_before_a_purge_does_not_get_in_by_any_way() {
    let (cache, clock) = cache(1 << 20);
    let (key, patience) = (key(cache, 1), Duration::from_secs(60));
    let purge = || cache.purge(&What::Tag("all".into()), Manner::default());
    let piece = || Bytes::from(vec![0; SLICE as usize]);

    let before = meta(cache, &clock, 1);
    purge();
    let writer = cache.get_miss_handler(&key, &before, &nobody()).await.unwrap();
    assert!(cache.lookup(&key, &nobody()).await.unwrap().is_none(), "nobody joins it");
    writer.finish().await.unwrap();
    assert_eq!(cache.usage().entries, 0, "a whole whose head comes after it");

    // What has lost its place meanwhile cannot be found there.
    let before = meta(cache, &clock, 1);
    let writer = cache.get_miss_handler(&key, &before, &nobody()).await.unwrap();
    cache.map.remove(key.combined_bin(), clock.now());
    purge();
    writer.finish().await.unwrap();
    assert_eq!(cache.usage().entries, 0, "a whole that was evicted before it");

    let part = Part::of(0, SLICE - 1, LENGTH).unwrap();
    let response = response(206, 1);
    let arrived = || Arrived { response: &response, part, life: life(&clock), slice: SLICE, conditional: false };
    let before = arrived();
    purge();
    assert!(cache.open(&key, no_variant, &before).is_none(), "a part whose head comes after it");

    let (_, lead) = cache.fetch(&key, no_variant, 0, SLICE).unwrap();
    let before = arrived();
    let sheet = cache.open(&key, no_variant, &before).unwrap();
    let mut taking = cache.take_part(sheet, &part, before.life.asked, patience, lead);
    assert!(cache.fetch(&key, no_variant, 0, SLICE).unwrap().1.is_none(), "who comes now joins");
    purge();
    let (_, lead) = cache.fetch(&key, no_variant, 0, SLICE).unwrap();
    assert!(lead.is_some(), "who comes after it does not");
    taking.write(piece());
    drop((taking, lead));
    assert_eq!(cache.usage().entries, 0, "a slice whose content comes after it");

    let after = arrived();
    let sheet = cache.open(&key, no_variant, &after).unwrap();
    cache.take_part(sheet, &part, after.life.asked, patience, None).write(piece());
    assert_eq!(cache.usage().entries, 2, "and what is asked for after it, does");
}

/// Its replacement is on its way and nobody may join it: what it was to replace is still there, if the purge let it be.
#[tokio::test]
async fn what_a_doomed_fill_was_to_replace_is_found_meanwhile() {
    let (cache, clock) = cache(1 << 20);
    let (key, tag) = (key(cache, 1), What::Tag("all".into()));
    for soft in [true, false] {
        fill(cache, &clock, 1, 1, true).await;
        clock.advance(Duration::from_secs(61));
        let writer = cache.get_miss_handler(&key, &meta(cache, &clock, 2), &nobody()).await.unwrap();
        clock.advance(Duration::from_secs(1));
        cache.purge(&tag, Manner { soft, dry_run: false });
        let found = cache.lookup(&key, &nobody()).await.unwrap();
        let found = found.map(|(meta, _)| meta.headers()["etag"].clone());
        assert_eq!(found, soft.then(|| "\"1\"".parse().unwrap()));
        drop(writer);
        assert_eq!(cache.lookup(&key, &nobody()).await.unwrap().is_some(), soft);
        cache.purge(&What::All, Manner::default());
    }
}
