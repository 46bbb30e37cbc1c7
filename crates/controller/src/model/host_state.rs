//! State of a controller that depends on its host, for a controller that serves a queue group elsewhere.

use crate::model::Controller;
use crate::state::doorbells::{DoorbellMode, Doorbells, Shadow};
use crate::state::features::Features;
use crate::state::registers::Registers;
use std::io;

/// Doorbells, registers and features with which a host's queues are served.
#[derive(Debug)]
pub(crate) struct HostState {
    doorbells: Doorbells,
    registers: Registers,
    features: Features,
    mode: DoorbellMode,
}

impl HostState {
    /// Takes the shadow doorbells, which hold host memory.
    pub(crate) fn take_shadow(&mut self) -> Option<Shadow> {
        self.doorbells.take_shadow()
    }
}

impl Controller {
    /// Shares the doorbells, and copies the other state. The Keep Alive Timer stays here.
    ///
    /// # Errors
    /// There is no memory for the doorbells.
    pub(crate) fn share_host_state(&mut self) -> io::Result<HostState> {
        Ok(HostState {
            doorbells: self.doorbells.share()?,
            registers: self.registers.clone(),
            features: self.features.without_keep_alive(),
            mode: self.mode,
        })
    }

    /// Takes over the state with which another controller has served a queue group.
    pub(crate) fn adopt(&mut self, host: HostState) {
        let HostState { doorbells, registers, features, mode } = host;
        (self.doorbells, self.registers, self.features, self.mode) = (doorbells, registers, features, mode);
    }

    /// Takes the shadow doorbells, which hold host memory.
    pub(crate) fn take_shadow(&mut self) -> Option<Shadow> {
        self.doorbells.take_shadow()
    }
}
