//! Counters of namespaces and queues, and histograms of namespaces, of one subsystem. Its reactor writes them, and any
//! thread reads.

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

#[derive(Debug, FromZeros)]
struct CountCells {
    commands: AtomicU64,
    errors: AtomicU64,
    /// Bytes that were read, and that were written.
    bytes: [AtomicU64; 2],
}

impl CountCells {
    fn get(&self) -> CommandCounts {
        let [bytes_read, bytes_written] = [&self.bytes[0], &self.bytes[1]].map(|cell| cell.load(Relaxed));
        let (commands, errors) = (self.commands.load(Relaxed), self.errors.load(Relaxed));
        CommandCounts { commands, errors, bytes_read, bytes_written }
    }

    /// Counts commands that succeeded.
    #[inline]
    fn add(&self, run: &Counted) {
        add(&self.commands, run.commands);
        match run.operation {
            Operation::Read => add(&self.bytes[0], run.bytes),
            Operation::Write => add(&self.bytes[1], run.bytes),
            _ => {}
        }
    }

    /// Counts commands that failed.
    fn add_failed(&self, commands: u64) {
        add(&self.commands, commands);
        add(&self.errors, commands);
    }
}

/// Adds to a cell with one writer: a load and a store, not a locked instruction.
#[inline]
fn add(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
}

#[derive(Debug, FromZeros)]
struct NamespaceCells {
    counts: CountCells,
    histograms: [Cells; 4],
}

/// Counters of the namespaces and queues of a subsystem. Parts without commands use no memory.
#[derive(Debug)]
pub(crate) struct DetailCells {
    /// Namespaces, and behind them the commands of none.
    namespaces: Box<[NamespaceCells]>,
    queues: Box<[CountCells]>,
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
        let namespaces = FromZeros::new_box_zeroed_with_elems(NAMESPACES_MAX + 1).unwrap_or_default();
        let queues = FromZeros::new_box_zeroed_with_elems(QUEUES).unwrap_or_default();
        Self { namespaces, queues }
    }

    fn queue(&self, run: &Counted) -> Option<&CountCells> {
        self.queues.get(usize::from(run.controller) * QUEUES_OF_EACH + usize::from(run.queue))
    }

    /// Counts commands that succeeded, and returns the histogram of their namespace with this index.
    #[inline]
    pub(crate) fn add(&self, run: &Counted, histogram: usize) -> Option<&Cells> {
        if let Some(cells) = self.queue(run) {
            cells.add(run);
        }
        let cells = self.namespaces.get(usize::from(run.namespace))?;
        cells.counts.add(run);
        cells.histograms.get(histogram)
    }

    /// Counts commands that failed, and returns the histogram of their namespace with this index.
    pub(crate) fn add_failed(&self, run: &Counted, histogram: usize) -> Option<&Cells> {
        if let Some(cells) = self.queue(run) {
            cells.add_failed(run.commands);
        }
        let cells = self.namespaces.get(usize::from(run.namespace))?;
        cells.counts.add_failed(run.commands);
        cells.histograms.get(histogram)
    }

    /// Adds the counters of the namespaces that have had commands, by their index.
    pub(crate) fn add_namespaces(&self, sums: &mut [CommandCounts; NAMESPACES_MAX]) {
        sums.iter_mut().zip(&self.namespaces).for_each(|(sum, cells)| sum.add(cells.counts.get()));
    }

    /// Returns the histograms of a namespace.
    pub(crate) fn histograms(&self, index: usize) -> Option<&[Cells; 4]> {
        self.namespaces.get(index).map(|cells| &cells.histograms)
    }

    /// Returns the histograms of all commands: of each namespace, and of none.
    pub(crate) fn all_histograms(&self) -> impl Iterator<Item = &[Cells; 4]> {
        let used = self.namespaces.iter().filter(|cells| cells.counts.commands.load(Relaxed) > 0);
        used.map(|cells| &cells.histograms)
    }

    /// Adds the counters of the queues that have had commands.
    pub(crate) fn add_queues(&self, sums: &mut Vec<QueueCounts>) {
        let used = self.queues.iter().enumerate().map(|(index, cells)| (index, cells.get()));
        for (index, counts) in used.filter(|(_, counts)| counts.commands > 0) {
            let (controller, queue) = ((index / QUEUES_OF_EACH) as u8, (index % QUEUES_OF_EACH) as u16);
            match sums.iter_mut().find(|sum| (sum.controller, sum.queue) == (controller, queue)) {
                Some(sum) => sum.counts.add(counts),
                None => sums.push(QueueCounts { controller, queue, counts }),
            }
        }
    }
}
