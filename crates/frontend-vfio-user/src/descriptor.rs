//! File descriptors that a client sent: their kind, and their close.
//!
//! A client can send any descriptor it has, also one of a file system that it serves itself and never answers
//! for. On such a file fstat(2), poll(2), a write and even close(2) wait for the client. So a descriptor is
//! first recognised by calls that only the kernel answers. A descriptor of no use to the message is closed by
//! the thread of [`DeferredClose`], which may block.

use super::deferred_close::DeferredClose;
use rustix::fs::{CWD, fcntl_get_seals, readlinkat};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Kind of the file behind a descriptor, as far as this front-end has a use for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Eventfd, on which nothing can block but a write while its counter is full.
    Eventfd,
    /// File in memory: memfd, tmpfs, hugetlbfs.
    Memory,
    /// Any other file.
    Other,
}

impl Kind {
    pub(super) fn of(fd: BorrowedFd<'_>) -> Kind {
        // Only files in memory have seals; F_GET_SEALS fails on all others.
        if fcntl_get_seals(fd).is_ok() {
            return Kind::Memory;
        }
        // Paths of files begin with a slash, so no user can give a file this name.
        let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
        match readlinkat(CWD, link, Vec::new()) {
            Ok(name) if name.as_bytes() == b"anon_inode:[eventfd]" => Kind::Eventfd,
            _ => Kind::Other,
        }
    }
}

/// Closes descriptors that no message used. Returns how many of them a client had no reason to send.
pub(super) fn close_surplus(fds: Vec<OwnedFd>, deferred_close: &mut DeferredClose) -> usize {
    let mut surplus = 0;
    for fd in fds {
        match Kind::of(fd.as_fd()) {
            Kind::Eventfd => drop(fd),
            // The last descriptor of a guest's memory releases the memory, which takes time.
            Kind::Memory => sluice_frontend::drop_later(fd),
            Kind::Other => {
                surplus += 1;
                deferred_close.close(fd);
            }
        }
    }
    surplus
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, memfd_create};

    #[test]
    fn descriptors_are_what_they_are() {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        assert_eq!(Kind::of(eventfd.as_fd()), Kind::Eventfd);
        let memory = memfd_create("memory", MemfdFlags::CLOEXEC).expect("a memfd");
        assert_eq!(Kind::of(memory.as_fd()), Kind::Memory);
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let null = std::fs::File::open("/dev/null").expect("there is one");
        for stranger in [reader.as_fd(), writer.as_fd(), null.as_fd()] {
            assert_eq!(Kind::of(stranger), Kind::Other);
        }
    }

    #[test]
    fn a_file_in_memory_does_not_pass_for_an_eventfd_by_its_name() {
        let disguised = memfd_create("anon_inode:[eventfd]", MemfdFlags::CLOEXEC).expect("a memfd");
        assert_eq!(Kind::of(disguised.as_fd()), Kind::Memory);
    }

    #[test]
    fn strangers_are_counted() {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        assert_eq!(close_surplus(vec![reader, eventfd, writer], &mut DeferredClose::default()), 2);
    }
}
