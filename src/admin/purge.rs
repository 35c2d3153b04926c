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
    let asked: Asked =
        serde_json::from_slice(content).map_err(|error| format!("{error}; a purge is one JSON object, {EXAMPLES}"))?;
    let Asked { url, prefix, host, tag, all, soft, dry_run } = asked;
    let place = |text: &str, what: fn(Option<String>, String) -> What| {
        split(text).map(|(host, target)| what(host, target)).ok_or_else(|| {
            format!(
                "`{text}` is neither a path, which means every host, nor an address such as https://shop.example.com/a"
            )
        })
    };
    let mut wanted = Vec::new();
    if let Some(url) = url {
        wanted.push(place(&url, What::Target)?);
    }
    if let Some(prefix) = prefix {
        wanted.push(place(&prefix, What::Beginning)?);
    }
    if let Some(host) = host.filter(|host| !host.is_empty()) {
        wanted.push(What::Beginning(Some(plain(&host)), String::new()));
    }
    if let Some(tag) = tag.filter(|tag| !tag.is_empty()) {
        wanted.push(What::Tag(tag));
    }
    if all {
        wanted.push(What::All);
    }
    match (wanted.pop(), wanted.is_empty()) {
        (Some(what), true) => Ok((what, Manner { soft, dry_run })),
        _ => Err(format!("a purge names exactly one thing, {EXAMPLES}")),
    }
}

/// The host, if there is one, and the target.
fn split(text: &str) -> Option<(Option<String>, String)> {
    if text.starts_with('/') {
        return Some((None, text.to_owned()));
    }
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"))?;
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
            ("{\"url\": \"http://a.test:81\"}", What::Target(on("a.test:81"), "/".into())),
            ("{\"prefix\": \"/x\"}", What::Beginning(None, "/x".into())),
            ("{\"host\": \"A.test\"}", What::Beginning(on("a.test"), "".into())),
            ("{\"tag\": \"p 1\"}", What::Tag("p 1".into())),
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
            "{\"tag\": \"a\", \"host\": \"b\"}",
            "{\"tags\": \"a\"}",
        ] {
            assert!(read(wrong.as_bytes()).unwrap_err().contains("https://shop.example.com"), "{wrong}");
        }
    }
}
