//! A target driven directly: its layers and nothing else, on the same reactor.
//!
//! The difference to a drive on the same target is the cost of the controller, the queues and the host.

use super::cell::Shape;
use super::client::trouble;
use super::cores::process_cpu_ns;
use super::histogram::Histogram;
use super::tally::Tally;
use super::workload::{Geometry, Workload};
use quanta::Clock;
use sluice_command::{Command, Limits, NodeId, Operation, Origin, Request, Slab, Stack, Ticket};
use sluice_memory::{SharedRegion, Space};
use sluice_nvme::{SubmissionEntry, opcode};
use sluice_reactor::{Arm, Io, Local, ReactorHandle, Task, TaskId};
use sluice_spec::DriveSpec;
use sluice_spec::error::ApiError;
use sluice_targets::PoolPort;
use sluice_wiring::{PreparedNamespace, StackControl, StackControls};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// Time limit of the last commands of a run, or of a run without a time.
const PATIENCE: Duration = Duration::from_secs(600);

/// Maximum number of slow commands that are recorded.
const SLOW_MAX: usize = 1 << 20;

/// Seed of a load's addresses.
const SEED: u64 = 1;

/// Bytes of a block: the unit in which a [`Workload`] counts.
const BLOCK: u32 = 512;

/// The control thread's side.
#[derive(Debug)]
pub(super) struct Direct {
    reactor: ReactorHandle,
    task: TaskId,
    /// Bytes of the target.
    size: u64,
    /// Controls of the stacks; the processes of their functions end when these are dropped.
    controls: StackControls,
}

impl Direct {
    /// Opens the first namespace of a drive, without the drive.
    pub(super) fn open(spec: &DriveSpec, reactor: ReactorHandle) -> Result<Self, ApiError> {
        let (prepared, controls) = PreparedNamespace::open(spec, 1)?;
        Self::start(reactor, controls, move |task, io| prepared.build_stack(task, io))
    }

    /// Opens a namespace of `size` bytes in a pool of memory.
    pub(super) fn open_in_pool(port: PoolPort, size: u64, reactor: ReactorHandle) -> Result<Self, ApiError> {
        Self::start(reactor, StackControls::new(), move |task, io| {
            let target = port.build(size, task, io, 0).map_err(|error| trouble(&error))?;
            Ok(Stack::of(Box::new(target)))
        })
    }

    fn start(
        reactor: ReactorHandle,
        controls: StackControls,
        build: impl FnOnce(TaskId, &Io) -> Result<Stack, ApiError> + Send + 'static,
    ) -> Result<Self, ApiError> {
        let installed = reactor.call(move |local| install(build, local)).map_err(|error| trouble(&error))?;
        let (task, size) = installed?;
        Ok(Self { reactor, task, size, controls })
    }

    /// Returns the processor time of its functions' processes, in nanoseconds.
    pub(super) fn process_cpu_ns(&self) -> u64 {
        self.controls.iter().flat_map(StackControl::processes).map(process_cpu_ns).sum()
    }

    /// Keeps as many commands in flight, for `time`, as all queues of the cell together.
    pub(super) fn flat_out(&self, shape: &Shape, clock: &Clock, time: Duration) -> Result<Tally, ApiError> {
        self.run(SEED, shape, clock, Limit::Time(time), u64::MAX)
    }

    /// Keeps commands in flight for `time`, and records each command that took `slow_ns` or longer.
    pub(super) fn flat_out_noting(
        &self,
        shape: &Shape,
        clock: &Clock,
        time: Duration,
        slow_ns: u64,
    ) -> Result<Tally, ApiError> {
        self.run(SEED, shape, clock, Limit::Time(time), slow_ns)
    }

    /// Writes to all of the target once.
    pub(super) fn write_everything(&self, clock: &Clock) -> Result<(), ApiError> {
        self.send(&Shape::FILL, clock, self.size / u64::from(Shape::FILL.block_size.0)).map(drop)
    }

    /// Keeps commands in flight until `count` of them have been sent.
    pub(super) fn send(&self, shape: &Shape, clock: &Clock, count: u64) -> Result<Tally, ApiError> {
        self.send_seeded(SEED, shape, clock, count)
    }

    /// Keeps commands in flight until `count` of them have been sent, at addresses that the seed chooses.
    pub(super) fn send_seeded(
        &self,
        seed: u64,
        shape: &Shape,
        clock: &Clock,
        count: u64,
    ) -> Result<Tally, ApiError> {
        self.run(seed, shape, clock, Limit::Commands(count), u64::MAX)
    }

    fn run(
        &self,
        seed: u64,
        shape: &Shape,
        clock: &Clock,
        limit: Limit,
        slow_ns: u64,
    ) -> Result<Tally, ApiError> {
        let (reply, answer) = channel();
        let mut load = Load::new(seed, shape, self.size, clock.clone(), limit, reply)?;
        load.note_from(slow_ns);
        let task = self.task;
        let begin = move |local: &mut Local| match local.task_mut::<Driver>(task) {
            Some(driver) => driver.load = Some(load),
            None => drop(load),
        };
        self.reactor.call(begin).map_err(|error| trouble(&error))?;
        let patience = PATIENCE + limit.time();
        let tally = answer.recv_timeout(patience);
        tally.map_err(|_| ApiError::internal("a target driven directly does not answer"))
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        let task = self.task;
        // If the reactor has ended, the task is gone already.
        let _ = self.reactor.call(move |local| drop(local.remove(task)));
    }
}

/// Builds the task on its reactor. Returns its ID, and the bytes of the target.
fn install(
    build: impl FnOnce(TaskId, &Io) -> Result<Stack, ApiError>,
    local: &mut Local,
) -> Result<(TaskId, u64), ApiError> {
    let mut failed = None;
    let task = local.add(|task, io| {
        let layers = build(task, &io).and_then(Layers::new);
        let layers = layers.map_err(|problem| failed = Some(problem)).ok();
        Box::new(Driver { layers, load: None })
    });
    if let Some(problem) = failed {
        drop(local.remove(task));
        return Err(problem);
    }
    let layers = local.task::<Driver>(task).and_then(|driver| driver.layers.as_ref());
    Ok((task, layers.map_or(0, |layers| layers.stack.characteristics().size)))
}

/// The layers of a target, and commands to send through them.
struct Layers {
    stack: Stack,
    slab: Slab,
    /// Address space without the memory of any client.
    space: Space,
    /// Finished commands; kept for its memory.
    done: Vec<Command>,
}

impl Layers {
    fn new(stack: Stack) -> Result<Self, ApiError> {
        let fan_out = stack.characteristics().fan_out;
        let limits = Limits::with_reserve(sluice_controller::COMMANDS_MAX, fan_out, stack.reserve());
        let slab = Slab::new(limits).map_err(|error| trouble(&error))?;
        Ok(Self { stack, slab, space: Space::new(), done: Vec::new() })
    }

    /// Runs completions, and passes finished commands to the load.
    fn settle(&mut self, load: &mut Load, now_ns: u64) -> usize {
        self.stack.poll(0, &self.space, &mut self.slab, now_ns);
        self.stack.run_completions(&mut self.slab, now_ns, &mut self.done);
        let count = self.done.len();
        if count > 0 {
            let now = load.clock.raw();
            for command in self.done.drain(..) {
                let good = self.slab.slot(&command).status.is_success();
                load.finished(self.slab.number(&command), good, now);
                self.slab.release(command);
            }
        }
        count
    }
}

/// End of a load.
#[derive(Clone, Copy, Debug)]
enum Limit {
    Time(Duration),
    Commands(u64),
}

impl Limit {
    fn time(self) -> Duration {
        match self {
            Self::Time(time) => time,
            Self::Commands(_) => Duration::ZERO,
        }
    }
}

/// Commands, and their results.
struct Load {
    workload: Workload,
    /// Commands in flight.
    depth: u32,
    /// Bytes of each command.
    length: u32,
    /// Data of the commands, by the number of their slot.
    data: SharedRegion,
    clock: Clock,
    /// Begin of each command, by the number of its slot.
    begun: Vec<u64>,
    submitted: u64,
    limit: Limit,
    start_ns: Option<u64>,
    over: bool,
    /// Ticks that make a command slow.
    slow: u64,
    tally: Tally,
    reply: Sender<Tally>,
}

impl Load {
    fn new(
        seed: u64,
        shape: &Shape,
        size: u64,
        clock: Clock,
        limit: Limit,
        reply: Sender<Tally>,
    ) -> Result<Self, ApiError> {
        let geometry = Geometry { nsid: 1, block_size: BLOCK, blocks: size / u64::from(BLOCK) };
        let workload = Workload::new(shape, geometry, seed);
        let workload = workload.ok_or_else(|| ApiError::invalid("a command does not fit the target"))?;
        let depth = (shape.queue_depth.0 * shape.queues.0).min(sluice_controller::COMMANDS_MAX);
        let length = shape.block_size.0;
        // There is data for every slot, because an earlier load may have left any of them to be used next.
        // Untouched memory takes no pages.
        let slots = sluice_controller::COMMANDS_MAX as usize;
        let data = SharedRegion::new("sluice-direct", slots * length as usize);
        Ok(Self {
            workload,
            depth,
            length,
            data: data.map_err(|error| trouble(&error))?,
            tally: Tally { latencies: Histogram::of_ticks(&clock), ..Tally::default() },
            clock,
            begun: vec![0; slots],
            submitted: 0,
            limit,
            start_ns: None,
            over: false,
            slow: u64::MAX,
            reply,
        })
    }

    /// Records commands that take `slow_ns` or longer.
    fn note_from(&mut self, slow_ns: u64) {
        if slow_ns == u64::MAX {
            return;
        }
        const SAMPLE: u64 = 1 << 32;
        let sample_ns = self.clock.delta_as_nanos(0, SAMPLE).max(1);
        self.slow = (u128::from(slow_ns) * u128::from(SAMPLE) / u128::from(sample_ns)) as u64;
        self.tally.slow.reserve_exact(SLOW_MAX);
    }

    fn finished(&mut self, number: usize, good: bool, now: u64) {
        if !self.over {
            self.tally.commands += 1;
            let took = now.saturating_sub(self.begun[number]);
            self.tally.latencies.record(took, 1);
            if took >= self.slow && self.tally.slow.len() < SLOW_MAX {
                self.tally.slow.push((now - took, now));
            }
        }
        self.tally.failed += u64::from(!good);
    }

    /// Returns whether no further command is to begin.
    fn is_over(&mut self, now_ns: u64) -> bool {
        let start_ns = *self.start_ns.get_or_insert(now_ns);
        let elapsed = Duration::from_nanos(now_ns - start_ns);
        if !self.over {
            self.tally.elapsed = elapsed;
            self.over = match self.limit {
                Limit::Time(time) => elapsed >= time,
                Limit::Commands(count) => self.submitted >= count,
            };
        }
        self.over
    }

    /// Begins commands up to the depth.
    fn fill(&mut self, layers: &mut Layers, now_ns: u64) {
        let left = match self.limit {
            Limit::Commands(count) => u32::try_from(count - self.submitted).unwrap_or(u32::MAX),
            Limit::Time(_) => u32::MAX,
        };
        let room = (self.depth - layers.slab.in_flight()).min(left);
        let now = if room > 0 { self.clock.raw() } else { 0 };
        for _ in 0..room {
            let entry = self.workload.next_entry();
            let Some(command) = layers.slab.admit(&entry, Origin::default()) else { return };
            let number = layers.slab.number(&command);
            let segment = self.data.segment(number * self.length as usize, self.length);
            let slot = layers.slab.slot_mut(&command);
            slot.request = request(&entry, self.length);
            slot.data.push(segment).expect("one segment fits an empty list");
            self.begun[number] = now;
            self.submitted += 1;
            layers.stack.submit(layers.stack.root(), command, &mut layers.slab, now_ns);
        }
    }
}

fn request(entry: &SubmissionEntry, length: u32) -> Request {
    let operation = match entry.opcode {
        opcode::io::READ => Operation::Read,
        _ => Operation::Write,
    };
    let offset = entry.slba() * u64::from(BLOCK);
    Request { operation, offset, length: length.into(), ..Request::default() }
}

/// Reactor's side. Layers are missing only between a failure to build them and the removal of the task.
struct Driver {
    layers: Option<Layers>,
    load: Option<Load>,
}

impl Task for Driver {
    fn turn(&mut self, now_ns: u64) -> usize {
        let (Some(layers), Some(load)) = (&mut self.layers, &mut self.load) else { return 0 };
        if layers.stack.deadline_ns().is_some_and(|deadline| deadline <= now_ns) {
            layers.stack.expire(&mut layers.slab, now_ns);
        }
        let work = layers.settle(load, now_ns);
        if !load.is_over(now_ns) {
            load.fill(layers, now_ns);
            return work + layers.settle(load, now_ns);
        }
        if layers.slab.in_flight() == 0
            && let Some(load) = self.load.take()
        {
            // The receiver may have stopped waiting.
            let _ = load.reply.send(load.tally);
        }
        work
    }

    fn event(&mut self, token: u64, result: i32, _more: bool, now_ns: u64) {
        let Some(layers) = &mut self.layers else { return };
        // The layout is that of the controller's tokens.
        let (node, ticket) = (NodeId((token >> 32) as u8), Ticket(token as u32));
        layers.stack.event(node, ticket, result, &mut layers.slab, now_ns);
    }

    fn arm(&mut self, _now_ns: u64) -> Arm {
        let in_flight = self.layers.as_ref().is_some_and(|layers| layers.slab.in_flight() > 0);
        match (&self.load, &self.layers) {
            (Some(_), Some(layers)) if !in_flight || layers.stack.polls() => Arm::Busy,
            (_, Some(layers)) => Arm::Asleep { until: layers.stack.deadline_ns() },
            _ => Arm::Asleep { until: None },
        }
    }
}
