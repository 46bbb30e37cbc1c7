//! What a socket is told before something is received from it.

// Setting an option hands the kernel a pointer.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

/// Has a socket say that there is something once there are so many bytes (SO_RCVLOWAT), the stream has ended, or
/// the kernel keeps no more of it. One that cannot says so earlier, which is slower and no harm.
pub(super) fn wait_for(socket: BorrowedFd<'_>, least: u32) {
    let least = i32::try_from(least).unwrap_or(i32::MAX);
    // SAFETY: an integer and its size; the kernel reads it during the call.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const least).cast(),
            size_of::<i32>() as libc::socklen_t,
        );
    }
}
