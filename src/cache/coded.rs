//! Stored content in other content codings, each made once when somebody first wants it.
//!
//! A copy is made by a task of its own, as fast as its source allows, into a [`Fill`]; all
//! who want it read that fill meanwhile, and the copy afterwards. It lives and goes with
//! the content that it was made of, and its bytes count against the store's memory.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::fill::{Fill, Reader};
use super::stored::Content;
use crate::catch::catch;
use crate::filter::ContentFilter;

#[derive(Debug)]
enum Copy {
    Making(Arc<Fill>),
    There(Arc<Content>),
}

/// Where to read a copy.
#[derive(Debug)]
pub enum Found {
    /// It is being made.
    Making(Reader),
    /// It is there.
    There(Arc<Content>),
}

/// The copies of one content, by coding.
#[derive(Debug, Default)]
pub struct Coded(Mutex<Vec<(&'static str, Copy)>>);

impl Coded {
    /// Whether there is a copy in this coding, made or in the making.
    pub fn has(&self, coding: &'static str) -> bool {
        self.0.lock().iter().any(|(name, _)| *name == coding)
    }

    /// The copy in this coding; where there is none, the one that `begin` begins, which must not look here.
    pub fn copy(&self, coding: &'static str, begin: impl FnOnce() -> Option<Arc<Fill>>) -> Option<Found> {
        let mut copies = self.0.lock();
        match copies.iter().find(|(name, _)| *name == coding) {
            Some((_, Copy::Making(fill))) => Some(Found::Making(Reader::joiner(fill.clone()))),
            Some((_, Copy::There(content))) => Some(Found::There(content.clone())),
            None => {
                let fill = begin()?;
                // Who begins it reads it before anybody can find it unread.
                let reader = Reader::joiner(fill.clone());
                copies.push((coding, Copy::Making(fill)));
                Some(Found::Making(reader))
            }
        }
    }

    /// Whether there is any copy, made or in the making.
    pub fn any(&self) -> bool {
        !self.0.lock().is_empty()
    }

    /// Lets all copies go that nobody makes just now.
    pub fn clear(&self) {
        self.0.lock().retain(|(_, copy)| matches!(copy, Copy::Making(_)));
    }

    /// What came of making one; nothing, where it failed, and then somebody may try again.
    fn made(&self, fill: &Arc<Fill>, made: Option<Content>) {
        let mut copies = self.0.lock();
        let own = |(_, copy): &(_, Copy)| matches!(copy, Copy::Making(making) if Arc::ptr_eq(making, fill));
        let Some(index) = copies.iter().position(own) else { return };
        match made {
            Some(content) => copies[index].1 = Copy::There(Arc::new(content)),
            None => drop(copies.swap_remove(index)),
        }
    }

    /// Takes one in the making out, if nobody reads it; nobody can join it any more then.
    fn leave_unread(&self, fill: &Arc<Fill>) -> bool {
        let mut copies = self.0.lock();
        let unread = !fill.has_joiners();
        if unread {
            copies.retain(|(_, copy)| !matches!(copy, Copy::Making(making) if Arc::ptr_eq(making, fill)));
        }
        unread
    }

    /// What all copies weigh.
    pub fn weight(&self) -> u64 {
        let copies = self.0.lock();
        let weigh = |(_, copy): &(_, Copy)| match copy {
            Copy::Making(_) => 0,
            Copy::There(content) => content.length + content.pieces.len() as u64 * 48 + 128,
        };
        copies.iter().map(weigh).sum()
    }
}

/// What a copy is made of.
pub enum Source {
    /// A complete response.
    Whole(Arc<Content>),
    /// One that is still arriving.
    Arriving(Reader),
}

/// Content is encoded in parts of this size, with room for others to run between two of them.
const PART: usize = 64 << 10;

/// Makes a copy.
pub struct Maker {
    /// Of what.
    pub source: Source,
    /// By what.
    pub filter: Box<dyn ContentFilter>,
    /// Where its readers follow.
    pub fill: Arc<Fill>,
    /// Where it belongs.
    pub coded: Arc<Coded>,
    /// Whether it is kept: not what was flushed after each chunk, which is longer than it need be.
    pub keep: bool,
    /// It is over, one way or the other.
    pub over: bool,
}

/// A maker that is gone before its copy is made breaks its readers, and lets somebody else try.
impl Drop for Maker {
    fn drop(&mut self) {
        if !self.over {
            self.fill.fail();
            self.coded.made(&self.fill, None);
        }
    }
}

impl Maker {
    /// Makes it, to its end. Says whether it is kept.
    pub async fn make(mut self) -> bool {
        if self.encode().await.is_none() {
            return false;
        }
        self.over = true;
        let made = self.fill.complete().filter(|_| self.keep);
        let kept = made.is_some();
        self.coded.made(&self.fill, made);
        kept
    }

    /// `None` when the source or the filter broke off, or nobody wants it any more.
    async fn encode(&mut self) -> Option<()> {
        let mut number = 0;
        loop {
            let piece = match &mut self.source {
                Source::Whole(content) => content.pieces.get(number).cloned(),
                // What may never end is made for those who read it.
                Source::Arriving(_) if self.coded.leave_unread(&self.fill) => return None,
                Source::Arriving(reader) => reader.next().await.ok()?,
            };
            number += 1;
            let Some(mut piece) = piece else { break };
            while !piece.is_empty() {
                let part = piece.split_to(piece.len().min(PART));
                let encoded = catch(|| self.filter.chunk(part)).ok()?.ok()?;
                self.write(encoded);
                match self.fill.hold_up() {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => tokio::task::yield_now().await,
                }
            }
        }
        let rest = catch(|| self.filter.finish()).ok()?.ok()?;
        self.write(rest);
        Some(())
    }

    fn write(&self, encoded: Bytes) {
        if !encoded.is_empty() {
            self.fill.write(encoded);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cache::fill::Terms;
    use crate::filter::Broken;

    struct Doubling;

    impl ContentFilter for Doubling {
        fn chunk(&mut self, chunk: Bytes) -> Result<Bytes, Broken> {
            if chunk.starts_with(b"!") { Err(Broken) } else { Ok([chunk.clone(), chunk].concat().into()) }
        }
        fn finish(&mut self) -> Result<Bytes, Broken> {
            Ok(Bytes::from_static(b"."))
        }
    }

    fn begin() -> Arc<Fill> {
        let terms = Terms { length: None, limit: 1 << 20, patience: Duration::from_secs(60) };
        Fill::new(0, super::super::fill::tests::head(), terms, None)
    }

    fn maker(content: &Arc<Content>, fill: &Arc<Fill>) -> Maker {
        Maker {
            source: Source::Whole(content.clone()),
            filter: Box::new(Doubling),
            fill: fill.clone(),
            coded: content.coded.clone(),
            keep: true,
            over: false,
        }
    }

    #[tokio::test]
    async fn a_copy_is_made_once_and_counts() {
        let content = Arc::new(Content::new([Bytes::from_static(b"ab"), Bytes::from(vec![b'x'; PART * 2])]));
        let fill = begin();
        let Some(Found::Making(mut reader)) = content.coded.copy("double", || Some(fill.clone())) else { panic!() };
        let again = content.coded.copy("double", || panic!("somebody makes it"));
        assert!(matches!(again, Some(Found::Making(reader)) if Arc::ptr_eq(&reader.fill, &fill)));
        assert_eq!(content.coded.weight(), 0);
        assert!(maker(&content, &fill).make().await);
        let mut read = 0;
        while let Some(piece) = reader.next().await.unwrap() {
            read += piece.len() as u64;
        }
        let length = 2 * (2 + 2 * PART as u64) + 1;
        let Some(Found::There(copy)) = content.coded.copy("double", || None) else { panic!() };
        assert_eq!((read, copy.length), (length, length));
        assert!(content.coded.weight() >= length);
        assert!(content.coded.copy("other", || None).is_none());
        content.coded.clear();
        assert_eq!(content.coded.weight(), 0);
    }

    #[tokio::test]
    async fn one_that_fails_breaks_its_readers_and_may_be_tried_again() {
        let content = Arc::new(Content::new([Bytes::from_static(b"!")]));
        for dropped in [false, true] {
            let fill = begin();
            let Some(Found::Making(mut reader)) = content.coded.copy("double", || Some(fill.clone())) else { panic!() };
            let maker = maker(&content, &fill);
            if dropped {
                drop(maker)
            } else {
                assert!(!maker.make().await)
            }
            assert!(reader.next().await.is_err());
            assert!(!content.coded.any());
        }
    }

    #[tokio::test]
    async fn what_arrives_is_encoded_for_those_who_read_it() {
        let plain = begin();
        plain.write(Bytes::from_static(b"ab"));
        let (coded, fill) = (plain.coded.clone(), begin());
        let found = coded.copy("double", || Some(fill.clone()));
        let source = Source::Arriving(Reader::joiner(plain.clone()));
        let (filter, keep, over) = (Box::new(Doubling), false, false);
        let maker = Maker { source, filter, fill: fill.clone(), coded: coded.clone(), keep, over };
        drop(found);
        // Unread, it goes; another one that was begun meanwhile stays.
        assert!(coded.leave_unread(&fill));
        let other = coded.copy("double", || Some(begin()));
        assert!(!maker.make().await, "nobody is there any more");
        assert!(coded.any() && other.is_some() && !plain.has_joiners());
    }
}
