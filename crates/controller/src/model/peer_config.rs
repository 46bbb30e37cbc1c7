//! Configuration that an owner and its remote controllers must share, and the obstacles to a migration.

use crate::model::namespace::NamespaceConfig;
use crate::model::{Controller, Namespace, Subsystem};
use crate::state::doorbells::DoorbellMode;
use crate::state::identity::Identity;
use crate::state::latency::Latency;
use crate::state::registers::State;
use crate::state::trace::Tracer;
use sluice_command::Passthrough;
use std::fmt;

/// Reason why a queue group cannot migrate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CannotMigrate(pub &'static str);

impl fmt::Display for CannotMigrate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for CannotMigrate {}

/// Configuration of a drive as its commands see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    pub identity: Identity,
    pub namespaces: Vec<PeerNamespace>,
}

/// Configuration of a namespace as its commands see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerNamespace {
    pub config: NamespaceConfig,
    pub blocks: u64,
    /// Layers, the topmost first.
    pub layers: Vec<&'static str>,
}

impl Subsystem {
    /// Returns the configuration that a remote drive must have.
    ///
    /// # Errors
    /// Commands of this drive need more than its blocks, so its queues stay together.
    pub fn peer_config(&self) -> Result<PeerConfig, CannotMigrate> {
        if self.is_shared() {
            return Err(CannotMigrate("the drive is for several hosts"));
        }
        let is_busy = self.is_held()
            || self.jobs.erasure.is_some()
            || self.has_held_work()
            || self.jobs.management.is_busy()
            || !self.jobs.orders.are_none();
        if is_busy {
            return Err(CannotMigrate("the drive is busy with something that takes all of its queues"));
        }
        if self.latency().and_then(Latency::tracer).is_some_and(Tracer::is_on) {
            return Err(CannotMigrate("its commands are traced"));
        }
        if self.jobs.losses.are_unreported() {
            return Err(CannotMigrate("the host was not notified yet that acknowledged writes were lost"));
        }
        if self.shares_memory() {
            return Err(CannotMigrate("a layer of the drive is polled"));
        }
        let namespaces = self.iter().map(Namespace::peer_config).collect::<Result<_, _>>()?;
        Ok(PeerConfig { identity: self.identity.clone(), namespaces })
    }
}

impl Namespace {
    fn peer_config(&self) -> Result<PeerNamespace, CannotMigrate> {
        if self.router.is_attached() {
            return Err(CannotMigrate("a classifier decides on its commands"));
        }
        if self.passthrough() != Passthrough::NONE {
            return Err(CannotMigrate("commands go on to its device as hosts write them"));
        }
        if self.is_guarded() || !self.reservations.are_none() {
            return Err(CannotMigrate(
                "a namespace is not open to all: it is reserved, detached, or by its ANA group",
            ));
        }
        if !self.is_plain() || self.is_leaving() || self.is_created() {
            return Err(CannotMigrate(
                "a namespace is being formatted, has uncorrectable blocks, or comes from a pool",
            ));
        }
        let layers = self.router.layers().collect();
        Ok(PeerNamespace { config: self.config.clone(), blocks: self.blocks(), layers })
    }
}

impl Controller {
    /// Checks whether queues of this controller may migrate.
    pub(crate) fn may_migrate(&self) -> Result<(), CannotMigrate> {
        let registers = &self.registers;
        if !registers.is_ready() || registers.state != State::Enabled || registers.is_fatal() {
            return Err(CannotMigrate("no host is at work with the drive"));
        }
        if registers.is_shutting_down() || registers.is_shut_down() {
            return Err(CannotMigrate("the host has shut the drive down"));
        }
        if self.remote_groups.waits() {
            return Err(CannotMigrate("something is to be done that takes all queues"));
        }
        if self.doorbell_mode() == DoorbellMode::Capsules {
            return Err(CannotMigrate("queues of hosts on the network stay with their drive"));
        }
        if registers.is_weighted() {
            return Err(CannotMigrate("the host has its queues weighted against each other"));
        }
        if self.interrupts.are_coalesced() {
            return Err(CannotMigrate("the host has its interrupts coalesced"));
        }
        if self.client_dma.is_some() {
            return Err(CannotMigrate("some of the host's memory is not shared"));
        }
        if self.unmapped.deadline_ns().is_some() {
            return Err(CannotMigrate("memory of queues is unmapped"));
        }
        if !self.deletions.is_empty() || self.self_test.is_running() {
            return Err(CannotMigrate("the drive is busy with something that takes all of its queues"));
        }
        Ok(())
    }
}
