//! Values with places to fill in: `https://{host}/new`.
//!
//! The names are fixed and known when the configuration is loaded, so a misspelt
//! one is an error there and never an empty string in a response. Braces that hold
//! no name are ordinary text.

use std::fmt::Write;

use http::HeaderValue;

use crate::exchange::Exchange;

/// What can be filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// `{client_ip}`
    ClientIp,
    /// `{host}`
    Host,
    /// `{path}`, without the query
    Path,
    /// `{query}`, with its question mark, or nothing
    Query,
    /// `{request_id}`
    RequestId,
    /// `{cache_status}`, the one-word form
    CacheStatus,
    /// `{upstream}`, the address of the server
    Upstream,
}

const NAMES: &[(&str, Name)] = &[
    ("client_ip", Name::ClientIp),
    ("host", Name::Host),
    ("path", Name::Path),
    ("query", Name::Query),
    ("request_id", Name::RequestId),
    ("cache_status", Name::CacheStatus),
    ("upstream", Name::Upstream),
];

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Name(Name),
}

/// A parsed value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
    fixed: Option<HeaderValue>,
}

impl Template {
    /// Parses a value; an unknown name is an error that lists the known ones.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            let after = &rest[open + 1..];
            let name = after
                .find('}')
                .map(|close| &after[..close])
                .filter(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
            let Some(name) = name else {
                let word = after.split(|c: char| !c.is_ascii_lowercase() && c != '_').next().unwrap_or("");
                if NAMES.iter().any(|(known, _)| *known == word) {
                    return Err(format!("`{{{word}` has no closing brace; write {{{word}}}"));
                }
                plain.push_str(&rest[..=open]);
                rest = after;
                continue;
            };
            let Some((_, known)) = NAMES.iter().find(|(known, _)| *known == name) else {
                let all: Vec<_> = NAMES.iter().map(|(known, _)| format!("{{{known}}}")).collect();
                return Err(format!("there is no {{{name}}} to fill in; there are: {}", all.join(" ")));
            };
            plain.push_str(&rest[..open]);
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain)));
            }
            parts.push(Part::Name(*known));
            rest = &after[name.len() + 1..];
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        for part in &parts {
            if let Part::Text(text) = part {
                HeaderValue::from_str(text)
                    .map_err(|_| format!("{text:?} cannot stand in a field: it has control or non-ASCII characters"))?;
            }
        }
        let fixed = match parts.as_slice() {
            [] => Some(HeaderValue::from_static("")),
            [Part::Text(text)] => HeaderValue::from_str(text).ok(),
            _ => None,
        };
        Ok(Template { parts, fixed })
    }

    /// The names it uses.
    pub fn names(&self) -> impl Iterator<Item = Name> + '_ {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Name(name) => Some(*name),
        })
    }

    /// Whether two clients asking for the same thing would see different values.
    pub fn tells_clients_apart(&self) -> bool {
        self.names().any(|name| matches!(name, Name::ClientIp | Name::RequestId))
    }

    /// Whether it names the host or the path as the client wrote them.
    pub fn names_the_target(&self) -> bool {
        self.names().any(|name| matches!(name, Name::Host | Name::Path))
    }

    /// The text with everything filled in.
    pub fn text(&self, exchange: &mut Exchange) -> String {
        let mut out = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Name(Name::ClientIp) => _ = write!(out, "{}", exchange.client),
                // An HTTP/1.0 client may say none.
                Part::Name(Name::Host) if exchange.host.is_empty() => out.push_str("localhost"),
                Part::Name(Name::Host) => out.push_str(&exchange.host),
                Part::Name(Name::Path) => out.push_str(exchange.path()),
                Part::Name(Name::Query) => out.push_str(exchange.query()),
                Part::Name(Name::RequestId) => out.push_str(exchange.id()),
                Part::Name(Name::CacheStatus) => out.push_str(exchange.cache.map_or("-", |status| status.word())),
                Part::Name(Name::Upstream) => out.push_str(exchange.upstream.as_deref().unwrap_or("-")),
            }
        }
        out
    }

    /// The field value; what does not fit into one becomes `-`.
    pub fn value(&self, exchange: &mut Exchange) -> HeaderValue {
        if let Some(fixed) = &self.fixed {
            return fixed.clone();
        }
        HeaderValue::from_str(&self.text(exchange)).unwrap_or_else(|_| HeaderValue::from_static("-"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[test]
    fn names_are_filled_in_and_other_braces_stay() {
        let mut exchange = Exchange::new(Clock::system().now(), [192, 0, 2, 1].into());
        exchange.host = "a.test".into();
        exchange.target = "/x?y=1".into();
        exchange.set_id("42".into());
        for (text, expected) in [
            ("plain", "plain"),
            ("", ""),
            ("https://{host}{path}{query}", "https://a.test/x?y=1"),
            ("{client_ip}/{request_id}", "192.0.2.1/42"),
            ("{cache_status} {upstream}", "- -"),
            ("{\"group\":\"x\"} {} {X}", "{\"group\":\"x\"} {} {X}"),
        ] {
            assert_eq!(Template::parse(text).unwrap().value(&mut exchange), expected, "{text}");
        }
    }

    #[test]
    fn a_misspelt_name_is_an_error_that_helps() {
        let error = Template::parse("{hots}").unwrap_err();
        assert!(error.contains("no {hots}") && error.contains("{host}"), "{error}");
        assert!(Template::parse("https://{host/x").unwrap_err().contains("no closing brace"));
        assert!(Template::parse("a\nb").is_err());
        assert!(Template::parse("{request_id}").unwrap().tells_clients_apart());
        assert!(!Template::parse("{host}").unwrap().tells_clients_apart());
    }
}
