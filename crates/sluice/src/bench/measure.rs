//! Runs a plan: for every cell some runs, each beside a run of the floor.

use super::args::{Pace, Plan};
use super::cell::{Shape, Target};
use super::client::{Client, Doorbells};
use super::cores::{self, Cores};
use super::direct::Direct;
use super::load::{self, Streams};
use super::machine::Machine;
use super::report::{Cells, Row};
use super::run::{Meter, Run};
use super::server::{REACTOR_THREAD, Server};
use super::{floor, progress};
use crate::problem::Problem;
use quanta::Clock;
use std::fmt::Display;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Before the first run of a cell.
const WARM_UP: Duration = Duration::from_millis(100);

/// Before a command that is to find everybody asleep.
const SILENCE: Duration = Duration::from_secs(1);

/// Measures every cell on every target.
pub fn run(plan: &Plan) -> Result<Cells, Problem> {
    let cores = Cores::choose();
    cores::pin(cores.host);
    let mut bench = Bench { plan, cores, clock: Clock::new(), server: None, rows: Vec::new() };
    for target in &plan.targets {
        for cells in plan.cells.chunk_by(|a, b| a.drives == b.drives) {
            bench.measure_group(target, cells)?;
        }
        if plan.direct {
            bench.measure_directly(target)?;
        }
    }
    Ok(Cells { machine: Machine::of_this(cores), pace: plan.pace, rows: bench.rows })
}

struct Bench<'a> {
    plan: &'a Plan,
    cores: Cores,
    clock: Clock,
    /// Ours, once a target needs it.
    server: Option<Server>,
    rows: Vec<Row>,
}

impl Bench<'_> {
    /// Cells on the same drives.
    fn measure_group(&mut self, target: &Target, cells: &[Shape]) -> Result<(), Problem> {
        let count = cells.first().map_or(1, |shape| shape.drives.0);
        let sockets = match target {
            Target::Daemon(socket) => vec![socket.clone()],
            _ => self.server()?.open_all(target, count)?,
        };
        let connect = |socket: &PathBuf| Client::connect(socket, self.plan.doorbells);
        let mut clients = sockets.iter().map(connect).collect::<Result<Vec<_>, _>>()?;
        if let Target::Memory(_) = target {
            self.write_everything(&mut clients)?;
        }
        for shape in cells {
            self.progress(&format_args!("{target}: {shape}"));
            let row = self.measure(target, shape, &mut clients)?;
            self.rows.push(row);
        }
        drop(clients);
        self.server.as_mut().map_or(Ok(()), Server::close_all)
    }

    /// The same cells without a drive. Afterwards, since a file is opened by one only.
    fn measure_directly(&mut self, target: &Target) -> Result<(), Problem> {
        let direct = self.server()?.open_directly(target)?;
        if let Target::Memory(_) = target {
            direct.write_everything(&self.clock)?;
        }
        for shape in self.plan.cells.iter().filter(|shape| shape.drives.0 == 1) {
            self.progress(&format_args!("{target}, directly: {shape}"));
            direct.flat_out(shape, &self.clock, WARM_UP)?;
            let run = |_| self.run_directly(&direct, shape);
            let runs = (0..self.plan.runs).map(run).collect::<Result<_, _>>()?;
            let row = self.row(target, shape, None, runs)?;
            self.rows.push(row);
        }
        Ok(())
    }

    fn run_directly(&self, direct: &Direct, shape: &Shape) -> Result<Run, Problem> {
        let meter = Meter::new(Some(std::process::id()), REACTOR_THREAD, self.server.as_ref());
        let (before, start) = (meter.read(), Instant::now());
        let tally = direct.flat_out(shape, &self.clock, self.plan.time)?;
        Ok(Run::new(tally, before, meter.read(), start.elapsed()).without_host())
    }

    fn progress(&self, what: &impl Display) {
        let cells = self.plan.targets.len() * self.plan.cells.len();
        let total = if self.plan.direct { 2 * cells } else { cells };
        progress(self.rows.len(), total, what);
    }

    fn server(&mut self) -> Result<&mut Server, Problem> {
        if self.server.is_none() {
            self.server = Some(Server::start(&self.cores)?);
        }
        self.server.as_mut().ok_or_else(|| Problem::internal("the server is gone"))
    }

    /// Memory that was never written to is one page of zeros, and reads of it would all hit the cache.
    fn write_everything(&self, clients: &mut [Client]) -> Result<(), Problem> {
        for client in clients {
            let bytes = client.geometry.blocks * u64::from(client.geometry.block_size);
            let mut streams = client.open_streams(&Shape::FILL, 0)?;
            load::send(&mut streams, &self.clock, bytes / u64::from(Shape::FILL.block_size.0))?;
            client.close_streams(streams)?;
        }
        Ok(())
    }

    fn measure(&self, target: &Target, shape: &Shape, clients: &mut [Client]) -> Result<Row, Problem> {
        let open = |(seed, client): (usize, &mut Client)| client.open_streams(shape, seed as u64);
        let mut drives = clients.iter_mut().enumerate().map(open).collect::<Result<Vec<_>, _>>()?;
        let pid = clients.iter().find_map(|client| client.server_pid);
        let runs = self.runs(target, shape, &mut drives, pid)?;
        for (client, streams) in clients.iter_mut().zip(drives) {
            client.close_streams(streams)?;
        }
        self.row(target, shape, Some(self.plan.doorbells), runs)
    }

    fn row(
        &self,
        target: &Target,
        shape: &Shape,
        doorbells: Option<Doorbells>,
        runs: Vec<Run>,
    ) -> Result<Row, Problem> {
        if let Some(failed) = runs.iter().map(|run| run.tally.failed).find(|&failed| failed > 0) {
            return Err(Problem::internal(format!("{failed} commands of a run failed ({target}: {shape})"))
                .hint("the daemon's log may say why; the speed of errors means nothing"));
        }
        let row = Row::new(target, shape, doorbells, self.plan.pace, runs);
        row.ok_or_else(|| Problem::internal("a cell without a run"))
    }

    fn runs(
        &self,
        target: &Target,
        shape: &Shape,
        drives: &mut [Streams],
        pid: Option<u32>,
    ) -> Result<Vec<Run>, Problem> {
        if let Pace::First(_) = self.plan.pace {
            return Ok(vec![self.run_once(target, drives, pid, self.plan.time)?]);
        }
        self.run_once(target, drives, pid, WARM_UP)?;
        let run = |_| {
            let floor = (self.plan.pace == Pace::FlatOut).then(|| {
                let queues = shape.queues.0 * shape.drives.0;
                floor::measure(shape.queue_depth.0, queues, self.plan.time, &self.cores)
            });
            Ok(self.run_once(target, drives, pid, self.plan.time)?.beside(floor))
        };
        (0..self.plan.runs).map(run).collect()
    }

    fn run_once(
        &self,
        target: &Target,
        drives: &mut [Streams],
        pid: Option<u32>,
        time: Duration,
    ) -> Result<Run, Problem> {
        let meter = match (target, &self.server) {
            (Target::Daemon(_), _) | (_, None) => Meter::new(pid, "", None),
            (_, Some(server)) => Meter::new(Some(std::process::id()), REACTOR_THREAD, Some(server)),
        };
        let before = meter.read();
        let start = Instant::now();
        let tally = match self.plan.pace {
            Pace::FlatOut => load::flat_out(drives, &self.clock, time)?,
            Pace::Rate(rate) => load::at_a_rate(drives, &self.clock, time, rate)?,
            Pace::First(times) => match drives.iter_mut().flatten().next() {
                Some(stream) => load::after_silence(stream, &self.clock, SILENCE, times)?,
                None => return Err(Problem::internal("there is no queue")),
            },
        };
        Ok(Run::new(tally, before, meter.read(), start.elapsed()))
    }
}
