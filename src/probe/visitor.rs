//! One visitor: a request on a connection of its own, and what came back, within bounds.

use std::io::Read;
use std::time::Duration;

use http::header::{ACCEPT_ENCODING, AGE, CONTENT_ENCODING, COOKIE, SET_COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue};
use ureq::Agent;
use ureq::tls::TlsConfig;

/// How long one request may take.
const PATIENCE: Duration = Duration::from_secs(15);
/// Content is read so far.
const CONTENT: u64 = 1 << 20;
/// A response head may be so long.
const HEAD: usize = 128 << 10;

/// Asks.
pub struct Visitors {
    agent: Agent,
    fields: Vec<(HeaderName, HeaderValue)>,
    /// Requests sent so far.
    pub sent: usize,
}

/// What is asked.
#[derive(Default)]
pub struct Request<'a> {
    /// Where.
    pub url: String,
    /// Fields beside those that every visitor sends, which they replace.
    pub fields: Vec<(HeaderName, HeaderValue)>,
    /// Content of the GET.
    pub content: Option<&'a str>,
}

/// What came back.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The fields.
    pub fields: HeaderMap,
    /// The content, up to a limit.
    pub content: Vec<u8>,
}

impl Visitors {
    /// Visitors that all send these fields.
    pub fn new(fields: Vec<(HeaderName, HeaderValue)>, insecure: bool) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_global(Some(PATIENCE))
            .max_response_header_size(HEAD)
            .max_idle_connections(0)
            .proxy(None)
            .user_agent(concat!("headwall-probe/", env!("CARGO_PKG_VERSION")))
            .tls_config(TlsConfig::builder().disable_verification(insecure).build());
        Visitors { agent: config.build().into(), fields, sent: 0 }
    }

    /// Sends one request.
    pub fn ask(&mut self, request: &Request<'_>) -> Result<Answer, String> {
        self.sent += 1;
        let fields = together(&self.fields, &request.fields);
        let mut get = self.agent.get(&request.url);
        if let Some(there) = get.headers_mut() {
            there.extend(fields);
        }
        let response = match request.content {
            None => get.call(),
            Some(content) => {
                get.force_send_body().content_type("application/x-www-form-urlencoded").send(content.as_bytes())
            }
        };
        let (head, mut body) = response.map_err(|error| error.to_string())?.into_parts();
        let mut content = Vec::new();
        body.as_reader().take(CONTENT).read_to_end(&mut content).map_err(|error| error.to_string())?;
        Ok(Answer { status: head.status.as_u16(), fields: head.headers, content })
    }
}

/// What all visitors send, and what one sends beside it or instead of it.
fn together(all: &[(HeaderName, HeaderValue)], own: &[(HeaderName, HeaderValue)]) -> HeaderMap {
    let mut fields = HeaderMap::new();
    // What comes packed cannot be searched.
    fields.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    for (name, _) in all {
        fields.remove(name);
    }
    for (name, value) in all {
        fields.append(name.clone(), value.clone());
    }
    for (name, value) in own {
        fields.insert(name.clone(), value.clone());
    }
    // Cookies stand beside each other in one line, so that a visitor with a canary is still let in.
    let theirs = pairs(own);
    let given = pairs(all).into_iter().filter(|(name, _)| !theirs.iter().any(|(known, _)| known == name));
    let cookies: Vec<_> = given.chain(theirs.iter().copied()).map(|(_, pair)| pair).collect();
    if let Some(cookies) = HeaderValue::from_bytes(&cookies.join(&b"; "[..])).ok().filter(|value| !value.is_empty()) {
        fields.insert(COOKIE, cookies);
    }
    fields
}

/// The cookies in these fields, each with its name.
fn pairs(fields: &[(HeaderName, HeaderValue)]) -> Vec<(&[u8], &[u8])> {
    let lines = fields.iter().filter(|(name, _)| *name == COOKIE);
    let pairs = lines.flat_map(|(_, value)| value.as_bytes().split(|byte| *byte == b';')).map(<[u8]>::trim_ascii);
    let named = pairs.map(|pair| (pair.split(|byte| *byte == b'=').next().unwrap_or_default(), pair));
    named.filter(|(_, pair)| !pair.is_empty()).collect()
}

impl Answer {
    /// Where this text stands in the answer, whatever its case: the names of fields, and `content`.
    pub fn places(&self, needle: &str) -> Vec<String> {
        let needle = needle.to_ascii_lowercase().into_bytes();
        let holds = |text: &[u8]| memchr::memmem::find(&text.to_ascii_lowercase(), &needle).is_some();
        let mut places: Vec<_> = self
            .fields
            .iter()
            .filter(|(name, value)| holds(name.as_str().as_bytes()) || holds(value.as_bytes()))
            .map(|(name, _)| format!("`{name}`"))
            .collect();
        places.dedup();
        if holds(&self.content) {
            places.push("the content".to_owned());
        }
        places
    }

    /// The coding of the content, if it has one.
    pub fn coding(&self) -> Option<String> {
        let coding = String::from_utf8_lossy(self.fields.get(CONTENT_ENCODING)?.as_bytes()).into_owned();
        (!coding.eq_ignore_ascii_case("identity")).then_some(coding)
    }

    /// The cookies that it sets, with their values.
    pub fn cookies(&self) -> Vec<(String, String)> {
        let lines = self.fields.get_all(SET_COOKIE).iter();
        lines
            .filter_map(|line| {
                let pair = String::from_utf8_lossy(line.as_bytes());
                let (name, value) = pair.split(';').next()?.split_once('=')?;
                Some((name.trim().to_owned(), value.trim().to_owned()))
            })
            .collect()
    }

    /// The field that says that it came from a cache.
    pub fn hit(&self) -> Option<String> {
        let said = |name: &str| {
            self.fields.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect::<Vec<_>>().join(", ")
        };
        let status = said("cache-status");
        // RFC 9211: `hit` is a parameter of a cache.
        if status.split(',').any(|cache| cache.split(';').skip(1).any(|word| word.trim() == "hit")) {
            return Some(format!("Cache-Status: {status}"));
        }
        for name in [
            "x-cache",
            "x-cache-status",
            "cf-cache-status",
            "x-nginx-cache",
            "x-proxy-cache",
            "x-vercel-cache",
            "x-drupal-cache",
        ] {
            let value = said(name);
            // Also in `TCP_HIT`, `RefreshHit from a`; and nginx and Cloudflare say so that it was kept for long.
            let kept = |word: &str| word.ends_with("hit") || matches!(word, "stale" | "updating" | "revalidated");
            if value.to_ascii_lowercase().split(|c: char| !c.is_ascii_alphanumeric()).any(kept) {
                return Some(format!("{name}: {value}"));
            }
        }
        let age = said(AGE.as_str());
        if age.trim().parse::<u64>().is_ok_and(|age| age > 0) {
            return Some(format!("Age: {age}"));
        }
        // Varnish names the request that brought it in, too.
        let varnish = said("x-varnish");
        (varnish.split_whitespace().count() == 2).then(|| format!("x-varnish: {varnish}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(lines: &str, content: &str) -> Answer {
        Answer { status: 200, fields: crate::fields::fields(lines), content: content.as_bytes().to_vec() }
    }

    #[test]
    fn canaries_are_found_wherever_they_stand() {
        let answer =
            answer("location: https://HWP12.example/\nset-cookie: a=hwp12\nset-cookie: b=hwp12", "<a href=/Hwp12>");
        assert_eq!(answer.places("hwp12"), ["`location`", "`set-cookie`", "the content"]);
        assert!(answer.places("hwp13").is_empty());
        assert_eq!(answer.cookies(), [("a".into(), "hwp12".into()), ("b".into(), "hwp12".into())]);
    }

    #[test]
    fn what_all_send_stays_beside_what_one_sends() {
        let list = |pairs: &[(&str, &str)]| -> Vec<(HeaderName, HeaderValue)> {
            pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
        };
        let all = list(&[("cookie", "in=1; lang=en"), ("cookie", "b=2"), ("x-a", "1"), ("x-a", "2"), ("x-b", "1")]);
        let fields = together(&all, &list(&[("cookie", "lang=canary"), ("x-b", "canary")]));
        let values = |name: &str| fields.get_all(name).iter().map(|value| value.to_str().unwrap()).collect::<Vec<_>>();
        assert_eq!(values("cookie"), ["in=1; b=2; lang=canary"]);
        assert_eq!((values("x-a"), values("x-b")), (vec!["1", "2"], vec!["canary"]));
        assert_eq!(values("accept-encoding"), ["identity"]);
        let fields = together(&list(&[("accept-encoding", "gzip"), ("cookie", "a=1"), ("cookie", "b=2")]), &[]);
        assert_eq!(fields.get_all("accept-encoding").iter().collect::<Vec<_>>(), ["gzip"]);
        assert_eq!(fields.get_all("cookie").iter().collect::<Vec<_>>(), ["a=1; b=2"], "in one line");
    }

    #[test]
    fn caches_say_hit_in_many_ways() {
        for (lines, hit) in [
            ("cache-status: headwall; hit; ttl=5", true),
            ("cache-status: origin; fwd=miss, \"edge\"; hit", true),
            ("cache-status: headwall; fwd=uri-miss; stored", false),
            ("x-cache: HIT from b", true),
            ("x-cache: Miss from a", false),
            ("x-cache: TCP_HIT", true),
            ("x-cache: RefreshHit from cloudfront", true),
            ("x-cache: not whitelisted", false),
            ("x-cache-status: UPDATING", true),
            ("cf-cache-status: HIT", true),
            ("age: 0", false),
            ("age: 7", true),
            ("x-varnish: 12", false),
            ("x-varnish: 12 7", true),
            ("", false),
        ] {
            assert_eq!(answer(lines, "").hit().is_some(), hit, "{lines}");
        }
    }
}
