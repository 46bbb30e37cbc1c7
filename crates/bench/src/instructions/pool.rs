//! A namespace in a pool of memory, driven directly.
//!
//! The pool's home is on the same reactor. So a count has both sides: the work of the drive, and the work of the home
//! for its requests.

use super::super::direct::Direct;
use super::super::server::Server;
use super::child::{SIZE, trouble};
use super::scenario::{Operation, Scenario, Target};
use super::tcp::WARM_UP;
use sluice_spec::error::ApiError;
use sluice_targets::{EXTENT, MemoryPool};

/// Unwritten extents: more than a drive has in advance.
const SPARE: u64 = 128;

/// Bytes of a drive whose writes allocate: so many that hardly two commands of a count meet in an extent.
const WIDE: u64 = 1 << 40;

/// Opens a namespace in a pool of its own. The pool lives as long as the reactor.
pub(super) fn open(scenario: &Scenario, host: &Server) -> Result<Direct, ApiError> {
    let (size, extents) = match scenario.operation {
        Operation::Allocate => (WIDE, WARM_UP + u64::from(scenario.commands())),
        _ => (SIZE, SIZE / EXTENT),
    };
    let reactor = host.reactor()?;
    let pool = MemoryPool::start(reactor, (extents + SPARE) * EXTENT).map_err(|error| trouble(&error))?;
    let port = pool.connect().map_err(|error| trouble(&error))?;
    let port = match scenario.target {
        Target::MemoryPoolWithoutCredit => port.without_credit(),
        _ => port,
    };
    Direct::open_in_pool(port, size, reactor.clone())
}
