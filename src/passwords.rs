//! Hashes of passwords: verified slowly, by few at once, and not twice.
//!
//! What came out of a verification is remembered for a while under a keyed hash, never under
//! the password. Who floods it from one place waits behind themselves.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use argon2::{Argon2, PasswordHash, PasswordVerifier};
use blake2::{Blake2s256, Digest};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::clock::Moment;
use crate::memory::Memory;
use crate::secret::Secret;

const REMEMBERED_FOR: Duration = Duration::from_secs(300);
/// Bytes for what is remembered.
const REMEMBERED: u64 = 1 << 20;
/// How long a request waits for its turn.
const PATIENCE: Duration = Duration::from_secs(5);
/// Passwords of one client that are verified, or wait for a turn among all, at once.
const EACH: usize = 2;

/// Whether it is a hash of argon2 or bcrypt.
pub fn is_hash(hash: &str) -> bool {
    let argon = hash.starts_with("$argon2") && PasswordHash::new(hash).is_ok();
    argon || (hash.starts_with("$2") && hash.parse::<bcrypt::HashParts>().is_ok())
}

/// How much work a hash is, roughly.
fn cost(hash: &str) -> u64 {
    if let Ok(parsed) = PasswordHash::new(hash) {
        let number = |name| parsed.params.get_decimal(name).map_or(1, u64::from);
        return number("m") * number("t");
    }
    hash.parse::<bcrypt::HashParts>().map_or(0, |parts| 1 << parts.get_cost().min(40))
}

fn fits(hash: &str, password: &[u8]) -> bool {
    if hash.starts_with("$argon2") {
        let parsed = PasswordHash::new(hash);
        return parsed.is_ok_and(|parsed| Argon2::default().verify_password(password, &parsed).is_ok());
    }
    // bcrypt looks at 72 bytes; what is longer would fit by its beginning.
    let fits = bcrypt::verify(&password[..password.len().min(72)], hash).unwrap_or(false);
    fits && password.len() <= 72
}

/// Too many verifications wait already.
#[derive(Debug, PartialEq, Eq)]
pub struct Busy;

/// The users of one place, and what is known of their passwords.
pub struct Passwords {
    users: Arc<BTreeMap<String, Secret>>,
    /// A name that is not there is compared with the hash that is most work.
    decoy: Option<Secret>,
    salt: [u8; 32],
    verdicts: Memory<Box<[u8]>, bool>,
    turns: Semaphore,
    clients: Mutex<Lines>,
}

/// The lines by client, with the number of those who stand in them.
type Lines = HashMap<IpAddr, (usize, Arc<Semaphore>)>;

/// A client's own line; whoever leaves it last takes it away.
struct Line<'a> {
    clients: &'a Mutex<Lines>,
    client: IpAddr,
    own: Arc<Semaphore>,
}

impl<'a> Line<'a> {
    fn of(clients: &'a Mutex<Lines>, client: IpAddr) -> Self {
        // A network of that size is one customer's.
        let client = match client {
            IpAddr::V6(address) => IpAddr::from((u128::from(address) >> 64 << 64).to_be_bytes()),
            address => address,
        };
        let mut all = clients.lock();
        let (standing, own) = all.entry(client).or_insert_with(|| (0, Arc::new(Semaphore::new(EACH))));
        *standing += 1;
        Line { clients, client, own: own.clone() }
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        let mut clients = self.clients.lock();
        let left = clients.get_mut(&self.client).map_or(0, |(standing, _)| {
            *standing -= 1;
            *standing
        });
        if left == 0 {
            clients.remove(&self.client);
        }
    }
}

impl Passwords {
    /// These users with the hashes of their passwords.
    pub fn new(users: BTreeMap<String, Secret>) -> Result<Self, String> {
        let mut salt = [0; 32];
        getrandom::fill(&mut salt).map_err(|error| format!("there is no randomness: {error}"))?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Passwords {
            decoy: users.values().max_by_key(|hash| cost(hash.reveal())).cloned(),
            users: Arc::new(users),
            salt,
            verdicts: Memory::new(REMEMBERED),
            turns: Semaphore::new((cores / 2).max(1)),
            clients: Mutex::default(),
        })
    }

    /// Whether this is the password of this user. `client` is who asks, at `now`.
    pub async fn verify(&self, name: &str, password: &[u8], client: IpAddr, now: Moment) -> Result<bool, Busy> {
        let mut digest = Blake2s256::new();
        digest.update(self.salt);
        digest.update((name.len() as u64).to_be_bytes());
        digest.update(name);
        digest.update(password);
        let key: Box<[u8]> = digest.finalize().as_slice().into();
        if let Some(verdict) = self.verdicts.get(&key, now) {
            return Ok(verdict);
        }
        let line = Line::of(&self.clients, client);
        let turns = async { (line.own.acquire().await, self.turns.acquire().await) };
        let Ok((Ok(_own), Ok(_turn))) = tokio::time::timeout(PATIENCE, turns).await else { return Err(Busy) };
        // Others with the same credentials came first, most likely.
        if let Some(verdict) = self.verdicts.get(&key, now) {
            return Ok(verdict);
        }
        let (users, decoy) = (self.users.clone(), self.decoy.clone());
        let (name, password) = (name.to_owned(), password.to_vec());
        let verified = tokio::task::spawn_blocking(move || match users.get(&name) {
            Some(hash) => fits(hash.reveal(), &password),
            None => {
                // The same work, so that time does not tell which names there are.
                decoy.map(|hash| fits(hash.reveal(), &password));
                false
            }
        });
        let verdict = verified.await.unwrap_or(false);
        self.verdicts.put(key, verdict, 32, Some(now.after(REMEMBERED_FOR)), now);
        Ok(verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    fn of(hash: String) -> Passwords {
        Passwords::new(BTreeMap::from([("ada".to_owned(), Secret::from(hash))])).unwrap()
    }

    fn argon2_hash(password: &str) -> String {
        use argon2::password_hash::{PasswordHasher, SaltString};
        let salt = SaltString::encode_b64(b"some salt").unwrap();
        let cheap = Argon2::new(Default::default(), Default::default(), argon2::Params::new(16, 1, 1, None).unwrap());
        cheap.hash_password(password.as_bytes(), &salt).unwrap().to_string()
    }

    #[tokio::test]
    async fn each_kind_of_hash_knows_its_password() {
        let long = "x".repeat(72);
        let now = Clock::system().now();
        for (hash, password, fits) in [
            (bcrypt::hash("lovelace", 4).unwrap(), "lovelace", true),
            (bcrypt::hash("lovelace", 4).unwrap(), "Lovelace", false),
            (argon2_hash("lovelace"), "lovelace", true),
            (argon2_hash("lovelace"), "", false),
            (bcrypt::hash(&long, 4).unwrap(), &long, true),
            (bcrypt::hash(&long, 4).unwrap(), &format!("{long}y"), false),
        ] {
            assert!(is_hash(&hash));
            let passwords = of(hash);
            for round in 0..2 {
                let client = IpAddr::from([192, 0, 2, 1]);
                assert_eq!(passwords.verify("ada", password.as_bytes(), client, now).await, Ok(fits), "{round}");
                assert_eq!(passwords.verify("bob", password.as_bytes(), client, now).await, Ok(false));
            }
        }
        assert!(
            cost("$2y$12$ICDdtEALRczEbD8eG4FkKuF4ehvAtcWd997qWDlA3HUdgP5Ju6tbG")
                > cost("$2y$10$ICDdtEALRczEbD8eG4FkKuF4ehvAtcWd997qWDlA3HUdgP5Ju6tbG")
        );
        assert!(!is_hash("lovelace") && !is_hash("$apr1$x$y") && !is_hash("$2y$10$short"));
    }

    #[tokio::test]
    async fn lines_go_with_those_who_wait_in_them() {
        let passwords = of(bcrypt::hash("lovelace", 4).unwrap());
        let now = Clock::system().now();
        let all = passwords.turns.acquire_many((std::thread::available_parallelism().unwrap().get() / 2).max(1) as u32);
        let all = all.await.unwrap();
        {
            let mut waiting: Vec<_> = (0..5)
                .map(|number| {
                    let client = IpAddr::from([192, 0, 2, number]);
                    Box::pin(passwords.verify("ada", b"wrong", client, now))
                })
                .collect();
            for wait in &mut waiting {
                assert!(futures_poll(wait.as_mut()).await.is_none());
            }
            assert_eq!(passwords.clients.lock().len(), 5);
        }
        assert_eq!(passwords.clients.lock().len(), 0, "they have left without an answer");
        drop(all);
        assert_eq!(passwords.verify("ada", b"lovelace", [192, 0, 2, 1].into(), now).await, Ok(true));
        assert_eq!(passwords.clients.lock().len(), 0);
    }

    /// What a future says now.
    async fn futures_poll<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(match future.as_mut().poll(context) {
                std::task::Poll::Ready(output) => Some(output),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }
}
