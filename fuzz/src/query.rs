//! Queries: what is kept was there, what counts is kept, and two times is once.

use arbitrary::{Arbitrary, Unstructured};
use headwall::fields::query::{Rules, no_vary_search};

use super::input::lines;

#[derive(Debug, Arbitrary)]
struct Input {
    sort: bool,
    only: bool,
    exact: bool,
    names: Vec<String>,
    field: String,
    target: String,
}

/// Rules, a field that says some, and a target.
pub fn run(data: &[u8]) {
    let Ok(input) = Input::arbitrary(&mut Unstructured::new(data)) else { return };
    let target = &input.target;
    let rules = Rules { sort: input.sort, only: input.only, names: input.names, exact: input.exact };
    law(&rules, target);
    let said = lines("no-vary-search", input.field.as_bytes());
    if let Some(rules) = no_vary_search(&said) {
        assert!(rules.exact && rules.names.len() <= 64 && (rules.sort || rules.only || !rules.names.is_empty()));
        law(&rules, target);
    }
}

/// A name as browsers read it.
fn decoded(pair: &str) -> Vec<u8> {
    let mut name: Vec<u8> = Vec::new();
    let mut rest = pair.split('=').next().unwrap().as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let hex = hex.filter(|hex| *byte == b'%' && hex.bytes().all(|digit| digit.is_ascii_hexdigit()));
        name.push(match hex {
            Some(hex) => u8::from_str_radix(hex, 16).unwrap(),
            None if *byte == b'+' => b' ',
            None => *byte,
        });
        rest = if hex.is_some() { &after[2..] } else { after };
    }
    name
}

fn law(rules: &Rules, target: &str) {
    let after = rules.apply(target);
    assert_eq!(rules.apply(&after), after, "{target:?} twice");
    let (path, query) = target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
    let (path_after, query_after) = after.split_once('?').map_or((&*after, None), |(path, query)| (path, Some(query)));
    assert_eq!(path, path_after, "a path is not touched");
    let named = |pair: &str| {
        let name = decoded(pair);
        rules.names.iter().any(|known| match known.strip_suffix('*') {
            Some(start) if !rules.exact => name.starts_with(start.as_bytes()),
            _ => name == known.as_bytes(),
        })
    };
    let pairs = |query: Option<&str>| query.map_or(Vec::new(), |query| query.split('&').map(str::to_owned).collect());
    let mut expected: Vec<String> = pairs(query);
    if rules.only || rules.sort || !rules.names.is_empty() {
        expected.retain(|pair| named(pair) == rules.only);
    }
    if rules.sort {
        expected.sort_by_key(|pair| decoded(pair));
    }
    assert_eq!(pairs(query_after), expected, "{rules:?} of {target:?}");
}
