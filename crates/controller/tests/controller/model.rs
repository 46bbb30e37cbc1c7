//! Target for tests: bytes in a vector, which can be made slow, broken or read-only.

use sluice_command::{
    Aborted, Characteristics, Command, Controllers, Deallocated, Lane, Layer, Operation, Request, Slot,
    Ticket,
};
use sluice_controller::{Namespace, NamespaceConfig};
use sluice_nvme::Status;
use sluice_router::RouterBuilder;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

/// Byte of the data that a device gives.
pub(crate) const PASSED: u8 = 0xa5;

/// State that the target and its test share.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) bytes: Vec<u8>,
    pub(crate) is: Characteristics,
    /// Whether commands are parked until [`Model::tickets`] are answered.
    pub(crate) hold: bool,
    pub(crate) parked: VecDeque<Ticket>,
    /// Whether parked commands wait for room, and end without it when no host needs them any more.
    pub(crate) full: bool,
    /// Whether parked commands end when that is requested.
    pub(crate) aborts: bool,
    /// Status of every command, if it is not success.
    pub(crate) fails_with: Option<Status>,
    /// Every request that arrived, in order.
    pub(crate) seen: Vec<Request>,
    /// Opcode, request and bytes of data of every command that arrived unchanged.
    pub(crate) passed: Vec<(u8, Request, usize)>,
}

/// Handle to a [`Disk`]; one of the handles is the layer.
#[derive(Clone, Debug)]
pub(crate) struct Model(Arc<Mutex<Disk>>);

impl Model {
    /// Returns a disk of `blocks` blocks of 512 bytes with a volatile cache, which deallocates to zeroes.
    pub(crate) fn new(blocks: usize) -> Self {
        let size = blocks * 512;
        let is = Characteristics {
            volatile_cache: true,
            deallocated: Deallocated::Zeroes,
            optimal_write: 4096,
            atomic_write: 4096,
            ..Characteristics::target(size as u64, 512)
        };
        Self::with(is)
    }

    pub(crate) fn with(is: Characteristics) -> Self {
        let bytes = vec![0; is.size as usize];
        let (hold, full, parked) = (false, false, VecDeque::new());
        let (aborts, fails_with, seen, passed) = (false, None, Vec::new(), Vec::new());
        Self(Arc::new(Mutex::new(Disk { bytes, is, hold, parked, full, aborts, fails_with, seen, passed })))
    }

    pub(crate) fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().expect("not poisoned")
    }

    /// Returns a namespace of 512-byte blocks over this disk.
    pub(crate) fn namespace(&self, nsid: u32) -> Namespace {
        self.namespace_of_blocks(nsid, 512)
    }

    pub(crate) fn namespace_of_blocks(&self, nsid: u32, block_size: u32) -> Namespace {
        let stack = sluice_command::Stack::of(Box::new(self.clone()));
        let config = NamespaceConfig { nsid, block_size, uuid: [nsid as u8; 16] };
        Namespace::new(config, RouterBuilder::new(stack).build()).expect("a namespace that is possible")
    }

    /// Returns the requests since the last call.
    pub(crate) fn take_seen(&self) -> Vec<Request> {
        std::mem::take(&mut self.disk().seen)
    }
}

impl Disk {
    fn execute(&mut self, slot: &mut Slot) -> Status {
        if let Some(status) = self.fails_with {
            return status;
        }
        let Request { operation, offset, length, .. } = slot.request;
        let range = offset as usize..(offset + length) as usize;
        if range.end > self.bytes.len() {
            // It became smaller while the command was parked.
            return Status::LBA_OUT_OF_RANGE;
        }
        let moved = match operation {
            Operation::Read => slot.data.copy_from(0, &self.bytes[range]),
            Operation::Write => slot.data.copy_to(0, &mut self.bytes[range]),
            Operation::WriteZeroes | Operation::Deallocate => {
                self.bytes[range].fill(0);
                length as usize
            }
            Operation::Flush => 0,
        };
        assert_eq!(moved as u64, length, "data is as long as the request");
        Status::SUCCESS
    }
}

impl Layer for Model {
    fn name(&self) -> &'static str {
        "model"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        self.disk().is
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let mut disk = self.disk();
        disk.seen.push(lane.slot(&command).request);
        if disk.hold {
            disk.parked.push_back(lane.park(command));
        } else {
            let status = disk.execute(lane.slot_mut(&command));
            lane.finish(command, status);
        }
    }

    fn is_idle(&self) -> bool {
        self.disk().parked.is_empty()
    }

    fn pass(&mut self, command: Command, lane: &mut Lane<'_>) {
        let (opcode, slot) = (lane.entry(&command).opcode, lane.slot(&command));
        let passed = (opcode, slot.request, slot.data.len_bytes());
        let mut disk = self.disk();
        disk.passed.push(passed);
        let hold = disk.hold;
        drop(disk);
        match hold {
            true => self.submit(command, lane),
            false => {
                let slot = lane.slot_mut(&command);
                if opcode & 3 == 2 {
                    slot.data.copy_from(0, &vec![PASSED; slot.data.len_bytes()]);
                }
                lane.finish(command, Status::SUCCESS);
            }
        }
    }

    fn event(&mut self, ticket: Ticket, _result: i32, lane: &mut Lane<'_>) {
        let Some(command) = lane.unpark(ticket) else { return };
        let status = self.disk().execute(lane.slot_mut(&command));
        lane.finish(command, status);
    }

    fn end_waiting(&mut self, of: Controllers, why: Status, lane: &mut Lane<'_>) {
        let mut disk = self.disk();
        if !disk.full {
            return;
        }
        for ticket in std::mem::take(&mut disk.parked) {
            if !lane.is_of(of, ticket) {
                disk.parked.push_back(ticket);
                continue;
            }
            let Some(command) = lane.unpark(ticket) else { continue };
            lane.finish(command, why);
        }
    }

    fn abort(&mut self, which: Aborted, why: Status, lane: &mut Lane<'_>) {
        let mut disk = self.disk();
        if !disk.aborts {
            return;
        }
        disk.parked.retain(|ticket| {
            let command = if lane.is_aborted(which, *ticket) { lane.unpark(*ticket) } else { None };
            let stays = command.is_none();
            command.into_iter().for_each(|command| lane.finish(command, why));
            stays
        });
    }

    fn resized(&mut self, size: u64) {
        let mut disk = self.disk();
        disk.bytes.resize(size as usize, 0);
        disk.is.size = size;
    }
}
