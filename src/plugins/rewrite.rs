//! `rewrite`: another path for the origin, and for the cache key.
//!
//! ```yaml
//! rewrite:
//!   rules:
//!     - { from: "^/old/(.*)$", to: /new/$1 }
//!     - { from: "^/users/([0-9]+)/photo$", to: /photos/$1.jpg }
//! ```
//!
//! The first rule whose regular expression fits the path is used, and no other: there are no loops,
//! and the route stays the one that was found. `$1` to `$9` stand for what the parentheses caught, `$$`
//! for a dollar sign. The query stays. Rules see the path in its normal form (unreserved escapes
//! decoded, `//` and dot segments resolved). A new path with a dot segment, also behind an escaped slash, is not
//! used: no `..` gets past what a rule keeps apart. A path that no rule fits goes on byte for byte.
//!
//! On a cached route the key is made of the new path: two paths that become one share what is stored.

use std::sync::Arc;

use pingora::http::RequestHeader;
use regex::Regex;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::exchange::Exchange;
use crate::fields::path;
use crate::plugin::{Hooks, OnRequestHead, Plugin};

/// Another path for the origin, and for the cache key.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The first one that fits is used.
    pub rules: Vec<Rule>,
}

/// One rewriting.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// A regular expression for the path, without the query.
    pub from: String,
    /// The new path; `$1` to `$9` are what the parentheses caught.
    pub to: String,
}

enum Part {
    Text(String),
    Group(usize),
}

/// The plugin.
pub struct Rewrite(Vec<(Regex, Vec<Part>)>);

fn compile(rule: &Rule) -> Result<(Regex, Vec<Part>), String> {
    let regex = Regex::new(&rule.from).map_err(|error| {
        let reason = error.to_string();
        let reason = reason.lines().last().unwrap_or(&reason).trim_start_matches("error: ").to_owned();
        format!("`{}` is no regular expression: {reason}", rule.from)
    })?;
    let visible = rule.to.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#\\".contains(&byte));
    if !rule.to.starts_with('/') || !visible {
        return Err(format!("`{}` is no path; it begins with / and has no blanks, no query and no fragment", rule.to));
    }
    let (mut parts, mut text) = (Vec::new(), String::new());
    let mut rest = rule.to.chars();
    while let Some(c) = rest.next() {
        match (c, rest.clone().next()) {
            ('$', Some('$')) => {
                rest.next();
                text.push('$');
            }
            ('$', Some(digit @ '1'..='9')) => {
                rest.next();
                let group = digit as usize - '0' as usize;
                if group >= regex.captures_len() {
                    let there = regex.captures_len() - 1;
                    return Err(format!("`{}` uses ${group}, but `{}` catches {there}", rule.to, rule.from));
                }
                parts.extend([Part::Text(std::mem::take(&mut text)), Part::Group(group)]);
            }
            ('$', _) => return Err(format!("`{}`: after $ comes a digit from 1 to 9, or another $", rule.to)),
            (c, _) => text.push(c),
        }
    }
    parts.push(Part::Text(text));
    Ok((regex, parts))
}

impl Plugin for Rewrite {
    const NAME: &'static str = "rewrite";
    type Settings = Settings;

    fn build(settings: Settings) -> Result<Hooks, String> {
        if settings.rules.is_empty() {
            return Err("without `rules` it would do nothing".into());
        }
        let rules = settings.rules.iter().map(compile).collect::<Result<_, _>>()?;
        Ok(Hooks::new().request_head(Arc::new(Rewrite(rules))).moves())
    }
}

impl OnRequestHead for Rewrite {
    fn on_request_head(&self, request: &mut RequestHeader, _: &mut Exchange) {
        let Ok(target) = std::str::from_utf8(request.raw_path()) else { return };
        let (before, query) = target.split_at(target.find('?').unwrap_or(target.len()));
        let before = path::normalise(before);
        let found = self.0.iter().find_map(|(regex, parts)| Some((regex.captures(&before)?, parts)));
        let Some((captures, parts)) = found else { return };
        let mut after = String::with_capacity(target.len());
        for part in parts {
            match part {
                Part::Text(text) => after.push_str(text),
                Part::Group(group) => after.push_str(captures.get(*group).map_or("", |found| found.as_str())),
            }
        }
        // `/v../x` can become `/..` by what a rule cuts off, and `/go/x` a `//x` that names a host.
        if path::has_dot_segments(&after) {
            return;
        }
        while let Some(at) = after.find("//") {
            after.remove(at);
        }
        after.push_str(query);
        let _ = request.set_raw_path(after.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{complaint, example, plugin};

    #[test]
    fn the_first_rule_that_fits_is_used_once() {
        let rewrite = example(include_str!("rewrite.rs"));
        for (before, after) in [
            ("/old/a/b?x=/old/", "/new/a/b?x=/old/"),
            ("/users/7/photo", "/photos/7.jpg"),
            ("/users/x/photo", "/users/x/photo"),
            ("/%6Fld/%2F", "/new/%2F"),
            ("/old/../secret", "/old/../secret"),
            ("/x/%2e%2e/old/a", "/new/a"),
            ("/other//%7e", "/other//%7e"),
        ] {
            let mut visit = rewrite.visit(&format!("GET {before}"));
            assert_eq!(visit.head().raw_path(), after.as_bytes(), "{before}");
        }
    }

    #[test]
    fn a_swap_is_no_loop() {
        let swap = plugin("rewrite: { rules: [{ from: ^/a$, to: /b }, { from: ^/b$, to: \"/$$/a\" }] }");
        assert_eq!(swap.visit("GET /a").head().raw_path(), b"/b");
        assert_eq!(swap.visit("GET /b").head().raw_path(), b"/$/a");
    }

    #[test]
    fn nothing_climbs_out_of_what_a_rule_keeps_apart() {
        let alias = plugin("rewrite: { rules: [{ from: ^/v(.*)$, to: /static/$1 }] }");
        for (before, after) in [
            ("/v1", "/static/1"),
            ("/v../secret", "/v../secret"),
            ("/v%2e%2e/x", "/v%2e%2e/x"),
            ("/v..%2fsecret", "/v..%2fsecret"),
            ("/va%2F..%5Csecret", "/va%2F..%5Csecret"),
            ("/v/evil.test/x", "/static/evil.test/x"),
        ] {
            assert_eq!(alias.visit(&format!("GET {before}")).head().raw_path(), after.as_bytes(), "{before}");
        }
    }

    #[test]
    fn mistakes_are_errors_that_help() {
        for (rule, told) in [
            ("{ from: \"(\", to: /a }", "no regular expression: unclosed group"),
            ("{ from: \"^/a\", to: /b/$1 }", "uses $1, but `^/a` catches 0"),
            ("{ from: \"^/a\", to: /b/$x }", "a digit from 1 to 9"),
            ("{ from: \"^/a\", to: b }", "is no path"),
            ("{ from: \"^/a\", to: \"/b?c\" }", "is no path"),
        ] {
            let complaint = complaint(&format!("rewrite: {{ rules: [{rule}] }}"));
            assert!(complaint.message.contains(told), "{rule}: {complaint:?}");
        }
    }
}
