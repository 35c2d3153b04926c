//! What an operator asks a running server by its admin listener: `headwall health` and `headwall purge`.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::config::Plan;
use crate::secret::{self, Secret};

/// The longest answer that is read.
const ANSWER: u64 = 4096;

/// A running server's admin listener.
#[derive(Args)]
pub struct Whom {
    /// The address of the admin listener.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9900")]
    admin: SocketAddr,
    /// The configuration that says where it is, and its token.
    #[arg(long, value_name = "FILE", conflicts_with = "admin")]
    pub config: Option<PathBuf>,
}

impl Whom {
    /// Where to ask, by that configuration or without one.
    fn address(&self, plan: Option<&Plan>) -> Result<SocketAddr, String> {
        let Some(plan) = plan else { return Ok(self.admin) };
        let admin = plan.settings.admin.as_ref().map(|admin| admin.listen.bind);
        let mut admin = admin.ok_or("this configuration has no `admin` listener that could be asked")?;
        // One that listens everywhere is here, too.
        match admin.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => admin.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => admin.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        Ok(admin)
    }
}

/// Whether a server is well.
#[derive(Args)]
pub struct Health {
    /// Which server.
    #[command(flatten)]
    pub whom: Whom,
}

/// What a purge is told, and whom it tells.
#[derive(Args)]
#[command(group(clap::ArgGroup::new("that").required(true).args(["url", "prefix", "host", "tag", "all"])))]
pub struct Purge {
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
    /// Which server.
    #[command(flatten)]
    pub whom: Whom,
    /// A file with the listener's token, if it wants one; or HEADWALL_ADMIN_TOKEN says it.
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    token_file: Option<PathBuf>,
}

/// Why there is no answer, or none that is good.
pub enum Failure {
    /// What the command was told is wrong.
    Usage(String),
    /// The server cannot be asked, or refuses.
    Refused(String),
}

impl Health {
    /// Asks, without a token: nobody needs one for this.
    pub fn ask(&self, plan: Option<&Plan>) -> Result<String, Failure> {
        let admin = self.whom.address(plan).map_err(Failure::Refused)?;
        let request = format!("GET /health HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
        answer(admin, &request, Duration::from_secs(3)).map(|_| "ok".to_owned())
    }
}

impl Purge {
    /// Tells the server what to take out of its store; gives back what it says.
    pub fn ask(&self, plan: Option<&Plan>) -> Result<String, Failure> {
        let admin = self.whom.address(plan).map_err(Failure::Refused)?;
        let token = match plan {
            Some(plan) => plan.admin_token.clone(),
            None => self.token().map_err(Failure::Usage)?,
        };
        let token = token.map(|token| format!("Authorization: Bearer {}\r\n", token.reveal())).unwrap_or_default();
        let content = self.content();
        let request = format!(
            "POST /purge HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n{token}Content-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{content}",
            content.len()
        );
        // A large purge takes its time.
        answer(admin, &request, Duration::from_secs(60))
    }

    fn content(&self) -> String {
        let mut asked = serde_json::Map::new();
        for (name, value) in [("url", &self.url), ("prefix", &self.prefix), ("host", &self.host), ("tag", &self.tag)] {
            asked.extend(value.iter().map(|value| (name.to_owned(), value.as_str().into())));
        }
        for (name, value) in [("all", self.all), ("soft", self.soft), ("dry_run", self.dry_run)] {
            asked.insert(name.to_owned(), value.into());
        }
        serde_json::Value::from(asked).to_string()
    }

    /// The token that the command line or the environment names.
    fn token(&self) -> Result<Option<Secret>, String> {
        if let Some(file) = &self.token_file {
            return secret::only_token(file).map(Some);
        }
        match std::env::var("HEADWALL_ADMIN_TOKEN").map(Secret::from) {
            Ok(token) if token.is_token() => Ok(Some(token)),
            Ok(_) => Err("HEADWALL_ADMIN_TOKEN is no token; one has at least 16 characters, all visible ASCII".into()),
            Err(_) => Ok(None),
        }
    }
}

/// The last line of a good answer.
fn answer(admin: SocketAddr, request: &str, patience: Duration) -> Result<String, Failure> {
    let refused = |why: &dyn std::fmt::Display| Failure::Refused(format!("{admin}: {why}"));
    let text = exchange(admin, request, patience).map_err(|error| refused(&error))?;
    let last = text.lines().next_back().unwrap_or("no answer");
    if text.starts_with("HTTP/1.1 200 ") { Ok(last.to_owned()) } else { Err(refused(&last)) }
}

fn exchange(admin: SocketAddr, request: &str, patience: Duration) -> std::io::Result<String> {
    let mut tcp = TcpStream::connect_timeout(&admin, patience)?;
    tcp.set_read_timeout(Some(patience))?;
    tcp.set_write_timeout(Some(patience))?;
    tcp.write_all(request.as_bytes())?;
    let mut answer = String::new();
    tcp.take(ANSWER).read_to_string(&mut answer)?;
    Ok(answer)
}
