//! For fuzzing: the layer, with the keeper's place and the far end of its rings in other hands.

use super::closing::Closing;
use super::layer::Uif;
use super::offer::{Link, hear, make_rings, pair};
use super::peer::Comer;
use super::seat::Seat;
use super::wires::{Wires, ticket};
use super::{OnDeath, UifConfig, UifSeed};
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
pub const SEAT: u32 = ticket::SEAT;
pub const BELL: u32 = ticket::BELL;
pub const RUNG: u32 = ticket::RUNG;

/// Nobody sleeps.
#[derive(Debug)]
struct Silent;

impl Wires for Silent {
    fn attach(&mut self, _: OwnedFd, _: OwnedFd) -> io::Result<()> {
        Ok(())
    }

    fn ring(&mut self) {}

    fn detach(&mut self) {}
}

/// Who sends a layer its functions.
#[derive(Debug)]
pub struct Keeper {
    seat: Arc<Seat>,
    properties: Properties,
    number: u32,
}

impl Keeper {
    /// A layer whose function is not there yet, and who brings one.
    pub fn new(properties: Properties, deadline: Duration, on_death: OnDeath) -> (Uif, Self) {
        let config = UifConfig { name: "fuzz".to_owned(), options: Options::default(), deadline, on_death };
        let seat = Arc::new(Seat::new(&config.name).expect("descriptors"));
        let layer = UifSeed::new(&config, properties, Arc::clone(&seat));
        let layer = layer.build_with(Box::new(Silent)).expect("memory");
        (layer, Self { seat, properties, number: 0 })
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
        self.seat.arrive(self.number, Comer::There(link));
        (rings, theirs)
    }

    /// The layer wants the function ended.
    pub fn is_condemned(&self) -> bool {
        self.seat.is_condemned(self.number)
    }

    /// The function has ended, and the layer hears of it with [`SEAT`].
    pub fn end(&self) {
        self.seat.end(self.number);
        self.seat.quiet();
    }
}

/// What the daemon makes of these bytes as a function's answer.
///
/// # Errors
/// It refuses them.
pub fn welcome(bytes: &[u8], version: u32) -> Result<Properties, Failure> {
    let (ours, theirs) = pair()?;
    rustix::net::send(&theirs, bytes, SendFlags::empty()).map_err(io::Error::from)?;
    drop(theirs);
    hear(ours.as_fd(), version, Instant::now() + Duration::from_secs(1), &Closing::default())
}
