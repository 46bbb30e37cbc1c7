//! Admission of connections to a drive, and the errors of refused ones.

use super::association::Association;
use crate::accept::{AcceptedConnect, Refusal};
use sluice_nvme::Status;
use sluice_nvme::fabrics::InvalidParameter;

pub(super) const BUSY: Refusal = Refusal::new(
    Status::CONNECT_CONTROLLER_BUSY,
    "the drive has as many hosts as it may have at a time (tcp.max_hosts)",
);

pub(super) const STILL_LEAVING: Refusal = Refusal::new(
    Status::CONNECT_CONTROLLER_BUSY,
    "commands of its last associations are still under way: what is behind the drive is slow",
);

const CONNECTED: Refusal = Refusal::new(Status::COMMAND_SEQUENCE_ERROR, "the queue is connected already");

pub(super) const FEW_DESCRIPTORS: Refusal = Refusal::new(
    Status::CONNECT_CONTROLLER_BUSY,
    "more than half of the daemon's descriptors are in use, and the drive has its share of the others: raise the limit of open \
     files (LimitNOFILE=, ulimit -n), or lower tcp.max_queues",
);

pub(super) const NO_ROOM: Refusal = Refusal::new(Status::CONNECT_CONTROLLER_BUSY, "there is no room for it");

/// Decision about a Connect command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Admission to the controller with this number.
    Admit(u8),
    /// Wait until something ends. The refusal is sent if that takes too long.
    Wait(Refusal),
    Refuse(Refusal),
}

impl Decision {
    pub(super) fn parameter(parameter: InvalidParameter, why: &'static str) -> Self {
        Self::Refuse(Refusal::parameter(parameter, why))
    }
}

/// Decides about an I/O queue, which must belong to the association of its host.
pub(super) fn decide_queue(
    association: &Association,
    accepted: &AcceptedConnect,
    controller: u8,
    queues: u16,
) -> Decision {
    let qid = accepted.connect.qid;
    if !association.is_open() {
        return Decision::parameter(InvalidParameter::CNTLID, "its admin queue is not connected");
    }
    if accepted.host.nqn != association.host.nqn {
        return Decision::parameter(InvalidParameter::HOSTNQN, "another host has the controller");
    }
    if accepted.host.id != association.host.id {
        return Decision::parameter(InvalidParameter::HOSTID, "another host has the controller");
    }
    if qid > queues {
        let why = "a host may not have so many queues (tcp.max_queues)";
        return Decision::parameter(InvalidParameter::QID, why);
    }
    match association.connections.get(&qid) {
        None => Decision::Admit(controller),
        // The host may have closed the earlier connection just now.
        Some(_) => Decision::Wait(CONNECTED),
    }
}
