//! What must not be seen: tokens and password hashes.
//!
//! They are never printed, not by `Debug` either, and compared in a time that tells nothing.

use std::fmt;
use std::path::Path;

use schemars::JsonSchema;
use serde::de::{self, Deserialize, Deserializer, Visitor};
use subtle::ConstantTimeEq;

/// A secret text.
#[derive(Clone, PartialEq, Eq, JsonSchema)]
#[schemars(with = "String", extend("writeOnly" = true))]
pub struct Secret(String);

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        // The usual complaint about a number tells the number.
        fn quote<E: de::Error>() -> Result<Secret, E> {
            Err(E::custom("a text is expected here; put it in quotes"))
        }
        impl<'de> Visitor<'de> for Text {
            type Value = Secret;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Secret, E> {
                Ok(Secret(text.to_owned()))
            }
            fn visit_bool<E: de::Error>(self, _: bool) -> Result<Secret, E> {
                quote()
            }
            fn visit_i64<E: de::Error>(self, _: i64) -> Result<Secret, E> {
                quote()
            }
            fn visit_u64<E: de::Error>(self, _: u64) -> Result<Secret, E> {
                quote()
            }
            fn visit_i128<E: de::Error>(self, _: i128) -> Result<Secret, E> {
                quote()
            }
            fn visit_u128<E: de::Error>(self, _: u128) -> Result<Secret, E> {
                quote()
            }
            fn visit_f64<E: de::Error>(self, _: f64) -> Result<Secret, E> {
                quote()
            }
        }
        deserializer.deserialize_any(Text)
    }
}

/// Whether a key with this name holds secrets, or was probably meant to: `tokens`, `user`, `api_key`. Names of
/// files and fields are none.
pub fn holds_secrets(key: &str) -> bool {
    const PARTS: &[&str] = &["token", "secret", "passw", "user", "usr", "hash", "api_key", "api-key", "apikey"];
    const FIELDS: &[&str] = &["authorization", "proxy-authorization", "cookie", "set-cookie"];
    let key = key.to_ascii_lowercase();
    let misspelt = |known: &&str| key.len() > 3 && strsim::damerau_levenshtein(&key, known) <= 2;
    let named = PARTS.iter().any(|part| key.contains(part)) || FIELDS.contains(&key.as_str());
    let named = named || ["tokens", "users", "password", "secret"].iter().any(misspelt);
    named && !key.ends_with("_file") && !key.ends_with("_field")
}

/// Whether a text looks like the hash of a password, or has one behind a colon or a quote.
pub fn looks_like_a_hash(text: &str) -> bool {
    const STARTS: &[&str] = &["$2a$", "$2b$", "$2x$", "$2y$", "$argon2", "$apr1$", "$5$", "$6$", "$y$", "{SHA"];
    let found = |start: &&str| {
        text.match_indices(*start)
            .any(|(at, _)| at == 0 || matches!(text.as_bytes()[at - 1], b':' | b'"' | b'\'' | b' '))
    };
    STARTS.iter().any(found)
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Secret(text)
    }
}

impl Secret {
    /// The text itself, for whoever has to work with it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether these bytes are the secret.
    pub fn is(&self, bytes: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(bytes).into()
    }

    /// A bearer token has at least 16 characters, all visible ASCII.
    pub fn is_token(&self) -> bool {
        self.0.len() >= 16 && self.0.bytes().all(|byte| byte.is_ascii_graphic())
    }
}

/// The lines of a file of secrets, with their numbers; blank ones and those that begin with `#` say nothing.
/// A complaint names the file and never what is in it.
pub fn lines(path: &Path) -> Result<Vec<(usize, String)>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim().to_owned()));
    let lines: Vec<_> = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).collect();
    if lines.is_empty() { Err(format!("{} is empty", path.display())) } else { Ok(lines) }
}

/// The one token that a file has.
pub fn only_token(path: &Path) -> Result<Secret, String> {
    let mut lines = lines(path)?.into_iter().map(|(_, line)| Secret::from(line));
    match (lines.next().filter(Secret::is_token), lines.next()) {
        (Some(token), None) => Ok(token),
        _ => Err(format!("{}: one token is expected, of at least 16 characters, all visible ASCII", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_compared_and_never_shown() {
        let secret = Secret::from("correct horse".to_owned());
        assert!(secret.is(b"correct horse") && !secret.is(b"correct hors") && !secret.is(b""));
        assert_eq!(format!("{secret:?}"), "***");
        assert!(!secret.is_token(), "a blank is not visible");
        assert!(Secret::from("0123456789abcdef".to_owned()).is_token());
        for yaml in ["12345", "0x1F2E3D4C", "1.5e3", "true", "99999999999999999999999999"] {
            let told = serde_yaml::from_str::<Secret>(yaml).unwrap_err().to_string();
            assert!(told.contains("put it in quotes") && !told.contains("12345"), "{told}");
        }
        assert!(
            holds_secrets("tokens_")
                && holds_secrets("tokns")
                && holds_secrets("pasword")
                && holds_secrets("Users")
                && holds_secrets("Authorization")
        );
        assert!(!holds_secrets("token_file") && !holds_secrets("user_field") && !holds_secrets("routes"));
    }
}
