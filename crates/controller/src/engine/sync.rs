//! Sync of a drive that is about to be closed, whether or not a host has flushed or shut it down.

use crate::model::{Namespace, Subsystem};
use crate::state::sync::{Sync, Synced};
use sluice_command::{Command, Operation, Origin, Request};
use sluice_nvme::SubmissionEntry;
use sluice_nvme::opcode::io;
use std::collections::BTreeSet;

impl Subsystem {
    /// Flushes every namespace that has a volatile write cache, while nothing else is in flight.
    /// [`synced`](Self::synced) returns the outcome.
    pub fn sync(&mut self, now_ns: u64) {
        self.jobs_mut().sync = Some(Sync::default());
        let nsids: Vec<u32> = self.cached_namespaces().collect();
        self.flush_all(&nsids, now_ns);
    }

    fn flush_all(&mut self, nsids: &[u32], now_ns: u64) {
        for &nsid in nsids {
            if self.slab().room() == 0 || self.get(nsid).is_none_or(Namespace::is_leaving) {
                self.jobs_mut().sync.iter_mut().for_each(|sync| sync.failed.push(nsid));
                continue;
            }
            let entry = SubmissionEntry { nsid, ..SubmissionEntry::default() };
            let controller = Origin::SUBSYSTEM;
            let origin =
                Origin { sq: Origin::INTERNAL_SQ, controller, opcode: io::FLUSH, ..Origin::default() };
            let command = self.slab_mut().admit(&entry, origin).expect("room was looked at");
            let request = Request { operation: Operation::Flush, ..Request::default() };
            self.slab_mut().slot_mut(&command).request = request;
            self.jobs_mut().sync.iter_mut().for_each(|sync| sync.in_flight += 1);
            self.submit_to(nsid, command, now_ns);
        }
    }

    /// Ends a sync after which the drive goes on, if its flushes have ended. Losses that it has found, of which no
    /// host got a status, are noted. Returns whether all data is durable, and nothing is lost.
    pub fn end_sync(&mut self, now_ns: u64) -> bool {
        let synced = self.synced();
        let Some(sync) = self.jobs_mut().sync.take_if(|sync| sync.in_flight == 0) else { return true };
        let unreported = synced.map(|synced| synced.unreported).unwrap_or_default();
        let lost: BTreeSet<u32> = unreported.into_iter().chain(sync.failed).chain(sync.lost).collect();
        lost.iter().for_each(|nsid| self.lose_writes(*nsid, now_ns));
        lost.is_empty()
    }

    /// Returns the outcome of the last [`sync`](Self::sync); none while some of its flushes are in flight, or
    /// none was begun.
    pub fn synced(&self) -> Option<Synced> {
        let sync = self.jobs().sync.as_ref().filter(|sync| sync.in_flight == 0)?;
        let mut unreported = self.unreported_losses();
        unreported.extend(&sync.lost);
        unreported.sort_unstable();
        unreported.dedup();
        Some(Synced { is_durable: sync.failed.is_empty(), unreported, power: self.power_counts() })
    }
}

/// Counts a finished flush.
pub(crate) fn ended(subsystem: &mut Subsystem, command: Command, now_ns: u64) {
    let failed = !subsystem.slab().slot(&command).status.is_success();
    let nsid = subsystem.slab().entry(&command).nsid;
    subsystem.slab_mut().release(command);
    let Some(sync) = &mut subsystem.jobs_mut().sync else { return };
    sync.in_flight -= 1;
    sync.failed.extend(failed.then_some(nsid));
    if sync.in_flight == 0 && !sync.is_second && !sync.failed.is_empty() {
        sync.is_second = true;
        let failed = std::mem::take(&mut sync.failed);
        sync.lost.clone_from(&failed);
        subsystem.flush_all(&failed, now_ns);
    }
}
