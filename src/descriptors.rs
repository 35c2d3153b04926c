//! How many files and connections the system lets this process have.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Kept back for all that is neither a client's connection nor one for its request: listeners, logs, operators.
const KEPT: u64 = 96;

/// Raises the limit as far as the system lets us; what it is then.
pub fn raise() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 1024 };
    if soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() { hard } else { soft }
}

/// How many connections of clients there is room for, when each may need another one for the app.
pub fn room(limit: u64) -> usize {
    (limit.saturating_sub(KEPT) / 2).max(1).try_into().unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_what_is_there_is_for_clients() {
        for (limit, expected) in [(1024, 464), (100, 2), (10, 1), (0, 1)] {
            assert_eq!(room(limit), expected, "{limit}");
        }
        let raised = raise();
        assert_eq!(raise(), raised, "there is nothing left to raise");
    }
}
