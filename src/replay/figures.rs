//! Numbers, times and tables as people read them.

use std::fmt::Write;
use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::line::{SECOND, Stamp};

/// `1,234,567`
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `12.3 MiB`
pub fn bytes(number: u64) -> String {
    let units = [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.into_iter().find(|(_, unit)| number >= *unit) {
        Some((name, unit)) => format!("{:.1} {name}", number as f64 / unit as f64),
        None => format!("{number} B"),
    }
}

/// `3 h 12 min`
pub fn span(nanos: u64) -> String {
    let seconds = nanos / SECOND;
    match seconds {
        0..120 => format!("{:.1} s", nanos as f64 / SECOND as f64),
        120..7200 => format!("{} min {} s", seconds / 60, seconds % 60),
        7200..172_800 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// `1994-11-06T08:49:37Z`
pub fn when(stamp: Stamp) -> String {
    let stamp = OffsetDateTime::UNIX_EPOCH + Duration::from_secs(stamp / SECOND);
    stamp.format(&Rfc3339).unwrap_or_default()
}

/// Rows of cells, the first column to the left and the others to the right.
#[derive(Default)]
pub struct Table(Vec<Vec<String>>);

impl Table {
    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.push(cells.into_iter().collect());
    }

    /// Writes it, a line for each row.
    pub fn print(&self, out: &mut String) {
        let columns = self.0.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.0.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        for row in &self.0 {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let pad = " ".repeat(widths[column] - cell.chars().count());
                match column {
                    0 => line.push_str(&format!("{cell}{pad}")),
                    _ => line.push_str(&format!("  {pad}{cell}")),
                }
            }
            let _ = writeln!(out, "{}", line.trim_end());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_people_read_them() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 1023, 1536, 5 << 30].map(bytes), ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]);
        assert_eq!(
            [1, 150, 10_000, 200_000].map(|seconds| span(seconds * SECOND)),
            ["1.0 s", "2 min 30 s", "2 h 46 min", "2 d 7 h"]
        );
    }
}
