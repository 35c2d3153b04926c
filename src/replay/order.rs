//! Brings lines into the order in which their requests came, with a bounded memory.
//!
//! Servers write a line when its response is over, so a slow request stands behind faster ones that came later.
//! Where a log knows times to the second only, the lines of one second are spread over it evenly.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::line::{Line, SECOND, Stamp};

/// So many lines are held back; what is later than that is taken as it comes.
const WINDOW: usize = 16_384;
/// So many lines of one second are spread over it; more than those stand at its end.
const OF_ONE_SECOND: usize = 65_536;
/// The lines that wait, and those of a second, have so many bytes at most: fewer lines wait where they are long.
const BYTES: usize = 32 << 20;

struct Waiting(Reverse<(Stamp, u64)>, Box<Line>);

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

/// The lines that wait.
#[derive(Default)]
pub struct Order {
    waiting: BinaryHeap<Waiting>,
    bytes: usize,
    number: u64,
    /// Those of one second, which are not spread yet.
    second: Vec<Line>,
    bytes_of_second: usize,
    last: Stamp,
    /// Lines that came too late for their place.
    pub late: u64,
}

impl Order {
    /// Takes a line; gives out those that are due.
    pub fn push(&mut self, line: Line, out: &mut impl FnMut(Line)) {
        self.number += 1;
        self.bytes += line.weight();
        self.waiting.push(Waiting(Reverse((line.at, self.number)), Box::new(line)));
        while (self.waiting.len() > WINDOW || self.bytes > BYTES)
            && let Some(Waiting(_, line)) = self.waiting.pop()
        {
            self.bytes -= line.weight();
            self.due(*line, out);
        }
    }

    /// Gives out all that is left.
    pub fn finish(&mut self, out: &mut impl FnMut(Line)) {
        while let Some(Waiting(_, line)) = self.waiting.pop() {
            self.due(*line, out);
        }
        self.spread(out);
    }

    fn due(&mut self, mut line: Line, out: &mut impl FnMut(Line)) {
        if line.whole_second {
            let same = self.second.first().map(|first| first.at);
            // Of a second that is over already: in the running one.
            if line.at + SECOND <= self.last || same.is_some_and(|same| line.at < same) {
                self.late += 1;
                line.at = same.unwrap_or(self.last);
            }
            let full = self.second.len() >= OF_ONE_SECOND || self.bytes_of_second >= BYTES;
            if full || same.is_some_and(|same| same != line.at) {
                self.spread(out);
            }
            self.bytes_of_second += line.weight();
            return self.second.push(line);
        }
        self.spread(out);
        self.late += u64::from(line.at < self.last);
        self.give(line, out);
    }

    fn spread(&mut self, out: &mut impl FnMut(Line)) {
        let count = self.second.len() as u64;
        self.bytes_of_second = 0;
        for (number, mut line) in std::mem::take(&mut self.second).into_iter().enumerate() {
            line.at += SECOND * number as u64 / count;
            self.give(line, out);
        }
    }

    fn give(&mut self, mut line: Line, out: &mut impl FnMut(Line)) {
        line.at = line.at.max(self.last);
        self.last = line.at;
        out(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(lines: impl IntoIterator<Item = (u64, bool)>) -> (Vec<u64>, u64) {
        let (mut order, mut out) = (Order::default(), Vec::new());
        for (at, whole_second) in lines {
            let line = br#"::1 - - [06/Nov/1994:08:49:37 +0000] "GET / HTTP/1.1" 200 1"#;
            let line = Line { at, whole_second, ..Line::parse(line).unwrap() };
            order.push(line, &mut |line| out.push(line.at));
        }
        order.finish(&mut |line| out.push(line.at));
        (out, order.late)
    }

    #[test]
    fn a_slow_request_takes_its_place() {
        assert_eq!(ordered([(3, false), (1, false), (2, false), (1, false)]), (vec![1, 1, 2, 3], 0));
    }

    #[test]
    fn the_lines_of_a_second_are_spread_over_it() {
        let (one, two) = (SECOND, 2 * SECOND);
        let lines = [(one, true), (one, true), (two, true), (one, true), (one, true)];
        assert_eq!(ordered(lines), (vec![one, one + one / 4, one + one / 2, one + one / 4 * 3, two], 0));
    }

    #[test]
    fn long_lines_do_not_fill_the_memory() {
        let (mut order, mut held, mut most) = (Order::default(), 0, 0);
        for number in 0..4000 {
            let text = format!(r#"::1 - - [06/Nov/1994:08:49:37 +0000] "GET /{} HTTP/1.1" 200 1"#, "x".repeat(60_000));
            let line = Line { whole_second: number % 1000 < 900, ..Line::parse(text.as_bytes()).unwrap() };
            held += line.weight();
            order.push(line, &mut |line| held -= line.weight());
            most = most.max(held);
        }
        assert!(most <= 2 * BYTES + (128 << 10), "{most}");
        order.finish(&mut |line| held -= line.weight());
        assert_eq!(held, 0);
    }

    #[test]
    fn what_is_far_too_late_is_taken_as_it_comes() {
        let lines = (0..WINDOW as u64 + 10).map(|number| (number + 100, false)).chain([(1, false)]);
        let (out, late) = ordered(lines);
        assert_eq!((out.len(), late), (WINDOW + 11, 1));
        assert!(out.is_sorted());
    }
}
