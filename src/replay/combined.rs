//! The format that nginx and Apache call `combined` (and `common`, which is its beginning).
//!
//! `192.0.2.1 - - [06/Nov/1994:08:49:37 +0000] "GET /a HTTP/1.1" 200 5 "-" "agent"`, with or without the name of
//! the virtual host before it. Quotes are escaped as nginx (`\x22`) or as Apache (`\"`) does it.

use std::borrow::Cow;
use std::net::IpAddr;

use http::Method;
use http::header::{AUTHORIZATION, REFERER, USER_AGENT};

use super::line::{Fields, Line, add, clf_time};

/// Reads a line.
pub fn parse(line: &[u8]) -> Result<Line, &'static str> {
    let (head, at, mut rest) = time(line).ok_or("no time in brackets")?;
    let request = quoted(&mut rest).ok_or("no request in quotes")?;
    let (method, target) = request_line(&request).ok_or("the request is none")?;
    let status = word(&mut rest);
    let status = if status == b"-" { Some(0) } else { number(status).and_then(|status| u16::try_from(status).ok()) };
    let status = status.ok_or("no status behind the request")?;
    let bytes = word(&mut rest);
    let bytes = if bytes == b"-" { Some(0) } else { number(bytes) }.ok_or("no number of bytes behind the status")?;
    let mut fields = Fields::new();
    for name in [REFERER, USER_AGENT] {
        match quoted(&mut rest) {
            Some(value) if *value != *b"-" && !value.is_empty() => add(&mut fields, name, &value),
            _ => {}
        }
    }
    let (host, https, user) = who(head);
    if !matches!(user, b"-" | b"" | b"\"\"") {
        // Somebody has logged in; with what is not in the log.
        add(&mut fields, AUTHORIZATION, b"Basic");
    }
    Ok(Line {
        at,
        whole_second: true,
        took: None,
        method,
        https,
        host: host.map(Into::into),
        target,
        status,
        bytes,
        request: fields,
        response: Fields::new(),
        says_freshness: false,
    })
}

/// What stands before the time, the time, and what stands behind it. A user's name may hold brackets too.
fn time(line: &[u8]) -> Option<(&[u8], u64, &[u8])> {
    let mut from = 0;
    loop {
        let open = from + memchr::memchr(b'[', &line[from..])?;
        let close = open + memchr::memchr(b']', &line[open..])?;
        let text = std::str::from_utf8(&line[open + 1..close]).ok();
        if let Some(at) = text.and_then(clf_time) {
            return Some((line[..open].trim_ascii(), at, &line[close + 1..]));
        }
        from = open + 1;
    }
}

/// The virtual host, if there is one, whether its port is that of https, and the user.
fn who(head: &[u8]) -> (Option<&str>, bool, &[u8]) {
    let mut rest = head;
    let first = word(&mut rest);
    let second = word(&mut rest);
    let address = |word: &[u8]| std::str::from_utf8(word).is_ok_and(|word| word.parse::<IpAddr>().is_ok());
    let behind = rest.trim_ascii();
    if !address(first) && address(second) && behind.contains(&b' ') {
        let _identity = word(&mut rest);
        let host = std::str::from_utf8(first).ok();
        let https = host.and_then(|host| host.strip_suffix(":443"));
        let host = https.or(host.map(|host| host.strip_suffix(":80").unwrap_or(host)));
        return (host, https.is_some(), rest.trim_ascii());
    }
    (None, false, behind)
}

fn word<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
    let trimmed = rest.trim_ascii_start();
    let end = trimmed.iter().position(|byte| *byte == b' ').unwrap_or(trimmed.len());
    let (word, after) = trimmed.split_at(end);
    *rest = after;
    word
}

fn number(word: &[u8]) -> Option<u64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// What stands between the next two quotes, unescaped.
fn quoted<'a>(rest: &mut &'a [u8]) -> Option<Cow<'a, [u8]>> {
    let inside = rest.trim_ascii_start().strip_prefix(b"\"")?;
    let mut from = 0;
    let mut escaped = false;
    loop {
        let at = from + memchr::memchr2(b'"', b'\\', &inside[from..])?;
        if inside[at] == b'"' {
            *rest = &inside[at + 1..];
            let text = &inside[..at];
            return Some(if escaped { Cow::Owned(unescape(text)) } else { Cow::Borrowed(text) });
        }
        escaped = true;
        from = (at + 2).min(inside.len());
    }
}

fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'\\' {
            out.push(*byte);
            continue;
        }
        let Some((kind, after)) = rest.split_first() else { break };
        rest = after;
        let hex = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        match kind {
            b'x' if rest.len() >= 2 && hex(&rest[..2]).is_some() => {
                out.extend(hex(&rest[..2]));
                rest = &rest[2..];
            }
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            other => out.push(*other),
        }
    }
    out
}

/// Method and target of `GET /a HTTP/1.1`; the version may be missing.
pub fn request_line(request: &[u8]) -> Option<(Method, String)> {
    let space = memchr::memchr(b' ', request)?;
    let method = Method::from_bytes(&request[..space]).ok()?;
    let rest = &request[space + 1..];
    let target = match memchr::memrchr(b' ', rest) {
        Some(space) if rest[space + 1..].starts_with(b"HTTP/") => &rest[..space],
        _ => rest,
    };
    (!target.is_empty()).then(|| (method, String::from_utf8_lossy(target).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::line::SECOND;

    const AT: u64 = 784_111_777 * SECOND;

    fn read(line: &str) -> Line {
        parse(line.as_bytes()).unwrap_or_else(|why| panic!("{line}: {why}"))
    }

    #[test]
    fn what_servers_write() {
        let line = read(
            r#"192.0.2.1 - - [06/Nov/1994:08:49:37 +0000] "GET /a?b=c HTTP/1.1" 200 5316 "https://x.test/" "curl/8 (a; b)""#,
        );
        assert_eq!((line.at, line.status, line.bytes), (AT, 200, 5316));
        assert_eq!((line.method.as_str(), line.target.as_str(), line.host), ("GET", "/a?b=c", None));
        assert_eq!(line.request.len(), 2);
        assert!(line.whole_second && line.took.is_none() && !line.says_freshness);

        let common = read(r#"2001:db8::1 - - [06/Nov/1994:08:49:37 +0000] "HEAD / HTTP/1.0" 304 -"#);
        assert_eq!((common.status, common.bytes, common.method.as_str()), (304, 0, "HEAD"));
        assert!(common.request.is_empty());

        let host = read(r#"shop.test:80 192.0.2.1 - - [06/Nov/1994:08:49:37 +0000] "GET / HTTP/1.1" 200 1 "-" "-""#);
        assert_eq!((host.host.as_deref(), host.https), (Some("shop.test"), false));
        let host = read(r#"shop.test:443 ::1 - - [06/Nov/1994:08:49:37 +0000] "GET / HTTP/1.1" 200 1 "-" "-""#);
        assert_eq!((host.host.as_deref(), host.https), (Some("shop.test"), true));
        let more = read(r#"::1 - - [06/Nov/1994:08:49:37 +0000] "GET / HTTP/2.0" 200 1 "-" "a" "10.0.0.1" 0.002"#);
        assert_eq!(more.request.len(), 1);
        let absolute = Line::parse(br#"::1 - - [06/Nov/1994:08:49:37 +0000] "GET http://a.test?x HTTP/1.1" 200 1"#);
        let absolute = absolute.unwrap();
        assert_eq!((absolute.host.as_deref(), absolute.target.as_str()), (Some("a.test"), "/?x"));
    }

    #[test]
    fn users_have_logged_in() {
        for (user, known) in [("-", false), ("jane", true), ("Jane Doe", true), ("a [b] c", true), ("[x", true)] {
            let line =
                read(&format!(r#"192.0.2.1 - {user} [06/Nov/1994:08:49:37 +0000] "GET / HTTP/1.1" 200 1 "-" "-""#));
            assert_eq!(line.request.iter().any(|(name, _)| *name == AUTHORIZATION), known, "{user}");
        }
    }

    #[test]
    fn quotes_are_escaped_in_two_ways() {
        for (target, expected) in [
            (r"/a\x22b", "/a\"b"),
            (r#"/a\"b"#, "/a\"b"),
            (r"/a\\b", "/a\\b"),
            (r"/a\xC3\xA9", "/aé"),
            (r"/a\xzz", "/axzz"),
            ("/two words", "/two words"),
        ] {
            let line =
                read(&format!(r#"192.0.2.1 - - [06/Nov/1994:08:49:37 +0000] "GET {target} HTTP/1.1" 200 1 "-" "-""#));
            assert_eq!(line.target, expected, "{target}");
        }
        let agent = read(r#"1.1.1.1 - - [06/Nov/1994:08:49:37 +0000] "GET / HTTP/1.1" 200 1 "-" "say \"hi\" \\""#);
        assert_eq!(agent.request[0].1, r#"say "hi" \"#);
    }

    #[test]
    fn what_is_no_request_says_why() {
        for (line, why) in [
            ("", "time"),
            ("192.0.2.1 - - GET /", "time"),
            (r#"192.0.2.1 - - [yesterday] "GET / HTTP/1.1" 200 1"#, "time"),
            ("192.0.2.1 - - [06/Nov/1994:08:49:37 +0000] GET / 200 1", "quotes"),
            (r#"192.0.2.1 - - [06/Nov/1994:08:49:37 +0000] "GET / HTTP/1.1"#, "quotes"),
            (r#"192.0.2.1 - - [06/Nov/1994:08:49:37 +0000] "GET / HTTP/1.1\"#, "quotes"),
            (r#"192.0.2.1 - - [06/Nov/1994:08:49:37 +0000] "-" 408 0 "-" "-""#, "none"),
            (r#"192.0.2.1 - - [06/Nov/1994:08:49:37 +0000] "\x16\x03\x01" 400 0 "-" "-""#, "none"),
            (r#"192.0.2.1 - - [06/Nov/1994:08:49:37 +0000] "GET / HTTP/1.1" OK 1"#, "status"),
            (r#"192.0.2.1 - - [06/Nov/1994:08:49:37 +0000] "GET / HTTP/1.1" 200 many"#, "bytes"),
        ] {
            let told = parse(line.as_bytes()).unwrap_err();
            assert!(told.contains(why), "{line}: {told}");
        }
    }
}
