//! What is in flight, task by task.

use crate::task::TaskId;

/// Counts operations, because a task's memory and number are in use until the last has completed.
#[derive(Default)]
pub(super) struct Ledger {
    tasks: Vec<Account>,
}

#[derive(Default, Clone)]
struct Account {
    in_flight: u32,
    /// Tokens of armed polls, which never complete unless they are cancelled.
    polls: Vec<u64>,
}

impl Ledger {
    fn account(&mut self, task: TaskId) -> &mut Account {
        if self.tasks.len() <= task.index() {
            self.tasks.resize(task.index() + 1, Account::default());
        }
        &mut self.tasks[task.index()]
    }

    pub(super) fn begin(&mut self, task: TaskId) {
        self.account(task).in_flight += 1;
    }

    pub(super) fn begin_poll(&mut self, task: TaskId, token: u64) {
        let account = self.account(task);
        account.in_flight += 1;
        account.polls.push(token);
    }

    pub(super) fn end(&mut self, task: TaskId, token: u64, more: bool) {
        if more {
            return;
        }
        let account = self.account(task);
        account.in_flight -= 1;
        if let Some(position) = account.polls.iter().position(|&poll| poll == token) {
            account.polls.swap_remove(position);
        }
    }

    pub(super) fn in_flight(&self, task: TaskId) -> u32 {
        self.tasks.get(task.index()).map_or(0, |account| account.in_flight)
    }

    pub(super) fn polls(&self, task: TaskId) -> Vec<u64> {
        self.tasks.get(task.index()).map_or_else(Vec::new, |account| account.polls.clone())
    }
}
