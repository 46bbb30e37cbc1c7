//! A lease on a shared disk: a block that all daemons see, with the claim of the one that may use the disk.
//!
//! A [thread](hold) renews the claim. The target compares the clock with the end of the lease before each
//! command. So a thread or a disk that hangs cannot keep the target going for too long. The [protocol] takes,
//! renews and loses a lease.

mod block;
mod file;
mod protocol;

#[cfg(test)]
mod edges;
#[cfg(test)]
mod model;
#[cfg(test)]
pub(super) mod tests;

use super::error::FileErrorKind;
use crate::remote::Present;
use block::{Claim, Content};
use file::BlockFile;
pub(super) use protocol::Timing;
use protocol::{Loss, Party, Step};
use sluice_reactor::now_ns;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Reason why a lease cannot be taken.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The daemon of this name holds it.
    Taken(String),
    /// The block holds something else.
    Other,
    /// The lease was held, and is lost.
    Lost,
    /// A system call failed; the string names the step.
    Step(&'static str, io::Error),
}

/// A lease that was taken. It is given back when this is dropped.
#[derive(Debug)]
pub(super) struct Lease(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Paths of the lease, and of the storage that it is for.
    path: PathBuf,
    storage: PathBuf,
    /// End of the lease, by the clock of reactors; zero after it was lost.
    until_ns: AtomicU64,
    told: AtomicBool,
    ended: Mutex<bool>,
    woken: Condvar,
}

impl Lease {
    /// Takes the lease in `path` for `storage`. Blocks until its claim has settled, and before that until a
    /// dead holder is recognized.
    pub(super) fn take(path: &Path, storage: &Path, timing: Timing) -> Result<Self, FileErrorKind> {
        let refused = |why| FileErrorKind::Lease(path.to_owned(), why);
        let step = |name| move |error| refused(Refusal::Step(name, error));
        let mut block = BlockFile::open(path).map_err(step("opened"))?;
        let mut party = Party::new(timing, random(), name());
        while party.until_ns().is_none() {
            match party.next(now_ns()) {
                Step::Read => {
                    let began_ns = now_ns();
                    let content = block.read().map_err(step("read"))?;
                    party.read(began_ns, now_ns(), content);
                }
                Step::Write(claim) => {
                    block.write(&claim).map_err(step("written"))?;
                    party.written(now_ns(), true, random());
                }
                Step::Wait(until_ns) => {
                    thread::sleep(Duration::from_nanos(until_ns.saturating_sub(now_ns())));
                }
                Step::Taken(claim) => return Err(refused(Refusal::Taken(claim.name))),
                Step::Other | Step::Lost(_) => return Err(refused(Refusal::Other)),
            }
        }
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            storage: storage.to_owned(),
            until_ns: AtomicU64::new(party.until_ns().unwrap_or_default()),
            told: AtomicBool::new(false),
            ended: Mutex::new(false),
            woken: Condvar::new(),
        });
        // The daemon waits for this thread at its end, as for controllers.
        let (held, present) = (Arc::clone(&shared), Present::new());
        let work = move || {
            hold(&held, &mut party, &mut block);
            drop(present);
        };
        let started = thread::Builder::new().name("lease".to_owned()).spawn(work);
        started.map_err(step("renewed by a thread"))?;
        Ok(Self(shared))
    }

    /// Returns whether the storage may be used at this time.
    pub(super) fn is_held(&self, now_ns: u64) -> bool {
        now_ns < self.0.until_ns.load(Acquire)
    }

    /// Refuses a change of the storage by an operator when the lease is lost.
    pub(super) fn check(&self) -> Result<(), FileErrorKind> {
        match self.is_held(now_ns()) {
            true => Ok(()),
            false => Err(FileErrorKind::Lease(self.0.path.clone(), Refusal::Lost)),
        }
    }

    /// Logs once that the lease is lost, for the first command that fails by it.
    #[cold]
    pub(super) fn report_lost(&self) {
        self.0.report("its renewal has not succeeded in time");
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // The thread does the rest: this may be a reactor.
        *self.0.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.woken.notify_all();
    }
}

impl Shared {
    fn report(&self, why: &str) {
        if !self.told.swap(true, Relaxed) {
            tracing::error!(
                path = %self.storage.display(),
                "the lease {} is lost: {why}; commands fail with Internal Path Error until the drive is opened anew: \
                 look at the lease's disk and at other daemons, then restart the daemon, or delete and create the drive",
                self.path.display()
            );
        }
    }

    /// Waits until a time. Returns whether the lease is to be given back.
    fn wait(&self, until_ns: u64) -> bool {
        let limit = Duration::from_nanos(until_ns.saturating_sub(now_ns()));
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        *self
            .woken
            .wait_timeout_while(ended, limit, |ended| !*ended)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }
}

/// Renews a lease until it is lost, or given back.
fn hold(shared: &Shared, party: &mut Party, block: &mut BlockFile) {
    while !shared.wait(0) {
        match party.next(now_ns()) {
            Step::Read => {
                let began_ns = now_ns();
                match block.read() {
                    Ok(content) => party.read(began_ns, now_ns(), content),
                    Err(error) => {
                        not_renewed(shared, &error);
                        party.unread(now_ns());
                    }
                }
            }
            Step::Write(claim) => {
                let written = block.write(&claim);
                written.as_ref().err().into_iter().for_each(|error| not_renewed(shared, error));
                party.written(now_ns(), written.is_ok(), random());
            }
            Step::Wait(until_ns) => {
                if shared.wait(until_ns) {
                    break;
                }
            }
            Step::Lost(loss) => {
                shared.until_ns.store(0, Release);
                return shared.report(&loss.to_string());
            }
            // These steps occur only before the lease is taken.
            Step::Taken(_) | Step::Other => return,
        }
        shared.until_ns.store(party.until_ns().unwrap_or_default(), Release);
    }
    shared.until_ns.store(0, Release);
    let given_back = block.read().and_then(|content| match party.release(now_ns(), &content) {
        Some(claim) => block.write(&claim),
        None => Ok(()),
    });
    given_back.err().into_iter().for_each(|error| {
        let lease = shared.path.display();
        tracing::warn!(%lease, %error, "a lease was not given back: the next daemon waits until it has expired");
    });
}

fn not_renewed(shared: &Shared, error: &io::Error) {
    let (path, lease) = (shared.storage.display(), shared.path.display());
    tracing::warn!(%path, %lease, %error, "a lease was not renewed, and will be tried again: look at its disk");
}

/// Examines a lease without taking it.
pub(super) fn look(path: &Path) -> Result<(), FileErrorKind> {
    let refused = |why| FileErrorKind::Lease(path.to_owned(), why);
    let mut block = BlockFile::open(path).map_err(|error| refused(Refusal::Step("opened", error)))?;
    match block.read().map_err(|error| refused(Refusal::Step("read", error)))? {
        Content::Other => Err(refused(Refusal::Other)),
        Content::Blank | Content::Claim(_) => Ok(()),
    }
}

fn random() -> u128 {
    let half = || u128::from(RandomState::new().hash_one("a holder of a lease"));
    half() << 64 | half()
}

/// Names this process, for people.
fn name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("process {} on host {}", std::process::id(), host.trim())
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Late => f.write_str("its renewal has not succeeded in time"),
            Self::Overwritten(Content::Claim(Claim { name, .. })) => write!(f, "{name} has taken it"),
            Self::Overwritten(_) => f.write_str("another program has written to it"),
        }
    }
}
