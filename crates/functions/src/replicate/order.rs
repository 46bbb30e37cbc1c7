//! Orders whose answer waits for the set: which member is right, where that is not known without it; and that one goes.

use super::Replicate;
use sluice_nvme::Status;
use sluice_uif::Io;

impl Replicate {
    /// The log was read, or what an operator said is in it.
    pub(super) fn opened(&mut self, outcome: Result<(), String>, io: &mut Io<'_>) {
        match outcome {
            Ok(()) => {
                io.ready(Status::SUCCESS);
                self.answer_order(io);
            }
            Err(message) if self.awaits_order() => self.wait_for_order(message, io),
            Err(message) => self.refuse(message, io),
        }
    }

    /// True if an operator has to say which member is right.
    pub(super) fn awaits_order(&self) -> bool {
        self.set.as_ref().is_some_and(|set| set.mirror.asks())
    }

    /// The set is there, and does nothing until an operator has said which member is right.
    fn wait_for_order(&mut self, message: String, io: &mut Io<'_>) {
        tracing::error!("{} does not serve: {message}", self.mode.name());
        self.error = message;
        io.ready(Status::NAMESPACE_NOT_READY);
    }

    /// The set serves, or never will: who said which member is right is told.
    pub(super) fn answer_order(&mut self, io: &mut Io<'_>) {
        if std::mem::take(&mut self.ordered) {
            let status = self.set.as_ref().map(|set| set.mirror.status().to_string());
            io.answer(status.ok_or_else(|| self.error.clone()));
        }
    }

    /// A member that was taken out is out when the log says so: else it would be in again after a restart, with
    /// whatever disk is in its place by then.
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
        io.answer(answer);
    }
}
