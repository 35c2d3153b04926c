//! Tags: a set, and nothing in it that was not written.

use std::collections::BTreeSet;

use headwall::fields::tags::{FIELDS, LONGEST, MOST, of, too_many};
use sfv::{BareItem, ListEntry, Parser};

use super::input::{joined, lines, plain_members};

/// The three fields, with a zero between them.
pub fn run(data: &[u8]) {
    let mut parts = data.splitn(3, |byte| *byte == 0);
    let mut fields = http::HeaderMap::new();
    for name in FIELDS {
        for value in lines(name, parts.next().unwrap_or_default()).get_all(name) {
            fields.append(name, value.clone());
        }
    }
    let tags = of(&fields);
    assert!(tags.windows(2).all(|pair| pair[0] < pair[1]), "{tags:?}");
    assert!(!tags.is_empty() || !too_many(&tags));
    assert_eq!(too_many(&tags), tags.len() > MOST || tags.concat().len() > LONGEST);
    let list = joined(&fields, FIELDS[0]);
    if list.contains(&b'"') {
        return;
    }
    let mut expected: BTreeSet<Vec<u8>> = plain_members(&list).into_iter().map(<[u8]>::to_vec).collect();
    let words = joined(&fields, FIELDS[1]);
    for line in fields.get_all(FIELDS[1]) {
        expected.extend(line.as_bytes().split(|byte| b" \t\x0c".contains(byte)).map(<[u8]>::to_vec));
    }
    expected.remove(&b""[..]);
    let groups = fields.get_all(FIELDS[2]).iter().map(|line| line.as_bytes()).collect::<Vec<_>>().join(&b", "[..]);
    for entry in Parser::parse_list(&groups).unwrap_or_default() {
        if let ListEntry::Item(item) = entry
            && let BareItem::String(name) = item.bare_item
        {
            expected.insert(name.into_bytes());
        }
    }
    expected.retain(|tag| std::str::from_utf8(tag).is_ok());
    let found: BTreeSet<Vec<u8>> = tags.into_iter().map(String::into_bytes).collect();
    assert_eq!(found, expected, "{list:?} {words:?} {groups:?}");
}
