//! The process whose instructions are counted over NVMe/TCP: a host and a controller, with a reactor each.
//! Without a transport the host drives the layers themselves, and the other reactor has nothing to do.
//!
//! Both are as in [`bench tcp`](super::super::tcp), but never sleep: the tracer has them [take
//! turns](super::lockstep).

use super::super::cell::{Above, Mix, Target as Behind};
use super::super::cores::Cores;
use super::super::direct::Direct;
use super::super::server::Server;
use super::super::tcp::{remote, shape};
use super::child::{LENGTH, SIZE, trouble};
use super::halt::{self, Phase};
use super::pool;
use super::scenario::{Function, Operation, Scenario, Side, Target, Transport};
use nix::sys::ptrace;
use nix::unistd::gettid;
use quanta::Clock;
use sluice_control::config::{Idle, Metrics, Settings};
use sluice_spec::error::ApiError;
use sluice_spec::size::Size;
use sluice_spec::{NvmeTcpSpec, Place};
use std::io::Write;
use std::time::Duration;

/// Commands before the count, so that every slot, list and page has been used, and the network has adapted to
/// the load.
pub(super) const WARM_UP: u64 = 2000;

/// Seconds that a side may stand still: the maximum for a command. The limit of a connection is longer.
const TIMEOUT_S: u32 = 60;
const KEEP_ALIVE_S: u32 = 3600;

/// Time in which a new mirror makes its members equal, and more.
const SETTLING: Duration = Duration::from_secs(1);

/// Runs the counted process. Writes the IDs of both threads, the counted one first. In the end it writes the
/// entries of the counted reactor into the kernel.
pub(super) fn run(scenario: &Scenario) -> Result<(), ApiError> {
    let phase = Phase::default();
    let (mut controller, host) = (reactor(scenario.latency)?, reactor(false)?);
    halt::plant(&host, &phase)?;
    halt::plant(&controller, &phase)?;
    let link = match scenario.transport {
        Transport::Direct => drive(scenario, &host)?,
        _ => connect(scenario, &host, &mut controller)?,
    };
    let clock = Clock::new();
    if scenario.target != Target::Null && scenario.operation != Operation::Allocate {
        link.write_everything(&clock)?;
    }
    let mix = if scenario.operation == Operation::Read { Mix::READ } else { Mix::WRITE };
    let shape = shape(LENGTH, scenario.batch, mix);
    let send_seeded = |seed, count| match link.send_seeded(seed, &shape, &clock, count)?.failed {
        0 => Ok(()),
        failed => Err(ApiError::internal(format!("{failed} commands failed"))),
    };
    let send = |count| send_seeded(1, count);
    if matches!(scenario.function, Function::Mirror | Function::Replicate) {
        // The set is opened with the first command, and its members are made equal.
        send(1)?;
        std::thread::sleep(SETTLING);
    }
    send(WARM_UP)?;
    let (counted, other) =
        if scenario.side == Side::Host { (&host, &controller) } else { (&controller, &host) };
    say(&[traced(counted)?, traced(other)?])?;
    let before = halt::asked_for(&counted.reactor()?.counters());
    phase.begin();
    // Writes that allocate are at addresses of their own.
    let seed = if scenario.operation == Operation::Allocate { 2 } else { 1 };
    send_seeded(seed, u64::from(scenario.commands()))?;
    phase.end();
    say(&[halt::asked_for(&counted.reactor()?.counters()) - before])?;
    drop(link);
    controller.close_all()
}

fn reactor(latency: bool) -> Result<Server, ApiError> {
    let idle = Idle { always_poll: true, ..Idle::default() };
    let settings = Settings { idle, ..Settings::default() };
    let metrics = Metrics { latency, ..Metrics::default() };
    Ok(Server::start_with(&Cores { reactor: None, host: None }, settings)?.measured(&metrics))
}

fn connect(scenario: &Scenario, host: &Server, controller: &mut Server) -> Result<Direct, ApiError> {
    let (address, nqn, _) = controller.serve(&behind(scenario)?, false)?;
    let patient =
        NvmeTcpSpec { timeout_s: TIMEOUT_S, keep_alive_s: KEEP_ALIVE_S, ..remote(address, nqn, None) };
    host.open_remote(patient)
}

/// Opens the layers of a scenario on the host's reactor.
fn drive(scenario: &Scenario, host: &Server) -> Result<Direct, ApiError> {
    if scenario.target.is_pool() {
        return pool::open(scenario, host);
    }
    let target = behind(scenario)?;
    let above = match scenario.function {
        Function::Mirror => Above::Mirror,
        Function::Replicate => Above::Replicate,
        _ => return host.open_directly(&target),
    };
    host.open_directly(&Behind::Through(above, Place::Daemon, Box::new(target)))
}

fn behind(scenario: &Scenario) -> Result<Behind, ApiError> {
    match scenario.target {
        Target::Null => Ok(Behind::Null(Size(SIZE))),
        Target::Memory => Ok(Behind::Memory(Size(SIZE))),
        Target::MemoryPool | Target::MemoryPoolWithoutCredit => Err(scenario.impossible()),
    }
}

/// Makes a reactor's thread traced. Returns the ID of the thread.
fn traced(server: &Server) -> Result<u64, ApiError> {
    let id = server.on_reactor(|_| ptrace::traceme().map(|()| gettid()))?;
    id.map(|id| id.as_raw().unsigned_abs().into()).map_err(|error| trouble(&error))
}

fn say(numbers: &[u64]) -> Result<(), ApiError> {
    let words: Vec<String> = numbers.iter().map(u64::to_string).collect();
    writeln!(std::io::stdout(), "{}", words.join(" ")).map_err(|error| trouble(&error))
}
