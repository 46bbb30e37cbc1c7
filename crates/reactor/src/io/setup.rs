//! Opening an io_uring with the best flags that the kernel supports.

use std::io;

use io_uring::{Builder, IoUring, cqueue, squeue};

/// Completion entries per submission entry: multishot polls and slow operations complete long after their
/// submission entries were reused.
const COMPLETIONS_PER_SUBMISSION: u32 = 4;

/// Time at which the kernel turns the results of a device into completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completing {
    /// Only when completions of this ring are requested.
    WhenAsked,
    /// Whenever the thread enters the kernel for any reason, or sleeps there. For a second ring, on which the
    /// thread does not sleep.
    AtAnyCall,
}

/// Opens a ring, on the thread that will use it.
///
/// # Errors
/// The message contains the remedy where io_uring is not permitted.
pub(super) fn open<S: squeue::EntryMarker, C: cqueue::EntryMarker>(
    entries: u32,
    completing: Completing,
) -> io::Result<IoUring<S, C>> {
    let ring = build(entries, completing).map_err(explain)?;
    let params = ring.params();
    // Without these features a completion could be lost, or a list be read after it is gone. Both are older
    // (5.5) than anything else that this crate needs.
    if !params.is_feature_nodrop() || !params.is_feature_submit_stable() || !params.is_feature_ext_arg() {
        return Err(io::Error::other("this kernel's io_uring is too old; Linux 6.1 or newer is needed"));
    }
    Ok(ring)
}

/// Function that sets some flags.
type Flags<S, C> = fn(&mut Builder<S, C>) -> &mut Builder<S, C>;

/// Tries the best flags first, then plainer ones; a kernel without a flag returns EINVAL.
fn build<S: squeue::EntryMarker, C: cqueue::EntryMarker>(
    entries: u32,
    completing: Completing,
) -> io::Result<IoUring<S, C>> {
    let flag_sets: [Flags<S, C>; 3] = [
        // 6.1: completions are processed on request, never by interrupting the thread.
        |b| b.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all(),
        // 5.19: processed at the next system call of any kind.
        |b| b.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all(),
        |b| b,
    ];
    let mut refused = io::Error::from_raw_os_error(libc::EINVAL);
    for flags in flag_sets.into_iter().skip(usize::from(completing == Completing::AtAnyCall)) {
        let mut builder = IoUring::<S, C>::builder();
        builder.setup_cqsize(entries.saturating_mul(COMPLETIONS_PER_SUBMISSION)).setup_clamp();
        builder.dontfork();
        match flags(&mut builder).build(entries) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refused = error,
            result => return result,
        }
    }
    Err(refused)
}

fn explain(error: io::Error) -> io::Error {
    let what_to_do = match error.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel has none; Linux 6.1 or newer with CONFIG_IO_URING is needed",
        Some(libc::EPERM | libc::EACCES) => {
            "it is not permitted: check that the sysctl kernel.io_uring_disabled is 0, and, in a \
             container, that its seccomp profile allows io_uring_setup, io_uring_enter and io_uring_register"
        }
        Some(libc::ENOMEM) => "not enough memory, or RLIMIT_MEMLOCK is too low (see `ulimit -l`)",
        Some(libc::EMFILE | libc::ENFILE) => "too many open files (see `ulimit -n`)",
        _ => "the kernel refused it",
    };
    io::Error::new(error.kind(), format!("io_uring cannot be opened: {what_to_do} ({error})"))
}
