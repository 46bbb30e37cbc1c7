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

    #[inline]
    fn add(&self, run: &Counted) {
        add(&self.commands, run.commands + run.errors);
        if run.errors > 0 {
            add(&self.errors, run.errors);
        }
        let bytes = match run.operation {
            Operation::Read => &self.bytes[0],
            Operation::Write => &self.bytes[1],
            _ => return,
        };
        add(bytes, run.bytes);
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

/// Successful and failed commands of one queue, namespace and operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    pub(crate) controller: u8,
    pub(crate) queue: u16,
    /// Number of the namespace, counted from zero.
    pub(crate) namespace: u8,
    pub(crate) operation: Operation,
    pub(crate) commands: u64,
    pub(crate) errors: u64,
    pub(crate) bytes: u64,
}

impl DetailCells {
    /// Creates counters. Without memory there are none.
    pub(crate) fn new() -> Self {
        let namespaces = FromZeros::new_box_zeroed_with_elems(NAMESPACES_MAX).unwrap_or_default();
        let queues = FromZeros::new_box_zeroed_with_elems(QUEUES).unwrap_or_default();
        Self { namespaces, queues }
    }

    /// Counts commands, and their times if they have one: the index of the histogram, and nanoseconds.
    #[inline]
    pub(crate) fn add(&self, run: &Counted, time: Option<(usize, u64)>) {
        let queue = usize::from(run.controller) * QUEUES_OF_EACH + usize::from(run.queue);
        if let Some(cells) = self.queues.get(queue) {
            cells.add(run);
        }
        if let Some(cells) = self.namespaces.get(usize::from(run.namespace)) {
            cells.counts.add(run);
            if let Some((histogram, ns)) = time
                && let Some(histogram) = cells.histograms.get(histogram)
            {
                histogram.add(ns, run.commands + run.errors);
            }
        }
    }

    /// Adds the counters of the namespaces that have had commands, by their index.
    pub(crate) fn add_namespaces(&self, sums: &mut [CommandCounts; NAMESPACES_MAX]) {
        sums.iter_mut().zip(&self.namespaces).for_each(|(sum, cells)| sum.add(cells.counts.get()));
    }

    /// Returns the histograms of a namespace.
    pub(crate) fn histograms(&self, index: usize) -> Option<&[Cells; 4]> {
        self.namespaces.get(index).map(|cells| &cells.histograms)
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
