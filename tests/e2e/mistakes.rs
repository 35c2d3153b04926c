//! Mistakes in configurations, each with the text that the user sees (mistakes.txt).
//!
//! `HEADWALL_WRITE=1 cargo test --test e2e mistakes` writes the texts anew; read the difference.

use std::process::Command;

use crate::support::{TempFile, root, run};

/// What stands in the environment of these runs.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("SHORT_TOKEN", "s3cret"),
    ("LONG_SECRET", "s3cret-and-longer-than-any-word"),
    ("TWO_LINES", "s3cret\nline"),
    ("COUNT", "s3cret-not-a-number"),
    ("NUMBER", "0x1234567890abcdef"),
];

struct Mistake {
    title: String,
    yaml: String,
    told: String,
}

fn read(text: &str) -> Vec<Mistake> {
    text.split("\n=== ")
        .skip(1)
        .map(|block| {
            let (title, rest) = block.split_once('\n').unwrap();
            let (yaml, told) = rest.split_once("+++\n").unwrap_or((rest, ""));
            Mistake { title: title.to_owned(), yaml: yaml.to_owned(), told: told.trim_end().to_owned() }
        })
        .collect()
}

#[test]
fn each_mistake_is_told_as_written_here_and_no_secret_is() {
    let place = root("tests/e2e/mistakes.txt");
    let text = std::fs::read_to_string(&place).unwrap();
    let mistakes = read(&text);
    assert!(mistakes.len() >= 20);
    let mut written = text.split("\n=== ").next().unwrap().to_owned();
    let mut wrong = Vec::new();
    for mistake in mistakes {
        let file = TempFile::new("mistake.yaml", &mistake.yaml);
        let mut command = Command::new(env!("CARGO_BIN_EXE_headwall"));
        command.args(["check", "--config", file.path()]).env_remove("MISSING").envs(ENVIRONMENT.iter().copied());
        let (code, out, told) = run(&mut command);
        assert_eq!((code, out.as_str()), (1, ""), "{}: {told}", mistake.title);
        assert!(
            !["s3cret", "1234567890abcdef", "1311768467294899695"].iter().any(|secret| told.contains(secret)),
            "{} tells a secret: {told}",
            mistake.title
        );
        let told = told.replace(file.path(), "headwall.yaml").trim_end().to_owned();
        written.push_str(&format!("\n=== {}\n{}+++\n{told}\n", mistake.title, mistake.yaml));
        if told != mistake.told {
            wrong.push(format!("{}\n--- expected\n{}\n--- told\n{told}", mistake.title, mistake.told));
        }
    }
    if std::env::var_os("HEADWALL_WRITE").is_some() {
        return std::fs::write(&place, written).unwrap();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
