//! From a file to a plan: load, check, compile.
//!
//! The text is filled in (`environment`), indexed ([`place`]), decoded strictly ([`settings`]), and compiled
//! into a [`Plan`] (`compile`), where names find what they name and plugins are built.
//! Whatever is wrong is told with its line, its column and what would be right.

mod cached;
mod chain;
mod compile;
mod environment;
pub mod error;
mod limits;
pub mod place;
mod schema;
mod secrets;
pub mod settings;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::cache::Limits;
use crate::clock::Clock;
use crate::connection::Bounds;
use crate::fields::query::Rules;
use crate::handlers::{Named, Stores};
use crate::identity::Identity;
use crate::plugin::{Chain, Entry, Hooks};
use crate::route::Router;
use crate::secret::Secret;
use crate::units::Network;
use crate::upstream::Upstream;
use compile::Compiler;
use environment::Masked;
use error::Complaints;
pub use error::Error;
use place::Index;
pub use schema::schema;
use settings::Settings;

/// A configuration at work: everything a request needs, in one place.
pub struct Plan {
    /// The settings it was made from.
    pub settings: Settings,
    /// Finds the route.
    pub router: Router,
    /// The site's plugins alone, for what no route answers.
    pub site: Chain,
    /// Whose word about clients is believed.
    pub trusted: Vec<Network>,
    /// What opens the operator's listener and has decisions explained; nobody may ask for that without one.
    pub admin_token: Option<Secret>,
    /// What each connection of a client is held to (`settings.limits` has the rest).
    pub bounds: Bounds,
    /// Whom the process becomes.
    pub user: Option<Identity>,
    /// How the cache is bounded.
    pub limits: Limits,
    /// All upstreams.
    pub upstreams: Vec<Arc<Upstream>>,
    /// The key/value stores it names, with their memory.
    pub stores: Named,
    /// What chooses among what is stored for one target, besides the target, by upstream.
    pub selectors: BTreeMap<String, Vec<(String, Rules)>>,
    /// The plugins that the next configuration keeps, if it asks for the same.
    pub kept: BTreeMap<String, Hooks>,
}

impl Plan {
    /// What its cached routes do to queries.
    pub fn queries(&self) -> impl Iterator<Item = &Rules> {
        self.selectors.values().flatten().map(|(_, rules)| rules)
    }
}

/// What outlives a configuration: content of stores, and what plugins remember.
#[derive(Default)]
pub struct Lasting {
    /// The key/value stores.
    pub stores: Stores,
    kept: Mutex<BTreeMap<String, Hooks>>,
}

impl Lasting {
    /// From now on this configuration is at work.
    pub fn publish(&self, plan: &Plan) {
        self.stores.publish(&plan.stores);
        let before = std::mem::replace(&mut *self.kept.lock(), plan.kept.clone());
        drop(before);
    }

    fn kept(&self, name: &str) -> Option<Hooks> {
        self.kept.lock().get(name).cloned()
    }
}

/// What a configuration is compiled with.
pub struct Parts<'a> {
    /// Plugins beside the built-in ones.
    pub plugins: &'a [Entry],
    /// What outlives a configuration.
    pub lasting: &'a Lasting,
    /// The time.
    pub clock: &'a Clock,
}

/// Loads a file.
pub fn load(path: &Path, parts: &Parts<'_>) -> Result<Plan, Error> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|error| error::general(&name, format!("cannot be read: {error}")))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let line = error.as_bytes()[..error.utf8_error().valid_up_to()].split(|byte| *byte == b'\n').count();
        error::general(&name, format!("line {line} is not UTF-8"))
    })?;
    parse(&name, &text, parts)
}

/// Loads a text; `file` is what complaints call it.
pub fn parse(file: &str, text: &str, parts: &Parts<'_>) -> Result<Plan, Error> {
    parse_in(file, text, parts, &|name| std::env::var(name).ok())
}

/// The same where the environment is what `say` says.
fn parse_in(file: &str, text: &str, parts: &Parts<'_>, say: &dyn Fn(&str) -> Option<String>) -> Result<Plan, Error> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let fault = |fault| error::faults(file, text, vec![fault]);
    let masked = Masked::new(text).map_err(fault)?;
    let index = Index::of(masked.text()).map_err(fault)?;
    let (filled, hidden) = masked.fill(&index, say).map_err(|all| error::faults(file, text, all))?;
    let mut complaints = Complaints::new(file, text, &index, hidden);
    let decoded: Result<Settings, _> = serde_path_to_error::deserialize(serde_yaml::Deserializer::from_str(&filled));
    let settings = match decoded {
        Ok(settings) => settings,
        Err(error) => {
            let path = error.path().to_string();
            complaints.decode(if path == "." { "" } else { &path }, &error.inner().to_string());
            complaints.finish()?;
            return Err(error::general(file, "this is no configuration"));
        }
    };
    Compiler::new(parts, complaints).compile(file, settings)
}

/// The plan for `run --to`: a proxy with a cache and a store, and nothing to configure.
pub fn simple(to: &str, listen: &str, parts: &Parts<'_>) -> Result<Plan, Error> {
    let quote = |text: &str| serde_json::Value::from(text).to_string();
    let text = format!(
        "listen: [{}]\nupstreams: {{ app: {{ servers: [{}] }} }}\nroutes:\n  - match: {{ prefix: /cache/ }}\n    to: {{ kv: {{}} }}\n  - to: {{ proxy: app }}\n    cache: {{}}\n",
        quote(listen),
        quote(to)
    );
    parse("--to", &text, parts).map_err(|mut error| {
        // There is no file to point into.
        error.problems.iter_mut().for_each(|problem| (problem.place, problem.line) = (None, None));
        error
    })
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
