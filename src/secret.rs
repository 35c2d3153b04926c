//! What must not be seen: tokens and password hashes.
//!
//! They are never printed, not by `Debug` either, and compared in a time that tells nothing.

use std::fmt;
use std::path::Path;

use schemars::JsonSchema;
use serde::Deserialize;
use subtle::ConstantTimeEq;

/// A secret text.
#[derive(Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("writeOnly" = true))]
pub struct Secret(String);

/// The keys whose values are secrets, wherever they stand in a configuration.
pub const KEYS: &[&str] =
    &["api_key", "api_keys", "password", "passwords", "secret", "secrets", "token", "tokens", "users"];

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

/// The lines of a file of secrets; blank ones and those that begin with `#` say nothing. A complaint
/// names the file and never what is in it.
pub fn lines(path: &Path) -> Result<Vec<String>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let lines: Vec<_> = lines.map(str::to_owned).collect();
    if lines.is_empty() { Err(format!("{} is empty", path.display())) } else { Ok(lines) }
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
    }
}
