//! The host of a request: `Host`, and what a proxy says it was (RFC 9110 §7.2).

/// A name or an address with an optional port, and nothing else.
pub fn is_authority(host: &[u8]) -> bool {
    if host.is_empty() || host.len() > 255 {
        return false;
    }
    let port = |port: &[u8]| port.len() <= 5 && port.iter().all(u8::is_ascii_digit);
    if let Some(rest) = host.strip_prefix(b"[") {
        let Some(close) = rest.iter().position(|byte| *byte == b']') else { return false };
        let (address, after) = (&rest[..close], &rest[close + 1..]);
        return std::str::from_utf8(address).is_ok_and(|text| text.parse::<std::net::Ipv6Addr>().is_ok())
            && (after.is_empty() || after.strip_prefix(b":").is_some_and(port));
    }
    let (name, after) = match host.iter().position(|byte| *byte == b':') {
        Some(at) => (&host[..at], Some(&host[at + 1..])),
        None => (host, None),
    };
    !name.is_empty()
        && name.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
        && after.is_none_or(port)
}

/// The host as people write it: small, without a final dot and without the port that goes without saying.
pub fn plain(host: &str) -> String {
    let host = host.to_ascii_lowercase();
    let host = host.strip_suffix(":80").or_else(|| host.strip_suffix(":443")).unwrap_or(&host);
    match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => format!("{}:{port}", name.strip_suffix('.').unwrap_or(name)),
        _ => host.strip_suffix('.').unwrap_or(host).to_owned(),
    }
}

/// The host without its port.
pub fn without_port(host: &str) -> &str {
    match host.rfind(':') {
        Some(colon) if !host[colon..].contains(']') => &host[..colon],
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_hosts() {
        for (host, expected) in [
            ("Shop.TEST", "shop.test"),
            ("shop.test.:443", "shop.test"),
            ("shop.test.", "shop.test"),
            ("shop.test:8080", "shop.test:8080"),
            ("shop.test.:8080", "shop.test:8080"),
            ("[::1]:80", "[::1]"),
            ("[::1]", "[::1]"),
        ] {
            assert_eq!(plain(host), expected, "{host}");
        }
    }

    #[test]
    fn hosts() {
        for host in ["a.test", "A.Test:80", "127.0.0.1", "[::1]", "[2001:db8::1]:8080", "my_app", "a:"] {
            assert!(is_authority(host.as_bytes()), "{host}");
        }
        for host in ["", "a b", "a/b", "a,b", "a@b", "a:b", ":80", "[::1", "[::1]x", "[a]", "a:123456", "a:80:80"] {
            assert!(!is_authority(host.as_bytes()), "{host}");
        }
    }

    #[test]
    fn hosts_lose_their_port_only() {
        for (host, bare) in [("a.test", "a.test"), ("a.test:80", "a.test"), ("[::1]", "[::1]"), ("[::1]:80", "[::1]")] {
            assert_eq!(without_port(host), bare);
        }
    }
}
