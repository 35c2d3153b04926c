//! Who the client is, told by proxies in front of us (`X-Forwarded-For`).
//!
//! The list is read from its end: each hop that we trust is stepped over, and the
//! first address that we do not trust is the client. What stands further left was
//! written by somebody we do not know.

use std::net::IpAddr;

use http::HeaderMap;

use super::members;

/// The address in one list member: `192.0.2.1`, `192.0.2.1:4711`, `2001:db8::1`, `[2001:db8::1]:4711`.
fn address(member: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(member).ok()?.trim_matches('"');
    if let Some(rest) = text.strip_prefix('[') {
        return rest.split(']').next()?.parse().ok();
    }
    text.parse().ok().or_else(|| text.rsplit_once(':')?.0.parse().ok())
}

/// IPv4 addresses written as IPv6 count as IPv4, so that a network such as 10.0.0.0/8 takes them.
pub fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// The client's address, starting from a peer that is itself trusted.
///
/// A member that is no address ends the walk: the last trusted hop is then all we know.
pub fn client(fields: &HeaderMap, peer: IpAddr, trusted: impl Fn(IpAddr) -> bool) -> IpAddr {
    let hops: Vec<_> = members(fields, "x-forwarded-for").collect();
    let mut last = peer;
    for hop in hops.iter().rev() {
        let Some(hop) = address(hop) else { return last };
        last = canonical(hop);
        if !trusted(last) {
            return last;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::fields;

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
            ("203.0.113.9, unknown, 10.0.0.7", "10.0.0.7"),
            ("10.0.0.9", "10.0.0.9"),
            ("", "10.0.0.1"),
        ] {
            assert_eq!(
                client(&fields(&format!("x-forwarded-for: {list}")), peer, trusted).to_string(),
                expected,
                "{list}"
            );
        }
    }
}
