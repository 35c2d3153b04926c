//! Stored content in other content codings, made once each when somebody first wants it.
//!
//! The copies live and go with the content that they were made of; their bytes count
//! against the store's memory like its own.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::stored::Content;
use crate::catch::catch;
use crate::filter::{Broken, ContentFilter};

/// A place for a copy; whoever comes while it is made waits for it.
pub type Cell = Arc<OnceCell<Content>>;

/// The copies of one content, by coding.
#[derive(Debug, Default)]
pub struct Coded(Mutex<Vec<(&'static str, Cell)>>);

/// Content is encoded in pieces of this size, with room for others to run between two of them.
const PIECE: usize = 64 << 10;

impl Coded {
    /// The place for the copy in this coding.
    pub fn cell(&self, coding: &'static str) -> Cell {
        let mut cells = self.0.lock();
        if let Some((_, cell)) = cells.iter().find(|(name, _)| *name == coding) {
            return cell.clone();
        }
        let cell = Cell::default();
        cells.push((coding, cell.clone()));
        cell
    }

    /// What all copies weigh.
    pub fn weight(&self) -> u64 {
        let cells = self.0.lock();
        let copies = cells.iter().filter_map(|(_, cell)| cell.get());
        copies.map(|copy| copy.length + copy.pieces.len() as u64 * 48 + 128).sum()
    }
}

/// Sends content through a filter, to its end. The filter is used up.
pub async fn encode(content: &Content, filter: &mut Option<Box<dyn ContentFilter>>) -> Result<Content, Broken> {
    let mut filter = filter.take().ok_or(Broken)?;
    let mut out = Vec::new();
    for piece in &content.pieces {
        let mut piece = piece.clone();
        while !piece.is_empty() {
            let part = piece.split_to(piece.len().min(PIECE));
            let encoded = catch(|| filter.chunk(part)).map_err(|_| Broken)??;
            if !encoded.is_empty() {
                out.push(encoded);
            }
            tokio::task::yield_now().await;
        }
    }
    out.push(catch(|| filter.finish()).map_err(|_| Broken)??);
    Ok(Content::new(out.into_iter().filter(|piece: &Bytes| !piece.is_empty())))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Doubling;

    impl ContentFilter for Doubling {
        fn chunk(&mut self, chunk: Bytes) -> Result<Bytes, Broken> {
            Ok([chunk.clone(), chunk].concat().into())
        }
        fn finish(&mut self) -> Result<Bytes, Broken> {
            Ok(Bytes::from_static(b"."))
        }
    }

    #[tokio::test]
    async fn a_copy_is_made_once_and_counts() {
        let content = Content::new([Bytes::from_static(b"ab"), Bytes::from(vec![b'x'; PIECE * 2])]);
        let cell = content.coded.cell("double");
        let doubling = || Some(Box::new(Doubling) as Box<dyn ContentFilter>);
        let (mut first, mut second) = (doubling(), doubling());
        let length = 2 * (2 + 2 * PIECE as u64) + 1;
        assert_eq!(content.coded.weight(), 0);
        let made = tokio::join!(
            cell.get_or_try_init(|| encode(&content, &mut first)),
            cell.get_or_try_init(|| encode(&content, &mut second)),
        );
        assert_eq!((made.0.unwrap().length, made.1.unwrap().length), (length, length));
        assert!(first.is_none() && second.is_some(), "the second one was not needed");
        assert!(content.coded.weight() >= length);
        assert!(content.coded.cell("double").get().is_some() && content.coded.cell("other").get().is_none());
    }
}
