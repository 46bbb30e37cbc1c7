//! Limits of the process whose excess the kernel signals with a deadly default.

use std::io;

/// Ignores SIGXFSZ for the process: a write, truncation or allocation beyond the file size limit (RLIMIT_FSIZE) fails
/// with EFBIG. The limit counts for memfds, too. Programs that the process executes inherit this.
///
/// # Errors
/// None that a kernel is known to return.
pub fn ignore_file_size_signal() -> io::Result<()> {
    // SAFETY: installs no handler, so no code of this process runs in a signal's context.
    match unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
