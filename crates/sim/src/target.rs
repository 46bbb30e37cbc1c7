//! The simulated target: a layer over a [`SimDisk`], answered by a [`SimEngine`].

use crate::{SimDisk, SimEngine};
use sluice_command::{
    Characteristics, Command, Deallocated, Lane, Layer, NodeId, Operation, Request, Slot, Ticket,
};
use sluice_nvme::Status;

/// A target that executes its requests part by part, when its engine answers.
#[derive(Debug)]
pub struct SimTarget {
    disk: SimDisk,
    engine: SimEngine,
    node: NodeId,
}

impl SimTarget {
    /// Creates a target; `node` is its future position in its stack
    /// ([`StackBuilder::next_id`](sluice_command::StackBuilder::next_id)).
    pub fn new(disk: SimDisk, engine: SimEngine, node: NodeId) -> Self {
        Self { disk, engine, node }
    }

    /// Moves the next part of a parked command. Returns true if that was the last.
    fn step(&self, request: &Request, slot: &Slot, ticket: Ticket, done: u64) -> bool {
        let mut disk = self.disk.lock();
        let length = disk.config().next_extent(request.length, done);
        let mut extent = vec![0; length as usize];
        let at = request.offset + done;
        match request.operation {
            Operation::Read => {
                disk.read(at, &mut extent);
                slot.data.copy_from(done as usize, &extent);
            }
            Operation::Write => {
                slot.data.copy_to(done as usize, &mut extent);
                disk.write(at, &extent);
            }
            Operation::WriteZeroes | Operation::Deallocate => disk.write(at, &extent),
            Operation::Flush => disk.flush(),
        }
        self.engine.advance(ticket, length);
        done + length == request.length
    }

    /// Makes data durable after all of a request was moved, as the request requires.
    fn settle(&self, request: &Request) {
        let mut disk = self.disk.lock();
        if request.operation.modifies() && (request.fua || !disk.config().volatile_cache) {
            disk.persist(request.offset..request.end());
        }
    }
}

impl Layer for SimTarget {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        let config = self.disk.lock().config();
        Characteristics {
            atomic_write: config.atomic_write,
            volatile_cache: config.volatile_cache,
            deallocated: Deallocated::Zeroes,
            ..Characteristics::target(config.size, config.block_size)
        }
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let slot = lane.slot(&command);
        let moves_data = matches!(slot.request.operation, Operation::Read | Operation::Write);
        if slot.request.end() > self.disk.lock().config().size {
            return lane.finish(command, Status::LBA_OUT_OF_RANGE);
        }
        if moves_data && slot.data.len_bytes() as u64 != slot.request.length {
            return lane.finish(command, Status::INTERNAL_ERROR);
        }
        let ticket = lane.park(command);
        self.engine.start(self.node, ticket);
    }

    fn event(&mut self, ticket: Ticket, _result: i32, lane: &mut Lane<'_>) {
        let (Some(done), Some(slot)) = (self.engine.done(ticket), lane.parked(ticket)) else { return };
        let request = slot.request;
        let size = self.disk.lock().config().size;
        let mut status = Status::SUCCESS;
        if request.end() > size {
            // The disk was made smaller under the command.
            status = Status::LBA_OUT_OF_RANGE;
        } else if self.step(&request, slot, ticket, done) {
            self.settle(&request);
        } else {
            return;
        }
        self.engine.finish(ticket);
        if let Some(command) = lane.unpark(ticket) {
            lane.finish(command, status);
        }
    }

    fn resized(&mut self, size: u64) {
        self.disk.lock().resize(size);
    }
}
