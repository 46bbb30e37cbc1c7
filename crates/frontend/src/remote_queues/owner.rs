//! Remote queue groups, from the side of the owner.

use super::RemoteQueues;
use super::handle::RemoteHandle;
use crate::{Drive, GroupOwner, LogLimit, limited};
use sluice_controller::{
    CannotMigrate, Controller, MigratingGroup, PeerConfig, RecallCause, ReturningGroup, Subsystem,
};
use sluice_memory::Space;
use sluice_reactor::{ReactorHandle, TaskId};
use std::fmt;
use std::os::fd::OwnedFd;

/// Groups of a drive that can be remote at a time.
const GROUPS_MAX: usize = 16;

/// Regions of a client whose map is sent with a group. A client with more regions changes them all the time,
/// and each change recalls its queues.
const REGIONS_MAX: usize = 1024;

/// Order to move a queue group to a remote task.
pub struct Migration {
    /// Identifier of the group's completion queue.
    pub queue: u16,
    pub to: RemoteHandle,
    /// Configuration of the remote controller, to be compared with the drive's.
    pub peer_config: PeerConfig,
    /// Reactor of the drive.
    pub owner: ReactorHandle,
    /// Deadline for the group's commands to end; the group stays with the owner if they do not.
    pub until_ns: u64,
    /// Callback for the outcome: the group was sent, or the reason why it stays.
    pub answer: Box<dyn FnOnce(Result<(), CannotMigrate>) + Send>,
}

impl fmt::Debug for Migration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Migration").field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// Queue group in a mail to a remote task, with the memory and the eventfd that are needed to serve it.
pub(super) struct GroupTransfer {
    pub(super) group: MigratingGroup,
    pub(super) space: Space,
    pub(super) eventfd: Option<OwnedFd>,
    pub(super) owner: (ReactorHandle, TaskId),
}

impl GroupTransfer {
    /// Returns the group to its owner, because no vacant task can accept it.
    fn return_to_owner(self) {
        let Self { group, space, owner: (reactor, owner), .. } = self;
        reactor.mail_always(move |local| {
            let now_ns = local.now_ns();
            match local.task_mut::<Drive>(owner) {
                Some(drive) => drive.take_back_group(group.into_returning(), 0, space, now_ns),
                None => crate::deferred_drop::drop_later((group, space)),
            }
        });
    }
}

/// Queue group that a remote task serves.
#[derive(Debug)]
struct RemoteGroup {
    queue: u16,
    handle: RemoteHandle,
    recalled: bool,
}

impl RemoteGroup {
    /// Recalls the group. Returns false if the group was recalled before.
    fn recall(&mut self) -> bool {
        let is_first = !std::mem::replace(&mut self.recalled, true);
        if is_first {
            self.handle.recall();
        }
        is_first
    }
}

/// Remote queue groups of a drive, which has one socket.
#[derive(Debug, Default)]
pub(crate) struct RemoteGroups {
    migrating: Option<Migration>,
    groups: Vec<RemoteGroup>,
    /// Number of recalls, by the number of their cause.
    causes: [u64; RecallCause::LABELS.len()],
    log: LogLimit,
}

impl RemoteGroups {
    #[inline]
    pub(crate) fn are_some(&self) -> bool {
        self.migrating.is_some() || !self.groups.is_empty()
    }

    /// Returns whether a group is about to migrate. Its last commands may end at any time, so the drive keeps
    /// polling.
    pub(crate) fn are_busy(&self) -> bool {
        self.migrating.is_some()
    }

    /// Starts the migration of a group, or answers with the reason why the group stays.
    pub(crate) fn begin(&mut self, migration: Migration, controller: &mut Controller, subsystem: &Subsystem) {
        let begun = match self.groups.len() < GROUPS_MAX && self.migrating.is_none() {
            true => controller.begin_migration(subsystem, migration.queue),
            false => Err(CannotMigrate("as many of the drive's queues have moved as can")),
        };
        match begun {
            Ok(()) => self.migrating = Some(migration),
            Err(why) => (migration.answer)(Err(why)),
        }
    }

    /// Sends the migrating group, recalls groups and notifies them of doorbells. Call after a turn of the
    /// drive.
    #[cold]
    pub(crate) fn advance(
        &mut self,
        task: TaskId,
        owner: &mut GroupOwner<'_>,
        subsystem: &mut Subsystem,
        now_ns: u64,
    ) {
        if let Some(migration) = self.migrating.take() {
            self.send(migration, task, owner, subsystem, now_ns);
        }
        if let Some(cause) = owner.controller.recall_cause() {
            self.recall(cause, owner.client.drive(), now_ns);
        }
        owner.controller.take_rung(|queue| {
            self.groups
                .iter()
                .filter(|group| group.queue == queue)
                .for_each(|group| group.handle.notify_doorbell());
        });
    }

    /// Recalls all groups that were not recalled yet.
    pub(crate) fn recall(&mut self, cause: RecallCause, drive: &str, now_ns: u64) {
        if self.groups.iter_mut().fold(false, |any, group| group.recall() | any) {
            self.note(cause, drive, now_ns);
        }
    }

    /// Recalls one group, which the operator moves to another reactor.
    pub(crate) fn recall_one(&mut self, queue: u16) {
        self.groups.iter_mut().filter(|group| group.queue == queue).for_each(|group| _ = group.recall());
    }

    fn note(&mut self, cause: RecallCause, drive: &str, now_ns: u64) {
        self.causes[cause.number()] += 1;
        limited!(info, self.log, now_ns, drive, "queues come home from other reactors: {cause}");
    }

    /// Returns how often groups were recalled, by the [label](RecallCause::LABELS) of the cause.
    pub(crate) fn causes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        RecallCause::LABELS.into_iter().zip(self.causes).filter(|(_, times)| *times > 0)
    }

    fn send(
        &mut self,
        migration: Migration,
        task: TaskId,
        owner: &mut GroupOwner<'_>,
        subsystem: &mut Subsystem,
        now_ns: u64,
    ) {
        let late = CannotMigrate("commands under way did not end in time: try again");
        let prepared = match now_ns < migration.until_ns {
            true => Self::prepare(&migration, task, owner, subsystem),
            false => Err(late),
        };
        match prepared {
            Ok(None) => self.migrating = Some(migration),
            Ok(Some(transfer)) => {
                let Migration { queue, to, answer, .. } = migration;
                let remote = to.task;
                to.reactor.mail_always(move |local| {
                    match local.task_mut::<RemoteQueues>(remote).filter(|remote| remote.is_vacant()) {
                        Some(remote) => remote.accept(transfer),
                        None => transfer.return_to_owner(),
                    }
                });
                self.groups.push(RemoteGroup { queue, handle: to, recalled: false });
                answer(Ok(()));
            }
            Err(why) => {
                owner.controller.cancel_migration();
                (migration.answer)(Err(why));
            }
        }
    }

    fn prepare(
        migration: &Migration,
        task: TaskId,
        owner: &mut GroupOwner<'_>,
        subsystem: &mut Subsystem,
    ) -> Result<Option<GroupTransfer>, CannotMigrate> {
        let GroupOwner { controller, client } = owner;
        if !controller.migrating_is_idle(subsystem) {
            return Ok(None);
        }
        if client.space().has_remote_memory() {
            return Err(CannotMigrate("some of the host's memory is not shared"));
        }
        if client.space().len() > REGIONS_MAX {
            return Err(CannotMigrate("the host's memory is in too many pieces"));
        }
        let eventfd = client.interrupt_of(controller.migrating_vector())?;
        let group = controller.finish_migration(subsystem, &migration.peer_config, client.space())?;
        Ok(group.map(|group| GroupTransfer {
            group,
            space: client.space().shared_part(),
            eventfd,
            owner: (migration.owner.clone(), task),
        }))
    }

    /// Takes back a returned group.
    pub(crate) fn take_back_group(
        &mut self,
        owner: &mut GroupOwner<'_>,
        subsystem: &mut Subsystem,
        group: ReturningGroup,
        now_ns: u64,
    ) {
        let GroupOwner { controller, client } = owner;
        let (queue, cause) = (group.queue(), group.cause());
        controller.take_back_group(subsystem, group, client.space());
        let came = self.groups.extract_if(.., |group| group.queue == queue).next();
        if came.is_some_and(|group| !group.recalled)
            && let Some(cause) = cause
        {
            self.note(cause, client.drive(), now_ns);
        }
    }

    /// Returns the handles of remote groups, by the identifiers of their completion queues.
    pub(crate) fn handles(&self) -> impl Iterator<Item = (u16, &RemoteHandle)> {
        self.groups.iter().map(|group| (group.queue, &group.handle))
    }

    pub(crate) fn interrupts(&self) -> u64 {
        self.groups.iter().map(|group| group.handle.interrupts()).sum()
    }
}

/// Recall of all groups when their drive is gone, so that they end.
impl Drop for RemoteGroups {
    fn drop(&mut self) {
        self.groups.iter_mut().for_each(|group| _ = group.recall());
    }
}
