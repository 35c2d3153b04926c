//! What a probe has found, as a table and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

/// What plain visitors get.
pub struct Plain {
    /// The status.
    pub status: u16,
    /// Bytes of content.
    pub length: usize,
    /// What says that the second one was served from a cache.
    pub hit: Option<String>,
    /// Where it redirects to.
    pub location: Option<String>,
    /// The names of the cookies that it sets.
    pub cookies: Vec<String>,
}

/// What came of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nobody saw the canary.
    Nothing,
    /// The first visitor saw it, and nobody else.
    Reflected,
    /// The second visitor got what the first one caused.
    Leak {
        /// What, and where.
        what: String,
        /// What says that it came from a cache.
        hit: Option<String>,
    },
    /// The second visitor got no answer.
    NotAsked(String),
}

/// One row with its verdict.
pub struct Finding {
    /// The name of the row.
    pub name: String,
    /// What came of it.
    pub verdict: Verdict,
    /// What to do about a leak.
    pub advice: &'static str,
}

/// All of it.
pub struct Report {
    /// What was probed.
    pub url: String,
    /// Requests that it took.
    pub requests: usize,
    /// What plain visitors get.
    pub plain: Plain,
    /// What came of the rows.
    pub findings: Vec<Finding>,
}

impl Report {
    /// How many rows leaked.
    pub fn leaks(&self) -> usize {
        self.findings.iter().filter(|finding| matches!(finding.verdict, Verdict::Leak { .. })).count()
    }

    /// How many had no answer.
    pub fn not_asked(&self) -> usize {
        self.findings.iter().filter(|finding| matches!(finding.verdict, Verdict::NotAsked(_))).count()
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let plain = &self.plain;
        let hit = match &plain.hit {
            Some(hit) => format!("the second from a cache ({})", printable(hit)),
            None => "and nothing says that the second one came from a cache".to_owned(),
        };
        let _ = writeln!(out, "{}: plain visitors get {}, {hit}", self.url, plain.status);
        if let Some(location) = &plain.location {
            let _ = writeln!(out, "It redirects to {}; probe that address, too.", printable(location));
        }
        out.push('\n');
        let width = self.findings.iter().map(|finding| finding.name.chars().count()).max().unwrap_or(0);
        for finding in &self.findings {
            let told = match &finding.verdict {
                Verdict::Nothing => "nothing came back".to_owned(),
                Verdict::Reflected => "came back to who sent it, to nobody else".to_owned(),
                Verdict::Leak { what, .. } => format!("LEAK: {what}"),
                Verdict::NotAsked(error) => format!("not asked: {}", printable(error)),
            };
            let _ = writeln!(out, "{:width$}  {told}", finding.name);
        }
        out.push('\n');
        for finding in &self.findings {
            if let Verdict::Leak { hit, .. } = &finding.verdict {
                let hit = hit.as_ref().map_or_else(
                    || "nothing says that the second visitor was served from a cache".to_owned(),
                    |hit| format!("the second visitor was served from a cache ({})", printable(hit)),
                );
                let _ = writeln!(out, "{}: {hit}.\n  What to do: {}.", finding.name, finding.advice);
            }
        }
        let rows = self.findings.len();
        let _ = match (self.leaks(), self.not_asked()) {
            (0, 0) => {
                writeln!(out, "{rows} tried with {} requests: nothing came back to another visitor.", self.requests)
            }
            (0, not) => writeln!(out, "{rows} tried with {} requests: {not} without an answer.", self.requests),
            (leaks, _) => {
                writeln!(out, "{rows} tried with {} requests: {leaks} came back to another visitor.", self.requests)
            }
        };
        out
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let findings: Vec<_> = self
            .findings
            .iter()
            .map(|finding| match &finding.verdict {
                Verdict::Nothing => json!({ "name": finding.name, "verdict": "nothing" }),
                Verdict::Reflected => json!({ "name": finding.name, "verdict": "reflected" }),
                Verdict::Leak { what, hit } => json!({
                    "name": finding.name, "verdict": "leak", "what": what, "hit": hit, "advice": finding.advice,
                }),
                Verdict::NotAsked(error) => json!({ "name": finding.name, "verdict": "not-asked", "error": error }),
            })
            .collect();
        json!({
            "url": self.url,
            "requests": self.requests,
            "plain": { "status": self.plain.status, "hit": self.plain.hit, "location": self.plain.location },
            "leaks": self.leaks(),
            "not_asked": self.not_asked(),
            "findings": findings,
        })
    }
}

/// What a server has said, without what a terminal would obey.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).take(200).collect()
}
