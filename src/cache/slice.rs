//! One slice of a response: the stretches of it that are stored, and no byte twice.

use std::sync::Arc;

use bytes::Bytes;

use super::index::Listing;
use super::stored::Content;

/// So many stretches of one slice that do not touch are kept apart.
const RUNS: usize = 64;

/// What is stored of one slice.
#[derive(Debug)]
pub struct Slice {
    /// The number of the sheet that it belongs to.
    pub(super) generation: u64,
    pub(super) listing: Arc<Listing>,
    pub(super) runs: Vec<Run>,
}

/// Bytes that stand in a row.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) first: u64,
    pub(super) content: Arc<Content>,
}

impl Run {
    pub(super) fn end(&self) -> u64 {
        self.first + self.content.length
    }

    /// The pieces between two bytes, which lie within.
    fn pieces(&self, from: u64, to: u64, out: &mut Vec<Bytes>) {
        let mut at = self.first;
        for piece in &self.content.pieces {
            let (first, end) = (at, at + piece.len() as u64);
            at = end;
            if end > from && first < to {
                out.push(piece.slice(from.saturating_sub(first) as usize..(to.min(end) - first) as usize));
            }
        }
    }
}

impl Slice {
    /// What a slice weighs in memory.
    pub(super) fn weight(&self) -> u64 {
        let content = |run: &Run| run.content.length + run.content.pieces.len() as u64 * 48 + 160;
        self.runs.iter().map(content).sum::<u64>() + self.listing.weight() + 96
    }

    /// How far what stands in a row from this byte on goes.
    pub(super) fn reach(&self, from: u64, to: u64) -> u64 {
        self.runs.iter().fold(from, |at, run| if run.first <= at && at < run.end() { run.end().min(to) } else { at })
    }

    /// What stands in a row from this byte on; where it ends.
    pub(super) fn stretch(&self, from: u64, to: u64, out: &mut Vec<Bytes>) -> u64 {
        let mut at = from;
        for run in &self.runs {
            if run.first <= at && at < run.end() {
                let end = run.end().min(to);
                run.pieces(at, end, out);
                at = end;
            }
        }
        at
    }

    /// The same and what of this part was not there before; `None` when nothing is new, or there are too many
    /// stretches apart.
    pub(super) fn with(&self, first: u64, content: &Arc<Content>) -> Option<Vec<Run>> {
        let new = Run { first, content: content.clone() };
        let mut runs = self.runs.clone();
        let mut at = first;
        for run in self.runs.iter().chain([&Run { first: new.end(), content: Arc::default() }]) {
            let end = run.first.min(new.end());
            if at < end {
                let mut pieces = Vec::new();
                new.pieces(at, end, &mut pieces);
                let content = Content { pieces: pieces.into(), length: end - at, coded: Arc::default() };
                runs.push(Run { first: at, content: Arc::new(content) });
            }
            at = at.max(run.end());
        }
        if runs.len() == self.runs.len() {
            return None;
        }
        runs.sort_by_key(|run| run.first);
        let runs = joined(runs);
        (runs.len() <= RUNS).then_some(runs)
    }
}

/// Stretches that touch become one.
fn joined(runs: Vec<Run>) -> Vec<Run> {
    let mut joined: Vec<Run> = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(last) if last.end() == run.first => {
                let pieces = last.content.pieces.iter().chain(&run.content.pieces).cloned();
                last.content = Arc::new(Content::new(pieces));
            }
            _ => joined.push(run),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::index::Index;

    #[test]
    fn a_slice_is_what_its_parts_add_up_to() {
        let whole: Vec<u8> = (0..200).collect();
        let listing = Arc::new(Arc::new(Index::default()).list("", "", &[], [0; 16]));
        // The same every time, and of no pattern.
        let mut seed = 7_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..300 {
            let mut slice = Slice { generation: 1, listing: listing.clone(), runs: Vec::new() };
            let mut there = [false; 200];
            for _ in 0..12 {
                let first = random(190);
                let end = (first + 1 + random(40)).min(200);
                let bytes = Bytes::copy_from_slice(&whole[first as usize..end as usize]);
                let content = Arc::new(Content::new([bytes]));
                let new = (first..end).any(|at| !there[at as usize]);
                match slice.with(first, &content) {
                    Some(runs) => slice.runs = runs,
                    None => assert!(!new),
                }
                there[first as usize..end as usize].fill(true);
                let from = random(200);
                let expected = (from..200).take_while(|at| there[*at as usize]).last().map_or(from, |last| last + 1);
                let mut pieces = Vec::new();
                assert_eq!((slice.stretch(from, 200, &mut pieces), slice.reach(from, 200)), (expected, expected));
                assert_eq!(pieces.concat(), whole[from as usize..expected as usize]);
                assert!(slice.runs.windows(2).all(|pair| pair[0].end() < pair[1].first), "what touches is one");
            }
        }
    }
}
