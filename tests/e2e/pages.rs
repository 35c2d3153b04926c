//! The pages of docs/ that are made from the schema and the sources' own words.
//!
//! `make docs` writes them anew; the test says when they are not what the code says.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::support::{TempFile, root, run};

struct Schema(Value);

impl Schema {
    fn read() -> Self {
        let (_, text, _) = run(Command::new(env!("CARGO_BIN_EXE_headwall")).arg("schema"));
        Schema(serde_json::from_str(&text).unwrap())
    }

    fn definition(&self, name: &str) -> &Value {
        &self.0["definitions"][name]
    }

    /// The definition that a node stands for, through references and "or nothing"; its name, if it has one.
    fn behind<'a>(&'a self, node: &'a Value) -> (Option<&'a str>, &'a Value) {
        if let Some(name) = node["$ref"].as_str() {
            let name = name.trim_start_matches("#/definitions/");
            return (Some(name), self.definition(name));
        }
        let several = node["allOf"].as_array().or(node["anyOf"].as_array());
        match several.into_iter().flatten().find(|one| one["$ref"].is_string()) {
            Some(one) => self.behind(one),
            None => (None, node),
        }
    }

    /// What a setting takes, in words.
    fn takes(&self, node: &Value) -> String {
        let (name, node) = self.behind(node);
        match name {
            Some("ByteSize") => return "a size".into(),
            Some("Span") => return "a duration".into(),
            Some("Network") => return "a network".into(),
            Some("Secret") => return "a secret".into(),
            Some("Listen") => return "an address, or `{ bind: ADDRESS }`".into(),
            Some("SetCookie") => return "`refuse`, `strip`, or `{ store: [NAME] }`".into(),
            Some("Ttl") => return "a duration, or a map from status to duration".into(),
            Some("Plugin") => return "a [plugin](../plugins/README.md)".into(),
            Some("Destination") => return "a map".into(),
            _ => {}
        }
        if let Some(variants) = node["oneOf"].as_array() {
            let words: Vec<_> = variants.iter().filter_map(|one| one["const"].as_str()).collect();
            return words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
        }
        let kind = node["type"].as_str().or_else(|| node["type"][0].as_str()).unwrap_or("");
        match kind {
            "array" => format!("a list: {}", self.takes(&node["items"])),
            "integer" => "a number".into(),
            "boolean" => "`true`, `false`".into(),
            "object" if node["additionalProperties"].is_object() => {
                format!("a map to {}", self.takes(&node["additionalProperties"]))
            }
            "object" => "a map".into(),
            _ => "a text".into(),
        }
    }

    /// A table of the settings of a map, and one for each map inside it.
    fn tables(&self, heading: &str, node: &Value, out: &mut String) {
        let Some(settings) = node["properties"].as_object().filter(|settings| !settings.is_empty()) else { return };
        if !heading.is_empty() {
            let _ = writeln!(out, "## `{heading}`\n\n{}\n", said(node));
        }
        let required: Vec<_> = node["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        out.push_str("| setting | takes | when left out | what it is |\n| --- | --- | --- | --- |\n");
        let mut inside = Vec::new();
        for (name, setting) in settings {
            let absent = match &setting["default"] {
                _ if required.contains(&name.as_str()) => "an error".into(),
                Value::Null => "–".into(),
                Value::Array(list) if list.is_empty() => "none".into(),
                Value::Object(map) if map.is_empty() => "none".into(),
                Value::Object(_) => "see below".into(),
                value => format!("`{value}`"),
            };
            let own =
                setting["description"].as_str().unwrap_or("").split("\n\n").next().unwrap_or("").replace('\n', " ");
            let (_, behind) = self.behind(setting);
            let words = behind["oneOf"].as_array().into_iter().flatten();
            let words: Vec<_> = words
                .filter_map(|one| {
                    Some(format!("`{}`: {}", one["const"].as_str()?, one["description"].as_str()?.replace('\n', " ")))
                })
                .collect();
            let words = if words.is_empty() { String::new() } else { format!(" {}", words.join(" ")) };
            let _ = writeln!(out, "| `{name}` | {} | {absent} | {own}{words} |", self.takes(setting));
            let of = match (behind["additionalProperties"].is_object(), behind["items"].is_object()) {
                (true, _) => self.behind(&behind["additionalProperties"]).1,
                (_, true) => self.behind(&behind["items"]).1,
                _ => behind,
            };
            if of["properties"].is_object() && name != "plugins" {
                inside.push((name.clone(), of));
            }
        }
        out.push('\n');
        for (name, node) in inside {
            let heading = if heading.is_empty() { name } else { format!("{heading}.{name}") };
            self.tables(&heading, node, out);
        }
    }
}

fn said(node: &Value) -> String {
    node["description"].as_str().unwrap_or("").to_owned()
}

/// The words at the head of a source file, after the line that names it.
fn words(source: &str) -> String {
    let text = std::fs::read_to_string(root(source)).unwrap();
    let lines = text.lines().take_while(|line| line.starts_with("//!"));
    lines.map(|line| line.strip_prefix("//! ").unwrap_or("").to_owned() + "\n").collect()
}

const FROM: &str = "<!-- Made from the code by `make docs`; change it there. -->\n";

/// All pages: their place, and their text.
fn pages() -> BTreeMap<PathBuf, String> {
    let schema = Schema::read();
    let mut pages = BTreeMap::new();
    let mut index = String::from(
        "# Plugins\n\nA plugin is one key in a list of `plugins`, the site's or a route's, with its settings behind it.\nRequests pass down the list, responses up; the site's stand around the route's.\n\n",
    );
    for (name, node) in schema.definition("Plugin")["properties"].as_object().unwrap() {
        let text = words(&format!("src/plugins/{name}.rs"));
        let (title, rest) = text.split_once('\n').unwrap();
        let sentence = title.split_once(": ").unwrap().1;
        let _ = writeln!(index, "- [`{name}`]({name}.md): {sentence}");
        let mut page = format!(
            "# `{name}`\n\n{FROM}\n{}{}\n{rest}\n## Settings\n\n",
            sentence[..1].to_uppercase(),
            &sentence[1..]
        );
        schema.tables("", node, &mut page);
        pages.insert(root(&format!("docs/plugins/{name}.md")), page);
    }
    index.push_str(&std::fs::read_to_string(root("docs/plugins/own.md")).unwrap());
    pages.insert(root("docs/plugins/README.md"), index.replacen("\n\n", &format!("\n\n{FROM}\n"), 1));

    let top = schema.0["properties"].as_object().unwrap();
    let mut list = String::new();
    for (name, node) in top {
        let (_, behind) = schema.behind(node);
        let each = match (behind["additionalProperties"].is_object(), behind["items"].is_object()) {
            (true, _) => schema.behind(&behind["additionalProperties"]).1,
            (_, true) => schema.behind(&behind["items"]).1,
            _ => behind,
        };
        let own = said(node);
        let own = own.lines().next().unwrap_or("");
        let paged = each["properties"].is_object() && name != "plugins" && name != "listen";
        if !paged {
            let absent = &node["default"];
            let absent = if absent.is_null() { String::new() } else { format!(" When left out: `{absent}`.") };
            let takes = schema.takes(node);
            let _ = writeln!(list, "- `{name}`: {own} Takes {takes}.{absent}");
            continue;
        }
        let _ = writeln!(list, "- [`{name}`]({name}.md): {own}");
        let mut page = format!("# `{name}`\n\n{FROM}\n{}\n\n", said(each));
        schema.tables("", each, &mut page);
        pages.insert(root(&format!("docs/configuration/{name}.md")), page);
    }
    let intro = std::fs::read_to_string(root("docs/configuration/intro.md")).unwrap();
    pages.insert(
        root("docs/configuration/README.md"),
        format!("# Configuration\n\n{FROM}\n{intro}\n## Top level\n\n{list}"),
    );
    pages
}

#[test]
fn the_pages_say_what_the_code_says() {
    let write = std::env::var_os("HEADWALL_WRITE").is_some();
    let rules = std::fs::read_to_string(root("src/cache/rule.rs")).unwrap();
    let told = std::fs::read_to_string(root("docs/cache-status.md")).unwrap();
    let tokens = rules.split("=> \"").skip(1).map(|rest| rest.split('"').next().unwrap());
    for token in tokens.filter(|token| !token.contains(' ') && !["explicit", "heuristic", "forced"].contains(token)) {
        assert!(told.contains(&format!("`{token}`")), "docs/cache-status.md does not know `{token}`");
    }
    let told = std::fs::read_to_string(root("docs/hardening.md")).unwrap();
    for (source, before) in [
        ("src/proxy/guard.rs", &[r#"refuse(4"#, r#"refuse(5"#, "reason: "][..]),
        ("src/connection.rs", &["Cut::"]),
        ("src/listener/places.rs", &["Full::"]),
    ] {
        let text = std::fs::read_to_string(root(source)).unwrap();
        let lines = text.lines().filter(|line| before.iter().any(|word| line.contains(word)));
        let word = |text: &&str| text.bytes().all(|byte| byte.is_ascii_lowercase() || b"-_".contains(&byte));
        let reasons: Vec<_> = lines.filter_map(|line| line.split('"').nth(1)).filter(word).collect();
        assert!(reasons.len() >= 2, "{source}");
        for reason in reasons {
            assert!(told.contains(&format!("| `{reason}` |")), "docs/hardening.md does not know `{reason}`");
        }
    }
    for (place, page) in pages() {
        let page = page.trim_end().to_owned() + "\n";
        if write {
            std::fs::create_dir_all(place.parent().unwrap()).unwrap();
            std::fs::write(&place, page).unwrap();
            continue;
        }
        let there = std::fs::read_to_string(&place).unwrap_or_default();
        assert!(there == page, "{}: `make docs` writes it anew", place.display());
    }
}

#[test]
fn every_example_in_the_pages_is_a_configuration() {
    let mut examples = 0;
    for folder in ["docs/plugins", "docs/configuration"] {
        for page in std::fs::read_dir(root(folder)).unwrap().map(|entry| entry.unwrap().path()) {
            let text = std::fs::read_to_string(&page).unwrap();
            for block in text.split("```yaml\n").skip(1) {
                let block = block.split("```").next().unwrap();
                let mut whole = String::new();
                if folder == "docs/plugins" && !block.contains("plugins:") {
                    let lines = block.lines().map(|line| format!("    {line}\n"));
                    let around = "trust: { proxies: [10.0.0.0/8] }\nplugins:\n";
                    whole = format!("{around}{}", lines.collect::<String>().replacen("    ", "  - ", 1));
                } else {
                    whole.push_str(block);
                }
                if !whole.contains("routes:") {
                    whole.push_str("routes: [{ to: { respond: {} } }]\n");
                }
                let file = TempFile::new("example.yaml", &whole);
                let mut command = Command::new(env!("CARGO_BIN_EXE_headwall"));
                command.args(["check", "--config", file.path()]).env("KV_TOKEN", "0123456789abcdef");
                let (code, _, told) = run(&mut command);
                assert_eq!(code, 0, "{}: {told}\n{whole}", page.display());
                examples += 1;
            }
        }
    }
    assert!(examples >= 18, "{examples}");
}
