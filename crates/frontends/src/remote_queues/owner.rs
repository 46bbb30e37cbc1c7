//! A drive's outposts, as home sees them.

use super::RemoteQueues;
use super::handle::RemoteHandle;
use crate::Drive;
use crate::log_limit::{LogLimit, limited};
use crate::vfio_user::Port;
use sluice_controller::{
    CannotMigrate, Controller, MigratingGroup, PeerConfig, RecallCause, ReturningGroup, Subsystem,
};
use sluice_memory::Space;
use sluice_reactor::{ReactorHandle, TaskId};
use std::fmt;
use std::os::fd::OwnedFd;

/// Groups of a drive that can be away at a time.
const GROUPS_MAX: usize = 16;

/// Regions of a client whose map is handed on: a client that has more changes them all the time, and has its queues
/// called home each time.
const REGIONS_MAX: usize = 1024;

/// A queue group that is to leave.
pub struct Migration {
    /// Identifier of its completion queue.
    pub queue: u16,
    pub to: RemoteHandle,
    /// What it is like there.
    pub peer_config: PeerConfig,
    /// Where the drive is.
    pub owner: ReactorHandle,
    /// When it stays if its commands have not ended.
    pub until_ns: u64,
    /// Is told when it has gone, or stays.
    pub answer: Box<dyn FnOnce(Result<(), CannotMigrate>) + Send>,
}

impl fmt::Debug for Migration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Migration").field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// What goes to an outpost.
pub(super) struct GroupTransfer {
    pub(super) group: MigratingGroup,
    pub(super) space: Space,
    pub(super) eventfd: Option<OwnedFd>,
    pub(super) owner: (ReactorHandle, TaskId),
}

impl GroupTransfer {
    /// There is no outpost that would take it.
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

/// A group that is away.
#[derive(Debug)]
struct RemoteGroup {
    queue: u16,
    handle: RemoteHandle,
    recalled: bool,
}

impl RemoteGroup {
    /// Calls it home. False if it was.
    fn recall(&mut self) -> bool {
        let is_first = !std::mem::replace(&mut self.recalled, true);
        if is_first {
            self.handle.recall();
        }
        is_first
    }
}

/// The outposts of a drive with one socket.
#[derive(Debug, Default)]
pub(crate) struct RemoteGroups {
    migrating: Option<Migration>,
    groups: Vec<RemoteGroup>,
    /// How often groups were brought home, by the number of what did.
    causes: [u64; RecallCause::LABELS.len()],
    log: LogLimit,
}

impl RemoteGroups {
    #[inline]
    pub(crate) fn are_some(&self) -> bool {
        self.migrating.is_some() || !self.groups.is_empty()
    }

    /// A group is about to leave, and its commands may end at any time.
    pub(crate) fn are_busy(&self) -> bool {
        self.migrating.is_some()
    }

    /// Has a group leave, if it may.
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

    /// After a turn of the drive: a group leaves, others are called home, or are told of a doorbell.
    #[cold]
    pub(crate) fn advance(
        &mut self,
        task: TaskId,
        controller: &mut Controller,
        subsystem: &mut Subsystem,
        port: &Port,
        now_ns: u64,
    ) {
        if let Some(migration) = self.migrating.take() {
            self.send(migration, task, controller, subsystem, port, now_ns);
        }
        if let Some(cause) = controller.recall_cause() {
            self.recall(cause, port.drive(), now_ns);
        }
        controller.take_rung(|queue| {
            self.groups
                .iter()
                .filter(|group| group.queue == queue)
                .for_each(|group| group.handle.notify_doorbell());
        });
    }

    /// Calls all groups home that were not called yet.
    pub(crate) fn recall(&mut self, cause: RecallCause, drive: &str, now_ns: u64) {
        if self.groups.iter_mut().fold(false, |any, group| group.recall() | any) {
            self.note(cause, drive, now_ns);
        }
    }

    /// Calls a group home that somebody wants elsewhere.
    pub(crate) fn recall_one(&mut self, queue: u16) {
        self.groups.iter_mut().filter(|group| group.queue == queue).for_each(|group| _ = group.recall());
    }

    fn note(&mut self, cause: RecallCause, drive: &str, now_ns: u64) {
        self.causes[cause.number()] += 1;
        limited!(info, self.log, now_ns, drive, "queues come home from other reactors: {cause}");
    }

    /// How often groups were brought home by what, as its [label](RecallCause::LABELS).
    pub(crate) fn causes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        RecallCause::LABELS.into_iter().zip(self.causes).filter(|(_, times)| *times > 0)
    }

    fn send(
        &mut self,
        migration: Migration,
        task: TaskId,
        controller: &mut Controller,
        subsystem: &mut Subsystem,
        port: &Port,
        now_ns: u64,
    ) {
        let late = CannotMigrate("commands under way did not end in time: try again");
        let prepared = match now_ns < migration.until_ns {
            true => Self::prepare(&migration, task, controller, subsystem, port),
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
                controller.cancel_migration();
                (migration.answer)(Err(why));
            }
        }
    }

    fn prepare(
        migration: &Migration,
        task: TaskId,
        controller: &mut Controller,
        subsystem: &mut Subsystem,
        port: &Port,
    ) -> Result<Option<GroupTransfer>, CannotMigrate> {
        if !controller.migrating_is_idle(subsystem) {
            return Ok(None);
        }
        if port.space().has_remote_memory() {
            return Err(CannotMigrate("some of the host's memory is not shared"));
        }
        if port.space().len() > REGIONS_MAX {
            return Err(CannotMigrate("the host's memory is in too many pieces"));
        }
        let eventfd = port.interrupt_of(controller.migrating_vector())?;
        let group = controller.finish_migration(subsystem, &migration.peer_config, port.space())?;
        Ok(group.map(|group| GroupTransfer {
            group,
            space: port.space().shared_part(),
            eventfd,
            owner: (migration.owner.clone(), task),
        }))
    }

    /// A group is home.
    pub(crate) fn take_back_group(
        &mut self,
        controller: &mut Controller,
        subsystem: &mut Subsystem,
        group: ReturningGroup,
        port: &Port,
        now_ns: u64,
    ) {
        let (queue, cause) = (group.queue(), group.cause());
        controller.take_back_group(subsystem, group, port.space());
        let came = self.groups.extract_if(.., |group| group.queue == queue).next();
        if came.is_some_and(|group| !group.recalled)
            && let Some(cause) = cause
        {
            self.note(cause, port.drive(), now_ns);
        }
    }

    /// Groups that are away, by their completion queues.
    pub(crate) fn handles(&self) -> impl Iterator<Item = (u16, &RemoteHandle)> {
        self.groups.iter().map(|group| (group.queue, &group.handle))
    }

    pub(crate) fn interrupts(&self) -> u64 {
        self.groups.iter().map(|group| group.handle.interrupts()).sum()
    }
}

/// Groups whose drive is gone end.
impl Drop for RemoteGroups {
    fn drop(&mut self) {
        self.groups.iter_mut().for_each(|group| _ = group.recall());
    }
}
