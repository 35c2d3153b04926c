//! What is wrong with a configuration, told to the operator: where, what, what instead.

use std::fmt;

use super::place::{Fault, Index, Place};

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
    problems: Vec<Problem>,
}

impl<'a> Complaints<'a> {
    /// None yet.
    pub fn new(file: &'a str, text: &'a str, index: &'a Index) -> Self {
        Complaints { file, text, index, problems: Vec::new() }
    }

    fn push(&mut self, place: Option<Place>, message: String) {
        let line = place.and_then(|place| self.text.lines().nth(place.line - 1)).map(str::to_owned);
        self.problems.push(Problem { place, message, line });
    }

    /// Complains about the value at a path.
    pub fn value(&mut self, path: &str, message: impl Into<String>) {
        self.push(self.index.of_value(path), message.into());
    }

    /// Complains about the key at a path.
    pub fn key(&mut self, path: &str, message: impl Into<String>) {
        self.push(self.index.of_key(path), message.into());
    }

    /// Complains about what the decoder did not like; an unknown key is pointed at itself.
    pub fn decode(&mut self, path: &str, message: &str) {
        // The decoder adds its own idea of the place, before and behind.
        let message = message.split(" at line ").next().unwrap_or(message);
        let message = message
            .split_once(": ")
            .filter(|(at, _)| !at.is_empty() && path.starts_with(at))
            .map_or(message, |(_, rest)| rest);
        match unknown_field(message) {
            Some(field) => {
                let full = super::place::join(path, field);
                // Some decoders already name the field in the path.
                let at = if path.ends_with(field) { path } else { &full };
                self.key(at, message);
            }
            None => self.value(path, message),
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

fn unknown_field(message: &str) -> Option<&str> {
    message.strip_prefix("unknown field `")?.split('`').next()
}

/// The error for a file that is no YAML, or no file.
pub fn fault(file: &str, text: &str, fault: Fault) -> Error {
    let line = text.lines().nth(fault.place.line - 1).map(str::to_owned);
    Error { file: file.to_owned(), problems: vec![Problem { place: Some(fault.place), message: fault.message, line }] }
}

/// The error for something that has no place in the file.
pub fn general(file: &str, message: impl Into<String>) -> Error {
    Error { file: file.to_owned(), problems: vec![Problem { place: None, message: message.into(), line: None }] }
}
