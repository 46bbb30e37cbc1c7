//! Intake of I/O commands: each is checked, and goes to its router, waits, or fails.

use crate::command::io::without_namespace;
use crate::command::{Next, io};
use crate::engine::{client_dma, copy};
use crate::model::{Subsystem, access};
use crate::state::client_dma::{ClientDma, is_fetchable};
use crate::state::features::Features;
use crate::state::fused;
use sluice_command::Command;
use sluice_memory::Space;
use sluice_nvme::opcode::io as opcode;
use sluice_nvme::{Status, SubmissionEntry};

/// Context for taking I/O commands, gathered once for a batch.
#[derive(Debug)]
pub(crate) struct Intake<'a> {
    pub(crate) subsystem: &'a mut Subsystem,
    pub(crate) space: &'a Space,
    pub(crate) features: &'a Features,
    pub(crate) client_dma: &'a mut Option<Box<ClientDma>>,
    pub(crate) now_ns: u64,
}

impl Intake<'_> {
    /// Takes a command that was just fetched.
    #[inline]
    pub(crate) fn begin(&mut self, command: Command, entry: &SubmissionEntry) {
        self.begin_with::<false>(command, entry);
    }

    /// Takes a command that was just fetched, and notes its stages.
    #[cold]
    #[inline(never)]
    pub(crate) fn begin_traced(&mut self, command: Command, entry: &SubmissionEntry) {
        self.begin_with::<true>(command, entry);
    }

    #[inline(always)]
    fn begin_with<const TRACED: bool>(&mut self, command: Command, entry: &SubmissionEntry) {
        if entry.opcode == opcode::COPY {
            return copy::begin(self, command, entry);
        }
        let Self { space, features, now_ns, .. } = *self;
        let deallocates = self.subsystem.deallocates();
        let Some(target) = self.subsystem.target(entry.nsid) else {
            return self.refuse(command, entry, None);
        };
        let number = target.slab.number(&command);
        let slot = target.slab.slot_mut(&command);
        slot.origin.namespace = target.index as u8;
        if target.namespace.is_guarded()
            && let Err(status) = access::check(
                target.ana,
                target.hosts,
                slot.origin.controller,
                target.namespace,
                entry.opcode,
            )
        {
            slot.status = status;
            target.done.push(command);
            return;
        }
        let check = io::Check { entry, space, features, deallocates, number, staging: target.staging };
        match io::check(&check, slot, target.namespace, target.health) {
            Ok(Next::Send) => {
                target.health.count_segments(slot.data.len());
                match TRACED {
                    true => target.send_traced(command, now_ns),
                    false => target.send(command, now_ns),
                }
            }
            Ok(Next::Pass) => target.pass(command, now_ns),
            Ok(Next::Nothing) => target.done.push(command),
            Err(fused::CLAIMED) if target.namespace.is_claimed() => self.subsystem.hold_back(command),
            Err(status) => self.refuse(command, entry, Some(status)),
        }
    }

    /// Fails a command; no status means that there is no such namespace.
    #[cold]
    fn refuse(&mut self, command: Command, entry: &SubmissionEntry, status: Option<Status>) {
        let handed_on = self.subsystem.passthrough().io.contains(entry.opcode);
        let status = match status {
            Some(status) => status,
            None => match without_namespace(entry, self.subsystem.deallocates()) {
                Status::INVALID_OPCODE if handed_on => Subsystem::status_of_inactive(entry.nsid),
                status => status,
            },
        };
        self.give_up(command, status);
    }

    /// Fails a command that was not started, unless its client can provide the missing memory.
    #[cold]
    pub(crate) fn give_up(&mut self, command: Command, status: Status) {
        self.subsystem.health_mut().note_effort();
        if is_fetchable(self.space, status) {
            let wanted = self.space.take_missing();
            return client_dma::fetch_missing(self.client_dma, self.subsystem, command, &wanted, self.now_ns);
        }
        self.subsystem.refuse(command, status);
    }
}
