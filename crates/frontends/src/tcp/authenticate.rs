//! Authentication Send and Authentication Receive (Base 6.1, 6.2): messages from and to a host that proves who
//! it is.
//!
//! A Send is answered when its message was looked at, so that whatever it led to is there for the Receive.

use super::auth_worker::AuthResult;
use super::connection::Connection;
use super::slots::{Outcome, Stage};
use sluice_nvme::fabrics::{self, Authentication, Fctype};
use sluice_nvme::{Status, SubmissionEntry};
use sluice_nvme_auth::{Failure, MESSAGE_MAX, PROTOCOL_SPECIFIC, SECURITY_PROTOCOL, Verdict};

/// It is one of the two.
pub(super) fn is_meant(entry: &SubmissionEntry) -> bool {
    entry.opcode == fabrics::OPCODE
        && matches!(Fctype::of(entry), Fctype::AUTHENTICATION_SEND | Fctype::AUTHENTICATION_RECEIVE)
}

/// What can be said before its data is there.
pub(super) fn check(connection: &Connection, entry: &SubmissionEntry) -> Result<(), Status> {
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

/// Its data is there, or there is room for it.
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
    let now_ns = connection.reclaim.heard_ns();
    match connection.auth.as_mut().is_some_and(|auth| auth.submit(number, message, now_ns)) {
        true => connection.slots.slot_mut(number).stage = Stage::Proving,
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
    leave_if_done(connection);
}

/// A message was looked at.
pub(super) fn heard(connection: &mut Connection, result: AuthResult, now_ns: u64) {
    let AuthResult { session, progress, .. } = result;
    let Some(auth) = &mut connection.auth else { return };
    // One that is not looked at is as good as wrong.
    let (reply, verdict) = progress
        .map_or((None, Verdict::Failed(Failure::FAILED)), |progress| (progress.reply, progress.verdict));
    let waiting = auth.resume(session, reply);
    match verdict {
        Verdict::Pending => {}
        Verdict::Authenticated => auth.admit(),
        Verdict::Failed(_) | Verdict::GivenUp(_) => auth.expel(now_ns),
    }
    if let Some(number) = waiting {
        connection.answer(number, Outcome::default());
    }
    leave_if_done(connection);
}

/// One that could not prove who it is goes when it has heard so.
fn leave_if_done(connection: &mut Connection) {
    if connection.auth.as_ref().is_some_and(|auth| auth.is_done()) {
        connection.leave();
    }
}
