//! The command line.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::clock::Clock;
use crate::config::{self, Lasting, Parts};
use crate::explain::{Failure, Question, explain};
use crate::plugin::Entry;
use crate::probe::{self, Probe};
use crate::replay::{self, Replay};
use crate::secret::{self, Secret};
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
    Health(Whom),
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
    /// Exit codes: 0; 1, the configuration is wrong; 2, the address or a field is; 3, the app was not reached.
    #[command(verbatim_doc_comment)]
    Explain {
        /// The configuration.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// The address as a client would write it; only its name matters, not where it leads.
        #[arg(value_name = "URL")]
        url: String,
        /// A request field.
        #[arg(short = 'H', long = "header", value_name = "FIELD: VALUE")]
        fields: Vec<String>,
        /// The method; one that changes something does so, and is asked once.
        #[arg(long, default_value = "GET")]
        method: String,
    },
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

/// What a purge is told, and whom it tells.
#[derive(Args)]
#[command(group(clap::ArgGroup::new("that").required(true).args(["url", "prefix", "host", "tag", "all"])))]
struct Purge {
    /// One target, with all its variants: an address, or a path for every host.
    #[arg(long)]
    url: Option<String>,
    /// All targets that begin so.
    #[arg(long, value_name = "URL")]
    prefix: Option<String>,
    /// All of one host.
    #[arg(long)]
    host: Option<String>,
    /// All with this tag (Cache-Tag, Surrogate-Key, Cache-Groups).
    #[arg(long)]
    tag: Option<String>,
    /// Everything.
    #[arg(long)]
    all: bool,
    /// Entries become stale instead of going.
    #[arg(long)]
    soft: bool,
    /// Only count.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    whom: Whom,
}

/// A running server's admin listener.
#[derive(Args)]
struct Whom {
    /// The address of the admin listener.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9900")]
    admin: SocketAddr,
    /// The configuration that says where it is, and its token.
    #[arg(long, value_name = "FILE", conflicts_with = "admin")]
    config: Option<PathBuf>,
    /// A file with its token, if it wants one; or HEADWALL_ADMIN_TOKEN says it.
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    token_file: Option<PathBuf>,
}

impl Whom {
    /// The token that the command line or the environment names.
    fn token(&self) -> Result<Option<Secret>, String> {
        match &self.token_file {
            Some(file) => secret::only_token(file).map(Some),
            None => match std::env::var("HEADWALL_ADMIN_TOKEN").map(Secret::from) {
                Ok(token) if token.is_token() => Ok(Some(token)),
                Ok(_) => {
                    Err("HEADWALL_ADMIN_TOKEN is no token; one has at least 16 characters, all visible ASCII".into())
                }
                Err(_) => Ok(None),
            },
        }
    }
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
            log(if matches!(cli.command, Command::Explain { .. }) { "error" } else { "info" });
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
        Command::Health(Whom { config: None, admin, .. }) => return health(*admin),
        Command::Purge(Purge { whom: whom @ Whom { config: None, .. }, .. }) => {
            return match whom.token() {
                Ok(token) => purge(whom.admin, token.as_ref(), &cli.command),
                Err(message) => fail(USAGE, &message),
            };
        }
        Command::Check { config }
        | Command::Explain { config, .. }
        | Command::Health(Whom { config: Some(config), .. })
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
        Command::Health(_) | Command::Purge(_) => match (&plan.settings.admin, &cli.command) {
            (Some(admin), Command::Health(_)) => health(admin.listen.bind),
            (Some(admin), command) => purge(admin.listen.bind, plan.admin_token.as_ref(), command),
            (None, _) => fail(WRONG, "this configuration has no `admin` listener that could be asked"),
        },
        Command::Explain { url, fields, method, .. } => {
            let question = match Question::new(&url, &method, &fields) {
                Ok(question) => question,
                Err(message) => return fail(USAGE, &message),
            };
            match explain(plan, lasting.clone(), clock.clone(), &question) {
                Ok(text) => print(text.trim_end()),
                Err(Failure::Unreachable(text)) => {
                    print(text.trim_end());
                    fail(FAILED, "the app was not reached")
                }
                Err(Failure::Broken(message)) => fail(FAILED, &message),
            }
        }
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

/// Asks the admin listener there.
fn ask(admin: SocketAddr, request: &str, patience: Duration) -> std::io::Result<String> {
    let mut tcp = TcpStream::connect_timeout(&admin, patience)?;
    tcp.set_read_timeout(Some(patience))?;
    tcp.set_write_timeout(Some(patience))?;
    tcp.write_all(request.as_bytes())?;
    let mut answer = String::new();
    tcp.take(4096).read_to_string(&mut answer)?;
    Ok(answer)
}

/// Tells the server what to take out of its store.
fn purge(admin: SocketAddr, token: Option<&Secret>, command: &Command) -> ExitCode {
    let Command::Purge(Purge { url, prefix, host, tag, all, soft, dry_run, .. }) = command else {
        return ExitCode::from(USAGE);
    };
    let mut asked = serde_json::Map::new();
    for (name, value) in [("url", url), ("prefix", prefix), ("host", host), ("tag", tag)] {
        asked.extend(value.iter().map(|value| (name.to_owned(), value.as_str().into())));
    }
    for (name, value) in [("all", all), ("soft", soft), ("dry_run", dry_run)] {
        asked.insert(name.to_owned(), (*value).into());
    }
    let content = serde_json::Value::from(asked).to_string();
    let token = token.map(|token| format!("Authorization: Bearer {}\r\n", token.reveal())).unwrap_or_default();
    let request = format!(
        "POST /purge HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n{token}Content-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{content}",
        content.len()
    );
    // A large purge takes its time.
    match ask(admin, &request, Duration::from_secs(60)) {
        Ok(answer) => {
            let last = answer.lines().next_back().unwrap_or("no answer");
            if answer.starts_with("HTTP/1.1 200 ") { print(last) } else { fail(WRONG, &format!("{admin}: {last}")) }
        }
        Err(error) => fail(WRONG, &format!("{admin}: {error}")),
    }
}

/// Asks the admin listener there whether all is well.
fn health(admin: SocketAddr) -> ExitCode {
    let request = format!("GET /health HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
    match ask(admin, &request, Duration::from_secs(3)) {
        Ok(answer) if answer.starts_with("HTTP/1.1 200 ") => print("ok"),
        Ok(answer) => fail(WRONG, &format!("{admin}: {}", answer.lines().next_back().unwrap_or("no answer"))),
        Err(error) => fail(WRONG, &format!("{admin}: {error}")),
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
        // The engine writes a line for each client that breaks off; ours say the same once.
        format!("{level},pingora_core=off,pingora_proxy=off,pingora_cache=off").parse().unwrap_or_default()
    });
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false)
        .try_init();
}
