//! Controller with a socket of its own, as a task of a reactor.

use super::Listener;
use super::port::{Config, Port, Status};
use super::record::{self, HandOverError, IncomingSocket, SocketRecord};
use super::token::Token;
use sluice_controller::Attached;
use sluice_frontend::FrontendToken;
use sluice_reactor::{Arm, Io, Task, TaskId};

/// Controller, its subsystem and the socket on which it is served, to at most one client at a time, and others
/// after it.
///
/// A drive is a [`Drive`](sluice_frontend::Drive). An endpoint is its smaller form, for a single host.
#[derive(Debug)]
pub struct Endpoint {
    port: Port,
    device: Attached,
}

impl Endpoint {
    /// Makes an endpoint. `task` and `io` come from the closure of `Local::add`.
    pub fn new(task: TaskId, io: Io, listener: Listener, device: Attached, config: Config) -> Self {
        let port = Port::new(0, task, io, listener, device.subsystem.shares_memory(), config);
        Self { port, device }
    }

    /// Suspends the endpoint, and returns its record. The drive must be held and settled.
    ///
    /// # Errors
    /// Something cannot be handed over, now or at all. The endpoint is not suspended.
    pub fn hand_over(&mut self, now_ns: u64) -> Result<SocketRecord, HandOverError> {
        let Attached { controller, subsystem } = &mut self.device;
        record::hand_over(&mut self.port, controller, subsystem, now_ns)
    }

    /// Goes on: after a hand-over that was called off, or after the process that handed over has ended.
    pub fn go_on(&mut self) {
        self.port.go_on();
        self.device.subsystem.resume();
    }

    /// Takes an endpoint that another process hands over, with a new device. It stays suspended.
    ///
    /// # Errors
    /// The record does not fit.
    pub fn take_over(
        task: TaskId,
        io: Io,
        socket: IncomingSocket,
        mut device: Attached,
        config: Config,
        now_ns: u64,
    ) -> Result<Self, HandOverError> {
        let Attached { controller, subsystem } = &mut device;
        let port = socket.take_over((0, task, io), controller, subsystem, config, now_ns)?;
        Ok(Self { port, device })
    }

    pub fn device(&self) -> &Attached {
        &self.device
    }

    pub fn device_mut(&mut self) -> &mut Attached {
        &mut self.device
    }

    pub fn status(&self) -> Status {
        self.port.status()
    }

    /// Starts to drain the endpoint. The socket is closed and no client is let in. No more commands are
    /// taken, and those in flight finish. The client is disconnected when it has got their completions.
    /// Remove the task when it [`is_drained`](Self::is_drained).
    pub fn drain(&mut self, now_ns: u64) {
        let Attached { controller, subsystem } = &mut self.device;
        self.port.drain(controller, subsystem, now_ns);
    }

    /// Returns whether no client is connected or can connect, and no command is in flight.
    pub fn is_drained(&self) -> bool {
        self.port.is_drained()
    }
}

impl Task for Endpoint {
    fn turn(&mut self, now_ns: u64) -> usize {
        let Self { port, device: Attached { controller, subsystem } } = self;
        let work = port.turn(controller, subsystem, now_ns);
        match port.is_vacant() {
            // Layers receive events of their devices and functions without a client, too.
            true => work + controller.turn(subsystem, port.space(), now_ns),
            false => work,
        }
    }

    fn look_ahead(&self) {
        self.device.controller.look_ahead();
    }

    fn event(&mut self, token: u64, result: i32, more: bool, now_ns: u64) {
        let Self { port, device: Attached { controller, subsystem } } = self;
        let Some(token) = FrontendToken::of(token) else {
            return subsystem.event(token, result, now_ns);
        };
        if let Some(token) = Token::of(token) {
            port.own_event(controller, subsystem, token, result, more, now_ns);
        }
    }

    fn arm(&mut self, now_ns: u64) -> Arm {
        if self.port.is_suspended() {
            return Arm::Asleep { until: None };
        }
        let Attached { controller, subsystem } = &mut self.device;
        let armed = match self.port.arm(controller, subsystem, now_ns) {
            Arm::Busy => Arm::Busy,
            _ if self.port.is_vacant() && controller.arm(subsystem) || subsystem.arm() => Arm::Busy,
            armed => armed.no_later_than(self.device.deadline_ns()),
        };
        if armed == Arm::Busy {
            self.device.disarm();
        }
        armed
    }

    fn disarm(&mut self) {
        self.device.disarm();
    }
}
