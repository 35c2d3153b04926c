//! The public suite for HTTP caches before the real binary: it finds what tests/conformance lists, and nothing else.

use std::process::Command;

use crate::apps::install;
use crate::support::{free_port, root, run};

#[test]
fn the_public_suite_finds_what_is_listed_and_nothing_else() {
    let folder = root("tests/conformance");
    install(&folder).unwrap_or_else(|why| panic!("{why}"));
    let (code, out, told) = run(Command::new("node")
        .args(["run.mjs", "--headwall", env!("CARGO_BIN_EXE_headwall"), "--port", &free_port().to_string()])
        .current_dir(&folder));
    assert_eq!(code, 0, "{out}\n{told}");
}
