//! A JSON object on each line: Headwall's own log, and the usual names of nginx's.
//!
//! Keys that we do not know are passed over; of two keys for one thing the one that says it better counts.

use std::borrow::Cow;
use std::fmt;

use http::header::{AUTHORIZATION, COOKIE, REFERER, USER_AGENT};
use http::{HeaderName, Method};
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::combined::request_line;
use super::line::{Fields, Line, SECOND, add, clf_time, iso_time, span, unix_time};

/// A value, as far as it matters here.
enum Value<'a> {
    Text(Cow<'a, str>),
    Number(f64),
    Other,
}

impl Value<'_> {
    fn text(&self) -> &str {
        match self {
            // As logs write that there is nothing.
            Value::Text(text) if text != "-" => text,
            _ => "",
        }
    }

    fn number(&self) -> Option<f64> {
        match self {
            Value::Number(number) => Some(*number),
            // Of several tries of an upstream the last one counts.
            Value::Text(text) => text.rsplit([',', ':']).next()?.trim().parse().ok(),
            Value::Other => None,
        }
    }
}

struct OfAnyKind;

impl<'de> Visitor<'de> for OfAnyKind {
    type Value = Value<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value<'de>, E> {
        Ok(Value::Number(number as f64))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value<'de>, E> {
        Ok(Value::Number(number as f64))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value<'de>, E> {
        Ok(Value::Number(number))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Value<'de>, E> {
        Ok(Value::Other)
    }

    fn visit_unit<E>(self) -> Result<Value<'de>, E> {
        Ok(Value::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value<'de>, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value<'de>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Value::Other)
    }
}

impl<'de> de::DeserializeSeed<'de> for OfAnyKind {
    type Value = Value<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value<'de>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// What has been read so far. Where several keys say the same, the number tells which says it best.
#[derive(Default)]
struct Read {
    at: Option<(u64, bool)>,
    /// A time is there, in a form that we do not know.
    no_time: bool,
    /// The time is that of the end.
    at_end: bool,
    took: Option<(u8, f64)>,
    whole: Option<f64>,
    method: Option<Method>,
    target: Option<(u8, String)>,
    query: Option<String>,
    line: Option<(Method, String)>,
    status: Option<u16>,
    bytes: Option<(u8, u64)>,
    host: Option<(u8, String)>,
    https: bool,
    request: Fields,
    response: Fields,
    says_freshness: bool,
}

struct Object;

impl<'de> Visitor<'de> for Object {
    type Value = Read;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Read, A::Error> {
        let mut read = Read::default();
        while let Some(key) = map.next_key_seed(OfAnyKind)? {
            let value = map.next_value_seed(OfAnyKind)?;
            if let Value::Text(key) = key {
                read.take(&key, &value);
            }
        }
        Ok(read)
    }
}

fn better<T>(there: &mut Option<(u8, T)>, rank: u8, new: Option<T>) {
    if let Some(new) = new
        && there.as_ref().is_none_or(|(before, _)| *before < rank)
    {
        *there = Some((rank, new));
    }
}

impl Read {
    fn take(&mut self, key: &str, value: &Value<'_>) {
        let text = || Some(value.text().to_owned()).filter(|text| !text.is_empty());
        let count = || value.number().filter(|number| *number >= 0.0).map(|number| number as u64);
        match key {
            "time" | "timestamp" | "@timestamp" | "ts" | "date" => self.time(value, false),
            // nginx writes its lines, and takes their time, at the end.
            "time_iso8601" | "time_local" | "msec" => self.time(value, true),
            "seconds" | "request_time" => self.whole = value.number(),
            "upstream_response_time" => better(&mut self.took, 1, value.number()),
            "upstream_header_time" => better(&mut self.took, 2, value.number()),
            "method" | "request_method" => self.method = Method::from_bytes(value.text().as_bytes()).ok(),
            "target" | "request_uri" => better(&mut self.target, 3, text()),
            "url" | "path" => better(&mut self.target, 2, text()),
            "uri" | "document_uri" => better(&mut self.target, 1, text()),
            "args" | "query_string" => self.query = text(),
            // In Headwall's own log, the number of the request.
            "request" => self.line = request_line(value.text().as_bytes()),
            "status" => self.status = count().and_then(|status| u16::try_from(status).ok()),
            "bytes" | "body_bytes_sent" => better(&mut self.bytes, 2, count()),
            "bytes_sent" | "size" => better(&mut self.bytes, 1, count()),
            "host" | "http_host" => better(&mut self.host, 2, text()),
            "server_name" => better(&mut self.host, 1, text()),
            "scheme" => self.https = value.text() == "https",
            "https" => self.https = value.text() == "on",
            "user_agent" => self.field(USER_AGENT, value),
            "referer" | "referrer" => self.field(REFERER, value),
            "cookie" => self.field(COOKIE, value),
            // Somebody has logged in; with what is not in the log.
            "remote_user" | "user" => {
                if !value.text().is_empty() {
                    add(&mut self.request, AUTHORIZATION, b"Basic");
                }
            }
            _ => self.other(key, value),
        }
    }

    /// `http_NAME` is a field of the request, `sent_http_NAME` and `upstream_http_NAME` one of the response. What
    /// decides about storing may stand there under its own name.
    fn other(&mut self, key: &str, value: &Value<'_>) {
        let of_response = key
            .strip_prefix("upstream_http_")
            .or_else(|| key.strip_prefix("sent_http_"))
            .or_else(|| KNOWN.contains(&key).then_some(key));
        if let Some(name) = of_response {
            let Ok(name) = name.replace('_', "-").parse::<HeaderName>() else { return };
            self.says_freshness |= name == http::header::CACHE_CONTROL;
            let upstream = key.starts_with("upstream");
            let there = self.response.iter().position(|(known, _)| *known == name);
            if let (Some(at), true) = (there, upstream) {
                // What the origin said counts more than what was made of it.
                self.response.remove(at);
            }
            if !value.text().is_empty() && (there.is_none() || upstream) {
                add(&mut self.response, name, value.text().as_bytes());
            }
        } else if let Some(name) = key.strip_prefix("http_")
            && let Ok(name) = name.replace('_', "-").parse::<HeaderName>()
        {
            self.field(name, value);
        }
    }

    fn field(&mut self, name: HeaderName, value: &Value<'_>) {
        if !value.text().is_empty() && !self.request.iter().any(|(known, _)| *known == name) {
            add(&mut self.request, name, value.text().as_bytes());
        }
    }

    fn time(&mut self, value: &Value<'_>, end: bool) {
        let read = match value {
            Value::Number(number) => unix_time(*number).map(|at| (at, true)),
            Value::Text(text) => iso_time(text)
                .or_else(|| clf_time(text).map(|at| (at, false)))
                .or_else(|| Some((unix_time(text.parse().ok()?)?, true))),
            Value::Other => None,
        };
        self.no_time |= read.is_none();
        // The one with more than whole seconds says it better.
        if let Some((at, fine)) = read
            && self.at.is_none_or(|(_, before)| fine && !before)
        {
            self.at = Some((at, fine));
            self.at_end = end;
        }
    }
}

/// Fields of the response that may stand in a log under their own names.
const KNOWN: &[&str] =
    &["cache_control", "cdn_cache_control", "etag", "expires", "last_modified", "location", "set_cookie", "vary"];

/// Reads a line.
pub fn parse(line: &[u8]) -> Result<Line, &'static str> {
    let text = std::str::from_utf8(line).map_err(|_| "not UTF-8")?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let read = (&mut deserializer).deserialize_map(Object).map_err(|_| "no JSON object")?;
    deserializer.end().map_err(|_| "more than a JSON object")?;
    let (at, fine) = read.at.ok_or(match read.no_time {
        false => "no time (`time`, `time_iso8601`, `msec`, ...)",
        true => "its time is none that we can read (1994-11-06T08:49:37Z, or seconds since 1970)",
    })?;
    let whole = read.whole.and_then(span);
    let at = match whole.filter(|_| read.at_end) {
        Some(whole) if fine => at.saturating_sub(whole.as_nanos() as u64),
        Some(whole) => at.saturating_sub(whole.as_secs() * SECOND),
        None => at,
    };
    let (method, target) = match (read.method, read.target, read.line) {
        (Some(method), Some((rank, target)), _) => {
            let query = read.query.filter(|_| rank < 3 && !target.contains('?'));
            (method, query.map_or_else(|| target.clone(), |query| format!("{target}?{query}")))
        }
        (_, _, Some(line)) => line,
        _ => return Err("no method and target (`method` and `target`, `request`, ...)"),
    };
    Ok(Line {
        at,
        whole_second: !fine,
        took: read.took.and_then(|(_, took)| span(took)).or(whole),
        method,
        https: read.https,
        host: read.host.map(|(_, host)| host.into()),
        target,
        status: read.status.ok_or("no `status` that is a number")?,
        bytes: read.bytes.map_or(0, |(_, bytes)| bytes),
        request: read.request,
        response: read.response,
        says_freshness: read.says_freshness,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const AT: u64 = 784_111_777 * SECOND;

    fn read(line: &str) -> Line {
        parse(line.as_bytes()).unwrap_or_else(|why| panic!("{line}: {why}"))
    }

    #[test]
    fn headwalls_own_lines() {
        let line = read(
            r#"{"bytes":5,"cache":"hit","client":"127.0.0.1","host":"a.test","method":"GET","referer":"","request":"8-1",
            "route":"*","scheme":"https","seconds":0.25,"status":200,"target":"/a?\"x","time":"1994-11-06T08:49:37.5Z",
            "upstream":null,"user_agent":"curl","version":"HTTP/1.1"}"#,
        );
        assert_eq!((line.at, line.whole_second), (AT + SECOND / 2, false), "the time is that of the request");
        assert_eq!((line.status, line.bytes, line.took), (200, 5, Some(Duration::from_millis(250))));
        assert_eq!((line.target.as_str(), line.host.as_deref(), line.https), ("/a?\"x", Some("a.test"), true));
        assert_eq!(line.request.len(), 1, "an empty field is none");
        assert!(!line.says_freshness);
    }

    #[test]
    fn nginxs_usual_names() {
        let line = read(
            r#"{"time_iso8601":"1994-11-06T08:49:37+00:00","msec":"784111777.750","request":"GET /b?c HTTP/2.0",
            "status":"404","body_bytes_sent":"17","bytes_sent":"400","request_time":"0.500",
            "upstream_response_time":"0.001, 0.200","http_host":"b.test","server_name":"_","https":"",
            "http_cookie":"a=b","http_user_agent":"x","remote_user":"-","sent_http_cache_control":"max-age=5",
            "sent_http_vary":"-","upstream_http_cache_control":"max-age=9","tags":["a",{"b":1}]}"#,
        );
        assert_eq!((line.at, line.whole_second), (AT + SECOND / 4, false), "half a second before its end");
        assert_eq!((line.status, line.bytes, line.took), (404, 17, Some(Duration::from_millis(200))));
        assert_eq!((line.method.as_str(), line.target.as_str(), line.host.as_deref()), ("GET", "/b?c", Some("b.test")));
        assert_eq!(line.request.len(), 2);
        assert!(line.says_freshness);
        assert_eq!(line.response.iter().map(|(_, value)| value.to_str().unwrap()).collect::<Vec<_>>(), ["max-age=9"]);
        let line = read(
            r#"{"time_local":"06/Nov/1994:08:49:37 +0000","request_time":2.5,"request_method":"POST","uri":"/x","args":"y=1","status":201}"#,
        );
        assert_eq!((line.at, line.whole_second, line.bytes), (AT - 2 * SECOND, true, 0));
        assert_eq!(line.target, "/x?y=1");
        let line = read(r#"{"ts":784111777,"method":"GET","path":"/x","status":200,"user":"jane","cache_control":""}"#);
        assert_eq!(line.request[0].0, AUTHORIZATION);
        assert!(line.says_freshness && line.response.is_empty(), "said to be nothing");
    }

    #[test]
    fn what_is_missing_is_named() {
        for (line, why) in [
            ("{", "JSON"),
            ("{} {}", "more"),
            ("{}", "time"),
            (r#"{"time":"1994-11-06T08:49:37Z"}"#, "target"),
            (r#"{"time":"1994-11-06T08:49:37Z","method":"GET","target":"/"}"#, "status"),
            (r#"{"time":"soon","method":"GET","target":"/","status":200}"#, "time is none that we can read"),
        ] {
            assert!(parse(line.as_bytes()).unwrap_err().contains(why), "{line}");
        }
    }
}
