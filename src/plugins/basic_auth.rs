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

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use argon2::{Argon2, PasswordHash, PasswordVerifier};
use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use blake2::{Blake2s256, Digest};
use http::header::{AUTHORIZATION, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue};
use parking_lot::Mutex;
use pingora::http::RequestHeader;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::Semaphore;

use crate::exchange::Exchange;
use crate::fields::connection::frames;
use crate::handler::Reply;
use crate::memory::Memory;
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
    users: Arc<BTreeMap<String, Secret>>,
    decoy: Option<Secret>,
    challenge: HeaderValue,
    user_field: Option<HeaderName>,
    forward: bool,
    salt: [u8; 32],
    verdicts: Memory<Box<[u8]>, bool>,
    turns: Semaphore,
    clients: Mutex<HashMap<IpAddr, Arc<Semaphore>>>,
}

/// Who it is.
struct User(String);

const REMEMBERED_FOR: Duration = Duration::from_secs(300);
const PATIENCE: Duration = Duration::from_secs(5);
/// Passwords of one client that are verified, or wait for it, at once.
const EACH: usize = 2;
/// Bytes for what is remembered.
const REMEMBERED: u64 = 1 << 20;

fn is_hash(hash: &str) -> bool {
    let argon = hash.starts_with("$argon2") && PasswordHash::new(hash).is_ok();
    argon || (hash.starts_with("$2") && hash.parse::<bcrypt::HashParts>().is_ok())
}

/// How much work a hash is, roughly: the unknown name is compared with the one that is most.
fn cost(hash: &str) -> u64 {
    if let Ok(parsed) = PasswordHash::new(hash) {
        let number = |name| parsed.params.get_decimal(name).map_or(1, u64::from);
        return number("m") * number("t");
    }
    hash.parse::<bcrypt::HashParts>().map_or(0, |parts| 1 << parts.get_cost().min(40))
}

fn fits(hash: &str, password: &[u8]) -> bool {
    if hash.starts_with("$argon2") {
        let parsed = PasswordHash::new(hash);
        return parsed.is_ok_and(|parsed| Argon2::default().verify_password(password, &parsed).is_ok());
    }
    // bcrypt looks at 72 bytes; what is longer would fit by its beginning.
    let fits = bcrypt::verify(&password[..password.len().min(72)], hash).unwrap_or(false);
    fits && password.len() <= 72
}

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
        let mut salt = [0; 32];
        getrandom::fill(&mut salt).map_err(|error| format!("there is no randomness: {error}"))?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let this = Arc::new(BasicAuth {
            decoy: users.values().max_by_key(|hash| cost(hash.reveal())).cloned(),
            users: Arc::new(users),
            challenge: challenge.ok_or("`realm` has a character that cannot stand in a field")?,
            user_field: user_field.transpose()?,
            forward: settings.forward,
            salt,
            verdicts: Memory::new(REMEMBERED),
            turns: Semaphore::new((cores / 2).max(1)),
            clients: Mutex::default(),
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

impl BasicAuth {
    /// Whether this is the password of this user.
    async fn verify(&self, name: &str, password: &[u8], exchange: &Exchange) -> Result<bool, Reply> {
        let mut digest = Blake2s256::new();
        digest.update(self.salt);
        digest.update((name.len() as u64).to_be_bytes());
        digest.update(name);
        digest.update(password);
        let key: Box<[u8]> = digest.finalize().as_slice().into();
        let now = exchange.received;
        if let Some(verdict) = self.verdicts.get(&key, now) {
            return Ok(verdict);
        }
        let busy = || Reply::text(503, "too many passwords at once").with(RETRY_AFTER, HeaderValue::from_static("5"));
        // One client waits behind itself first, so that a flood from one place keeps nobody else waiting.
        let own = self.client(exchange.client);
        let turns = async { (own.acquire().await, self.turns.acquire().await) };
        let turns = tokio::time::timeout(PATIENCE, turns).await;
        self.leave(exchange.client, &own);
        let Ok((Ok(_own), Ok(_turn))) = turns else { return Err(busy()) };
        // Others with the same credentials came first, most likely.
        if let Some(verdict) = self.verdicts.get(&key, now) {
            return Ok(verdict);
        }
        let (users, name, password) = (self.users.clone(), name.to_owned(), password.to_vec());
        let decoy = self.decoy.clone();
        let verified = tokio::task::spawn_blocking(move || match users.get(&name) {
            Some(hash) => fits(hash.reveal(), &password),
            None => {
                // The same work, so that time does not tell which names there are.
                decoy.map(|hash| fits(hash.reveal(), &password));
                false
            }
        });
        let verdict = verified.await.unwrap_or(false);
        self.verdicts.put(key, verdict, 32, Some(now.after(REMEMBERED_FOR)), now);
        Ok(verdict)
    }
}

impl BasicAuth {
    /// Where a client waits behind itself.
    fn client(&self, address: IpAddr) -> Arc<Semaphore> {
        self.clients.lock().entry(address).or_insert_with(|| Arc::new(Semaphore::new(EACH))).clone()
    }

    /// The last one that waits there closes the door.
    fn leave(&self, address: IpAddr, own: &Arc<Semaphore>) {
        let mut clients = self.clients.lock();
        if Arc::strong_count(own) <= 2 {
            clients.remove(&address);
        }
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
            match self.verify(&name, &password, exchange).await {
                Ok(true) => {
                    exchange.set_note(User(name));
                    return None;
                }
                Ok(false) => {}
                Err(busy) => return Some(busy),
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
    async fn argon2_and_the_name_for_the_app() {
        let hash = argon2_hash("lovelace");
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
    async fn a_file_of_users_and_a_long_password() {
        let hash = bcrypt::hash("x".repeat(72), 4).unwrap();
        let file = std::env::temp_dir().join(format!("headwall-users-{}", std::process::id()));
        std::fs::write(&file, format!("# people\nj\u{f6}rg:{hash}\n")).unwrap();
        let auth = plugin(&format!("basic_auth: {{ users_file: {}, user_field: X-User }}", file.display()));
        for (length, comes_in) in [(72, true), (73, false), (71, false)] {
            let mut visit = auth.visit(&basic(&format!("j\u{f6}rg:{}", "x".repeat(length))));
            assert_eq!(visit.answer().await.is_none(), comes_in, "{length}");
            let told = visit.upstream().headers.get("x-user").map(|name| name.as_bytes().to_vec());
            assert_eq!(told, comes_in.then(|| "j\u{f6}rg".as_bytes().to_vec()));
        }
        std::fs::write(&file, format!("{hash}:ada\n")).unwrap();
        let swapped = complaint(&format!("basic_auth: {{ users_file: {} }}", file.display()));
        assert!(swapped.message.contains(":1: this is not `name:hash`") && !swapped.message.contains("$2"));
        std::fs::remove_file(&file).unwrap();
    }

    fn argon2_hash(password: &str) -> String {
        use argon2::password_hash::{PasswordHasher, SaltString};
        let salt = SaltString::encode_b64(b"some salt").unwrap();
        let cheap = Argon2::new(Default::default(), Default::default(), argon2::Params::new(16, 1, 1, None).unwrap());
        cheap.hash_password(password.as_bytes(), &salt).unwrap().to_string()
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
