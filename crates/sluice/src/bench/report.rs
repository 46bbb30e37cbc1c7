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
    pub host_ns_per_command: Option<f64>,
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
        let ratios = runs.iter().filter_map(|run| Some(run.tally.rate() / run.floor?.rate)).collect();
        Some(Self {
            target: target.clone(),
            shape: *shape,
            doorbells,
            runs: runs.len(),
            commands_per_s: rate,
            bytes_per_s: rate * f64::from(shape.block_size.0),
            floor_per_s: median(runs.iter().filter_map(|run| Some(run.floor?.rate)).collect()),
            of_floor: median(ratios),
            latency: Latency::of(&middle.tally.latencies),
            reactor_ns_per_command: middle.server_cpu_ns.map(|ns| middle.per_command(ns)),
            host_ns_per_command: middle.host_cpu_ns.map(|ns| middle.per_command(ns)),
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
    let shares = |of: fn(&Run) -> Option<f64>| runs.iter().filter_map(of).reduce(f64::min);
    let floor = |run: &Run| Some(run.floor?.core_share);
    let shares = [
        ("reactor", shares(Run::reactor_share)),
        ("host", shares(Run::host_share)),
        ("floor", shares(floor)),
    ];
    let words = shares.into_iter().filter_map(|(whose, share)| {
        Some(format!("the {whose} had {:.0} % of its core", share?.min(1.0) * 100.0))
    });
    Some(format!("disturbed: {}", words.collect::<Vec<_>>().join(", ")))
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
            cells.extend([number(row.reactor_ns_per_command, 0), number(row.host_ns_per_command, 0)]);
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

#[cfg(test)]
mod tests {
    use super::super::cell::{BlockSize, Drives, Mix, Pattern, QueueDepth, Queues};
    use super::super::cores::Cores;
    use super::super::floor::Floor;
    use super::super::run::Reading;
    use super::super::tally::Tally;
    use super::*;
    use crate::size::Size;
    use std::time::Duration;

    const SHAPE: Shape = Shape {
        block_size: BlockSize(4096),
        queue_depth: QueueDepth(32),
        queues: Queues(1),
        pattern: Pattern::Random,
        mix: Mix::READ,
        drives: Drives(1),
    };

    /// A run of a second in which the host had so much of its core, each command having taken 5 us.
    fn run(commands: u64, floor: f64, host_share: f64) -> Run {
        let mut latencies = Histogram::default();
        (0..100).for_each(|_| latencies.record(5_000));
        let wall = Duration::from_secs(1);
        let tally = Tally { commands, elapsed: wall, latencies, shares: vec![3, 4], ..Tally::default() };
        let after = Reading::of_host((host_share * 1e9) as u64);
        let run = Run::new(tally, Reading::of_host(0), after, wall);
        run.beside(Some(Floor { rate: floor, core_share: 1.0 }))
    }

    fn row(shape: &Shape, runs: Vec<Run>) -> Row {
        let target = Target::Memory(Size(512 << 20));
        Row::new(&target, shape, Some(Doorbells::Mapped), Pace::FlatOut, runs).expect("there are runs")
    }

    fn cells(rows: Vec<Row>) -> Cells {
        let cores = Cores { reactor: Some(0), host: Some(1) };
        let machine = Machine {
            processor: "Example 9000".into(),
            processors: 2,
            kernel: "6.12.1".into(),
            cores,
            assertions: false,
        };
        Cells { machine, pace: Pace::FlatOut, rows }
    }

    #[test]
    fn the_middle_run_counts_and_ratios_are_taken_run_by_run() {
        let row = row(&SHAPE, vec![run(300, 400.0, 1.0), run(100, 400.0, 1.0), run(200, 800.0, 1.0)]);
        assert_eq!((row.commands_per_s, row.floor_per_s, row.of_floor), (200.0, Some(400.0), Some(0.25)));
        assert_eq!(row.host_ns_per_command, Some(5_000_000.0));
        assert_eq!((row.runs, row.warning), (3, None));
    }

    #[test]
    fn disturbed_runs_do_not_count_beside_others() {
        let row = row(&SHAPE, vec![run(900, 400.0, 0.5), run(100, 400.0, 1.0)]);
        assert_eq!((row.commands_per_s, row.runs, row.warning), (100.0, 1, None));
    }

    #[test]
    fn a_table_for_people() {
        let shared = Shape { drives: Drives(2), ..SHAPE };
        let text = cells(vec![
            row(&SHAPE, vec![run(1_234_500, 4e6, 1.0)]),
            row(&shared, vec![run(2_000_000, 4e6, 0.25)]),
        ])
        .text();
        let expected = "\
2 x Example 9000, Linux 6.12.1

TARGET         COMMANDS                           KCMD/S  MB/S  FLOOR-KCMD/S  OF-FLOOR  P50-US  P99-US  P99.9-US  P99.99-US  REACTOR-NS/CMD  HOST-NS/CMD  LEAST/MOST
memory:512MiB  random read 4KiB, QD 32            1234.5  5057        4000.0      0.31    5.00    5.00      5.00       5.00               -          810           -
memory:512MiB  random read 4KiB, QD 32, 2 drives  2000.0  8192        4000.0      0.50    5.00    5.00      5.00       5.00               -          125        0.75
warning: memory:512MiB: random read 4KiB, QD 32, 2 drives: disturbed: the host had 25 % of its core, the floor had 100 % of its core
";
        assert_eq!(text, expected);
    }

    #[test]
    fn json_for_programs() {
        let json = serde_json::to_value(cells(vec![row(&SHAPE, vec![run(1000, 4000.0, 1.0)])]));
        let expected = serde_json::json!({
            "machine": {
                "processor": "Example 9000", "processors": 2, "kernel": "6.12.1",
                "reactor": 0, "host": 1, "assertions": false
            },
            "rows": [{
                "target": "memory:512MiB", "block_size": 4096, "queue_depth": 32, "queues": 1,
                "pattern": "random", "mix": "read", "drives": 1, "doorbells": "mapped", "runs": 1,
                "commands_per_s": 1000.0, "bytes_per_s": 4_096_000.0, "floor_per_s": 4000.0,
                "of_floor": 0.25,
                "latency": {
                    "p50_ns": 5000, "p90_ns": 5000, "p99_ns": 5000, "p99_9_ns": 5000,
                    "p99_99_ns": 5000, "max_ns": 5000
                },
                "reactor_ns_per_command": null, "host_ns_per_command": 1_000_000.0,
                "fairness": null, "reactor": null
            }]
        });
        assert_eq!(json.expect("it can be written"), expected);
    }
}
