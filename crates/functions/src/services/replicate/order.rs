//! Orders whose answer waits for the set: the choice of the right member, and the removal of a member.

use super::{Replicate, SetOrder};
use sluice_jobs::Order;
use sluice_nvme::Status as NvmeStatus;
use sluice_redundancy::Status;
use sluice_uif::{Control, Io};

/// Checks that no member is missing: regions of a set without all its members are not compared.
///
/// # Errors
/// Returns a message that names the missing members.
pub(super) fn whole(status: &Status) -> Result<(), String> {
    let missing = status.members.without(status.joined);
    match missing.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "a comparison needs all members, and {missing:?} is missing: `resync` brings it back"
        )),
    }
}

impl Replicate {
    /// Executes an order. Some are answered when the log has their effect.
    pub(super) fn take_order(&mut self, text: &str, io: &mut Io<'_>) -> Control {
        if let Some(order) = Order::parse(text) {
            return self.order_jobs(order, io);
        }
        let order = self.mode.order(text);
        let answer = order.clone().and_then(|order| self.execute(order));
        let done = order.ok().filter(|_| answer.is_ok());
        self.leaving |= matches!(done, Some(SetOrder::Fail | SetOrder::FailMember { .. }));
        self.ordered |= matches!(done, Some(SetOrder::CopyFrom { .. }));
        let answer = if self.leaving || self.ordered { Control::Later } else { Control::Now(answer) };
        self.run(io);
        answer
    }

    /// Handles the end of reading the log, or of writing an operator's choice to it.
    pub(super) fn opened(&mut self, outcome: Result<(), String>, io: &mut Io<'_>) {
        match outcome {
            Ok(()) => {
                io.ready(NvmeStatus::SUCCESS);
                self.answer_order(io);
            }
            Err(message) if self.awaits_order() => self.wait_for_order(message, io),
            Err(message) => self.refuse(message, io),
        }
    }

    /// Returns whether an operator has to choose the right member.
    pub(super) fn awaits_order(&self) -> bool {
        self.set.as_ref().is_some_and(|set| set.mirror.asks())
    }

    /// Refuses commands until an operator has chosen the right member.
    fn wait_for_order(&mut self, message: String, io: &mut Io<'_>) {
        tracing::error!("{} does not serve: {message}", self.mode.name());
        self.error = message;
        io.ready(NvmeStatus::NAMESPACE_NOT_READY);
    }

    /// Answers the choice of a member, once the set serves or has failed.
    pub(super) fn answer_order(&mut self, io: &mut Io<'_>) {
        if std::mem::take(&mut self.ordered) {
            let status = self.set.as_ref().map(|set| set.mirror.status().to_string());
            io.answer(status.ok_or_else(|| self.error.clone()));
        }
    }

    /// Answers the removal of a member, once the log has it. Without the log the member would be back after a
    /// restart, with the content of any disk in its place.
    pub(super) fn answer_leaving(&mut self, io: &mut Io<'_>) {
        if !self.leaving {
            return;
        }
        let answer = match self.set.as_ref().map(|set| (set.mirror.is_noted(), set.mirror.status())) {
            None => Err(self.error.clone()),
            Some((true, status)) => Ok(status.to_string()),
            Some((_, status)) if !status.log_is_broken => return,
            Some(_) => Err("it is out until a restart: mend the log, and say this again".into()),
        };
        self.leaving = false;
        let cancelled = self.cancelled.take();
        io.answer(answer.map(|status| cancelled.unwrap_or(status)));
    }
}
