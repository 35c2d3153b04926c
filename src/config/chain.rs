//! From lists of plugins to chains: each is built, or kept from the configuration before, and what must
//! not stand around one route together is a mistake.

use blake2::{Blake2s256, Digest};

use super::compile::Compiler;
use super::error::did_you_mean;
use super::place::join;
use super::settings::One;
use crate::plugin::Hooks;
use crate::plugins;

/// A plugin of a list, built.
pub(super) struct Built {
    /// Where it stands in the file.
    pub path: String,
    /// Its name.
    pub name: &'static str,
    /// Its doors.
    pub hooks: Hooks,
    /// Its name and settings, as text.
    pub text: String,
}

impl Compiler<'_> {
    /// The plugins of a list; `route` is what its route matches, empty for the site's.
    pub(super) fn plugins(&mut self, path: &str, route: &str, list: &[One], proxies: bool) -> Vec<Built> {
        let mut all: Vec<Built> = Vec::new();
        for (index, one) in list.iter().enumerate() {
            let at = join(&format!("{path}[{index}]"), &one.name);
            let known = || plugins::BUILT_IN.iter().chain(self.parts.plugins);
            let Some(entry) = known().find(|entry| entry.name == one.name) else {
                let mut names: Vec<_> = known().map(|entry| entry.name).collect();
                names.sort_unstable();
                let hint = did_you_mean(&one.name, names.iter().copied()).unwrap_or_default();
                let message = format!("no plugin named `{}`; there are: {}{hint}", one.name, names.join(", "));
                self.complaints.key(&at, message);
                continue;
            };
            let text = format!("{}: {}", one.name, canonical(&one.value));
            // The same settings in the same place, and the same once more is another one.
            let twins = all.iter().filter(|built| built.text == text).count();
            let place = digest(&format!("{route} {twins} {text}"));
            let hooks = match self.parts.lasting.kept(&place) {
                Some(hooks) => hooks,
                None => match (entry.build)(&one.value) {
                    Ok(hooks) => hooks,
                    Err(complaint) => {
                        self.inside(&at, complaint);
                        continue;
                    }
                },
            };
            if hooks.is_kept() {
                self.kept.insert(place, hooks.clone());
            }
            if let Some(why) = hooks.why_only_with_proxies().filter(|_| !proxies) {
                self.complaints.key(&at, why);
            }
            all.push(Built { path: at, name: entry.name, hooks, text });
        }
        all
    }

    /// What must not stand around one route together.
    pub(super) fn check_chain(&mut self, number: usize, cached: bool, site: &[Built], own: &[Built]) {
        let chain = || site.iter().chain(own);
        for (index, built) in chain().enumerate() {
            let twice = built.hooks.only_once() && chain().take(index).any(|before| before.name == built.name);
            if twice {
                let message = format!("`{}` stands around this route already; take one of the two out", built.name);
                self.complaints.key(&built.path, message);
            }
            if !cached {
                continue;
            }
            if let Some(why) = built.hooks.why_unshareable() {
                let message = format!(
                    "{why}, but a cached response is for everybody (see routes[{number}].cache); take it out, or take `cache` off the route"
                );
                self.complaints.key(&built.path, message);
            }
            let mover = chain().find(|other| other.hooks.does_move());
            if let (Some(why), Some(mover)) = (built.hooks.why_not_beside_a_move(), mover) {
                let message = format!(
                    "{why}, but `{}` makes one cached response of several such targets (see routes[{number}].cache); take one of the two out",
                    mover.name
                );
                self.complaints.key(&built.path, message);
            }
        }
    }
}

/// What plugins make of a stored response, for the cache key: two routes whose plugins do the same to it
/// share what is stored, and no others. A hash, because settings may be long, and secret.
pub(super) fn shape<'a>(chain: impl Iterator<Item = &'a Built>) -> String {
    let shaping: String =
        chain.filter(|built| built.hooks.shapes_what_is_stored()).map(|built| built.text.as_str()).collect();
    if shaping.is_empty() { shaping } else { format!(" {}", digest(&shaping)) }
}

fn digest(text: &str) -> String {
    format!("{:x}", Blake2s256::digest(text))
}

/// Settings as a text that does not depend on how they are written.
fn canonical(value: &serde_yaml::Value) -> String {
    match value {
        serde_yaml::Value::Null => "{}".into(),
        serde_yaml::Value::Mapping(map) => {
            let mut pairs: Vec<_> = map.iter().map(|(key, value)| (canonical(key), canonical(value))).collect();
            pairs.sort();
            format!("{{{}}}", pairs.iter().map(|(key, value)| format!("{key}:{value},")).collect::<String>())
        }
        serde_yaml::Value::Sequence(list) => {
            format!("[{}]", list.iter().map(|value| canonical(value) + ",").collect::<String>())
        }
        other => format!("{other:?}"),
    }
}
