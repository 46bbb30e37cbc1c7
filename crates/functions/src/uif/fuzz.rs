//! For fuzzing: the layer, with the keeper's place and the far end of its rings in other hands.

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

/// What the layer's events carry: the keeper has news, the function has replied, the function was rung.
pub const INSTANCE: u32 = ticket::INSTANCE;
pub const REPLIES: u32 = ticket::REPLIES;
pub const SIGNALLED: u32 = ticket::SIGNALLED;

/// Nobody sleeps.
#[derive(Debug)]
struct Silent;

impl Eventfds for Silent {
    fn attach(&mut self, _: OwnedFd, _: OwnedFd) -> io::Result<()> {
        Ok(())
    }

    fn signal(&mut self) {}

    fn detach(&mut self) {}
}

/// Who sends a layer its functions.
#[derive(Debug)]
pub struct Supervisor {
    instance: Arc<InstanceSlot>,
    properties: Properties,
    number: u32,
}

impl Supervisor {
    /// A layer whose function is not there yet, and who brings one.
    pub fn new(properties: Properties, deadline: Duration, on_death: OnDeath) -> (Uif, Self) {
        let config = UifConfig { name: "fuzz".to_owned(), options: Options::default(), deadline, on_death };
        let instance = Arc::new(InstanceSlot::new(&config.name).expect("descriptors"));
        let layer = PreparedUif::new(&config, properties, Arc::clone(&instance));
        let layer = layer.build_with(Box::new(Silent)).expect("memory");
        (layer, Self { instance, properties, number: 0 })
    }

    /// A function connects, and the layer hears of it with [`SEAT`]. What the function has: its rings and arena.
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

    /// The layer wants the function ended.
    pub fn is_killed(&self) -> bool {
        self.instance.is_killed(self.number)
    }

    /// The function has ended, and the layer hears of it with [`SEAT`].
    pub fn end(&self) {
        self.instance.end(self.number);
        self.instance.free_disposed();
    }
}

/// What the daemon makes of these bytes as a function's answer.
///
/// # Errors
/// It refuses them.
pub fn parse_welcome(bytes: &[u8], version: u32) -> Result<Properties, Failure> {
    let (ours, theirs) = pair()?;
    rustix::net::send(&theirs, bytes, SendFlags::empty()).map_err(io::Error::from)?;
    drop(theirs);
    recv_welcome(ours.as_fd(), version, Instant::now() + Duration::from_secs(1), &DeferredClose::default())
}
