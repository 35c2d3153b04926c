//! `${NAME}` and `${NAME:-default}` in values: what the environment says.
//!
//! The text is masked first: each reference becomes as many characters that mean nothing
//! to YAML, so that places stay what they are and comments may say what they like. Then
//! each value that holds references is written anew, quoted where it has to be: what
//! the environment says is always one value and never more of the file.

use saphyr_parser::ScalarStyle;

use super::place::{Fault, Index, Place, Scalar};

/// The first of the characters that references are masked with, one for each: a private use area.
const MASK: u32 = 0x10_0000;
const MOST: usize = 1000;

/// One reference.
#[derive(Debug, PartialEq, Eq)]
enum Reference {
    Variable {
        name: String,
        default: Option<String>,
    },
    /// `$${` stands for `${`.
    Dollar,
}

/// A text with its references masked.
pub struct Masked {
    text: String,
    references: Vec<Reference>,
}

/// A value that must be shown as it is written in the file, or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hidden {
    /// Where it stands.
    pub path: String,
    /// What must not be shown.
    pub value: String,
    /// What is shown instead.
    pub shown: String,
}

/// A text with everything filled in.
#[derive(Default)]
struct Said {
    value: String,
    /// The same as it may be shown.
    shown: String,
    /// What each reference stands for.
    each: Vec<(String, String)>,
}

fn name_at(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    (!name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit())).then_some((name, rest))
}

/// The reference that a text begins with, and its length in bytes.
fn reference(text: &str) -> Option<(Reference, usize)> {
    if text.starts_with("$${") {
        return Some((Reference::Dollar, 3));
    }
    let (name, rest) = name_at(text.strip_prefix("${")?)?;
    let (default, rest) = match rest.strip_prefix(":-") {
        Some(rest) => {
            let end = rest.find(['}', '\n'])?;
            (Some(rest[..end].to_owned()), &rest[end..])
        }
        None => (None, rest),
    };
    let rest = rest.strip_prefix('}')?;
    Some((Reference::Variable { name: name.to_owned(), default }, text.len() - rest.len()))
}

impl Masked {
    /// Masks what refers to the environment.
    pub fn new(text: &str) -> Result<Masked, Fault> {
        let mut masked = Masked { text: String::with_capacity(text.len()), references: Vec::new() };
        let (mut rest, mut line, mut column) = (text, 1, 1);
        while let Some(c) = rest.chars().next() {
            let fault = |message: &str| Err(Fault { place: Place { line, column }, message: message.to_owned() });
            if (MASK..MASK + MOST as u32).contains(&u32::from(c)) {
                return fault("a character of a private use area that is needed here");
            }
            let (mask, length) = match reference(rest) {
                Some(_) if masked.references.len() == MOST => {
                    return fault("more than 1000 references to the environment");
                }
                Some((reference, length)) => {
                    let mask = char::from_u32(MASK + masked.references.len() as u32).unwrap_or(c);
                    masked.references.push(reference);
                    (mask, length)
                }
                None => (c, c.len_utf8()),
            };
            let (here, after) = rest.split_at(length);
            let characters = here.chars().count();
            masked.text.extend(std::iter::repeat_n(mask, characters));
            (line, column) = if c == '\n' { (line + 1, 1) } else { (line, column + characters) };
            rest = after;
        }
        Ok(masked)
    }

    /// The text with its references masked; every place in it is the one in the file.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text as the decoder gets it, and what must not be shown. `index` is that of the masked text.
    pub fn fill(
        &self,
        index: &Index,
        say: &dyn Fn(&str) -> Option<String>,
    ) -> Result<(String, Vec<Hidden>), Vec<Fault>> {
        let (mut out, mut hidden, mut faults) = (String::new(), Vec::new(), Vec::new());
        let mut rest = self.text.chars();
        let mut at = 0;
        for scalar in index.scalars().iter().filter(|scalar| self.refers(&scalar.text)) {
            match self.value(scalar, say) {
                Ok((value, secret)) => {
                    out.extend(rest.by_ref().take(scalar.start - at));
                    let raw: String = rest.by_ref().take(scalar.end - scalar.start).collect();
                    at = scalar.end;
                    // A block ends by its indentation, which a value without line breaks cannot change.
                    match scalar.style {
                        ScalarStyle::Literal | ScalarStyle::Folded => {
                            out.push_str(&self.say(&raw, say).unwrap_or_default().value)
                        }
                        style => out.push_str(&written(&value, style)),
                    }
                    hidden.extend(secret);
                }
                Err(message) => faults.push(Fault { place: scalar.place, message }),
            }
        }
        out.extend(rest);
        if faults.is_empty() { Ok((out, hidden)) } else { Err(faults) }
    }

    fn refers(&self, text: &str) -> bool {
        text.contains("${") || text.chars().any(|c| self.behind(c).is_some())
    }

    fn behind(&self, mask: char) -> Option<&Reference> {
        self.references.get(u32::from(mask).checked_sub(MASK)? as usize)
    }

    /// What a value is with everything filled in, and what of it must not be shown.
    fn value(&self, scalar: &Scalar, say: &dyn Fn(&str) -> Option<String>) -> Result<(String, Vec<Hidden>), String> {
        if scalar.is_key {
            return Err("`${NAME}` can stand in a value and not in a key".into());
        }
        if scalar.text.contains("${") {
            return Err("`${` begins the name of an environment variable, as in ${NAME} or ${NAME:-default}; write $${ for the text itself".into());
        }
        let said = self.say(&scalar.text, say)?;
        let hide = |value: String, shown: String| Hidden { path: scalar.path.clone(), value, shown };
        let mut hidden = vec![hide(said.value.clone(), said.shown)];
        hidden.extend(said.each.into_iter().map(|(name, value)| hide(value, name)));
        Ok((said.value, hidden))
    }

    fn say(&self, text: &str, say: &dyn Fn(&str) -> Option<String>) -> Result<Said, String> {
        let Said { mut value, mut shown, mut each } = Said::default();
        let mut before = None;
        for c in text.chars() {
            // A reference is masked by as many of the same character.
            if before.replace(c) == Some(c) && self.behind(c).is_some() {
                continue;
            }
            match self.behind(c) {
                None => {
                    value.push(c);
                    shown.push(c);
                }
                Some(Reference::Dollar) => {
                    value.push_str("${");
                    shown.push_str("${");
                }
                Some(Reference::Variable { name, default }) => {
                    let said = say(name).or_else(|| default.clone()).ok_or_else(|| {
                        format!("the environment has no `{name}`; set it, or write ${{{name}:-default}}")
                    })?;
                    let name = format!("${{{name}}}");
                    // Those that are no control characters end a line for some readers.
                    if said.chars().any(|c| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')) {
                        return Err(format!("`{name}` holds a line break or a control character"));
                    }
                    value.push_str(&said);
                    shown.push_str(&name);
                    each.push((name, said));
                }
            }
        }
        Ok(Said { value, shown, each })
    }
}

/// A value as YAML, in the same style as far as that is safe: plain ones may be numbers, quoted ones are text.
fn written(value: &str, style: ScalarStyle) -> String {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || b"_./+-:".contains(&byte);
    let plain = style == ScalarStyle::Plain
        && value.bytes().all(word)
        && value.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'/')
        && !value.ends_with(':');
    if plain {
        return value.to_owned();
    }
    serde_json::Value::from(value).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(text: &str) -> Result<String, String> {
        let say = |name: &str| match name {
            "PORT" => Some("8080".to_owned()),
            "ODD" => Some("a: \"b\" # {c}, [d]".to_owned()),
            "EMPTY" => Some(String::new()),
            "LINES" => Some("a\nb".to_owned()),
            "SEPARATOR" => Some("a\u{2028}b: c".to_owned()),
            _ => None,
        };
        let fault = |fault: &Fault| format!("{}: {}", fault.place, fault.message);
        let masked = Masked::new(text).map_err(|one| fault(&one))?;
        let index = Index::of(masked.text()).map_err(|one| fault(&one))?;
        let (filled, _) = masked.fill(&index, &say).map_err(|all| fault(&all[0]))?;
        Ok(filled)
    }

    #[test]
    fn values_are_filled_in_and_stay_one_value() {
        for (text, expected) in [
            ("a: ${PORT}", "{\"a\":8080}"),
            ("a: \"${PORT}\"", "{\"a\":\"8080\"}"),
            ("a: [127.0.0.1:${PORT}, 'x${PORT}']", "{\"a\":[\"127.0.0.1:8080\",\"x8080\"]}"),
            ("a: { b: ${NONE:-10s}, c: ${PORT} }", "{\"a\":{\"b\":\"10s\",\"c\":8080}}"),
            ("a: ${ODD}\nb: [${ODD}, \"${ODD}\"]", "{\"a\":\"O\",\"b\":[\"O\",\"O\"]}"),
            ("a: ${EMPTY}\nb: ${NONE:-}", "{\"a\":\"\",\"b\":\"\"}"),
            ("# ${NONE}\na: 1 # ${NONE}", "{\"a\":1}"),
            ("a: $${PORT}", "{\"a\":\"${PORT}\"}"),
            ("a: $PORT $1 {host}", "{\"a\":\"$PORT $1 {host}\"}"),
            ("a: |\n  x ${PORT}\n  y\nb: 2", "{\"a\":\"x 8080\\ny\\n\",\"b\":2}"),
            ("a: ü${PORT}ü\nb: 'it''s ${PORT}'", "{\"a\":\"ü8080ü\",\"b\":\"it's 8080\"}"),
            ("a: ${PORT}${PORT}", "{\"a\":80808080}"),
        ] {
            let filled = fill(text).unwrap_or_else(|fault| panic!("{text}: {fault}"));
            let value: serde_yaml::Value = serde_yaml::from_str(&filled).unwrap_or_else(|e| panic!("{filled}: {e}"));
            let odd = serde_json::Value::from("a: \"b\" # {c}, [d]").to_string();
            assert_eq!(serde_json::to_string(&value).unwrap().replace(&odd, "\"O\""), expected, "{text}: {filled}");
        }
    }

    #[test]
    fn what_is_missing_or_odd_is_a_mistake() {
        for (text, told) in [
            ("x: 1\na: [b, \"c ${NONE}\"]", "2:8: the environment has no `NONE`; set it, or write ${NONE:-default}"),
            ("a: ${LINES}", "1:4: `${LINES}` holds a line break"),
            ("a: |\n  ${SEPARATOR}", "2:3: `${SEPARATOR}` holds a line break"),
            ("a: \"${1}\"", "1:4: `${` begins the name"),
            ("a: \"${PORT\"", "1:4: `${` begins the name"),
            ("${PORT}: a", "1:1: `${NAME}` can stand in a value"),
        ] {
            let fault = fill(text).unwrap_err();
            assert!(fault.starts_with(told), "{text}: {fault}");
        }
    }
}
