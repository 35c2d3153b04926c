//! `POST /purge`: what an operator wants out of the store, in JSON.
//!
//! Exactly one of `url`, `prefix`, `host`, `tag` and `all` says what; `soft` and `dry_run` say how.

use serde::{Deserialize, Serialize};

use crate::cache::purge::{Manner, What};
use crate::fields::authority::{is_authority, plain};

/// The longest request that is read.
pub const LONGEST: usize = 64 << 10;

/// What was asked for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    url: Option<String>,
    prefix: Option<String>,
    host: Option<String>,
    tag: Option<String>,
    #[serde(default)]
    all: bool,
    #[serde(default)]
    soft: bool,
    #[serde(default)]
    dry_run: bool,
}

/// The answer.
#[derive(Debug, Serialize)]
pub struct Answer {
    /// Entries that are gone, stale, or would be; variants count one by one.
    pub entries: u64,
    /// Their weight in memory.
    pub bytes: u64,
    /// So many of the entries are values of key/value stores.
    pub kv: u64,
    /// They were made stale.
    pub soft: bool,
    /// Nothing was changed.
    pub dry_run: bool,
}

/// Reads a request; `Err` says what would be right.
pub fn read(content: &[u8]) -> Result<(What, Manner), String> {
    const EXAMPLES: &str = "such as {\"url\": \"https://shop.example.com/p/1\"}, {\"prefix\": \"/blog/\"}, {\"host\": \
        \"shop.example.com\"}, {\"tag\": \"product-1\"} or {\"all\": true}";
    // The parser takes a list of all members in their order for an object, too.
    if content.trim_ascii_start().first() != Some(&b'{') {
        return Err(format!("a purge is one JSON object, {EXAMPLES}"));
    }
    let asked: Asked =
        serde_json::from_slice(content).map_err(|error| format!("{error}; a purge is one JSON object, {EXAMPLES}"))?;
    let Asked { url, prefix, host, tag, all, soft, dry_run } = asked;
    let place = |text: &str, what: fn(Option<String>, String) -> What| {
        if text.bytes().any(|byte| !byte.is_ascii_graphic()) {
            return Err(format!(
                "`{text}` is not what a request says: blanks and letters such as é are %20 and %C3%A9 there, as in https://shop.example.com/caf%C3%A9"
            ));
        }
        split(text).map(|(host, target)| what(host, target)).ok_or_else(|| {
            format!(
                "`{text}` is neither a path, which means every host, nor an address such as https://shop.example.com/a"
            )
        })
    };
    let empty = [&host, &tag].into_iter().flatten().any(String::is_empty);
    let mut wanted = Vec::new();
    if let Some(url) = url {
        wanted.push(place(&url, What::Target)?);
    }
    if let Some(prefix) = prefix {
        wanted.push(place(&prefix, What::Beginning)?);
    }
    if let Some(host) = host {
        if !empty && !is_authority(host.as_bytes()) {
            return Err(format!(
                "`{host}` is not a host such as shop.example.com or [2001:db8::1]:8080; for an address there is {{\"prefix\": \"https://shop.example.com/\"}}"
            ));
        }
        wanted.push(What::Beginning(Some(plain(&host)), String::new()));
    }
    if let Some(tag) = tag {
        wanted.push(What::Tag(tag));
    }
    if all {
        wanted.push(What::All);
    }
    match (wanted.pop(), wanted.is_empty()) {
        (Some(what), true) if !empty => Ok((what, Manner { soft, dry_run })),
        _ => Err(format!("a purge names exactly one thing, {EXAMPLES}")),
    }
}

/// The host, if there is one, and the target.
fn split(text: &str) -> Option<(Option<String>, String)> {
    if text.starts_with('/') {
        return Some((None, text.to_owned()));
    }
    let (scheme, rest) = text.split_once("://")?;
    if !["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        return None;
    }
    let at = rest.find('/').unwrap_or(rest.len());
    let (host, target) = rest.split_at(at);
    let target = if target.is_empty() { "/" } else { target };
    is_authority(host.as_bytes()).then(|| (Some(plain(host)), target.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for() {
        let on = |host: &str| Some(host.to_owned());
        for (text, expected) in [
            ("{\"url\": \"https://A.test/x?y\"}", What::Target(on("a.test"), "/x?y".into())),
            ("{\"url\": \"HTTPS://a.test/x\"}", What::Target(on("a.test"), "/x".into())),
            ("{\"url\": \"http://a.test:81\"}", What::Target(on("a.test:81"), "/".into())),
            ("{\"prefix\": \"/x\"}", What::Beginning(None, "/x".into())),
            ("{\"host\": \"A.test\"}", What::Beginning(on("a.test"), "".into())),
            ("{\"host\": \"[::1]:80\"}", What::Beginning(on("[::1]"), "".into())),
            ("{\"prefix\": \"/x?y=1\"}", What::Beginning(None, "/x?y=1".into())),
            ("{\"tag\": \"p 1\"}", What::Tag("p 1".into())),
            ("{\"tag\": \"é, a\"}", What::Tag("é, a".into())),
            ("{\"tag\": null, \"all\": true}", What::All),
            ("{\"all\": true}", What::All),
        ] {
            assert_eq!(read(text.as_bytes()).unwrap().0, expected, "{text}");
        }
        let (_, manner) = read(b"{\"all\": true, \"soft\": true, \"dry_run\": true}").unwrap();
        assert!(manner.soft && manner.dry_run);
        for wrong in [
            "",
            "[]",
            "{}",
            "{\"all\": false}",
            "{\"tag\": \"\"}",
            "{\"url\": \"shop.test/x\"}",
            "{\"url\": \"ftp://a.test/\"}",
            "{\"url\": \"https:///x\"}",
            "{\"url\": \"https://a.test?x\"}",
            "{\"url\": \"https://me@a.test/\"}",
            "{\"url\": \"/a b\"}",
            "{\"prefix\": \"/é\"}",
            "{\"url\": \"\"}",
            "{\"host\": \"https://a.test/\"}",
            "{\"host\": \"a b\"}",
            "{\"host\": \"::1\"}",
            "{\"host\": \"\"}",
            "{\"tag\": \"\", \"all\": true}",
            "{\"host\": \"\", \"all\": true}",
            "{\"tag\": \"a\", \"tag\": \"b\"}",
            "{\"all\": 1}",
            "{\"all\": true} {}",
            "[null, null, null, null, true, false, false]",
            "{\"tag\": \"a\", \"host\": \"b\"}",
            "{\"tags\": \"a\"}",
        ] {
            assert!(read(wrong.as_bytes()).unwrap_err().contains("https://shop.example.com"), "{wrong}");
        }
    }
}
