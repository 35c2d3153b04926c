//! `headwall explain`: asks for one address as a client would, and tells what was decided and why.
//!
//! The configuration runs as it is, in this process, with a listener of its own on loopback and without the
//! ones it names. So nothing is guessed: what is told is what a server would do, and the app is really asked.

mod ask;
mod page;
mod question;

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::clock::Clock;
use crate::config::{Lasting, Plan};
use crate::secret::Secret;
use crate::server::{self, Server};
use crate::units::Span;

pub use question::{Explain, Question};

/// Why there is no account.
pub enum Failure {
    /// The server could not start, or broke off.
    Broken(String),
    /// The app did not answer; the account says so.
    Unreachable(String),
}

/// A server with this configuration, for as long as this lives.
struct Running {
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), server::Error>>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn secret() -> Result<Secret, String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| error.to_string())?;
    let mut text = String::new();
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    Ok(Secret::from(text))
}

/// Asks, and tells; the account is complete text.
pub fn explain(mut plan: Plan, lasting: Arc<Lasting>, clock: Clock, question: &Question) -> Result<String, Failure> {
    let token = secret().map_err(Failure::Broken)?;
    plan.settings.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0)).into()];
    plan.settings.threads = Some(2);
    plan.settings.admin = None;
    plan.user = None;
    plan.settings.log.access = None;
    plan.settings.shutdown.drain = Span(Duration::from_secs(1));
    plan.admin_token = Some(token.clone());
    let server = Server::new(plan, lasting, clock).map_err(|error| Failure::Broken(error.to_string()))?;
    let address = server.addresses().first().copied();
    let address = address.ok_or_else(|| Failure::Broken("it has no address".to_owned()))?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        server.run_until(async {
            let _ = stopped.await;
        })
    });
    let _running = Running { stop: Some(stop), thread: Some(thread) };

    let ask = |question: &Question| {
        ask::ask(address, &token, question).map_err(|error| Failure::Broken(format!("no answer from within: {error}")))
    };
    let first = ask(question)?;
    if first.told.is_empty() {
        return Err(Failure::Broken(format!("the request was refused with {} before it was looked at", first.status)));
    }
    let mut text = page::first(question, &first);
    if first.failed().is_some() {
        return Err(Failure::Unreachable(text));
    }
    if question.is_safe() {
        let second = ask(question)?;
        text.push_str(&page::again("asked again", &second, &first));
        text.push_str(&page::vanished(&first, &second));
        if let Some(stranger) = question.by_a_stranger() {
            text.push_str(&page::again("asked by somebody else", &ask(&stranger)?, &first));
        }
    }
    Ok(text)
}
