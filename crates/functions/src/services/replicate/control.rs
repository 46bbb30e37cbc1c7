//! Orders of an operator, and their answers.

use super::order::whole;
use super::{Replicate, SetOrder};
use sluice_nvme::Status;
use sluice_redundancy::Members;
use sluice_uif::Io;

impl Replicate {
    /// Fails the set for good.
    pub(super) fn refuse(&mut self, message: String, io: &mut Io<'_>) {
        tracing::error!("{} does not serve: {message}", self.mode.name());
        (self.refused, self.error) = (self.set.take().is_some(), message);
        io.ready(Status::NAMESPACE_NOT_READY);
        self.answer_order(io);
        // Other writes end when the layers are done with them.
        for write in self.writes.iter_mut().filter(|write| write.waits) {
            write.waits = false;
            io.finish(write.held, Status::NAMESPACE_NOT_READY);
        }
    }

    /// Executes an order. Returns the status of the set.
    pub(super) fn execute(&mut self, order: SetOrder) -> Result<String, String> {
        let mirror = &mut self.set.as_mut().ok_or_else(|| self.error.clone())?.mirror;
        let all = mirror.status().members;
        if mirror.asks() && !matches!(order, SetOrder::CopyFrom { .. }) {
            return Err(self.error.clone());
        }
        match order {
            SetOrder::Status => {}
            SetOrder::Resync => mirror.bring_back(all, false),
            SetOrder::ResyncAll => mirror.bring_back(all, true),
            SetOrder::ResyncMember { member } => mirror.bring_back(one(all, member)?, false),
            // Of two members, one of which is the drive, it is the other.
            SetOrder::Fail => mirror.take_out(1)?,
            SetOrder::FailMember { member } => one(all, member).and_then(|_| mirror.take_out(member))?,
            SetOrder::Check => whole(&mirror.status()).map(|()| mirror.check())?,
            SetOrder::CopyFrom { member } => mirror.copy_from(member)?,
        }
        Ok(mirror.status().to_string())
    }
}

/// Returns one of the members.
fn one(all: Members, member: usize) -> Result<Members, String> {
    match all.contains(member) {
        true => Ok(Members::one(member)),
        false => Err(format!("there is no member {member}; they are {all:?}")),
    }
}
