//! I/O commands of the NVM command set: checks them, and turns them into requests (NVM Command Set 3).

use crate::client_dma::{self, ClientDma};
use crate::features::Features;
use crate::fetch::check_flags;
use crate::health::Health;
use crate::subsystem::{Next, Subsystem};
use crate::{
    Namespace, TRANSFER_MAX, compare, copy, dataset, passthrough, reservation, uncorrectable, verify,
};
use sluice_command::{Command, Operation, Request, Slot};
use sluice_memory::{Access, SegmentList, SharedRegion, Space, walk_prp, walk_sgl};
use sluice_nvme::{DataTransfer, Status, SubmissionEntry, opcode::io as opcode};

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
                check_flags(entry)?;
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
                        return reservation::command::check(slot, entry, space);
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
        if client_dma::is_fetchable(self.space, status) {
            let wanted = self.space.take_missing();
            return client_dma::fetch_missing(self.client_dma, self.subsystem, command, &wanted, self.now_ns);
        }
        self.subsystem.slab.slot_mut(&command).status = status;
        self.subsystem.done.push(command);
    }
}

/// Returns the status of a command that names no active namespace. Invalid flags and opcodes come first,
/// since the NSID of such a command has no meaning.
fn without_namespace(entry: &SubmissionEntry, deallocates: bool) -> Status {
    if let Err(status) = check_flags(entry) {
        return status;
    }
    match entry.opcode {
        opcode::READ
        | opcode::WRITE
        | opcode::FLUSH
        | opcode::WRITE_ZEROES
        // The broadcast NSID is refused, too: Flush could take it, but Identify reports that this controller
        // does not (VWC bits 2:1, Base 7.1).
        | opcode::COMPARE
        | opcode::RESERVATION_REGISTER
        | opcode::RESERVATION_REPORT
        | opcode::RESERVATION_ACQUIRE
        | opcode::RESERVATION_RELEASE
        | opcode::WRITE_UNCORRECTABLE
        | opcode::VERIFY => Subsystem::status_of_inactive(entry.nsid),
        opcode::DATASET_MANAGEMENT if deallocates => Subsystem::status_of_inactive(entry.nsid),
        _ => Status::INVALID_OPCODE,
    }
}

/// Checks a Read or a Write: range, size, then the data pointer.
#[inline]
pub(crate) fn transfer(
    operation: Operation,
    access: Access,
    slot: &mut Slot,
    namespace: &Namespace,
    entry: &SubmissionEntry,
    space: &Space,
) -> Result<(), Status> {
    slot.request = range(operation, namespace, entry)?;
    if slot.request.length > u64::from(TRANSFER_MAX) {
        return Err(Status::INVALID_FIELD);
    }
    if operation == Operation::Write && namespace.is_read_only() {
        return Err(Status::NAMESPACE_WRITE_PROTECTED);
    }
    let length = slot.request.length as u32;
    walk(space, entry, length, access, &mut slot.data)
}

/// Returns the range of a command in bytes, inside the namespace.
#[inline]
pub(crate) fn range(
    operation: Operation,
    namespace: &Namespace,
    entry: &SubmissionEntry,
) -> Result<Request, Status> {
    let (slba, blocks) = (entry.slba(), u64::from(entry.blocks()));
    namespace.check(operation, slba, blocks)?;
    // Without metadata there is no protection information to check or insert (NVM Command Set 5.2): PRACT and
    // PRCHK are ignored for such a namespace.
    let shift = namespace.block_shift();
    Ok(Request {
        operation,
        fua: entry.fua(),
        deallocate: false,
        offset: slba << shift,
        length: blocks << shift,
    })
}

/// Translates the data pointer of a command to checked segments. After a failure the space holds the list of
/// memory that the client could provide.
#[inline]
pub(crate) fn walk(
    space: &Space,
    entry: &SubmissionEntry,
    length: u32,
    access: Access,
    data: &mut SegmentList,
) -> Result<(), Status> {
    let walked = walk_pointer(space, entry, length, access, data);
    if walked == Err(Status::DATA_TRANSFER_ERROR) {
        survey(space, entry, length, access);
    }
    walked
}

#[cold]
fn survey(space: &Space, entry: &SubmissionEntry, length: u32, access: Access) {
    space.survey(|| {
        // The walk ends where a list is missing, or where no client memory can help.
        let _ = walk_pointer(space, entry, length, access, &mut SegmentList::new());
    });
}

#[inline]
fn walk_pointer(
    space: &Space,
    entry: &SubmissionEntry,
    length: u32,
    access: Access,
    data: &mut SegmentList,
) -> Result<(), Status> {
    match entry.data_transfer() {
        DataTransfer::Prp => {
            walk_prp(space, entry.dptr[0], entry.dptr[1], length, space.page_size(), access, data)
        }
        _ => walk_sgl(space, entry.dptr, length, access, data),
    }
}

/// Checks a Write Zeroes, which moves no data and is not limited by MDTS (NVM Command Set 3.2.8).
fn write_zeroes(slot: &mut Slot, namespace: &Namespace, entry: &SubmissionEntry) -> Result<(), Status> {
    if namespace.is_read_only() {
        return Err(Status::NAMESPACE_WRITE_PROTECTED);
    }
    slot.request = range(Operation::WriteZeroes, namespace, entry)?;
    slot.request.deallocate = entry.deac();
    Ok(())
}
