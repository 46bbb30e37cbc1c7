//! A drive on a made-up controller, and on nothing else.

use super::fake::Fake;
use super::rig::{config, serve};
use crate::rig::{Drive, Scratch, open, start_reactor};
use sluice_reactor::ReactorHandle;
use sluice_targets::{NvmeTcpConfig, NvmeTcpControl};

pub(crate) struct Lone {
    pub(crate) fake: Fake,
    pub(crate) control: NvmeTcpControl,
    pub(crate) reactor: ReactorHandle,
    drive: Option<Drive>,
    _scratch: Scratch,
}

impl Lone {
    /// Creates a drive of a host with a changed configuration.
    pub(crate) fn new(fake: Fake, told: impl FnOnce(NvmeTcpConfig) -> NvmeTcpConfig) -> Self {
        let (scratch, reactor) = (Scratch::new(), start_reactor());
        let (drive, control) = serve(&scratch, &reactor, "disk", &told(config(fake.address)));
        Self { fake, control, drive: Some(drive), reactor, _scratch: scratch }
    }

    pub(crate) fn disk(&self) -> (sluice_host::Controller, sluice_host::Namespace) {
        let mut host = self.guest();
        let disk = open(&mut host);
        (host, disk)
    }

    pub(crate) fn guest(&self) -> sluice_host::Controller {
        self.drive.as_ref().expect("it is there").guest()
    }
}

impl Drop for Lone {
    fn drop(&mut self) {
        drop(self.drive.take());
        self.reactor.clone().stop();
    }
}
