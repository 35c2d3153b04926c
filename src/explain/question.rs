//! What is asked: an address and fields, as they stand on the command line.

use std::borrow::Cow;
use std::path::PathBuf;

use clap::Args;
use http::HeaderName;

use crate::fields::authority::is_authority;

/// What the command is told.
#[derive(Args)]
pub struct Explain {
    /// The configuration.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The address as a client would write it; only its name matters, not where it leads.
    #[arg(value_name = "URL")]
    pub url: String,
    /// A request field, such as 'Cookie: lang=de'; may be given several times. Values of credentials are not shown.
    #[arg(short = 'H', long = "header", value_name = "FIELD: VALUE")]
    pub fields: Vec<String>,
    /// The method; one that changes something does so, and is asked once.
    #[arg(long, default_value = "GET")]
    pub method: String,
}

/// One request, without what is always sent.
#[derive(Debug)]
pub struct Question {
    /// It counts as one that came by https.
    pub https: bool,
    /// The `Host`.
    pub host: String,
    /// The target in origin form.
    pub target: String,
    /// The method.
    pub method: String,
    /// The fields, with names in lower case.
    pub fields: Vec<(String, String)>,
}

/// Whether the value of this field is for nobody's eyes.
pub fn is_secret(name: &str) -> bool {
    let parts = ["authorization", "cookie", "token", "secret", "passw", "api-key", "apikey", "session"];
    parts.iter().any(|part| name.contains(part))
}

/// The target as browsers send it: what is not ASCII as `%XX`.
fn escaped(target: &str) -> String {
    let escape = |byte: u8| if byte.is_ascii() { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    target.bytes().map(escape).collect()
}

/// The host as browsers send it: without the port that goes without saying.
fn without_default_port(host: &str, https: bool) -> &str {
    host.strip_suffix(if https { ":443" } else { ":80" }).unwrap_or(host)
}

/// A request field of the command line.
fn field(line: &str) -> Result<(String, String), String> {
    const EXAMPLE: &str = "write one such as -H 'Cookie: lang=de'";
    // What may follow is perhaps a secret.
    let Some((name, value)) = line.split_once(':') else {
        return Err(format!("a request field has a name, a colon and a value; {EXAMPLE}"));
    };
    let (name, value) = (name.trim().to_ascii_lowercase(), value.trim());
    if name.parse::<HeaderName>().is_err() {
        return Err(format!("`{name}` is no name of a request field; {EXAMPLE}"));
    }
    if value.bytes().any(|byte| byte != b'\t' && byte.is_ascii_control()) {
        return Err(format!("the value of `{name}` has a control character; {EXAMPLE}"));
    }
    if name == "host" {
        return Err("the host is the one in the address".to_owned());
    }
    if ["connection", "content-length", "transfer-encoding"].contains(&name.as_str()) || name.starts_with("x-headwall-")
    {
        return Err(format!("`{name}` is sent as it has to be; {EXAMPLE}"));
    }
    Ok((name, value.to_owned()))
}

impl Question {
    /// Reads the command line's words; `Err` says what would be right.
    pub fn new(url: &str, method: &str, lines: &[String]) -> Result<Self, String> {
        let wrong = |why: &str| {
            // A password may stand before the `@`.
            let shown = if url.contains('@') { Cow::Borrowed("this") } else { Cow::Owned(format!("`{url}`")) };
            format!("{shown} is no address: {why}; write one such as https://shop.example.com/basket?x=1")
        };
        let (https, rest) = match url.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            _ => return Err(wrong("it begins with http:// or https://")),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let (host, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if host.contains('@') {
            return Err(wrong("a name and a password are given with -H 'Authorization: Basic ...'"));
        }
        if !host.is_ascii() {
            return Err(wrong("a host that is not ASCII has another spelling, which begins with xn--"));
        }
        let port = host.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.contains(']'));
        if !is_authority(host.as_bytes()) || port.is_some_and(|port| port.parse::<u16>().is_err()) {
            return Err(wrong("it has no host, or one that is none"));
        }
        let target = escaped(target);
        if !target.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(wrong("a blank is written as %20"));
        }
        if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_uppercase()) {
            return Err(format!("`{method}` is no method; they are written in capitals, such as GET"));
        }
        let fields = lines.iter().map(|line| field(line)).collect::<Result<_, _>>()?;
        let target = if target.starts_with('/') { target } else { format!("/{target}") };
        let host = without_default_port(host, https).to_owned();
        Ok(Question { https, host, target, method: method.to_owned(), fields })
    }

    /// The address.
    pub fn url(&self) -> String {
        format!("{}://{}{}", if self.https { "https" } else { "http" }, self.host, self.target)
    }

    /// The same by somebody of whom nothing is known; `None` if this is such a one.
    pub fn by_a_stranger(&self) -> Option<Question> {
        let personal = ["authorization", "cookie"];
        let kept: Vec<_> = self.fields.iter().filter(|(name, _)| !personal.contains(&name.as_str())).cloned().collect();
        (kept.len() < self.fields.len()).then(|| Question {
            https: self.https,
            host: self.host.clone(),
            target: self.target.clone(),
            method: self.method.clone(),
            fields: kept,
        })
    }

    /// Whether asking twice does what asking once does.
    pub fn is_safe(&self) -> bool {
        ["GET", "HEAD"].contains(&self.method.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (url, host, target) in [
            ("http://a.test", "a.test", "/"),
            ("HTTPS://a.test:81/x?y#z", "a.test:81", "/x?y"),
            ("http://a.test?y", "a.test", "/?y"),
            ("http://[::1]:80/%2F", "[::1]", "/%2F"),
            ("https://a.test:443/", "a.test", "/"),
            ("http://a.test:443/", "a.test:443", "/"),
            ("http://a.test/caf\u{e9}?\u{fc}=1", "a.test", "/caf%C3%A9?%C3%BC=1"),
        ] {
            let asked = Question::new(url, "GET", &[]).unwrap();
            assert_eq!((asked.host.as_str(), asked.target.as_str()), (host, target), "{url}");
            assert_eq!(asked.https, url.to_ascii_lowercase().starts_with("https"));
        }
        for (url, why) in [
            ("", "begins with http"),
            ("/x", "begins with http"),
            ("a.test/x", "begins with http"),
            ("ftp://a.test/", "begins with http"),
            ("http://", "no host"),
            ("http://a.test:99999/", "no host"),
            ("http://a.test:/", "no host"),
            ("http://a\r\nb/", "no host"),
            ("http://\u{e4}.test/", "xn--"),
            ("http://me:hush@a.test/", "Authorization"),
            ("http://a.test/a b", "%20"),
        ] {
            let told = Question::new(url, "GET", &[]).unwrap_err();
            assert!(told.contains(why) && told.contains("https://shop.example.com"), "{url}: {told}");
            assert!(!told.contains("hush"), "{told}");
        }
        assert!(Question::new("http://a.test/", "get", &[]).is_err());
    }

    #[test]
    fn fields() {
        for (line, why) in [
            ("X", "a colon"),
            (": y", "no name"),
            ("X Y: z", "no name"),
            ("Host: b", "in the address"),
            ("X: a\r\nY: b", "control character"),
            ("Content-Length: 5", "as it has to be"),
            ("X-Headwall-Token: x", "as it has to be"),
        ] {
            let told = Question::new("http://a.test/", "GET", &[line.to_owned()]).unwrap_err();
            assert!(told.contains(why), "{line}: {told}");
        }
        let lines = ["Cookie: a=b".to_owned(), "Accept: x".to_owned()];
        let stranger = Question::new("http://a.test/", "GET", &lines).unwrap().by_a_stranger().unwrap();
        assert_eq!(stranger.fields, [("accept".to_owned(), "x".to_owned())]);
        assert!(stranger.by_a_stranger().is_none());
        for name in ["cookie", "proxy-authorization", "x-api-key", "x-auth-token", "x-forwarded-access-token"] {
            assert!(is_secret(name), "{name}");
        }
        assert!(!is_secret("user-agent") && !is_secret("accept") && !is_secret("x-forwarded-user"));
    }
}
