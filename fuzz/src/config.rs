//! The configuration: whatever a file says, it loads or is complained about, in a place that is in the file.

use headwall::clock::Clock;
use headwall::config::{self, Lasting, Parts};

/// A file.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // Devices and the like may be read for ever.
    if text.contains("/dev") || text.contains("/proc") || text.contains("/sys") {
        return;
    }
    // For YAML a carriage return alone ends a line, and for nobody else.
    if text.replace("\r\n", "").contains('\r') {
        return;
    }
    let (lasting, clock) = (Lasting::default(), Clock::system());
    let Err(error) = config::parse("fuzz.yaml", text, &Parts { plugins: &[], lasting: &lasting, clock: &clock }) else {
        return;
    };
    assert!(!error.problems.is_empty());
    let lines: Vec<&str> = text.split('\n').collect();
    for problem in &error.problems {
        assert!(!problem.message.is_empty());
        let Some(place) = problem.place else { continue };
        let line = place.line.checked_sub(1).and_then(|at| lines.get(at));
        let length = line.unwrap_or_else(|| panic!("{place} is below {text:?}: {error}")).chars().count();
        assert!((1..=length + 1).contains(&place.column), "{place} is beside {text:?}: {error}");
    }
    let places: Vec<_> =
        error.problems.iter().map(|problem| problem.place.map(|place| (place.line, place.column))).collect();
    assert!(places.is_sorted(), "in the order of the file: {error}");
    assert!(error.to_string().starts_with("fuzz.yaml"));
}
