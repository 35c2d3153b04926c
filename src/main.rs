//! The `headwall` binary: the library with its built-in plugins.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    headwall::run(&[])
}
