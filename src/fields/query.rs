//! The query of a target: which of its parameters count, and whether their order does.
//!
//! A query is split where browsers split it (`&` and the first `=`); names are compared
//! decoded, everything else keeps its bytes.

use std::borrow::Cow;

use http::HeaderMap;
use percent_encoding::percent_decode;
use sfv::{BareItem, ListEntry, Parser};

/// Which parameters of a query choose nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// The order of the names does not count.
    pub sort: bool,
    /// All are ignored but the named ones.
    pub only: bool,
    /// The ignored ones, or with `only` those that count. A name that ends with `*` speaks of all that begin so.
    pub names: Vec<String>,
    /// A star is a star: names from a response are taken as they are.
    pub exact: bool,
}

/// The most names that are remembered of one response.
const MOST_NAMES: usize = 64;

fn name(pair: &str) -> Cow<'_, [u8]> {
    let name = pair.split('=').next().unwrap_or_default();
    match name.contains(['%', '+']) {
        true => Cow::Owned(percent_decode(name.replace('+', " ").as_bytes()).collect()),
        false => Cow::Borrowed(name.as_bytes()),
    }
}

impl Rules {
    fn names(&self, name: &[u8]) -> bool {
        self.names.iter().any(|known| match known.strip_suffix('*').filter(|_| !self.exact) {
            Some(beginning) => name.starts_with(beginning.as_bytes()),
            None => name == known.as_bytes(),
        })
    }

    /// The target with nothing in its query but what counts; borrowed where that is all of it.
    pub fn apply<'a>(&self, target: &'a str) -> Cow<'a, str> {
        if !self.sort && !self.only && self.names.is_empty() {
            return Cow::Borrowed(target);
        }
        let Some((path, query)) = target.split_once('?') else { return Cow::Borrowed(target) };
        let mut kept: Vec<_> =
            query.split('&').map(|pair| (name(pair), pair)).filter(|(name, _)| self.names(name) == self.only).collect();
        let all = kept.len() == query.split('&').count();
        let sorted = !self.sort || kept.is_sorted_by(|a, b| a.0 <= b.0);
        if all && sorted {
            return Cow::Borrowed(target);
        }
        if self.sort {
            kept.sort_by(|a, b| a.0.cmp(&b.0));
        }
        let pairs: Vec<_> = kept.into_iter().map(|(_, pair)| pair).collect();
        match pairs.is_empty() {
            true => Cow::Owned(path.to_owned()),
            false => Cow::Owned(format!("{path}?{}", pairs.join("&"))),
        }
    }
}

/// `No-Vary-Search`: what the response says about the queries that would have got the same one. `None` when it
/// says nothing, or nothing that we understand.
pub fn no_vary_search(response: &HeaderMap) -> Option<Rules> {
    let lines: Vec<_> = response.get_all("no-vary-search").iter().map(|line| line.as_bytes()).collect();
    if lines.is_empty() {
        return None;
    }
    let said = Parser::parse_dictionary(&lines.join(&b", "[..])).ok()?;
    let mut rules = Rules { exact: true, ..Rules::default() };
    let flag = |entry: &ListEntry| match entry {
        ListEntry::Item(item) => item.bare_item.as_bool(),
        ListEntry::InnerList(_) => None,
    };
    let list = |entry: &ListEntry| match entry {
        ListEntry::Item(_) => None,
        ListEntry::InnerList(list) => list
            .items
            .iter()
            .map(|item| match &item.bare_item {
                BareItem::String(name) => Some(name.clone()),
                _ => None,
            })
            .collect::<Option<Vec<_>>>(),
    };
    if let Some(entry) = said.get("key-order") {
        rules.sort = flag(entry)?;
    }
    match said.get("params") {
        None => {}
        Some(entry) => match flag(entry) {
            Some(all) => rules.only = all,
            None => rules.names = list(entry)?,
        },
    }
    if let Some(entry) = said.get("except") {
        if !rules.only {
            return None;
        }
        rules.names = list(entry)?;
    }
    let says_something = rules.sort || rules.only || !rules.names.is_empty();
    // Every request of the path is compared with all names.
    (says_something && rules.names.len() <= MOST_NAMES).then_some(rules)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::fields;

    #[test]
    fn what_counts_stays_as_it_is() {
        let drop = |names: &[&str], sort| Rules {
            sort,
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            ..Rules::default()
        };
        let tracking = drop(&["utm_*", "gclid"], true);
        for (rules, target, expected) in [
            (&tracking, "/p", "/p"),
            (&tracking, "/p?", "/p?"),
            (&tracking, "/p?a=1&b=2", "/p?a=1&b=2"),
            (&tracking, "/p?b=2&a=1", "/p?a=1&b=2"),
            (&tracking, "/p?a=2&b=1&a=1", "/p?a=2&a=1&b=1"),
            (&tracking, "/p?utm_source=x&gclid=1", "/p"),
            (&tracking, "/p?utm_source=x&id=%20+&gclid", "/p?id=%20+"),
            (&tracking, "/p?%75tm_x=1&id=2", "/p?id=2"),
            (&tracking, "/p?id=utm_source&gclidx=1", "/p?gclidx=1&id=utm_source"),
            (&drop(&["x"], false), "/p?b&x&a", "/p?b&a"),
            (&drop(&["a b"], false), "/p?a+b=1&c", "/p?c"),
            (&drop(&[], true), "/p?b&&a", "/p?&a&b"),
        ] {
            assert_eq!(rules.apply(target), expected, "{target}");
        }
    }

    #[test]
    fn what_a_response_says_about_queries() {
        let of = |value: &str| no_vary_search(&fields(&format!("no-vary-search: {value}")));
        for (value, target, expected) in [
            ("key-order", "/p?b&a", "/p?a&b"),
            ("params", "/p?b&a", "/p"),
            ("params=(\"a\" \"c\")", "/p?b&a=1&c", "/p?b"),
            ("params, except=(\"id\")", "/p?utm=1&id=2", "/p?id=2"),
            ("params=(\"utm_*\")", "/p?utm_a=1&utm_*=2", "/p?utm_a=1"),
            ("key-order, params=(\"a\")", "/p?c&a&b", "/p?b&c"),
        ] {
            assert_eq!(of(value).unwrap().apply(target), expected, "{value}");
        }
        for nothing in
            ["", "key-order=?0", "params=1", "params=(1)", "except=(\"a\")", "params=(\"a\"), except=(\"b\")", "&"]
        {
            assert_eq!(of(nothing), None, "{nothing}");
        }
    }
}
