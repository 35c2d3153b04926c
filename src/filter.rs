//! What changes content on its way to the client, chunk by chunk.

use bytes::Bytes;

/// Changes content on its way to the client. Pushed by a plugin when it sees the head.
pub trait ContentFilter: Send + Sync {
    /// Takes a chunk and gives what can be sent so far; it may be empty.
    fn chunk(&mut self, chunk: Bytes) -> Result<Bytes, Broken>;

    /// Gives the rest; called once, at the end.
    fn finish(&mut self) -> Result<Bytes, Broken> {
        Ok(Bytes::new())
    }
}

/// The content cannot go on. Its message is cut, so that it never looks whole.
#[derive(Debug, PartialEq, Eq)]
pub struct Broken;
