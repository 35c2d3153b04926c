//! A real Node origin, a Headwall in this process or as a binary, and a client that sees every byte.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use headwall::clock::Clock;
use headwall::config::{self, Lasting, Parts};
use headwall::server::Server;
use serde_json::Value;

/// Nothing in these tests takes longer, unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn root(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A Node server that does what its path says (origin.js).
pub struct Origin {
    child: Child,
    pub port: u16,
    control: SocketAddr,
}

impl Origin {
    pub fn start() -> Self {
        Self::on("")
    }

    /// On a unix socket, or on IPv6 for `[::1]`.
    pub fn on(socket: &str) -> Self {
        Self::of("tests/e2e/origin.js", socket)
    }

    /// Another script that tells its two ports.
    pub fn of(script: &str, socket: &str) -> Self {
        let mut child = Command::new("node")
            .arg(root(script))
            .args(Some(socket).filter(|socket| !socket.is_empty()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("node is there");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ports: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("the origin said {line:?}"));
        let port = |name: &str| ports[name].as_u64().unwrap() as u16;
        Origin { child, port: port("port"), control: SocketAddr::from(([127, 0, 0, 1], port("control"))) }
    }

    pub fn ask(&self, path: &str) -> Value {
        let mut client = Client::to(self.control);
        client.send(&format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
        serde_json::from_str(&client.response("GET").text()).unwrap()
    }

    /// The requests whose target begins so.
    pub fn requests(&self, start: &str) -> Vec<Value> {
        let log = self.ask("/__log");
        log.as_array()
            .unwrap()
            .iter()
            .filter(|request| request["url"].as_str().unwrap().starts_with(start))
            .cloned()
            .collect()
    }

    pub fn count(&self, start: &str) -> usize {
        self.requests(start).len()
    }

    /// A field of the last request whose target begins so.
    pub fn field(&self, start: &str, name: &str) -> Option<String> {
        self.requests(start).last()?["headers"][name].as_str().map(str::to_owned)
    }

    /// Bytes of content that were written for this target.
    pub fn sent(&self, target: &str) -> u64 {
        self.ask("/__sent")[target].as_u64().unwrap_or(0)
    }

    /// Sends an event to everybody who listens at `/told`; the next one waits until this one is sent.
    pub fn tell(&self, event: &str) {
        wait_until(|| self.ask(&format!("/__tell?event={event}")).as_u64().unwrap() > 0);
    }

    /// Waits until no response for a target that begins so is under way.
    pub fn wait_closed(&self, start: &str) -> Duration {
        let since = Instant::now();
        wait_until(|| {
            !self.ask("/__open").as_array().unwrap().iter().any(|url| url.as_str().unwrap().starts_with(start))
        });
        since.elapsed()
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Looks again and again, as long as patience lasts.
pub fn wait_until(mut fits: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !fits() {
        assert!(Instant::now() < end, "waited in vain");
        // Who is waited for may need this core.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A Headwall in this process, with a clock that the test moves.
pub struct Headwall {
    pub address: SocketAddr,
    pub admin: SocketAddr,
    pub clock: Clock,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Headwall {
    /// With these routes and what stands around them, before this origin; the upstream is `app`.
    pub fn before(origin: &Origin, rest: &str) -> Self {
        Self::start(&format!("upstreams: {{ app: {{ servers: [\"127.0.0.1:{}\"] }} }}\n{rest}", origin.port))
    }

    /// With this configuration, but for the listeners.
    pub fn start(yaml: &str) -> Self {
        Self::with(yaml, &[])
    }

    pub fn with(yaml: &str, plugins: &[headwall::plugin::Entry]) -> Self {
        let text = format!("threads: 2\nlisten: [\"127.0.0.1:0\"]\nadmin: {{ listen: \"127.0.0.1:0\" }}\n{yaml}");
        Self::whole(&text.replace("admin: { listen: \"127.0.0.1:0\" }\n", "admin: { listen: \"[::1]:0\" }\n"), plugins)
    }

    /// With these routes before this origin; clients may speak HTTP/2, too.
    pub fn either(origin: &Origin, rest: &str) -> Self {
        Self::either_with(&format!("upstreams: {{ app: {{ servers: [\"127.0.0.1:{}\"] }} }}\n{rest}", origin.port))
    }

    /// With this configuration, but for the listeners; clients may speak HTTP/2, too.
    pub fn either_with(yaml: &str) -> Self {
        let admin = if yaml.contains("admin:") { "" } else { "admin: { listen: \"[::1]:0\" }" };
        Self::whole(&format!("threads: 2\nlisten: [{{ bind: \"127.0.0.1:0\", h2c: true }}]\n{admin}\n{yaml}"), &[])
    }

    fn whole(text: &str, plugins: &[headwall::plugin::Entry]) -> Self {
        let (lasting, clock) = (Arc::new(Lasting::default()), Clock::system());
        let plan = config::parse("test.yaml", text, &Parts { plugins, lasting: &lasting, clock: &clock })
            .unwrap_or_else(|error| panic!("{error}"));
        let server = Server::new(plan, lasting, clock.clone()).unwrap_or_else(|error| panic!("{error}"));
        let (address, admin) = (server.addresses()[0], server.admin_address().unwrap());
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || {
            server.run_until(async { _ = stopped.await }).unwrap_or_else(|error| panic!("{error}"));
        });
        Headwall { address, admin, clock, stop: Some(stop), thread: Some(thread) }
    }

    pub fn client(&self) -> Client {
        Client::to(self.address)
    }

    /// One GET on a connection of its own.
    pub fn get(&self, target: &str) -> Response {
        self.ask("GET", target, "")
    }

    /// One request on a connection of its own; `fields` are whole lines.
    pub fn ask(&self, method: &str, target: &str, fields: &str) -> Response {
        let mut client = self.client();
        client.request(method, target, fields);
        client.response(method)
    }

    /// One request with content.
    pub fn put(&self, method: &str, target: &str, fields: &str, content: &[u8]) -> Response {
        let mut client = self.client();
        client.request(method, target, &format!("Content-Length: {}\r\n{fields}", content.len()));
        client.send_bytes(content);
        client.response(method)
    }

    /// What the admin listener says to a purge.
    pub fn purge(&self, content: &str) -> String {
        let (status, text) = purge(self.admin, content);
        assert_eq!(status, 200, "{text}");
        text
    }

    /// A number from the metrics; the name with its labels.
    pub fn metric(&self, name: &str) -> f64 {
        metric(self.admin, name)
    }
}

/// Asks the admin listener there for a purge; status and answer.
pub fn purge(admin: SocketAddr, content: &str) -> (u16, String) {
    let mut client = Client::to(admin);
    client.send(&format!(
        "POST /purge HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{content}",
        content.len()
    ));
    let reply = client.response("POST");
    (reply.status, reply.text())
}

/// A number from the metrics of the admin listener there.
pub fn metric(admin: SocketAddr, name: &str) -> f64 {
    let mut client = Client::to(admin);
    client.send("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let text = client.response("GET").text();
    let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
    // One with labels is not there before the first time; any other one always is.
    assert!(name.contains('{') || line.is_some(), "there is no {name}");
    line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

impl Drop for Headwall {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap();
        }
    }
}

/// The binary, as a process of its own.
pub struct Process {
    pub child: Child,
}

impl Process {
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_binary(env!("CARGO_BIN_EXE_headwall"), arguments)
    }

    pub fn start_binary(binary: &str, arguments: &[&str]) -> Self {
        Self::run(Command::new(binary).args(arguments))
    }

    /// A command that this test has made.
    pub fn run(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Process { child }
    }

    /// Waits until it accepts.
    pub fn ready(mut self, port: u16) -> Self {
        wait_until(|| {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended before it accepted on {port}: {ended:?}");
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        self
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: &str) {
        let done = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status().unwrap();
        assert!(done.success());
    }

    pub fn exit_code(&mut self) -> i32 {
        let mut code = None;
        wait_until(|| {
            code = self.child.try_wait().unwrap();
            code.is_some()
        });
        code.unwrap().code().unwrap_or(-1)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that nobody uses just now, and that this run gives to nobody else: below those that the system
/// takes for connections, or a client of another test could have it before its server does.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Runs that begin one after the other are far from each other.
    let start = std::process::id().wrapping_mul(7919) % 15_000;
    loop {
        let port = 15_000 + ((start + u32::from(NEXT.fetch_add(1, Relaxed))) % 15_000) as u16;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A file that goes when the test ends.
pub struct TempFile(pub PathBuf);

impl TempFile {
    pub fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("headwall-{}-{}-{name}", std::process::id(), free_port()));
        std::fs::write(&path, text).unwrap();
        TempFile(path)
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// One connection.
pub struct Client {
    pub tcp: TcpStream,
    buffer: Vec<u8>,
}

/// What came back.
#[derive(Debug, Default)]
pub struct Response {
    pub status: u16,
    pub version: String,
    pub fields: Vec<(String, String)>,
    pub content: Vec<u8>,
    /// It ended as its framing says.
    pub complete: bool,
    pub framing: &'static str,
    pub interim: Vec<u16>,
}

impl Response {
    pub fn field(&self, name: &str) -> &str {
        self.fields.iter().find(|(field, _)| field == name).map_or("", |(_, value)| value)
    }

    pub fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|(field, _)| field == name)
    }

    pub fn cache(&self) -> &str {
        self.field("cache-status")
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.content).into_owned()
    }

    /// Whole, with this status.
    pub fn whole(self, status: u16) -> Self {
        assert!(self.complete && self.status == status, "wanted a whole {status}: {:?} {:?}", self.status, self.fields);
        self
    }
}

impl Client {
    pub fn to(address: SocketAddr) -> Self {
        Self::connect(address).unwrap()
    }

    pub fn connect(address: SocketAddr) -> std::io::Result<Self> {
        let tcp = TcpStream::connect(address)?;
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        tcp.set_write_timeout(Some(PATIENCE)).unwrap();
        tcp.set_nodelay(true).unwrap();
        Ok(Client { tcp, buffer: Vec::new() })
    }

    pub fn send(&mut self, text: &str) {
        self.send_bytes(text.as_bytes());
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.tcp.write_all(bytes).unwrap();
    }

    pub fn request(&mut self, method: &str, target: &str, fields: &str) {
        self.send(&format!("{method} {target} HTTP/1.1\r\nHost: site.test\r\n{fields}\r\n"));
    }

    /// More bytes; 0 when the other end closed.
    pub fn more(&mut self) -> usize {
        let mut bytes = [0; 65536];
        match self.tcp.read(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::Interrupted => self.more(),
            Ok(read) => {
                self.buffer.extend_from_slice(&bytes[..read]);
                read
            }
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => 0,
            Err(error) => panic!("read: {error}"),
        }
    }

    fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\r\n") {
                let line = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
                self.buffer.drain(..end + 2);
                return Some(line);
            }
            if self.more() == 0 {
                return None;
            }
        }
    }

    /// The next so many bytes, or what there is before the end.
    pub fn take(&mut self, count: usize) -> Vec<u8> {
        while self.buffer.len() < count && self.more() > 0 {}
        self.buffer.drain(..count.min(self.buffer.len())).collect()
    }

    /// The head of the next final response.
    pub fn head(&mut self) -> Response {
        let mut response = Response::default();
        loop {
            let Some(line) = self.line() else { return response };
            let mut parts = line.splitn(3, ' ');
            response.version = parts.next().unwrap_or("").to_owned();
            response.status =
                parts.next().and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("status line {line:?}"));
            response.fields.clear();
            while let Some(line) = self.line().filter(|line| !line.is_empty()) {
                let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("field line {line:?}"));
                response.fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            }
            if response.status >= 200 || response.status == 101 {
                return response;
            }
            response.interim.push(response.status);
        }
    }

    /// A chunk of a chunked content; `None` at the end, whether clean or not.
    pub fn chunk(&mut self) -> Option<Vec<u8>> {
        let size = usize::from_str_radix(self.line()?.split(';').next()?, 16).expect("a chunk size");
        if size == 0 {
            while self.line().is_some_and(|line| !line.is_empty()) {}
            return Some(Vec::new());
        }
        let chunk = self.take(size);
        (chunk.len() == size && self.line().is_some_and(|line| line.is_empty())).then_some(chunk)
    }

    /// The next final response.
    pub fn response(&mut self, method: &str) -> Response {
        let mut response = self.head();
        if response.status == 0 {
            return response;
        }
        if method == "HEAD" || matches!(response.status, 101 | 204 | 304) {
            (response.framing, response.complete) = ("none", true);
        } else if response.field("transfer-encoding").eq_ignore_ascii_case("chunked") {
            response.framing = "chunked";
            while let Some(chunk) = self.chunk() {
                if chunk.is_empty() {
                    response.complete = true;
                    break;
                }
                response.content.extend_from_slice(&chunk);
            }
        } else if response.has("content-length") {
            response.framing = "length";
            let length = response.field("content-length").parse().unwrap();
            response.content = self.take(length);
            response.complete = response.content.len() == length;
        } else {
            response.framing = "close";
            let mut bytes = [0; 65536];
            response.content = std::mem::take(&mut self.buffer);
            response.complete = loop {
                match self.tcp.read(&mut bytes) {
                    Ok(0) => break true,
                    Ok(read) => response.content.extend_from_slice(&bytes[..read]),
                    Err(_) => break false,
                }
            };
        }
        response
    }

    /// Whether the other end has closed, within patience.
    pub fn closed(&mut self) -> bool {
        self.buffer.clear();
        self.more() == 0
    }
}

/// Runs the same on many threads at once.
pub fn together<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..count).map(|number| scope.spawn(move || work(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// What a child printed and how it ended.
pub fn run(command: &mut Command) -> (i32, String, String) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// Counts how often each value comes.
pub fn tally<T: std::hash::Hash + Eq>(values: impl IntoIterator<Item = T>) -> HashMap<T, usize> {
    let mut counts = HashMap::new();
    values.into_iter().for_each(|value| *counts.entry(value).or_default() += 1);
    counts
}
