//! Property Get and Property Set: the registers of a controller without a register space (Base 6.5, 6.6).

use super::connection::{Connection, Context};
use super::slots::Outcome;
use sluice_controller::CAPSULES_MAX;
use sluice_nvme::Status;
use sluice_nvme::fabrics::Property;
use sluice_nvme::register::{self, Cc};

/// CAP.MQES, 0's based.
const MQES: u64 = CAPSULES_MAX as u64 - 1;

/// Returns the length of the property at `offset`, if it is supported.
fn length(offset: u32) -> Option<usize> {
    match offset {
        register::CAP => Some(8),
        register::VS | register::CC | register::CSTS | register::NSSR | register::CRTO => Some(4),
        _ => None,
    }
}

fn check(property: &Property) -> Result<usize, Status> {
    let length = length(property.offset).ok_or(Status::INVALID_FIELD)?;
    match property.bytes {
        Some(bytes) if bytes == length => Ok(length),
        _ => Err(Status::INVALID_FIELD),
    }
}

pub(super) fn get(context: &Context<'_>, property: &Property) -> Result<Outcome, Status> {
    let length = check(property)?;
    let mut bytes = [0; 8];
    context.controller.read_register(property.offset, &mut bytes[..length]);
    let mut value = u64::from_le_bytes(bytes);
    if property.offset == register::CAP {
        value = value & !0xffff | MQES;
    }
    Ok(Outcome { status: Status::SUCCESS, dw0: value as u32, dw1: (value >> 32) as u32 })
}

pub(super) fn set(
    connection: &mut Connection,
    context: &mut Context<'_>,
    property: &Property,
) -> Result<Outcome, Status> {
    check(property)?;
    if property.offset != register::CC {
        // The others are read only, or do nothing here.
        return Err(Status::INVALID_FIELD);
    }
    configure(connection, context, Cc(property.value as u32))?;
    Ok(Outcome::default())
}

/// Writes CC. On enable, the controller takes the queues of the admin connection from AQA, ASQ and ACQ.
fn configure(connection: &mut Connection, context: &mut Context<'_>, cc: Cc) -> Result<(), Status> {
    let mut old = [0; 4];
    context.controller.read_register(register::CC, &mut old);
    let old = Cc(u32::from_le_bytes(old));
    if cc.enabled() && !old.enabled() {
        if !context.controller.is_quiescent(context.subsystem) {
            // The last reset is not over, and CSTS.RDY does not indicate its end yet.
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        connection.abandon_submitted(Outcome::failed(Status::ABORTED_SQ_DELETION));
    }
    let Context { controller, subsystem, space, kato_ms, now_ns } = context;
    controller.write_register(subsystem, register::CC, &cc.0.to_le_bytes(), space, *now_ns);
    if cc.enabled() && !old.enabled() {
        controller.start_keep_alive(*kato_ms, *now_ns);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: Base 6.5, each property has one size.
    #[test]
    fn properties_have_their_sizes() {
        for offset in (0..0x80).step_by(4) {
            let expected = match offset {
                0 => Some(8),
                // VS, CC, CSTS, NSSR and CRTO.
                0x08 | 0x14 | 0x1c | 0x20 | 0x68 => Some(4),
                _ => None,
            };
            for bytes in [None, Some(4), Some(8)] {
                let found = check(&Property { offset, bytes, value: 0 });
                let expected = expected.filter(|expected| bytes == Some(*expected));
                assert_eq!(found, expected.ok_or(Status::INVALID_FIELD), "{offset:#x} {bytes:?}");
            }
        }
    }
}
