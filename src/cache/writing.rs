//! Writes a response into the store, for the engine or beside it.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use pingora::cache::key::HashBinary;
use pingora::cache::storage::{HandleMiss, MissFinishType};
use pingora::{Error, ErrorType, Result};

use super::Cache;
use super::fill::{Fill, Written};
use super::parts::Seed;

/// Writes a response in.
pub(super) struct Writer {
    cache: &'static Cache,
    primary: HashBinary,
    hash: HashBinary,
    fill: Arc<Fill>,
    tag: [u8; 8],
    finished: bool,
    /// What stands behind all that comes.
    after: Vec<Bytes>,
}

impl Writer {
    pub(super) fn new(cache: &'static Cache, primary: HashBinary, hash: HashBinary, fill: Arc<Fill>) -> Self {
        let tag = fill.id.to_be_bytes();
        Writer { cache, primary, hash, fill, tag, finished: false, after: Vec::new() }
    }

    /// Begins with what is stored already.
    pub(super) fn seeded(mut self, seed: Option<Seed>) -> Self {
        let Seed { before, after } = seed.unwrap_or_default();
        for piece in before {
            self.write(piece);
        }
        self.after = after;
        self
    }

    /// Takes the next piece.
    pub(super) fn write(&mut self, piece: Bytes) -> Written {
        let written = self.fill.write(piece);
        if written == Written::Outgrown {
            self.cache.outgrown(self.primary);
            self.cache.give_up(self.hash, &self.fill);
        }
        written
    }

    /// That was all; how long it was, if it is stored.
    pub(super) fn finish(mut self) -> u64 {
        for piece in std::mem::take(&mut self.after) {
            self.write(piece);
        }
        self.finished = true;
        match self.fill.complete() {
            Some(content) => {
                let length = content.length;
                self.cache.publish(self.primary, self.hash, &self.fill, content);
                length
            }
            None => {
                self.cache.give_up(self.hash, &self.fill);
                0
            }
        }
    }
}

#[async_trait]
impl HandleMiss for Writer {
    async fn write_body(&mut self, data: Bytes, _: bool) -> Result<()> {
        match self.write(data) {
            Written::Kept | Written::Outgrown => Ok(()),
            Written::Pointless => Error::e_explain(ErrorType::WriteError, "nobody reads it and it cannot be stored"),
        }
    }

    async fn finish(self: Box<Self>) -> Result<MissFinishType> {
        Ok(MissFinishType::Created(Writer::finish(*self) as usize))
    }

    fn streaming_write_tag(&self) -> Option<&[u8]> {
        Some(&self.tag)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.finished {
            self.fill.fail();
            self.cache.give_up(self.hash, &self.fill);
        }
        self.cache.fills.lock().remove(&self.fill.id);
    }
}
