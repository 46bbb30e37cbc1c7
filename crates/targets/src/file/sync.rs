//! Flushes: one fdatasync at a time, for all who wait.

use sluice_command::Ticket;

/// Who waits for which fdatasync.
///
/// Two that ran at the same time could not be told apart: the kernel reports a lost write to one of them.
/// So there is one, whoever comes meanwhile shares the next, and after a failed one none succeeds: the
/// kernel has forgotten which data was lost and would say yes.
#[derive(Debug, Default)]
pub(super) struct Syncs {
    running: Vec<Ticket>,
    waiting: Vec<Ticket>,
    lost: bool,
}

/// What a request for durability comes to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Join {
    /// An fdatasync must be started, in this ticket's name.
    Start(Ticket),
    /// The next one is for this request too.
    Waits,
    /// Data was lost before; the answer is no.
    Lost,
}

impl Syncs {
    pub(super) fn join(&mut self, ticket: Ticket) -> Join {
        if self.lost {
            Join::Lost
        } else if self.running.is_empty() {
            self.running.push(ticket);
            Join::Start(ticket)
        } else {
            self.waiting.push(ticket);
            Join::Waits
        }
    }

    /// The running one is over. `answered` gets those it was for, and those that must no longer hope;
    /// the ticket in whose name the next one starts is returned.
    pub(super) fn done(&mut self, succeeded: bool, answered: &mut Vec<Ticket>) -> Option<Ticket> {
        answered.append(&mut self.running);
        if !succeeded {
            self.lost = true;
            answered.append(&mut self.waiting);
        }
        std::mem::swap(&mut self.running, &mut self.waiting);
        self.running.first().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_come_while_one_runs_share_the_next() {
        let mut syncs = Syncs::default();
        let mut answered = Vec::new();
        assert_eq!(syncs.join(Ticket(1)), Join::Start(Ticket(1)));
        assert_eq!(syncs.join(Ticket(2)), Join::Waits);
        assert_eq!(syncs.join(Ticket(3)), Join::Waits);
        assert_eq!(syncs.done(true, &mut answered), Some(Ticket(2)));
        assert_eq!(answered, [Ticket(1)]);
        answered.clear();
        assert_eq!(syncs.done(true, &mut answered), None);
        assert_eq!(answered, [Ticket(2), Ticket(3)]);
        assert_eq!(syncs.join(Ticket(4)), Join::Start(Ticket(4)));
    }

    #[test]
    fn after_a_failed_one_nobody_hopes() {
        let mut syncs = Syncs::default();
        let mut answered = Vec::new();
        syncs.join(Ticket(1));
        syncs.join(Ticket(2));
        assert_eq!(syncs.done(false, &mut answered), None);
        assert_eq!(answered, [Ticket(1), Ticket(2)]);
        assert_eq!(syncs.join(Ticket(3)), Join::Lost);
    }
}
