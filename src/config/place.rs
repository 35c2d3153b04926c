//! Where in the file each path of the configuration stands.
//!
//! One pass over the events of a YAML parser. It also refuses what the decoder
//! would let pass in silence: a key that stands twice, two documents in one file,
//! and files so deep or so full of aliases that they are an attack, not a setting.

use std::collections::{HashMap, HashSet};
use std::fmt;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

/// A line and a column, both from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

impl Place {
    fn of(span: Span) -> Self {
        Place { line: span.start.line().max(1), column: span.start.col() + 1 }
    }

    /// The end of a file: behind it the parser finds that something is missing.
    fn end(text: &str) -> Self {
        let last = text.rsplit('\n').next().map_or(0, |last| last.chars().count());
        Place { line: text.split('\n').count(), column: last + 1 }
    }

    /// The same, or where the file ends.
    fn until(self, end: Self) -> Self {
        if self.line > end.line { end } else { self }
    }
}

/// The first character that a YAML file may not have in it (YAML 1.2 §5.1): the parser says that it is there, and not
/// always where.
fn unprintable(text: &str) -> Option<(Place, char)> {
    let wrong = |c: &char| c.is_control() && !matches!(c, '\t' | '\n' | '\r' | '\u{85}');
    text.split('\n').enumerate().find_map(|(line, text)| {
        let (column, found) = text.chars().enumerate().find(|(_, c)| wrong(c))?;
        Some((Place { line: line + 1, column: column + 1 }, found))
    })
}

/// What is wrong with the file itself.
#[derive(Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where.
    pub place: Place,
    /// What.
    pub message: String,
}

/// The places of all keys and values.
#[derive(Debug, Default)]
pub struct Index {
    keys: HashMap<String, Place>,
    values: HashMap<String, Place>,
    scalars: Vec<Scalar>,
}

/// A single value, or a key.
#[derive(Debug)]
pub struct Scalar {
    /// Its path.
    pub path: String,
    /// What it says.
    pub text: String,
    /// Where it begins.
    pub place: Place,
    /// The line where it ends.
    pub last_line: usize,
    /// Where it begins and ends, in characters of the file.
    pub start: usize,
    /// See `start`.
    pub end: usize,
    /// How it is written.
    pub style: ScalarStyle,
    /// It is a key.
    pub is_key: bool,
}

const DEEPEST: usize = 32;
const MOST_ALIASES: usize = 64;

enum Level {
    Map { path: String, key: Option<String>, seen: HashSet<String> },
    List { path: String, next: usize },
}

/// A path in the form of `serde_path_to_error`: `routes[0].match.host`.
pub fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

impl Index {
    /// Reads the whole file.
    pub fn of(text: &str) -> Result<Index, Fault> {
        let mut index = Index::default();
        let mut levels: Vec<Level> = Vec::new();
        let (mut documents, mut aliases, end) = (0, 0, Place::end(text));
        if let Some((place, octet)) = unprintable(text) {
            let message = format!("this is not YAML: a control character, U+{:04X}", u32::from(octet));
            return Err(Fault { place, message });
        }
        for event in Parser::new_from_str(text) {
            let (event, span) = event.map_err(|error| {
                let mark = error.marker();
                let place = Place { line: mark.line().max(1), column: mark.col() + 1 };
                Fault { place: place.until(end), message: format!("this is not YAML: {}", error.info()) }
            })?;
            let place = Place::of(span).until(end);
            let fault = |message: String| Err(Fault { place, message });
            match event {
                Event::DocumentStart(_) => {
                    documents += 1;
                    if documents > 1 {
                        return fault("a second document begins here; a configuration is one document".into());
                    }
                }
                Event::Alias(_) => {
                    aliases += 1;
                    if aliases > MOST_ALIASES {
                        return fault(format!("more than {MOST_ALIASES} aliases"));
                    }
                    index.value(&mut levels, place, None)?;
                }
                Event::Scalar(text, style, ..) => {
                    let value = index.value(&mut levels, place, Some(&text))?;
                    let is_key = value.is_none();
                    index.scalars.push(Scalar {
                        is_key,
                        path: value.unwrap_or_else(|| match levels.last() {
                            Some(Level::Map { path, .. }) => join(path, &text),
                            _ => String::new(),
                        }),
                        text: text.into_owned(),
                        place,
                        last_line: span.end.line(),
                        start: span.start.index(),
                        end: span.end.index(),
                        style,
                    });
                }
                Event::SequenceStart(..) => {
                    if let Some(path) = index.value(&mut levels, place, None)? {
                        levels.push(Level::List { path, next: 0 });
                    }
                }
                Event::MappingStart(..) => {
                    if let Some(path) = index.value(&mut levels, place, None)? {
                        levels.push(Level::Map { path, key: None, seen: HashSet::new() });
                    }
                }
                Event::SequenceEnd | Event::MappingEnd => {
                    levels.pop();
                }
                _ => {}
            }
            if levels.len() > DEEPEST {
                return fault(format!("nested deeper than {DEEPEST} levels"));
            }
        }
        Ok(index)
    }

    /// Notes a node: a key of the innermost map, or a value. Says the path of a value.
    fn value(&mut self, levels: &mut [Level], place: Place, text: Option<&str>) -> Result<Option<String>, Fault> {
        let path = match levels.last_mut() {
            None => String::new(),
            Some(Level::List { path, next }) => {
                *next += 1;
                format!("{path}[{}]", *next - 1)
            }
            Some(Level::Map { path, key, seen }) => match key.take() {
                Some(key) => join(path, &key),
                None => {
                    let Some(name) = text else {
                        return Err(Fault { place, message: "a key has to be a plain word".into() });
                    };
                    let full = join(path, name);
                    if !seen.insert(name.to_owned()) {
                        let first = self.keys.get(&full).map_or(String::new(), |first| format!(", first at {first}"));
                        return Err(Fault {
                            place,
                            message: format!("the key `{name}` stands here a second time{first}; each may stand once"),
                        });
                    }
                    self.keys.insert(full, place);
                    *key = Some(name.to_owned());
                    return Ok(None);
                }
            },
        };
        self.values.insert(path.clone(), place);
        Ok(Some(path))
    }

    /// All keys and single values, in the order of the file.
    pub fn scalars(&self) -> &[Scalar] {
        &self.scalars
    }

    /// The place of a value, or of what holds it.
    pub fn of_value(&self, path: &str) -> Option<Place> {
        self.values.get(path).or_else(|| self.keys.get(path)).copied().or_else(|| self.of_value(parent(path)?))
    }

    /// The place of a key, or of what holds it.
    pub fn of_key(&self, path: &str) -> Option<Place> {
        self.keys.get(path).or_else(|| self.values.get(path)).copied().or_else(|| self.of_value(parent(path)?))
    }
}

/// The path of what holds it.
pub fn parent(path: &str) -> Option<&str> {
    if path.is_empty() { None } else { Some(path.rfind(['.', '[']).map_or("", |at| &path[..at])) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_its_place() {
        let index = Index::of("a: 1\nroutes:\n  - match: { host: x }\n  - to:\n      proxy: app\n").unwrap();
        for (path, line, column) in [
            ("a", 1, 4),
            ("routes[0]", 3, 5),
            ("routes[0].match.host", 3, 20),
            ("routes[1].to.proxy", 5, 14),
            ("routes[1].to.nothing", 5, 7),
        ] {
            assert_eq!(index.of_value(path), Some(Place { line, column }), "{path}");
        }
        assert_eq!(index.of_key("routes[1].to.proxy"), Some(Place { line: 5, column: 7 }));
    }

    #[test]
    fn faults_have_places_too() {
        assert_eq!(Index::of("\n---").unwrap().of_value(""), Some(Place { line: 2, column: 4 }), "in the file");
        for (text, place, message) in [
            ("a: 1\na: 2\n", "2:1", "a second time, first at 1:1"),
            ("u:\n  x: { b: 1,\n       b: 2 }\n", "3:8", "the key `b`"),
            ("a: 1\n---\nb: 2\n", "2:1", "second document"),
            ("a: [1\n", "2:1", "not YAML"),
            ("é: [1", "1:6", "not YAML"),
            ("a:\n\tb: 1\n", "2:2", "not YAML"),
            ("a: 1\r\né: \"\u{0}\"", "2:5", "U+0000"),
            ("a: 1 # \u{9b}0m", "1:8", "U+009B"),
        ] {
            let fault = Index::of(text).unwrap_err();
            assert_eq!(fault.place.to_string(), place, "{text:?}: {fault:?}");
            assert!(fault.message.contains(message), "{text:?}: {fault:?}");
        }
        let deep = "[".repeat(40) + &"]".repeat(40);
        assert!(Index::of(&deep).unwrap_err().message.contains("deeper"));
        let aliases = format!("a: &a 1\nb: [{}]", "*a, ".repeat(65));
        assert!(Index::of(&aliases).unwrap_err().message.contains("more than 64 aliases"));
    }
}
