//! Reservation commands (Base 7.2 to 7.5) as hosts write them.

use super::{Action, Register, ReservationType};
use crate::subsystem::{Next, Subsystem};
use crate::{Controller, TRANSFER_MAX, io};
use sluice_command::{Command, Operation, Request, Slot};
use sluice_memory::{Access, Space};
use sluice_nvme::feature::PERSIST_THROUGH_POWER_LOSS;
use sluice_nvme::{Status, SubmissionEntry, opcode::admin, opcode::io as opcode};

/// Bytes of the data structures that come with Register and Acquire: two keys.
const KEYS: usize = 16;

/// Ignore Existing Key, CDW10 bit 3.
const IEKEY: u32 = 1 << 3;

/// Translates the data pointer of a command that was just fetched. The command is executed in its
/// [turn](next).
#[cold]
pub(crate) fn check(slot: &mut Slot, entry: &SubmissionEntry, space: &Space) -> Result<Next, Status> {
    slot.request = Request { operation: Operation::Flush, ..Request::default() };
    set_decided(slot, false);
    let (access, bytes) = match entry.opcode {
        // NUMD, 0's based.
        opcode::RESERVATION_REPORT => (Access::Write, (u64::from(entry.cdw10) + 1) * 4),
        opcode::RESERVATION_RELEASE => (Access::Read, KEYS as u64 / 2),
        _ => (Access::Read, KEYS as u64),
    };
    if bytes > u64::from(TRANSFER_MAX) {
        return Err(Status::INVALID_FIELD);
    }
    io::walk(space, entry, bytes as u32, access, &mut slot.data)?;
    Ok(Next::Nothing)
}

/// Sets the step of a command: the first is its turn, the last its completion.
fn set_decided(slot: &mut Slot, is_decided: bool) {
    slot.steps.get_or_insert_default().progress = is_decided.into();
}

/// Executes a command that was checked, or finishes one that was decided.
pub(crate) fn next(controller: &mut Controller, subsystem: &mut Subsystem, command: Command, now_ns: u64) {
    let slot = subsystem.slab.slot(&command);
    let (status, nsid) = (slot.status, subsystem.slab.entry(&command).nsid);
    let is_decided = slot.steps.as_ref().is_some_and(|steps| steps.progress != 0);
    if is_decided || !status.is_success() {
        return controller.finish(subsystem, command, status, 0);
    }
    if subsystem.slab.entry(&command).opcode == opcode::RESERVATION_REPORT {
        let status = report(subsystem, nsid, &command).err().unwrap_or(Status::SUCCESS);
        return controller.finish(subsystem, command, status, 0);
    }
    subsystem.order(command, now_ns);
}

/// Writes as much of the Reservation Status data structure as there is room for.
fn report(subsystem: &Subsystem, nsid: u32, command: &Command) -> Result<(), Status> {
    const EXTENDED: u32 = 1 << 0;
    let slot = subsystem.slab.slot(command);
    let namespace = subsystem.get(nsid).ok_or(Status::INVALID_NAMESPACE)?;
    let extended = subsystem.slab.entry(command).cdw11 & EXTENDED != 0;
    let report = namespace.reservations.report(subsystem.host(slot.origin.controller), extended)?;
    let wanted = report.len().min(slot.data.len_bytes());
    match slot.data.copy_from(0, &report[..wanted]) == wanted {
        true => Ok(()),
        false => Err(Status::DATA_TRANSFER_ERROR),
    }
}

impl Subsystem {
    /// Returns the action of a command; for a Set Features, the action of its first value. Its data is read
    /// once.
    pub(super) fn action_of(&self, command: &Command) -> Result<Action, Status> {
        let entry = self.slab.entry(command);
        let slot = self.slab.slot(command);
        if slot.origin.sq == 0 && entry.opcode == admin::SET_FEATURES {
            return Ok(Action::Persist(entry.cdw11 & PERSIST_THROUGH_POWER_LOSS != 0));
        }
        let mut keys = [0; KEYS];
        let length = if entry.opcode == opcode::RESERVATION_RELEASE { KEYS / 2 } else { KEYS };
        if slot.data.copy_to(0, &mut keys[..length]) != length {
            return Err(Status::DATA_TRANSFER_ERROR);
        }
        parse_action(entry, zerocopy::transmute!(keys))
    }

    /// Sets the final status of a command, for its controller to complete it, unless a reset took the
    /// command.
    pub(super) fn decide(&mut self, command: Option<Command>, status: Status) {
        let Some(command) = command else { return };
        let slot = self.slab.slot_mut(&command);
        slot.status = status;
        set_decided(slot, true);
        self.done.push(command);
    }
}

/// Returns the action of a reservation command, with the keys in its data.
fn parse_action(entry: &SubmissionEntry, [key, other]: [u64; 2]) -> Result<Action, Status> {
    let (action, ignore_key) = (entry.cdw10 & 7, entry.cdw10 & IEKEY != 0);
    let kind = ReservationType::of((entry.cdw10 >> 8) as u8).ok_or(Status::INVALID_FIELD);
    if entry.opcode != opcode::RESERVATION_REGISTER && ignore_key {
        return Err(Status::INVALID_FIELD);
    }
    let current = (!ignore_key).then_some(key);
    Ok(match (entry.opcode, action) {
        (opcode::RESERVATION_REGISTER, action) => {
            let what = match action {
                0 => Register::New { key: other },
                1 => Register::Unregister { key: current },
                2 => Register::Replace { current, key: other },
                _ => return Err(Status::INVALID_FIELD),
            };
            Action::Register { what, persists: persists(entry)? }
        }
        (opcode::RESERVATION_ACQUIRE, 0) => Action::Acquire { key, kind: kind? },
        (opcode::RESERVATION_ACQUIRE, 1 | 2) => {
            Action::Preempt { key, victims: other, kind: kind?, aborts: action == 2 }
        }
        (opcode::RESERVATION_RELEASE, 0) => Action::Release { key, kind: kind? },
        (opcode::RESERVATION_RELEASE, 1) => Action::Clear { key },
        _ => return Err(Status::INVALID_FIELD),
    })
}

/// Returns Change Persist Through Power Loss State.
fn persists(entry: &SubmissionEntry) -> Result<Option<bool>, Status> {
    match entry.cdw10 >> 30 {
        0 => Ok(None),
        2 => Ok(Some(false)),
        3 => Ok(Some(true)),
        _ => Err(Status::INVALID_FIELD),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let parse_action = |opcode, cdw10| {
            parse_action(&SubmissionEntry { opcode, cdw10, ..SubmissionEntry::default() }, [1, 2])
        };
        let register = |what, persists| Ok(Action::Register { what, persists });
        const REGISTER: u8 = opcode::RESERVATION_REGISTER;
        assert_eq!(parse_action(REGISTER, 0), register(Register::New { key: 2 }, None));
        assert_eq!(
            parse_action(REGISTER, 1 | 2 << 30),
            register(Register::Unregister { key: Some(1) }, Some(false))
        );
        assert_eq!(parse_action(REGISTER, 1 | IEKEY), register(Register::Unregister { key: None }, None));
        let replace = Register::Replace { current: Some(1), key: 2 };
        assert_eq!(parse_action(REGISTER, 2 | 3 << 30), register(replace, Some(true)));
        let kind = ReservationType::ExclusiveAccess;
        assert_eq!(parse_action(opcode::RESERVATION_ACQUIRE, 2 << 8), Ok(Action::Acquire { key: 1, kind }));
        for (action, aborts) in [(1, false), (2, true)] {
            let preempt = Action::Preempt { key: 1, victims: 2, kind, aborts };
            assert_eq!(parse_action(opcode::RESERVATION_ACQUIRE, action | 2 << 8), Ok(preempt));
        }
        assert_eq!(parse_action(opcode::RESERVATION_RELEASE, 2 << 8), Ok(Action::Release { key: 1, kind }));
        assert_eq!(parse_action(opcode::RESERVATION_RELEASE, 1), Ok(Action::Clear { key: 1 }));
        for (opcode, cdw10) in [
            (REGISTER, 3),
            (REGISTER, 1 << 30),
            (opcode::RESERVATION_ACQUIRE, 0),
            (opcode::RESERVATION_ACQUIRE, 7 << 8),
            (opcode::RESERVATION_ACQUIRE, 3 | 1 << 8),
            (opcode::RESERVATION_ACQUIRE, IEKEY | 1 << 8),
            (opcode::RESERVATION_RELEASE, IEKEY | 1),
            (opcode::RESERVATION_RELEASE, 2),
        ] {
            assert_eq!(parse_action(opcode, cdw10), Err(Status::INVALID_FIELD), "{opcode:#x} {cdw10:#x}");
        }
    }
}
