//! The command line.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Parser, Subcommand};

use crate::clock::Clock;
use crate::config::{self, Lasting, Parts, Plan};
use crate::explain::{self, Explain, Question};
use crate::operator::{self, Health, Purge, Whom};
use crate::plugin::Entry;
use crate::probe::{self, Probe};
use crate::replay::{self, Replay};
use crate::server::Server;
use crate::terminal;

/// The configuration is wrong.
const WRONG: u8 = 1;
/// The command line is wrong.
const USAGE: u8 = 2;
/// The server could not start.
const FAILED: u8 = 3;

/// A caching edge proxy with a key/value store, built on Pingora.
#[derive(Parser)]
#[command(
    name = "headwall",
    version,
    about,
    after_help = "Exit codes: 0 fine, 1 the configuration is wrong, 2 wrong usage, 3 could not start."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the server in the foreground; SIGTERM drains and ends it, SIGHUP reloads the file,
    /// SIGUSR1 opens the log again.
    ///
    /// Examples:
    ///   headwall run --config headwall.yaml
    ///   headwall run --to localhost:3000          # proxy + cache on 127.0.0.1:8080, a store at /cache/
    #[command(verbatim_doc_comment)]
    Run(Run),
    /// Load a configuration, open nothing, and say what is wrong with it.
    Check {
        /// The configuration.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Print the JSON Schema of the configuration, for editors.
    Schema,
    /// Ask a running server whether it is well: exit code 0, or 1 with the reason.
    ///
    /// It asks the admin listener for /health. Examples:
    ///   headwall health                           # on 127.0.0.1:9900
    ///   headwall health --config headwall.yaml    # where that file has its admin listener
    #[command(verbatim_doc_comment)]
    Health(Health),
    /// Ask for one address as a client would, and say why it is cached or not, and what to change.
    ///
    /// The file runs in this process with a listener of its own, beside the server that may use it; the app
    /// is really asked, twice, and once more without Cookie and Authorization where they are given. To plugins
    /// the client is 127.0.0.1. With `https` the request counts as one that came by https.
    ///
    /// Examples:
    ///   headwall explain --config headwall.yaml https://shop.example.com/basket
    ///   headwall explain --config headwall.yaml http://shop.example.com/ -H 'Cookie: sid=1' -H 'Accept: image/avif'
    ///
    /// Exit codes: 0; 1, the configuration is wrong; 2, the address or a field is; 3, the app did not answer.
    #[command(verbatim_doc_comment)]
    Explain(Explain),
    /// Take something out of a running server's store, with all its variants.
    ///
    /// Examples:
    ///   headwall purge --tag product-17
    ///   headwall purge --prefix https://shop.example.com/blog/ --soft
    ///   headwall purge --all --dry-run --config headwall.yaml
    #[command(verbatim_doc_comment)]
    Purge(Purge),
    /// Predict from an access log what a configuration would do: hit ratio, bytes and the origin's load, by route.
    ///
    /// Nothing is sent anywhere. Exit code 0 if there is a report, 1 if a file or no line of the log can be read.
    ///
    /// Examples:
    ///   headwall replay --config headwall.yaml access.log
    ///   headwall replay --config headwall.yaml --against new.yaml --fresh 60s --svg replay.svg access.log
    ///   zcat access.log.*.gz | headwall replay --config headwall.yaml -
    #[command(verbatim_doc_comment)]
    Replay(Replay),
    /// Look whether what one visitor of your own site sends comes back to another one: fields, cookies and parameters that
    /// the cache key does not know. Exit code 0 if nothing did, 1 if something did, 3 if it could not ask.
    ///
    /// Examples:
    ///   headwall probe https://staging.example.com/
    ///   headwall probe -H 'Authorization: Basic c3RhZ2luZzpzZWNyZXQ=' 'http://127.0.0.1:8080/shop?page=2'
    #[command(verbatim_doc_comment)]
    Probe(Probe),
}

#[derive(Args)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["config", "to"])))]
struct Run {
    /// The configuration.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// No file: send everything to this server, cache what it allows, keep a store at /cache/.
    #[arg(long, value_name = "HOST:PORT")]
    to: Option<String>,
    /// With --to: where to listen.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080", conflicts_with = "config")]
    listen: String,
}

/// Runs the command line with these plugins beside the built-in ones.
///
/// This is the whole `main` of a binary with plugins of its own:
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     headwall::run(&[])
/// }
/// ```
pub fn run(plugins: &[Entry]) -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => {
            log(if matches!(cli.command, Command::Explain(_)) { "error" } else { "info" });
            cli
        }
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { USAGE } else { 0 });
        }
    };
    let (lasting, clock) = (Arc::new(Lasting::default()), Clock::system());
    let parts = Parts { plugins, lasting: &lasting, clock: &clock };
    let plan = match &cli.command {
        Command::Schema => return print(&format!("{:#}", config::schema(plugins))),
        Command::Replay(asked) => return replayed(asked, &parts),
        Command::Probe(asked) => return probe::run(asked),
        Command::Health(asked @ Health { whom: Whom { config: None, .. } }) => return answered(asked.ask(None)),
        Command::Purge(asked @ Purge { whom: Whom { config: None, .. }, .. }) => return answered(asked.ask(None)),
        Command::Check { config }
        | Command::Explain(Explain { config, .. })
        | Command::Health(Health { whom: Whom { config: Some(config), .. } })
        | Command::Purge(Purge { whom: Whom { config: Some(config), .. }, .. }) => config::load(config, &parts),
        Command::Run(Run { config: Some(config), .. }) => config::load(config, &parts),
        Command::Run(Run { to, listen, .. }) => config::simple(to.as_deref().unwrap_or_default(), listen, &parts),
    };
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => {
            // Without a file, what is wrong stands on the command line.
            let file = !matches!(&cli.command, Command::Run(Run { config: None, .. }));
            return fail(if file { WRONG } else { USAGE }, &error.to_string());
        }
    };
    match cli.command {
        Command::Schema | Command::Replay(_) | Command::Probe(_) => ExitCode::SUCCESS,
        Command::Health(asked) => answered(asked.ask(Some(&plan))),
        Command::Purge(asked) => answered(asked.ask(Some(&plan))),
        Command::Explain(asked) => explained(&asked, plan, &lasting, &clock),
        Command::Check { config } => {
            let (routes, upstreams) = (plan.router.routes.len(), plan.upstreams.len());
            print(&format!("{}: fine; {routes} routes, {upstreams} upstreams", config.display()))
        }
        Command::Run(run) => {
            let server = Server::new(plan, lasting.clone(), clock.clone());
            let server = server.map(|server| match run.config {
                None => server,
                Some(file) => {
                    let plugins = plugins.to_vec();
                    let load =
                        move || config::load(&file, &Parts { plugins: &plugins, lasting: &lasting, clock: &clock });
                    server.reloading(load)
                }
            });
            match server.and_then(Server::run) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(FAILED, &format!("cannot start: {error}")),
            }
        }
    }
}

/// Asks the app by way of this configuration.
fn explained(asked: &Explain, plan: Plan, lasting: &Arc<Lasting>, clock: &Clock) -> ExitCode {
    let question = match Question::new(&asked.url, &asked.method, &asked.fields) {
        Ok(question) => question,
        Err(message) => return fail(USAGE, &message),
    };
    match explain::explain(plan, lasting.clone(), clock.clone(), &question) {
        Ok(text) => print(text.trim_end()),
        Err(explain::Failure::Unreachable(text)) => {
            print(text.trim_end());
            fail(FAILED, "the app did not answer")
        }
        Err(explain::Failure::Broken(message)) => fail(FAILED, &message),
    }
}

/// What a running server said.
fn answered(answer: Result<String, operator::Failure>) -> ExitCode {
    match answer {
        Ok(text) => print(&text),
        Err(operator::Failure::Usage(message)) => fail(USAGE, &message),
        Err(operator::Failure::Refused(message)) => fail(WRONG, &message),
    }
}

fn print(text: &str) -> ExitCode {
    match terminal::print(&format!("{text}\n")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(FAILED, &format!("standard output: {error}")),
    }
}

/// Loads one configuration or two, and gives them the requests of a log.
fn replayed(asked: &Replay, parts: &Parts<'_>) -> ExitCode {
    let files = [Some(&asked.config), asked.against.as_ref()];
    let plans = files
        .into_iter()
        .flatten()
        .map(|file| config::load(file, parts).map(|plan| replay::Named { name: file.display().to_string(), plan }));
    match plans.collect::<Result<Vec<_>, _>>() {
        Err(error) => fail(WRONG, &error.to_string()),
        Ok(plans) => match replay::run(asked, &plans) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => fail(WRONG, &failure.to_string()),
        },
    }
}

fn fail(code: u8, message: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "headwall: {message}");
    ExitCode::from(code)
}

/// Messages go to standard error; `HEADWALL_LOG` says which, in the form of `RUST_LOG`.
fn log(level: &str) {
    let filter =
        std::env::var("HEADWALL_LOG").ok().and_then(|filter| filter.parse::<tracing_subscriber::EnvFilter>().ok());
    let filter = filter.unwrap_or_else(|| {
        // The engine, and what it speaks HTTP/2 with, write a line for each client that breaks off; ours say the same once.
        format!("{level},pingora_core=off,pingora_proxy=off,pingora_cache=off,h2=off").parse().unwrap_or_default()
    });
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false)
        .try_init();
}
