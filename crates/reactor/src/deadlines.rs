//! Times at which sleeping tasks are woken.

use crate::task::TaskId;

const NEVER: u64 = u64::MAX;

/// Table of one time per task: a thousand tasks are scanned in a fraction of a microsecond, and only when the
/// nearest time has come.
#[derive(Debug)]
pub(crate) struct Deadlines {
    at_ns: Vec<u64>,
    /// A lower bound of the earliest time; too early if that time was cleared.
    nearest_ns: u64,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { at_ns: Vec::new(), nearest_ns: NEVER }
    }
}

impl Deadlines {
    pub(crate) fn set(&mut self, task: TaskId, at_ns: u64) {
        if self.at_ns.len() <= task.index() {
            self.at_ns.resize(task.index() + 1, NEVER);
        }
        self.at_ns[task.index()] = at_ns;
        self.nearest_ns = self.nearest_ns.min(at_ns);
    }

    pub(crate) fn clear(&mut self, task: TaskId) {
        if let Some(at_ns) = self.at_ns.get_mut(task.index()) {
            *at_ns = NEVER;
        }
    }

    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.nearest_ns <= now_ns
    }

    /// Returns the earliest time exactly, for going to sleep.
    pub(crate) fn nearest_ns(&mut self) -> u64 {
        self.nearest_ns = self.at_ns.iter().copied().min().unwrap_or(NEVER);
        self.nearest_ns
    }

    /// Takes the tasks whose time has come.
    pub(crate) fn take_due(&mut self, now_ns: u64, out: &mut Vec<TaskId>) {
        for (index, at_ns) in self.at_ns.iter_mut().enumerate() {
            if *at_ns <= now_ns {
                *at_ns = NEVER;
                out.push(TaskId(index as u16));
            }
        }
        self.nearest_ns();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_due_is_taken_and_the_nearest_stays_exact() {
        let mut deadlines = Deadlines::default();
        for (task, at) in [(3, 300), (1, 100), (2, 200)] {
            deadlines.set(TaskId(task), at);
        }
        assert!(!deadlines.is_due(99));
        assert!(deadlines.is_due(100));
        let mut due = Vec::new();
        deadlines.take_due(200, &mut due);
        assert_eq!(due, [TaskId(1), TaskId(2)]);
        assert_eq!(deadlines.nearest_ns(), 300);
        deadlines.clear(TaskId(3));
        assert_eq!(deadlines.nearest_ns(), NEVER);
    }

    #[test]
    fn a_later_time_replaces_an_earlier_one() {
        let mut deadlines = Deadlines::default();
        deadlines.set(TaskId(0), 10);
        deadlines.set(TaskId(0), 500);
        let mut due = Vec::new();
        deadlines.take_due(499, &mut due);
        assert!(due.is_empty());
        assert_eq!(deadlines.nearest_ns(), 500);
    }
}
