//! A drive that is about to be closed is synced, whether or not a host has flushed or shut it down.

use crate::Namespace;
use crate::reset::INTERNAL;
use crate::subsystem::Subsystem;
use sluice_command::{Command, Operation, Origin, Request};
use sluice_nvme::SubmissionEntry;
use sluice_nvme::opcode::io;

/// The flushes of a sync.
#[derive(Debug, Default)]
pub(crate) struct Sync {
    in_flight: u32,
    failed: bool,
}

impl Subsystem {
    /// Flushes every namespace that has a volatile write cache. Nothing else is in flight. [`synced`](Self::synced) tells
    /// how it ended.
    pub fn sync(&mut self, now_ns: u64) {
        self.sync = Some(Sync::default());
        let nsids: Vec<u32> = self.cached_namespaces().collect();
        for nsid in nsids {
            if self.slab.room() == 0 || self.get(nsid).is_none_or(Namespace::is_leaving) {
                self.note_sync(|sync| sync.failed = true);
                continue;
            }
            let entry = SubmissionEntry { nsid, ..SubmissionEntry::default() };
            let controller = Origin::SUBSYSTEM;
            let origin = Origin { sq: INTERNAL, controller, opcode: io::FLUSH, ..Origin::default() };
            let command = self.slab.admit(&entry, origin).expect("room was looked at");
            let request = Request { operation: Operation::Flush, ..Request::default() };
            self.slab.slot_mut(&command).request = request;
            self.note_sync(|sync| sync.in_flight += 1);
            self.submit_to(nsid, command, now_ns);
        }
    }

    /// True if all flushes of the last [`sync`](Self::sync) have succeeded, false if one failed; none while some are in
    /// flight, or none was begun.
    pub fn synced(&self) -> Option<bool> {
        self.sync.as_ref().filter(|sync| sync.in_flight == 0).map(|sync| !sync.failed)
    }

    fn note_sync(&mut self, note: impl FnOnce(&mut Sync)) {
        if let Some(sync) = &mut self.sync {
            note(sync);
        }
    }
}

/// A flush is over.
pub(crate) fn ended(subsystem: &mut Subsystem, command: Command) {
    let failed = !subsystem.slab.slot(&command).status.is_success();
    subsystem.slab.release(command);
    subsystem.note_sync(|sync| {
        sync.in_flight -= 1;
        sync.failed |= failed;
    });
}
