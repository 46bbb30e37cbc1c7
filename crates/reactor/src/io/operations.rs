//! Table of operations in flight: the task and the file of each.

use crate::task::TaskId;

/// The `user_data` of entries whose completion carries nothing.
pub(super) const CANCEL: u64 = u64::MAX;
/// The `user_data` of the poll on the mailbox's eventfd.
pub(super) const NOTIFIER: u64 = u64::MAX - 1;
/// The `user_data` of the poll on the ring for NVMe commands.
pub(super) const COMMANDS: u64 = u64::MAX - 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OperationKind {
    /// Poll for these events; ends only when it is cancelled, or when the kernel ends it.
    Poll(u32),
    /// A poll on the file registered with this index that is started again if the kernel ends it.
    Watch(u32),
    /// Operation on the registered file with this index.
    File(u32),
    /// Receive of the registered stream socket with this index. Like a send it ends when the peer acts, or
    /// when it is cancelled.
    Receive(u32),
    Send(u32),
    /// An NVMe command for the device that is registered with this index on the ring for commands.
    Command(u32),
    /// A signal to the eventfd registered with this index.
    Signal(u32),
    /// Operation on memory.
    Memory,
}

/// Reason for which an operation was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cancelled {
    No,
    ByTask,
    /// The task moves: the operation continues on the next reactor.
    ForMove,
    /// The move was given up or is over: the operation continues on this reactor.
    ForNothing,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Operation {
    pub(super) task: TaskId,
    pub(super) token: u64,
    pub(super) kind: OperationKind,
    pub(super) cancelled: Cancelled,
}

impl Operation {
    pub(super) fn new(task: TaskId, token: u64, kind: OperationKind) -> Self {
        Self { task, token, kind, cancelled: Cancelled::No }
    }

    /// Returns whether the operation need not end by itself.
    pub(super) fn is_endless(&self) -> bool {
        !matches!(self.kind, OperationKind::File(_) | OperationKind::Command(_) | OperationKind::Memory)
    }

    /// Returns whether the operation was cancelled only for a move.
    pub(super) fn is_interrupted(&self) -> bool {
        matches!(self.cancelled, Cancelled::ForMove | Cancelled::ForNothing)
    }
}

/// Table of operations; the position of an operation is its `user_data`. The table grows to the largest
/// number that was ever in flight at once, which the starters of operations bound.
#[derive(Default)]
pub(super) struct Operations {
    table: Vec<Option<Operation>>,
    free: Vec<usize>,
    /// Number in flight, by task.
    in_flight: Vec<u32>,
}

impl Operations {
    /// Enters an operation; returns its `user_data`.
    pub(super) fn begin(&mut self, operation: Operation) -> u64 {
        *self.count(operation.task) += 1;
        let position = self.free.pop().unwrap_or_else(|| {
            self.table.push(None);
            self.table.len() - 1
        });
        self.table[position] = Some(operation);
        position as u64
    }

    /// Looks up the operation of a completion, and removes it from the table unless there is `more` to come.
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

    /// Marks the operations of a task that were cancelled for a move as continuing here: it has moved, or
    /// stays.
    pub(super) fn stay(&mut self, task: TaskId) {
        let of_task = self.table.iter_mut().flatten().filter(|operation| operation.task == task);
        for operation in of_task.filter(|operation| operation.cancelled == Cancelled::ForMove) {
            operation.cancelled = Cancelled::ForNothing;
        }
    }

    /// Marks matching operations as cancelled, and returns their `user_data`. Searches the whole table.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_of_a_task_that_stays_continue_and_those_that_it_cancelled_end() {
        let [moves, other] = [(); 2].map(|()| TaskId::take().expect("there are numbers"));
        let mut operations = Operations::default();
        let mut begin = |task, token| operations.begin(Operation::new(task, token, OperationKind::Poll(1)));
        let [kept, dropped, untouched, others] =
            [begin(moves, 0), begin(moves, 1), begin(moves, 2), begin(other, 3)];
        let mut cancel = |by, wanted| {
            assert_eq!(operations.cancel(by, |operation| operation.token == wanted).len(), 1);
        };
        cancel(Cancelled::ForMove, 0);
        cancel(Cancelled::ByTask, 1);
        cancel(Cancelled::ForMove, 3);
        operations.stay(moves);
        let mut found = |user_data| operations.complete(user_data, false).expect("it is there").cancelled;
        assert_eq!(found(kept), Cancelled::ForNothing);
        assert_eq!(found(dropped), Cancelled::ByTask);
        assert_eq!(found(untouched), Cancelled::No);
        assert_eq!(found(others), Cancelled::ForMove, "the other task has not stayed");
    }
}
