//! The record of unflushed writes that outlives a daemon, and the power identifier of a drive. An unchanged
//! identifier proves to hosts that the drive has lost no acknowledged write.

use super::{Drives, Remembered, Running, drain, lock};
use crate::state::Unflushed;
use sluice_controller::PowerCounts;
use sluice_spec::DriveSpec;
use sluice_spec::error::ApiError;
use sluice_spec::paths::boot_id;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

impl Drives {
    /// Opens a drive with the record of an earlier daemon. Stores before that this daemon may leave unflushed
    /// writes, too.
    pub(super) fn open_with_account(
        &self,
        spec: &DriveSpec,
        reactor: usize,
        remembered: Remembered,
    ) -> Result<Arc<dyn Running>, ApiError> {
        // Hosts of the sockets end with this daemon, so no record is needed unless a Flush has failed before.
        if !spec.has_peers() && spec.tcp.is_none() && remembered.unflushed.is_none() {
            let power_counts = remembered.history.power_counts();
            return self.engine.open(spec, reactor, &Remembered { power_counts, ..remembered });
        }
        let before = remembered.unflushed.clone();
        if let Some(before) = before.as_ref().filter(|_| self.engine.is_incoming(&spec.name)) {
            return self.continue_account(spec, reactor, remembered, before);
        }
        let was_cut = was_cut(spec, before.as_ref());
        let mut now = begin(spec, before.as_ref());
        now.note_counts(counts(before.as_ref(), remembered.history.power_counts(), was_cut));
        // Store before a host can write data that may be lost with this daemon.
        if before.as_ref() != Some(&now) {
            self.state.store_unflushed(&spec.name, &now)?;
        }
        let is_clean = before.as_ref().is_none_or(|before| before.clean);
        let (power, power_counts) = (now.power.clone(), now.counts());
        let remembered = Remembered { power, power_counts, was_cut, ..remembered };
        let opened = self.engine.open(spec, reactor, &remembered);
        // After a failed open no host has written, so the former record applies.
        let running = opened.inspect_err(|_| self.state.restore_unflushed(&spec.name, before.as_ref()))?;
        // Unflushed writes of an earlier daemon are judged by the power identifiers of that time, so peers
        // change only after a clean end.
        if is_clean && spec.has_peers() {
            now.peers = running.peers();
            if let Err(problem) = self.state.store_unflushed(&spec.name, &now) {
                drain::end_one(&spec.name, running)?;
                return Err(problem);
            }
        }
        Ok(running)
    }

    /// Begins the record of a drive that is about to be on other controllers. Without the power identifiers of these,
    /// each of them counts as one that may have lost its power.
    pub(super) fn begin_account(&self, spec: &DriveSpec) -> Result<(), ApiError> {
        let has_none = self.state.load_unflushed(&spec.name).is_none();
        match spec.has_peers() && has_none {
            true => self.state.store_unflushed(&spec.name, &begin(spec, None)),
            false => Ok(()),
        }
    }

    /// Adds the controllers that a drive is on now to its record.
    pub(super) fn add_peers(&self, spec: &DriveSpec, running: &dyn Running) -> Result<(), ApiError> {
        let Some(mut now) = self.state.load_unflushed(&spec.name).filter(|_| spec.has_peers()) else {
            return Ok(());
        };
        // Unflushed writes are judged by the identifier that a controller had when they were acknowledged.
        for (peer, power) in running.peers() {
            now.peers.entry(peer).or_insert(power);
        }
        self.state.store_unflushed(&spec.name, &now)
    }

    /// Opens a drive that another process has flushed and hands over. Nothing is lost, so the power identifier stays.
    fn continue_account(
        &self,
        spec: &DriveSpec,
        reactor: usize,
        remembered: Remembered,
        before: &Unflushed,
    ) -> Result<Arc<dyn Running>, ApiError> {
        let (power, power_counts) = (before.power.clone(), before.counts());
        let running =
            self.engine.open(spec, reactor, &Remembered { power, power_counts, ..remembered.clone() })?;
        if spec.has_peers() {
            let now = Unflushed { peers: running.peers(), ..before.clone() };
            self.state.store_unflushed(&spec.name, &now)?;
        }
        Ok(running)
    }
}

/// Stored doubts of drives, by name.
type Doubts = BTreeMap<String, BTreeSet<u32>>;

/// Interval between two checks for doubts.
const LOOK: Duration = Duration::from_secs(1);

impl Drives {
    /// Starts a thread that stores which drives may have lost writes. The thread has no other job: a peer
    /// that does not respond delays no other store.
    pub fn heed_doubts(self: &Arc<Self>) -> Result<(), ApiError> {
        let drives = Arc::downgrade(self);
        let heed = move || {
            let mut stored = Doubts::new();
            loop {
                std::thread::sleep(LOOK);
                let Some(drives) = drives.upgrade() else { return };
                if drives.is_ending() {
                    return;
                }
                drives.note_doubts(&mut stored);
            }
        };
        std::thread::Builder::new()
            .name("doubts".to_owned())
            .spawn(heed)
            .map(drop)
            .map_err(|error| ApiError::internal(format!("cannot start a thread: {error}")))
    }

    /// Stores which namespaces may have lost writes without a host having been notified. A flush that no host
    /// sent has failed there, and this daemon may be killed before the next flush.
    fn note_doubts(&self, stored: &mut Doubts) {
        let entries: Vec<_> =
            lock(&self.entries).iter().map(|(name, it)| (name.clone(), it.running.clone())).collect();
        stored.retain(|name, _| entries.iter().any(|(known, _)| known == name));
        for (name, running) in entries {
            let now = running.map(|running| running.doubts()).unwrap_or_default();
            if stored.get(&name).map_or(now.is_empty(), |before| *before == now) {
                continue;
            }
            let (_keeps, _saved) = (lock(&self.keeps), lock(&self.saved));
            match self.state.note_doubts(&name, &now) {
                Ok(()) => drop(stored.insert(name, now)),
                Err(problem) => tracing::warn!("drive {name}: {problem}"),
            }
        }
    }
}

/// Returns the record to store before a drive is opened. The drive keeps its power identifier in two cases,
/// if no Flush has failed. The first: it was synced when it was closed. The second: only a power loss of this
/// machine could lose its writes, and there was none.
fn begin(spec: &DriveSpec, before: Option<&Unflushed>) -> Unflushed {
    let boot = boot_id();
    let has_kept = |before: &&Unflushed| before.owed().is_empty() && !was_cut(spec, Some(before));
    let power = before.filter(has_kept).and_then(|before| before.power.clone());
    let left = before.filter(|before| !before.clean);
    Unflushed {
        power: power.or_else(|| Some(random())),
        peers: left.map(|left| left.peers.clone()).unwrap_or_default(),
        clean: false,
        untold: before.map(Unflushed::owed).unwrap_or_default(),
        boot,
        ..Unflushed::default()
    }
}

/// Returns whether the last daemon was cut off with unflushed writes. The drive was not synced when it was
/// closed. In addition, this machine lost its power, or the drive keeps writes in the daemon or on other
/// controllers.
fn was_cut(spec: &DriveSpec, before: Option<&Unflushed>) -> bool {
    let boot = boot_id();
    let has_lost = |before: &Unflushed| {
        let is_same_boot = boot.is_some() && before.boot == boot;
        !(before.clean || is_same_boot && spec.outlives_daemon())
    };
    before.is_some_and(has_lost)
}

/// Power cycles that a killed daemon may have left unstored. A virtual machine that resets its drive
/// repeatedly adds to them.
const UNSTORED: u64 = 100;

/// Returns the initial counts of the SMART log. After a cut they exceed all counts that a host has seen.
fn counts(before: Option<&Unflushed>, history: PowerCounts, was_cut: bool) -> PowerCounts {
    let stored = before.map(Unflushed::counts).unwrap_or_default().max(history);
    match was_cut {
        true => PowerCounts {
            cycles: stored.cycles.saturating_add(UNSTORED),
            unsafe_shutdowns: stored.unsafe_shutdowns.saturating_add(1),
        },
        false => stored,
    }
}

fn random() -> String {
    let half = || RandomState::new().hash_one("a power identifier");
    format!("{:016x}{:016x}", half(), half())
}

#[cfg(test)]
mod tests {
    use super::super::script::Stage;
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::time::{Duration, Instant};

    const NETWORKED: &str = "[tcp]\nlisten = [\"127.0.0.1:0\"]\n[[drive]]\nname = \"far\"\n[drive.tcp]\n\
         [[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n";

    #[test]
    fn a_drive_that_was_never_open_has_left_nothing() {
        let stage = Stage::new();
        let refuse = |refused: bool| {
            *lock(&stage.script.refuse_open) = refused.then(|| "far".to_owned()).into_iter().collect();
        };
        let stored = |drives: &Drives| drives.state.load_unflushed("far");
        refuse(true);
        assert_eq!(stored(&stage.start(NETWORKED)), None);
        refuse(false);
        let drives = stage.start(NETWORKED);
        let opened = stored(&drives).expect("hosts can write to it");
        assert!(!opened.clean);
        drop(drives);
        refuse(true);
        assert_eq!(
            stored(&stage.start(NETWORKED)),
            Some(opened),
            "an earlier daemon may have left something"
        );
    }

    #[test]
    fn a_second_signal_ends_the_wait_for_a_flush_and_what_was_not_flushed_stays_noted() {
        for hangs in [false, true] {
            let stage = Stage::new();
            let drives = stage.start(NETWORKED);
            stage.script.hang_sync.store(hangs, SeqCst);
            let hurry = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let end = scope.spawn(|| drives.drain(Instant::now() + Duration::from_secs(600), &hurry));
                while stage.script.syncs.load(SeqCst) == 0 {
                    std::thread::yield_now();
                }
                hurry.store(hangs, SeqCst);
                end.join().expect("it does not panic").expect("nothing is in flight");
            });
            let stored = drives.state.load_unflushed("far").expect("it was open");
            assert_eq!(stored.clean, !hangs);
        }
    }

    #[test]
    fn it_is_kept_where_nothing_can_be_lost() {
        let file: DriveSpec = serde_json::from_str(
            r#"{"name":"a","namespaces":[{"target":"file","path":"/a","size":"1MiB"}]}"#,
        )
        .expect("a drive");
        let memory: DriveSpec =
            serde_json::from_str(r#"{"name":"a","namespaces":[{"target":"memory","size":"1MiB"}]}"#)
                .expect("a drive");
        let nvme = |device: &str| -> DriveSpec {
            let text = format!(r#"{{"name":"a","namespaces":[{{"target":"nvme","nvme":{{{device}}}}}]}}"#);
            serde_json::from_str(&text).expect("a drive")
        };
        let (device, far) = (nvme(r#""pci":"0000:01:00.0""#), nvme(r#""vfio_user":"/run/far/cntrl""#));
        let thin: DriveSpec = serde_json::from_str(
            r#"{"name":"a","namespaces":[{"target":"thin","shared":"p","volume":"v","size":"1MiB"}]}"#,
        )
        .expect("a drive");
        for (spec, outlives_daemon) in
            [(file, true), (thin, true), (memory, false), (device, true), (far, false)]
        {
            let first = begin(&spec, None);
            assert!(first.power.is_some() && !first.clean);
            assert_ne!(begin(&spec, None).power, first.power, "each drive has its own");
            let clean = Unflushed { clean: true, boot: Some("before".into()), ..first.clone() };
            assert_eq!(begin(&spec, Some(&clean)).power, first.power);
            let cut = Unflushed { boot: Some("before".into()), ..first.clone() };
            assert_ne!(begin(&spec, Some(&cut)).power, first.power);
            let lost = Unflushed { untold: [1].into(), ..clean.clone() };
            let after = begin(&spec, Some(&lost));
            assert_ne!(after.power, first.power, "a Flush has failed");
            assert_eq!(after.untold, lost.untold, "hosts are yet to be told");
            let killed = begin(&spec, Some(&first)).power;
            assert_eq!(killed == first.power, outlives_daemon);
        }
    }
}
