//! A socket of a drive: one controller, and the port on which its clients are served.

use super::port::{Config, Port, Status};
use super::record::{self, HandOverError, IncomingSocket, SocketRecord};
use super::token::Token;
use super::{Listener, PORTS_MAX};
use sluice_controller::{CannotHandOver, CannotMigrate, Controller, Subsystem};
use sluice_frontend::{Drive, Frontend, FrontendToken, GroupClient, GroupOwner, NvmeFrontend, Served};
use sluice_memory::Space;
use sluice_reactor::Arm;
use std::io;
use std::os::fd::OwnedFd;

/// Sockets for virtual machines that a drive can have.
pub const SOCKETS_MAX: usize = 8;

const _: () = assert!(SOCKETS_MAX <= PORTS_MAX, "tokens can name them");

/// Socket of a drive, with the controller for its clients.
#[derive(Debug)]
pub struct Socket {
    controller: Controller,
    port: Port,
}

impl Socket {
    /// Adds a socket to a drive. Its controller gets the next controller identifier, from 1 on.
    ///
    /// # Errors
    /// The drive has [as many](SOCKETS_MAX) sockets as it can have, or no memory is left for another
    /// controller.
    pub fn listen(drive: &mut Drive, listener: Listener, config: Config) -> io::Result<()> {
        let count = drive.frontends::<Self>().count();
        if count == SOCKETS_MAX {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        drive.add(|new| {
            let controller = Controller::new(new.subsystem, count as u16 + 1)?;
            controller.set_port(new.subsystem, &format!("vfio-user:{}", count + 1));
            let files = new.subsystem.shares_memory();
            let port = Port::new(new.number, new.task, new.io, listener, files, config);
            Ok(Self { controller, port })
        })
    }

    /// Checks whether another process can continue all sockets of a drive. Nothing is touched.
    ///
    /// # Errors
    /// The state of a controller is not one that a record has.
    pub fn may_hand_over(drive: &Drive) -> Result<(), CannotHandOver> {
        drive.frontends::<Self>().try_for_each(|socket| socket.controller.may_hand_over())
    }

    /// Drops what would keep a drive from settling although no host waits for it.
    pub fn settle(drive: &mut Drive) {
        let (sockets, subsystem) = drive.frontends_mut::<Self>();
        sockets.for_each(|socket| socket.controller.drop_stale_notices(subsystem));
    }

    /// Suspends all sockets of a drive that is held and settled, and returns their records in their order.
    ///
    /// # Errors
    /// Something cannot be handed over, now or at all. All sockets go on.
    pub fn hand_over(drive: &mut Drive, now_ns: u64) -> Result<Vec<SocketRecord>, HandOverError> {
        let (sockets, subsystem) = drive.frontends_mut::<Self>();
        let hand_over =
            |socket: &mut Self| record::hand_over(&mut socket.port, &socket.controller, subsystem, now_ns);
        let records: Result<Vec<_>, _> = sockets.map(hand_over).collect();
        if records.is_err() {
            drive.frontends_mut::<Self>().0.for_each(|socket| socket.port.go_on());
        }
        records
    }

    /// Lets all sockets of a drive and its subsystem go on: after a hand-over that was called off, or after the
    /// process that handed over has ended.
    pub fn go_on(drive: &mut Drive, now_ns: u64) {
        let (sockets, subsystem) = drive.frontends_mut::<Self>();
        subsystem.resume();
        sockets.for_each(|socket| {
            socket.port.go_on();
            socket.controller.repeat(subsystem, socket.port.space(), now_ns);
        });
    }

    /// Begins to keep all sockets of a drive, and returns whether there are some.
    pub fn keep(drive: &mut Drive, now_ns: u64) {
        let (sockets, _) = drive.frontends_mut::<Self>();
        sockets.for_each(|socket| socket.port.keep(&mut socket.controller, now_ns));
    }

    /// Returns the records of all sockets of a drive at work.
    ///
    /// # Errors
    /// Something is under way that only this process can finish.
    pub fn records(drive: &Drive, now_ns: u64) -> Result<Vec<SocketRecord>, HandOverError> {
        let record =
            |socket: &Self| record::keep(&socket.port, &socket.controller, drive.subsystem(), now_ns);
        drive.frontends::<Self>().map(record).collect()
    }

    /// Sends everything that has waited for records, after they were kept.
    pub fn kept(drive: &mut Drive, now_ns: u64) {
        let (sockets, subsystem) = drive.frontends_mut::<Self>();
        sockets.for_each(|socket| socket.port.kept(&mut socket.controller, subsystem, now_ns));
    }

    /// Sends everything that waits for records, although they could not be kept yet.
    pub fn let_go(drive: &mut Drive, now_ns: u64) {
        let (sockets, subsystem) = drive.frontends_mut::<Self>();
        sockets.for_each(|socket| socket.port.let_go(&mut socket.controller, subsystem, now_ns));
    }

    /// Keeps no records any more.
    pub fn stop_keeping(drive: &mut Drive, now_ns: u64) {
        let (sockets, subsystem) = drive.frontends_mut::<Self>();
        sockets.for_each(|socket| socket.port.stop_keeping(&mut socket.controller, subsystem, now_ns));
    }

    /// Adds a socket of another process to a drive, in place of [`listen`](Self::listen). It stays suspended, and
    /// its paths stay when it is dropped, until it [goes on](Self::go_on).
    ///
    /// # Errors
    /// The record does not fit.
    pub fn take_over(
        drive: &mut Drive,
        socket: IncomingSocket,
        config: Config,
        now_ns: u64,
    ) -> Result<(), HandOverError> {
        let count = drive.frontends::<Self>().count();
        let mut failed = None;
        let added = drive.add(|new| {
            let mut controller = Controller::new(new.subsystem, count as u16 + 1)?;
            controller.set_port(new.subsystem, &format!("vfio-user:{}", count + 1));
            let at = (new.number, new.task, new.io);
            match socket.take_over(at, &mut controller, new.subsystem, config, now_ns) {
                Ok(port) => Ok(Self { controller, port }),
                Err(error) => {
                    failed = Some(error);
                    Err(io::ErrorKind::InvalidData.into())
                }
            }
        });
        added.map_err(|error| failed.unwrap_or(HandOverError::Io(error)))
    }

    /// Returns the status of each socket of a drive, in their order.
    pub fn statuses(drive: &Drive) -> impl Iterator<Item = Status> {
        // A drive with remote groups has a single socket.
        let remote = drive.remote_interrupts();
        drive.frontends::<Self>().map(move |socket| {
            let mut status = socket.port.status();
            status.counters.interrupts += remote;
            status
        })
    }
}

impl Frontend for Socket {
    type Backend = Subsystem;

    fn turn(&mut self, subsystem: &mut Subsystem, now_ns: u64) -> Served {
        let Self { controller, port } = self;
        let work = port.turn(controller, subsystem, now_ns);
        Served { work, is_vacant: port.is_vacant() }
    }

    fn look_ahead(&self) -> bool {
        if self.port.is_vacant() {
            return false;
        }
        self.controller.look_ahead();
        true
    }

    fn event(
        &mut self,
        subsystem: &mut Subsystem,
        token: FrontendToken,
        result: i32,
        more: bool,
        now_ns: u64,
    ) {
        let Self { controller, port } = self;
        if let Some(token) = Token::of(token) {
            port.own_event(controller, subsystem, token, result, more, now_ns);
        }
    }

    fn is_suspended(&self) -> bool {
        self.port.is_suspended()
    }

    fn arm(&mut self, subsystem: &mut Subsystem, now_ns: u64) -> Arm {
        let Self { controller, port } = self;
        port.arm(controller, subsystem, now_ns)
    }

    fn disarm(&mut self) {
        self.controller.disarm();
    }

    fn drain(&mut self, subsystem: &mut Subsystem, now_ns: u64) {
        let Self { controller, port } = self;
        port.drain(controller, subsystem, now_ns);
    }

    fn is_drained(&self) -> bool {
        self.port.is_drained()
    }

    fn unfinished(&self, subsystem: &Subsystem) -> u32 {
        self.controller.unfinished(subsystem)
    }

    fn hosts_max(&self) -> usize {
        1
    }
}

impl NvmeFrontend for Socket {
    fn needs_record(&self) -> bool {
        self.port.needs_record(&self.controller)
    }

    fn migratable(&self) -> Option<&Controller> {
        Some(&self.controller)
    }

    fn group_owner(&mut self) -> Option<GroupOwner<'_>> {
        let Self { controller, port } = self;
        Some(GroupOwner { controller, client: port })
    }
}

impl GroupClient for Port {
    fn drive(&self) -> &str {
        Port::drive(self)
    }

    fn space(&self) -> &Space {
        Port::space(self)
    }

    fn interrupt_of(&self, vector: Option<u16>) -> Result<Option<OwnedFd>, CannotMigrate> {
        Port::interrupt_of(self, vector)
    }

    fn count_interrupts(&mut self, interrupts: u64) {
        Port::count_interrupts(self, interrupts);
    }
}
