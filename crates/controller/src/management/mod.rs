//! Namespace Management and Namespace Attachment (Base 5.22, 5.23, 8.11): hosts create namespaces out of a drive's pool,
//! delete them, and say which controllers have them.
//!
//! One command after the other, from its check to its end. What it makes of the drive is stored before the host is told,
//! by somebody who may block: a daemon that is killed leaves all of it or nothing. Nobody sees a namespace that is not
//! stored; one that goes takes no command any more before that is stored, and goes when the last one is done.

mod attachment;
mod order;
mod plan;
mod progress;
mod record;

pub(crate) use order::{Request, begin};
pub use record::{Attachment, Creation};

use crate::{Namespace, Subsystem};
use sluice_command::Command;
use std::collections::VecDeque;

/// Names of controllers that are remembered of a namespace: a host that is detached and never comes back has one, too.
pub const ATTACHED_MAX: usize = 256;

/// What hosts make namespaces of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Bytes.
    pub size: u64,
    /// Namespaces of it may lose finished writes at a power cut: hosts are to know before they create one.
    pub volatile_cache: bool,
}

/// How long commands in flight have to end.
const WAIT_NS: u64 = 8_000_000_000;

/// Until it is looked again whether they have.
const PAUSE_NS: u64 = 1_000_000;

#[derive(Debug, Default)]
pub(crate) struct Management {
    pub(crate) pool: Option<Pool>,
    /// Without a command it is the operator's.
    waiting: VecDeque<(Option<Command>, Request)>,
    under_way: Option<UnderWay>,
    /// Of the controller whose wish was begun last: others' come first.
    last: u8,
}

/// A command that was found to be right.
#[derive(Debug)]
struct UnderWay {
    /// None if it is the operator's wish, or a reset took it: what was begun goes on.
    command: Option<Command>,
    /// Number of the controller that it came to, which tells its host by its completion.
    number: u8,
    task: Task,
    stage: TaskStage,
    next_ns: u64,
    until_ns: u64,
}

#[derive(Debug)]
enum Task {
    /// With the namespace as soon as somebody has built it.
    Create(Creation, Option<Box<Namespace>>),
    Delete(Vec<u32>),
    /// What the attachment is from now on, and the controller that has the namespace if only one may.
    Attach {
        nsid: u32,
        attachment: Attachment,
        first: Option<u8>,
    },
    /// What it is from now on and was before, and bit per controller that has lost the namespace.
    Detach {
        nsid: u32,
        attachment: Attachment,
        before: Attachment,
        lost: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskStage {
    /// Commands in flight come to their end.
    Waiting,
    /// Somebody was asked to remember it.
    Persisting,
    /// It is remembered that the namespaces are gone; what the drive itself has sent to them comes to its end.
    Draining,
}

impl Management {
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.under_way.as_ref().filter(|it| it.stage != TaskStage::Persisting).map(|it| it.next_ns)
    }

    /// A namespace that was built, and is not stored yet.
    pub(crate) fn being_created(&self) -> Option<&Namespace> {
        match &self.under_way.as_ref()?.task {
            Task::Create(_, namespace) => namespace.as_deref(),
            Task::Delete(_) | Task::Attach { .. } | Task::Detach { .. } => None,
        }
    }

    /// Namespaces come or go.
    pub(crate) fn is_busy(&self) -> bool {
        let changes = |it: &UnderWay| matches!(it.task, Task::Create(..) | Task::Delete(_));
        self.under_way.as_ref().is_some_and(changes)
    }

    /// Takes the commands that are meant: those that wait do not begin any more.
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

/// Commands that still wait here end here: nobody is left to be told.
impl Drop for Management {
    fn drop(&mut self) {
        self.take_commands(|_| true).into_iter().for_each(std::mem::forget);
    }
}

impl Subsystem {
    /// Before its first turn: hosts may create namespaces out of this.
    pub fn set_pool(&mut self, pool: Pool) {
        self.management.pool = Some(pool);
    }

    /// Bytes of the pool that no namespace has.
    pub(crate) fn unallocated(&self) -> u64 {
        let created: u64 = self.iter().filter(|it| it.is_created()).map(Namespace::bytes).sum();
        self.management.pool.map_or(0, |pool| pool.size.saturating_sub(created))
    }

    /// True if some namespace may lose finished writes at a power cut, or may be made that does.
    pub(crate) fn has_volatile_cache(&self) -> bool {
        let created = self.management.pool.is_some_and(|pool| pool.volatile_cache);
        created || self.cached_namespaces().next().is_some()
    }
}
