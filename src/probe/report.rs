//! What a probe has found, as a table and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::terminal::printable;

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
    /// The coding of the content, if it has one: nobody asked for it, and nobody reads it.
    pub coding: Option<String>,
    /// The names of the cookies that it sets.
    pub cookies: Vec<String>,
}

/// What came of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nobody saw the canary.
    Nothing {
        /// Why the first visitor got no answer: it may be that the site never saw the canary.
        unanswered: Option<String>,
    },
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

    /// How many had no answer, the first visitor's or the second's.
    pub fn not_asked(&self) -> usize {
        let unanswered =
            |verdict: &Verdict| matches!(verdict, Verdict::NotAsked(_) | Verdict::Nothing { unanswered: Some(_) });
        self.findings.iter().filter(|finding| unanswered(&finding.verdict)).count()
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let plain = &self.plain;
        let hit = match &plain.hit {
            Some(hit) => format!("the second from a cache ({})", said(hit)),
            None => "and nothing says that the second one came from a cache".to_owned(),
        };
        let _ = writeln!(out, "{}: plain visitors get {}, {hit}", self.url, plain.status);
        if let Some(location) = &plain.location {
            let _ = writeln!(out, "It redirects to {}; probe that address, too.", said(location));
        }
        if let Some(coding) = &plain.coding {
            let _ = writeln!(
                out,
                "The content is in a coding that nobody asked for ({}): canaries in it are not seen.",
                said(coding)
            );
        }
        out.push('\n');
        let width = self.findings.iter().map(|finding| finding.name.chars().count()).max().unwrap_or(0);
        for finding in &self.findings {
            let told = match &finding.verdict {
                Verdict::Nothing { unanswered: None } => "nothing came back".to_owned(),
                Verdict::Nothing { unanswered: Some(why) } => {
                    format!("nothing came back; the first visitor got no answer: {}", said(why))
                }
                Verdict::Reflected => "came back to who sent it, to nobody else".to_owned(),
                Verdict::Leak { what, .. } => format!("LEAK: {}", said(what)),
                Verdict::NotAsked(error) => format!("not asked: {}", said(error)),
            };
            let _ = writeln!(out, "{:width$}  {told}", finding.name);
        }
        out.push('\n');
        for finding in &self.findings {
            if let Verdict::Leak { hit, .. } = &finding.verdict {
                let hit = hit.as_ref().map_or_else(
                    || "nothing says that the second visitor was served from a cache".to_owned(),
                    |hit| format!("the second visitor was served from a cache ({})", said(hit)),
                );
                let _ = writeln!(out, "{}: {hit}.\n  What to do: {}.", finding.name, finding.advice);
            }
        }
        let rows = self.findings.len();
        let leaks = match self.leaks() {
            0 => "nothing".to_owned(),
            leaks => leaks.to_string(),
        };
        let unanswered = match self.not_asked() {
            0 => String::new(),
            not => format!(", {not} not asked or without an answer"),
        };
        let _ = writeln!(
            out,
            "{rows} tried with {} requests: {leaks} came back to another visitor{unanswered}.",
            self.requests
        );
        out
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let findings: Vec<_> = self
            .findings
            .iter()
            .map(|finding| match &finding.verdict {
                Verdict::Nothing { unanswered: None } => json!({ "name": finding.name, "verdict": "nothing" }),
                Verdict::Nothing { unanswered: Some(why) } => {
                    json!({ "name": finding.name, "verdict": "unanswered", "error": said(why) })
                }
                Verdict::Reflected => json!({ "name": finding.name, "verdict": "reflected" }),
                Verdict::Leak { what, hit } => json!({
                    "name": finding.name, "verdict": "leak", "what": said(what), "hit": hit.as_deref().map(said),
                    "advice": finding.advice,
                }),
                Verdict::NotAsked(error) => {
                    json!({ "name": finding.name, "verdict": "not-asked", "error": said(error) })
                }
            })
            .collect();
        json!({
            "url": self.url,
            "requests": self.requests,
            "plain": {
                "status": self.plain.status,
                "hit": self.plain.hit.as_deref().map(said),
                "location": self.plain.location.as_deref().map(said),
                "coding": self.plain.coding.as_deref().map(said),
            },
            "leaks": self.leaks(),
            "not_asked": self.not_asked(),
            "findings": findings,
        })
    }
}

/// What a server has said, as far as it is of use.
fn said(text: &str) -> String {
    printable(text).chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server may say anything, in cookies' names too.
    #[test]
    fn terminals_obey_nothing_that_a_server_says() {
        let evil = "\u{9b}2J\u{202e}\u{1b}[2J";
        let finding = |verdict| Finding { name: "row".into(), verdict, advice: "none" };
        let report = Report {
            url: "http://site.test/".into(),
            requests: 3,
            plain: Plain {
                status: 302,
                length: 0,
                hit: Some(evil.into()),
                location: Some(evil.into()),
                coding: Some(evil.into()),
                cookies: vec![evil.into()],
            },
            findings: vec![
                finding(Verdict::Leak { what: evil.into(), hit: Some(evil.into()) }),
                finding(Verdict::Nothing { unanswered: Some(evil.into()) }),
                finding(Verdict::NotAsked(evil.into())),
            ],
        };
        let told = report.text().replace('\n', "");
        assert_eq!(printable(&told), told);
        assert!(told.contains("1 came back to another visitor, 2 not asked or without an answer."), "{told}");
        let json = report.json().to_string();
        assert_eq!(printable(&json), json);
        assert_eq!(report.not_asked(), 2);
    }
}
