//! The end: no new commands, those in flight finished, everything closed.

use super::{Drives, Entry, Running, lock};
use crate::problem::Problem;
use crate::words::count;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Between two looks whether commands are still in flight.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Between two messages that say what is waited for.
const SAY_EVERY: Duration = Duration::from_secs(1);

/// How long a drive that is deleted may take.
const DELETE_LIMIT: Duration = Duration::from_secs(10);

type Named = (String, Arc<dyn Running>);

impl Drives {
    /// Ends every drive, and waits until nothing is in flight: `limit` at most, or until `hurry` is set.
    ///
    /// # Errors
    /// If something still was in flight: which drives' commands, and how many.
    pub fn drain(&self, limit: Duration, hurry: &AtomicBool) -> Result<(), Problem> {
        let _no_more_changes = lock(&self.saved);
        let entries: Vec<Entry> = lock(&self.entries).values().cloned().collect();
        let running = entries.into_iter().filter_map(|entry| Some((entry.spec.name, entry.running.ok()?)));
        end(&running.collect::<Vec<Named>>(), limit, hurry)
    }
}

/// Ends one drive.
pub(super) fn end_one(name: &str, drive: Arc<dyn Running>) -> Result<(), Problem> {
    end(&[(name.to_owned(), drive)], DELETE_LIMIT, &AtomicBool::new(false))
}

fn end(drives: &[Named], limit: Duration, hurry: &AtomicBool) -> Result<(), Problem> {
    for (name, drive) in drives {
        if let Err(problem) = drive.drain() {
            tracing::warn!("drive {name} cannot be drained: {}", problem.in_one_line());
        }
    }
    let outcome = wait(drives, limit, hurry);
    for (name, drive) in drives {
        if let Err(problem) = drive.close() {
            tracing::warn!("drive {name} was not closed: {}", problem.in_one_line());
        }
    }
    outcome
}

fn wait(drives: &[Named], limit: Duration, hurry: &AtomicBool) -> Result<(), Problem> {
    let start = Instant::now();
    let mut said = start;
    loop {
        let busy = busy(drives);
        if busy.is_empty() {
            return Ok(());
        }
        let words = busy.join(", ");
        if start.elapsed() >= limit || hurry.load(Relaxed) {
            return Err(Problem::internal(format!("did not wait any longer for {words}"))
                .hint("a guest may see these fail; daemon.drain_s is how long a daemon that stops waits"));
        }
        if said.elapsed() >= SAY_EVERY {
            tracing::info!("waiting for {words}");
            said = Instant::now();
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Drives that are not drained, in words. One that does not answer has nothing that could be waited for.
fn busy(drives: &[Named]) -> Vec<String> {
    let words = |(name, drive): &Named| {
        let status = drive.status().ok().filter(|status| !status.drained)?;
        Some(format!("{} of drive {name}", count(status.in_flight as usize, "command")))
    };
    drives.iter().filter_map(words).collect()
}
