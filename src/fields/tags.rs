//! Names that an app gives its responses, to purge by: `Cache-Tag` (a list), `Surrogate-Key` (words) and
//! `Cache-Groups` (RFC 9875, a structured list of strings).

use http::HeaderMap;
use sfv::{BareItem, ListEntry, Parser};

use super::members;

/// The fields that name tags.
pub const FIELDS: [&str; 3] = ["cache-tag", "surrogate-key", "cache-groups"];

/// The tags of a response, sorted and each once. What is not text is no tag.
pub fn of(fields: &HeaderMap) -> Vec<String> {
    let mut tags: Vec<String> = members(fields, FIELDS[0]).filter_map(text).collect();
    for line in fields.get_all(FIELDS[1]) {
        tags.extend(line.as_bytes().split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).filter_map(text));
    }
    let lines: Vec<_> = fields.get_all(FIELDS[2]).iter().map(|line| line.as_bytes()).collect();
    if !lines.is_empty()
        && let Ok(groups) = Parser::parse_list(&lines.join(&b", "[..]))
    {
        tags.extend(groups.into_iter().filter_map(|group| match group {
            ListEntry::Item(item) => match item.bare_item {
                BareItem::String(name) => Some(name),
                _ => None,
            },
            ListEntry::InnerList(_) => None,
        }));
    }
    tags.sort_unstable();
    tags.dedup();
    tags
}

/// So many tags one response or value may have.
pub const MOST: usize = 1000;

/// So many bytes they may have in all.
pub const LONGEST: usize = 16 << 10;

/// Whether these are more than are listed for one response or value.
pub fn too_many(tags: &[String]) -> bool {
    tags.len() > MOST || tags.iter().map(String::len).sum::<usize>() > LONGEST
}

fn text(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::fields;

    #[test]
    fn tags_of_all_three_fields() {
        for (lines, expected) in [
            ("cache-tag: b, a,,b\ncache-tag: c d", &["a", "b", "c d"][..]),
            ("surrogate-key: b a  b\nsurrogate-key: c", &["a", "b", "c"]),
            ("cache-groups: \"x, y\", \"a\";p, 5", &["a", "x, y"]),
            ("cache-groups: \"x", &[]),
            ("cache-tag: a\nsurrogate-key: a\ncache-groups: \"a\"", &["a"]),
            ("", &[]),
        ] {
            assert_eq!(of(&fields(lines)), expected, "{lines}");
        }
    }

    #[test]
    fn too_many_are_too_many_by_number_or_by_length() {
        let tags = |count: usize, length: usize| vec!["x".repeat(length); count];
        assert!(!too_many(&tags(MOST, 16)) && too_many(&tags(MOST + 1, 1)));
        assert!(!too_many(&tags(16, 1024)) && too_many(&tags(16, 1025)));
    }
}
