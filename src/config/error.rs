//! What is wrong with a configuration, told to the operator: where, what, what instead.

use std::fmt;

use super::environment::Hidden;
use super::place::{Fault, Index, Place, Scalar};
use super::secrets::{below_a_secret, is_secret, without_number};
use crate::plugins;

/// One complaint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where in the file.
    pub place: Option<Place>,
    /// The sentence.
    pub message: String,
    /// The line of the file.
    pub line: Option<String>,
}

/// All complaints about one file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Error {
    /// The file's name, as the operator wrote it.
    pub file: String,
    /// The complaints, at least one, in the order of the file.
    pub problems: Vec<Problem>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            let Some(place) = problem.place else {
                write!(f, "{}: {}", self.file, problem.message)?;
                continue;
            };
            write!(f, "{}:{place}: {}", self.file, problem.message)?;
            if let Some(line) = &problem.line {
                let number = place.line.to_string();
                let shown: String = line.chars().take(160).collect();
                write!(f, "\n  {number} | {shown}")?;
                if place.column <= 160 {
                    write!(f, "\n  {:1$} | {2:3$}^", "", number.len(), "", place.column - 1)?;
                }
            }
        }
        Ok(())
    }
}

/// Collects complaints about one file.
pub struct Complaints<'a> {
    file: &'a str,
    text: &'a str,
    index: &'a Index,
    hidden: Vec<Hidden>,
    problems: Vec<Problem>,
}

impl<'a> Complaints<'a> {
    /// None yet. What is hidden is never told, nor is a secret that stands in the file itself.
    pub fn new(file: &'a str, text: &'a str, index: &'a Index, mut hidden: Vec<Hidden>) -> Self {
        for scalar in index.scalars().iter().filter(|scalar| is_secret(scalar) && !scalar.text.is_empty()) {
            hidden.push(Hidden { path: scalar.path.clone(), value: scalar.text.clone(), shown: "***".into() });
        }
        // The longest first: one value may be part of another.
        hidden.sort_by_key(|hidden| std::cmp::Reverse(hidden.value.len()));
        Complaints { file, text, index, hidden, problems: Vec::new() }
    }

    fn push(&mut self, path: &str, place: Option<Place>, message: String) {
        let mut message = message;
        for hidden in self.hidden.iter().filter(|hidden| !hidden.value.is_empty()) {
            // A short value may stand in any sentence by accident.
            if hidden.value.len() >= 8 || hidden.path.starts_with(path) || path.starts_with(&hidden.path) {
                let escaped = format!("{:?}", hidden.value);
                message = message.replace(&escaped[1..escaped.len() - 1], &hidden.shown);
                message = message.replace(&hidden.value, &hidden.shown);
            }
        }
        let near =
            |scalar: &Scalar| is_secret(scalar) && (scalar.path.starts_with(path) || path.starts_with(&scalar.path));
        if self.index.scalars().iter().any(near) {
            // A number may be told in another base than it is written in.
            message = without_number(&message);
        }
        let line = place.and_then(|place| self.line(place.line));
        self.problems.push(Problem { place, message, line });
    }

    /// A line of the file, without the secrets in it.
    fn line(&self, number: usize) -> Option<String> {
        let mut line: Vec<char> = self.text.lines().nth(number - 1)?.chars().collect();
        for scalar in self.index.scalars().iter().filter(|scalar| is_secret(scalar)) {
            if !(scalar.place.line..=scalar.last_line).contains(&number) {
                continue;
            }
            let whole = scalar.place.line == scalar.last_line;
            let from = if number == scalar.place.line { scalar.place.column - 1 } else { 0 };
            let to = if whole { from + scalar.end - scalar.start } else { line.len() };
            let (from, mut to) = (from.min(line.len()), to.min(line.len()));
            // A quoted value's span reaches to what follows it.
            while to > from && line[to - 1] == ' ' {
                to -= 1;
            }
            line[from..to].fill('*');
        }
        Some(line.into_iter().collect())
    }

    /// Complains about the value at a path.
    pub fn value(&mut self, path: &str, message: impl Into<String>) {
        self.push(path, self.index.of_value(path), message.into());
    }

    /// Complains about the key at a path.
    pub fn key(&mut self, path: &str, message: impl Into<String>) {
        self.push(path, self.index.of_key(path), message.into());
    }

    /// Complains about what the decoder did not like; an unknown key is pointed at itself.
    pub fn decode(&mut self, path: &str, message: &str) {
        // The decoder adds its own idea of the place, before and behind.
        let message = message.split(" at line ").next().unwrap_or(message);
        let message = message
            .split_once(": ")
            .filter(|(at, _)| !at.is_empty() && path.starts_with(at))
            .map_or(message, |(_, rest)| rest);
        let message = in_plain_words(message);
        let (unknown, known) = quoted(&message);
        let hint = unknown.and_then(|word| did_you_mean(word, known.iter().copied())).unwrap_or_default();
        let plugin = unknown.filter(|word| {
            (path.is_empty() || path == *word) && plugins::BUILT_IN.iter().any(|entry| entry.name == *word)
        });
        let hint = plugin.map_or(hint, |name| format!("; `{name}` is a plugin: write plugins: [{{ {name}: … }}]"));
        let told = format!("{message}{hint}");
        match unknown.filter(|_| message.starts_with("unknown field ")) {
            Some(field) => {
                let full = super::place::join(path, field);
                // Some decoders already name the field in the path.
                let at = if path.ends_with(field) { path } else { &full };
                self.key(at, told);
            }
            None => self.value(path, told),
        }
    }

    /// Nothing to complain about, or the error.
    pub fn finish(mut self) -> Result<(), Error> {
        if self.problems.is_empty() {
            return Ok(());
        }
        self.problems.sort_by_key(|problem| problem.place.map(|place| (place.line, place.column)));
        Err(Error { file: self.file.to_owned(), problems: self.problems })
    }
}

/// The decoder speaks of its own types.
fn in_plain_words(message: &str) -> String {
    const WORDS: &[(&str, &str)] = &[
        ("expected a sequence", "expected a list, such as [a, b]"),
        ("invalid type: sequence", "invalid type: list"),
        ("expected u16", "expected a whole number up to 65535"),
        ("expected u32", "expected a whole number"),
        ("expected usize", "expected a whole number"),
        ("unit value", "nothing"),
    ];
    WORDS.iter().fold(message.to_owned(), |told, (word, plain)| match told.strip_suffix(word) {
        Some(start) => format!("{start}{plain}"),
        None => told.replace(&format!("{word},"), &format!("{plain},")),
    })
}

/// The word that is unknown, and those that are known, from a decoder's sentence.
fn quoted(message: &str) -> (Option<&str>, Vec<&str>) {
    if !message.starts_with("unknown field `") && !message.starts_with("unknown variant `") {
        return (None, Vec::new());
    }
    let mut words = message.split('`').skip(1).step_by(2);
    (words.next(), words.collect())
}

/// A hint for a word that is nearly a known one.
pub fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let distance = |known: &&str| strsim::damerau_levenshtein(&word.to_ascii_lowercase(), known);
    let nearest = known.into_iter().min_by_key(distance)?;
    let near = distance(&nearest) <= (word.chars().count() / 3).max(1);
    near.then(|| format!("; did you mean `{nearest}`?"))
}

/// The error for a file that is no YAML, or whose values cannot be filled in.
pub fn faults(file: &str, text: &str, faults: Vec<Fault>) -> Error {
    let problem = |fault: Fault| {
        // There is no index to say what is a secret: a line is shown when no key above it could be one.
        let line = text.lines().nth(fault.place.line - 1).filter(|_| !below_a_secret(text, fault.place.line));
        Problem { place: Some(fault.place), message: fault.message, line: line.map(str::to_owned) }
    };
    Error { file: file.to_owned(), problems: faults.into_iter().map(problem).collect() }
}

/// The error for something that has no place in the file.
pub fn general(file: &str, message: impl Into<String>) -> Error {
    Error { file: file.to_owned(), problems: vec![Problem { place: None, message: message.into(), line: None }] }
}
