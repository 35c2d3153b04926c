//! Who the client is, told by proxies in front of us (`X-Forwarded-For`, `Forwarded`).
//!
//! The list is read from its end: each hop that we trust is stepped over, and the
//! first address that we do not trust is the client. What stands further left was
//! written by somebody we do not know.

use std::net::IpAddr;

use http::HeaderMap;

use super::{members, open_quote, separated};

/// What a request field says that some reader takes for the truth about the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Says {
    /// Who the client is.
    Client,
    /// By which host, scheme, port or path the client asked.
    Place,
    /// That another target or host is meant.
    Target,
    /// That another method is meant.
    Method,
    /// In which form a framework is to answer.
    Form,
    /// On whose behalf a proxy in front asks.
    Person,
}

/// What a field says, by its name in lower case; `None` for the many that say nothing of the kind.
pub fn says(name: &str) -> Option<Says> {
    // Most fields of most requests begin otherwise.
    if !matches!(name.as_bytes().first(), Some(b'f' | b'r' | b't' | b'x')) {
        return None;
    }
    Some(match name {
        // The last one is written by ingress-nginx with each request.
        "x-forwarded-for" | "x-real-ip" | "true-client-ip" | "x-client-ip" | "x-original-forwarded-for" => Says::Client,
        // Written by proxies that know who has logged in (oauth2-proxy, Traefik, Envoy, nginx).
        "x-forwarded-user"
        | "x-forwarded-email"
        | "x-forwarded-groups"
        | "x-forwarded-preferred-username"
        | "x-forwarded-access-token"
        | "x-forwarded-client-cert"
        | "x-forwarded-tls-client-cert"
        | "x-forwarded-tls-client-cert-info"
        | "x-remote-user"
        | "remote-user" => Says::Person,
        _ if name.starts_with("x-auth-request-") => Says::Person,
        "forwarded" | "x-forwarded" | "front-end-https" | "x-url-scheme" | "x-scheme" | "x-script-name" => Says::Place,
        // Azure's gateway tells by which host the client asked with each request.
        _ if name.starts_with("x-forwarded-") || name == "x-original-host" => Says::Place,
        "x-http-method" | "x-http-method-override" | "x-method-override" => Says::Method,
        "x-host" | "x-http-host-override" | "x-backend-host" | "x-forward-host" | "x-override-url" | "x-proxy-url" => {
            Says::Target
        }
        _ if name.starts_with("x-original-") || name.starts_with("x-rewrite-") => Says::Target,
        // What parts of a framework say to each other: Next.js, Nuxt, React Router, SvelteKit.
        "x-matched-path"
        | "x-middleware-subrequest"
        | "x-now-route-matches"
        | "x-nuxt-error"
        | "x-nuxt-no-ssr"
        | "x-react-router-prerender-data"
        | "x-react-router-spa-mode" => Says::Target,
        _ if name.starts_with("x-invoke-") || name.starts_with("x-sveltekit-") => Says::Target,
        "x-nextjs-data" | "x-middleware-prefetch" => Says::Form,
        _ => return None,
    })
}

/// Whether the origin of a cached route gets this field from us, or not at all, whatever the client wrote.
pub fn is_about_the_client(name: &str) -> bool {
    matches!(says(name), Some(Says::Client | Says::Place | Says::Target | Says::Method))
}

/// The address in one list member: `192.0.2.1`, `192.0.2.1:4711`, `2001:db8::1`, `[2001:db8::1]:4711`, with nothing
/// before it and nothing behind.
fn address(member: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(member).ok()?;
    let text = text.strip_prefix('"').and_then(|inside| inside.strip_suffix('"')).unwrap_or(text);
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => text.split_at(text.find(':').filter(|at| Some(*at) == text.rfind(':')).unwrap_or(text.len())),
    };
    let legal = |port: &str| port.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    let port = port.is_empty() || port.strip_prefix(':').is_some_and(legal);
    host.parse().ok().filter(|_| port)
}

/// IPv4 addresses written as IPv6 count as IPv4, so that a network such as 10.0.0.0/8 takes them.
pub fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// The hops that proxies wrote, the nearest one last: `X-Forwarded-For`, or `for=` in `Forwarded` (RFC 7239).
///
/// A proxy may write its hop behind what the client sent, into the same line: a quote that the client opened must
/// not swallow it.
fn hops(fields: &HeaderMap) -> Vec<Option<IpAddr>> {
    if fields.contains_key("x-forwarded-for") {
        let lines = fields.get_all("x-forwarded-for").iter();
        let words = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
        return words.map(<[u8]>::trim_ascii).filter(|word| !word.is_empty()).map(address).collect();
    }
    let value = |pair: &[u8]| {
        let is_for = pair.get(..4).is_some_and(|name| name.eq_ignore_ascii_case(b"for="));
        is_for.then(|| address(&pair[4..]))
    };
    let node = |element: &[u8]| {
        let mut values = separated(element, b';').filter_map(value);
        let only = values.next().filter(|_| values.next().is_none() && !open_quote(element));
        only.flatten()
    };
    members(fields, "forwarded").map(node).collect()
}

/// The client's address, starting from a peer that is itself trusted; `None` when somebody in the
/// chain hides it. Whoever is hidden has no rights that go by address.
pub fn client(fields: &HeaderMap, peer: IpAddr, trusted: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
    let mut last = peer;
    for hop in hops(fields).into_iter().rev() {
        last = canonical(hop?);
        if !trusted(last) {
            break;
        }
    }
    Some(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::fields;

    #[test]
    fn what_fields_say() {
        for (name, said) in [
            ("x-forwarded-for", Some(Says::Client)),
            ("true-client-ip", Some(Says::Client)),
            ("forwarded", Some(Says::Place)),
            ("x-forwarded-host", Some(Says::Place)),
            ("x-forwarded-prefix", Some(Says::Place)),
            ("x-forwarded-nobody-knows", Some(Says::Place)),
            ("x-forwarded-user", Some(Says::Person)),
            ("x-auth-request-email", Some(Says::Person)),
            ("x-http-method-override", Some(Says::Method)),
            ("x-original-url", Some(Says::Target)),
            ("x-original-host", Some(Says::Place)),
            ("x-original-forwarded-for", Some(Says::Client)),
            ("x-rewrite-url", Some(Says::Target)),
            ("x-middleware-subrequest", Some(Says::Target)),
            ("x-nuxt-no-ssr", Some(Says::Target)),
            ("x-nextjs-data", Some(Says::Form)),
            ("x-custom", None),
            ("host", None),
            ("accept", None),
            ("rsc", None),
            ("next-router-prefetch", None),
        ] {
            assert_eq!(says(name), said, "{name}");
        }
    }

    #[test]
    fn the_first_untrusted_hop_from_the_right_is_the_client() {
        let trusted = |address: IpAddr| address.to_string().starts_with("10.");
        let peer = "10.0.0.1".parse().unwrap();
        for (list, expected) in [
            ("203.0.113.9", "203.0.113.9"),
            ("198.51.100.1, 203.0.113.9", "203.0.113.9"),
            ("203.0.113.9, 10.0.0.7", "203.0.113.9"),
            ("203.0.113.9:4711, 10.0.0.7", "203.0.113.9"),
            ("[2001:db8::1]:80", "2001:db8::1"),
            ("2001:db8::1", "2001:db8::1"),
            ("::ffff:203.0.113.9", "203.0.113.9"),
            ("10.0.0.9", "10.0.0.9"),
            ("", "10.0.0.1"),
        ] {
            let got = client(&fields(&format!("x-forwarded-for: {list}")), peer, trusted);
            assert_eq!(got.unwrap().to_string(), expected, "{list}");
        }
        for hidden in [
            "x-forwarded-for: 203.0.113.9, unknown, 10.0.0.7",
            "x-forwarded-for: [2001:db8::1]x",
            "x-forwarded-for: \"203.0.113.9",
            "x-forwarded-for: 203.0.113.9:8 0",
            "forwarded: for=_hidden",
            "forwarded: proto=https",
            "forwarded: for=203.0.113.9;for=203.0.113.10",
        ] {
            assert_eq!(client(&fields(hidden), peer, trusted), None, "{hidden}");
        }
        for (told, expected) in [
            ("forwarded: for=203.0.113.9;proto=https", "203.0.113.9"),
            ("forwarded: by=10.0.0.2;For=\"[2001:db8::1]:4711\", for=10.0.0.7", "2001:db8::1"),
        ] {
            assert_eq!(client(&fields(told), peer, trusted).unwrap().to_string(), expected, "{told}");
        }
    }

    /// A proxy that is trusted writes behind what came, into the same line.
    #[test]
    fn what_a_client_begins_does_not_swallow_what_a_proxy_writes() {
        let (trusted, peer) = (|address: IpAddr| address.is_loopback(), IpAddr::from([127, 0, 0, 1]));
        for lie in ["\"[::1]", "127.0.0.1:\"", "127.0.0.1", "\"", "[::1", "127.0.0.1:\"\\"] {
            let told = fields(&format!("x-forwarded-for: {lie}, 203.0.113.9"));
            assert_eq!(client(&told, peer, trusted), Some([203, 0, 113, 9].into()), "{lie}");
        }
        for lie in ["for=127.0.0.1;by=\"", "by=\";for=127.0.0.1;by=", "for=\"127.0.0.1", "for=\"[::1]", "by=\"\\\""] {
            for node in ["203.0.113.9", "\"203.0.113.9:80\""] {
                let told = fields(&format!("forwarded: {lie}, for={node}"));
                assert_eq!(client(&told, peer, trusted), None, "{lie}, {node}");
            }
        }
    }
}
