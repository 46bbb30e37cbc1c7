//! Remote task, which serves a queue group on another reactor than the owner's.

use super::handle::{RemoteHandle, Signals};
use super::owner::GroupTransfer;
use crate::Drive;
use sluice_controller::{
    CannotMigrate, Controller, DoorbellMode, PeerConfig, RecallCause, ReturningGroup, Subsystem,
};
use sluice_memory::Space;
use sluice_reactor::{Arm, FileSlot, Io, ReactorHandle, Task, TaskId};
use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Token of a completed write to the eventfd of an interrupt. No layer uses this value.
const SIGNAL: u64 = u64::MAX >> 16;

/// Task that serves one queue group, and ends when the group has returned to its owner.
#[derive(Debug)]
pub struct RemoteQueues {
    handle: RemoteHandle,
    io: Io,
    subsystem: Subsystem,
    controller: Controller,
    space: Space,
    group: Option<Group>,
    interrupts: u64,
}

/// State of the group besides its queues.
#[derive(Debug)]
struct Group {
    owner: (ReactorHandle, TaskId),
    eventfd: Option<FileSlot>,
    /// Return of the group to its owner has begun: the group was recalled, or cannot be served here.
    leaves: bool,
}

impl RemoteQueues {
    /// Makes a vacant task. `task` and `io` come from the closure of `Local::add` on the thread of
    /// `reactor`. The layers of `subsystem` must reach the data of the drive.
    ///
    /// # Errors
    /// Memory or descriptors are lacking.
    pub fn new(reactor: ReactorHandle, task: TaskId, io: Io, mut subsystem: Subsystem) -> io::Result<Self> {
        let controller = Controller::new_remote(&mut subsystem, 1)?;
        let handle = RemoteHandle { reactor, task, signals: Arc::new(Signals::default()) };
        Ok(Self { handle, io, subsystem, controller, space: Space::new(), group: None, interrupts: 0 })
    }

    /// Returns whether the task has no group.
    pub fn is_vacant(&self) -> bool {
        self.group.is_none()
    }

    pub fn handle(&self) -> RemoteHandle {
        self.handle.clone()
    }

    /// Returns the configuration of the task's subsystem, which must equal the drive's.
    ///
    /// # Errors
    /// A layer is of a kind that works on one reactor at a time.
    pub fn peer_config(&self) -> Result<PeerConfig, CannotMigrate> {
        self.subsystem.peer_config()
    }

    /// Accepts a group from its owner.
    pub(super) fn accept(&mut self, transfer: GroupTransfer) {
        let GroupTransfer { group, space, eventfd, owner } = transfer;
        self.controller.accept_group(&mut self.subsystem, group);
        self.space = space;
        let registered = eventfd.map(|it: OwnedFd| self.io.register_file(it)).transpose();
        // Without a file slot for the eventfd, the group returns before it has served any command.
        let leaves = registered.is_err();
        self.group = Some(Group { owner, eventfd: registered.ok().flatten(), leaves });
        if leaves {
            self.controller.recall_groups(RecallCause::Room);
            self.controller.stop_taking();
        }
    }

    fn interrupt(&mut self) {
        let Self { controller, group, io, interrupts, handle, .. } = self;
        let eventfd = group.as_ref().and_then(|group| group.eventfd.as_ref());
        controller.take_vectors(|_| {
            if let Some(eventfd) = eventfd {
                io.signal(eventfd, handle.task, SIGNAL);
                *interrupts += 1;
            }
        });
    }

    /// Stops taking commands if the group was recalled or cannot go on here. Sends the group to its owner
    /// when none of its commands is in flight. Returns 1 if the group was sent.
    fn leave(&mut self) -> usize {
        let Some(group) = &mut self.group else { return 0 };
        if !group.leaves {
            group.leaves = self.handle.signals.is_recalled() || self.controller.recall_cause().is_some();
            if !group.leaves {
                return 0;
            }
            self.controller.stop_taking();
        }
        let Some(queues) = self.controller.return_group(&mut self.subsystem) else { return 0 };
        self.send_to_owner(queues);
        1
    }

    /// Sends the queues and the map of the client's memory to the owner, which must release that map last.
    fn send_to_owner(&mut self, queues: ReturningGroup) {
        let Some(Group { owner: (reactor, owner), .. }) = self.group.take() else { return };
        let (space, interrupts) = (mem::take(&mut self.space), self.interrupts);
        reactor.mail_always(move |local| {
            let now_ns = local.now_ns();
            match local.task_mut::<Drive>(owner) {
                Some(drive) => drive.take_back_group(queues, interrupts, space, now_ns),
                None => crate::deferred_drop::drop_later((queues, space)),
            }
        });
        let task = self.handle.task;
        self.handle.reactor.mail_always(move |local| drop(local.remove(task)));
    }
}

impl Task for RemoteQueues {
    fn turn(&mut self, now_ns: u64) -> usize {
        if self.group.is_none() {
            return 0;
        }
        let work = self.controller.remote_turn(&mut self.subsystem, &self.space, now_ns);
        self.interrupt();
        if work > 0 {
            self.handle.signals.count(self.interrupts);
        }
        work + self.leave()
    }

    fn look_ahead(&self) {
        self.controller.look_ahead();
    }

    fn event(&mut self, token: u64, result: i32, _more: bool, now_ns: u64) {
        if token != SIGNAL {
            self.subsystem.event(token, result, now_ns);
        }
    }

    fn arm(&mut self, _now_ns: u64) -> Arm {
        let Some(group) = &self.group else { return Arm::Asleep { until: None } };
        self.handle.signals.fall_asleep();
        let is_recalled = self.handle.signals.is_recalled() || self.controller.recall_cause().is_some();
        let is_recalled = !group.leaves && is_recalled;
        let Self { controller, subsystem, .. } = self;
        if is_recalled || controller.arm(subsystem) || subsystem.has_work() || subsystem.arm() {
            self.disarm();
            return Arm::Busy;
        }
        let until = controller.deadline_ns(subsystem);
        let armed = match controller.doorbell_mode() == DoorbellMode::Mapped {
            true => Arm::Timed { until },
            false => Arm::Asleep { until },
        };
        armed.no_later_than(subsystem.deadline_ns())
    }

    fn disarm(&mut self) {
        self.handle.signals.wake_up();
        self.controller.disarm();
        self.subsystem.disarm();
    }
}
