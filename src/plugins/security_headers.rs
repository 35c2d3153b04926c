//! `security_headers`: the fields that tell browsers to be careful.
//!
//! ```yaml
//! security_headers:
//!   hsts: 180d                                  # only on answers by https
//!   csp: "default-src 'self'; img-src 'self' data:"
//!   frame: deny                                 # or sameorigin, off
//!   remove: [X-Powered-By, Server]
//! ```
//!
//! Without any setting a response gets `X-Content-Type-Options: nosniff`, `X-Frame-Options: sameorigin`
//! and `Referrer-Policy: strict-origin-when-cross-origin`. What the app sets itself stays as it is;
//! `remove` takes fields off whoever set them.
//!
//! On a cached route they are put on as the response leaves, hits and error pages included; what is
//! stored does not have them, so that a changed setting counts at once.

use std::sync::Arc;

use http::header::{
    CONTENT_SECURITY_POLICY, REFERRER_POLICY, STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderName, HeaderValue};
use pingora::http::{RequestHeader, ResponseHeader};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::exchange::Exchange;
use crate::fields::connection::frames;
use crate::plugin::{Hooks, OnResponse, Plugin};
use crate::units::Span;

/// The fields that tell browsers to be careful.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// `Strict-Transport-Security` for so long, on answers by https; none when absent.
    pub hsts: Option<Span>,
    /// Whether it holds for all names below this one too.
    pub hsts_subdomains: bool,
    /// `Content-Security-Policy`; none when absent.
    pub csp: Option<String>,
    /// `X-Frame-Options`.
    pub frame: Frame,
    /// `Referrer-Policy`; an empty text for none.
    pub referrer: String,
    /// `Permissions-Policy`; none when absent.
    pub permissions: Option<String>,
    /// `X-Content-Type-Options: nosniff`.
    pub nosniff: bool,
    /// Fields to take off.
    pub remove: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            hsts: None,
            hsts_subdomains: false,
            csp: None,
            frame: Frame::Sameorigin,
            referrer: "strict-origin-when-cross-origin".into(),
            permissions: None,
            nosniff: true,
            remove: Vec::new(),
        }
    }
}

/// Who may show the page in a frame.
#[derive(Deserialize, Serialize, JsonSchema, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Frame {
    /// Nobody.
    Deny,
    /// Pages of the same origin.
    Sameorigin,
    /// The field is not set.
    Off,
}

/// The plugin.
pub struct SecurityHeaders {
    always: Vec<(HeaderName, HeaderValue)>,
    hsts: Option<HeaderValue>,
    remove: Vec<HeaderName>,
}

impl Plugin for SecurityHeaders {
    const NAME: &'static str = "security_headers";
    type Settings = Settings;

    fn build(settings: Settings) -> Result<Hooks, String> {
        let value = |key: &str, text: &str| {
            HeaderValue::from_str(text).map_err(|_| format!("`{key}` cannot stand in a field: {text:?}"))
        };
        let mut always = Vec::new();
        if settings.nosniff {
            always.push((X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")));
        }
        match settings.frame {
            Frame::Deny => always.push((X_FRAME_OPTIONS, HeaderValue::from_static("DENY"))),
            Frame::Sameorigin => always.push((X_FRAME_OPTIONS, HeaderValue::from_static("SAMEORIGIN"))),
            Frame::Off => {}
        }
        let texts = [
            ("referrer", REFERRER_POLICY, Some(&settings.referrer).filter(|text| !text.is_empty())),
            ("csp", CONTENT_SECURITY_POLICY, settings.csp.as_ref()),
            ("permissions", HeaderName::from_static("permissions-policy"), settings.permissions.as_ref()),
        ];
        for (key, name, text) in texts {
            if let Some(text) = text {
                always.push((name, value(key, text)?));
            }
        }
        if settings.hsts.is_none() && settings.hsts_subdomains {
            return Err("`hsts_subdomains` does nothing without `hsts`, such as 180d".into());
        }
        if settings.hsts.is_some_and(|span| span.0.as_secs() == 0) {
            return Err("`hsts` is at least 1s; leave it out for none".into());
        }
        let hsts = settings.hsts.map(|span| {
            let subdomains = if settings.hsts_subdomains { "; includeSubDomains" } else { "" };
            value("hsts", &format!("max-age={}{subdomains}", span.0.as_secs()))
        });
        let parse = |name: &String| {
            name.parse().ok().filter(|_| !frames(name)).ok_or_else(|| format!("`{name}` is no field to take off"))
        };
        let remove: Vec<HeaderName> = settings.remove.iter().map(parse).collect::<Result<_, String>>()?;
        if let Some((name, _)) = always.iter().find(|(name, _)| remove.contains(name)) {
            return Err(format!("`{name}` stands in `remove` and would be set again; switch its setting off instead"));
        }
        Ok(Hooks::new().response(Arc::new(SecurityHeaders { always, hsts: hsts.transpose()?, remove })))
    }
}

impl OnResponse for SecurityHeaders {
    fn on_response(&self, _: &RequestHeader, response: &mut ResponseHeader, exchange: &mut Exchange) {
        for name in &self.remove {
            response.remove_header(name);
        }
        let hsts = self.hsts.iter().filter(|_| exchange.scheme == "https");
        let hsts = hsts.map(|value| (&STRICT_TRANSPORT_SECURITY, value));
        for (name, value) in self.always.iter().map(|(name, value)| (name, value)).chain(hsts) {
            if !response.headers.contains_key(name) {
                let _ = response.insert_header(name, value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{complaint, example, plugin};

    #[test]
    fn what_the_app_sets_stays() {
        let plugin = example(include_str!("security_headers.rs"));
        let out = plugin.visit("GET /").response("200\nX-Powered-By: Express\nX-Frame-Options: ALLOWALL", &[]);
        for (name, expected) in [
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "ALLOWALL"),
            ("referrer-policy", "strict-origin-when-cross-origin"),
            ("content-security-policy", "default-src 'self'; img-src 'self' data:"),
            ("x-powered-by", ""),
            ("strict-transport-security", ""),
        ] {
            assert_eq!(out.field(name), expected, "{name}");
        }
        let secure = plugin.visit("GET /").by_proxy("https").response("404", &[]);
        assert_eq!(secure.field("strict-transport-security"), "max-age=15552000");
        assert_eq!(secure.field("x-frame-options"), "DENY");
    }

    #[test]
    fn everything_can_be_left_out() {
        let none = plugin("security_headers: { nosniff: false, frame: off, referrer: \"\" }");
        assert_eq!(none.visit("GET /").response("200", &[]).field("referrer-policy"), "");
        for (settings, told) in [
            ("{ hsts_subdomains: true }", "does nothing without `hsts`"),
            ("{ csp: \"a\\nb\" }", "`csp` cannot stand in a field"),
            ("{ remove: [Content-Length] }", "no field to take off"),
            ("{ frame: allow }", "unknown variant `allow`"),
            ("{ hsts: 500ms }", "at least 1s"),
            ("{ remove: [X-Frame-Options] }", "would be set again"),
        ] {
            let complaint = complaint(&format!("security_headers: {settings}"));
            assert!(complaint.message.contains(told), "{settings}: {complaint:?}");
        }
    }
}
