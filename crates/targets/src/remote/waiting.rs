//! Commands that wait in a target for a connection, a path or room.

use sluice_command::{Lane, Ticket};
use sluice_nvme::Status;
use std::collections::VecDeque;

/// Ends a parked command with this status, unless it has ended already.
pub(crate) fn finish(ticket: Ticket, status: Status, lane: &mut Lane<'_>) {
    if let Some(command) = lane.unpark(ticket) {
        lane.finish(command, status);
    }
}

/// Ends some of the waiting commands with this status. Returns their number.
pub(crate) fn end_some<T>(
    waiting: &mut VecDeque<T>,
    ticket_of: impl Fn(&T) -> Ticket,
    ends: impl Fn(Ticket, &Lane<'_>) -> bool,
    why: Status,
    lane: &mut Lane<'_>,
) -> usize {
    let before = waiting.len();
    waiting.retain(|it| {
        let ticket = ticket_of(it);
        let ends = ends(ticket, lane);
        if ends {
            finish(ticket, why, lane);
        }
        !ends
    });
    before - waiting.len()
}
