//! Locks of files (`flock(2)`) that go to another process.
//!
//! A lock belongs to an open file description, and so to every descriptor of it. The predecessor sends a
//! descriptor of each. The successor opens its files as always. Where it would lock a file, it keeps the
//! descriptor that it was sent, so that the file is locked at every moment.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Device and inode of a file.
type FileId = (u64, u64);

/// Descriptors that another process has sent, and that no one has taken yet.
static SENT: Mutex<Vec<(FileId, OwnedFd)>> = Mutex::new(Vec::new());

/// Interval between two looks at a lock.
const RELEASE_LOOK: Duration = Duration::from_millis(2);

/// Whether the other process may go on with the locks that it has sent.
static IS_LENT: AtomicBool = AtomicBool::new(false);

/// Time until which another process may be about to release its locks.
static RELEASED_BY: Mutex<Option<Instant>> = Mutex::new(None);

/// Notes that a process has died, and that its I/O may last until this time. Its locks stay until then.
pub fn wait_until(until: Instant) {
    *RELEASED_BY.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
}

/// Calls `lock` until it succeeds, or until no dead process can hold the lock any more. Returns whether it succeeded.
///
/// # Errors
/// `lock` fails.
pub fn lock_when_released<E>(mut lock: impl FnMut() -> Result<bool, E>) -> Result<bool, E> {
    loop {
        if lock()? {
            return Ok(true);
        }
        let until = *RELEASED_BY.lock().unwrap_or_else(PoisonError::into_inner);
        if until.is_none_or(|until| Instant::now() >= until) {
            return Ok(false);
        }
        std::thread::sleep(RELEASE_LOOK);
    }
}

fn sent() -> MutexGuard<'static, Vec<(FileId, OwnedFd)>> {
    // A panic ends the process, so the lock is never poisoned.
    SENT.lock().unwrap_or_else(PoisonError::into_inner)
}

fn id_of(fd: BorrowedFd<'_>) -> io::Result<FileId> {
    let meta = File::from(fd.try_clone_to_owned()?).metadata()?;
    Ok((meta.dev(), meta.ino()))
}

/// Keeps a descriptor with a lock that another process has sent.
///
/// # Errors
/// The file cannot be examined.
pub fn put(fd: OwnedFd) -> io::Result<()> {
    let id = id_of(fd.as_fd())?;
    IS_LENT.store(true, SeqCst);
    sent().push((id, fd));
    Ok(())
}

/// Takes a descriptor of the same file with a lock, if another process has sent one. The lock ends with it.
pub fn take(file: BorrowedFd<'_>) -> Option<OwnedFd> {
    if sent().is_empty() {
        return None;
    }
    let id = id_of(file).ok()?;
    let mut sent = sent();
    let at = sent.iter().position(|(its, _)| *its == id)?;
    Some(sent.swap_remove(at).1)
}

/// Drops the descriptors that no one has taken. Everything belongs to this process from now on.
pub fn drop_rest() {
    sent().clear();
    IS_LENT.store(false, SeqCst);
}

/// Returns whether locks of this process may still belong to another one. They must not be released then: an
/// unlock counts for all descriptors of the open file description.
pub fn are_lent() -> bool {
    IS_LENT.load(SeqCst)
}

/// Returns a descriptor of each file that this process has locked.
///
/// # Errors
/// The process cannot see its descriptors.
pub fn held() -> io::Result<Vec<OwnedFd>> {
    let mut found: Vec<(FileId, OwnedFd)> = Vec::new();
    for entry in fs::read_dir("/proc/self/fdinfo")? {
        let entry = entry?;
        // A descriptor may be closed meanwhile, by another thread.
        let Ok(information) = fs::read_to_string(entry.path()) else { continue };
        let is_lock = |line: &str| line.starts_with("lock:") && line.contains("FLOCK");
        if !information.lines().any(is_lock) {
            continue;
        }
        let link = std::path::Path::new("/proc/self/fd").join(entry.file_name());
        let Ok(fd) = duplicate(&link) else { continue };
        let id = id_of(fd.as_fd())?;
        if found.iter().all(|(known, _)| *known != id) {
            found.push((id, fd));
        }
    }
    Ok(found.into_iter().map(|(_, fd)| fd).collect())
}

/// Returns a copy of the descriptor with the number at the end of a path.
fn duplicate(link: &std::path::Path) -> io::Result<OwnedFd> {
    let number = link.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
    let number: u32 = number.ok_or(io::ErrorKind::InvalidInput)?;
    let process =
        rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty())?;
    Ok(rustix::process::pidfd_getfd(
        process,
        number.cast_signed(),
        rustix::process::PidfdGetfdFlags::empty(),
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FlockOperation, flock};

    fn is_free(path: &std::path::Path) -> bool {
        let file = File::open(path).expect("it is there");
        flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
    }

    #[test]
    fn a_lock_goes_with_its_descriptor() {
        let path = std::env::temp_dir().join(format!("sluice-locks-{}", std::process::id()));
        let first = File::create(&path).expect("a file");
        flock(&first, FlockOperation::NonBlockingLockExclusive).expect("locked");
        let other = File::create(path.with_extension("other")).expect("a file");
        // The process may have been started with locks of others.
        let is = |file: &File, fd: &OwnedFd| id_of(fd.as_fd()).ok() == id_of(file.as_fd()).ok();
        let mut held = held().expect("visible");
        assert!(!held.iter().any(|fd| is(&other, fd)), "a file that is not locked is not among them");
        held.retain(|fd| is(&first, fd));
        assert_eq!(held.len(), 1);
        drop(first);
        assert!(!is_free(&path));
        held.into_iter().for_each(|fd| put(fd).expect("examined"));
        assert!(take(other.as_fd()).is_none());
        let opened = File::open(&path).expect("it is there");
        let kept = take(opened.as_fd()).expect("it was sent");
        assert!(take(opened.as_fd()).is_none(), "once");
        assert!(!is_free(&path));
        drop(kept);
        assert!(is_free(&path));
        for path in [path.with_extension("other"), path] {
            std::fs::remove_file(path).expect("it is there");
        }
    }
}
