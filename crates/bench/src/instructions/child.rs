//! The process whose instructions are counted: one thread, one controller, one host.
//!
//! The process stops itself (SIGSTOP) before and after the counted work: first around nothing, which gives
//! the cost of the stops, then around each turn of the side in question.

use super::super::cell::{BlockSize, Drives, Mix, Pattern, QueueDepth, Queues, Shape};
use super::super::client::{Client as Measuring, Stream};
use super::super::load::Counter;
use super::classifier;
use super::loopback::Device;
use super::mark::Mark;
use super::scenario::{Classifier, Function, Operation, RING, Scenario, Side, Target, Transport};
use super::tcp;
use nix::sys::ptrace;
use quanta::Clock;
use sluice_command::{Layer, StackBuilder};
use sluice_controller::{
    Attached, Config, Identity, LatencyClock, Namespace, NamespaceConfig, TRACE_EVERY, TraceChoice, TraceRing,
};
use sluice_functions::{Delay, DelayConfig, Fault, Pass, PassConfig, Qos, QosLimits};
use sluice_host::{
    Controller as Host, DmaBuffer, Error as HostError, PciTransport, QueueLayout, QueuePair, Settings, entry,
};
use sluice_router::{Context, RouterBuilder, Verdict};
use sluice_spec::error::ApiError;
use sluice_spec::size::Size;
use sluice_targets::{Memory, Null};
use std::fmt::Display;
use std::hint::black_box;
use std::sync::Arc;

/// Bytes of a read or write.
pub(super) const LENGTH: u32 = 4096;
const BLOCK: u32 = 512;
const NSID: u32 = 1;
/// Bytes of the drive.
pub(super) const SIZE: u64 = 16 << 20;

/// The host's side of the one queue pair.
struct Client {
    queue: QueuePair,
    /// Buffer for the data of a round of the ring.
    data: DmaBuffer,
    operation: Operation,
    /// Address of the next command, in transfers.
    next: u32,
    /// Host, kept for its admin queue.
    _host: Host,
}

/// Runs the counted process of a scenario.
pub(super) fn run(scenario: &Scenario) -> Result<(), ApiError> {
    if !scenario.is_possible() {
        return Err(scenario.impossible());
    }
    match (scenario.transport, scenario.side) {
        (_, Side::Call) => run_calls(scenario),
        (Transport::Pcie, Side::Controller) => run_controller(scenario),
        (Transport::Pcie, Side::Host) => run_host(scenario),
        (Transport::Tcp | Transport::Direct, _) => tcp::run(scenario),
    }
}

/// Counts calls of a classifier: of a native one by a pointer to a function, of one in eBPF as the router
/// calls it.
fn run_calls(scenario: &Scenario) -> Result<(), ApiError> {
    match scenario.classifier {
        Classifier::NativeWindow => {
            let (mut windows, native) =
                (classifier::Windows::new(), black_box(classifier::decide as classifier::Native));
            count_calls(scenario, move |context| native(&mut windows, context))
        }
        Classifier::EbpfWindow => {
            let mut program = classifier::ebpf_window()?;
            count_calls(scenario, move |context| program.classify(context).unwrap_or(Verdict::hold()))
        }
        other => Err(ApiError::invalid(format!("the classifier {} is not called alone", other.word()))),
    }
}

fn count_calls(scenario: &Scenario, mut call: impl FnMut(&mut Context) -> Verdict) -> Result<(), ApiError> {
    let mut commands = classifier::commands();
    let mut calls = |count: u32| {
        for index in 0..count as usize {
            let which = index % commands.len();
            black_box(call(black_box(&mut commands[which])));
        }
    };
    calls(RING);
    ptrace::traceme().map_err(|error| trouble(&error))?;
    counted(&mut || {});
    for _ in 0..scenario.turns() {
        counted(&mut || calls(scenario.batch));
    }
    Ok(())
}

/// Counts the turns of the controller.
fn run_controller(scenario: &Scenario) -> Result<(), ApiError> {
    let operation = scenario.operation;
    let start = move |transport| Client::start(transport, operation).map_err(|error| trouble(&error));
    let (mut device, mut client) = set_up(scenario, start)?;
    // Two rounds of the ring, so that every slot, list and page has been used before.
    for _ in 0..(2 * RING).div_ceil(scenario.batch) {
        client.submit(scenario.batch)?;
        device.turn();
        client.reap(scenario.batch)?;
    }
    ptrace::traceme().map_err(|error| trouble(&error))?;
    counted(&mut || {});
    for _ in 0..scenario.turns() {
        client.submit(scenario.batch)?;
        counted(&mut || device.turn());
        client.reap(scenario.batch)?;
    }
    Ok(())
}

/// Counts the turns of a host that keeps a queue at the depth of the scenario.
fn run_host(scenario: &Scenario) -> Result<(), ApiError> {
    let shape = Shape {
        block_size: BlockSize(LENGTH),
        queue_depth: QueueDepth(scenario.batch),
        queues: Queues(1),
        pattern: Pattern::Random,
        mix: Mix::READ,
        drives: Drives(1),
    };
    let start = move |transport| {
        let mut host = Measuring::over(transport)?;
        let streams = host.open_streams(&shape, 0)?;
        Ok((host, streams))
    };
    let (mut device, (_host, mut streams)) = set_up(scenario, start)?;
    let clock = Clock::new();
    let mut counter = Counter::new(&clock);
    let stream = streams.first_mut().ok_or_else(|| ApiError::internal("there is no queue"))?;
    for _ in 0..(2 * RING).div_ceil(scenario.batch) {
        counter.fill_up(stream)?;
        device.turn();
    }
    ptrace::traceme().map_err(|error| trouble(&error))?;
    counted(&mut || {});
    for _ in 0..scenario.turns() {
        host_turn(stream, &mut counter)?;
        device.turn();
    }
    Ok(())
}

fn host_turn(stream: &mut Stream, counter: &mut Counter<'_>) -> Result<(), ApiError> {
    let mut done = Ok(());
    counted(&mut || done = counter.fill_up(stream));
    done
}

/// Creates a controller on this thread, and a host for it on a second thread.
fn set_up<T: Send + 'static>(
    scenario: &Scenario,
    start: impl FnOnce(Arc<dyn PciTransport>) -> Result<T, ApiError> + Send + 'static,
) -> Result<(Device, T), ApiError> {
    let controller = controller(scenario)?;
    let (mut device, transport, orders) = Device::new(controller).map_err(|error| trouble(&error))?;
    let host = std::thread::spawn(move || start(transport));
    let host = device.obey(orders, host).map_err(|_| ApiError::internal("the host's thread panicked"))?;
    Ok((device, host?))
}

/// Stops before and after `work`. The function is never inlined and always called through a pointer, so that
/// only the work differs from one call to the next.
#[inline(never)]
fn counted(work: &mut dyn FnMut()) {
    Mark::Work.stop();
    work();
    Mark::Work.stop();
}

pub(super) fn trouble(error: &impl Display) -> ApiError {
    ApiError::internal(format!("the process to be counted cannot start: {error}"))
}

fn controller(scenario: &Scenario) -> Result<Attached, ApiError> {
    let mut stack = StackBuilder::new();
    let target: Box<dyn Layer> = match scenario.target {
        Target::Null => Box::new(Null::new(SIZE)),
        Target::Memory => Box::new(Memory::new(SIZE).map_err(|error| trouble(&error))?),
        // A pool needs a reactor, and is driven directly.
        Target::MemoryPool | Target::MemoryPoolWithoutCredit => return Err(scenario.impossible()),
    };
    let bottom = stack.add(target, &[]).map_err(|error| trouble(&error))?;
    if let Some(function) = function(scenario.function) {
        stack.add(function, &[bottom]).map_err(|error| trouble(&error))?;
    }
    let config = NamespaceConfig { nsid: NSID, block_size: BLOCK, uuid: [1; 16] };
    let mut router = RouterBuilder::new(stack.build());
    if let Some(classifier) = classifier::make(scenario.classifier)? {
        router = router.classifier(classifier);
    }
    let namespace = Namespace::new(config, router.build());
    let namespaces = vec![namespace.map_err(|error| trouble(&error))?];
    let config = Config { identity: identity(), namespaces };
    let mut attached = Attached::new(config).map_err(|error| trouble(&error))?;
    if scenario.latency {
        attached.subsystem.measure_latency(LatencyClock::new(), Arc::default());
    }
    if scenario.trace {
        // The clock stands still: no command is traced for the time that has passed.
        let choice = TraceChoice { every: TRACE_EVERY, slow_ns: 0 };
        attached.subsystem.begin_trace(Arc::new(TraceRing::new(LatencyClock::mock().0, choice)));
    }
    Ok(attached)
}

fn function(function: Function) -> Option<Box<dyn Layer>> {
    match function {
        // A mirror needs a reactor, and is driven directly.
        Function::None | Function::Mirror | Function::Replicate => None,
        Function::Pass => Some(Box::new(Pass::new(PassConfig { watch: false }))),
        Function::PassWatching => Some(Box::new(Pass::new(PassConfig { watch: true }))),
        Function::Delay => Some(Box::new(Delay::new(DelayConfig::default()))),
        Function::Fault => Some(Box::new(Fault::new(1, Vec::new()))),
        Function::Qos => Some(Box::new(Qos::alone(QosLimits::default(), 0, 1024))),
        // All counted turns are in the first nanosecond, in which a million commands come.
        Function::QosLimited => {
            let (iops, bandwidth, burst_ms) = (Some(1 << 50), Some(Size(1 << 62)), Some(1000));
            let limits = QosLimits { iops, bandwidth, burst_ms, ..QosLimits::default() };
            Some(Box::new(Qos::alone(limits, 0, 1024)))
        }
    }
}

fn identity() -> Identity {
    Identity {
        subnqn: "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001".to_owned(),
        serial: "1".to_owned(),
        model: "counted".to_owned(),
        firmware: "1".to_owned(),
    }
}

impl Client {
    fn start(transport: Arc<dyn PciTransport>, operation: Operation) -> Result<Self, HostError> {
        let mut host = Host::start(transport, Settings::default())?;
        host.set_queue_count(1)?;
        let layout = QueueLayout { entries: RING, max_transfer: LENGTH as usize };
        let queue = host.create_queue_pair(1, layout, None)?;
        let data = host.memory().allocate((RING * LENGTH) as usize)?;
        Ok(Self { queue, data, operation, next: 0, _host: host })
    }

    /// Puts commands in the queue and rings.
    fn submit(&mut self, count: u32) -> Result<(), ApiError> {
        for _ in 0..count {
            let data = self.data.range((self.next * LENGTH) as usize, LENGTH);
            let (slba, blocks) = (u64::from(self.next * (LENGTH / BLOCK)), LENGTH / BLOCK);
            let cid = match self.operation {
                Operation::Read => self.queue.submit_prp(entry::read(NSID, slba, blocks), data),
                Operation::Write | Operation::Allocate => {
                    self.queue.submit_prp(entry::write(NSID, slba, blocks), data)
                }
                Operation::Flush => self.queue.submit(entry::flush(NSID)),
            };
            cid.ok_or_else(|| ApiError::internal("a command of the last turn is still in flight"))?;
            self.next = (self.next + 1) % RING;
        }
        self.queue.ring().map_err(|error| trouble(&error))
    }

    /// Takes the completions of a turn, which must all be successful.
    fn reap(&mut self, count: u32) -> Result<(), ApiError> {
        let mut good = 0;
        self.queue.reap(|completion| good += u32::from(completion.status().is_success()));
        match good == count {
            true => Ok(()),
            false => Err(ApiError::internal(format!("{good} of {count} commands came back in their turn"))),
        }
    }
}
