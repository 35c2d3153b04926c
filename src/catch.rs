//! Runs code of plugins and handlers: a panic costs its request and nothing else.
//!
//! What the code worked on is not used again but for telling what happened, so that a half-made change
//! is never taken for a whole one.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

/// The code panicked; the panic itself stands in the log.
#[derive(Debug, PartialEq, Eq)]
pub struct Panicked;

/// Runs it.
pub fn catch<R>(run: impl FnOnce() -> R) -> Result<R, Panicked> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|_| Panicked)
}

/// Runs it to its end.
pub async fn catch_async<F: Future>(run: F) -> Result<F::Output, Panicked> {
    let mut run = pin!(run);
    poll_fn(|context| match catch(|| run.as_mut().poll(context)) {
        Ok(poll) => poll.map(Ok),
        Err(panicked) => Poll::Ready(Err(panicked)),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_answer() {
        assert_eq!(catch(|| 1), Ok(1));
        assert_eq!(catch_async(async { 2 }).await, Ok(2));
        assert_eq!(catch(|| panic!("on purpose")).map(|(): ()| 0), Err(Panicked));
        let late = async {
            tokio::task::yield_now().await;
            panic!("on purpose")
        };
        assert_eq!(catch_async(late).await.map(|(): ()| 0), Err(Panicked));
    }
}
