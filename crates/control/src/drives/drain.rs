//! The end of drives: no new commands, commands in flight completed, everything closed.

use super::{Drives, Running, lock};
use sluice_controller::Synced;
use sluice_spec::error::ApiError;
use sluice_spec::words::count;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::thread::{Builder, scope};
use std::time::{Duration, Instant};

/// Interval between two checks whether commands are still in flight.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Interval between two log messages that list the remaining work.
const SAY_EVERY: Duration = Duration::from_secs(1);

/// Time that a deleted drive gets to end.
const DELETE_LIMIT: Duration = Duration::from_secs(10);

/// Time that clients get to be disconnected, even if commands get no time.
const MOMENT: Duration = Duration::from_millis(250);

/// Time that the remote controllers of drives get for their shutdown, and drained drives at least for their flush.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(3);

/// Number of drives that are flushed at a time.
const AT_ONCE: usize = 32;

type Named = (String, Arc<dyn Running>);

impl Drives {
    /// Ends every drive, and waits until no command is in flight: until `deadline`, or until `hurry` is set.
    /// From here on no change begins. A change in progress is waited for, too, and ends the drive that it
    /// opened. The other drives do not wait for it.
    ///
    /// # Errors
    /// Commands were still in flight. The error lists their drives and numbers.
    pub fn drain(&self, deadline: Instant, hurry: &AtomicBool) -> Result<(), ApiError> {
        self.ending.store(true, SeqCst);
        self.events.close();
        let mut drives = self.running();
        begin(&drives);
        // Changes by hosts are still stored meanwhile, so no lock is held for long.
        let mut is_last_over = false;
        let mut synced = Vec::new();
        let outcome = wait(deadline, hurry, || {
            if !is_last_over && lock(&self.coming).is_empty() && self.changes.are_over() {
                is_last_over = true;
                let added = begin_others(self.running(), &drives);
                drives.extend(added);
            }
            let mut left = busy(&drives);
            left.extend((!is_last_over).then(|| "a change of the drives".to_owned()));
            left
        });
        // A drive with commands in flight may have unflushed writes after a sync, so it is not synced. The others are.
        if !hurry.load(Relaxed) {
            let drained: Vec<Named> = drives.iter().filter(|drive| is_drained(drive)).cloned().collect();
            // Another drive may have used all of the time.
            synced = sync_all(&drained, deadline.max(Instant::now() + SHUTDOWN_LIMIT), hurry);
        }
        close(&drives);
        if !hurry.load(Relaxed) {
            let limit = deadline.saturating_duration_since(Instant::now()).clamp(MOMENT, SHUTDOWN_LIMIT);
            let left = self.engine.await_shutdowns(limit);
            if left > 0 {
                tracing::warn!(
                    "{} left without a shutdown: they do not answer",
                    count(left, "NVMe controller")
                );
            }
        }
        self.settle();
        // For a drive that was not synced, the record from its open applies.
        let _saved = lock(&self.saved);
        synced.iter().for_each(|(name, synced)| self.state.note_synced(name, synced));
        outcome
    }

    pub(super) fn running(&self) -> Vec<Named> {
        let entries = lock(&self.entries);
        let open =
            |(name, entry): (&String, &super::Entry)| Some((name.clone(), entry.running.clone().ok()?));
        entries.iter().filter_map(open).collect()
    }
}

/// Ends one drive.
pub(super) fn end_one(name: &str, drive: Arc<dyn Running>) -> Result<(), ApiError> {
    let drives = [(name.to_owned(), drive)];
    begin(&drives);
    let outcome = wait(Instant::now() + DELETE_LIMIT, &AtomicBool::new(false), || busy(&drives));
    sync_all(&drives, Instant::now() + DELETE_LIMIT, &AtomicBool::new(false));
    close(&drives);
    outcome
}

/// Drops an ended drive that gets no new references. The drop of the last reference waits for the drive's
/// threads, so a caller that only showed the drive must not hold that one.
pub(super) fn let_go(drive: Arc<dyn Running>) {
    let began = Instant::now();
    while Arc::strong_count(&drive) > 1 && began.elapsed() < MOMENT {
        std::thread::sleep(Duration::from_millis(1));
    }
    if Arc::strong_count(&drive) == 1 {
        return;
    }
    // A request that waits for the drive holds a reference, or a reader that gets no processor does.
    let wait = move || {
        while Arc::strong_count(&drive) > 1 {
            std::thread::sleep(LOOK_EVERY);
        }
    };
    drop(std::thread::Builder::new().name("drive-end".to_owned()).spawn(wait));
}

/// Flushes drives in parallel: a drive that does not respond delays no other. Returns the results of the
/// drives that responded.
fn sync_all(drives: &[Named], deadline: Instant, hurry: &AtomicBool) -> Vec<(String, Synced)> {
    let mut synced = Vec::new();
    for some in drives.chunks(AT_ONCE) {
        scope(|threads| {
            let begin = |(name, drive): &'_ Named| {
                let (name, drive) = (name.clone(), Arc::clone(drive));
                let sync = move || sync(&name, &*drive, deadline, hurry).map(|synced| (name, synced));
                Builder::new().spawn_scoped(threads, sync)
            };
            let begun: Vec<_> = some.iter().map(begin).collect();
            let ended = begun.into_iter().filter_map(|thread| thread.ok()?.join().ok()?);
            synced.extend(ended);
        });
    }
    synced
}

/// Flushes one drive. Failures are logged.
fn sync(name: &str, drive: &dyn Running, deadline: Instant, hurry: &AtomicBool) -> Option<Synced> {
    let limit = deadline.saturating_duration_since(Instant::now()).max(MOMENT);
    let synced = drive.sync(limit, hurry);
    match &synced {
        Ok(synced) if !synced.is_durable => {
            tracing::error!("drive {name} was not flushed at its end: acknowledged writes may be lost");
        }
        Ok(_) => {}
        Err(problem) => {
            tracing::error!("drive {name} was not flushed at its end: {}", problem.in_one_line());
        }
    }
    synced.ok()
}

fn is_drained((_, drive): &Named) -> bool {
    drive.status().is_ok_and(|status| status.drained)
}

fn begin(drives: &[Named]) {
    for (name, drive) in drives {
        if let Err(problem) = drive.drain() {
            tracing::warn!("drive {name} cannot be drained: {}", problem.in_one_line());
        }
    }
}

/// Begins the end of the drives that are not among the `known`, and returns them.
fn begin_others(mut drives: Vec<Named>, known: &[Named]) -> Vec<Named> {
    drives.retain(|(_, drive)| !known.iter().any(|(_, known)| Arc::ptr_eq(known, drive)));
    begin(&drives);
    drives
}

fn close(drives: &[Named]) {
    for (name, drive) in drives {
        if let Err(problem) = drive.close() {
            tracing::warn!("drive {name} was not closed: {}", problem.in_one_line());
        }
    }
}

/// Waits until `left` returns an empty list. The error lists the rest.
fn wait(
    deadline: Instant,
    hurry: &AtomicBool,
    mut left: impl FnMut() -> Vec<String>,
) -> Result<(), ApiError> {
    let mut said = Instant::now();
    let deadline = deadline.max(said + MOMENT);
    loop {
        let left = left();
        if left.is_empty() {
            return Ok(());
        }
        let words = left.join(", ");
        if Instant::now() >= deadline || hurry.load(Relaxed) {
            return Err(ApiError::internal(format!("did not wait any longer for {words}"))
                .hint("a guest may see these fail; daemon.drain_s is how long a daemon that stops waits"));
        }
        if said.elapsed() >= SAY_EVERY {
            tracing::info!("waiting for {words}");
            said = Instant::now();
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Describes the drives that are not drained. A drive that does not respond is left out: there is nothing to
/// wait for.
fn busy(drives: &[Named]) -> Vec<String> {
    let words = |(name, drive): &Named| {
        let status = drive.status().ok().filter(|status| !status.drained)?;
        Some(format!("{} of drive {name}", count(status.in_flight as usize, "command")))
    };
    drives.iter().filter_map(words).collect()
}
