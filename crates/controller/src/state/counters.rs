//! Counters of namespaces and queues, and histograms of namespaces, of one subsystem. Its reactor writes them, and any
//! thread reads.

use crate::state::health::Counts;
use crate::state::latency::Cells;
use crate::state::limits::{CONTROLLERS_MAX, IO_QUEUES_MAX, NAMESPACES_MAX};
use sluice_command::Operation;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use zerocopy::FromZeros;

/// I/O queues of all controllers, with the admin queues.
const QUEUES: usize = CONTROLLERS_MAX * QUEUES_OF_EACH;
const QUEUES_OF_EACH: usize = IO_QUEUES_MAX as usize + 1;

/// Counters of I/O commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandCounts {
    /// Commands completed, with failed ones.
    pub commands: u64,
    pub errors: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

impl CommandCounts {
    fn add(&mut self, more: Self) {
        self.commands += more.commands;
        self.errors += more.errors;
        self.bytes_read = self.bytes_read.wrapping_add(more.bytes_read);
        self.bytes_written = self.bytes_written.wrapping_add(more.bytes_written);
    }
}

/// Cells of a queue or a namespace: commands and bytes of each operation that succeeded, and the commands that failed.
type CountCells = [[AtomicU64; 2]; ROWS];

const FAILED: usize = Counts::OPERATIONS;
const ROWS: usize = FAILED + 1;

/// Counters of queues or namespaces.
#[derive(Debug)]
struct Table(Box<[CountCells]>);

impl Table {
    /// Creates counters, which use no memory before they are used. Without memory there are none.
    fn new(len: usize) -> Self {
        Self(FromZeros::new_box_zeroed_with_elems(len).unwrap_or_default())
    }

    /// Adds commands and their bytes to a row of the cells with this index.
    #[inline(always)]
    fn add(&self, index: usize, row: usize, commands: u64, bytes: u64) {
        // One check of bounds for both indices: this is done for each command.
        if let Some(cells) = self.0.as_flattened().get(index * ROWS + row) {
            add(&cells[0], commands);
            add(&cells[1], bytes);
        }
    }

    /// Returns the counters by their index.
    fn iter(&self) -> impl Iterator<Item = CommandCounts> {
        self.0.iter().map(|cells| {
            let get = |row: usize, column: usize| cells[row][column].load(Relaxed);
            CommandCounts {
                commands: (0..ROWS).map(|row| get(row, 0)).sum(),
                errors: get(FAILED, 0),
                bytes_read: get(Operation::Read as usize, 1),
                bytes_written: get(Operation::Write as usize, 1),
            }
        })
    }
}

/// Adds to a cell with one writer: a load and a store, not a locked instruction.
#[inline]
fn add(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
}

/// Counters of the namespaces and queues of a subsystem. Parts without commands use no memory.
#[derive(Debug)]
pub(crate) struct DetailCells {
    /// Namespaces, and behind them the commands of none.
    namespaces: Table,
    /// Histograms of each of them.
    histograms: Box<[[Cells; 4]]>,
    queues: Table,
}

/// Counters of the queue of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCounts {
    pub controller: u8,
    pub queue: u16,
    pub counts: CommandCounts,
}

/// Commands of one queue, namespace and operation that succeeded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    pub(crate) controller: u8,
    pub(crate) queue: u16,
    /// Number of the namespace, counted from zero; [`NO_NAMESPACE`] for commands of none.
    pub(crate) namespace: u8,
    pub(crate) operation: Operation,
    pub(crate) commands: u64,
    pub(crate) bytes: u64,
}

/// Number of the cells for commands of no namespace.
pub(crate) const NO_NAMESPACE: u8 = NAMESPACES_MAX as u8;

impl DetailCells {
    /// Creates counters. Without memory there are none.
    pub(crate) fn new() -> Self {
        let histograms = FromZeros::new_box_zeroed_with_elems(NAMESPACES_MAX + 1).unwrap_or_default();
        Self { namespaces: Table::new(NAMESPACES_MAX + 1), histograms, queues: Table::new(QUEUES) }
    }

    /// Counts commands that succeeded.
    #[inline(always)]
    pub(crate) fn add(&self, run: &Counted) {
        self.add_to(run, run.operation as usize, run.bytes);
    }

    /// Counts commands that failed.
    pub(crate) fn add_failed(&self, run: &Counted) {
        self.add_to(run, FAILED, 0);
    }

    #[inline(always)]
    fn add_to(&self, run: &Counted, row: usize, bytes: u64) {
        let queue = usize::from(run.controller) * QUEUES_OF_EACH + usize::from(run.queue);
        self.queues.add(queue, row, run.commands, bytes);
        self.namespaces.add(usize::from(run.namespace), row, run.commands, bytes);
    }

    /// Returns the histogram of a namespace with this index.
    pub(crate) fn histogram(&self, namespace: u8, index: usize) -> Option<&Cells> {
        self.histograms.get(usize::from(namespace))?.get(index)
    }

    /// Adds the counters of the namespaces that have had commands, by their index.
    pub(crate) fn add_namespaces(&self, sums: &mut [CommandCounts; NAMESPACES_MAX]) {
        sums.iter_mut().zip(self.namespaces.iter()).for_each(|(sum, counts)| sum.add(counts));
    }

    /// Returns the histograms of a namespace.
    pub(crate) fn histograms(&self, index: usize) -> Option<&[Cells; 4]> {
        self.histograms.get(index)
    }

    /// Returns the histograms of all commands: of each namespace, and of none.
    pub(crate) fn all_histograms(&self) -> impl Iterator<Item = &[Cells; 4]> {
        let used = self.namespaces.iter().zip(&self.histograms).filter(|(counts, _)| counts.commands > 0);
        used.map(|(_, histograms)| histograms)
    }

    /// Adds the counters of the queues that have had commands.
    pub(crate) fn add_queues(&self, sums: &mut Vec<QueueCounts>) {
        let used = self.queues.iter().enumerate();
        for (index, counts) in used.filter(|(_, counts)| counts.commands > 0) {
            let (controller, queue) = ((index / QUEUES_OF_EACH) as u8, (index % QUEUES_OF_EACH) as u16);
            match sums.iter_mut().find(|sum| (sum.controller, sum.queue) == (controller, queue)) {
                Some(sum) => sum.counts.add(counts),
                None => sums.push(QueueCounts { controller, queue, counts }),
            }
        }
    }
}
