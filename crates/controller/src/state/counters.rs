//! Counters of namespaces and queues, and histograms of namespaces, of one subsystem. Its reactor writes them, and any
//! thread reads.

use crate::state::health::Counts;
use crate::state::latency::Cells;
use crate::state::limits::{CONTROLLERS_MAX, IO_QUEUES_MAX, NAMESPACES_MAX};
use sluice_command::Operation;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
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

/// Returns what cells contain.
fn counts_of(cells: &CountCells) -> CommandCounts {
    let get = |row: usize, column: usize| cells[row][column].load(Relaxed);
    CommandCounts {
        commands: (0..ROWS).map(|row| get(row, 0)).sum(),
        errors: get(FAILED, 0),
        bytes_read: get(Operation::Read as usize, 1),
        bytes_written: get(Operation::Write as usize, 1),
    }
}

/// Adds commands and their bytes to a row of cells.
#[inline(always)]
fn add_to(cells: &CountCells, row: usize, commands: u64, bytes: u64) {
    add(&cells[row][0], commands);
    add(&cells[row][1], bytes);
}

/// Counters of one stream: of a queue and a namespace.
#[derive(Debug, Default)]
struct StreamCells {
    /// [Stream](sluice_command::Origin::stream) that has these cells for good; zero if none has.
    key: AtomicU32,
    counts: CountCells,
}

/// Adds to a cell with one writer: a load and a store, not a locked instruction.
#[inline]
fn add(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
}

/// Counters of the namespaces and queues of a subsystem. Parts without commands use no memory.
#[derive(Debug)]
pub(crate) struct DetailCells {
    /// The first streams that came: the counters of a command are in one place, found by a comparison.
    streams: [StreamCells; STREAMS],
    /// All other streams: their namespaces, and behind these the commands of none.
    namespaces: Box<[CountCells]>,
    /// Histograms of each of them.
    histograms: Box<[[Cells; 4]]>,
    /// Queues of all other streams.
    queues: Box<[CountCells]>,
}

/// Counters of the queue of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCounts {
    pub controller: u8,
    pub queue: u16,
    pub counts: CommandCounts,
}

/// Number of the cells for commands of no namespace.
const NO_NAMESPACE: u32 = NAMESPACES_MAX as u32;

/// Returns a [stream](sluice_command::Origin::stream) with the namespace replaced by none.
pub(crate) fn without_namespace(stream: u32) -> u32 {
    stream & !(0xff << 16) | NO_NAMESPACE << 16
}

/// Returns the controller, the queue and the namespace of a stream.
fn parts_of(stream: u32) -> (u8, u16, u8) {
    ((stream >> 24) as u8, stream as u16, (stream >> 16) as u8)
}

/// Streams with cells of their own.
const STREAMS: usize = 64;

/// Returns the place of a stream's own cells.
#[inline(always)]
fn place_of(stream: u32) -> usize {
    // The upper bits of a product with the golden ratio depend on all bits of the stream.
    (stream.wrapping_mul(0x9e37_79b1) >> (u32::BITS - STREAMS.ilog2())) as usize
}

impl DetailCells {
    /// Creates counters. Without memory there are none.
    pub(crate) fn new() -> Self {
        let histograms = FromZeros::new_box_zeroed_with_elems(NAMESPACES_MAX + 1).unwrap_or_default();
        let namespaces = FromZeros::new_box_zeroed_with_elems(NAMESPACES_MAX + 1).unwrap_or_default();
        let queues = FromZeros::new_box_zeroed_with_elems(QUEUES).unwrap_or_default();
        let streams = std::array::from_fn(|_| StreamCells::default());
        Self { streams, namespaces, histograms, queues }
    }

    /// Counts commands of a [stream](sluice_command::Origin::stream) that succeeded.
    #[inline(always)]
    pub(crate) fn add(&self, stream: u32, operation: Operation, commands: u64, bytes: u64) {
        let cells = &self.streams[place_of(stream)];
        match cells.key.load(Relaxed) == stream {
            true => add_to(&cells.counts, operation as usize, commands, bytes),
            false => self.add_other(stream, operation, commands, bytes),
        }
    }

    /// Counts commands of a stream that has no cells of its own, or not yet.
    #[cold]
    #[inline(never)]
    fn add_other(&self, stream: u32, operation: Operation, commands: u64, bytes: u64) {
        let cells = &self.streams[place_of(stream)];
        if cells.key.load(Relaxed) == 0 {
            add_to(&cells.counts, operation as usize, commands, bytes);
            // A reader that sees the key sees the commands.
            return cells.key.store(stream, Release);
        }
        self.add_apart(stream, operation as usize, commands, bytes);
    }

    /// Counts commands that failed.
    pub(crate) fn add_failed(&self, stream: u32, commands: u64) {
        self.add_apart(stream, FAILED, commands, 0);
    }

    fn add_apart(&self, stream: u32, row: usize, commands: u64, bytes: u64) {
        let (controller, queue, namespace) = parts_of(stream);
        let queue = usize::from(controller) * QUEUES_OF_EACH + usize::from(queue);
        let cells = [self.queues.get(queue), self.namespaces.get(usize::from(namespace))];
        cells.into_iter().flatten().for_each(|cells| add_to(cells, row, commands, bytes));
    }

    /// Returns the streams with cells of their own, and their counters.
    fn streams(&self) -> impl Iterator<Item = (u32, CommandCounts)> {
        let used = self.streams.iter().map(|cells| (cells.key.load(Acquire), &cells.counts));
        used.filter(|&(key, _)| key != 0).map(|(key, counts)| (key, counts_of(counts)))
    }

    /// Returns the counters of each namespace, and behind them those of none.
    fn namespace_counts(&self) -> [CommandCounts; NAMESPACES_MAX + 1] {
        let mut sums = [CommandCounts::default(); NAMESPACES_MAX + 1];
        sums.iter_mut().zip(&self.namespaces).for_each(|(sum, cells)| sum.add(counts_of(cells)));
        for (stream, counts) in self.streams() {
            if let Some(sum) = sums.get_mut(usize::from(parts_of(stream).2)) {
                sum.add(counts);
            }
        }
        sums
    }

    /// Returns the histogram with this index of a stream's namespace.
    pub(crate) fn histogram(&self, stream: u32, index: usize) -> Option<&Cells> {
        self.histograms.get(usize::from(parts_of(stream).2))?.get(index)
    }

    /// Adds the counters of the namespaces that have had commands, by their index.
    pub(crate) fn add_namespaces(&self, sums: &mut [CommandCounts; NAMESPACES_MAX]) {
        sums.iter_mut().zip(self.namespace_counts()).for_each(|(sum, counts)| sum.add(counts));
    }

    /// Returns the histograms of a namespace.
    pub(crate) fn histograms(&self, index: usize) -> Option<&[Cells; 4]> {
        self.histograms.get(index)
    }

    /// Returns the histograms of all commands: of each namespace, and of none.
    pub(crate) fn all_histograms(&self) -> impl Iterator<Item = &[Cells; 4]> {
        let counts = self.namespace_counts().into_iter().zip(&self.histograms);
        counts.filter(|(counts, _)| counts.commands > 0).map(|(_, histograms)| histograms)
    }

    /// Adds the counters of the queues that have had commands.
    pub(crate) fn add_queues(&self, sums: &mut Vec<QueueCounts>) {
        let others = self.queues.iter().enumerate().map(|(index, cells)| {
            ((index / QUEUES_OF_EACH) as u8, (index % QUEUES_OF_EACH) as u16, counts_of(cells))
        });
        let streams = self.streams().map(|(key, counts)| (parts_of(key).0, parts_of(key).1, counts));
        for (controller, queue, counts) in others.chain(streams).filter(|(.., counts)| counts.commands > 0) {
            match sums.iter_mut().find(|sum| (sum.controller, sum.queue) == (controller, queue)) {
                Some(sum) => sum.counts.add(counts),
                None => sums.push(QueueCounts { controller, queue, counts }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn streams_are_counted_exactly_whatever_cells_they_have() {
        let cells = DetailCells::new();
        let (mut of_queues, mut of_namespaces) = (BTreeMap::new(), BTreeMap::new());
        for round in 0..4_u64 {
            // More streams than there are cells, and some with the same place.
            for number in 0..300_u64 {
                let (controller, queue, namespace) =
                    (number as u8 % 3, 1 + number as u16 % 70, (number / 7 % 50) as u8);
                let stream = u32::from(queue) | u32::from(namespace) << 16 | u32::from(controller) << 24;
                let operation = if number % 2 == 0 { Operation::Read } else { Operation::Write };
                let (commands, bytes) = (1 + round, 512 * (number + 1));
                let failed = number % 10 == 9;
                match failed {
                    false => cells.add(stream, operation, commands, bytes),
                    true => cells.add_failed(stream, commands),
                }
                let [read, written] = if number % 2 == 0 { [bytes, 0] } else { [0, bytes] };
                let more = match failed {
                    false => CommandCounts { commands, errors: 0, bytes_read: read, bytes_written: written },
                    true => CommandCounts { commands, errors: commands, ..CommandCounts::default() },
                };
                of_queues.entry((controller, queue)).or_insert_with(CommandCounts::default).add(more);
                of_namespaces.entry(namespace).or_insert_with(CommandCounts::default).add(more);
            }
        }
        assert_eq!(cells.streams().count(), STREAMS, "all are used");
        let mut queues = Vec::new();
        cells.add_queues(&mut queues);
        let found: BTreeMap<_, _> = queues.iter().map(|it| ((it.controller, it.queue), it.counts)).collect();
        assert_eq!((found.len(), &found), (queues.len(), &of_queues));
        let mut namespaces = [CommandCounts::default(); NAMESPACES_MAX];
        cells.add_namespaces(&mut namespaces);
        let used = namespaces.into_iter().enumerate().filter(|(_, counts)| counts.commands > 0);
        assert_eq!(
            used.map(|(index, counts)| (index as u8, counts)).collect::<BTreeMap<_, _>>(),
            of_namespaces
        );
        assert_eq!(cells.all_histograms().count(), of_namespaces.len());
    }
}
