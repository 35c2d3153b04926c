//! Configuration in, running server out; signals, draining, the end.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::Duration;

use pingora::apps::http_app::HttpServer;
use pingora::apps::{HttpServerOptions, ServerApp};
use pingora::proxy::{HttpProxy, http_proxy};
use pingora::server::configuration::ServerConf;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};

use crate::access_log::AccessLog;
use crate::admin::Admin;
use crate::cache::Cache;
use crate::clock::Clock;
use crate::config::Lasting;
use crate::config::{self, Plan};
use crate::connection::Bounds;
use crate::descriptors;
use crate::fields::forwarded::canonical;
use crate::http2::Either;
use crate::identity::{self, Identity};
use crate::listener::places::{Most, Places};
use crate::listener::{self, Door};
use crate::metrics::Metrics;
use crate::proxy::{House, Proxy, Snapshot};
use crate::refusals::Refusals;
use crate::reload::{Load, Reloader};

/// Connections of operators; far more than anybody needs who looks and purges.
const OPERATORS: usize = 32;
/// How long connections that wait for a request are kept at the end: it may be on its way.
const LAST_REQUEST: Duration = Duration::from_millis(200);
/// How often memory of what has expired is given back.
const SWEEP: Duration = Duration::from_secs(1);

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An address cannot be listened on.
    #[error("{address}: {reason}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What is in the way.
        reason: String,
    },
    /// The access log cannot be opened.
    #[error("{file}: {source}")]
    Log {
        /// The file.
        file: String,
        /// What is in the way.
        source: std::io::Error,
    },
    /// The process cannot become the user that it should.
    #[error("{0}")]
    User(String),
    /// Something of the machine's failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The counters could not be made.
    #[error(transparent)]
    Metrics(#[from] prometheus::Error),
}

/// A server whose addresses are taken and whose signals are heard, not yet serving.
pub struct Server {
    runtime: tokio::runtime::Runtime,
    signals: Signals,
    proxy: Proxy,
    lasting: Arc<Lasting>,
    listeners: Vec<Taken>,
    admin: Option<std::net::TcpListener>,
    load: Option<Arc<Load>>,
    /// Connections of clients that there are descriptors for.
    room: usize,
}

/// An address that is taken, and whether clients may speak HTTP/2 there.
type Taken = (std::net::TcpListener, bool);

fn take(address: SocketAddr) -> Result<std::net::TcpListener, Error> {
    listener::bind(address).map_err(|error| {
        let reason = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                "this address is in use; end what listens there, or choose another one (`listen:` in the file, --listen on the command line)".to_owned()
            }
            std::io::ErrorKind::PermissionDenied => format!("{error}; ports below 1024 need a privilege"),
            _ => error.to_string(),
        };
        Error::Bind { address, reason }
    })
}

/// Root's rights were for the addresses.
fn give_up_root(user: Option<&Identity>) -> Result<(), Error> {
    match (user, identity::is_root()) {
        (Some(user), true) => {
            user.assume().map_err(Error::User)?;
            tracing::info!(%user, "root no more");
        }
        (Some(user), false) if !user.is_here() => {
            tracing::warn!(%user, "not started as root, so `user` is not taken over");
        }
        (None, true) => tracing::warn!("running as root; `user: NAME` leaves its rights once the addresses are taken"),
        _ => {}
    }
    Ok(())
}

impl Server {
    /// Listens for signals, takes the addresses, opens the log.
    pub fn new(plan: Plan, lasting: Arc<Lasting>, clock: Clock) -> Result<Self, Error> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(plan.settings.threads.map_or(cores, usize::from))
            .thread_name("headwall")
            .enable_all()
            .build()?;
        // First of all: whoever can connect may also send a signal.
        let signals = {
            let _inside = runtime.enter();
            Signals::new()?
        };
        let metrics = Arc::new(Metrics::new()?);
        let room = room(plan.settings.limits.connections);
        let listeners = plan.settings.listen.iter().map(|listen| Ok((take(listen.bind)?, listen.h2c)));
        let listeners = listeners.collect::<Result<_, Error>>()?;
        let admin = plan.settings.admin.as_ref().map(|admin| take(admin.listen.bind)).transpose()?;
        // What is opened from here on, the log first, has to be open to that user, too.
        give_up_root(plan.user.as_ref())?;
        let log = plan.settings.log.access.as_ref().map(|settings| {
            let log = AccessLog::open(settings, metrics.clone());
            log.map(Arc::new).map_err(|source| Error::Log { file: settings.place(), source })
        });
        let log = log.transpose()?;
        lasting.publish(&plan);
        let proxy = Proxy::new(House {
            cache: Cache::leak(plan.limits, clock.clone()),
            snapshot: Snapshot::new(plan, log, &metrics).into(),
            refusals: Arc::new(Refusals::new(metrics.clone(), clock.clone())),
            clock,
            metrics,
            draining: AtomicBool::new(false),
        });
        proxy.cache.learn(proxy.snapshot.load().plan.queries());
        Ok(Server { runtime, signals, proxy, lasting, listeners, admin, load: None, room })
    }

    /// On SIGHUP, loads the configuration like this and takes it over.
    pub fn reloading(mut self, load: impl Fn() -> Result<Plan, config::Error> + Send + Sync + 'static) -> Self {
        // What root could read, its successor may not.
        let other = self.proxy.snapshot.load().plan.user.is_some();
        if let Some(error) = other.then(|| load().err()).flatten() {
            tracing::warn!("a reload would fail, because `user` is not root:\n{error}");
        }
        self.load = Some(Arc::new(load));
        self
    }

    /// The addresses that clients connect to.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|(listener, _)| listener.local_addr().ok()).collect()
    }

    /// The operators' address, if there is one.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref()?.local_addr().ok()
    }

    /// Serves until SIGTERM or SIGINT, then drains.
    pub fn run(self) -> Result<(), Error> {
        self.run_until(std::future::pending())
    }

    /// Serves until told by a signal, or until `stop` is ready; then drains.
    pub fn run_until(self, stop: impl Future<Output = ()> + Send) -> Result<(), Error> {
        let Server { runtime, signals, proxy, lasting, listeners, admin, load, room } = self;
        let house = Serving { proxy, lasting, load, signals, room };
        let result = runtime.block_on(house.serve(listeners, admin, stop));
        // What is left is cut: the time to finish is over.
        runtime.shutdown_timeout(Duration::from_millis(100));
        result
    }
}

/// A server at work.
struct Serving {
    proxy: Proxy,
    lasting: Arc<Lasting>,
    load: Option<Arc<Load>>,
    signals: Signals,
    room: usize,
}

impl Serving {
    async fn serve(
        mut self,
        listeners: Vec<Taken>,
        admin: Option<std::net::TcpListener>,
        told: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        tokio::pin!(told);
        let (stop, stopped) = watch::channel(false);
        let places = Arc::new(Places::default());
        self.proxy.snapshot.load().plan.upstreams.iter().for_each(|upstream| upstream.start(&[]));
        let app = Arc::new(app(self.proxy.clone()));
        let (proxy, room) = (self.proxy.clone(), self.room);
        let door = Door {
            app: app.clone(),
            places: places.clone(),
            terms: Arc::new(move |peer| terms(&proxy.snapshot.load().plan, peer, room)),
            refusals: self.proxy.refusals.clone(),
            metrics: self.proxy.metrics.clone(),
            stop: stopped,
        };
        let proxy = self.proxy.clone();
        let either = Arc::new(Either {
            app: app.clone(),
            terms: Box::new(move || {
                let plan = &proxy.snapshot.load().plan;
                (plan.bounds, plan.settings.limits.requests_per_connection)
            }),
            refusals: self.proxy.refusals.clone(),
        });
        for (listener, h2c) in listeners {
            let address = listener.local_addr()?;
            if h2c {
                tokio::spawn(listener::serve(listener, door.with(either.clone())));
            } else {
                tokio::spawn(listener::serve(listener, door.clone()));
            }
            tracing::info!(%address, h2c, "listening");
        }
        // The operator's listener stays while the others drain: that is when it is asked.
        let (stop_admin, admin_stopped) = watch::channel(false);
        if let Some(listener) = admin {
            let address = listener.local_addr()?;
            let admin = Admin { proxy: self.proxy.clone(), lasting: self.lasting.clone() };
            let proxy = self.proxy.clone();
            let most = Most { all: OPERATORS, of_network: None };
            let door = Door {
                app: Arc::new(HttpServer::new_app(admin)),
                places: Arc::default(),
                terms: Arc::new(move |_| (most, proxy.snapshot.load().plan.bounds)),
                refusals: self.proxy.refusals.clone(),
                // What clients do is counted; operators are none.
                metrics: Arc::new(Metrics::new()?),
                stop: admin_stopped,
            };
            tokio::spawn(listener::serve(listener, door));
            tracing::info!(%address, "listening for operators");
        }
        tokio::spawn(sweep(self.proxy.clone(), self.lasting.clone()));
        let reload = Arc::new(Notify::new());
        let reloader = Reloader::new(self.proxy.clone(), self.lasting.clone(), self.load.take());
        let reloader = tokio::spawn(reloader.run(reload.clone()));
        loop {
            let request = tokio::select! {
                request = self.signals.next() => request,
                () = &mut told => Request::Stop,
            };
            match request {
                Request::Reopen => {
                    if let Some(log) = &self.proxy.snapshot.load().log {
                        log.reopen();
                    }
                }
                Request::Reload => reload.notify_one(),
                Request::Stop => break,
            }
        }
        reloader.abort();
        self.drain(&stop, &app, &places).await;
        let _ = stop_admin.send(true);
        if let Some(log) = &self.proxy.snapshot.load().log {
            log.close();
        }
        Ok(())
    }

    async fn drain(&mut self, stop: &watch::Sender<bool>, app: &HttpProxy<Proxy>, open: &Places) {
        let limit = self.proxy.snapshot.load().plan.settings.shutdown.drain.0;
        self.proxy.draining.store(true, Release);
        let _ = stop.send(true);
        tokio::select! {
            () = tokio::time::sleep(LAST_REQUEST.min(limit)) => {}
            () = open.drained() => {}
        }
        ServerApp::cleanup(app).await;
        tracing::info!(connections = open.count(), ?limit, "draining");
        tokio::select! {
            () = open.drained() => tracing::info!("drained"),
            () = tokio::time::sleep(limit) => tracing::warn!(connections = open.count(), "the time to drain is over; cutting what is left"),
            () = self.signals.stop_again() => tracing::warn!(connections = open.count(), "told to stop a second time; cutting what is left"),
        }
    }
}

/// How many connections of clients there are descriptors for; said when that is fewer than there may be.
fn room(connections: u32) -> usize {
    let limit = descriptors::raise();
    let room = descriptors::room(limit);
    if room < connections as usize {
        tracing::warn!(
            limit,
            connections = room,
            "the limit of file descriptors leaves room for fewer connections than `limits.connections` ({connections}) says; raise it (LimitNOFILE, ulimit -n)"
        );
    }
    room
}

/// What counts for a client that comes now.
fn terms(plan: &Plan, peer: IpAddr, room: usize) -> (Most, Bounds) {
    let limits = &plan.settings.limits;
    let peer = canonical(peer);
    // A proxy of ours speaks for many.
    let ours = peer.is_loopback() || plan.trusted.iter().any(|network| network.0.contains(&peer));
    let of_network = (!ours).then_some(limits.connections_per_network);
    (Most { all: room.min(limits.connections as usize), of_network }, plan.bounds)
}

fn app(proxy: Proxy) -> HttpProxy<Proxy> {
    // How often a request is sent again is decided by the proxy's callbacks; eight times is the end of it.
    let conf = ServerConf { max_retries: 8, ..ServerConf::default() };
    let mut app = http_proxy(&Arc::new(conf), proxy);
    let mut options = HttpServerOptions::default();
    // Our 405 for CONNECT carries our fields; the engine's own would not.
    options.allow_connect_method_proxying = true;
    app.server_options = Some(options);
    app
}

async fn sweep(proxy: Proxy, lasting: Arc<Lasting>) {
    let mut tick = tokio::time::interval(SWEEP);
    loop {
        tick.tick().await;
        let (proxy, lasting) = (proxy.clone(), lasting.clone());
        let swept = tokio::task::spawn_blocking(move || {
            proxy.cache.sweep();
            proxy.snapshot.load().plan.upstreams.iter().for_each(|upstream| upstream.sweep());
            let now = proxy.clock.now();
            lasting.stores.all().iter().for_each(|(_, store)| store.sweep(now));
        });
        let _ = swept.await;
    }
}

enum Request {
    Stop,
    Reload,
    Reopen,
}

struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
    user1: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
        })
    }

    async fn next(&mut self) -> Request {
        tokio::select! {
            _ = self.terminate.recv() => Request::Stop,
            _ = self.interrupt.recv() => Request::Stop,
            _ = self.hangup.recv() => Request::Reload,
            _ = self.user1.recv() => Request::Reopen,
        }
    }

    async fn stop_again(&mut self) {
        while !matches!(self.next().await, Request::Stop) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Parts;

    #[test]
    fn proxies_of_ours_are_not_counted_by_network() {
        let text = "trust: { proxies: [10.0.0.0/8] }\nlimits: { connections: 50, connections_per_network: 5 }\nroutes: [{ to: { respond: {} } }]";
        let (lasting, clock) = (Lasting::default(), Clock::system());
        let plan = config::parse("a.yaml", text, &Parts { plugins: &[], lasting: &lasting, clock: &clock }).unwrap();
        for (peer, of_network) in [
            ("127.0.0.1", None),
            ("::1", None),
            ("10.1.2.3", None),
            ("::ffff:10.1.2.3", None),
            ("192.0.2.1", Some(5)),
            ("2001:db8::1", Some(5)),
        ] {
            assert_eq!(terms(&plan, peer.parse().unwrap(), 1000).0, Most { all: 50, of_network }, "{peer}");
        }
        assert_eq!(terms(&plan, [127, 0, 0, 1].into(), 7).0.all, 7, "there is room for no more");
    }
}
