//! What of a configuration must not be shown in complaints about it.

use super::place::{Scalar, parent};
use crate::secret;

/// A complaint about a type without the number that it names.
pub(super) fn without_number(message: &str) -> String {
    for kind in ["integer `", "floating point `"] {
        if let Some((before, rest)) = message.split_once(kind)
            && let Some((_, after)) = rest.split_once('`')
        {
            return format!("{before}{kind}***`{after}");
        }
    }
    message.to_owned()
}

/// Whether what stands there must not be seen. The names of users may be, unless they look like a hash.
pub(super) fn is_secret(scalar: &Scalar) -> bool {
    let path = if scalar.is_key { parent(&scalar.path).unwrap_or("") } else { &scalar.path };
    // The user that the process becomes.
    if path == "user" {
        return secret::looks_like_a_hash(&scalar.text);
    }
    // The names of upstreams are the operator's own.
    let path = path.strip_prefix("upstreams.").and_then(|rest| rest.split_once('.')).map_or(path, |(_, rest)| rest);
    let below = path.split(['.', '[']).any(|key| secret::holds_secrets(key) && !(scalar.is_key && key == "users"));
    below || secret::looks_like_a_hash(&scalar.text)
}

/// Whether a line, or one above it down from the left edge, has a key that could hold secrets.
pub(super) fn below_a_secret(text: &str, number: usize) -> bool {
    let lines: Vec<_> = text.lines().take(number).collect();
    for (above, line) in lines.iter().rev().enumerate() {
        let mut words = line.split(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | '-'));
        if words.any(secret::holds_secrets) || secret::looks_like_a_hash(line) {
            return true;
        }
        let key = line.split(':').next().filter(|key| key.len() < line.len());
        if above > 0
            && key.is_some_and(|key| !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'))
        {
            return false;
        }
    }
    false
}
