//! Access for fuzzing: the layer, with a fuzzer as its supervisor and at the far end of its rings.

use super::deferred_close::DeferredClose;
use super::eventfds::{Eventfds, ticket};
use super::handshake::{Link, make_rings, pair, recv_welcome};
use super::instance::InstanceSlot;
use super::layer::Uif;
use super::peer::Incoming;
use super::{OnDeath, PreparedUif, UifConfig};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::SendFlags;
use sluice_memory::SharedRegion;
use sluice_uif::abi::Header;
use sluice_uif::ring::Rings;
use sluice_uif::{Failure, Options, Properties};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tickets of the layer's events: the instance slot has changed, the function has replied, a signal is done.
pub const INSTANCE: u32 = ticket::INSTANCE;
pub const REPLIES: u32 = ticket::REPLIES;
pub const SIGNALLED: u32 = ticket::SIGNALLED;

/// Eventfds without a function that sleeps.
#[derive(Debug)]
struct Silent;

impl Eventfds for Silent {
    fn attach(&mut self, _: OwnedFd, _: OwnedFd) -> io::Result<()> {
        Ok(())
    }

    fn signal(&mut self) {}

    fn detach(&mut self) {}
}

/// Source of a layer's instances.
#[derive(Debug)]
pub struct Supervisor {
    instance: Arc<InstanceSlot>,
    properties: Properties,
    number: u32,
}

impl Supervisor {
    /// Returns a layer without an instance, and the source of its instances.
    pub fn new(properties: Properties, deadline: Duration, on_death: OnDeath) -> (Uif, Self) {
        let config = UifConfig {
            name: "fuzz".to_owned(),
            options: Options::default(),
            deadline,
            on_death,
            size: None,
            atomic_write: None,
            reports_loss_once: false,
        };
        let instance = Arc::new(InstanceSlot::new(&config.name).expect("descriptors"));
        let layer = PreparedUif::new(&config, properties, Arc::clone(&instance));
        let layer = layer.build_with(Box::new(Silent)).expect("memory");
        (layer, Self { instance, properties, number: 0 })
    }

    /// Connects a function, which the layer sees at [`INSTANCE`]. Returns the function's rings and arena.
    pub fn connect(&mut self, version: u32, entries: u32, arena_bytes: usize) -> (Rings, SharedRegion) {
        let header = Header { version, entries, arena_bytes: arena_bytes as u64, ..Header::default() };
        let rings = make_rings(header).expect("memory");
        let arena = SharedRegion::new("arena", arena_bytes).expect("memory");
        let fd = arena.fd().try_clone_to_owned().expect("a descriptor");
        let theirs = SharedRegion::from_fd(fd, 0, arena_bytes).expect("memory");
        let bell = || eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor");
        let (doorbell, bell, properties) = (bell(), bell(), self.properties);
        self.number += 1;
        let link = Link { version, rings: rings.clone(), arena, doorbell, bell, properties };
        self.instance.offer(self.number, Incoming::External(link));
        (rings, theirs)
    }

    /// Returns whether the layer has requested the end of the function.
    pub fn is_killed(&self) -> bool {
        self.instance.is_killed(self.number)
    }

    /// Ends the function, which the layer sees at [`INSTANCE`].
    pub fn end(&self) {
        self.instance.end(self.number);
        self.instance.free_disposed();
    }
}

/// Parses these bytes as a function's answer.
///
/// # Errors
/// The bytes are refused.
pub fn parse_welcome(bytes: &[u8], version: u32) -> Result<Properties, Failure> {
    let (ours, theirs) = pair()?;
    rustix::net::send(&theirs, bytes, SendFlags::empty()).map_err(io::Error::from)?;
    drop(theirs);
    recv_welcome(ours.as_fd(), version, Instant::now() + Duration::from_secs(1), &DeferredClose::default())
}
