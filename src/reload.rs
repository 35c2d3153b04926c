//! Takes a new configuration over while the server runs.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::access_log::AccessLog;
use crate::config::Lasting;
use crate::config::settings::{Listen, Settings};
use crate::config::{Error, Plan};
use crate::proxy::{Proxy, Snapshot};

/// Loads the configuration again.
pub type Load = dyn Fn() -> Result<Plan, Error> + Send + Sync;

/// What only a new process changes.
#[derive(PartialEq)]
struct Fixed {
    listen: Vec<Listen>,
    admin: Option<Listen>,
    threads: Option<u16>,
    user: Option<String>,
}

impl Fixed {
    fn of(settings: &Settings) -> Self {
        let admin = settings.admin.as_ref().map(|admin| admin.listen.clone());
        Fixed { listen: settings.listen.clone(), admin, threads: settings.threads, user: settings.user.clone() }
    }

    /// Whether the operators' listener, which stays where it is, would be open to everybody with these settings.
    fn laid_open(&self, settings: &Settings) -> bool {
        let beyond = self.admin.as_ref().is_some_and(|admin| !admin.bind.ip().is_loopback());
        let open = settings.admin.as_ref().is_none_or(|admin| !admin.is_guarded() && !admin.insecure);
        beyond && open
    }
}

/// Reloads when it is told to.
pub struct Reloader {
    proxy: Proxy,
    lasting: Arc<Lasting>,
    load: Option<Arc<Load>>,
    fixed: Fixed,
}

impl Reloader {
    /// For a server that starts with what is configured now.
    pub fn new(proxy: Proxy, lasting: Arc<Lasting>, load: Option<Arc<Load>>) -> Arc<Self> {
        let fixed = Fixed::of(&proxy.snapshot.load().plan.settings);
        Arc::new(Reloader { proxy, lasting, load, fixed })
    }

    /// Reloads each time it is told; when told several times meanwhile, once more.
    pub async fn run(self: Arc<Self>, told: Arc<Notify>) {
        loop {
            told.notified().await;
            let this = self.clone();
            // Files may be slow, and a plugin that panics on its settings is not the end of the server.
            let done = tokio::task::spawn_blocking(move || this.reload()).await;
            let done = done.unwrap_or_else(|error| Err(format!("it could not be built: {error}")));
            let result = match done {
                Ok(()) => {
                    tracing::info!("the configuration was reloaded");
                    "ok"
                }
                Err(error) => {
                    tracing::error!("the configuration was not reloaded, the old one stays:\n{error}");
                    "failed"
                }
            };
            self.proxy.metrics.reloads.with_label_values(&[result]).inc();
        }
    }

    /// All at once for new exchanges, while running ones keep theirs.
    fn reload(&self) -> Result<(), String> {
        let load = self.load.as_ref().ok_or("there is no file to reload")?;
        let old = self.proxy.snapshot.load_full();
        let plan = load().map_err(|error| error.to_string())?;
        if self.fixed.laid_open(&plan.settings) {
            return Err("the admin listener stays beyond loopback until a new process, and would have no token".into());
        }
        let wanted = &plan.settings.log.access;
        let log = match (&old.log, wanted) {
            (log, wanted) if *wanted == old.plan.settings.log.access => log.clone(),
            (_, None) => None,
            (_, Some(settings)) => {
                let log = AccessLog::open(settings, self.proxy.metrics.clone());
                Some(Arc::new(log.map_err(|error| format!("{}: {error}", settings.place()))?))
            }
        };
        if Fixed::of(&plan.settings) != self.fixed {
            tracing::warn!(
                "`listen`, `admin.listen`, `threads` and `user` stay as they were; they change with a new process"
            );
        }
        plan.upstreams.iter().for_each(|upstream| upstream.start(&old.plan.upstreams));
        let limits = plan.limits;
        self.proxy.cache.learn(plan.queries());
        let new = Snapshot::new(plan, log, &self.proxy.metrics);
        self.proxy.snapshot.store(new.clone());
        old.plan.upstreams.iter().for_each(|upstream| upstream.retire());
        self.lasting.publish(&new.plan);
        self.proxy.cache.set_limits(limits);
        let stays = |name: &str| new.plan.router.routes.iter().any(|route| *route.name == *name);
        let gone = old.plan.router.routes.iter().filter(|route| !stays(&route.name));
        gone.for_each(|route| self.proxy.metrics.forget(&route.name));
        Ok(())
    }
}
