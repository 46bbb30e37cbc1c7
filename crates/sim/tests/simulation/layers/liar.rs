//! Layer that reports operations as done that were not done. The model must detect each.

use sluice_command::{Characteristics, Command, Lane, Layer, Operation};
use sluice_nvme::Status;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// Flush is answered and not done.
    ForgetFlush,
    /// Force Unit Access is removed.
    ForgetFua,
    /// Every tenth write is answered and not done.
    LoseWrite,
    /// Every tenth read is of the next block.
    ReadElsewhere,
    /// The last block of every tenth long write is not written.
    ShortWrite,
}

#[derive(Debug)]
pub(crate) struct Liar {
    lie: Lie,
    chances: u64,
}

impl Liar {
    pub(crate) fn new(lie: Lie) -> Self {
        Self { lie, chances: 0 }
    }

    fn now(&mut self) -> bool {
        self.chances += 1;
        self.chances.is_multiple_of(10)
    }
}

impl Layer for Liar {
    fn name(&self) -> &'static str {
        "liar"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        below[0].over()
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let block = 512;
        let slot = lane.slot_mut(&command);
        match (self.lie, slot.request.operation) {
            (Lie::ForgetFlush, Operation::Flush) => return lane.finish(command, Status::SUCCESS),
            (Lie::ForgetFua, _) => slot.request.fua = false,
            (Lie::LoseWrite, Operation::Write) if self.now() => return lane.finish(command, Status::SUCCESS),
            (Lie::ReadElsewhere, Operation::Read) if self.now() => {
                slot.request.offset = slot.request.offset.saturating_sub(block);
            }
            (Lie::ShortWrite, Operation::Write) if slot.request.length > block && self.now() => {
                slot.request.length -= block;
                let whole = std::mem::take(&mut slot.data);
                let kept = whole.slice(0, slot.request.length as usize, &mut slot.data);
                kept.expect("shorter than the whole");
            }
            _ => {}
        }
        lane.forward(command);
    }
}
