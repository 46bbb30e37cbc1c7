//! Two reactors of one process that take turns: each runs as long as it has work while the other stands
//! still.
//!
//! Without turns each would go on whenever something has come, and the amount would differ in every run. So
//! everything in flight goes to and fro together, as between two sides that are both busy.

use super::mark::Mark;
use super::tracer::{Process, Thread};
use nix::unistd::Pid;
use sluice_spec::error::ApiError;

/// Counts the instructions of the first of two threads, whose IDs the process writes.
pub(super) fn instructions(process: Process) -> Result<u64, ApiError> {
    Ok(go(process, Thread::count)?.0)
}

/// Counts the entries into the kernel of the first of two threads. The reactor itself counts them, in a load
/// without steps: stepped through, the kernel ends some sends later, which takes an entry more.
pub(super) fn syscalls(process: Process) -> Result<u64, ApiError> {
    Ok(go(process, |thread| Ok((0, run(thread)?)))?.1)
}

/// Runs both threads until either is over. Returns the instructions and the entries into the kernel.
fn go(
    mut process: Process,
    count: impl Fn(&Thread) -> Result<(u64, Mark), ApiError>,
) -> Result<(u64, u64), ApiError> {
    let [counted, other]: [i32; 2] = process.numbers()?;
    let [counted, other] = [counted, other].map(|id| Thread::at_mark(Pid::from_raw(id)));
    let (counted, other) = (counted?, other?);
    let (nothing, _) = count(&counted)?;
    run(&other)?;
    let (mut instructions, mut there) = (0, Mark::Idle);
    'load: loop {
        loop {
            match count(&counted)? {
                (some, Mark::Work) => instructions += some - nothing,
                (_, Mark::Idle) => break,
                (_, Mark::Over) => break 'load,
            }
        }
        while {
            there = run(&other)?;
            there == Mark::Work
        } {}
    }
    while there != Mark::Over {
        there = run(&other)?;
    }
    counted.let_go()?;
    other.let_go()?;
    let [syscalls] = process.numbers()?;
    process.end()?;
    Ok((instructions, syscalls))
}

fn run(thread: &Thread) -> Result<Mark, ApiError> {
    thread.run_on()?.ok_or_else(|| ApiError::internal("the counted process ended in the middle"))
}
