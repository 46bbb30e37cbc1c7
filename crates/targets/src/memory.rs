//! The memory target: a drive in the daemon's own memory, gone when the daemon is.

use sluice_command::{Characteristics, Command, Deallocated, Lane, Layer, Operation, Slot};
use sluice_memory::Arena;
use sluice_nvme::Status;
use std::io;

/// Bytes asked for ahead of each copy. What follows the hardware finds by itself.
const PREFETCH: usize = 512;

/// A drive in memory.
#[derive(Debug)]
pub struct Memory {
    arena: Arena,
    /// Commands of this batch. They are copied together in [`flush`](Layer::flush), so that the cache
    /// misses of all of them are under way at once.
    batch: Vec<Command>,
}

impl Memory {
    /// `size` bytes of zeros; pages are taken from the system when they are first written.
    ///
    /// # Errors
    /// The address space or the limit on it is used up.
    pub fn new(size: u64) -> io::Result<Self> {
        let length = usize::try_from(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
        Ok(Self { arena: Arena::new(length)?, batch: Vec::with_capacity(64) })
    }

    fn run(&self, slot: &Slot) -> Status {
        let request = &slot.request;
        let moved = match request.operation {
            Operation::Read => self.arena.read_into(request.offset, &slot.data),
            Operation::Write => self.arena.write_from(request.offset, &slot.data),
            Operation::WriteZeroes | Operation::Deallocate => {
                self.arena.zero(request.offset, request.length as usize)
            }
            Operation::Flush => Ok(()),
        };
        match moved {
            Ok(()) => Status::SUCCESS,
            Err(_) => Status::LBA_OUT_OF_RANGE,
        }
    }
}

impl Layer for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        Characteristics {
            deallocated: Deallocated::Zeroes,
            ..Characteristics::target(self.arena.len() as u64, 512)
        }
    }

    #[inline]
    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let request = lane.slot(&command).request;
        if request.operation == Operation::Read {
            self.arena.prefetch(request.offset, PREFETCH.min(request.length as usize));
        }
        self.batch.push(command);
    }

    fn flush(&mut self, lane: &mut Lane<'_>) {
        let mut batch = std::mem::take(&mut self.batch);
        for command in batch.drain(..) {
            let status = self.run(lane.slot(&command));
            lane.finish(command, status);
        }
        self.batch = batch;
    }

    fn resized(&mut self, size: u64) {
        if let Err(error) = self.arena.resize(size as usize) {
            tracing::error!(%error, size, "memory target keeps its old size");
        }
    }
}
