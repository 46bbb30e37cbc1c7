//! Changes by hosts that outlive the daemon: block sizes after Format NVM, sanitize operations, reservations
//! that persist through power loss, and namespaces that hosts create.

mod words;

use super::storage::Why;
use super::{Drives, Entry, Running, ana, classifier, drive_of_job, lock, merge, paused, pool, target};
use crate::config::Config;
use crate::state::{
    Formatted, Formatting, HostState, Pooled, Reserved, Sanitized, SanitizedState, Saved, Uncorrectable,
    Unflushed,
};
use sluice_controller::{
    AnaRule, FormatRecord, FormatState, PersistentEventRecord, PersistentRecord, PowerCounts,
    ReservationRecord, SanitizeRecord, SanitizeState,
};
use sluice_spec::error::ApiError;
use sluice_spec::{DriveSpec, NamespaceSpec};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

/// Stored state of a drive besides its specification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// NSIDs that the classifier was detached from for its errors.
    pub detached: Vec<u32>,
    /// NSIDs with the block sizes that hosts formatted them with.
    pub block_sizes: Vec<(u32, u32)>,
    /// NSID of the namespace whose format did not complete, and its new block size.
    pub formatting: Option<(u32, u32)>,
    /// Erasures that the operator has paused: the NSID and the name of each job.
    pub paused: Vec<(u32, String)>,
    /// NSIDs with the ranges of bytes that a host marked by Write Uncorrectable.
    pub uncorrectable: Vec<(u32, Vec<[u64; 2]>)>,
    /// The last sanitize operation.
    pub sanitized: Option<SanitizeRecord>,
    /// The persistent events of the drive.
    pub history: PersistentEventRecord,
    /// Record of unflushed writes that was stored when the drive was opened last, and whether the drive was
    /// synced since.
    pub unflushed: Option<Unflushed>,
    /// The power identifier that hosts get, in hexadecimal.
    pub power: Option<String>,
    /// Initial counts of the SMART log, and whether the last daemon was cut off with unflushed writes.
    pub power_counts: PowerCounts,
    pub was_cut: bool,
    /// NSIDs with the reservations that persist.
    pub reservations: Vec<(u32, ReservationRecord)>,
    /// States of the drive's ANA groups.
    pub ana: Vec<AnaRule>,
    /// Namespaces that hosts created in the drive's pool, and their attachments.
    pub pooled: Pooled,
    /// NSIDs whose targets the operator has paused, each with the seconds after which commands fail.
    pub paused_targets: Vec<(u32, Option<u32>)>,
    /// NSIDs with the identifiers that their storage gives them.
    pub uuids: Vec<(u32, [u8; 16])>,
}

/// A record that a drive's controller needs stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersistRequest {
    pub drive: String,
    /// The instance of the drive that sent the record ([`Running::generation`](super::Running::generation)). Others may
    /// have had its name, or the drive may have been opened again.
    pub generation: u64,
    pub what: PersistentRecord,
}

/// Interval between two checks whether the drive of a waiting record is listed.
const LOOK: Duration = Duration::from_millis(10);

/// Interval between two attempts to store state that could not be stored.
const SETTLE: Duration = Duration::from_secs(1);

impl Drives {
    /// Returns the stored state of a drive that is opened.
    pub(super) fn remembered(&self, spec: &DriveSpec, why: Why) -> Result<Remembered, ApiError> {
        let hosted = self.usable_hosted(&spec.name, why)?;
        let mut hosted = lock(&hosted);
        pool::check(spec, &hosted.state)?;
        // Give up before a host can write to storage that must not be erased.
        let mut next = hosted.state.clone();
        give_up(&mut next, spec);
        self.commit_hosted(&spec.name, &mut hosted, next)?;
        let (state, saved) = (&hosted.state, self.saved());
        Ok(Remembered {
            detached: classifier::still_detached(spec, &saved),
            block_sizes: block_sizes(spec, state),
            formatting: formatting(spec, state),
            paused: paused::of_controller(&saved, &spec.name),
            uncorrectable: uncorrectable(spec, state),
            sanitized: sanitized(spec, state),
            history: self.state.load_history(&spec.name),
            unflushed: self.state.load_unflushed(&spec.name),
            power: None,
            power_counts: PowerCounts::default(),
            was_cut: false,
            reservations: reservations(spec, state),
            ana: ana::stored_rules(spec, &saved),
            pooled: pool::of(state, &spec.name).cloned().unwrap_or_default(),
            paused_targets: target::paused(&spec.name, &saved),
            uuids: Vec::new(),
        })
    }

    /// Removes block sizes set by hosts where the configuration has changed since.
    pub(super) fn forget_former_formats(&self, config: &Config) -> Result<(), ApiError> {
        let all: Vec<_> =
            lock(&self.hosted).iter().map(|(drive, it)| (drive.clone(), Arc::clone(it))).collect();
        for (drive, hosted) in all {
            let mut hosted = lock(&hosted);
            let mut next = hosted.state.clone();
            merge::forget_formats(config, &mut next);
            if next != hosted.state {
                self.commit_hosted(&drive, &mut hosted, next)?;
            }
        }
        Ok(())
    }

    /// Starts a thread that stores changes by hosts.
    pub fn heed_hosts(self: &Arc<Self>) -> Result<(), ApiError> {
        let Some(orders) = self.engine.persist_requests() else { return Ok(()) };
        let drives = Arc::downgrade(self);
        let heed = move || {
            let mut waiting = Vec::new();
            loop {
                let order = orders.recv_timeout(if waiting.is_empty() { SETTLE } else { LOOK });
                let (Some(drives), false) = (drives.upgrade(), order == Err(RecvTimeoutError::Disconnected))
                else {
                    return;
                };
                if order.is_err() {
                    let _keeps = lock(&drives.keeps);
                    drives.settle();
                }
                waiting.extend(order);
                drives.keep_all(&mut waiting, Instant::now());
            }
        };
        std::thread::Builder::new()
            .name("kept".to_owned())
            .spawn(heed)
            .map(drop)
            .map_err(|error| ApiError::internal(format!("cannot start a thread: {error}")))
    }

    /// Stores the records that drives have sent. The record of a drive that is being opened is left, since no
    /// drive could be notified yet. So is the record of a drive that has stored too much lately. All are
    /// admitted at the time `now`.
    pub(super) fn keep_all(&self, orders: &mut Vec<PersistRequest>, now: Instant) {
        let _keeps = lock(&self.keeps);
        let mut left: Vec<PersistRequest> = Vec::new();
        for order in orders.drain(..) {
            let is_next = left.iter().all(|before| before.drive != order.drive);
            if is_next && !self.may_be_opening(&order) && self.may_store(&order.drive, now) {
                self.keep(&order);
            } else {
                left.push(order);
            }
        }
        *orders = left;
    }

    /// Returns whether a change is in progress that may list the drive of a record, which is not listed yet.
    fn may_be_opening(&self, order: &PersistRequest) -> bool {
        // The order matters: a change that has ended by now has already listed its drive.
        (self.is_coming(&order.drive) || self.changes.is_under_way(&order.drive))
            && self.asker(order).is_none()
    }

    /// Returns the drive that sent a record, if it is listed. Another drive of its name is not returned.
    fn asker(&self, order: &PersistRequest) -> Option<(Entry, Arc<dyn Running>)> {
        let entry = lock(&self.entries).get(&order.drive)?.clone();
        let running = entry.running.clone().ok()?;
        (running.generation() == order.generation).then_some((entry, running))
    }

    /// Stores a record that a drive's controller needs stored, and reports the result to the controller.
    pub(super) fn keep(&self, order: &PersistRequest) {
        let Some((entry, running)) = self.asker(order) else {
            // A removed drive waits for no reply, and the record is not about the drive that has its name
            // now.
            return tracing::debug!(
                "drive {} is gone: {} is not remembered",
                order.drive,
                words::of(&order.what)
            );
        };
        let stored = self.store_record(&entry, order);
        if let Err(problem) = &stored {
            let (what, problem) = (words::of(&order.what), problem.in_one_line());
            tracing::error!("drive {}: {what} is not remembered: {problem}", order.drive);
        }
        if let Err(problem) = running.persisted(order.what.clone(), stored.is_ok()) {
            tracing::warn!("drive {} does not hear that it is remembered: {problem}", order.drive);
        }
        if let (PersistentRecord::Creation(_), Err(_)) = (&order.what, &stored)
            && let Err(problem) = self.clear_up(&entry)
        {
            tracing::warn!("drive {}: the file that nothing came of stays for now: {problem}", order.drive);
        }
    }

    fn store_record(&self, entry: &Entry, order: &PersistRequest) -> Result<(), ApiError> {
        // File operations take time, so other drives' changes do not wait for them.
        match order.what {
            PersistentRecord::Creation(creation) => {
                return self.create_namespace(entry, creation);
            }
            PersistentRecord::Removal => return self.sweep_pool(&entry.spec),
            _ => {}
        }
        // A record is stored even while the daemon stops: a command in flight waits for it.
        let hosted = self.hosted(&order.drive);
        let mut hosted = lock(&hosted);
        // The drive may have been removed or resized meanwhile.
        let Some((entry, _)) = self.asker(order) else {
            return Err(ApiError::not_found(format!("drive `{}` is gone", order.drive)));
        };
        if let PersistentRecord::PersistentEvents(record) = &order.what {
            hosted.spend(record.as_bytes().len());
            return self.state.store_history(&order.drive, record);
        }
        if let PersistentRecord::Losses(nsids) = &order.what {
            return self.state.note_losses(&order.drive, nsids);
        }
        let mut next = hosted.state.clone();
        match &order.what {
            // A record of a namespace that was deleted meanwhile must not apply to the next one with its
            // NSID.
            PersistentRecord::Uncorrectable { nsid, .. } | PersistentRecord::Attachment { nsid, .. }
                if !pool::has(&entry.spec, &hosted.state, *nsid) => {}
            PersistentRecord::Uncorrectable { nsid, ranges } => {
                note_uncorrectable(&mut next, &order.drive, *nsid, ranges)
            }
            // These records are stored above.
            PersistentRecord::PersistentEvents(_)
            | PersistentRecord::Losses(_)
            | PersistentRecord::Creation(_)
            | PersistentRecord::Removal => {}
            PersistentRecord::Deletion(nsids) => pool::note_deletion(&mut next, &order.drive, nsids),
            PersistentRecord::Attachment { nsid, attachment } => {
                pool::note_attachment(&mut next, &order.drive, *nsid, attachment);
            }
            PersistentRecord::Format(record) => note_format(&mut next, &entry.spec, *record),
            PersistentRecord::Sanitize(record) => note_sanitized(&mut next, &entry.spec, *record),
            PersistentRecord::Reservations(records) => {
                let is_there = |nsid| pool::has(&entry.spec, &hosted.state, nsid);
                for (nsid, record) in records.iter().filter(|(nsid, _)| is_there(*nsid)) {
                    note_record(&mut next, &order.drive, *nsid, record.as_ref());
                }
            }
        }
        self.commit_hosted(&order.drive, &mut hosted, next)
    }

    /// Removes all records of a deleted drive.
    pub(super) fn forget(&self, name: &str) -> Result<(), ApiError> {
        let forgotten = self.store_without_hosted(name, |saved| forget(saved, name));
        // Remove these files last: no later store can bring them back.
        self.state.forget_history(name);
        self.state.forget_unflushed(name);
        forgotten
    }
}

fn note_format(saved: &mut HostState, spec: &DriveSpec, record: FormatRecord) {
    let FormatRecord { nsid, block_size, state } = record;
    let drive = spec.name.clone();
    saved.formatting.retain(|it| it.drive != drive);
    match state {
        FormatState::Running => {
            saved.formatting.push(Formatting { drive, nsid, block_size, targets: spec.targets() });
        }
        FormatState::Done => {
            saved.uncorrectable.retain(|it| it.drive != drive || it.nsid != nsid);
            note_block_size(saved, spec, nsid, block_size);
        }
        FormatState::Failed => {}
    }
}

/// Notes the block size in a separate record, not in the drive's spec: functions keep counting in the blocks
/// of the spec.
fn note_block_size(saved: &mut HostState, spec: &DriveSpec, nsid: u32, block_size: u32) {
    let Some(declared) = pool::first_block_size(spec, saved, nsid) else { return };
    saved.formatted.retain(|it| it.drive != spec.name || it.nsid != nsid);
    if block_size != declared {
        saved.formatted.push(Formatted { drive: spec.name.clone(), nsid, declared, block_size });
    }
}

/// Notes the reservations of a namespace, or that none persist any more.
fn note_record(saved: &mut HostState, drive: &str, nsid: u32, record: Option<&ReservationRecord>) {
    saved.reserved.retain(|it| it.drive != drive || it.nsid != nsid);
    saved.reserved.extend(record.map(|record| Reserved::of(drive, nsid, record)));
}

/// Returns the persistent reservations of a drive's namespaces.
fn reservations(spec: &DriveSpec, saved: &HostState) -> Vec<(u32, ReservationRecord)> {
    let of_drive = saved.reserved.iter().filter(|it| it.drive == spec.name);
    let is_there = |it: &&Reserved| pool::has(spec, saved, it.nsid);
    of_drive.filter(is_there).map(|it| (it.nsid, it.record())).collect()
}

/// Returns the block sizes of a drive's formatted namespaces. A block size that the configuration changed
/// since has precedence.
fn block_sizes(spec: &DriveSpec, saved: &HostState) -> Vec<(u32, u32)> {
    let counts = |it: &&Formatted| {
        it.drive == spec.name && pool::first_block_size(spec, saved, it.nsid) == Some(it.declared)
    };
    saved.formatted.iter().filter(counts).map(|it| (it.nsid, it.block_size)).collect()
}

/// Returns the NSID and new block size of the namespace that was being formatted.
fn formatting(spec: &DriveSpec, saved: &HostState) -> Option<(u32, u32)> {
    let found = saved.formatting.iter().find(|it| it.drive == spec.name)?;
    is_the_same_namespace(spec, &found.targets, found.nsid).then_some((found.nsid, found.block_size))
}

fn note_uncorrectable(saved: &mut HostState, drive: &str, nsid: u32, ranges: &[[u64; 2]]) {
    saved.uncorrectable.retain(|it| it.drive != drive || it.nsid != nsid);
    if !ranges.is_empty() {
        saved.uncorrectable.push(Uncorrectable { drive: drive.to_owned(), nsid, ranges: ranges.to_vec() });
    }
}

/// Returns marked ranges by NSID, of namespaces that the drive still has.
fn uncorrectable(spec: &DriveSpec, saved: &HostState) -> Vec<(u32, Vec<[u64; 2]>)> {
    let marked = saved.uncorrectable.iter();
    let is_there = |nsid| pool::has(spec, saved, nsid);
    let own = marked.filter(|it| it.drive == spec.name && is_there(it.nsid));
    own.map(|it| (it.nsid, it.ranges.clone())).collect()
}

fn note_sanitized(saved: &mut HostState, spec: &DriveSpec, record: SanitizeRecord) {
    let drive = spec.name.as_str();
    let state = match record.state {
        SanitizeState::Running => SanitizedState::Running,
        SanitizeState::Done => SanitizedState::Done,
        SanitizeState::Failed => SanitizedState::Failed,
        SanitizeState::GivenUp => SanitizedState::GivenUp,
    };
    // A sanitize operation erases all that the format would have erased, and more.
    saved.formatting.retain(|it| it.drive != drive);
    saved.sanitized.retain(|it| it.drive != drive);
    if record.state == SanitizeState::Done {
        saved.uncorrectable.retain(|it| it.drive != drive);
    }
    let SanitizeRecord { cdw10, pattern, .. } = record;
    let (drive, targets) = (drive.to_owned(), spec.targets());
    saved.sanitized.push(Sanitized { drive, cdw10, pattern, state, targets });
}

fn sanitized(spec: &DriveSpec, saved: &HostState) -> Option<SanitizeRecord> {
    let found = saved.sanitized.iter().find(|it| it.drive == spec.name)?;
    if !is_the_same(spec, &found.targets) {
        return None;
    }
    let state = match found.state {
        SanitizedState::Running => SanitizeState::Running,
        SanitizedState::Done => SanitizeState::Done,
        SanitizedState::Failed => SanitizeState::Failed,
        SanitizedState::GivenUp => SanitizeState::GivenUp,
    };
    Some(SanitizeRecord { cdw10: found.cdw10, pattern: found.pattern, state })
}

/// Removes the records of a deleted drive from the state.
pub(super) fn forget(saved: &mut Saved, drive: &str) {
    saved.detached.retain(|it| it.drive != drive);
    saved.ana.retain(|it| it.drive != drive);
    saved.paused.retain(|id| drive_of_job(id) != drive);
    saved.paused_targets.retain(|it| it.drive != drive);
    saved.forget_storage(drive);
}

/// Gives up erasures by hosts if the drive has other targets now. The erasure does not resume when the former
/// targets are back, either: they may hold new data by then.
fn give_up(saved: &mut HostState, spec: &DriveSpec) {
    let drive = &spec.name;
    let warn = |what: &str, targets: &[String]| {
        let were = targets.join(", ");
        tracing::warn!("drive {drive}: {what} was under way on {were}, and is given up: it is on others now");
    };
    let is_elsewhere =
        |it: &mut Formatting| it.drive == *drive && !is_the_same_namespace(spec, &it.targets, it.nsid);
    for format in saved.formatting.extract_if(.., is_elsewhere) {
        warn("a format", &format.targets);
    }
    let runs = |it: &&mut Sanitized| it.drive == *drive && it.state == SanitizedState::Running;
    for sanitize in saved.sanitized.iter_mut().filter(runs) {
        if !is_the_same(spec, &sanitize.targets) {
            sanitize.state = SanitizedState::GivenUp;
            warn("a sanitize operation", &sanitize.targets);
        }
    }
}

/// Returns whether a drive has the same targets as when an erasure began. Records of older daemons have no
/// targets and match.
fn is_the_same(spec: &DriveSpec, targets: &[String]) -> bool {
    targets.is_empty() || targets == spec.targets()
}

/// Returns whether a namespace has the same target as when its erasure began. A namespace of a pool has no
/// declared target, neither then nor now.
fn is_the_same_namespace(spec: &DriveSpec, targets: &[String], nsid: u32) -> bool {
    let was = targets.get(nsid.wrapping_sub(1) as usize);
    targets.is_empty() || was.cloned() == spec.namespace(nsid).map(NamespaceSpec::data_location)
}

#[cfg(test)]
mod tests;
