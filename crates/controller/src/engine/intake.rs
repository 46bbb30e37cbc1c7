//! I/O commands of the NVM command set: checks them, and turns them into requests (NVM Command Set 3).

use crate::command::read_write::{without_namespace, write_zeroes};
use crate::command::transfer::transfer;
use crate::command::{Next, compare, dataset, passthrough, reservation, uncorrectable, verify};
use crate::engine::{client_dma, copy};
use crate::model::layers::touch;
use crate::model::{Namespace, Subsystem, access};
use crate::state::client_dma::{ClientDma, is_fetchable};
use crate::state::features::Features;
use crate::state::health::Health;
use crate::state::{data_pointer, fused};
use sluice_command::{Command, Operation, Request, Slot};
use sluice_memory::{Access, SharedRegion, Space};
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
        if entry.opcode == opcode::COPY {
            return copy::begin(self, command, entry);
        }
        let Self { space, features, now_ns, .. } = *self;
        let deallocates = self.subsystem.deallocates();
        let check =
            |slot: &mut Slot, number, staging: &SharedRegion, namespace: &Namespace, health: &mut Health| {
                data_pointer::check_flags(entry)?;
                match entry.opcode {
                    opcode::READ => transfer(Operation::Read, Access::Write, slot, namespace, entry, space)?,
                    opcode::WRITE => {
                        transfer(Operation::Write, Access::Read, slot, namespace, entry, space)?;
                        slot.request.fua |= !features.write_cache_enabled();
                        if !namespace.is_plain() {
                            uncorrectable::note_write(slot, namespace);
                        }
                    }
                    opcode::FLUSH => {
                        namespace.check_open()?;
                        slot.request = Request { operation: Operation::Flush, ..Request::default() };
                    }
                    opcode::WRITE_ZEROES => {
                        write_zeroes(slot, namespace, entry)?;
                        slot.request.fua |= !features.write_cache_enabled();
                        if !namespace.is_plain() {
                            uncorrectable::note_write(slot, namespace);
                        }
                    }
                    opcode::WRITE_UNCORRECTABLE if !namespace.passthrough().io.contains(entry.opcode) => {
                        uncorrectable::check(slot, namespace, entry)?;
                        return Ok(Next::Nothing);
                    }
                    opcode::COMPARE => {
                        health.note_effort();
                        compare::check(slot, number, staging, namespace, entry, space)?;
                    }
                    opcode::VERIFY if !namespace.passthrough().io.contains(opcode::VERIFY) => {
                        verify::check(slot, number, staging, namespace, entry)?
                    }
                    opcode::DATASET_MANAGEMENT if deallocates => {
                        health.note_effort();
                        return dataset::check(slot, namespace, entry, space);
                    }
                    opcode::RESERVATION_REGISTER
                    | opcode::RESERVATION_REPORT
                    | opcode::RESERVATION_ACQUIRE
                    | opcode::RESERVATION_RELEASE => {
                        namespace.check_open()?;
                        return reservation::check(slot, entry, space);
                    }
                    opcode if namespace.passthrough().io.contains(opcode) => {
                        passthrough::check(slot, namespace, entry, space)?;
                        return Ok(Next::Pass);
                    }
                    _ => return Err(Status::INVALID_OPCODE),
                }
                Ok(Next::Send)
            };
        if let Err((command, status)) = self.subsystem.begin(command, entry, now_ns, check) {
            self.refuse(command, entry, status);
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
        self.subsystem.health.note_effort();
        if is_fetchable(self.space, status) {
            let wanted = self.space.take_missing();
            return client_dma::fetch_missing(self.client_dma, self.subsystem, command, &wanted, self.now_ns);
        }
        self.subsystem.slab.slot_mut(&command).status = status;
        self.subsystem.done.push(command);
    }
}

impl Subsystem {
    /// Takes a command that was just fetched. `check` checks it with its slot, the slot's number and its
    /// namespace, counts effort that the request does not show, and returns its next step. A refused command
    /// comes back with its status, or with none if there is no such namespace.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        command: Command,
        entry: &SubmissionEntry,
        now_ns: u64,
        check: impl FnOnce(&mut Slot, usize, &SharedRegion, &Namespace, &mut Health) -> Result<Next, Status>,
    ) -> Result<(), (Command, Option<Status>)> {
        let index = entry.nsid.wrapping_sub(1);
        let Some(Some(namespace)) = self.namespaces.get_mut(index as usize) else {
            return Err((command, None));
        };
        let number = self.slab.number(&command);
        let slot = self.slab.slot_mut(&command);
        slot.origin.namespace = index as u8;
        if namespace.is_guarded()
            && let Err(status) =
                access::check(&self.ana, &self.hosts, slot.origin.controller, namespace, entry.opcode)
        {
            slot.status = status;
            self.done.push(command);
            return Ok(());
        }
        match check(slot, number, &self.staging, namespace, &mut self.health) {
            Ok(Next::Send) => {
                self.health.count_segments(slot.data.len());
                namespace.router.submit(command, &mut self.slab, now_ns);
                touch(namespace, index, &mut self.touched);
            }
            Ok(Next::Pass) => {
                namespace.router.pass(command, &mut self.slab, now_ns);
                touch(namespace, index, &mut self.touched);
            }
            Ok(Next::Nothing) => self.done.push(command),
            Err(fused::CLAIMED) if namespace.is_claimed() => self.hold_back(command),
            Err(status) => return Err((command, Some(status))),
        }
        Ok(())
    }

    /// Holds a command for blocks of a fused operation, or for blocks that abandoned commands may still
    /// change.
    #[cold]
    pub(crate) fn hold_back(&mut self, command: Command) {
        let Self { fused, abandoned, slab, .. } = self;
        let slot = slab.slot_mut(&command);
        match fused.has_claim() {
            true => fused.hold(command, slot),
            false => abandoned.hold(command, slot),
        }
    }
}
