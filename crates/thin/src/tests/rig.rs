//! Volumes on a simulated disk, turned by hand.

use super::disk::{SECTOR, SharedDisk};
use crate::committer::Committer;
use crate::layer::{OnFull, Parts, ThinPort};
use sluice_command::{
    Aborted, Characteristics, Command, Controllers, Deallocated, Lane, Layer, Limits, NodeId, Operation,
    Origin, Request, Slab, Stack, StackBuilder, Ticket,
};
use sluice_functions::Random;
use sluice_memory::{SharedRegion, Space};
use sluice_nvme::{Status, SubmissionEntry};
use std::sync::{Arc, Mutex};

/// Bytes of the host's memory for one command.
pub(super) const DATA_MAX: usize = 512 << 10;
pub(super) const COMMANDS: usize = 8;

type Tickets = Arc<Mutex<Vec<Ticket>>>;

/// The disk as a target that executes each command when the rig chooses it.
struct Target {
    disk: SharedDisk,
    tickets: Tickets,
}

impl Layer for Target {
    fn name(&self) -> &'static str {
        "disk"
    }

    fn characteristics(&self, _: &[Characteristics]) -> Characteristics {
        Characteristics {
            volatile_cache: true,
            deallocated: Deallocated::Zeroes,
            ..Characteristics::target(self.disk.lock().size(), SECTOR as u32)
        }
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let ticket = lane.park(command);
        self.tickets.lock().expect("not poisoned").push(ticket);
    }

    fn event(&mut self, ticket: Ticket, _: i32, lane: &mut Lane<'_>) {
        let Some(slot) = lane.parked(ticket) else { return };
        let Request { operation, offset, length, fua, .. } = slot.request;
        let mut disk = self.disk.lock();
        let mut bytes = vec![0; length as usize];
        let is_done = match operation {
            Operation::Read => {
                let is_done = disk.read(offset, &mut bytes);
                slot.data.copy_from(0, &bytes);
                is_done
            }
            Operation::Write => {
                slot.data.copy_to(0, &mut bytes);
                disk.write(offset, &bytes)
            }
            Operation::WriteZeroes | Operation::Deallocate => disk.write(offset, &bytes),
            Operation::Flush => disk.flush(),
        };
        if is_done && fua {
            disk.persist(offset, length as usize);
        }
        drop(disk);
        let status = if is_done { Status::SUCCESS } else { Status::WRITE_FAULT };
        if let Some(command) = lane.unpark(ticket) {
            lane.finish(command, status);
        }
    }
}

/// An open volume, with the part of a controller that it needs.
pub(super) struct Volume {
    stack: Stack,
    slab: Slab,
    memory: SharedRegion,
    space: Space,
    tickets: Tickets,
    done: Vec<Command>,
    now_ns: u64,
    /// Free places for commands.
    pub(super) places: Vec<usize>,
    /// Ended commands: their place, request and status.
    pub(super) ended: Vec<(usize, Request, Status)>,
}

impl Volume {
    pub(super) fn open(
        committer: &mut Committer<SharedDisk>,
        disk: &SharedDisk,
        name: &str,
        size: u64,
        on_full: OnFull,
    ) -> Result<Self, crate::Error> {
        let (port, connection) = committer.home.side().connect().expect("a port");
        let number = port.number();
        let opened = committer.open_volume(name, size, connection);
        let opened = opened.inspect_err(|_| committer.home.side().release(number))?;
        let parts = Parts::new(&committer.layout(), opened.size, on_full);
        let thin = ThinPort::new(port, opened, parts).build_alone().expect("memory");
        let tickets = Tickets::default();
        let mut builder = StackBuilder::default();
        let target = Target { disk: disk.clone(), tickets: Arc::clone(&tickets) };
        let below = builder.add(Box::new(target), &[]).expect("it is shallow");
        builder.add(Box::new(thin), &[below]).expect("it is shallow");
        Ok(Self {
            stack: builder.build(),
            slab: Slab::new(Limits::with_reserve(COMMANDS as u32, 64, 64)).expect("memory"),
            memory: SharedRegion::new("host", DATA_MAX * COMMANDS).expect("memory"),
            space: Space::new(),
            tickets,
            done: Vec::new(),
            now_ns: 1,
            places: (0..COMMANDS).collect(),
            ended: Vec::new(),
        })
    }

    /// Submits a command, for which there is a free place.
    pub(super) fn submit(&mut self, request: Request, data: &[u8]) -> usize {
        let place = self.places.pop().expect("a free place");
        let origin = Origin { cid: place as u16, ..Origin::default() };
        let command = self.slab.admit(&SubmissionEntry::default(), origin).expect("room");
        let slot = self.slab.slot_mut(&command);
        slot.request = request;
        if request.has_data() {
            let at = place * DATA_MAX;
            match request.operation {
                Operation::Write => self.memory.write(at, data),
                _ => self.memory.fill(at, request.length as usize, 0xee),
            }
            slot.data.push(self.memory.segment(at, request.length as u32)).expect("one segment");
        }
        self.stack.submit(self.stack.root(), command, &mut self.slab, self.now_ns);
        self.settle();
        place
    }

    fn settle(&mut self) {
        self.stack.run_completions(&mut self.slab, self.now_ns, &mut self.done);
        for command in self.done.drain(..) {
            let slot = self.slab.slot(&command);
            self.ended.push((slot.origin.cid.into(), slot.request, slot.status));
            self.slab.release(command);
        }
    }

    /// Executes a command of the disk; returns whether there was one.
    pub(super) fn execute(&mut self, random: &mut Random) -> bool {
        let mut tickets = self.tickets.lock().expect("not poisoned");
        if tickets.is_empty() {
            return false;
        }
        let chosen = random.below(tickets.len() as u64) as usize;
        let ticket = tickets.swap_remove(chosen);
        drop(tickets);
        self.stack.event(NodeId(0), ticket, 0, &mut self.slab, self.now_ns);
        self.settle();
        true
    }

    pub(super) fn poll(&mut self) {
        self.now_ns += 10_000_000;
        self.stack.poll(0, &self.space, &mut self.slab, self.now_ns);
        if self.stack.deadline_ns().is_some_and(|at| at <= self.now_ns) {
            self.stack.expire(&mut self.slab, self.now_ns);
        }
        self.settle();
    }

    pub(super) fn end_waiting(&mut self, of: Controllers, why: Status) {
        self.stack.end_waiting(of, why, &mut self.slab, self.now_ns);
        self.settle();
    }

    /// Aborts one command.
    pub(super) fn abort(&mut self, place: usize, why: Status) {
        let which = Aborted { cid: Some(place as u16), ..Aborted::of(Controllers::of_bits(1)) };
        self.stack.abort(which, why, &mut self.slab, self.now_ns);
        self.settle();
    }

    pub(super) fn data(&self, place: usize, length: usize) -> Vec<u8> {
        let mut data = vec![0; length];
        self.memory.read(place * DATA_MAX, &mut data);
        data
    }

    /// Runs one command to its end, with the home of the pool.
    pub(super) fn run(
        &mut self,
        committer: &mut Committer<SharedDisk>,
        request: Request,
        data: &[u8],
    ) -> Option<(Status, Vec<u8>)> {
        let place = self.submit(request, data);
        let mut random = Random::new(1);
        for _ in 0..2000 {
            if let Some(found) = self.ended.iter().position(|(of, ..)| *of == place) {
                let (_, _, status) = self.ended.swap_remove(found);
                self.places.push(place);
                let length = if request.operation == Operation::Read { request.length } else { 0 };
                return Some((status, self.data(place, length as usize)));
            }
            while self.execute(&mut random) {}
            committer.turn();
            self.poll();
        }
        None
    }
}
