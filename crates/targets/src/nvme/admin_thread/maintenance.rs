//! Orders of the control plane: resets of the device, and firmware.

use super::{AdminThread, Connection, ThreadEvent};
use crate::nvme::error::ErrorKind;
use crate::remote::maintenance::{check_same, commit, download};
use crate::remote::orders::{Maintained, PendingCommit, PendingReset, Reply};
use crate::remote::{
    Activation, CommitLimits, ControllerContext, MaintenanceFault, NamespaceInfo, ResetReport,
};
use sluice_host::Error;
use sluice_nvme::Cns;
use sluice_nvme::identify::IdentifyController;
use std::time::{Duration, Instant};

/// Bytes of data of one command: what the list pages of the admin queue describe.
const PIECE_MAX: usize = 64 << 10;

impl AdminThread {
    /// Calls `act` with the connection. A failure of the device loses it.
    fn with_link<T>(
        &mut self,
        command: &'static str,
        act: impl FnOnce(&mut Connection) -> Result<T, Error>,
    ) -> Result<T, MaintenanceFault> {
        let link = self.link.as_mut().ok_or(MaintenanceFault::NotConnected)?;
        act(link).map_err(|error| {
            self.lose_if_fatal(&error);
            match error.status() {
                Some(status) => MaintenanceFault::Refused { command, status },
                None => MaintenanceFault::Failed(error.to_string()),
            }
        })
    }

    /// Reads the state of the device, and of the namespace of each port.
    fn context(&mut self) -> Result<(ControllerContext, Vec<(u16, NamespaceInfo)>), MaintenanceFault> {
        let controller = self.with_link("Identify Controller", |link| {
            Ok(zerocopy::transmute!(*link.controller.identify(Cns::CONTROLLER, 0)?))
        });
        let controller: IdentifyController = controller?;
        let link = self.link.as_mut().ok_or(MaintenanceFault::NotConnected)?;
        let mut infos = Vec::new();
        for (id, port_state) in (1..).zip(&self.ports) {
            let Some(port_state) = port_state else { continue };
            let info = link.info(port_state.range.nsid);
            infos.push((id, info.map_err(|error| MaintenanceFault::Failed(error.to_string()))?));
        }
        let context = ControllerContext {
            queues: infos.len() as u32,
            namespaces: infos.len() as u32,
            requests_events: link.requests.left().is_none(),
            ..ControllerContext::of(&controller, PIECE_MAX)?
        };
        Ok((context, infos))
    }

    /// Answers a Firmware Commit that has ended.
    pub(super) fn look_at_commit(&mut self) {
        let (Some(link), Some(pending)) = (&mut self.link, &mut self.committing) else { return };
        let is_over = pending.left().is_zero();
        let completion = link.controller.poll_long();
        match completion.and_then(|found| Ok((found, found.is_none() && link.controller.has_failed()?))) {
            Ok((_, true)) => self.lose("it reports a fatal status during a Firmware Commit"),
            Ok((None, _)) if !is_over || pending.is_overdue() => {}
            Ok((None, _)) => self.committing = None,
            Ok((Some(completion), _)) => {
                self.committing.take().into_iter().for_each(|it| it.completed(completion.status()));
            }
            Err(error) => {
                tracing::warn!(device = %self.address, %error, "the end of a Firmware Commit cannot be seen");
                self.lose("its connection failed");
            }
        }
    }

    /// Answers a reset after an attempt to connect that began at `began`, or lets it go on.
    pub(super) fn end_reset(&mut self, began: Instant, error: Option<&ErrorKind>) {
        let Some(mut pending) = self.resetting.take() else { return };
        match error {
            None => {
                let ready = self.link.as_ref().map(|link| link.controller.ready_time());
                pending.reached(began, ready.unwrap_or_default());
                pending.end(self.compare());
            }
            Some(ErrorKind::Replaced) => {
                pending.end(Err(MaintenanceFault::Differs(ErrorKind::Replaced.to_string())));
            }
            Some(error) => self.resetting = pending.failed(error.to_string()),
        }
        if self.resetting.is_none() {
            self.retry.end_reset();
        }
    }
}

impl Maintained for AdminThread {
    fn save(&mut self) -> Result<ControllerContext, MaintenanceFault> {
        let (context, infos) = self.context()?;
        self.saved = infos;
        Ok(context)
    }

    fn compare(&mut self) -> Result<ControllerContext, MaintenanceFault> {
        let (context, infos) = self.context()?;
        for (id, before) in &self.saved {
            let after = infos.iter().find(|(other, _)| other == id);
            after.map_or(Ok(()), |(_, after)| check_same(before, after))?;
        }
        Ok(context)
    }

    fn download(&mut self, offset: u32, piece: &[u8]) -> Result<(), MaintenanceFault> {
        self.with_link("Firmware Image Download", |link| {
            let buffer = link.controller.memory().allocate(piece.len())?;
            buffer.region().write(0, piece);
            let range = buffer.range(0, piece.len() as u32);
            link.controller.admin_with_data(download(offset, piece.len()), range).map(drop)
        })
    }

    fn begin_commit(&mut self, slot: u8, action: u8, limits: CommitLimits, reply: Reply<Activation>) {
        let command = commit(slot, action);
        match self.with_link("Firmware Commit", |link| link.controller.begin_long(command)) {
            Ok(()) => self.committing = Some(PendingCommit::new(reply, limits)),
            Err(fault) => reply.send(Err(fault)),
        }
    }

    fn begin_reset(&mut self, limit: Duration, reply: Reply<ResetReport>) {
        if self.saved.is_empty()
            && let Err(fault) = self.save()
        {
            return reply.send(Err(fault));
        }
        let began = Instant::now();
        let Some(link) = &mut self.link else { return reply.send(Err(MaintenanceFault::NotConnected)) };
        let is_down = link.controller.shutdown();
        let is_reset = link.controller.disable();
        match &is_down {
            Ok(()) => {
                self.ports.iter().flatten().for_each(|port_state| port_state.send(ThreadEvent::Durable));
            }
            Err(error) => {
                tracing::warn!(device = %self.address, %error, "a device was reset without a shutdown")
            }
        }
        if let Err(error) = is_reset {
            tracing::debug!(device = %self.address, %error, "a device did not report the end of its reset");
        }
        let device = began.elapsed();
        self.lose("it is reset by order");
        self.retry.begin_reset();
        self.resetting = Some(PendingReset::new(reply, limit, began, device));
    }
}
