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
//! `If-None-Match`, and not for `Range`, `If-Range` or `If-Match`. What comes without a length, event
//! streams above all, is flushed with each chunk. The app is asked for `identity`, whatever the client accepts
//! (leave the plugin off routes whose app has compressed files).
//!
//! On a cached route the store keeps the response as the app sent it, once for all codings. The first
//! client that wants a coding has a copy made beside it; all others read that copy, also while it is
//! made, and it goes with what it was made of. Only the client whose request brings a response in is
//! compressed for by itself. A page that mixes secrets with what a stranger chose (BREACH) should not be
//! compressed.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG,
    IF_NONE_MATCH, IF_RANGE,
};
use http::{HeaderMap, HeaderValue};
use pingora::http::{RequestHeader, ResponseHeader};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::coding::{Encoder, Turn};
use crate::exchange::Exchange;
use crate::fields::accept_encoding::{Choice, choose};
use crate::fields::{members, vary};
use crate::plugin::{Hooks, OnRequestHead, OnResponse, Plugin};
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
    /// So many responses are compressed at once at most, at up to 1 MiB each with br and half of that with the others; more leave as they
    /// are.
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
            max_streams: 500,
        }
    }
}

/// The plugin.
pub struct Compress {
    codings: Vec<&'static str>,
    min_length: u64,
    types: Arc<[String]>,
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
        let this = Arc::new(Compress {
            codings,
            min_length: settings.min_length.0,
            types: settings.types.into(),
            max_streams: settings.max_streams,
            streams: Arc::default(),
        });
        Ok(Hooks::new().request_head(this.clone()).response(this).kept())
    }
}

/// The `Accept-Encoding` that the client sent.
struct Asked(HeaderMap);

impl OnRequestHead for Compress {
    fn on_request_head(&self, request: &mut RequestHeader, exchange: &mut Exchange) {
        // Another one stood here before.
        if exchange.note::<Asked>().is_some() {
            return;
        }
        let mut asked = HeaderMap::with_capacity(1);
        for value in request.headers.get_all(ACCEPT_ENCODING) {
            asked.append(ACCEPT_ENCODING, value.clone());
        }
        if request.headers.contains_key(IF_RANGE) && choose(&asked, &self.codings).coding.is_some() {
            let types = self.types.clone();
            exchange.doubt_dates(Arc::new(move |response| fits(&types, response)));
        }
        let _ = request.insert_header(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        exchange.set_note(Asked(asked));
    }
}

impl OnResponse for Compress {
    fn on_response(&self, request: &RequestHeader, response: &mut ResponseHeader, exchange: &mut Exchange) {
        let status = response.status.as_u16();
        if matches!(status, 101 | 204 | 416) || no_transform(&request.headers) {
            return;
        }
        let asked = exchange.note::<Asked>().map_or(&request.headers, |Asked(fields)| fields);
        let choice = choose(asked, &self.codings);
        if status == 304 {
            return self.confirm(request, response, exchange, &choice);
        }
        let may = fits(&self.types, response) || (choice.not_as_it_is && !untouchable(response));
        if !may {
            return;
        }
        vary::add(response, ACCEPT_ENCODING);
        let length = length(response);
        let worthwhile = choice.not_as_it_is || length.is_none_or(|length| length >= self.min_length);
        let (Some(coding), true) = (choice.coding, worthwhile && status != 206 && length != Some(0)) else { return };
        let turn = Turn::take(&self.streams, self.max_streams);
        // What is made once for many needs no turn; the rest is bounded by them.
        let once = exchange.stored && !exchange.is_filtered();
        if turn.is_none() && !once {
            return;
        }
        let _ = response.insert_header(CONTENT_ENCODING, HeaderValue::from_static(coding));
        weaken(response);
        for name in [ACCEPT_RANGES.as_str(), "content-digest", "content-md5", "digest", "repr-digest"] {
            response.remove_header(name);
        }
        exchange.push_coding(coding, Box::new(Encoder::new(coding, length.is_none(), once, turn)));
    }
}

impl Compress {
    /// A 304 says what the 200 would have said (RFC 9110 §15.4.5).
    fn confirm(&self, request: &RequestHeader, response: &mut ResponseHeader, exchange: &Exchange, choice: &Choice) {
        let (varies, weak) = match &exchange.unconditional {
            Some(whole) => {
                let long = length(whole).is_none_or(|length| length >= self.min_length);
                (fits(&self.types, whole), choice.coding.is_some() && (long || choice.not_as_it_is))
            }
            // The app's own 304: a client that names the weak form got it from here.
            None => {
                let tag = response.headers.get(ETAG).map(HeaderValue::as_bytes).unwrap_or_default();
                let named = |member: &[u8]| member.strip_prefix(b"W/") == Some(tag);
                let ours = members(&request.headers, IF_NONE_MATCH).any(named);
                (ours, ours)
            }
        };
        if varies {
            vary::add(response, ACCEPT_ENCODING);
            if weak {
                weaken(response);
            }
        }
    }
}

/// Whether its type is one that shrinks, and it may be touched.
fn fits(types: &[String], response: &ResponseHeader) -> bool {
    let kind = response.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    // Parts of a whole whose type stands inside.
    let parts = kind.eq_ignore_ascii_case(b"multipart/byteranges");
    let known = |known: &String| match (known.strip_prefix('*'), known.strip_suffix('*')) {
        (Some(end), _) => {
            kind.len() >= end.len() && kind[kind.len() - end.len()..].eq_ignore_ascii_case(end.as_bytes())
        }
        (_, Some(start)) => kind.get(..start.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(start.as_bytes())),
        _ => kind.eq_ignore_ascii_case(known.as_bytes()),
    };
    !untouchable(response) && (parts || types.iter().any(known))
}

/// The length of the whole, where it is known.
fn length(response: &ResponseHeader) -> Option<u64> {
    let range = response.headers.get(CONTENT_RANGE).and_then(|value| value.to_str().ok()?.rsplit('/').next());
    let length = || response.headers.get(CONTENT_LENGTH)?.to_str().ok();
    range.or_else(length)?.trim().parse().ok()
}

/// Whether it is encoded already, or says that nobody may.
fn untouchable(response: &ResponseHeader) -> bool {
    let mut codings = response.headers.get_all(CONTENT_ENCODING).iter();
    codings.any(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity"))
        || (response.headers.contains_key(CONTENT_RANGE) && response.status != 206)
        || no_transform(&response.headers)
}

fn no_transform(fields: &HeaderMap) -> bool {
    members(fields, CACHE_CONTROL).any(|member| member.eq_ignore_ascii_case(b"no-transform"))
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
            ("too short", "Accept-Encoding: gzip", format!("{html}\nContent-Length: 1023"), "", true),
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
        let refused = ask("416\nContent-Range: bytes */9\nETag: \"a\"");
        assert_eq!((refused.field("etag"), refused.has("vary")), ("\"a\"", false));
    }

    #[test]
    fn a_confirmation_says_what_the_whole_would_say() {
        let compress = plugin("compress: {}");
        for (whole, given, etag, vary) in [
            (Some("Content-Type: text/css"), "\"a\"", "W/\"a\"", true),
            (Some("Content-Type: text/css\nContent-Length: 9"), "\"a\"", "\"a\"", true),
            (Some("Content-Type: image/png"), "\"a\"", "\"a\"", false),
            (None, "W/\"a\"", "W/\"a\"", true),
            (None, "\"a\"", "\"a\"", false),
        ] {
            let mut visit = compress.visit(&format!("GET /\nAccept-Encoding: gzip\nIf-None-Match: {given}"));
            visit.exchange.unconditional = whole.map(|whole| crate::testing::response(&format!("200\n{whole}")));
            let same = visit.response("304\nETag: \"a\"", &[]);
            assert_eq!((same.field("etag"), same.has("vary")), (etag, vary), "{whole:?} {given}");
        }
    }

    #[test]
    fn the_app_is_asked_for_content_as_it_is_and_no_part_by_date() {
        let compress = plugin("compress: {}");
        let date = "If-Range: Mon, 30 Nov 2026 00:00:00 GMT\nRange: bytes=5-";
        for (fields, accepts, doubts) in [
            ("Accept-Encoding: gzip".to_owned(), "identity", false),
            (String::new(), "identity", false),
            (format!("Accept-Encoding: gzip\n{date}"), "identity", true),
            (format!("Accept-Encoding: identity\n{date}"), "identity", false),
            ("Accept-Encoding: gzip\nCache-Control: no-transform".to_owned(), "identity", false),
        ] {
            let mut visit = compress.visit(&format!("GET /\n{fields}"));
            assert_eq!(visit.head().headers["accept-encoding"], accepts, "{fields}");
            for (kind, doubted) in [("text/css", doubts), ("application/zip", false)] {
                let head = crate::testing::response(&format!("200\nContent-Type: {kind}"));
                assert_eq!(visit.exchange.doubts_dates(&head), doubted, "{fields} {kind}");
            }
            let wanted = fields.contains("gzip") && !fields.contains("no-transform");
            let out = visit.response("200\nContent-Type: text/css", &[]);
            assert_eq!(out.field("content-encoding"), if wanted { "gzip" } else { "" }, "{fields}");
        }
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
