//! What is in flight: for whom, on which file.

use crate::task::TaskId;

/// The `user_data` of entries whose completion says nothing.
pub(super) const CANCEL: u64 = u64::MAX;
/// The `user_data` of the poll on the mailbox's bell.
pub(super) const BELL: u64 = u64::MAX - 1;
/// The `user_data` of the poll on the ring for NVMe commands.
pub(super) const COMMANDS: u64 = u64::MAX - 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// For these events; ends only when it is cancelled, or the kernel likes.
    Poll(u32),
    /// A poll on the file registered with this index that is started again if the kernel ends it.
    Watch(u32),
    /// On the registered file with this index.
    File(u32),
    /// Of the registered stream socket with this index: they end when the peer likes, or are cancelled.
    Receive(u32),
    Send(u32),
    /// An NVMe command for the device that is registered with this index on the ring for commands.
    Command(u32),
    /// A signal to the eventfd registered with this index.
    Signal(u32),
    /// On memory.
    Memory,
}

/// Who has asked for the end of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cancelled {
    No,
    ByTask,
    /// We, since the task moves: it is to go on elsewhere.
    ForMove,
    /// The same, and the task stays: it is to go on here.
    ForNothing,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Operation {
    pub(super) task: TaskId,
    pub(super) token: u64,
    pub(super) kind: Kind,
    pub(super) cancelled: Cancelled,
}

impl Operation {
    pub(super) fn new(task: TaskId, token: u64, kind: Kind) -> Self {
        Self { task, token, kind, cancelled: Cancelled::No }
    }

    /// It need not end by itself.
    pub(super) fn is_endless(&self) -> bool {
        !matches!(self.kind, Kind::File(_) | Kind::Command(_) | Kind::Memory)
    }

    /// Ended by us, and not for good.
    pub(super) fn is_interrupted(&self) -> bool {
        matches!(self.cancelled, Cancelled::ForMove | Cancelled::ForNothing)
    }
}

/// A table of operations; the position of one is its `user_data`. Grows to the most that were ever in
/// flight at once, which those who start them bound.
#[derive(Default)]
pub(super) struct Operations {
    table: Vec<Option<Operation>>,
    free: Vec<usize>,
    /// By task.
    in_flight: Vec<u32>,
}

impl Operations {
    /// Notes an operation; its `user_data`.
    pub(super) fn begin(&mut self, operation: Operation) -> u64 {
        *self.count(operation.task) += 1;
        let position = self.free.pop().unwrap_or_else(|| {
            self.table.push(None);
            self.table.len() - 1
        });
        self.table[position] = Some(operation);
        position as u64
    }

    /// Looks up the operation of a completion, which is over unless there is `more` to come.
    pub(super) fn complete(&mut self, user_data: u64, more: bool) -> Option<Operation> {
        let position = usize::try_from(user_data).ok()?;
        let operation = *self.table.get(position)?.as_ref()?;
        if !more {
            self.table[position] = None;
            self.free.push(position);
            *self.count(operation.task) -= 1;
        }
        Some(operation)
    }

    fn count(&mut self, task: TaskId) -> &mut u32 {
        if self.in_flight.len() <= task.index() {
            self.in_flight.resize(task.index() + 1, 0);
        }
        &mut self.in_flight[task.index()]
    }

    pub(super) fn in_flight(&self, task: TaskId) -> u32 {
        self.in_flight.get(task.index()).copied().unwrap_or(0)
    }

    /// A task has moved, or stays: what is still in flight of what was to go on elsewhere goes on here.
    pub(super) fn stay(&mut self, task: TaskId) {
        let of_task = self.table.iter_mut().flatten().filter(|operation| operation.task == task);
        for operation in of_task.filter(|operation| operation.cancelled == Cancelled::ForMove) {
            operation.cancelled = Cancelled::ForNothing;
        }
    }

    /// The `user_data` of operations that fit, which are marked as cancelled. Looks at all of them.
    pub(super) fn cancel(&mut self, by: Cancelled, fits: impl Fn(&Operation) -> bool) -> Vec<u64> {
        let mut found = Vec::new();
        for (position, operation) in (0..).zip(&mut self.table) {
            if let Some(operation) = operation.as_mut().filter(|operation| fits(operation)) {
                operation.cancelled = by;
                found.push(position);
            }
        }
        found
    }
}
