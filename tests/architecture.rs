//! The floors of the house: a module imports its own floor's siblings it stands on, and lower floors.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;

/// From the ground up; modules on one line do not know each other.
const FLOORS: &[&[&str]] = &[
    &["units", "secret", "catch", "filter", "identity", "clock", "metrics", "terminal"],
    &["refusals"],
    &["fields"],
    &["memory", "coding"],
    &["passwords"],
    &["cache"],
    &["upstream"],
    &["connection"],
    &["http2"],
    &["exchange"],
    &["template", "handler"],
    &["plugin"],
    &["plugins", "handlers"],
    &["route"],
    &["config"],
    &["access_log"],
    &["proxy"],
    &["admin"],
    &["listener", "reload", "descriptors"],
    &["server"],
    &["explain", "operator", "replay", "probe"],
    &["testing", "fuzzing", "cli"],
];

fn floor(module: &str) -> usize {
    FLOORS
        .iter()
        .position(|floor| floor.contains(&module))
        .unwrap_or_else(|| panic!("`{module}` has no floor; give it one here and in ARCHITECTURE.md"))
}

fn check(path: &Path, module: &str, complaints: &mut Vec<String>) {
    let text = std::fs::read_to_string(path).unwrap();
    // What stands behind `#[cfg(test)]` at the end of a file may use the testing tools.
    let code = text.split("#[cfg(test)]").next().unwrap();
    for (number, line) in code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
        for used in line.split("crate::").skip(1) {
            let used: String = used.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let known = FLOORS.iter().any(|floor| floor.contains(&used.as_str()));
            let allowed = used == module || (known && floor(&used) < floor(module));
            if !allowed && !used.is_empty() {
                complaints.push(format!("{}:{}: `{module}` must not know `{used}`", path.display(), number + 1));
            }
        }
    }
}

#[test]
fn the_floors_hold() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut complaints = Vec::new();
    let mut folders = vec![source.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
                continue;
            }
            let inside = entry.strip_prefix(&source).unwrap();
            let name = inside.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
            let tests = entry.file_name().is_some_and(|file| file.to_str().unwrap().ends_with("tests.rs"));
            if !matches!(name, "lib" | "main") && !tests {
                check(&entry, name, &mut complaints);
            }
        }
    }
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn only_the_proxy_knows_the_session() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for folder in ["plugins", "handlers"] {
        for entry in std::fs::read_dir(source.join(folder)).unwrap().map(|entry| entry.unwrap().path()) {
            let text = std::fs::read_to_string(&entry).unwrap();
            assert!(!text.contains("Session") && !text.contains("pingora::proxy"), "{}", entry.display());
        }
    }
}
