//! The end: no new commands, those in flight finished, everything closed.

use super::{Drives, Entry, Running, lock};
use crate::problem::Problem;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two looks whether commands are still in flight.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Between two messages that say what is waited for.
const SAY_EVERY: Duration = Duration::from_secs(1);

impl Drives {
    /// Takes no more commands and waits for those in flight, `limit` at most; then closes every drive.
    ///
    /// # Errors
    /// If commands were still in flight at the limit: which drives', and how many.
    pub fn drain(&self, limit: Duration) -> Result<(), Problem> {
        let _no_more_changes = lock(&self.saved);
        let entries: Vec<Entry> = lock(&self.entries).values().cloned().collect();
        let running: Vec<_> =
            entries.into_iter().filter_map(|entry| Some((entry.spec.name, entry.running.ok()?))).collect();
        for (name, drive) in &running {
            if let Err(problem) = drive.quiesce() {
                tracing::warn!("drive {name} cannot be quiesced: {problem}");
            }
        }
        let outcome = wait(&running, limit);
        for (name, drive) in &running {
            if let Err(problem) = drive.close() {
                tracing::warn!("drive {name} was not closed: {problem}");
            }
        }
        outcome
    }
}

fn wait(running: &[(String, Arc<dyn Running>)], limit: Duration) -> Result<(), Problem> {
    let start = Instant::now();
    let mut said = start;
    loop {
        let busy = busy(running);
        if busy.is_empty() {
            return Ok(());
        }
        let words = busy.join(", ");
        if start.elapsed() >= limit {
            return Err(Problem::internal(format!("stopped without waiting any longer for {words}"))
                .hint("their guests see an error or a timeout; daemon.drain_s is the limit"));
        }
        if said.elapsed() >= SAY_EVERY {
            tracing::info!("waiting for {words}");
            said = Instant::now();
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Drives with commands in flight, in words. One that does not answer has none that could be waited for.
fn busy(running: &[(String, Arc<dyn Running>)]) -> Vec<String> {
    let words = |(name, drive): &(String, Arc<dyn Running>)| {
        let in_flight = drive.status().ok()?.in_flight;
        (in_flight > 0).then(|| format!("{in_flight} commands of drive {name}"))
    };
    running.iter().filter_map(words).collect()
}
