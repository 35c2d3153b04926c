//! Real apps of tests/apps: installed, built and started as their owner would.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::support::{free_port, root, run, wait_until};

/// What is made from an app's files, and is therefore none of them.
const MADE: &[&str] = &["node_modules", ".next", ".nuxt", ".output"];

/// The folder of an app, where its build goes, what starts it, and what it says when it listens.
struct Kind {
    folder: &'static str,
    output: Option<&'static str>,
    start: &'static [&'static str],
    listens: &'static str,
}

fn kind(name: &str) -> Kind {
    match name {
        "next" => Kind {
            folder: "next",
            output: Some(".next"),
            start: &["node_modules/next/dist/bin/next", "start", "-H", "127.0.0.1"],
            listens: "Ready in",
        },
        "nuxt" => Kind {
            folder: "nuxt",
            output: Some(".output"),
            start: &[".output/server/index.mjs"],
            listens: "Listening on",
        },
        "answers" => Kind { folder: "express", output: None, start: &["answers.js"], listens: "listening" },
        "express" => Kind { folder: "express", output: None, start: &["server.js"], listens: "listening" },
        "static" => Kind { folder: "static", output: None, start: &["server.js"], listens: "listening" },
        _ => panic!("there is no app named {name}"),
    }
}

/// One of tests/apps, listening on a port of its own.
pub struct App {
    child: Child,
    pub port: u16,
    log: PathBuf,
}

impl App {
    pub fn start(name: &str) -> Self {
        ready(name);
        // A port that was free may be somebody else's when the app, which is slow, comes for it.
        for _ in 0..5 {
            let mut app = Self::launch(name);
            wait_until(|| app.said().contains(kind(name).listens) || app.child.try_wait().unwrap().is_some());
            if app.child.try_wait().unwrap().is_none() {
                return app;
            }
            let said = app.said();
            assert!(said.contains("EADDRINUSE"), "tests/apps/{name} ended:\n{said}");
        }
        panic!("no port for tests/apps/{name}");
    }

    fn launch(name: &str) -> Self {
        let port = free_port();
        let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}-{port}.log", std::process::id()));
        let written = std::fs::File::create(&log).unwrap();
        let child = Command::new("node")
            .args(kind(name).start)
            .current_dir(root("tests/apps").join(kind(name).folder))
            .envs([("HOST", "127.0.0.1"), ("NODE_ENV", "production"), ("SESSION_SECRET", "for tests")])
            .env("PORT", port.to_string())
            .envs(QUIET.iter().copied())
            .stdin(Stdio::null())
            .stdout(written.try_clone().unwrap())
            .stderr(written)
            .spawn()
            .expect("node is there");
        App { child, port, log }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ends it as a crash would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for App {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("{}", self.said());
        }
        let _ = std::fs::remove_file(&self.log);
    }
}

const QUIET: &[(&str, &str)] = &[("NEXT_TELEMETRY_DISABLED", "1"), ("NUXT_TELEMETRY_DISABLED", "1")];

/// Installs and builds an app, once for what its files say. Those who ask meanwhile wait, so that there
/// is one build at a time; those who ask later are told what came of it.
fn ready(name: &str) {
    static DONE: Mutex<BTreeMap<String, Result<(), String>>> = Mutex::new(BTreeMap::new());
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    let made = done.entry(name.to_owned()).or_insert_with(|| prepare(name));
    let told = made.clone();
    drop(done);
    told.unwrap_or_else(|why| panic!("{why}"));
}

fn prepare(name: &str) -> Result<(), String> {
    let app = root("tests/apps").join(kind(name).folder);
    if app.join("package-lock.json").exists() {
        install(&app)?;
    }
    if let Some(output) = kind(name).output {
        once(&app.join(output).join(".built"), print(&files(&app)), || npm(&app, &["run", "build"]))?;
    }
    Ok(())
}

/// Installs what the lock file of a folder names, once for what it says.
pub fn install(folder: &Path) -> Result<(), String> {
    let wanted = print(&[folder.join("package.json"), folder.join("package-lock.json")]);
    once(&folder.join("node_modules/.installed"), wanted, || {
        npm(folder, &["ci", "--ignore-scripts", "--prefer-offline"])
    })
}

/// Does it, unless the mark says that it was done for the same files. The mark goes first and comes last,
/// so that what was broken off is begun anew.
fn once(mark: &Path, wanted: String, work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    if std::fs::read_to_string(mark).is_ok_and(|made| made == wanted) {
        return Ok(());
    }
    let _ = std::fs::remove_file(mark);
    work()?;
    std::fs::write(mark, wanted).map_err(|error| format!("{}: {error}", mark.display()))
}

/// Runs npm behind everybody else, because other tests measure time meanwhile.
fn npm(app: &Path, arguments: &[&str]) -> Result<(), String> {
    let (code, out, told) = run(Command::new("nice")
        .args(["-n", "19", "npm"])
        .args(arguments)
        .args(["--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"])
        .args(["--fetch-retries=1", "--fetch-timeout=60000"])
        .current_dir(app)
        .envs(QUIET.iter().copied()));
    if code == 0 {
        return Ok(());
    }
    let unreachable =
        ["EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "EHOSTUNREACH", "ENETUNREACH", "ENOTFOUND", "ETIMEDOUT"];
    if unreachable.iter().any(|word| told.contains(word)) {
        return Err(format!(
            "npm does not reach its registry, and the tests need it once to install {}:\n{told}",
            app.display()
        ));
    }
    Err(format!("`npm {}` failed in {}:\n{out}\n{told}", arguments.join(" "), app.display()))
}

/// The files that an app is written in.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
        if MADE.iter().any(|made| entry.file_name() == *made) {
            continue;
        }
        if entry.path().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

/// A fingerprint of these files.
fn print(files: &[PathBuf]) -> String {
    let mut hasher = DefaultHasher::new();
    for file in files {
        (file, std::fs::read(file).unwrap()).hash(&mut hasher);
    }
    format!("{:016x}", hasher.finish())
}
