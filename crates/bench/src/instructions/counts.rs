//! Counts, and their tables for people.

use super::scenario::{
    CALLED, CLASSIFIERS, DRIVEN, FUNCTIONS, Function, OPERATIONS, POOLED, SIDES, Scenario, Side, TARGETS,
    TRANSFERS, Transport,
};
use serde::Serialize;
use sluice_spec::table::Table;

/// Count of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Count {
    #[serde(flatten)]
    pub scenario: Scenario,
    /// Instructions of one command: the mean over some turns.
    pub instructions: f64,
    /// Entries of a reactor into the kernel for one command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syscalls: Option<f64>,
}

/// All counts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Counts {
    pub counts: Vec<Count>,
}

impl Counts {
    fn find(&self, wanted: Scenario) -> Option<&Count> {
        // All counts of a run are with the same measurements.
        let Scenario { latency, trace, .. } = wanted;
        self.counts.iter().find(|count| Scenario { latency, trace, ..count.scenario } == wanted)
    }

    fn get(&self, wanted: Scenario) -> Option<f64> {
        self.find(wanted).map(|count| count.instructions)
    }

    fn batches(&self, transport: Transport) -> Vec<u32> {
        let scenarios = self.counts.iter().map(|count| count.scenario);
        let these = scenarios.filter(|scenario| scenario.transport == transport);
        let mut batches: Vec<u32> = these.map(|scenario| scenario.batch).collect();
        batches.sort_unstable();
        batches.dedup();
        batches
    }

    /// Returns the instructions of a scenario beyond those of a plain read.
    fn added(&self, scenario: Scenario) -> Option<f64> {
        Some(self.get(scenario)? - self.get(Scenario { batch: scenario.batch, ..Scenario::PLAIN })?)
    }

    /// Formats the tables that are not empty.
    pub fn text(&self) -> String {
        let tables = [
            (
                "Instructions of one command, by how many are in a turn; reads and writes of 4 KiB.",
                self.commands(),
            ),
            ("Instructions that a function adds to a command (read, null target).", self.functions()),
            ("Instructions that a classifier adds to a command (read, null target).", self.classifiers()),
            ("Instructions of one call of a classifier, by how many calls are counted.", self.calls()),
            ("Instructions of the host that measures, for one command.", self.hosts()),
            (
                "Instructions of one command of 4 KiB over NVMe/TCP and entries into the kernel, by how many are under way.",
                self.remote(),
            ),
            (
                "Instructions of one command of 4 KiB driven directly and entries into the kernel, by how many are under way.",
                self.direct(),
            ),
        ];
        let tables = tables.iter().filter(|(_, table)| !table.is_empty());
        let texts: Vec<String> =
            tables.map(|(title, table)| format!("{title}\n\n{}", table.text())).collect();
        texts.join("\n")
    }

    fn commands(&self) -> Table {
        let rows = TARGETS.into_iter().flat_map(|target| OPERATIONS.map(|operation| (target, operation)));
        let rows = rows.map(|(target, operation)| {
            let scenario = Scenario { target, operation, ..Scenario::PLAIN };
            (vec![target.word(), operation.word()], scenario)
        });
        self.turns(&["TARGET", "COMMAND"], rows, Self::get)
    }

    fn functions(&self) -> Table {
        let rows =
            FUNCTIONS.map(|function| (vec![function.word()], Scenario { function, ..Scenario::PLAIN }));
        self.turns(&["FUNCTION"], rows, Self::added)
    }

    fn classifiers(&self) -> Table {
        let scenario = |classifier| Scenario { classifier, ..Scenario::PLAIN };
        let rows = CLASSIFIERS.map(|classifier| (vec![classifier.word()], scenario(classifier)));
        self.turns(&["CLASSIFIER"], rows, Self::added)
    }

    fn calls(&self) -> Table {
        let scenario = |classifier| Scenario { side: Side::Call, classifier, ..Scenario::PLAIN };
        let rows = CALLED.map(|classifier| (vec![classifier.word()], scenario(classifier)));
        self.turns(&["CLASSIFIER"], rows, Self::get)
    }

    fn hosts(&self) -> Table {
        let rows = [(vec!["host"], Scenario { side: Side::Host, ..Scenario::PLAIN })];
        self.turns(&["SIDE"], rows, Self::get)
    }

    fn remote(&self) -> Table {
        let whose = SIDES.into_iter().flat_map(|side| TARGETS.map(|target| (side, target)));
        let all = whose.flat_map(|(side, target)| TRANSFERS.map(|operation| (side, target, operation)));
        let rows = all.map(|(side, target, operation)| {
            let scenario = Scenario { transport: Transport::Tcp, side, target, operation, ..Scenario::PLAIN };
            (vec![side.word(), target.word(), operation.word()], scenario)
        });
        self.reactors(Transport::Tcp, &["SIDE", "TARGET", "COMMAND"], rows)
    }

    fn direct(&self) -> Table {
        let over = DRIVEN.into_iter().flat_map(|function| TARGETS.map(|target| (function, target)));
        let all =
            over.flat_map(|(function, target)| TRANSFERS.map(|operation| (function, target, operation)));
        let pooled = POOLED.into_iter().map(|(target, operation)| (Function::None, target, operation));
        let rows = all.chain(pooled).map(|(function, target, operation)| {
            let (transport, side) = (Transport::Direct, Side::Host);
            let scenario = Scenario { transport, side, function, target, operation, ..Scenario::PLAIN };
            (vec![function.word(), target.word(), operation.word()], scenario)
        });
        self.reactors(Transport::Direct, &["FUNCTION", "TARGET", "COMMAND"], rows)
    }

    /// Returns a table of reactors: two columns for each number of commands in flight.
    fn reactors<'a>(
        &self,
        transport: Transport,
        first: &[&str],
        rows: impl IntoIterator<Item = (Vec<&'a str>, Scenario)>,
    ) -> Table {
        let batches = self.batches(transport);
        let titles = batches.iter().flat_map(|batch| [format!("QD-{batch}"), "CALLS".to_owned()]);
        let cells = |scenario| {
            let count = self.find(scenario);
            let calls = count.and_then(|count| count.syscalls);
            [
                count.map(|count| format!("{:.1}", count.instructions)),
                calls.map(|calls| format!("{calls:.2}")),
            ]
        };
        table(first, titles, rows, |scenario| {
            batches.iter().flat_map(|&batch| cells(Scenario { batch, ..scenario })).collect()
        })
    }

    /// Returns a table of turns: a column for each number of commands in one.
    fn turns<'a>(
        &self,
        first: &[&str],
        rows: impl IntoIterator<Item = (Vec<&'a str>, Scenario)>,
        number: impl Fn(&Self, Scenario) -> Option<f64>,
    ) -> Table {
        let batches = self.batches(Transport::Pcie);
        let titles = batches.iter().map(|batch| format!("{batch}-A-TURN"));
        let cell = |scenario| number(self, scenario).map(|number| format!("{number:.1}"));
        table(first, titles, rows, |scenario| {
            batches.iter().map(|&batch| cell(Scenario { batch, ..scenario })).collect()
        })
    }
}

/// Returns a table with a row for each scenario that has a number.
fn table<'a>(
    first: &[&str],
    others: impl Iterator<Item = String>,
    rows: impl IntoIterator<Item = (Vec<&'a str>, Scenario)>,
    cells: impl Fn(Scenario) -> Vec<Option<String>>,
) -> Table {
    let titles: Vec<String> = first.iter().map(|&title| title.to_owned()).chain(others).collect();
    let mut table = Table::new(&titles);
    for (words, scenario) in rows {
        let cells = cells(scenario);
        if cells.iter().any(Option::is_some) {
            let cells = cells.into_iter().map(|cell| cell.unwrap_or_else(|| "-".to_owned()));
            table.row(words.into_iter().map(str::to_owned).chain(cells).collect());
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instructions::{Classifier, Function, Operation};

    const READ: Scenario = Scenario { batch: 8, ..Scenario::PLAIN };

    fn count(scenario: Scenario, instructions: f64) -> Count {
        Count { scenario, instructions, syscalls: None }
    }

    #[test]
    fn functions_and_classifiers_are_told_by_what_they_add() {
        let counts = vec![
            count(Scenario { batch: 1, ..READ }, 500.0),
            count(READ, 400.25),
            count(Scenario { function: Function::Pass, ..READ }, 450.5),
            count(Scenario { classifier: Classifier::Ebpf, ..READ }, 600.0),
            count(Scenario { side: Side::Call, classifier: Classifier::EbpfWindow, ..READ }, 70.0),
            count(Scenario { side: Side::Host, ..READ }, 60.0),
        ];
        let expected = "\
Instructions of one command, by how many are in a turn; reads and writes of 4 KiB.

TARGET  COMMAND  1-A-TURN  8-A-TURN
null    read        500.0     400.2

Instructions that a function adds to a command (read, null target).

FUNCTION  1-A-TURN  8-A-TURN
pass             -      50.2

Instructions that a classifier adds to a command (read, null target).

CLASSIFIER  1-A-TURN  8-A-TURN
ebpf               -     199.8

Instructions of one call of a classifier, by how many calls are counted.

CLASSIFIER   1-A-TURN  8-A-TURN
ebpf-window         -      70.0

Instructions of the host that measures, for one command.

SIDE  1-A-TURN  8-A-TURN
host         -      60.0
";
        assert_eq!(Counts { counts }.text(), expected);
    }

    #[test]
    fn layers_that_are_driven_directly_have_a_table() {
        let direct = Scenario { transport: Transport::Direct, side: Side::Host, ..READ };
        let mirror = Scenario { function: Function::Mirror, operation: Operation::Write, ..direct };
        let counts = vec![
            Count { syscalls: Some(0.0), ..count(direct, 100.0) },
            Count { syscalls: Some(0.25), ..count(mirror, 2000.5) },
        ];
        let expected = "\
Instructions of one command of 4 KiB driven directly and entries into the kernel, by how many are under way.

FUNCTION  TARGET  COMMAND    QD-8  CALLS
none      null    read      100.0   0.00
mirror    null    write    2000.5   0.25
";
        assert_eq!(Counts { counts }.text(), expected);
    }

    #[test]
    fn over_tcp_either_side_has_its_entries_into_the_kernel_beside() {
        let host = Scenario { transport: Transport::Tcp, side: Side::Host, ..READ };
        let counts = vec![
            Count { syscalls: Some(2.0), ..count(Scenario { batch: 1, ..host }, 3000.0) },
            Count { syscalls: Some(0.125), ..count(host, 700.5) },
            Count { syscalls: Some(0.5), ..count(Scenario { side: Side::Controller, ..host }, 900.0) },
        ];
        let expected = "\
Instructions of one command of 4 KiB over NVMe/TCP and entries into the kernel, by how many are under way.

SIDE        TARGET  COMMAND    QD-1  CALLS   QD-8  CALLS
host        null    read     3000.0   2.00  700.5   0.12
controller  null    read          -      -  900.0   0.50
";
        assert_eq!(Counts { counts }.text(), expected);
    }
}
