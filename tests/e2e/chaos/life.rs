//! The process: killed, told to end, and fed more than it may hold.

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::support::{Client, Origin, Process, Response, TempFile, free_port, metric, together, wait_until};

/// The binary with a file of its own, before an upstream `app`.
pub struct Site {
    pub address: SocketAddr,
    pub admin: SocketAddr,
    file: TempFile,
    process: Option<Process>,
}

impl Site {
    pub fn new(server: &str, around: &str, routes: &str) -> Self {
        let (port, admin) = (free_port(), free_port());
        let file = TempFile::new(
            "chaos.yaml",
            &format!(
                "threads: 2\nlisten: [\"127.0.0.1:{port}\"]\nadmin: {{ listen: \"127.0.0.1:{admin}\" }}\n{around}upstreams: {{ app: {{ servers: [\"{server}\"] }} }}\n{routes}"
            ),
        );
        Site { address: ([127, 0, 0, 1], port).into(), admin: ([127, 0, 0, 1], admin).into(), file, process: None }
    }

    /// What starts it.
    pub fn words(&self) -> [&str; 4] {
        [env!("CARGO_BIN_EXE_headwall"), "run", "--config", self.file.path()]
    }

    pub fn command(&self) -> Command {
        let words = self.words();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command
    }

    /// Started by this command, which runs what [`Site::words`] says.
    pub fn run(mut self, command: &mut Command) -> Self {
        self.process = Some(Process::run(command).ready(self.address.port()).ready(self.admin.port()));
        self
    }

    /// This child.
    pub fn is(mut self, child: Child) -> Self {
        self.process = Some(Process { child }.ready(self.address.port()).ready(self.admin.port()));
        self
    }

    pub fn process(&self) -> &Process {
        self.process.as_ref().unwrap()
    }

    pub fn id(&self) -> u32 {
        self.process().child.id()
    }

    pub fn get(&self, target: &str) -> Response {
        let mut client = Client::to(self.address);
        client.request("GET", target, "");
        client.response("GET")
    }
}

/// Seconds of a processor that a process has used.
pub fn processor_time(id: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    // utime and stime, the 14th and 15th of all, in hundredths.
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

fn resident(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().split(' ').next().unwrap().parse::<u64>().unwrap() << 10
}

pub fn killed() -> String {
    let origin = Origin::start();
    let site = Site::new(&format!("127.0.0.1:{}", origin.port), "", "routes: [{ to: { proxy: app }, cache: {} }]\n");
    let mut command = site.command();
    let mut site = site.run(&mut command);
    let stored = "/bytes?size=300000&sized=1&h.Cache-Control=max-age=600";
    site.get(stored).whole(200);
    // Connections that are open, in use and half a request when it happens.
    let _idle: Vec<_> = (0..10).map(|_| Client::to(site.address)).collect();
    let mut running = Client::to(site.address);
    running.request("GET", "/events", "");
    running.head();
    let mut filling = Client::to(site.address);
    filling.request("GET", "/chunks?pieces=a%20b&pace=60000&h.Cache-Control=max-age=60", "");
    filling.head();
    site.process().signal("KILL");
    wait_until(|| TcpStream::connect(site.address).is_err());
    drop(site.process.take());
    let since = Instant::now();
    let mut command = site.command();
    let site = site.run(&mut command);
    assert_eq!(site.get(stored).whole(200).content.len(), 300_000);
    let took = since.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(site.get(stored).whole(200).cache().contains("hit"));
    format!("the same port serves {} ms after it was started again", took.as_millis())
}

/// What became of one request.
enum Fate {
    Answered,
    Refused,
    Lost(String),
}

/// Asks on a connection that is kept, or on a new one. Any server may close a kept one while a request is on its way:
/// then it is sent again on a new one, as every client does.
fn ask(kept: &mut Option<Client>, address: SocketAddr, target: &str) -> Fate {
    loop {
        let was_kept = kept.is_some();
        let mut client = match kept.take() {
            Some(client) => client,
            None => match Client::connect(address) {
                Ok(client) => client,
                // Refused, or given up before there was a connection: nothing was sent.
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset) => {
                    return Fate::Refused;
                }
                Err(error) => return Fate::Lost(error.to_string()),
            },
        };
        let request = format!("GET {target} HTTP/1.1\r\nHost: site.test\r\n\r\n");
        let sent = client.tcp.write_all(request.as_bytes());
        let reply = if sent.is_ok() { client.response("GET") } else { Response::default() };
        match reply.status {
            200 if reply.complete => {
                *kept = (reply.field("connection") != "close").then_some(client);
                return Fate::Answered;
            }
            0 if was_kept => {}
            status => return Fate::Lost(format!("{status}, complete: {}", reply.complete)),
        }
    }
}

pub fn terminated() -> String {
    let origin = Origin::start();
    let site = Site::new(
        &format!("127.0.0.1:{}", origin.port),
        "shutdown: { drain: 10s }\n",
        "routes: [{ to: { proxy: app }, cache: {} }]\n",
    );
    let mut command = site.command();
    let mut site = site.run(&mut command);
    let (answered, address) = (AtomicUsize::new(0), site.address);
    let (lost, took) = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..12)
            .map(|client| {
                let answered = &answered;
                scope.spawn(move || {
                    let (mut kept, mut lost) = (None, Vec::new());
                    for number in 0.. {
                        // Some keep their connection, some do not, and for some it takes long.
                        if client % 2 == 0 {
                            kept = None;
                        }
                        let target = format!("/page?wait={}&n={client}-{number}", if client < 4 { 700 } else { 2 });
                        match ask(&mut kept, address, &target) {
                            Fate::Answered => _ = answered.fetch_add(1, Relaxed),
                            Fate::Refused => break,
                            Fate::Lost(why) => lost.push(why),
                        }
                    }
                    lost
                })
            })
            .collect();
        wait_until(|| answered.load(Relaxed) > 500);
        let since = Instant::now();
        site.process.as_ref().unwrap().signal("TERM");
        let lost: Vec<_> = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
        assert_eq!(site.process.as_mut().unwrap().exit_code(), 0);
        (lost, since.elapsed())
    });
    let answered = answered.into_inner();
    assert!(lost.is_empty(), "{} lost, {answered} answered: {lost:?}", lost.len());
    assert!(took < Duration::from_secs(12), "{took:?}");
    format!("{answered} answered, none lost; it ended after {} ms", took.as_millis())
}

pub fn twice_the_memory() -> String {
    const MEMORY: u64 = 64 << 20;
    const SIZE: u64 = 32 << 10;
    let origin = Origin::start();
    let site = Site::new(
        &format!("127.0.0.1:{}", origin.port),
        "cache: { memory: 64MiB, max_object: 1MiB, max_unsized: 1MiB, fills: 8MiB }\n",
        "routes: [{ to: { proxy: app }, cache: {} }]\n",
    );
    let mut command = site.command();
    let site = site.run(&mut command);
    let hot = "/page?say=hot&h.Cache-Control=max-age=3600";
    for _ in 0..3 {
        site.get(hot).whole(200);
    }
    let (peak, misses) = (AtomicU64::new(0), AtomicUsize::new(0));
    let each = (2 * MEMORY / SIZE / 4) as usize;
    together(4, |part| {
        let mut client = Client::to(site.address);
        for number in 0..each {
            let sized = if number % 2 == 0 { "&sized=1" } else { "" };
            client.request(
                "GET",
                &format!("/bytes?size={SIZE}{sized}&n={part}-{number}&h.Cache-Control=max-age=3600"),
                "",
            );
            assert_eq!(client.response("GET").whole(200).content.len() as u64, SIZE);
            if number % 20 == 0 {
                client.request("GET", hot, "");
                let reply = client.response("GET").whole(200);
                assert_eq!(reply.text(), "hot");
                misses.fetch_add(usize::from(!reply.cache().contains("hit")), Relaxed);
                peak.fetch_max(resident(site.id()), Relaxed);
            }
        }
    });
    let (peak, misses) = (peak.into_inner(), misses.into_inner());
    let stored = metric(site.admin, "headwall_cache_bytes");
    assert!(stored <= MEMORY as f64 && stored > 0.8 * MEMORY as f64, "{stored}");
    assert!(peak < MEMORY + MEMORY / 4 + (64 << 20), "{} MiB", peak >> 20);
    assert_eq!(misses, 0, "what is asked for all the time stays");
    format!("{} MiB at most for 64 MiB of store, the hot one hit every time", peak >> 20)
}
