//! `Vary`: the names are a set, and two requests get one variant only where they are alike in all that was named.

use headwall::ResponseHeader;
use headwall::cache::vary::{Chosen, variant};
use headwall::fields::vary::{add, nominated};
use http::HeaderName;

use super::input::{head, joined, lines, plain_members, values};

/// The field, and the heads of two requests, with a zero between them.
pub fn run(data: &[u8]) {
    let mut parts = data.splitn(3, |byte| *byte == 0);
    let mut part = || parts.next().unwrap_or_default();
    let fields = lines("vary", part());
    let (one, other) = (head(part()), head(part()));
    let list = joined(&fields, "vary");
    let named = nominated(&fields);
    if !list.contains(&b'"') {
        let members = plain_members(&list);
        let names: Option<Vec<_>> = members.iter().map(|name| HeaderName::from_bytes(name).ok()).collect();
        let names = names.filter(|_| !members.contains(&&b"*"[..]));
        assert_eq!(named.is_ok(), names.is_some(), "{list:?}");
        for name in names.unwrap_or_default() {
            assert!(named.as_ref().unwrap().contains(&name), "{name} of {list:?}");
        }
    }
    added(&list);
    let Ok(named) = named else { return };
    assert!(named.windows(2).all(|pair| pair[0].as_str() < pair[1].as_str()), "{named:?}");
    let chosen = Chosen::default();
    let (mine, yours) = (variant(&named, &chosen, &one), variant(&named, &chosen, &other));
    assert_eq!(mine.is_none(), named.is_empty());
    let alike = |name: &HeaderName| values(&one, name.as_str()) == values(&other, name.as_str());
    // These are compared by what they mean.
    let folded = |name: &&HeaderName| matches!(name.as_str(), "accept-encoding" | "accept-language");
    if named.iter().all(alike) {
        assert_eq!(mine, yours, "{named:?}");
    } else if !named.iter().filter(|name| !folded(name)).all(alike) {
        assert_ne!(mine, yours, "{named:?}");
    }
}

/// A name that is added is there, once, and takes none away.
fn added(list: &[u8]) {
    let mut response = ResponseHeader::build(200, None).unwrap();
    if response.insert_header("vary", list).is_err() {
        return;
    }
    let before = nominated(&response.headers);
    for _ in 0..2 {
        add(&mut response, http::header::ORIGIN);
        let after = nominated(&response.headers);
        match &before {
            Err(_) => assert!(after.is_err(), "{list:?} was everything"),
            Ok(before) => {
                let after = after.unwrap();
                assert!(after.contains(&http::header::ORIGIN));
                assert!(before.iter().all(|name| after.contains(name)), "{list:?}");
                assert_eq!(after.len(), before.len() + usize::from(!before.contains(&http::header::ORIGIN)));
            }
        }
    }
}
