//! Who the client is: what it sends itself changes nothing behind a proxy that we trust.

use std::net::IpAddr;

use headwall::fields::forwarded::{canonical, client, is_about_the_client, says};
use http::{HeaderMap, HeaderName, HeaderValue};

const TRUSTED: [u8; 4] = [10, 0, 0, 1];
const STRANGER: [u8; 4] = [203, 0, 113, 9];

/// What the client sends in `X-Forwarded-For` and in `Forwarded`.
pub fn run(data: &[u8]) {
    let peer = IpAddr::from(TRUSTED);
    // Everybody is, but for the stranger: a lie that is read makes the client anybody.
    let trusted = |address: IpAddr| address != IpAddr::from(STRANGER);
    for (name, nodes) in [
        ("x-forwarded-for", &["203.0.113.9", "203.0.113.9:4711"][..]),
        ("forwarded", &["for=203.0.113.9", "For=\"203.0.113.9:4711\";proto=https", "by=10.0.0.1;for=203.0.113.9"][..]),
    ] {
        for node in nodes {
            // The proxy writes its hop behind what came, into the same line.
            let line = [data, b", ", node.as_bytes()].concat();
            let Some(read) = told(name, &[&line]).map(|fields| client(&fields, peer, trusted)) else { continue };
            assert!(read.is_none() || read == Some(STRANGER.into()), "{name}: {:?}", String::from_utf8_lossy(&line));
            assert!(name == "forwarded" || read.is_some(), "who sends nonsense in {name} hides nobody");
            // Or into a line of its own.
            let Some(fields) = told(name, &[data, node.as_bytes()]) else { continue };
            assert_eq!(client(&fields, peer, trusted), Some(STRANGER.into()), "{name}");
        }
        // Whoever is found was named.
        let Some(fields) = told(name, &[data]) else { continue };
        if let Some(found) = client(&fields, peer, |_| false) {
            let text = String::from_utf8_lossy(data);
            let named = |word: &str| word.parse().is_ok_and(|address| canonical(address) == found);
            let legal = |byte: char| byte.is_ascii_hexdigit() || matches!(byte, '.' | ':');
            let without_port = |word: &str| word.rsplit_once(':').is_some_and(|(host, _)| named(host));
            let mut words = text.split(|byte| !legal(byte));
            assert!(found == peer || words.any(|word| named(word) || without_port(word)), "{found} of {text:?}");
        }
    }
    if let Ok(name) = HeaderName::from_bytes(data) {
        assert!(!is_about_the_client(name.as_str()) || says(name.as_str()).is_some());
        assert!(!name.as_str().starts_with("x-forwarded-") || says(name.as_str()).is_some(), "{name} is one of them");
    }
}

fn told(name: &'static str, lines: &[&[u8]]) -> Option<HeaderMap> {
    let mut fields = HeaderMap::new();
    for line in lines {
        fields.append(name, HeaderValue::from_bytes(line).ok()?);
    }
    Some(fields)
}
