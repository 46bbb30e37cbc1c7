//! Stack under test: one function over a target that notes its requests.

use sluice_command::{
    Aborted, Characteristics, Command, Lane, Layer, Limits, Operation, Origin, Request, Slab, Stack,
    StackBuilder,
};
use sluice_memory::SharedRegion;
use sluice_nvme::{Status, SubmissionEntry};
use std::sync::{Arc, Mutex};

pub(crate) const SIZE: u64 = 1 << 20;
pub(crate) const BLOCK: u32 = 512;

/// Requests that reached the target, in order.
pub(crate) type Log = Arc<Mutex<Vec<Request>>>;

struct Noting {
    log: Log,
    status: Status,
}

impl Layer for Noting {
    fn name(&self) -> &'static str {
        "noting"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        Characteristics::target(SIZE, BLOCK)
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let slot = lane.slot(&command);
        let has_data = matches!(slot.request.operation, Operation::Read | Operation::Write);
        let bytes = if has_data { slot.request.length as usize } else { 0 };
        assert_eq!(slot.data.len_bytes(), bytes, "data and request differ");
        self.log.lock().expect("not poisoned").push(slot.request);
        lane.finish(command, self.status);
    }
}

pub(crate) struct Bench {
    pub(crate) stack: Stack,
    pub(crate) slab: Slab,
    pub(crate) now_ns: u64,
    pub(crate) log: Log,
    memory: SharedRegion,
    submitted: u16,
}

impl Bench {
    /// Puts `function` over a target that answers everything with `status`.
    pub(crate) fn new(function: impl Layer + 'static, status: Status) -> Self {
        let log = Log::default();
        let mut builder = StackBuilder::new();
        let target = builder.add(Box::new(Noting { log: Arc::clone(&log), status }), &[]).expect("a target");
        builder.add(Box::new(function), &[target]).expect("a function");
        let stack = builder.build();
        let slab = Slab::new(Limits::new(64, stack.characteristics().fan_out)).expect("a slab");
        let memory = SharedRegion::new("bench", 1 << 16).expect("memory");
        Self { stack, slab, now_ns: 0, log, memory, submitted: 0 }
    }

    /// Submits a request; its CID counts from zero and wraps around.
    pub(crate) fn submit(&mut self, operation: Operation, offset: u64, length: u64) -> Vec<(u16, Status)> {
        let origin = Origin { cid: self.submitted, ..Origin::default() };
        self.submitted = self.submitted.wrapping_add(1);
        let command = self.slab.admit(&SubmissionEntry::default(), origin).expect("room");
        let slot = self.slab.slot_mut(&command);
        slot.request = Request { operation, offset, length, ..Request::default() };
        if matches!(operation, Operation::Read | Operation::Write) {
            slot.data.push(self.memory.segment(0, length as u32)).expect("one segment");
        }
        self.stack.submit(self.stack.root(), command, &mut self.slab, self.now_ns);
        self.settle()
    }

    pub(crate) fn read(&mut self, offset: u64) -> Vec<(u16, Status)> {
        self.submit(Operation::Read, offset, BLOCK.into())
    }

    pub(crate) fn write(&mut self, offset: u64, length: u64) -> Vec<(u16, Status)> {
        self.submit(Operation::Write, offset, length)
    }

    /// Advances to the stack's next deadline, which must exist. Returns the commands that come back then.
    pub(crate) fn expire(&mut self) -> Vec<(u16, Status)> {
        let deadline_ns = self.stack.deadline_ns().expect("a command waits");
        self.now_ns = self.now_ns.max(deadline_ns);
        self.expire_now()
    }

    /// Calls the layers whose deadline has come. Returns the commands that come back then.
    pub(crate) fn expire_now(&mut self) -> Vec<(u16, Status)> {
        self.stack.expire(&mut self.slab, self.now_ns);
        self.settle()
    }

    fn settle(&mut self) -> Vec<(u16, Status)> {
        let mut done = Vec::new();
        self.stack.run_completions(&mut self.slab, self.now_ns, &mut done);
        let back = done.iter().map(|command| {
            let slot = self.slab.slot(command);
            (slot.origin.cid, slot.status)
        });
        let back = back.collect();
        done.into_iter().for_each(|command| self.slab.release(command));
        back
    }

    /// Aborts commands. Returns the ones that end.
    pub(crate) fn abort(&mut self, which: Aborted) -> Vec<(u16, Status)> {
        self.stack.abort(which, Status::ABORT_REQUESTED, &mut self.slab, self.now_ns);
        self.settle()
    }

    /// Returns the offsets that reached the target since the last call.
    pub(crate) fn reached(&mut self) -> Vec<u64> {
        self.log.lock().expect("not poisoned").drain(..).map(|request| request.offset).collect()
    }
}
