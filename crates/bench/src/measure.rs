//! Runs a plan: target by target, cell by cell.

use super::args::{Pace, Plan};
use super::cell::{Shape, Target};
use super::client::{Client, Doorbells};
use super::cores::{self, Cores};
use super::direct::Direct;
use super::groups::Groups;
use super::load;
use super::machine::Machine;
use super::progress;
use super::report::{Cells, Row, name};
use super::run::{Meter, Run};
use super::runs::{Cell, Taken, WARM_UP};
use super::server::Server;
use super::wait::Wait;
use quanta::Clock;
use sluice_spec::error::ApiError;
use std::fmt::Display;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Measures every cell on every target.
pub fn run(plan: &Plan) -> Result<Cells, ApiError> {
    let cores = Cores::choose();
    cores::pin(cores.host);
    if plan.line.is_some() && cores.host.is_none() {
        return Err(ApiError::invalid(
            "a cache line goes from one processor to another, and here is only one",
        )
        .hint("--line-ns needs two"));
    }
    let mut bench = Bench::new(plan, cores);
    for target in &plan.targets {
        for cells in plan.cells.chunk_by(|a, b| a.drives == b.drives) {
            bench.measure_group(target, cells)?;
        }
        if plan.direct {
            bench.measure_directly(target)?;
        }
    }
    let Bench { rows, notes, .. } = bench;
    if rows.is_empty() {
        return Err(ApiError::conflict(format!("nothing was measured: {}", notes.join("; ")))
            .hint("ask for another --line-ns, or --wait longer"));
    }
    Ok(Cells { machine: Machine::of_this(cores), pace: plan.pace, rows, notes })
}

struct Bench<'a> {
    plan: &'a Plan,
    cores: Cores,
    clock: Clock,
    /// Server of this process, once a target needs it.
    server: Option<Server>,
    rows: Vec<Row>,
    notes: Vec<String>,
    cells_done: usize,
}

impl<'a> Bench<'a> {
    fn new(plan: &'a Plan, cores: Cores) -> Self {
        let clock = Clock::new();
        Self { plan, cores, clock, server: None, rows: Vec::new(), notes: Vec::new(), cells_done: 0 }
    }

    /// Measures cells on the same drives.
    fn measure_group(&mut self, target: &Target, cells: &[Shape]) -> Result<(), ApiError> {
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
            let taken = self.measure(target, shape, &mut clients)?;
            self.conclude(target, shape, Some(self.plan.doorbells), taken)?;
        }
        drop(clients);
        self.server.as_mut().map_or(Ok(()), Server::close_all)
    }

    /// Measures the same cells without a drive. This comes afterwards, because a file has one user at a time.
    fn measure_directly(&mut self, target: &Target) -> Result<(), ApiError> {
        let direct = self.server()?.open_directly(target)?;
        if let Target::Memory(_) = target {
            direct.write_everything(&self.clock)?;
        }
        for shape in self.plan.cells.iter().filter(|shape| shape.drives.0 == 1) {
            self.progress(&format_args!("{target}, directly: {shape}"));
            direct.flat_out(shape, &self.clock, WARM_UP)?;
            let run = |_| self.run_directly(&direct, shape);
            let runs = (0..self.plan.runs).map(run).collect::<Result<_, _>>()?;
            // There is no host, so the distance of the processors does not matter.
            let wait = Wait::new(None, Duration::ZERO);
            self.conclude(target, shape, None, Taken { runs, wait })?;
        }
        Ok(())
    }

    fn run_directly(&self, direct: &Direct, shape: &Shape) -> Result<Run, ApiError> {
        let meter = self.server.as_ref().map_or(Meter::Theirs(None), Meter::Ours);
        let (before, start) = (meter.read(), Instant::now());
        let tally = direct.flat_out(shape, &self.clock, self.plan.time)?;
        Ok(Run::new(tally, before, meter.read(), start.elapsed()).without_host())
    }

    fn progress(&self, what: &impl Display) {
        let cells = self.plan.targets.len() * self.plan.cells.len();
        let total = if self.plan.direct { 2 * cells } else { cells };
        progress(self.cells_done, total, what);
    }

    fn server(&mut self) -> Result<&mut Server, ApiError> {
        if self.server.is_none() {
            self.server = Some(Server::start(&self.cores)?);
        }
        self.server.as_mut().ok_or_else(|| ApiError::internal("the server is gone"))
    }

    /// Writes to all of the drives. Memory that was never written to is one page of zeros, and reads of it
    /// would all hit the cache.
    fn write_everything(&self, clients: &mut [Client]) -> Result<(), ApiError> {
        for client in clients {
            let bytes = client.geometry.blocks * u64::from(client.geometry.block_size);
            let mut streams = client.open_streams(&Shape::FILL, 0)?;
            load::send(&mut streams, &self.clock, bytes / u64::from(Shape::FILL.block_size.0))?;
            client.close_streams(streams)?;
        }
        Ok(())
    }

    fn measure(&self, target: &Target, shape: &Shape, clients: &mut [Client]) -> Result<Taken, ApiError> {
        let open = |(seed, client): (usize, &mut Client)| client.open_streams(shape, seed as u64);
        let mut drives = clients.iter_mut().enumerate().map(open).collect::<Result<Vec<_>, _>>()?;
        let meter = match (target, &self.server) {
            (Target::Daemon(_), _) | (_, None) => {
                Meter::Theirs(clients.iter().find_map(|client| client.server_pid))
            }
            (_, Some(server)) => Meter::Ours(server),
        };
        let Self { plan, cores, clock, .. } = self;
        let taken = Cell { plan, cores, clock, shape, meter, drives: &mut drives }.take()?;
        for (client, streams) in clients.iter_mut().zip(drives) {
            client.close_streams(streams)?;
        }
        Ok(taken)
    }

    /// Adds the rows of the runs of a cell.
    fn conclude(
        &mut self,
        target: &Target,
        shape: &Shape,
        doorbells: Option<Doorbells>,
        taken: Taken,
    ) -> Result<(), ApiError> {
        let Taken { runs, wait } = taken;
        if let Some(failed) = runs.iter().map(|run| run.tally.failed).find(|&failed| failed > 0) {
            return Err(ApiError::internal(format!("{failed} commands of a run failed ({target}: {shape})"))
                .hint("the daemon's log may say why; the speed of errors means nothing"));
        }
        let groups = match self.plan.pace {
            Pace::FlatOut => Groups::sort_out(runs, wait.absent()),
            Pace::Rate(_) | Pace::First(_) => Groups::one(runs),
        };
        let left_out = groups.left_out.words().map(|words| format!("runs left out: {words}"));
        let in_vain = wait.in_vain().filter(|_| groups.groups.is_empty());
        let name = name(target, doorbells);
        self.notes.extend(left_out.into_iter().chain(in_vain).map(|note| format!("{name}: {shape}: {note}")));
        self.rows.extend(Row::of_cell(target, shape, doorbells, &groups));
        self.cells_done += 1;
        Ok(())
    }
}
