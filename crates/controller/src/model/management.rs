//! Namespace Management and Namespace Attachment (Base 5.22, 5.23, 8.11): hosts create namespaces out of a
//! drive's pool, delete them, and attach them to controllers.
//!
//! One command runs after the other, from its check to its end. The resulting state is persisted before the
//! command completes: a daemon that is killed leaves all of a change or nothing. Creating: the state is
//! persisted, then the namespace is visible. Deleting: the namespace takes no more commands, then the state
//! is persisted, and the namespace goes when its last command is done.

use crate::model::{Namespace, Subsystem};
use crate::state::management::{Attachment, Creation, Pool, Request};
use crate::state::persist::PersistentRecord;
use sluice_command::Command;
use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(crate) struct Management {
    pub(crate) pool: Option<Pool>,
    /// Commands that wait, with their requests. A request without a command is the operator's.
    pub(crate) waiting: VecDeque<(Option<Command>, Request)>,
    pub(crate) under_way: Option<UnderWay>,
    /// Controller whose request was started last: those of others come first.
    pub(crate) last: u8,
}

/// Command whose request was accepted.
#[derive(Debug)]
pub(crate) struct UnderWay {
    /// None for a request of the operator, or after a reset took the command: the request goes on.
    pub(crate) command: Option<Command>,
    /// Number of the command's controller, whose host is notified by the completion.
    pub(crate) number: u8,
    pub(crate) task: Task,
    pub(crate) stage: TaskStage,
    pub(crate) next_ns: u64,
    pub(crate) until_ns: u64,
}

#[derive(Debug)]
pub(crate) enum Task {
    /// Creation, with the namespace once it is built.
    Create(Creation, Option<Box<Namespace>>),
    Delete(Vec<u32>),
    /// Attachment of a namespace: the new state, and the controller that gets it if it is private.
    Attach {
        nsid: u32,
        attachment: Attachment,
        first: Option<u8>,
    },
    /// Detachment of a namespace: the new and the former state, and a bit per controller that has lost it.
    Detach {
        nsid: u32,
        attachment: Attachment,
        before: Attachment,
        lost: u32,
    },
}

impl Task {
    /// Returns the namespaces that all controllers lose, or some.
    pub(crate) fn leaving(&self) -> &[u32] {
        match self {
            Self::Delete(nsids) => nsids,
            Self::Detach { nsid, .. } => std::slice::from_ref(nsid),
            Self::Create(..) | Self::Attach { .. } => &[],
        }
    }

    pub(crate) fn record_to_persist(&self) -> PersistentRecord {
        match self {
            Self::Create(creation, _) => PersistentRecord::Creation(*creation),
            Self::Delete(nsids) => PersistentRecord::Deletion(nsids.clone()),
            Self::Attach { nsid, attachment, .. } | Self::Detach { nsid, attachment, .. } => {
                PersistentRecord::Attachment { nsid: *nsid, attachment: attachment.clone() }
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskStage {
    /// Drain of the commands in flight.
    Waiting,
    /// Persisting of the change.
    Persisting,
    /// Drain of the drive's own commands to the namespaces, after their deletion was persisted.
    Draining,
}

impl Management {
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.under_way.as_ref().filter(|it| it.stage != TaskStage::Persisting).map(|it| it.next_ns)
    }

    /// Returns a namespace that was built, and is not persisted yet.
    pub(crate) fn being_created(&self) -> Option<&Namespace> {
        match &self.under_way.as_ref()?.task {
            Task::Create(_, namespace) => namespace.as_deref(),
            Task::Delete(_) | Task::Attach { .. } | Task::Detach { .. } => None,
        }
    }

    /// Returns whether a namespace is being created or deleted.
    pub(crate) fn is_busy(&self) -> bool {
        let changes = |it: &UnderWay| matches!(it.task, Task::Create(..) | Task::Delete(_));
        self.under_way.as_ref().is_some_and(changes)
    }

    /// Takes the selected commands. Waiting ones are dropped with their requests.
    pub(crate) fn take_commands(&mut self, mut is_meant: impl FnMut(&Command) -> bool) -> Vec<Command> {
        let (mut taken, mut left) = (Vec::new(), VecDeque::new());
        for (mut command, request) in self.waiting.drain(..) {
            match command.take_if(|it| is_meant(it)) {
                Some(command) => taken.push(command),
                None => left.push_back((command, request)),
            }
        }
        self.waiting = left;
        let current = self.under_way.as_mut().map(|it| &mut it.command);
        taken.extend(current.and_then(|command| command.take_if(|it| is_meant(it))));
        taken
    }
}

/// Forgets commands that still wait here, since no host is left.
impl Drop for Management {
    fn drop(&mut self) {
        self.take_commands(|_| true).into_iter().for_each(std::mem::forget);
    }
}

impl Subsystem {
    /// Sets the pool that hosts may create namespaces of, before the first turn.
    pub fn set_pool(&mut self, pool: Pool) {
        self.jobs.management.pool = Some(pool);
    }

    /// Returns the bytes of the pool that belong to no namespace.
    pub(crate) fn unallocated(&self) -> u64 {
        let created: u64 = self.iter().filter(|it| it.is_created()).map(Namespace::bytes).sum();
        self.jobs.management.pool.map_or(0, |pool| pool.size.saturating_sub(created))
    }

    /// Returns whether some namespace, or one that may be created, can lose finished writes at a power cut.
    pub(crate) fn has_volatile_cache(&self) -> bool {
        let created = self.jobs.management.pool.is_some_and(|pool| pool.volatile_cache);
        created || self.cached_namespaces().next().is_some()
    }
}
