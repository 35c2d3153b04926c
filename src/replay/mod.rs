//! `headwall replay`: what a configuration would have done with the requests of an access log.
//!
//! Lines are read in their formats ([`line`]), brought into order ([`order`]) and given to a simulation of each
//! configuration ([`simulation`]), which stands on the real guard, router, keys, policy and map. What a log does not say is
//! assumed ([`assume`]), and the report says what and how often.

mod assume;
mod chart;
mod combined;
mod figures;
mod json;
pub(crate) mod line;
mod lines;
mod order;
mod report;
mod simulation;
mod stock;
mod tally;

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use clap::Args;

use crate::config::Plan;
use crate::fields::authority::is_authority;
use crate::terminal::{print, printable};
use assume::{Assumptions, Fresh};
use line::{Line, Stamp};
use lines::{Lines, Next};
use order::Order;
use simulation::Simulation;

/// What a replay is told.
#[derive(Args)]
pub struct Replay {
    /// The configuration.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Another configuration, to compare with.
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,
    /// How long responses are fresh where neither the route nor the log says it: `60s`, `/news/=5s` for what begins
    /// so, `/me=no` for what is not stored. May be given several times; the longest prefix counts.
    #[arg(long, value_name = "[PREFIX=]SPAN")]
    fresh: Vec<Fresh>,
    /// Take it that responses have an ETag, and that a stale one of the same length is confirmed by a 304.
    #[arg(long)]
    validators: bool,
    /// The host of requests, where the log does not say it.
    #[arg(long, value_name = "NAME", default_value = "localhost", value_parser = host)]
    host: String,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Write a chart of hit ratio and origin requests over time, as SVG.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// The access log: combined, or a JSON object a line (Headwall's own, or with nginx's names); `-` is standard input.
    #[arg(value_name = "ACCESS_LOG")]
    log: PathBuf,
}

fn host(text: &str) -> Result<String, String> {
    let legal = is_authority(text.as_bytes());
    legal.then(|| text.to_owned()).ok_or_else(|| "a host as in an address: shop.example.com, or with :8080".to_owned())
}

/// Why there is no result.
pub enum Failure {
    /// Something cannot be read or written.
    Io(PathBuf, io::Error),
    /// No line of the log is a request.
    Nothing(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Io(path, error) => write!(f, "{}: {error}", path.display()),
            Failure::Nothing(told) => f.write_str(told),
        }
    }
}

/// A configuration by the name that the report calls it.
pub struct Named {
    /// The name.
    pub name: String,
    /// What the file says.
    pub plan: Plan,
}

/// So many lines that cannot be read are shown.
const SHOWN: usize = 5;
/// Lines go to the simulations in parcels.
const PARCEL: usize = 1024;
/// So many bytes of them at most, with the last line.
const PARCEL_BYTES: usize = 1 << 20;
/// So many parcels wait for a simulation.
const QUEUE: usize = 8;

/// What was read of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Account {
    lines: u64,
    requests: u64,
    bad: u64,
    /// The first ones: where they stand, what is wrong, and how they begin.
    shown: Vec<(u64, &'static str, String)>,
    late: u64,
    whole_seconds: u64,
    untimed: u64,
    hostless: u64,
    first: Stamp,
    last: Stamp,
}

/// Replays, and writes the report to standard output.
pub fn run(replay: &Replay, plans: &[Named]) -> Result<(), Failure> {
    let assume = Assumptions { fresh: replay.fresh.clone(), validators: replay.validators, host: replay.host.clone() };
    let name = if *replay.log == *"-" { "standard input".to_owned() } else { replay.log.display().to_string() };
    let io = |error| Failure::Io(replay.log.clone(), error);
    let (source, size): (Box<dyn Read>, _) = if *replay.log == *"-" {
        (Box::new(io::stdin().lock()), None)
    } else {
        let file = File::open(&replay.log).map_err(io)?;
        let size = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|metadata| metadata.len());
        (Box::new(file), size)
    };
    let (account, results) = simulate(source, Progress::new(size), plans, &assume).map_err(io)?;
    if results.is_empty() {
        return Err(Failure::Nothing(nothing(&name, &account)));
    }
    let report = report::Report { name: &name, account: &account, plans, results: &results, assume: &assume };
    let text = if replay.json { format!("{:#}\n", report.json()) } else { report.text() };
    print(&text).map_err(|error| Failure::Io("standard output".into(), error))?;
    match &replay.svg {
        Some(path) => write(path, &chart::svg(&name, plans, &results)),
        None => Ok(()),
    }
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| Failure::Io(path.to_owned(), error))
}

fn nothing(name: &str, account: &Account) -> String {
    if account.lines == 0 {
        return format!("{name}: there is no line in it");
    }
    let mut told = format!(
        "{name}: none of its {} lines is a request of a known format (combined, or a JSON object a line)",
        account.lines
    );
    for (number, why, beginning) in &account.shown {
        told.push_str(&format!("\n  line {number}: {why}: {beginning}"));
    }
    told
}

type Parcel = Arc<Vec<Line>>;

/// Reads the log once, for all configurations; none of them has a result when there was no request.
fn simulate<'a>(
    source: impl Read,
    progress: Progress,
    plans: &'a [Named],
    assume: &'a Assumptions,
) -> io::Result<(Account, Vec<Simulation<'a>>)> {
    std::thread::scope(|scope| {
        let (senders, threads): (Vec<_>, Vec<_>) = plans
            .iter()
            .map(|named| {
                let (sender, parcels) = sync_channel(QUEUE);
                (sender, scope.spawn(move || follow(&named.plan, assume, &parcels)))
            })
            .unzip();
        let account = read(source, progress, &senders);
        drop(senders);
        let ends = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        let results = ends.flatten().collect();
        account.map(|account| (account, results))
    })
}

fn follow<'a>(plan: &'a Plan, assume: &'a Assumptions, parcels: &Receiver<Parcel>) -> Option<Simulation<'a>> {
    let mut simulation = None;
    while let Ok(parcel) = parcels.recv() {
        for line in parcel.iter() {
            simulation.get_or_insert_with(|| Simulation::new(plan, assume, line.at)).take(line);
        }
    }
    simulation
}

fn read(source: impl Read, mut progress: Progress, simulations: &[SyncSender<Parcel>]) -> io::Result<Account> {
    let mut account = Account::default();
    let mut lines = Lines::new(source);
    let mut order = Order::default();
    let mut parcel = Vec::with_capacity(PARCEL);
    let send = |parcel: &mut Vec<Line>| {
        let full = Arc::new(std::mem::replace(parcel, Vec::with_capacity(PARCEL)));
        // One that has ended says so when it is asked for its result.
        simulations.iter().for_each(|simulation| _ = simulation.send(full.clone()));
    };
    let (mut span, mut bytes) = (None, 0);
    let mut out = |line: Line| {
        let (first, _) = span.unwrap_or((line.at, line.at));
        span = Some((first, line.at));
        bytes += line.weight();
        parcel.push(line);
        if parcel.len() >= PARCEL || bytes >= PARCEL_BYTES {
            bytes = 0;
            send(&mut parcel);
        }
    };
    loop {
        let parsed = match lines.next()? {
            Next::End => break,
            Next::TooLong(start) => Err(("longer than 64 KiB", start)),
            Next::Line(line) if line.trim_ascii().is_empty() => continue,
            Next::Line(line) => Line::parse(line).map_err(|why| (why, line)),
        };
        account.lines += 1;
        match parsed {
            Ok(line) => {
                account.requests += 1;
                account.whole_seconds += u64::from(line.whole_second);
                account.untimed += u64::from(line.took.is_none());
                account.hostless += u64::from(line.host.is_none());
                order.push(line, &mut out);
            }
            Err((why, line)) => {
                account.bad += 1;
                if account.shown.len() < SHOWN {
                    let beginning = String::from_utf8_lossy(&line[..line.len().min(400)]);
                    let beginning: String = printable(&beginning).chars().take(100).collect();
                    account.shown.push((lines.number, why, beginning));
                }
            }
        }
        if account.lines.is_multiple_of(4096) {
            progress.show(account.lines, lines.bytes);
        }
    }
    order.finish(&mut out);
    account.late = order.late;
    (account.first, account.last) = span.unwrap_or_default();
    send(&mut parcel);
    progress.end();
    Ok(account)
}

/// A bar on standard error, where that is a terminal.
struct Progress {
    size: Option<u64>,
    shown: Option<Instant>,
    terminal: bool,
}

impl Progress {
    fn new(size: Option<u64>) -> Self {
        Progress { size, shown: None, terminal: io::stderr().is_terminal() }
    }

    fn show(&mut self, lines: u64, bytes: u64) {
        if !self.terminal || self.shown.is_some_and(|shown| shown.elapsed() < Duration::from_millis(100)) {
            return;
        }
        self.shown = Some(Instant::now());
        let bar = self.size.filter(|size| *size > 0).map(|size| {
            let done = (bytes * 30 / size).min(30) as usize;
            format!("[{}{}] {:3} %, ", "#".repeat(done), ".".repeat(30 - done), (bytes * 100 / size).min(100))
        });
        let _ = write!(io::stderr(), "\r{}{lines} lines ", bar.unwrap_or_default());
    }

    fn end(&self) {
        if self.shown.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
