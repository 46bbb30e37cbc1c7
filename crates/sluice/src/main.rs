//! The `sluice` command.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    sluice_reactor::end_with_a_panic();
    sluice::cli::run(std::env::args_os())
}
