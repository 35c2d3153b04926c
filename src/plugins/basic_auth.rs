//! `basic_auth`: names and passwords (RFC 7617).
//!
//! ```yaml
//! basic_auth:
//!   realm: staging
//!   users: { ada: "$2y$10$ICDdtEALRczEbD8eG4FkKuF4ehvAtcWd997qWDlA3HUdgP5Ju6tbG" }
//!   # users_file: /etc/headwall/users         # lines of name:hash, as `htpasswd -nB ada` prints them
//! ```
//!
//! Only hashes of argon2 and bcrypt are taken. A verification is slow on purpose, so what came out is
//! remembered for five minutes, as a keyed hash and never as the password, and at most half of the
//! cores verify at once, two for each client address at most; who would wait longer than 5 s gets 503.
//! Where all hashes are of one kind and cost, a name that is not there takes as long as one that is.
//! Passwords cross the network in the clear unless there is TLS before Headwall. Put a `rate_limit`
//! before it where strangers may try passwords.
//!
//! The credentials end here: `Authorization` is taken off, so that on a cached route all who come in
//! share what is stored, and each request is checked, hits included. `user_field` tells the app
//! who it is and is refused on a cached route. `forward: true` leaves `Authorization` on; such a
//! request is answered from the store only where RFC 9111 §3.5 allows it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue};
use pingora::http::RequestHeader;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::exchange::Exchange;
use crate::fields::connection::frames;
use crate::handler::Reply;
use crate::passwords::{Busy, Passwords, is_hash};
use crate::plugin::{Hooks, OnRequest, OnRequestHead, OnUpstreamRequest, Plugin};
use crate::secret::{self, Secret};

/// Names and passwords.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The hash of each user's password.
    pub users: BTreeMap<String, Secret>,
    /// A file with more of them, one `name:hash` a line.
    pub users_file: Option<PathBuf>,
    /// What browsers show when they ask.
    pub realm: String,
    /// A field that tells the app the user's name.
    pub user_field: Option<String>,
    /// Whether the app sees the credentials.
    pub forward: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            users: BTreeMap::new(),
            users_file: None,
            realm: "restricted".into(),
            user_field: None,
            forward: false,
        }
    }
}

/// The plugin.
pub struct BasicAuth {
    passwords: Passwords,
    challenge: HeaderValue,
    user_field: Option<HeaderName>,
    forward: bool,
}

/// Who it is.
struct User(String);

impl Plugin for BasicAuth {
    const NAME: &'static str = "basic_auth";
    type Settings = Settings;

    fn build(settings: Settings) -> Result<Hooks, String> {
        let mut users = settings.users;
        if let Some(file) = &settings.users_file {
            for (number, line) in secret::lines(file)? {
                // The complaint tells no half of the line: they may have been swapped.
                let wrong = |what: &str| format!("{}:{number}: {what}", file.display());
                let pair = line.split_once(':').filter(|(name, hash)| !name.is_empty() && is_hash(hash));
                let (name, hash) = pair.ok_or_else(|| {
                    wrong("this is not `name:hash` with a hash of argon2 or bcrypt, as `htpasswd -nB name` prints it")
                })?;
                if users.insert(name.to_owned(), Secret::from(hash.to_owned())).is_some() {
                    return Err(wrong("this user is there twice"));
                }
            }
        }
        if users.is_empty() {
            return Err("nobody could come in; name `users`, or a `users_file`".into());
        }
        if let Some((name, _)) = users.iter().find(|(name, _)| name.is_empty() || name.contains(':')) {
            return Err(format!("`{name}` is no name of a user; it has at least one character, and no colon"));
        }
        if let Some((name, _)) = users.iter().find(|(_, hash)| !is_hash(hash.reveal())) {
            return Err(format!("the user `{name}` has no argon2 or bcrypt hash; `htpasswd -nB {name}` makes one"));
        }
        let plain = settings.realm.bytes().all(|byte| matches!(byte, b' '..=b'~') && !b"\"\\".contains(&byte));
        let challenge = format!("Basic realm=\"{}\", charset=\"UTF-8\"", settings.realm).parse().ok().filter(|_| plain);
        let user_field = settings.user_field.map(|name| {
            name.parse().ok().filter(|_| !frames(&name)).ok_or_else(|| format!("`{name}` is no field name for this"))
        });
        let this = Arc::new(BasicAuth {
            passwords: Passwords::new(users)?,
            challenge: challenge.ok_or("`realm` has a character that cannot stand in a field")?,
            user_field: user_field.transpose()?,
            forward: settings.forward,
        });
        let mut hooks = Hooks::new().request(this.clone()).request_head(this.clone());
        // A file may say something else after a reload.
        if settings.users_file.is_none() {
            hooks = hooks.kept();
        }
        if this.user_field.is_some() {
            hooks = hooks.upstream_request(this).unshareable("`user_field` tells the origin who asks");
        }
        Ok(hooks)
    }
}

/// Name and password, as RFC 7617 §2 wraps them.
fn credentials(request: &RequestHeader) -> Option<(String, Vec<u8>)> {
    let value = request.headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, rest) = value.split_once(' ')?;
    let pair = STANDARD.decode(rest.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    Some((String::from_utf8(pair[..colon].to_vec()).ok()?, pair[colon + 1..].to_vec()))
}

#[async_trait]
impl OnRequest for BasicAuth {
    async fn on_request(&self, request: &RequestHeader, exchange: &mut Exchange) -> Option<Reply> {
        if let Some((name, password)) = credentials(request) {
            match self.passwords.verify(&name, &password, exchange.client, exchange.received).await {
                Ok(true) => {
                    exchange.set_note(User(name));
                    return None;
                }
                Ok(false) => {}
                Err(Busy) => {
                    let busy = Reply::text(503, "too many passwords at once");
                    return Some(busy.with(RETRY_AFTER, HeaderValue::from_static("5")));
                }
            }
        }
        Some(Reply::text(401, "a name and a password are needed here").with(WWW_AUTHENTICATE, self.challenge.clone()))
    }
}

impl OnRequestHead for BasicAuth {
    fn on_request_head(&self, request: &mut RequestHeader, _: &mut Exchange) {
        if !self.forward {
            request.remove_header(&AUTHORIZATION);
        }
        if let Some(name) = &self.user_field {
            // Some apps take `X_User` for `X-User`.
            let same = |other: &HeaderName| other.as_str().replace('_', "-") == name.as_str().replace('_', "-");
            for other in request.headers.keys().filter(|other| same(other)).cloned().collect::<Vec<_>>() {
                request.remove_header(&other);
            }
        }
    }
}

impl OnUpstreamRequest for BasicAuth {
    fn on_upstream_request(&self, request: &mut RequestHeader, exchange: &mut Exchange) {
        let user = exchange.note::<User>().and_then(|User(name)| HeaderValue::from_bytes(name.as_bytes()).ok());
        if let (Some(name), Some(user)) = (&self.user_field, user) {
            let _ = request.insert_header(name, user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{complaint, example, plugin};

    fn basic(pair: &str) -> String {
        format!("GET /\nAuthorization: Basic {}", STANDARD.encode(pair))
    }

    #[tokio::test]
    async fn who_knows_the_password_comes_in() {
        let auth = example(include_str!("basic_auth.rs"));
        for (request, comes_in) in [
            (basic("ada:lovelace"), true),
            (basic("ada:lovelace"), true),
            (basic("ada:Lovelace"), false),
            (basic("ada:"), false),
            (basic("bob:lovelace"), false),
            (basic("adalovelace"), false),
            ("GET /".into(), false),
            ("GET /\nAuthorization: Bearer YWRhOmxvdmVsYWNl".into(), false),
            ("GET /\nAuthorization: Basic %%%".into(), false),
        ] {
            let mut visit = auth.visit(&request);
            let answer = visit.answer().await;
            assert_eq!(answer.as_ref().map(|answer| answer.status()), (!comes_in).then_some(401), "{request}");
            if let Some(answer) = answer {
                assert_eq!(answer.field("www-authenticate"), "Basic realm=\"staging\", charset=\"UTF-8\"");
            }
            assert!(!visit.head().headers.contains_key("authorization"));
        }
    }

    #[tokio::test]
    async fn the_app_may_be_told_the_name() {
        let hash = bcrypt::hash("lovelace", 4).unwrap();
        let auth =
            plugin(&format!("basic_auth: {{ users: {{ ada: \"{hash}\" }}, user_field: X-User, forward: true }}"));
        let mut visit = auth.visit(&format!("{}\nX-User: root\nX_User: root", basic("ada:lovelace")));
        assert!(visit.answer().await.is_none());
        assert!(visit.head().headers.contains_key("authorization"));
        let upstream = visit.upstream();
        assert_eq!(upstream.headers["x-user"], "ada");
        assert!(!upstream.headers.contains_key("x_user"), "nobody names himself");
        assert!(auth.why_unshareable().is_some());
    }

    #[tokio::test]
    async fn users_may_stand_in_a_file() {
        let hash = bcrypt::hash("lovelace", 4).unwrap();
        let file = std::env::temp_dir().join(format!("headwall-users-{}", std::process::id()));
        std::fs::write(&file, format!("# people\nj\u{f6}rg:{hash}\n")).unwrap();
        let auth = plugin(&format!("basic_auth: {{ users_file: {}, user_field: X-User }}", file.display()));
        let mut visit = auth.visit(&basic("j\u{f6}rg:lovelace"));
        assert!(visit.answer().await.is_none());
        assert_eq!(visit.upstream().headers["x-user"].as_bytes(), "j\u{f6}rg".as_bytes());
        std::fs::write(&file, format!("{hash}:ada\n")).unwrap();
        let swapped = complaint(&format!("basic_auth: {{ users_file: {} }}", file.display()));
        assert!(swapped.message.contains(":1: this is not `name:hash`") && !swapped.message.contains("$2"));
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn mistakes_are_errors_that_help_and_show_no_secret() {
        for (settings, told) in [
            ("{ users: { ada: lovelace } }", "the user `ada` has no argon2 or bcrypt hash"),
            ("{ users: { ada: \"$apr1$lovelace\" } }", "has no argon2 or bcrypt hash"),
            ("{ users: {} }", "nobody could come in"),
            ("{ users_file: /nonexistent }", "/nonexistent cannot be read"),
            ("{ users: { \"a:b\": x } }", "no colon"),
        ] {
            let complaint = complaint(&format!("basic_auth: {settings}"));
            assert!(complaint.message.contains(told), "{settings}: {complaint:?}");
            assert!(!complaint.message.contains("lovelace"));
        }
    }
}
