//! Lines of a file of any size, none of them longer than a bound.

use std::io::{self, Read};

/// The longest line that is read.
const LONGEST: usize = 64 << 10;

/// What comes next.
pub enum Next<'a> {
    /// A line, without its end.
    Line(&'a [u8]),
    /// One that is too long; its beginning.
    TooLong(&'a [u8]),
    /// Nothing more.
    End,
}

/// Reads line by line.
pub struct Lines<R> {
    source: R,
    buffer: Vec<u8>,
    from: usize,
    to: usize,
    /// The number of the line that was read last.
    pub number: u64,
    /// Bytes read so far.
    pub bytes: u64,
}

impl<R: Read> Lines<R> {
    /// The lines of this source.
    pub fn new(source: R) -> Self {
        Lines { source, buffer: vec![0; 4 * LONGEST], from: 0, to: 0, number: 0, bytes: 0 }
    }

    /// The next line.
    pub fn next(&mut self) -> io::Result<Next<'_>> {
        let mut looked = 0;
        loop {
            let held = &self.buffer[self.from..self.to];
            if let Some(end) = memchr::memchr(b'\n', &held[looked..]).map(|end| looked + end) {
                return Ok(self.give(end, end + 1));
            }
            looked = held.len();
            if looked > LONGEST {
                let (from, to) = (self.from, self.from + looked.min(LONGEST));
                self.number += 1;
                return self.skip().map(|()| Next::TooLong(&self.buffer[from..to.min(from + 400)]));
            }
            if self.fill()? == 0 {
                return Ok(if looked == 0 { Next::End } else { self.give(looked, looked) });
            }
        }
    }

    fn give(&mut self, length: usize, taken: usize) -> Next<'_> {
        let from = self.from;
        self.from += taken;
        self.number += 1;
        let line = &self.buffer[from..from + length];
        if length > LONGEST { Next::TooLong(line) } else { Next::Line(line) }
    }

    /// Reads more behind what is held.
    fn fill(&mut self) -> io::Result<usize> {
        if self.from > 0 && self.to == self.buffer.len() {
            self.buffer.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        loop {
            match self.source.read(&mut self.buffer[self.to..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(read) => {
                    (self.to, self.bytes) = (self.to + read, self.bytes + read as u64);
                    return Ok(read);
                }
            }
        }
    }

    /// Passes over the rest of a line, keeping its beginning where it is.
    fn skip(&mut self) -> io::Result<()> {
        let kept = self.from + 400;
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.buffer[kept..self.to]) {
                self.from = kept + end + 1;
                return Ok(());
            }
            self.to = kept;
            if self.fill()? == 0 {
                self.from = self.to;
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives what it has in small pieces.
    struct Pieces<'a>(&'a [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let length = self.0.len().min(self.1).min(into.len());
            into[..length].copy_from_slice(&self.0[..length]);
            self.0 = &self.0[length..];
            Ok(length)
        }
    }

    fn all(text: &[u8], piece: usize) -> Vec<(u64, String)> {
        let mut lines = Lines::new(Pieces(text, piece));
        let mut out = Vec::new();
        loop {
            let told = match lines.next().unwrap() {
                Next::End => return out,
                Next::Line(line) if line.len() > 80 => format!("{} bytes", line.len()),
                Next::Line(line) => String::from_utf8(line.to_vec()).unwrap(),
                Next::TooLong(start) => format!("too long: {}", String::from_utf8_lossy(&start[..3])),
            };
            out.push((lines.number, told));
        }
    }

    #[test]
    fn lines_of_all_lengths() {
        let long = |byte: &str, length: usize| byte.repeat(length);
        let text = format!(
            "one\n\n{}\n{}\n{}\ntwo\n{}\nlast",
            long("a", LONGEST),
            long("b", LONGEST + 1),
            long("c", 10 * LONGEST),
            long("d", 4 * LONGEST)
        );
        for piece in [7, 4096, 1 << 20] {
            let expected = ["one", "", "65536 bytes", "too long: bbb", "too long: ccc", "two", "too long: ddd", "last"];
            let expected: Vec<_> = (1..).zip(expected.map(str::to_owned)).collect();
            assert_eq!(all(text.as_bytes(), piece), expected, "{piece}");
        }
        assert_eq!(all(&long("e", 9 * LONGEST).into_bytes(), 999), [(1, "too long: eee".to_owned())]);
        assert_eq!(all(b"", 1), []);
        assert_eq!(all(b"\n", 1), [(1, String::new())]);
    }
}
