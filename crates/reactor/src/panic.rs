//! The end of a process at a panic.

/// Makes a panic end the process, in every profile: nothing may unwind past memory that a kernel or a device still
/// writes to. Call it first in `main`.
pub fn end_with_a_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}
