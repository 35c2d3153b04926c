//! `compress`: content codings gzip, br and zstd (RFC 9110 §8.4).
//!
//! ```yaml
//! compress: { codings: [br, zstd, gzip], min_length: 1KiB }
//! ```
//!
//! A response is compressed when the client's `Accept-Encoding` wants it, its type is one of `types`,
//! and it is neither compressed already nor part of a whole (206), nor shorter than `min_length`, nor
//! marked `no-transform` (in the request or the response). It leaves with `Content-Encoding`,
//! `Vary: Accept-Encoding` and a weak `ETag`: the same page in another coding is the same for
//! `If-None-Match`, and not for `Range` or `If-Match`. What comes without a length, event streams
//! above all, is flushed with each chunk.
//!
//! On a cached route the store keeps the response as the app sent it, once for all codings. The first
//! client that wants a coding has the copy made, the others get the copy; it goes with what it was
//! made of. A page that mixes secrets with what a stranger chose (BREACH) should not be compressed.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use http::HeaderValue;
use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG,
};
use pingora::http::{RequestHeader, ResponseHeader};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::coding::{Encoder, Turn};
use crate::exchange::Exchange;
use crate::fields::accept_encoding::{Choice, choose};
use crate::fields::{members, vary};
use crate::plugin::{Hooks, OnResponse, Plugin};
use crate::units::ByteSize;

/// Content codings gzip, br and zstd.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Which ones, the best first: it decides between those that a client likes equally.
    pub codings: Vec<Coding>,
    /// Shorter content is sent as it is.
    pub min_length: ByteSize,
    /// Media types; `text/*` and `*+json` stand for many.
    pub types: Vec<String>,
    /// So many responses are compressed at once at most, at about 250 KiB each; others leave as they are.
    pub max_streams: usize,
}

/// A content coding.
#[derive(Deserialize, Serialize, JsonSchema, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Coding {
    /// RFC 7932.
    Br,
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstd,
}

const TYPES: &[&str] = &[
    "text/*",
    "*+json",
    "*+xml",
    "application/javascript",
    "application/json",
    "application/manifest+json",
    "application/wasm",
    "application/x-ndjson",
    "application/xml",
    "font/otf",
    "font/ttf",
    "image/svg+xml",
];

impl Default for Settings {
    fn default() -> Self {
        Settings {
            codings: vec![Coding::Br, Coding::Zstd, Coding::Gzip],
            min_length: ByteSize(1 << 10),
            types: TYPES.iter().map(|kind| (*kind).to_owned()).collect(),
            max_streams: 1000,
        }
    }
}

/// The plugin.
pub struct Compress {
    codings: Vec<&'static str>,
    min_length: u64,
    types: Vec<String>,
    max_streams: usize,
    streams: Arc<AtomicUsize>,
}

impl Plugin for Compress {
    const NAME: &'static str = "compress";
    type Settings = Settings;

    fn build(settings: Settings) -> Result<Hooks, String> {
        let mut codings = Vec::new();
        for coding in settings.codings {
            let name = match coding {
                Coding::Br => "br",
                Coding::Gzip => "gzip",
                Coding::Zstd => "zstd",
            };
            if codings.contains(&name) {
                return Err(format!("`{name}` stands twice in `codings`"));
            }
            codings.push(name);
        }
        if codings.is_empty() || settings.types.is_empty() || settings.max_streams == 0 {
            return Err("with no `codings`, no `types` or no `max_streams` it would do nothing".into());
        }
        let wrong = |kind: &&String| {
            let halves = kind.split_once('/').is_some_and(|(one, two)| !one.is_empty() && !two.is_empty());
            !halves && !kind.starts_with("*+") || kind.contains([' ', ';'])
        };
        if let Some(kind) = settings.types.iter().find(wrong) {
            return Err(format!("`{kind}` is no media type; write text/html, text/* or *+json"));
        }
        Ok(Hooks::new().response(Arc::new(Compress {
            codings,
            min_length: settings.min_length.0,
            types: settings.types.iter().map(|kind| kind.to_ascii_lowercase()).collect(),
            max_streams: settings.max_streams,
            streams: Arc::default(),
        })))
    }
}

impl OnResponse for Compress {
    fn on_response(&self, request: &RequestHeader, response: &mut ResponseHeader, exchange: &mut Exchange) {
        let status = response.status.as_u16();
        if matches!(status, 101 | 204 | 416) || transformed(response) || no_transform(request, response) {
            return;
        }
        let Choice { coding, not_as_it_is } = choose(&request.headers, &self.codings);
        if status == 304 {
            // Says what the 200 would have said; its type is not always known any more.
            if self.fits(response).unwrap_or(true) {
                vary::add(response, ACCEPT_ENCODING);
                if coding.is_some() {
                    weaken(response);
                }
            }
            return;
        }
        let length = length(response);
        let worthwhile = self.fits(response) == Some(true) && length.is_none_or(|length| length >= self.min_length);
        if length == Some(0) || !(worthwhile || not_as_it_is) {
            return;
        }
        vary::add(response, ACCEPT_ENCODING);
        if status == 206 {
            return;
        }
        let Some(coding) = coding else { return };
        let Some(turn) = Turn::take(&self.streams, self.max_streams) else { return };
        let _ = response.insert_header(CONTENT_ENCODING, HeaderValue::from_static(coding));
        weaken(response);
        for name in [ACCEPT_RANGES.as_str(), "content-digest", "content-md5", "digest", "repr-digest"] {
            response.remove_header(name);
        }
        exchange.push_coding(coding, Box::new(Encoder::new(coding, length, turn)));
    }
}

impl Compress {
    /// Whether the type is one that shrinks; `None` when there is none.
    fn fits(&self, response: &ResponseHeader) -> Option<bool> {
        let kind = response.headers.get(CONTENT_TYPE)?.to_str().ok()?;
        let kind = kind.split(';').next().unwrap_or(kind).trim().to_ascii_lowercase();
        Some(self.types.iter().any(|known| match (known.strip_prefix('*'), known.strip_suffix('*')) {
            (Some(end), _) => kind.ends_with(end),
            (_, Some(start)) => kind.starts_with(start),
            _ => *known == kind,
        }))
    }
}

/// The length of the whole, where it is known.
fn length(response: &ResponseHeader) -> Option<u64> {
    let range = response.headers.get(CONTENT_RANGE).and_then(|value| value.to_str().ok()?.rsplit('/').next());
    let length = || response.headers.get(CONTENT_LENGTH)?.to_str().ok();
    range.or_else(length)?.trim().parse().ok()
}

fn transformed(response: &ResponseHeader) -> bool {
    let codings = response.headers.get_all(CONTENT_ENCODING).iter();
    codings.into_iter().any(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity"))
        || (response.headers.contains_key(CONTENT_RANGE) && response.status != 206)
}

fn no_transform(request: &RequestHeader, response: &ResponseHeader) -> bool {
    let mut all = members(&request.headers, CACHE_CONTROL).chain(members(&response.headers, CACHE_CONTROL));
    all.any(|member| member.eq_ignore_ascii_case(b"no-transform"))
}

/// The same page in another coding has other bytes (RFC 9110 §8.8.3).
fn weaken(response: &mut ResponseHeader) {
    let weak = response.headers.get(ETAG).filter(|tag| tag.as_bytes().starts_with(b"\""));
    let weak = weak.and_then(|tag| HeaderValue::from_bytes(&[b"W/", tag.as_bytes()].concat()).ok());
    if let Some(weak) = weak {
        let _ = response.insert_header(ETAG, weak);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use crate::testing::{Answer, complaint, example, plugin};

    fn plain(answer: &Answer) -> String {
        let content: &[u8] = answer.content();
        let mut out = String::new();
        match answer.field("content-encoding") {
            "gzip" => flate2::read::GzDecoder::new(content).read_to_string(&mut out).map(drop),
            "br" => brotli::Decompressor::new(content, 4096).read_to_string(&mut out).map(drop),
            "zstd" => zstd::decode_all(content).map(|bytes| out = String::from_utf8(bytes).unwrap()),
            _ => return answer.text().to_owned(),
        }
        .unwrap();
        out
    }

    #[test]
    fn each_coding_gives_the_same_content_back() {
        let compress = example(include_str!("compress.rs"));
        let page = "Hello, World! ".repeat(200);
        for coding in ["gzip", "br", "zstd"] {
            for chunks in [vec![page.as_str()], vec![&page[..700], &page[700..]]] {
                let out = compress.visit(&format!("GET /\nAccept-Encoding: {coding}")).response(
                    "200\nContent-Type: text/html; charset=utf-8\nETag: \"a\"\nAccept-Ranges: bytes",
                    &chunks,
                );
                assert_eq!(out.field("content-encoding"), coding);
                assert_eq!((out.field("etag"), out.field("vary")), ("W/\"a\"", "accept-encoding"));
                assert!(!out.has("accept-ranges") && out.content().len() < page.len() / 4, "{coding}");
                assert_eq!(plain(&out), page, "{coding}");
            }
        }
    }

    #[test]
    fn what_leaves_as_it_is() {
        let compress = plugin("compress: {}");
        let html = "Content-Type: text/html";
        for (why, request, response, coding, vary) in [
            ("wanted", "Accept-Encoding: gzip, br", html.to_owned(), "br", true),
            ("by length", "Accept-Encoding: gzip", format!("{html}\nContent-Length: 1024"), "gzip", true),
            ("too short", "Accept-Encoding: gzip", format!("{html}\nContent-Length: 1023"), "", false),
            ("not wanted", "Accept: */*", html.to_owned(), "", true),
            ("an image", "Accept-Encoding: gzip", "Content-Type: image/png".into(), "", false),
            ("no type", "Accept-Encoding: gzip", "X: y".into(), "", false),
            ("encoded", "Accept-Encoding: gzip", format!("{html}\nContent-Encoding: br"), "br", false),
            ("no-transform", "Accept-Encoding: gzip", format!("{html}\nCache-Control: no-transform"), "", false),
            ("no-transform asked", "Accept-Encoding: gzip\nCache-Control: no-transform", html.into(), "", false),
            (
                "plain not accepted",
                "Accept-Encoding: gzip, identity;q=0",
                format!("{html}\nContent-Length: 9"),
                "gzip",
                true,
            ),
            ("nothing accepted", "Accept-Encoding: *;q=0", html.into(), "", true),
            ("json", "Accept-Encoding: zstd", "Content-Type: application/ld+json".into(), "zstd", true),
        ] {
            let out = compress.visit(&format!("GET /\n{request}")).response(&format!("200\n{response}"), &[]);
            assert_eq!((out.field("content-encoding"), out.has("vary")), (coding, vary), "{why}");
        }
    }

    #[test]
    fn parts_and_confirmations_keep_their_words() {
        let compress = plugin("compress: {}");
        let ask = |response: &str| compress.visit("GET /\nAccept-Encoding: gzip").response(response, &["x"]);
        let part = ask("206\nContent-Type: text/css\nContent-Range: bytes 0-0/9999\nETag: \"a\"");
        assert_eq!((part.field("etag"), part.field("vary"), part.text()), ("\"a\"", "accept-encoding", "x"));
        let same = ask("304\nETag: \"a\"");
        assert_eq!((same.field("etag"), same.field("vary")), ("W/\"a\"", "accept-encoding"));
        let refused = ask("416\nContent-Range: bytes */9\nETag: \"a\"");
        assert_eq!((refused.field("etag"), refused.has("vary")), ("\"a\"", false));
    }

    #[test]
    fn streams_are_flushed_and_bounded() {
        let compress = plugin("compress: { codings: [gzip], max_streams: 1 }");
        let mut first = compress.visit("GET /\nAccept-Encoding: gzip");
        let head = "200\nContent-Type: text/event-stream";
        let out = first.response(head, &["data: 1\n\n", "data: 2\n\n"]);
        let flushes = out.content().windows(4).filter(|window| window == b"\0\0\xff\xff").count();
        assert_eq!((plain(&out).as_str(), flushes), ("data: 1\n\ndata: 2\n\n", 2));
        let mut busy = compress.visit("GET /\nAccept-Encoding: gzip");
        busy.hold_response(head);
        let mut second = compress.visit("GET /\nAccept-Encoding: gzip");
        assert_eq!(second.response(head, &[]).field("content-encoding"), "", "one at once");
        drop(busy);
        assert_eq!(second.response(head, &[]).field("content-encoding"), "gzip");
    }

    #[test]
    fn mistakes_are_errors_that_help() {
        for (settings, told) in [
            ("{ codings: [deflate] }", "unknown variant `deflate`"),
            ("{ codings: [br, br] }", "stands twice"),
            ("{ codings: [] }", "it would do nothing"),
            ("{ types: [html] }", "`html` is no media type"),
        ] {
            let complaint = complaint(&format!("compress: {settings}"));
            assert!(complaint.message.contains(told), "{settings}: {complaint:?}");
        }
    }
}
