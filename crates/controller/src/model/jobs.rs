//! State of the work that outlives the first step of its command.

use crate::model::management::Management;
use crate::state::background::BackgroundJob;
use crate::state::erasure::Erasure;
use crate::state::losses::Losses;
use crate::state::orders::Orders;
use crate::state::persist::Persister;
use crate::state::persistent_event::PersistentEvents;
use crate::state::sanitize::Sanitize;
use crate::state::sync::Sync;
use crate::state::uncorrectable::UncorrectableUpdates;
use sluice_command::Command;

/// Jobs of a subsystem.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    /// Erasure that is under way.
    pub(crate) erasure: Option<Erasure>,
    /// Erasures that have ended: the last format of each namespace, and the last sanitize operation.
    pub(crate) ended: Vec<BackgroundJob>,
    pub(crate) sanitize: Sanitize,
    pub(crate) sync: Option<Sync>,
    pub(crate) losses: Losses,
    pub(crate) orders: Orders,
    pub(crate) uncorrectable: UncorrectableUpdates,
    pub(crate) management: Management,
    pub(crate) persister: Persister,
    pub(crate) persistent_events: PersistentEvents,
}

impl Jobs {
    /// Takes the commands that wait here and that are meant. The work that was started for them goes on.
    pub(crate) fn take_commands(&mut self, is_meant: impl Fn(&Command) -> bool + Copy) -> Vec<Command> {
        let Self { erasure, management, orders, .. } = self;
        let erasures = erasure.as_mut().and_then(|erasure| erasure.take_command_if(is_meant));
        let mut taken: Vec<Command> = erasures.into_iter().collect();
        taken.extend(management.take_commands(is_meant));
        taken.extend(orders.take_commands(is_meant));
        taken
    }
}
