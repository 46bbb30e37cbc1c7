//! Who is let in, and what is said to the others.

use super::arrival::{Arrival, Refusal};
use super::association::Association;
use sluice_nvme::Status;
use sluice_nvme::fabrics::InvalidParameter;

pub(super) const BUSY: Refusal = Refusal::new(
    Status::CONNECT_CONTROLLER_BUSY,
    "the drive has as many hosts as it may have at a time (tcp.max_hosts)",
);

pub(super) const NOT_OVER: Refusal = Refusal::new(
    Status::CONNECT_CONTROLLER_BUSY,
    "commands of its last associations are still under way: what is behind the drive is slow",
);

const CONNECTED: Refusal = Refusal::new(Status::COMMAND_SEQUENCE_ERROR, "the queue is connected already");

pub(super) const CROWDED: Refusal = Refusal::new(
    Status::CONNECT_CONTROLLER_BUSY,
    "more than half of the daemon's descriptors are in use, and the drive has its share of the others: raise the limit of open \
     files (LimitNOFILE=, ulimit -n), or lower tcp.max_queues",
);

pub(super) const NO_ROOM: Refusal = Refusal::new(Status::CONNECT_CONTROLLER_BUSY, "there is no room for it");

/// What becomes of an arrival.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// To the controller of this number.
    Admit(u8),
    /// Something has to end first. What is said if it does not.
    Wait(Refusal),
    Refuse(Refusal),
}

impl Judgement {
    pub(super) fn parameter(parameter: InvalidParameter, why: &'static str) -> Self {
        Self::Refuse(Refusal::parameter(parameter, why))
    }
}

/// An I/O queue belongs to the association of its host.
pub(super) fn judge_queue(association: &Association, arrival: &Arrival, room: u8, queues: u16) -> Judgement {
    let qid = arrival.connect.qid;
    if !association.is_open() {
        return Judgement::parameter(InvalidParameter::CNTLID, "its admin queue is not connected");
    }
    if arrival.host.nqn != association.host.nqn {
        return Judgement::parameter(InvalidParameter::HOSTNQN, "another host has the controller");
    }
    if arrival.host.id != association.host.id {
        return Judgement::parameter(InvalidParameter::HOSTID, "another host has the controller");
    }
    if qid > queues {
        let why = "a host may not have so many queues (tcp.max_queues)";
        return Judgement::parameter(InvalidParameter::QID, why);
    }
    match association.connections.get(&qid) {
        None => Judgement::Admit(room),
        // Its host may have closed it just now.
        Some(_) => Judgement::Wait(CONNECTED),
    }
}
