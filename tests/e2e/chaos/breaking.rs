//! An origin of bare sockets, which breaks where a real server would not.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::PATIENCE;

/// A request as it came.
pub struct Asked {
    pub target: String,
    /// How often this was asked for already, with this method.
    pub before: usize,
    /// How many requests this connection brought before.
    pub served: usize,
}

/// What to do with the connection afterwards.
pub enum Then {
    Keep,
    Reset,
    /// Say nothing until the other end gives up.
    Hang,
}

type Counts = Arc<Mutex<HashMap<String, usize>>>;

/// The origin; it lives as long as the test run.
pub struct Breaking {
    pub address: SocketAddr,
    counts: Counts,
    open: Arc<AtomicUsize>,
}

impl Breaking {
    pub fn start(answer: impl Fn(&Asked, &mut TcpStream) -> Then + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, counts, answer) = (listener.local_addr().unwrap(), Counts::default(), Arc::new(answer));
        let (seen, open) = (counts.clone(), Arc::<AtomicUsize>::default());
        let here = open.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let (answer, counts, open) = (answer.clone(), seen.clone(), here.clone());
                open.fetch_add(1, Relaxed);
                std::thread::spawn(move || {
                    serve(connection, &*answer, &counts);
                    open.fetch_sub(1, Relaxed);
                });
            }
        });
        Breaking { address, counts, open }
    }

    /// How many connections are open.
    pub fn open(&self) -> usize {
        self.open.load(Relaxed)
    }

    /// How often this was asked for: `GET /target`.
    pub fn count(&self, request: &str) -> usize {
        self.counts.lock().unwrap().get(request).copied().unwrap_or(0)
    }
}

fn serve(mut connection: TcpStream, answer: &dyn Fn(&Asked, &mut TcpStream) -> Then, counts: &Counts) {
    let _ = connection.set_nodelay(true);
    let _ = connection.set_read_timeout(Some(PATIENCE));
    let Ok(reading) = connection.try_clone() else { return };
    let mut lines = BufReader::new(reading);
    for served in 0.. {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            match lines.read_line(&mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) if line == "\r\n" => break,
                Ok(_) => head.push(line),
            }
        }
        // What comes with a request fits into one read, if any does; nobody looks at it.
        let length =
            head.iter().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
        let mut content = vec![0; length.unwrap_or(0)];
        if std::io::Read::read_exact(&mut lines, &mut content).is_err() {
            return;
        }
        let mut words = head.first().map(String::as_str).unwrap_or_default().split(' ').map(str::to_owned);
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let before = {
            let mut counts = counts.lock().unwrap();
            let count = counts.entry(format!("{method} {target}")).or_default();
            *count += 1;
            *count - 1
        };
        match answer(&Asked { target, before, served }, &mut connection) {
            Then::Keep => {}
            Then::Reset => {
                let _ = socket2::SockRef::from(&connection).set_linger(Some(Duration::ZERO));
                return;
            }
            Then::Hang => {
                let _ = lines.read_line(&mut String::new());
                return;
            }
        }
    }
}

/// A whole answer.
pub fn fine(connection: &mut TcpStream, fields: &str, content: &str) -> Then {
    let _ = write!(connection, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{fields}\r\n{content}", content.len());
    Then::Keep
}
