//! Reservation commands (Base 7.2 to 7.4) as hosts write them.

use super::{Action, Register, ReservationType};
use sluice_command::Slot;
use sluice_nvme::opcode::io as opcode;
use sluice_nvme::{Status, SubmissionEntry};

/// Bytes of the data structures that come with Register and Acquire: two keys.
pub(crate) const KEYS: usize = 16;

/// Ignore Existing Key, CDW10 bit 3.
const IEKEY: u32 = 1 << 3;

/// Sets the step of a command: the first is its turn, the last its completion.
pub(crate) fn set_decided(slot: &mut Slot, is_decided: bool) {
    slot.steps.get_or_insert_default().progress = is_decided.into();
}

/// Returns whether the turn of a command is over.
pub(crate) fn is_decided(slot: &Slot) -> bool {
    slot.steps.as_ref().is_some_and(|steps| steps.progress != 0)
}

/// Returns the action of a reservation command, with the keys in its data.
pub(crate) fn parse_action(entry: &SubmissionEntry, [key, other]: [u64; 2]) -> Result<Action, Status> {
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
