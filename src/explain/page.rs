//! The account as people read it.

use std::fmt::Write;

use super::ask::Answer;
use super::question::{Question, is_secret};
use crate::fields::explained::Told;

/// Where the text of a line begins.
const INDENT: usize = 15;

fn line(out: &mut String, label: &str, text: &str) {
    let _ = writeln!(out, "{label:<INDENT$}{text}");
}

/// The first answer: all of it.
pub fn first(question: &Question, answer: &Answer) -> String {
    let mut out = format!("{} {}\n\n", question.method, question.url());
    for (name, value) in &question.fields {
        // Credentials are not for a page that is shown to others.
        let _ = writeln!(out, "{name}: {}", if is_secret(name) { "..." } else { value });
    }
    if !question.fields.is_empty() {
        out.push('\n');
    }
    line(&mut out, "route", &route(answer));
    if let Some(plugins) = answer.member("route").map(|route| route.get("plugins")).filter(|names| !names.is_empty()) {
        line(&mut out, "plugins", plugins);
    }
    if let Some(key) = answer.member("key") {
        line(&mut out, "key", &key_of(key));
    }
    if let Some(kept_back) =
        answer.member("request").map(|request| request.get("kept-back")).filter(|names| !names.is_empty())
    {
        line(&mut out, "taken off", kept_back);
    }
    match answer.member("origin") {
        Some(origin) => line(&mut out, "the app said", &origin_of(origin)),
        None if answer.failed().is_some() => line(&mut out, "the app said", "nothing"),
        None => {}
    }
    line(&mut out, "the client got", &got(answer));
    for decision in answer.told.iter().filter(|member| member.word == "decision") {
        decided(&mut out, decision);
        advised(&mut out, decision);
    }
    out
}

/// What to say of a response that was to be stored and is not there the next time.
pub fn vanished(first: &Answer, second: &Answer) -> String {
    let mut out = String::new();
    let hit = second.member("cache").is_some_and(|cache| cache.has("hit")) || second.decision("reuse").is_some();
    if first.decision("store").is_some() && second.decision("store").is_some() && !hit {
        line(&mut out, "", "it was not there any more: it broke off, or has turned out too long");
    }
    out
}

/// A later answer, in short; what to change where that was not said of the first one.
pub fn again(label: &str, answer: &Answer, first: &Answer) -> String {
    let mut out = format!("\n{label}\n");
    line(&mut out, "the client got", &got(answer));
    for decision in answer.told.iter().filter(|member| member.word == "decision") {
        decided(&mut out, decision);
        if !first.told.iter().any(|said| said.get("rule") == decision.get("rule")) {
            advised(&mut out, decision);
        }
    }
    out
}

fn route(answer: &Answer) -> String {
    let Some(route) = answer.member("route") else {
        let refused = answer.decision("decline").is_some_and(|decision| decision.get("rule") == "refused");
        return if refused { "none was looked for" } else { "none: no route of the file matches" }.to_owned();
    };
    let to = if route.has("upstream") { route.get("upstream") } else { route.get("handler") };
    let cache = match route.get("cache") {
        "force" => ", cached by `ttl` (`mode: force`)",
        "respect" => ", cached as the app says (`mode: respect`)",
        _ => ", never cached: it has no `cache`",
    };
    format!("no. {} ({}), to `{to}`{cache}", route.get("number"), route.get("name"))
}

fn key_of(key: &Told) -> String {
    let mut out = format!("{}://{}{}", key.get("scheme"), key.get("host"), key.get("target"));
    for (name, said) in
        [("forwarded-host", "asked for as"), ("fields", "with the fields"), ("cookies", "with the cookies")]
    {
        if key.has(name) {
            let _ = write!(out, ", {said} {}", key.get(name));
        }
    }
    if key.has("search") {
        out.push_str(", and other queries (No-Vary-Search)");
    }
    out
}

fn origin_of(origin: &Told) -> String {
    let mut out = origin.get("status").to_owned();
    let mut said = false;
    for (name, value) in origin.parameters().filter(|(name, _)| *name != "status") {
        match name {
            "set-cookie" => {
                let _ = write!(out, "; set-cookie: {value}=...");
            }
            "sets-cookie" if !origin.has("set-cookie") => out.push_str("; set-cookie"),
            "sets-cookie" => {}
            "changed-by-plugins" => {
                let _ = write!(out, "; plugins then changed {value}");
            }
            "etag" | "last-modified" => {
                let _ = write!(out, "; {name}");
            }
            _ => {
                said |= name.ends_with("cache-control") || name == "expires";
                let _ = write!(out, "; {name}: {value}");
            }
        }
    }
    if !said {
        out.push_str("; no word about how long");
    }
    out
}

fn got(answer: &Answer) -> String {
    let mut out = answer.status.to_string();
    if let Some(cache) = answer.member("cache") {
        let _ = write!(out, "; cache-status: {}", cache.get("status"));
        if cache.has("vary") {
            let _ = write!(out, "; chosen by {}", cache.get("vary"));
        }
    }
    let changed = answer.member("response").map_or("", |response| response.get("changed-by-plugins"));
    if !changed.is_empty() {
        let _ = write!(out, "; plugins changed {changed}");
    }
    out
}

fn decided(out: &mut String, decision: &Told) {
    let label = match decision.get("to") {
        "taken-off" => "taken off",
        "fail" => "failed",
        "pass-by" => "passed by",
        "decline" => "not asked",
        "reuse" => "found",
        "store" => "stored",
        "keep" => "was stored",
        _ => "not stored",
    };
    let section = decision.get("section").replace("Section ", "§");
    let by = if section.is_empty() { String::new() } else { format!(" ({section})") };
    line(out, label, &format!("{}{by}: {}", decision.get("rule"), decision.get("why")));
    let mut times = Vec::new();
    for (name, said) in [
        ("lifetime", "fresh for"),
        ("stale-while-revalidate", "then used while it is refreshed for"),
        ("stale-if-error", "then used when the app fails for"),
    ] {
        let seconds = decision.get(name);
        if !["", "0"].contains(&seconds) {
            times.push(format!("{said} {seconds} s"));
        }
    }
    if decision.has("validate") {
        times.push("validated each time".to_owned());
    }
    if !times.is_empty() {
        line(out, "", &times.join(", "));
    }
    if decision.has("would-have-leaked") {
        line(out, "", "another cache might have given it to everybody");
    }
}

fn advised(out: &mut String, decision: &Told) {
    for (name, place) in [("app", "in the app"), ("file", "in the file")] {
        if decision.has(name) {
            line(out, &format!("  {place}"), decision.get(name));
        }
    }
}
