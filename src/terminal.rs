//! Text that goes to people: to a terminal, or into a pipe that they close when they have read enough.

use std::io::{self, Write};

/// What strangers have written, without what a terminal obeys, what turns the reading direction round, and what XML does
/// not know.
pub fn printable(text: &str) -> String {
    let obeyed = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
            || matches!(c, '\u{fffe}' | '\u{ffff}')
    };
    text.chars().map(|c| if obeyed(c) { '\u{fffd}' } else { c }).collect()
}

/// Writes to standard output. Who closes the pipe has read enough; a full disk is an error.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_obey_nothing() {
        assert_eq!(
            printable("a é 字 \u{1b}[31m\r\n\t\u{9b}2J"),
            "a é 字 \u{fffd}[31m\u{fffd}\u{fffd}\u{fffd}\u{fffd}2J"
        );
        assert_eq!(
            printable("\u{202e}gpj\u{2066}\u{feff}\u{ffff}\u{7f}"),
            "\u{fffd}gpj\u{fffd}\u{fffd}\u{fffd}\u{fffd}"
        );
    }
}
