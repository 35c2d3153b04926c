//! What the origin is told about the client, and what it must not be told.
//!
//! Nobody's `X-Forwarded-*` is believed but that of a trusted proxy. Fields that
//! some frameworks read as "the request was really another one" go no further on a
//! cached route: the key does not know them.

use std::net::IpAddr;

use http::header::{ACCEPT_ENCODING, ACCEPT_LANGUAGE, COOKIE, EXPECT, HOST, VIA};
use http::{HeaderMap, HeaderName, HeaderValue};
use pingora::http::RequestHeader;

use crate::exchange::Exchange;
use crate::fields::forwarded::{Says, says};
use crate::fields::{accept_encoding, accept_language, cookies, forwarded};
use crate::units::Network;

const FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// The host that a client asked a proxy in front of us for.
pub const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

fn trusts(trusted: &[Network], address: IpAddr) -> bool {
    trusted.iter().any(|network| network.0.contains(&address))
}

/// Who the client is, and how it asked, as far as the peer may be believed.
pub fn recognise(exchange: &mut Exchange, fields: &HeaderMap, trusted: &[Network]) {
    let peer = forwarded::canonical(exchange.peer);
    (exchange.peer, exchange.client) = (peer, peer);
    exchange.peer_trusted = trusts(trusted, peer);
    if !exchange.peer_trusted {
        return;
    }
    let client = forwarded::client(fields, peer, |address| trusts(trusted, address));
    exchange.client = client.unwrap_or(IpAddr::from([0, 0, 0, 0]));
    let proto = fields.get_all(&PROTO).iter().next_back();
    let proto = proto.and_then(|value| value.as_bytes().rsplit(|byte| *byte == b',').next());
    if proto.is_some_and(|proto| proto.trim_ascii().eq_ignore_ascii_case(b"https")) {
        exchange.scheme = "https";
    }
}

/// Takes out of a request what must not reach the origin unkeyed or unproven. Runs before the key is made.
///
/// Gives back the fields that could have misled the origin, had they come through.
pub fn clean(request: &mut RequestHeader, exchange: &Exchange, cached: bool) -> Vec<(HeaderName, Says)> {
    let mut misleading = Vec::new();
    let mut taken = Vec::new();
    for name in request.headers.keys() {
        let written = name.as_str();
        // CGI, and what follows it, takes `X_Real_IP` for `X-Real-IP`. No proxy writes it so.
        let lookalike = written.contains('_');
        let said = if lookalike { says(&written.replace('_', "-")) } else { says(written) };
        let Some(said) = said else { continue };
        let goes = match said {
            Says::Client | Says::Place => {
                let known = [&FOR, &PROTO, &FORWARDED_HOST, &REAL_IP].contains(&name);
                !exchange.peer_trusted || (cached && !known)
            }
            Says::Target | Says::Method => cached,
            Says::Form | Says::Person => false,
        };
        if goes || lookalike {
            taken.push(name.clone());
            if cached && misleads(request, name, said, exchange) {
                misleading.push((name.clone(), said));
            }
        }
    }
    for name in taken {
        request.remove_header(&name);
    }
    if cached {
        // The key has it in lower case, so the origin gets it so.
        let host =
            request.headers.get(HOST).map(HeaderValue::as_bytes).filter(|host| host.iter().any(u8::is_ascii_uppercase));
        if let Some(host) = host.and_then(|host| HeaderValue::from_bytes(&host.to_ascii_lowercase()).ok()) {
            let _ = request.insert_header(HOST, host);
        }
    }
    misleading
}

/// Whether an origin that believes this field would take the request for another one.
fn misleads(request: &RequestHeader, name: &HeaderName, said: Says, exchange: &Exchange) -> bool {
    let says = |text: &str| {
        request.headers.get_all(name).iter().all(|line| line.as_bytes().eq_ignore_ascii_case(text.as_bytes()))
    };
    match said {
        Says::Target | Says::Method => true,
        // Of a proxy that we trust it is the truth; of others, what is the case anyway misleads nobody.
        Says::Place if exchange.peer_trusted => false,
        Says::Place if *name == FORWARDED_HOST => !says(&exchange.host),
        Says::Place if *name == PROTO => !says(exchange.scheme),
        Says::Place => true,
        Says::Client | Says::Form | Says::Person => false,
    }
}

/// Tells the origin who asked, for what, and that we stand between.
pub fn tell(request: &mut RequestHeader, exchange: &Exchange) {
    if exchange.version == http::Version::HTTP_10 {
        // RFC 9110 §10.1.1: such a client cannot wait for an interim response.
        request.remove_header(&EXPECT);
    }
    if !request.headers.contains_key(HOST) {
        // An HTTP/1.0 client may leave it out; HTTP/1.1, which we speak to the origin, may not.
        let server = exchange.upstream.as_deref().filter(|server| !server.starts_with("unix:"));
        let host = server.and_then(|server| HeaderValue::from_str(server).ok());
        let _ = request.insert_header(HOST, host.unwrap_or_else(|| HeaderValue::from_static("localhost")));
    }
    let value = |text: &str| HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static("-"));
    let mut chain = String::new();
    for line in request.headers.get_all(&FOR) {
        if let Ok(line) = line.to_str() {
            chain.push_str(line);
            chain.push_str(", ");
        }
    }
    chain.push_str(&exchange.peer.to_string());
    let _ = request.insert_header(FOR, value(&chain));
    let _ = request.insert_header(REAL_IP, value(&exchange.client.to_string()));
    let _ = request.insert_header(PROTO, HeaderValue::from_static(exchange.scheme));
    if !request.headers.contains_key(&FORWARDED_HOST)
        && let Some(host) = request.headers.get(HOST).cloned()
    {
        let _ = request.insert_header(FORWARDED_HOST, host);
    }
    let _ = request.append_header(VIA, via(exchange.version));
}

/// Of all cookies, only these reach the origin: others have no say in what is stored.
pub fn keep_cookies(request: &mut RequestHeader, names: &[String]) {
    let kept = cookies::only(&request.headers, names).and_then(|kept| HeaderValue::from_bytes(&kept).ok());
    request.remove_header(&COOKIE);
    if let Some(kept) = kept {
        let _ = request.insert_header(COOKIE, kept);
    }
}

/// Asks for codings and languages in the form that variants are named by, so that the origin cannot choose
/// by more.
pub fn fold(request: &mut RequestHeader) {
    if let Some(accepted) = accept_encoding::fold(&request.headers) {
        let _ = request.insert_header(ACCEPT_ENCODING, accepted.value());
    }
    if let Some(preferred) = accept_language::fold(&request.headers) {
        let _ = request.insert_header(ACCEPT_LANGUAGE, preferred);
    }
}

/// What we add to `Via` for a message that came in this version (RFC 9110 §7.6.3).
pub fn via(version: http::Version) -> HeaderValue {
    HeaderValue::from_static(match version {
        http::Version::HTTP_10 => "1.0 headwall",
        http::Version::HTTP_2 => "2.0 headwall",
        _ => "1.1 headwall",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{exchange, request};

    fn through(peer: &str, trusted: &[&str], head: &str) -> (Exchange, RequestHeader) {
        let trusted: Vec<_> = trusted.iter().map(|net| Network(net.parse().unwrap())).collect();
        let mut exchange = exchange();
        exchange.peer = peer.parse().unwrap();
        let mut head = request(head);
        recognise(&mut exchange, &head.headers, &trusted);
        clean(&mut head, &exchange, true);
        tell(&mut head, &exchange);
        keep_cookies(&mut head, &["c".to_owned()]);
        fold(&mut head);
        (exchange, head)
    }

    #[test]
    fn a_stranger_is_not_believed() {
        let lie = "GET /\nHost: a.test\nX-Forwarded-For: 203.0.113.9\nX-Real-IP: 203.0.113.9\nX-Forwarded-Host: b\nX-Forwarded-Proto: https\nForwarded: for=1\nX-Original-URL: /admin\nX-Forwarded-Port: 1\nX_Forwarded_For: 203.0.113.9\nX_Original_URL: /admin\nX-Forwarded-Uri: /x\nX-Nuxt-No-SSR: 1\nX-Nextjs-Data: 1\nCookie: a=b";
        let (exchange, head) = through("192.0.2.1", &["10.0.0.0/8"], lie);
        assert_eq!((exchange.client.to_string(), exchange.scheme), ("192.0.2.1".into(), "http"));
        for (name, expected) in [
            ("x-forwarded-for", "192.0.2.1"),
            ("x-real-ip", "192.0.2.1"),
            ("x-forwarded-host", "a.test"),
            ("x-forwarded-proto", "http"),
            ("via", "1.1 headwall"),
        ] {
            assert_eq!(head.headers[name], expected, "{name}");
        }
        for name in [
            "forwarded",
            "x-original-url",
            "x-forwarded-port",
            "x-forwarded-uri",
            "x_forwarded_for",
            "x_original_url",
            "x-nuxt-no-ssr",
            "cookie",
        ] {
            assert!(!head.headers.contains_key(name), "{name}");
        }
        assert!(head.headers.contains_key("x-nextjs-data"), "the app needs it; what it answers is not stored");
    }

    #[test]
    fn what_could_mislead_is_told() {
        for (line, peer, cached, expected) in [
            ("X-Forwarded-Host: evil.test", "192.0.2.1", true, Some(Says::Place)),
            ("X_Forwarded_Host: evil.test", "10.0.0.1", true, None),
            ("X-Forwarded-Host: A.test", "192.0.2.1", true, None),
            ("X-Forwarded-Host: evil.test", "10.0.0.1", true, None),
            ("X-Forwarded-Host: evil.test", "192.0.2.1", false, None),
            ("X-Forwarded-Proto: http", "192.0.2.1", true, None),
            ("X-Forwarded-Proto: nothttp", "192.0.2.1", true, Some(Says::Place)),
            ("X-Forwarded-Prefix: /x", "192.0.2.1", true, Some(Says::Place)),
            ("X-Forwarded-For: 203.0.113.9", "192.0.2.1", true, None),
            ("X-Rewrite-Url: /admin", "10.0.0.1", true, Some(Says::Target)),
            ("X-Original-Host: evil.test", "192.0.2.1", true, Some(Says::Place)),
            ("X-Original-Host: a.test", "10.0.0.1", true, None),
            ("X-Original-Forwarded-For: 203.0.113.9", "10.0.0.1", true, None),
            ("X-HTTP-Method-Override: DELETE", "192.0.2.1", true, Some(Says::Method)),
            ("X-Custom: 1", "192.0.2.1", true, None),
        ] {
            let mut exchange = exchange();
            exchange.peer = peer.parse().unwrap();
            exchange.host = "a.test".into();
            let mut head = request(&format!("GET /\nHost: a.test\n{line}"));
            recognise(&mut exchange, &head.headers, &[Network("10.0.0.0/8".parse().unwrap())]);
            let told = clean(&mut head, &exchange, cached);
            assert_eq!(told.first().map(|(_, said)| *said), expected, "{line} from {peer}, cached: {cached}");
            assert!(told.len() <= 1);
        }
        let mut head = request("GET /\nHost: A.Test");
        clean(&mut head, &exchange(), true);
        assert_eq!(head.headers["host"], "a.test");
    }

    #[test]
    fn a_trusted_proxy_is_believed_about_its_client() {
        let head = "GET /\nHost: app\nX-Forwarded-For: 198.51.100.7, 203.0.113.9\nX-Forwarded-Host: shop.test\nX_Forwarded_Host: evil.test\nX-Forwarded-Proto: https";
        let (exchange, head) = through("10.0.0.1", &["10.0.0.0/8"], head);
        assert_eq!((exchange.client.to_string(), exchange.scheme), ("203.0.113.9".into(), "https"));
        for (name, expected) in [
            ("x-forwarded-for", "198.51.100.7, 203.0.113.9, 10.0.0.1"),
            ("x-real-ip", "203.0.113.9"),
            ("x-forwarded-host", "shop.test"),
            ("x-forwarded-proto", "https"),
        ] {
            assert_eq!(head.headers[name], expected, "{name}");
        }
        assert!(!head.headers.contains_key("x_forwarded_host"), "the client wrote that one");
    }
}
