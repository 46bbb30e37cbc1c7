//! A drive: one subsystem with its vfio-user sockets and its hosts on the network, as one task of a reactor.

use crate::remote_queues::{Migration, RemoteGroups, RemoteHandle};
use crate::{tcp, vfio_user};
use sluice_controller::{Attached, CannotMigrate, Controller, RecallCause, ReturningGroup, Subsystem};
use sluice_memory::Space;
use sluice_reactor::{Arm, Io, Task, TaskId};
use std::io;

/// Sockets for virtual machines that a drive can have.
const SOCKETS_MAX: usize = 8;

const _: () = assert!(SOCKETS_MAX <= vfio_user::PORTS_MAX, "tokens can name them");

/// A subsystem with its controllers: one for each socket, and one for each host on the network. The
/// controllers have their turns one after the other.
#[derive(Debug)]
pub struct Drive {
    task: TaskId,
    io: Io,
    subsystem: Subsystem,
    sockets: Vec<Socket>,
    hosts: Option<tcp::Hosts>,
    remote_groups: RemoteGroups,
    /// Space without memory, for turns of the subsystem without a host.
    no_memory: Space,
}

/// A socket and the controller for its clients.
#[derive(Debug)]
struct Socket {
    controller: Controller,
    port: vfio_user::Port,
}

impl Drive {
    /// Makes a drive that no host can reach yet. `task` and `io` come from the closure of `Local::add`.
    pub fn new(task: TaskId, io: Io, subsystem: Subsystem) -> Self {
        let (sockets, hosts, remote_groups) = (Vec::new(), None, RemoteGroups::default());
        Self { task, io, subsystem, sockets, hosts, remote_groups, no_memory: Space::new() }
    }

    /// Adds a socket. Its controller gets the next controller identifier, from 1 on.
    ///
    /// # Errors
    /// The drive has [as many](Self::SOCKETS_MAX) sockets as it can have, or no memory is left for another
    /// controller.
    pub fn listen(&mut self, listener: vfio_user::Listener, config: vfio_user::Config) -> io::Result<()> {
        let number = self.sockets.len();
        if number == SOCKETS_MAX {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let controller = Controller::new(&mut self.subsystem, number as u16 + 1)?;
        controller.set_port(&mut self.subsystem, &format!("vfio-user:{}", number + 1));
        let files = self.subsystem.shares_memory();
        let (task, io) = (self.task, self.io.clone());
        let port = vfio_user::Port::new(number as u8, task, io, listener, files, config);
        self.sockets.push(Socket { controller, port });
        self.expect_controllers();
        Ok(())
    }

    /// Admits hosts on the network, too, which a [`Directory`](tcp::Directory) sends here.
    pub fn admit_hosts(&mut self, config: tcp::Config) {
        self.hosts = Some(tcp::Hosts::new(self.task, self.io.clone(), config));
        self.expect_controllers();
    }

    fn expect_controllers(&mut self) {
        let hosts = self.hosts.as_ref().map_or(0, tcp::Hosts::most);
        self.subsystem.expect(self.sockets.len() + hosts);
    }

    /// Most sockets of a drive.
    pub const SOCKETS_MAX: usize = SOCKETS_MAX;

    pub fn subsystem(&self) -> &Subsystem {
        &self.subsystem
    }

    pub fn subsystem_mut(&mut self) -> &mut Subsystem {
        &mut self.subsystem
    }

    pub(crate) fn hosts_mut(&mut self) -> Option<&mut tcp::Hosts> {
        self.hosts.as_mut()
    }

    /// Takes the result of an authentication message of a host.
    pub(crate) fn heard(&mut self, result: tcp::AuthResult, now_ns: u64) {
        let Self { subsystem, hosts, .. } = self;
        if let Some(hosts) = hosts {
            hosts.heard(result, subsystem, now_ns);
        }
    }

    /// Returns the status of each socket, in their order.
    pub fn sockets(&self) -> impl Iterator<Item = vfio_user::Status> {
        // A drive with remote groups has a single socket.
        let remote = self.remote_groups.interrupts();
        self.sockets.iter().map(move |socket| {
            let mut status = socket.port.status();
            status.counters.interrupts += remote;
            status
        })
    }

    /// Returns the status of the hosts on the network, if such hosts are admitted.
    pub fn hosts(&self) -> Option<tcp::Status> {
        self.hosts.as_ref().map(tcp::Hosts::status)
    }

    /// Returns the number of commands in flight, without commands that wait for events that may never come.
    pub fn unfinished(&self) -> u32 {
        let Self { subsystem, sockets, hosts, .. } = self;
        let of_sockets: u32 = sockets.iter().map(|socket| socket.controller.unfinished(subsystem)).sum();
        let of_hosts = hosts.as_ref().map_or(0, |hosts| hosts.unfinished(subsystem));
        subsystem.unfinished() + of_sockets + of_hosts
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
        let Self { subsystem, sockets, hosts, .. } = self;
        subsystem.note_hosts_at_end();
        // The last socket closes first: its folder lies in the folder of the first one.
        for Socket { controller, port } in sockets.iter_mut().rev() {
            port.drain(&mut Attached { controller, subsystem: &mut *subsystem }, now_ns);
        }
        if let Some(hosts) = hosts {
            hosts.drain(subsystem);
        }
    }

    /// Returns whether no host is connected or can connect, and no command is in flight.
    pub fn is_drained(&self) -> bool {
        self.sockets.iter().all(|socket| socket.port.is_drained())
            && self.hosts.as_ref().is_none_or(tcp::Hosts::is_drained)
    }

    fn is_vacant(&self) -> bool {
        self.sockets.iter().all(|socket| socket.port.is_vacant())
            && self.hosts.as_ref().is_none_or(tcp::Hosts::is_vacant)
    }
}

/// Remote queue groups, which other reactors serve.
impl Drive {
    /// Starts the migration of a queue group to a remote task. The group leaves when its commands have ended.
    pub fn migrate_group(&mut self, migration: Migration) {
        let Self { subsystem, sockets, remote_groups, .. } = self;
        match sockets.first_mut() {
            Some(Socket { controller, .. }) => remote_groups.begin(migration, controller, subsystem),
            None => {
                (migration.answer)(Err(CannotMigrate("queues of hosts on the network stay with their drive")))
            }
        }
    }

    /// Returns whether this reactor serves every queue. All work on a drive except reading its state needs
    /// that.
    pub fn is_whole(&self) -> bool {
        self.sockets.iter().all(|socket| socket.controller.has_all_queues())
    }

    /// Recalls the group of a completion queue, which the operator moves, or all groups for an operator's
    /// order.
    pub fn recall_groups(&mut self, queue: Option<u16>, now_ns: u64) {
        let Self { sockets, remote_groups, .. } = self;
        match (queue, sockets.first()) {
            (Some(queue), _) => remote_groups.recall_one(queue),
            (None, Some(socket)) => remote_groups.recall(RecallCause::Operator, socket.port.drive(), now_ns),
            (None, None) => {}
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
        let Self { subsystem, sockets, remote_groups, .. } = self;
        let Some(Socket { controller, port }) = sockets.first_mut() else { return };
        remote_groups.take_back_group(controller, subsystem, group, port, now_ns);
        port.count_interrupts(interrupts);
    }

    /// Returns the remote queue groups, by the identifiers of their completion queues.
    pub fn remote_groups(&self) -> impl Iterator<Item = (u16, &RemoteHandle)> {
        self.remote_groups.handles()
    }

    /// Returns the completion queues of a virtual machine that this reactor serves.
    pub fn here(&self) -> impl Iterator<Item = u16> {
        self.sockets.first().into_iter().flat_map(|socket| socket.controller.queues_here())
    }

    #[cold]
    fn advance_remote_groups(&mut self, now_ns: u64) {
        let Self { task, subsystem, sockets, remote_groups, .. } = self;
        if let Some(Socket { controller, port }) = sockets.first_mut() {
            remote_groups.advance(*task, controller, subsystem, port, now_ns);
        }
    }
}

/// Drop of the sockets, the last one first, as in a drain.
impl Drop for Drive {
    fn drop(&mut self) {
        while self.sockets.pop().is_some() {}
    }
}

impl Task for Drive {
    fn turn(&mut self, now_ns: u64) -> usize {
        let mut work = 0;
        let Self { subsystem, sockets, hosts, .. } = self;
        for Socket { controller, port } in sockets {
            work += port.turn(&mut Attached { controller, subsystem: &mut *subsystem }, now_ns);
        }
        if let Some(hosts) = hosts {
            work += hosts.turn(subsystem, now_ns);
        }
        if self.remote_groups.are_some() {
            self.advance_remote_groups(now_ns);
        }
        if self.is_vacant() {
            // Layers receive events of their devices and functions without a host, too.
            work += self.subsystem.turn(&self.no_memory, now_ns);
        }
        work
    }

    fn look_ahead(&self) {
        match self.sockets.iter().find(|socket| !socket.port.is_vacant()) {
            Some(socket) => socket.controller.look_ahead(),
            None => self.hosts.iter().for_each(tcp::Hosts::look_ahead),
        }
    }

    fn event(&mut self, token: u64, result: i32, more: bool, now_ns: u64) {
        let Self { subsystem, sockets, hosts, .. } = self;
        if let Some(token) = vfio_user::Token::of(token) {
            let Some(Socket { controller, port }) = sockets.get_mut(usize::from(token.port)) else { return };
            port.own_event(&mut Attached { controller, subsystem }, token, result, more, now_ns);
        } else if let Some(token) = tcp::Token::of(token) {
            hosts.iter_mut().for_each(|hosts| hosts.event(token, result, subsystem, now_ns));
        } else {
            subsystem.event(token, result, now_ns);
        }
    }

    fn arm(&mut self, now_ns: u64) -> Arm {
        let Self { subsystem, sockets, hosts, .. } = self;
        let (mut busy, mut armed) = (false, Arm::Asleep { until: None });
        for Socket { controller, port } in sockets {
            match port.arm(&mut Attached { controller, subsystem: &mut *subsystem }, now_ns) {
                Arm::Busy => busy = true,
                Arm::Timed { until } => armed = Arm::Timed { until: armed.until() }.no_later_than(until),
                Arm::Asleep { until } => armed = armed.no_later_than(until),
            }
        }
        if let Some(hosts) = hosts {
            busy |= hosts.arm(subsystem);
            armed = armed.no_later_than(hosts.deadline_ns(subsystem));
        }
        busy |= subsystem.has_work() || subsystem.arm() || self.remote_groups.are_busy();
        if busy {
            self.disarm();
            return Arm::Busy;
        }
        armed.no_later_than(self.subsystem.deadline_ns())
    }

    fn disarm(&mut self) {
        self.sockets.iter_mut().for_each(|socket| socket.controller.disarm());
        self.hosts.iter_mut().for_each(tcp::Hosts::disarm);
        self.subsystem.disarm();
    }
}
