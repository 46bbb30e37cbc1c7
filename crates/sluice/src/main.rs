//! The `sluice` command.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    end_with_a_panic();
    sluice::cli::run(std::env::args_os())
}

/// Makes a panic end the process, in whichever profile it was built: nothing may unwind past memory that a
/// kernel or a device still writes to.
fn end_with_a_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}
