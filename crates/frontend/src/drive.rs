//! A drive: one subsystem with its front-ends, as one task of a reactor.

use crate::frontends::Frontends;
use crate::nvme::{NewFrontend, NvmeFrontend};
use crate::record_sink::RecordSink;
use crate::remote_queues::{Migration, RemoteGroups, RemoteHandle};
use crate::token::FrontendToken;
use sluice_controller::{CannotMigrate, RecallCause, ReturningGroup, Subsystem};
use sluice_memory::Space;
use sluice_reactor::{Arm, Io, Task, TaskId};
use std::any::Any;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A subsystem with its front-ends, which have its controllers. The front-ends have their turns one after the
/// other.
#[derive(Debug)]
pub struct Drive {
    task: TaskId,
    io: Io,
    subsystem: Subsystem,
    frontends: Frontends<dyn NvmeFrontend>,
    remote_groups: RemoteGroups,
    /// Times that a first host came or the last one went: odd while one is there.
    transitions: Arc<AtomicU64>,
    /// Space without memory, for turns of the subsystem without a host.
    no_memory: Space,
    sink: Option<Box<dyn RecordSink>>,
}

impl Drive {
    /// Makes a drive that no host can reach yet. `task` and `io` come from the closure of `Local::add`.
    pub fn new(task: TaskId, io: Io, subsystem: Subsystem) -> Self {
        let (frontends, remote_groups) = (Frontends::default(), RemoteGroups::default());
        let (transitions, no_memory) = (Arc::default(), Space::new());
        Self { task, io, subsystem, frontends, remote_groups, transitions, no_memory, sink: None }
    }

    /// Has the records of the drive kept from now on, the first one at once. Returns whether it was kept.
    pub fn keep(&mut self, sink: Box<dyn RecordSink>, now_ns: u64) -> bool {
        self.sink = Some(sink);
        self.keep_record(now_ns)
    }

    /// Returns whether records of the drive are kept.
    pub fn is_kept(&self) -> bool {
        self.sink.is_some()
    }

    #[cold]
    fn keep_record(&mut self, now_ns: u64) -> bool {
        let Some(mut sink) = self.sink.take() else { return false };
        let is_kept = sink.keep(self, now_ns);
        self.sink = is_kept.then_some(sink);
        is_kept
    }

    /// Counts in this number, from now on, each time that a first host comes or the last one goes.
    pub fn count_transitions(&mut self, number: Arc<AtomicU64>) {
        self.transitions = number;
    }

    /// Adds a front-end.
    ///
    /// # Errors
    /// The drive has [as many](crate::FRONTENDS_MAX) front-ends as it can have, or `open` failed.
    pub fn add<F: NvmeFrontend>(
        &mut self,
        open: impl FnOnce(NewFrontend<'_>) -> io::Result<F>,
    ) -> io::Result<()> {
        let number = self.frontends.next_number().ok_or(io::ErrorKind::QuotaExceeded)?;
        let (task, io, subsystem) = (self.task, self.io.clone(), &mut self.subsystem);
        self.frontends.push(Box::new(open(NewFrontend { number, task, io, subsystem })?));
        self.subsystem.expect(self.frontends.hosts_max());
        Ok(())
    }

    /// Returns the front-ends of a type.
    pub fn frontends<F: NvmeFrontend>(&self) -> impl Iterator<Item = &F> {
        self.frontends.iter().filter_map(|frontend| (frontend as &dyn Any).downcast_ref())
    }

    /// Returns the first front-end of a type, with the subsystem.
    pub fn frontend_mut<F: NvmeFrontend>(&mut self) -> Option<(&mut F, &mut Subsystem)> {
        let Self { frontends, subsystem, .. } = self;
        let found = frontends.iter_mut().find_map(|frontend| (frontend as &mut dyn Any).downcast_mut());
        found.map(|frontend| (frontend, subsystem))
    }

    /// Returns the front-ends of a type, with the subsystem.
    pub fn frontends_mut<F: NvmeFrontend>(&mut self) -> (impl Iterator<Item = &mut F>, &mut Subsystem) {
        let Self { frontends, subsystem, .. } = self;
        let found = frontends.iter_mut().filter_map(|frontend| (frontend as &mut dyn Any).downcast_mut());
        (found, subsystem)
    }

    pub fn subsystem(&self) -> &Subsystem {
        &self.subsystem
    }

    pub fn subsystem_mut(&mut self) -> &mut Subsystem {
        &mut self.subsystem
    }

    /// Returns the number of commands in flight, without commands that wait for events that may never come.
    pub fn unfinished(&self) -> u32 {
        self.subsystem.unfinished() + self.frontends.unfinished(&self.subsystem)
    }

    /// Returns whether hosts have created namespaces.
    pub fn has_created(&self) -> bool {
        self.subsystem.namespaces().any(|namespace| namespace.is_created())
    }

    /// Returns the number of commands in flight, those of remote queues included.
    /// [`unfinished`](Self::unfinished) counts each remote group as one command instead.
    pub fn in_flight(&self) -> u32 {
        let groups = self.remote_groups.handles().count() as u32;
        self.unfinished().saturating_sub(groups) + self.subsystem.in_flight_remote()
    }

    /// Starts to drain the drive, before the drive is deleted or the daemon stops. The sockets are closed and
    /// no host is let in. No more commands are taken, and those in flight finish. Hosts are then
    /// disconnected, after their completions were sent. Remove the task when it
    /// [`is_drained`](Self::is_drained).
    pub fn drain(&mut self, now_ns: u64) {
        self.subsystem.note_hosts_at_end();
        self.frontends.drain(&mut self.subsystem, now_ns);
    }

    /// Returns whether no host is connected or can connect, and no command is in flight.
    pub fn is_drained(&self) -> bool {
        self.frontends.are_drained()
    }
}

/// Remote queue groups, which other reactors serve.
impl Drive {
    /// Starts the migration of a queue group to a remote task. The group leaves when its commands have ended.
    pub fn migrate_group(&mut self, migration: Migration) {
        let Self { subsystem, frontends, remote_groups, .. } = self;
        let is_kept = self.sink.is_some();
        match frontends.iter_mut().find_map(|frontend| frontend.group_owner()) {
            // The segments of other reactors are in no record.
            Some(_) if is_kept => (migration.answer)(Err(CannotMigrate("its records are kept by a holder"))),
            Some(owner) => remote_groups.begin(migration, owner.controller, subsystem),
            None => {
                (migration.answer)(Err(CannotMigrate("queues of hosts on the network stay with their drive")))
            }
        }
    }

    /// Returns whether this reactor serves every queue. All work on a drive except reading its state needs
    /// that.
    pub fn is_whole(&self) -> bool {
        self.frontends.iter().filter_map(|frontend| frontend.migratable()).all(|it| it.has_all_queues())
    }

    /// Recalls the group of a completion queue, which the operator moves, or all groups for an operator's
    /// order.
    pub fn recall_groups(&mut self, queue: Option<u16>, now_ns: u64) {
        let Self { frontends, remote_groups, .. } = self;
        if let Some(queue) = queue {
            remote_groups.recall_one(queue);
        } else if let Some(owner) = frontends.iter_mut().find_map(|frontend| frontend.group_owner()) {
            remote_groups.recall(RecallCause::Operator, owner.client.drive(), now_ns);
        }
    }

    /// Returns how often queue groups were recalled, by cause.
    pub fn recalls(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.remote_groups.causes()
    }

    /// Takes back a returned queue group.
    pub(crate) fn take_back_group(
        &mut self,
        group: ReturningGroup,
        interrupts: u64,
        _map: Space,
        now_ns: u64,
    ) {
        let Self { subsystem, frontends, remote_groups, .. } = self;
        let Some(mut owner) = frontends.iter_mut().find_map(|frontend| frontend.group_owner()) else {
            return;
        };
        remote_groups.take_back_group(&mut owner, subsystem, group, now_ns);
        owner.client.count_interrupts(interrupts);
    }

    /// Returns the remote queue groups, by the identifiers of their completion queues.
    pub fn remote_groups(&self) -> impl Iterator<Item = (u16, &RemoteHandle)> {
        self.remote_groups.handles()
    }

    /// Returns the number of interrupts that the remote queue groups have signalled since they left.
    pub fn remote_interrupts(&self) -> u64 {
        self.remote_groups.interrupts()
    }

    /// Returns the completion queues of a virtual machine that this reactor serves.
    pub fn here(&self) -> impl Iterator<Item = u16> {
        let controller = self.frontends.iter().find_map(|frontend| frontend.migratable());
        controller.into_iter().flat_map(|controller| controller.queues_here())
    }

    #[cold]
    fn advance_remote_groups(&mut self, now_ns: u64) {
        let Self { task, subsystem, frontends, remote_groups, .. } = self;
        if let Some(mut owner) = frontends.iter_mut().find_map(|frontend| frontend.group_owner()) {
            remote_groups.advance(*task, &mut owner, subsystem, now_ns);
        }
    }
}

impl Task for Drive {
    fn turn(&mut self, now_ns: u64) -> usize {
        let served = self.frontends.turn(&mut self.subsystem, now_ns);
        let transitions = self.transitions.load(Relaxed);
        if served.is_vacant == (transitions & 1 == 1) {
            self.transitions.store(transitions + 1, Relaxed);
        }
        if self.remote_groups.are_some() {
            self.advance_remote_groups(now_ns);
        }
        if self.sink.is_some() && self.frontends.iter().any(|frontend| frontend.needs_record()) {
            self.keep_record(now_ns);
        }
        match self.frontends.needs_own_turn(served) {
            // Layers receive events of their devices and functions without a host, too.
            true => served.work + self.subsystem.turn(&self.no_memory, now_ns),
            false => served.work,
        }
    }

    fn look_ahead(&self) {
        self.frontends.look_ahead();
    }

    fn event(&mut self, token: u64, result: i32, more: bool, now_ns: u64) {
        let Self { subsystem, frontends, .. } = self;
        match FrontendToken::of(token) {
            None => subsystem.event(token, result, now_ns),
            Some(token) => frontends.event(subsystem, token, result, more, now_ns),
        }
    }

    fn arm(&mut self, now_ns: u64) -> Arm {
        let Self { subsystem, frontends, .. } = self;
        if frontends.are_suspended() {
            // Work and timers wait until the drive goes on, here or in another process.
            return Arm::Asleep { until: None };
        }
        let armed = frontends.arm(subsystem, now_ns);
        let mut is_busy = armed == Arm::Busy;
        is_busy |= subsystem.has_work() || subsystem.arm() || self.remote_groups.are_busy();
        if is_busy {
            self.disarm();
            return Arm::Busy;
        }
        armed.no_later_than(self.subsystem.deadline_ns())
    }

    fn disarm(&mut self) {
        self.frontends.disarm();
        self.subsystem.disarm();
    }
}
