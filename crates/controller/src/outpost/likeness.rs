//! What of a drive has to be the same wherever its queues are served, and what keeps them at home.

use crate::registers::Life;
use crate::{Controller, DoorbellMode, Identity, Namespace, NamespaceConfig, Subsystem};
use sluice_command::Passthrough;
use std::fmt;

/// Why a queue group stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaysHome(pub &'static str);

impl fmt::Display for StaysHome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for StaysHome {}

/// A drive as its commands see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Likeness {
    pub identity: Identity,
    pub namespaces: Vec<NamespaceLikeness>,
}

/// A namespace likewise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceLikeness {
    pub config: NamespaceConfig,
    pub blocks: u64,
    /// Its layers, the topmost first.
    pub layers: Vec<&'static str>,
}

impl Subsystem {
    /// What an outpost has to be like.
    ///
    /// # Errors
    /// There is more to this drive than its blocks, and so its queues stay together.
    pub fn likeness(&self) -> Result<Likeness, StaysHome> {
        if self.is_shared() {
            return Err(StaysHome("the drive is for several hosts"));
        }
        let is_busy = self.is_held()
            || self.erasure.is_some()
            || self.fused.is_busy()
            || self.management.is_busy()
            || !self.orders.are_none();
        if is_busy {
            return Err(StaysHome("the drive is busy with something that takes all of its queues"));
        }
        if self.losses.are_untold() {
            return Err(StaysHome("the host is to be told that acknowledged writes were lost"));
        }
        if self.shares_memory() {
            return Err(StaysHome("a layer of the drive is polled"));
        }
        let namespaces = self.iter().map(Namespace::likeness).collect::<Result<_, _>>()?;
        Ok(Likeness { identity: self.identity.clone(), namespaces })
    }
}

impl Namespace {
    fn likeness(&self) -> Result<NamespaceLikeness, StaysHome> {
        if self.router.is_attached() {
            return Err(StaysHome("a classifier decides on its commands"));
        }
        if self.passthrough() != Passthrough::NONE {
            return Err(StaysHome("commands go on to its device as hosts write them"));
        }
        if self.is_guarded() || !self.reservations.are_none() {
            return Err(StaysHome(
                "a namespace is not open to all: it is reserved, detached, or by its ANA group",
            ));
        }
        if !self.is_plain() || self.is_leaving() || self.is_created() {
            return Err(StaysHome("a namespace is being formatted, has marked blocks, or comes from a pool"));
        }
        let layers = self.router.layers().collect();
        Ok(NamespaceLikeness { config: self.config.clone(), blocks: self.blocks(), layers })
    }
}

impl Controller {
    /// What keeps all of its queues at home.
    pub(super) fn may_be_apart(&self) -> Result<(), StaysHome> {
        let registers = &self.registers;
        if !registers.is_ready() || registers.life != Life::Enabled || registers.is_fatal() {
            return Err(StaysHome("no host is at work with the drive"));
        }
        if registers.is_shutting_down() || registers.is_shut_down() {
            return Err(StaysHome("the host has shut the drive down"));
        }
        if self.apart.waits() {
            return Err(StaysHome("something is to be done that takes all queues"));
        }
        if self.mode == DoorbellMode::Capsules {
            return Err(StaysHome("queues of hosts on the network stay with their drive"));
        }
        if registers.is_weighted() {
            return Err(StaysHome("the host has its queues weighted against each other"));
        }
        if self.interrupts.are_coalesced() {
            return Err(StaysHome("the host has its interrupts coalesced"));
        }
        if self.courier.is_some() {
            return Err(StaysHome("some of the host's memory is not shared"));
        }
        if self.absence.deadline_ns().is_some() {
            return Err(StaysHome("memory of queues is away"));
        }
        if !self.deletions.is_empty() || self.self_test.is_running() {
            return Err(StaysHome("the drive is busy with something that takes all of its queues"));
        }
        Ok(())
    }
}
