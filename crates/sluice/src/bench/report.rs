//! Cells with their results, for people and for programs.

use super::args::Pace;
use super::cell::{Shape, Target};
use super::client::Doorbells;
use super::histogram::Histogram;
use super::machine::Machine;
use super::run::{Run, Work};
use super::tally::median;
use crate::cli::table::Table;
use serde::Serialize;

/// Measured cells.
#[derive(Clone, Debug, Serialize)]
pub struct Cells {
    pub machine: Machine,
    #[serde(skip)]
    pub pace: Pace,
    pub rows: Vec<Row>,
}

/// One cell.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub target: Target,
    #[serde(flatten)]
    pub shape: Shape,
    /// None if the target was driven directly.
    pub doorbells: Option<Doorbells>,
    /// Runs that count.
    pub runs: usize,
    /// Of the middle run, as is everything that follows.
    pub commands_per_s: f64,
    pub bytes_per_s: f64,
    /// The middle run of the floor.
    pub floor_per_s: Option<f64>,
    /// The middle one of the runs, each divided by the floor just before it.
    pub of_floor: Option<f64>,
    pub latency: Latency,
    /// Processor time of the reactor, or of all of another daemon.
    pub reactor_ns_per_command: Option<f64>,
    pub host_ns_per_command: f64,
    /// What the worst served drive had of what the best served had.
    pub fairness: Option<f64>,
    pub reactor: Option<Work>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// Quantiles, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Latency {
    pub p50_ns: u64,
    pub p90_ns: u64,
    pub p99_ns: u64,
    pub p99_9_ns: u64,
    pub p99_99_ns: u64,
    pub max_ns: u64,
}

impl Latency {
    pub fn of(histogram: &Histogram) -> Self {
        Self {
            p50_ns: histogram.quantile(0.5),
            p90_ns: histogram.quantile(0.9),
            p99_ns: histogram.quantile(0.99),
            p99_9_ns: histogram.quantile(0.999),
            p99_99_ns: histogram.quantile(0.9999),
            max_ns: histogram.largest(),
        }
    }

    fn all(&self) -> [u64; 6] {
        [self.p50_ns, self.p90_ns, self.p99_ns, self.p99_9_ns, self.p99_99_ns, self.max_ns]
    }
}

impl Row {
    /// The result of some runs, of which there is at least one. Where both threads had their cores in
    /// some of them, only those count.
    pub fn new(
        target: &Target,
        shape: &Shape,
        doorbells: Option<Doorbells>,
        pace: Pace,
        mut runs: Vec<Run>,
    ) -> Option<Self> {
        let warning = keep_good(&mut runs, pace);
        runs.sort_by(|a, b| a.tally.rate().total_cmp(&b.tally.rate()));
        let middle = runs.get(runs.len().checked_sub(1)? / 2)?;
        let rate = middle.tally.rate();
        let ratios = runs.iter().filter_map(|run| Some(run.tally.rate() / run.floor?)).collect();
        Some(Self {
            target: target.clone(),
            shape: *shape,
            doorbells,
            runs: runs.len(),
            commands_per_s: rate,
            bytes_per_s: rate * f64::from(shape.block_size.0),
            floor_per_s: median(runs.iter().filter_map(|run| run.floor).collect()),
            of_floor: median(ratios),
            latency: Latency::of(&middle.tally.latencies),
            reactor_ns_per_command: middle.server_cpu_ns.map(|ns| middle.per_command(ns)),
            host_ns_per_command: middle.per_command(middle.host_cpu_ns),
            fairness: (shape.drives.0 > 1).then(|| middle.tally.fairness()),
            reactor: middle.work,
            warning,
        })
    }

    fn name(&self) -> String {
        match self.doorbells {
            Some(Doorbells::Mapped) => self.target.to_string(),
            Some(Doorbells::Trapped) => format!("{}, trapped", self.target),
            None => format!("{}, directly", self.target),
        }
    }
}

/// Drops the runs that were disturbed, if there are others. What to say if all were.
fn keep_good(runs: &mut Vec<Run>, pace: Pace) -> Option<String> {
    if pace != Pace::FlatOut {
        return None;
    }
    if runs.iter().any(Run::had_cores) {
        runs.retain(Run::had_cores);
        return None;
    }
    let share = |shares: &mut dyn Iterator<Item = f64>| shares.fold(1.0, f64::min) * 100.0;
    let reactor = share(&mut runs.iter().filter_map(Run::reactor_share));
    let host = share(&mut runs.iter().map(Run::host_share));
    Some(format!("disturbed: the reactor had {reactor:.0} % of its core, the host {host:.0} %"))
}

impl Cells {
    pub fn text(&self) -> String {
        let mut text = self.machine.text();
        text += "\n";
        text += &match self.pace {
            Pace::First(_) => self.first_commands(),
            Pace::Rate(_) => self.latencies(),
            Pace::FlatOut => self.speeds(),
        };
        for row in &self.rows {
            if let Some(warning) = &row.warning {
                text += &format!("warning: {}: {}: {warning}\n", row.name(), row.shape);
            }
        }
        text
    }

    fn speeds(&self) -> String {
        let shared = self.rows.iter().any(|row| row.fairness.is_some());
        let mut titles = vec!["TARGET", "COMMANDS", "KCMD/S", "MB/S", "FLOOR-KCMD/S", "OF-FLOOR"];
        titles.extend(["P50-US", "P99-US", "P99.9-US", "P99.99-US", "REACTOR-NS/CMD", "HOST-NS/CMD"]);
        titles.extend(shared.then_some("LEAST/MOST"));
        let mut table = Table::new(&titles);
        for row in &self.rows {
            let [p50, _, p99, p99_9, p99_99, _] = row.latency.all().map(micro);
            let mut cells = vec![
                row.name(),
                row.shape.to_string(),
                format!("{:.1}", row.commands_per_s / 1e3),
                format!("{:.0}", row.bytes_per_s / 1e6),
                number(row.floor_per_s.map(|floor| floor / 1e3), 1),
                number(row.of_floor, 2),
            ];
            cells.extend([p50, p99, p99_9, p99_99]);
            cells.extend([number(row.reactor_ns_per_command, 0), number(Some(row.host_ns_per_command), 0)]);
            cells.extend(shared.then(|| number(row.fairness, 2)));
            table.row(cells);
        }
        table.text()
    }

    fn latencies(&self) -> String {
        let titles =
            ["TARGET", "COMMANDS", "CMD/S", "P50-US", "P90-US", "P99-US", "P99.9-US", "P99.99-US", "MAX-US"];
        let mut table = Table::new(&[&titles[..], &["REACTOR-NS/CMD"]].concat());
        for row in &self.rows {
            let mut cells = vec![row.name(), row.shape.to_string(), format!("{:.0}", row.commands_per_s)];
            cells.extend(row.latency.all().map(micro));
            cells.push(number(row.reactor_ns_per_command, 0));
            table.row(cells);
        }
        table.text()
    }

    fn first_commands(&self) -> String {
        let mut table = Table::new(&["TARGET", "COMMAND AFTER A SECOND", "P50-US", "P90-US", "MAX-US"]);
        for row in &self.rows {
            let [p50, p90, .., max] = row.latency.all().map(micro);
            table.row(vec![row.name(), row.shape.to_string(), p50, p90, max]);
        }
        table.text()
    }
}

fn micro(ns: u64) -> String {
    format!("{:.2}", ns as f64 / 1e3)
}

fn number(number: Option<f64>, digits: usize) -> String {
    number.map_or_else(|| "-".to_owned(), |number| format!("{number:.digits$}"))
}
