//! Stands between the proxy and the app and keeps every byte that the proxy writes, by connection.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What was written, by connection: the port that the app sees, and how often it was given out.
type Written = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

pub struct Tap {
    pub port: u16,
    written: Written,
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Tap {
    pub fn before(app: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (written, over): (Written, Arc<AtomicBool>) = Default::default();
        let (all, ends) = (written.clone(), over.clone());
        let thread = std::thread::spawn(move || {
            let (mut relays, mut uses) = (Vec::new(), BTreeMap::<u16, usize>::new());
            for client in listener.incoming() {
                if ends.load(Relaxed) {
                    break;
                }
                let (client, app) = (client.unwrap(), TcpStream::connect(("127.0.0.1", app)).unwrap());
                _ = (client.set_nodelay(true), app.set_nodelay(true));
                let (back, front) = (app.try_clone().unwrap(), client.try_clone().unwrap());
                let (all, port) = (all.clone(), app.local_addr().unwrap().port());
                let times = uses.entry(port).or_default();
                *times += 1;
                let name = format!("{port}/{times}");
                relays.push(std::thread::spawn(move || {
                    relay(client, app, |bytes| {
                        all.lock().unwrap().entry(name.clone()).or_default().extend_from_slice(bytes)
                    });
                }));
                relays.push(std::thread::spawn(move || relay(back, front, |_| ())));
            }
            relays.into_iter().for_each(|relay| relay.join().unwrap());
        });
        Tap { port, written, over, thread }
    }

    /// Waits until all connections have ended; what was written on each.
    pub fn end(self) -> BTreeMap<String, Vec<u8>> {
        self.over.store(true, Relaxed);
        _ = TcpStream::connect(("127.0.0.1", self.port));
        self.thread.join().unwrap();
        std::mem::take(&mut *self.written.lock().unwrap())
    }
}

/// Copies until one end closes, and then closes the other one in the same way.
fn relay(mut from: TcpStream, mut to: TcpStream, mut keep: impl FnMut(&[u8])) {
    let mut bytes = [0; 16384];
    let how = loop {
        match from.read(&mut bytes) {
            Ok(0) => break Shutdown::Write,
            Ok(read) => {
                keep(&bytes[..read]);
                if to.write_all(&bytes[..read]).is_err() {
                    _ = from.shutdown(Shutdown::Both);
                    return;
                }
            }
            Err(_) => break Shutdown::Both,
        }
    };
    _ = to.shutdown(how);
}
