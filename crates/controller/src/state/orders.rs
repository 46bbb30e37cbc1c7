//! Reservation commands that wait or run.

use crate::state::reservation::{Change, HostId};
use sluice_command::{Command, Controllers};
use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(crate) struct Orders {
    pub(crate) waiting: VecDeque<Command>,
    /// Controller whose order was started last. Orders of other controllers come first, so that a host cannot
    /// delay with its own orders that others fence it.
    pub(crate) last: u8,
    pub(crate) under_way: Option<UnderWay>,
    /// Hosts without an identifier that are gone, or have set one now. Their registrations end when nothing
    /// is being persisted any more.
    pub(crate) gone: Vec<HostId>,
}

/// State of the order that is under way, with its command unless a reset took that.
#[derive(Debug)]
pub(crate) enum UnderWay {
    Storing {
        command: Option<Command>,
        changes: Vec<(u32, Change)>,
    },
    /// End of the commands of these controllers in these namespaces.
    Ending {
        command: Option<Command>,
        victims: Vec<(u32, Controllers)>,
    },
}

impl Orders {
    /// Returns whether no order waits or runs.
    pub(crate) fn are_none(&self) -> bool {
        self.waiting.is_empty() && self.under_way.is_none()
    }

    /// Returns whether a command waits for the end of others.
    #[inline]
    pub(crate) fn are_ending(&self) -> bool {
        matches!(self.under_way, Some(UnderWay::Ending { .. }))
    }

    /// Returns whether an order waits and none is under way.
    #[inline]
    pub(crate) fn may_go_on(&self) -> bool {
        self.under_way.is_none() && !self.waiting.is_empty()
    }

    pub(crate) fn are_storing(&self) -> bool {
        matches!(self.under_way, Some(UnderWay::Storing { .. }))
    }

    /// Takes the selected commands. Waiting ones are dropped.
    pub(crate) fn take_commands(&mut self, mut is_meant: impl FnMut(&Command) -> bool) -> Vec<Command> {
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let (taken, left): (VecDeque<_>, VecDeque<_>) = waiting.partition(|command| is_meant(command));
        self.waiting = left;
        let current = self.under_way.as_mut().and_then(|it| match it {
            UnderWay::Storing { command, .. } | UnderWay::Ending { command, .. } => {
                command.take_if(|command| is_meant(command))
            }
        });
        taken.into_iter().chain(current).collect()
    }
}

/// Forgets commands that still wait here, since no host is left.
impl Drop for Orders {
    fn drop(&mut self) {
        self.take_commands(|_| true).into_iter().for_each(std::mem::forget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_command::{Limits, Origin, Slab};
    use sluice_nvme::SubmissionEntry;

    /// Checks each order that is under way, with and without one that waits.
    #[test]
    fn orders_go_on_one_after_the_other() {
        let mut slab = Slab::new(Limits::new(4, 0)).expect("memory");
        let mut admit = || slab.admit(&SubmissionEntry::default(), Origin::default()).expect("room");
        for waits in [false, true] {
            for under_way in [None, Some(false), Some(true)] {
                let mut orders = Orders::default();
                orders.waiting.extend(waits.then(&mut admit));
                orders.under_way = under_way.map(|ends| match ends {
                    true => UnderWay::Ending { command: None, victims: Vec::new() },
                    false => UnderWay::Storing { command: None, changes: Vec::new() },
                });
                assert_eq!(orders.are_none(), !waits && under_way.is_none());
                assert_eq!(orders.may_go_on(), waits && under_way.is_none());
                assert_eq!(orders.are_ending(), under_way == Some(true));
                assert_eq!(orders.are_storing(), under_way == Some(false));
                let taken = orders.take_commands(|_| true);
                assert_eq!((taken.len(), orders.waiting.len()), (usize::from(waits), 0));
                orders.waiting.extend(taken);
                assert_eq!(orders.take_commands(|_| false).len(), 0);
                // No host is left to wait for the command.
                drop(orders);
            }
        }
        assert_eq!(slab.in_flight(), 3);
        let mut orders = Orders::default();
        let command = slab.admit(&SubmissionEntry::default(), Origin::default());
        orders.under_way = Some(UnderWay::Ending { command, victims: Vec::new() });
        let [command] = orders.take_commands(|_| true).try_into().expect("the one that is under way");
        assert!(orders.are_ending(), "the order goes on without its command");
        slab.release(command);
    }
}
