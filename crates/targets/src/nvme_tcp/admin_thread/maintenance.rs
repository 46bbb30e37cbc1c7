//! Orders of the control plane: resets of the controller, and firmware.

use super::{AdminThread, Connections, Data, ThreadEvent, next_keep_alive};
use crate::nvme_tcp::error::ErrorKind;
use crate::remote::maintenance::{check_same, commit, download};
use crate::remote::orders::{Maintained, PendingCommit, PendingReset, Reply};
use crate::remote::{
    Activation, CommitLimits, ControllerContext, MaintenanceFault, NamespaceInfo, ResetReport,
};
use std::time::{Duration, Instant};

/// Time after which a Keep Alive command that could not be sent is tried again: the one before has no answer yet.
const KEEP_ALIVE_AGAIN: Duration = Duration::from_millis(100);

/// Bytes of data in a capsule of the admin queue (NVMe/TCP 3.4.2.1).
const PIECE_MAX: usize = 8192;

impl From<&ErrorKind> for MaintenanceFault {
    fn from(error: &ErrorKind) -> Self {
        match error {
            ErrorKind::Status(command, status) => Self::Refused { command, status: *status },
            error => Self::Failed(error.to_string()),
        }
    }
}

impl AdminThread {
    /// Calls `act` with the connections. A failure of the connection loses it.
    fn with_connections<T>(
        &mut self,
        act: impl FnOnce(&mut Connections) -> Result<T, ErrorKind>,
    ) -> Result<T, MaintenanceFault> {
        let connections = self.connections.as_mut().ok_or(MaintenanceFault::NotConnected)?;
        let done = act(connections);
        if let Err(error) = &done
            && !matches!(error, ErrorKind::Status(..) | ErrorKind::Incompatible(_) | ErrorKind::Busy)
        {
            self.lose(&error.to_string());
        }
        done.map_err(|error| MaintenanceFault::from(&error))
    }

    /// Compares the namespace of a new connection with the one before a reset, if there was one. `began` is the time of
    /// the attempt.
    pub(super) fn compare_reset(
        &mut self,
        began: Instant,
        connections: &Connections,
        info: &NamespaceInfo,
    ) -> Result<(), MaintenanceFault> {
        let Some(pending) = &mut self.resetting else { return Ok(()) };
        pending.reached(began, connections.association.ready_time);
        self.saved.as_ref().map_or(Ok(()), |saved| check_same(saved, info))
    }

    /// Answers a Firmware Commit that has ended, and sends Keep Alive when due. Returns whether the commit has ended.
    pub(super) fn look_at_commit(&mut self) -> bool {
        let (Some(connections), Some(pending)) = (&mut self.connections, &mut self.committing) else {
            return true;
        };
        let is_over = pending.left().is_zero();
        let is_due = connections.keep_alive_at.is_some_and(|at| Instant::now() >= at);
        let mut kept = Ok(());
        if is_due {
            // Before the answer to the commit is looked for, which would put this off by half the time-out.
            kept = connections.association.send_keep_alive().map(|is_sent| {
                connections.keep_alive_at = match is_sent {
                    true => next_keep_alive(&self.config),
                    false => Some(Instant::now() + KEEP_ALIVE_AGAIN),
                };
            });
        }
        match kept.and_then(|()| connections.association.poll_long()) {
            Ok(None) if !is_over || pending.is_overdue() => return false,
            Ok(None) => self.committing = None,
            Ok(Some(response)) => {
                self.committing.take().into_iter().for_each(|it| it.completed(response.status()));
            }
            // The target is about to give the reason.
            Err(ErrorKind::Abandoned) => self.await_request(),
            Err(error) => self.lose(&error.to_string()),
        }
        true
    }

    /// Answers a reset after an attempt to connect, or lets it go on. `compared` is the result of a connection.
    pub(super) fn end_reset(
        &mut self,
        error: Option<&ErrorKind>,
        compared: Option<Result<(), MaintenanceFault>>,
    ) {
        let Some(pending) = self.resetting.take() else { return };
        match (compared, error) {
            (Some(Err(fault)), _) => pending.end(Err(fault)),
            (_, Some(ErrorKind::Replaced)) => {
                pending.end(Err(MaintenanceFault::Differs(ErrorKind::Replaced.to_string())));
            }
            (_, Some(error)) => self.resetting = pending.failed(error.to_string()),
            (_, None) => {
                let nsid = self.config.nsid;
                let context = self.with_connections(|connections| connections.context(nsid));
                pending.end(context.and_then(|(context, _)| context));
            }
        }
        if self.resetting.is_none() {
            self.retry.end_reset();
        }
    }
}

impl Maintained for AdminThread {
    fn save(&mut self) -> Result<ControllerContext, MaintenanceFault> {
        let nsid = self.config.nsid;
        let (context, info) = self.with_connections(|connections| connections.context(nsid))?;
        self.saved = Some(info);
        context
    }

    fn compare(&mut self) -> Result<ControllerContext, MaintenanceFault> {
        let nsid = self.config.nsid;
        let (context, info) = self.with_connections(|connections| connections.context(nsid))?;
        self.saved.as_ref().map_or(Ok(()), |saved| check_same(saved, &info))?;
        context
    }

    fn download(&mut self, offset: u32, piece: &[u8]) -> Result<(), MaintenanceFault> {
        let entry = download(offset, piece.len());
        self.with_connections(|connections| {
            let association = &mut connections.association;
            association.admin_command(entry, Data::Out(piece), "Firmware Image Download").map(drop)
        })
    }

    fn begin_commit(&mut self, slot: u8, action: u8, limits: CommitLimits, reply: Reply<Activation>) {
        let begun =
            self.with_connections(|connections| connections.association.begin_long(commit(slot, action)));
        match begun {
            Ok(()) => self.committing = Some(PendingCommit::new(reply, limits)),
            Err(fault) => reply.send(Err(fault)),
        }
    }

    fn begin_reset(&mut self, limit: Duration, reply: Reply<ResetReport>) {
        if self.saved.is_none()
            && let Err(fault) = self.save()
        {
            return reply.send(Err(fault));
        }
        let began = Instant::now();
        let Some(connections) = &mut self.connections else {
            return reply.send(Err(MaintenanceFault::NotConnected));
        };
        // A controller ends the connections of its I/O queues with the reset.
        connections.association.admin.tie(None);
        let is_down = connections.association.shut_down();
        let is_reset = is_down.as_ref().map_or(Ok(()), |()| connections.association.disable());
        match &is_down {
            Ok(()) => self.send(ThreadEvent::Durable),
            Err(error) => {
                tracing::warn!(address = %self.config.address, %error, "a controller was reset without a shutdown")
            }
        }
        if let Err(error) = is_reset {
            tracing::debug!(address = %self.config.address, %error, "a controller did not report the end of its reset");
        }
        let device = began.elapsed();
        self.lose("it is reset by order");
        self.retry.begin_reset();
        self.given_up = false;
        self.resetting = Some(PendingReset::new(reply, limit, began, device));
    }
}

impl Connections {
    /// Reads the state of the controller and of its namespace.
    fn context(
        &mut self,
        nsid: u32,
    ) -> Result<(Result<ControllerContext, MaintenanceFault>, NamespaceInfo), ErrorKind> {
        let controller = self.association.identify()?;
        let info = self.association.info(&controller, nsid)?;
        let requests_events = self.association.notice_left().is_none();
        let context = ControllerContext::of(&controller, PIECE_MAX);
        let context = context.map(|it| ControllerContext { queues: 1, namespaces: 1, requests_events, ..it });
        Ok((context, info))
    }
}
