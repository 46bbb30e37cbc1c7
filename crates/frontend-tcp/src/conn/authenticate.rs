//! Authentication Send and Authentication Receive (Base 6.1, 6.2): messages from and to a host that
//! authenticates.
//!
//! A Send completes after its message is processed, so that the reply is ready for the Receive.

use super::connection::Connection;
use super::slots::{Outcome, Stage};
use crate::auth::AuthResult;
use sluice_nvme::fabrics::{self, Authentication, Fctype};
use sluice_nvme::{Status, SubmissionEntry};
use sluice_nvme_auth::{Failure, MESSAGE_MAX, PROTOCOL_SPECIFIC, SECURITY_PROTOCOL, Verdict};

/// Returns whether the command is Authentication Send or Authentication Receive.
pub(super) fn is_authentication(entry: &SubmissionEntry) -> bool {
    entry.opcode == fabrics::OPCODE
        && matches!(Fctype::of(entry), Fctype::AUTHENTICATION_SEND | Fctype::AUTHENTICATION_RECEIVE)
}

/// Checks the fields of the command before its data is there.
pub(crate) fn check(connection: &Connection, entry: &SubmissionEntry) -> Result<(), Status> {
    if connection.auth.is_none() {
        // There is no key for this host.
        return Err(Status::INVALID_OPCODE);
    }
    let Authentication { secp, spsp, length } = Authentication::of(entry);
    let is_ours = secp == SECURITY_PROTOCOL && spsp == PROTOCOL_SPECIFIC;
    match is_ours && (1..=MESSAGE_MAX as u32).contains(&length) {
        true => Ok(()),
        false => Err(Status::INVALID_FIELD),
    }
}

/// Executes the command, once its data is there or has buffer space.
pub(super) fn proceed(connection: &mut Connection, number: u16) {
    let slot = connection.slots.slot(number);
    let (fctype, length) = (Fctype::of(&slot.entry), Authentication::of(&slot.entry).length);
    if slot.transfer.length != length {
        return connection.answer(number, Outcome::failed(Status::SGL_DATA_LENGTH_INVALID));
    }
    match fctype {
        Fctype::AUTHENTICATION_SEND => send(connection, number, length as usize),
        _ => receive(connection, number, length as usize),
    }
}

fn send(connection: &mut Connection, number: u16, length: usize) {
    let mut message = vec![0; length];
    connection.memory.read(connection.slots.data(number, &connection.memory), &mut message);
    let now_ns = connection.reclaim.received_ns();
    match connection.auth.as_mut().is_some_and(|auth| auth.submit(number, message, now_ns)) {
        true => connection.slots.slot_mut(number).stage = Stage::Authenticating,
        false => connection.answer(number, Outcome::failed(Status::COMMAND_SEQUENCE_ERROR)),
    }
}

fn receive(connection: &mut Connection, number: u16, length: usize) {
    let reply = connection.auth.as_mut().and_then(|auth| auth.take_reply(length));
    let Some(mut reply) = reply else {
        return connection.answer(number, Outcome::failed(Status::COMMAND_SEQUENCE_ERROR));
    };
    reply.resize(length, 0);
    connection.memory.write(connection.slots.data(number, &connection.memory), &reply);
    connection.answer(number, Outcome::default());
    leave_if_failed(connection);
}

/// Applies a result of the worker, and completes the Authentication Send that waits for it.
pub(crate) fn take_result(connection: &mut Connection, result: AuthResult, now_ns: u64) {
    let AuthResult { session, progress, .. } = result;
    let Some(auth) = &mut connection.auth else { return };
    // A dropped message counts as a failed one.
    let (reply, verdict) = progress
        .map_or((None, Verdict::Failed(Failure::FAILED)), |progress| (progress.reply, progress.verdict));
    let waiting = auth.resume(session, reply);
    match verdict {
        Verdict::Pending => {}
        Verdict::Authenticated => auth.pass(),
        Verdict::Failed(_) | Verdict::GivenUp(_) => auth.fail(now_ns),
    }
    if let Some(number) = waiting {
        connection.answer(number, Outcome::default());
    }
    leave_if_failed(connection);
}

/// Ends the connection once a host that failed to authenticate has read the reply.
fn leave_if_failed(connection: &mut Connection) {
    if connection.auth.as_ref().is_some_and(|auth| auth.is_done()) {
        connection.leave();
    }
}
