//! Execution of commands whose capsules are complete.

use super::authenticate;
use super::capsule::{Direction, is_of_memory_transport};
use super::connection::{Connection, Context};
use super::property;
use super::slots::{Outcome, Stage};
use super::transmit::Item;
use sluice_nvme::fabrics::{self, Fctype, Property};
use sluice_nvme::opcode::admin;
use sluice_nvme::{Status, SubmissionEntry};

/// Executes a command, or refuses it.
pub(super) fn execute(connection: &mut Connection, number: u16, context: &mut Context<'_>) {
    let slot = connection.slots.slot(number);
    let (entry, refused) = (slot.entry, slot.refused);
    let checked = match refused {
        Some(status) => Err(status),
        None if connection.is_unauthenticated() && !authenticate::is_authentication(&entry) => {
            Err(Status::AUTHENTICATION_REQUIRED)
        }
        None if authenticate::is_authentication(&entry) => authenticate::check(connection, &entry),
        None if entry.opcode == fabrics::OPCODE => {
            let outcome = fabrics_command(connection, &entry, context);
            let is_left = outcome.is_ok() && Fctype::of(&entry) == Fctype::DISCONNECT;
            connection.answer(number, outcome.unwrap_or_else(Outcome::failed));
            if is_left {
                connection.leave();
            }
            return;
        }
        None => check(connection, &entry, context),
    };
    match checked {
        Err(status) => connection.answer(number, Outcome::failed(status)),
        Ok(()) => {
            prepare(connection, number);
            if connection.slots.find_room(number) {
                with_room(connection, number);
            }
        }
    }
}

/// Checks that the controller is ready, and that the command exists over Fabrics.
fn check(connection: &Connection, entry: &SubmissionEntry, context: &Context<'_>) -> Result<(), Status> {
    if !context.controller.is_ready() || context.controller.is_fatal() {
        return Err(Status::COMMAND_SEQUENCE_ERROR);
    }
    match connection.qid == 0 && is_of_memory_transport(entry.opcode) {
        true => Err(Status::INVALID_OPCODE),
        false => Ok(()),
    }
}

/// Replaces the command identifier in an Abort by the slot number, by which the controller identifies
/// commands.
fn prepare(connection: &mut Connection, number: u16) {
    let entry = connection.slots.slot(number).entry;
    if connection.qid == 0 && entry.opcode == admin::ABORT && entry.cdw10 as u16 == 0 {
        /// Number that no slot has.
        const NO_SLOT: u16 = u16::MAX;
        let aborted = connection.slots.submitted((entry.cdw10 >> 16) as u16).unwrap_or(NO_SLOT);
        connection.slots.slot_mut(number).entry.cdw10 = u32::from(aborted) << 16;
    }
}

/// Continues a command that has buffer space: with R2T if data is still to come from the host, otherwise at
/// once.
pub(super) fn with_room(connection: &mut Connection, number: u16) {
    let transfer = connection.slots.slot(number).transfer;
    match transfer.direction {
        Direction::ToController if transfer.offset.is_none() => {
            connection.slots.slot_mut(number).stage = Stage::Requested;
            connection.transmit.push(Item::R2t(number));
        }
        direction => {
            if connection.qid == 0 && direction == Direction::ToHost {
                // The command may return less data than the host has room for. The rest must not be data of
                // an earlier command.
                let at = connection.slots.data(number, &connection.memory);
                connection.memory.zero(at, transfer.length as usize);
            }
            proceed(connection, number);
        }
    }
}

/// Runs a command whose data is complete.
pub(super) fn proceed(connection: &mut Connection, number: u16) {
    match connection.slots.slot(number).entry.opcode == fabrics::OPCODE {
        // No other Fabrics command has data here.
        true => authenticate::proceed(connection, number),
        false => connection.submit(number),
    }
}

fn fabrics_command(
    connection: &mut Connection,
    entry: &SubmissionEntry,
    context: &mut Context<'_>,
) -> Result<Outcome, Status> {
    match (Fctype::of(entry), connection.qid) {
        (Fctype::PROPERTY_GET, 0) => property::get(context, &Property::of(entry)),
        (Fctype::PROPERTY_SET, 0) => property::set(connection, context, &Property::of(entry)),
        // Connect was the first command of the connection.
        (Fctype::CONNECT, _) => Err(Status::COMMAND_SEQUENCE_ERROR),
        (Fctype::DISCONNECT, 0) => Err(Status::INVALID_QUEUE_TYPE),
        // The connection ends after the response.
        (Fctype::DISCONNECT, _) => Ok(Outcome::default()),
        _ => Err(Status::INVALID_OPCODE),
    }
}
