//! Polling of tasks that nothing can wake, at growing intervals.
//!
//! The intervals are the longest one halved again and again, and the polls of one interval lie on its
//! multiples since boot. So all tasks of an interval are polled together, and those of a longer one together
//! with those of a shorter one: a hundred tasks at 4 ms cost 250 wake-ups a second, not 25,000.

use crate::task::TaskId;

/// Intervals; the shortest is the longest / 64.
const LEVELS: usize = 7;

#[derive(Debug)]
pub(crate) struct Timed {
    levels: [Level; LEVELS],
    /// Time of the first poll that is due; `u64::MAX` without tasks.
    nearest_ns: u64,
}

#[derive(Debug)]
struct Level {
    interval_ns: u64,
    /// Meaningful while there are tasks.
    due_ns: u64,
    tasks: Vec<TaskId>,
}

impl Level {
    fn next_look_ns(&self, now_ns: u64) -> u64 {
        (now_ns / self.interval_ns + 1) * self.interval_ns
    }

    fn add(&mut self, task: TaskId, now_ns: u64) {
        if self.tasks.is_empty() {
            self.due_ns = self.next_look_ns(now_ns);
        }
        self.tasks.push(task);
    }
}

impl Timed {
    pub(crate) fn new(interval_max_ns: u64) -> Self {
        let shortest = (interval_max_ns >> (LEVELS - 1)).max(1);
        let level = |n: usize| Level { interval_ns: shortest << n, due_ns: 0, tasks: Vec::new() };
        Self { levels: std::array::from_fn(level), nearest_ns: u64::MAX }
    }

    /// Adds a task without work: it is polled soon, then less and less often.
    pub(crate) fn add(&mut self, task: TaskId, now_ns: u64) {
        self.add_at(0, task, now_ns);
    }

    /// Adds a task back that a poll found without work, one level above its previous one.
    pub(crate) fn add_slower(&mut self, task: TaskId, level: usize, now_ns: u64) {
        self.add_at((level + 1).min(LEVELS - 1), task, now_ns);
    }

    fn add_at(&mut self, level: usize, task: TaskId, now_ns: u64) {
        self.levels[level].add(task, now_ns);
        self.nearest_ns = self.nearest_ns.min(self.levels[level].due_ns);
    }

    pub(crate) fn remove(&mut self, task: TaskId) {
        for level in &mut self.levels {
            level.tasks.retain(|&other| other != task);
        }
        self.find_nearest();
    }

    pub(crate) fn nearest_ns(&self) -> u64 {
        self.nearest_ns
    }

    fn find_nearest(&mut self) {
        let filled = self.levels.iter().filter(|level| !level.tasks.is_empty());
        self.nearest_ns = filled.map(|level| level.due_ns).min().unwrap_or(u64::MAX);
    }

    /// Takes the tasks whose poll is due, with their levels.
    pub(crate) fn take_due(&mut self, now_ns: u64, out: &mut Vec<(TaskId, usize)>) {
        for (index, level) in self.levels.iter_mut().enumerate() {
            if level.due_ns <= now_ns {
                out.extend(level.tasks.drain(..).map(|task| (task, index)));
            }
        }
        self.find_nearest();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_NS: u64 = 4_000_000;

    /// Runs idle tasks from `from_ns` to `to_ns`; returns the times of the polls.
    fn looks(timed: &mut Timed, from_ns: u64, to_ns: u64) -> Vec<(u64, usize)> {
        let (mut now_ns, mut looks, mut due) = (from_ns, Vec::new(), Vec::new());
        loop {
            now_ns = now_ns.max(timed.nearest_ns());
            if now_ns >= to_ns {
                return looks;
            }
            timed.take_due(now_ns, &mut due);
            looks.push((now_ns, due.len()));
            for (task, level) in due.drain(..) {
                timed.add_slower(task, level, now_ns);
            }
        }
    }

    #[test]
    fn the_interval_doubles_up_to_the_longest() {
        let mut timed = Timed::new(MAX_NS);
        timed.add(TaskId(0), 0);
        let times: Vec<u64> = looks(&mut timed, 0, 20_000_000).iter().map(|look| look.0).collect();
        assert_eq!(times[..4], [62_500, 125_000, 250_000, 500_000]);
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] <= MAX_NS));
        assert!(times[7..].windows(2).all(|pair| pair[1] - pair[0] == MAX_NS));
    }

    #[test]
    fn a_hundred_tasks_added_at_any_time_share_their_looks() {
        let mut timed = Timed::new(MAX_NS);
        for n in 0..100 {
            timed.add(TaskId(n), u64::from(n) * 12_345);
        }
        looks(&mut timed, 1_234_500, 50_000_000);
        let second = looks(&mut timed, 1_000_000_000, 2_000_000_000);
        assert!(second.len() <= 251, "{} looks in a second", second.len());
        assert!(second[1..].iter().all(|&(_, tasks)| tasks == 100));
    }

    #[test]
    fn a_removed_task_is_not_looked_at() {
        let mut timed = Timed::new(MAX_NS);
        timed.add(TaskId(7), 0);
        timed.remove(TaskId(7));
        assert_eq!(timed.nearest_ns(), u64::MAX);
    }
}
