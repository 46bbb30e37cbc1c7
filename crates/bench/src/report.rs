//! Cells with their results, for people and for programs.

use super::args::Pace;
use super::cell::{Shape, Target};
use super::client::Doorbells;
use super::groups::{Groups, LeftOut, Line};
use super::histogram::Histogram;
use super::machine::Machine;
use super::run::{Run, Work};
use super::tally::{Tally, median};
use serde::Serialize;
use sluice_spec::table::Table;

/// Measured cells.
#[derive(Clone, Debug, Serialize)]
pub struct Cells {
    pub machine: Machine,
    #[serde(skip)]
    pub pace: Pace,
    pub rows: Vec<Row>,
    /// Further remarks, in words.
    pub notes: Vec<String>,
}

/// Result of a cell at one distance of the processors.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub target: Target,
    #[serde(flatten)]
    pub shape: Shape,
    /// Way of the doorbells; `None` if the target was driven directly.
    pub doorbells: Option<Doorbells>,
    /// Round trip of a cache line between the processors, in nanoseconds: the median. `None` if it does not
    /// matter.
    pub line_ns: Option<f64>,
    /// Runs that count.
    pub runs: usize,
    /// Runs of the cell that count nowhere.
    pub left_out: LeftOut,
    /// Commands of all runs; all numbers that are not medians are of all runs.
    pub commands: u64,
    /// The median.
    pub commands_per_s: f64,
    pub bytes_per_s: f64,
    /// The median.
    pub floor_per_s: Option<f64>,
    /// The median of the runs, each divided by the floor just before and after it.
    pub of_floor: Option<f64>,
    pub latency: Latency,
    /// Processor time of the reactor, or of all of another daemon.
    pub reactor_ns_per_command: Option<f64>,
    pub host_ns_per_command: Option<f64>,
    /// Commands of the worst served drive, divided by those of the best served.
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
    /// Returns the rows of one cell: one for each group.
    pub fn of_cell(
        target: &Target,
        shape: &Shape,
        doorbells: Option<Doorbells>,
        groups: &Groups,
    ) -> Vec<Self> {
        let row = |runs: &Vec<Run>| Self::new(target, shape, doorbells, runs);
        let rows = groups.groups.iter().filter_map(row);
        rows.map(|row| Self { left_out: groups.left_out, warning: groups.warning.clone(), ..row }).collect()
    }

    /// Returns the row of a group; `None` if there is no run.
    fn new(target: &Target, shape: &Shape, doorbells: Option<Doorbells>, runs: &[Run]) -> Option<Self> {
        let medians = |of: &dyn Fn(&Run) -> Option<f64>| median(runs.iter().filter_map(of).collect());
        let rate = medians(&|run| Some(run.tally.rate()))?;
        let tally = all_together(runs)?;
        let per_command = |ns: u64| ns as f64 / tally.commands.max(1) as f64;
        Some(Self {
            target: target.clone(),
            shape: *shape,
            doorbells,
            line_ns: medians(&|run| run.line.map(Line::ns)),
            runs: runs.len(),
            left_out: LeftOut::default(),
            commands: tally.commands,
            commands_per_s: rate,
            bytes_per_s: rate * f64::from(shape.block_size.0),
            floor_per_s: medians(&|run| Some(run.floor?.rate)),
            of_floor: medians(&|run| Some(run.tally.rate() / run.floor?.rate)),
            latency: Latency::of(&tally.latencies),
            reactor_ns_per_command: sum(runs, |run| run.server_cpu_ns).map(per_command),
            host_ns_per_command: sum(runs, |run| run.host_cpu_ns).map(per_command),
            fairness: (shape.drives.0 > 1).then(|| tally.fairness()),
            reactor: runs.iter().filter_map(|run| run.work).reduce(Work::plus),
            warning: None,
        })
    }

    fn name(&self) -> String {
        name(&self.target, self.doorbells)
    }
}

/// Returns the name of a target and of the way to reach it.
pub fn name(target: &Target, doorbells: Option<Doorbells>) -> String {
    match doorbells {
        Some(Doorbells::Mapped) => target.to_string(),
        Some(Doorbells::Trapped) => format!("{target}, trapped"),
        None => format!("{target}, directly"),
    }
}

/// Merges the results of all runs.
fn all_together(runs: &[Run]) -> Option<Tally> {
    let (first, others) = runs.split_first()?;
    let mut tally = first.tally.clone();
    others.iter().for_each(|run| tally.merge(&run.tally));
    Some(tally)
}

/// Adds up a number of all runs; `None` if one of them does not have it.
fn sum(runs: &[Run], of: impl Fn(&Run) -> Option<u64>) -> Option<u64> {
    runs.iter().map(of).sum()
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
        for note in &self.notes {
            text += &format!("note: {note}\n");
        }
        text
    }

    fn speeds(&self) -> String {
        let shared = self.rows.iter().any(|row| row.fairness.is_some());
        let mut titles = vec!["TARGET", "COMMANDS", "LINE-NS", "RUNS"];
        titles.extend(["KCMD/S", "MB/S", "FLOOR-KCMD/S", "OF-FLOOR"]);
        titles.extend(["P50-US", "P99-US", "P99.9-US", "P99.99-US", "REACTOR-NS/CMD", "HOST-NS/CMD"]);
        titles.extend(shared.then_some("LEAST/MOST"));
        let mut table = Table::new(&titles);
        for row in &self.rows {
            let [p50, _, p99, p99_9, p99_99, _] = row.latency.all().map(micro);
            let mut cells = vec![
                row.name(),
                row.shape.to_string(),
                number(row.line_ns, 0),
                row.runs.to_string(),
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
    use super::super::run::tests::run;
    use super::*;
    use sluice_spec::size::Size;

    const SHAPE: Shape = Shape {
        block_size: BlockSize(4096),
        queue_depth: QueueDepth(32),
        queues: Queues(1),
        pattern: Pattern::Random,
        mix: Mix::READ,
        drives: Drives(1),
    };

    /// Returns the rows of a cell on a memory target.
    fn rows(shape: &Shape, runs: Vec<Run>) -> Vec<Row> {
        let target = Target::Memory(Size(512 << 20));
        Row::of_cell(&target, shape, Some(Doorbells::Mapped), &Groups::sort_out(runs, 0))
    }

    /// Returns `count` runs at a distance.
    fn at(ns: f64, count: usize, run: &Run) -> Vec<Run> {
        vec![run.clone().at(Some(Line { before_ns: ns, after_ns: ns })); count]
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
        Cells { machine, pace: Pace::FlatOut, rows, notes: Vec::new() }
    }

    #[test]
    fn rates_and_ratios_are_medians_and_the_rest_is_of_all_runs() {
        let runs = vec![run(300, 400.0, 1.0), run(100, 400.0, 1.0), run(200, 800.0, 1.0)];
        let [row] = &rows(&SHAPE, runs)[..] else { panic!("one row") };
        assert_eq!((row.commands_per_s, row.floor_per_s, row.of_floor), (200.0, Some(400.0), Some(0.25)));
        assert_eq!((row.commands, row.host_ns_per_command), (600, Some(5_000_000.0)));
        assert_eq!((row.runs, row.line_ns, row.warning.as_ref()), (3, None, None));
    }

    #[test]
    fn latencies_of_all_runs_are_merged() {
        // 100 of 5 us, 60 of 9 us: neither run alone has this median and this p90.
        let mut slow = run(100, 400.0, 1.0);
        slow.tally.latencies = Histogram::default();
        slow.tally.latencies.record(9_000, 60);
        let [row] = &rows(&SHAPE, vec![run(100, 400.0, 1.0), slow])[..] else { panic!("one row") };
        let Latency { p50_ns, p90_ns, .. } = row.latency;
        assert!((5_000..5_100).contains(&p50_ns) && (9_000..9_200).contains(&p90_ns), "{p50_ns}, {p90_ns}");
    }

    #[test]
    fn every_placement_has_its_row() {
        let near = at(110.0, 3, &run(100, 400.0, 1.0));
        let far = at(380.0, 4, &run(50, 100.0, 1.0));
        let rows = rows(&SHAPE, [near, far, at(900.0, 1, &run(9, 30.0, 1.0))].concat());
        let told: Vec<_> = rows.iter().map(|row| (row.line_ns, row.runs, row.of_floor)).collect();
        assert_eq!(told, [(Some(110.0), 3, Some(0.25)), (Some(380.0), 4, Some(0.5))]);
        assert!(rows.iter().all(|row| row.left_out == LeftOut { scattered: 1, ..LeftOut::default() }));
    }

    #[test]
    fn a_table_for_people() {
        let shared = Shape { drives: Drives(2), ..SHAPE };
        let near = rows(&SHAPE, at(112.4, 3, &run(1_234_500, 4e6, 1.0)));
        let disturbed = rows(&shared, vec![run(2_000_000, 4e6, 0.25)]);
        let report =
            Cells { notes: vec!["all of it is made up".into()], ..cells([near, disturbed].concat()) };
        let expected = "\
2 x Example 9000, Linux 6.12.1

TARGET         COMMANDS                           LINE-NS  RUNS  KCMD/S  MB/S  FLOOR-KCMD/S  OF-FLOOR  P50-US  P99-US  P99.9-US  P99.99-US  REACTOR-NS/CMD  HOST-NS/CMD  LEAST/MOST
memory:512MiB  random read 4KiB, QD 32                112     3  1234.5  5057        4000.0      0.31    5.00    5.00      5.00       5.00               -          810           -
memory:512MiB  random read 4KiB, QD 32, 2 drives        -     1  2000.0  8192        4000.0      0.50    5.00    5.00      5.00       5.00               -          125        0.75
warning: memory:512MiB: random read 4KiB, QD 32, 2 drives: disturbed: the host had 25 % of its core, the floor had 100 % of its core
note: all of it is made up
";
        assert_eq!(report.text(), expected);
    }

    #[test]
    fn json_for_programs() {
        let json = serde_json::to_value(cells(rows(&SHAPE, at(380.0, 1, &run(1000, 4000.0, 1.0)))));
        let expected = serde_json::json!({
            "machine": {
                "processor": "Example 9000", "processors": 2, "kernel": "6.12.1",
                "reactor": 0, "host": 1, "assertions": false
            },
            "rows": [{
                "target": "memory:512MiB", "block_size": 4096, "queue_depth": 32, "queues": 1,
                "pattern": "random", "mix": "read", "drives": 1, "doorbells": "mapped", "line_ns": 380.0, "runs": 1,
                "left_out": { "moved": 0, "disturbed": 0, "scattered": 0, "absent": 0 },
                "commands": 1000,
                "commands_per_s": 1000.0, "bytes_per_s": 4_096_000.0, "floor_per_s": 4000.0,
                "of_floor": 0.25,
                "latency": {
                    "p50_ns": 5000, "p90_ns": 5000, "p99_ns": 5000, "p99_9_ns": 5000,
                    "p99_99_ns": 5000, "max_ns": 5000
                },
                "reactor_ns_per_command": null, "host_ns_per_command": 1_000_000.0,
                "fairness": null, "reactor": null
            }],
            "notes": []
        });
        assert_eq!(json.expect("it can be written"), expected);
    }
}
