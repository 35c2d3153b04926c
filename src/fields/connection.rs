//! Fields that are meant for one connection only (RFC 9110 §7.6.1).

use http::HeaderName;
use http::header::CONNECTION;
use pingora::http::ResponseHeader;

use super::members;

/// Fields that never travel further, whether `Connection` names them or not.
const SINGLE_HOP: &[&str] = &[
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-connection",
    "te",
    "trailer",
    "upgrade",
];

/// Removes what was meant for the connection to the origin only.
///
/// `Transfer-Encoding` stays: the engine frames the message with it. A 101 keeps
/// `Connection` and `Upgrade`, which are its whole point.
pub fn strip(response: &mut ResponseHeader) {
    let switching = response.status == 101;
    if response.headers.contains_key(CONNECTION) {
        let named: Vec<HeaderName> = members(&response.headers, CONNECTION)
            .filter_map(|name| HeaderName::from_bytes(name).ok())
            .filter(|name| !matches!(name.as_str(), "transfer-encoding" | "content-length" | "upgrade"))
            .collect();
        for name in named {
            response.remove_header(&name);
        }
    }
    for name in SINGLE_HOP {
        if !(switching && matches!(*name, "connection" | "upgrade")) {
            response.remove_header(*name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stripped(status: u16, lines: &[(&'static str, &'static str)]) -> Vec<String> {
        let mut head = ResponseHeader::build(status, None).unwrap();
        for (name, value) in lines {
            head.append_header(*name, *value).unwrap();
        }
        strip(&mut head);
        let mut left: Vec<_> = head.headers.keys().map(ToString::to_string).collect();
        left.sort();
        left
    }

    #[test]
    fn what_is_named_goes_and_framing_stays() {
        let lines = [
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("trailer", "x"),
            ("transfer-encoding", "chunked"),
            ("x-keep", "1"),
        ];
        assert_eq!(stripped(200, &lines), ["transfer-encoding", "x-keep"]);
        assert_eq!(
            stripped(200, &[("connection", "transfer-encoding"), ("transfer-encoding", "chunked")]),
            ["transfer-encoding"]
        );
    }

    #[test]
    fn a_101_keeps_its_upgrade() {
        assert_eq!(
            stripped(101, &[("connection", "upgrade"), ("upgrade", "websocket"), ("keep-alive", "x")]),
            ["connection", "upgrade"]
        );
    }
}
