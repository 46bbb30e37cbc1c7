//! The tasks of a reactor: polled, asleep, or leaving.

use std::sync::Arc;

use crate::config::IdlePolicy;
use crate::counters::CounterCells;
use crate::deadlines::Deadlines;
use crate::io::{Completion, Io};
use crate::overdue::Overdue;
use crate::spin::TaskSpin;
use crate::task::{Arm, Task, TaskId};
use crate::timed::Timed;

/// Turns of other tasks between the preparation for a turn and the turn itself.
const LOOK_AHEAD: usize = 1;

/// Interval at which a task that always polls is armed: arming computes anew when it has work to do.
const ARM_INTERVAL_NS: u64 = 1_000_000;

/// State of a task on its reactor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Polled every turn; on the active list.
    Active,
    /// Waits for an event, perhaps with a deadline.
    Asleep,
    /// Polled on the intervals of [`Timed`].
    Timed,
    /// Removed while operations were in flight: only kept until they are done.
    Leaving,
}

struct Slot {
    task: Box<dyn Task>,
    state: State,
    last_work_ns: u64,
    spin: TaskSpin,
    overdue: Overdue,
}

impl Slot {
    /// Arms and disarms the task in place of sleep.
    fn stay_awake(&mut self, now_ns: u64) {
        self.last_work_ns = now_ns;
        if self.task.arm(now_ns) != Arm::Busy {
            self.task.disarm();
        }
    }
}

pub(crate) struct Tasks {
    slots: Vec<Option<Slot>>,
    active: Vec<TaskId>,
    deadlines: Deadlines,
    timed: Timed,
    /// Scratch list of due tasks, kept for its memory.
    due: Vec<TaskId>,
    due_looks: Vec<(TaskId, usize)>,
    always_poll: bool,
    /// The spin time in force.
    pub(crate) spin_ns: u64,
    counters: Arc<CounterCells>,
}

impl Tasks {
    pub(crate) fn new(policy: &IdlePolicy, counters: Arc<CounterCells>) -> Self {
        Self {
            slots: Vec::new(),
            active: Vec::new(),
            deadlines: Deadlines::default(),
            timed: Timed::new(policy.poll_interval_max_ns),
            due: Vec::new(),
            due_looks: Vec::new(),
            always_poll: policy.always_poll,
            spin_ns: 0,
            counters,
        }
    }

    pub(crate) fn insert(&mut self, id: TaskId, task: Box<dyn Task>, now_ns: u64) {
        if self.slots.len() <= id.index() {
            self.slots.resize_with(id.index() + 1, || None);
        }
        let (state, spin, overdue) = (State::Active, TaskSpin::new(), Overdue::default());
        self.slots[id.index()] = Some(Slot { task, state, last_work_ns: now_ns, spin, overdue });
        self.active.push(id);
    }

    /// Removes a task and returns it, or lets it leave by itself if operations of it are in flight.
    pub(crate) fn remove(&mut self, id: TaskId, io: &Io) -> Option<Box<dyn Task>> {
        self.slot(id)?;
        self.unlist(id);
        if io.in_flight(id) > 0 {
            self.slots[id.index()].as_mut()?.state = State::Leaving;
            io.cancel_endless(id);
            return None;
        }
        self.free(id)
    }

    fn free(&mut self, id: TaskId) -> Option<Box<dyn Task>> {
        let slot = self.slots[id.index()].take()?;
        id.give_back();
        Some(slot.task)
    }

    /// Removes and returns a task that is to move; its number stays reserved.
    pub(crate) fn take_out(&mut self, id: TaskId) -> Option<Box<dyn Task>> {
        self.slot(id)?;
        self.unlist(id);
        Some(self.slots[id.index()].take()?.task)
    }

    /// Removes all tasks.
    pub(crate) fn remove_all(&mut self, io: &Io) {
        for index in 0..self.slots.len() {
            drop(self.remove(TaskId(index as u16), io));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    /// Returns a task that is not leaving.
    fn slot(&mut self, id: TaskId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(id.index())?.as_mut()?;
        (slot.state != State::Leaving).then_some(slot)
    }

    pub(crate) fn get(&self, id: TaskId) -> Option<&dyn Task> {
        let slot = self.slots.get(id.index())?.as_ref()?;
        (slot.state != State::Leaving).then_some(&*slot.task)
    }

    pub(crate) fn get_mut(&mut self, id: TaskId) -> Option<&mut dyn Task> {
        Some(&mut *self.slot(id)?.task)
    }

    /// Takes a task off its present list.
    fn unlist(&mut self, id: TaskId) {
        match self.slot(id).map(|slot| slot.state) {
            Some(State::Active) => self.active.retain(|&other| other != id),
            Some(State::Asleep) => self.deadlines.clear(id),
            Some(State::Timed) => {
                self.timed.remove(id);
                self.deadlines.clear(id);
            }
            Some(State::Leaving) | None => {}
        }
    }

    /// Returns a task to polling. `last_work_ns` determines how long it is polled if there is no work.
    fn activate(&mut self, id: TaskId, last_work_ns: u64) {
        self.unlist(id);
        self.active.push(id);
        self.counters.wakes.add(1);
        if let Some(slot) = self.slot(id) {
            slot.state = State::Active;
            slot.last_work_ns = last_work_ns;
            slot.task.disarm();
        }
    }

    /// Wakes a sleeping task for at least one poll.
    #[inline]
    pub(crate) fn wake(&mut self, id: TaskId, now_ns: u64) {
        if self.slot(id).is_some_and(|slot| slot.state != State::Active) {
            self.wake_sleeping(id, now_ns);
        }
    }

    #[cold]
    fn wake_sleeping(&mut self, id: TaskId, now_ns: u64) {
        let budget_ns = self.spin_ns;
        let spin_ns = self.slot(id).map_or(0, |slot| slot.spin.ns(budget_ns));
        self.activate(id, now_ns.saturating_sub(spin_ns));
    }

    /// Delivers a completion to its task. Returns false if the task is gone.
    pub(crate) fn deliver(&mut self, completion: &Completion, now_ns: u64) -> bool {
        let (id, budget_ns) = (completion.task, self.spin_ns);
        if !completion.quiet {
            self.wake(id, now_ns);
        }
        let Some(slot) = self.slot(id) else { return false };
        if !completion.quiet {
            slot.last_work_ns = now_ns;
            slot.spin.found(now_ns, budget_ns);
        }
        slot.task.event(completion.token, completion.result, completion.more, now_ns);
        true
    }

    /// Frees a task that is leaving, if that was its last completion.
    pub(crate) fn release(&mut self, id: TaskId, io: &Io) {
        let slot = self.slots.get(id.index()).and_then(Option::as_ref);
        if slot.is_some_and(|slot| slot.state == State::Leaving) && io.in_flight(id) == 0 {
            drop(self.free(id));
        }
    }

    /// Returns how many additional times active tasks are polled in an idle turn.
    pub(crate) fn looks(&self) -> usize {
        3_usize.checked_div(self.active.len()).unwrap_or(0)
    }

    /// Gives every active task one turn, and puts to sleep tasks that were long without work. Returns the
    /// work done.
    pub(crate) fn turn(&mut self, now_ns: u64) -> usize {
        let (mut work, mut spurious, mut position) = (0, 0, 0);
        while let Some(&id) = self.active.get(position) {
            self.look_ahead(position + LOOK_AHEAD);
            let (budget_ns, always_poll) = (self.spin_ns, self.always_poll);
            self.counters.task.set(id.index() as u64);
            let slot = self.slot(id).expect("an active task is there");
            let found = slot.task.turn(now_ns);
            if found > 0 {
                slot.last_work_ns = now_ns;
                slot.spin.found(now_ns, budget_ns);
            } else {
                spurious += 1;
                let idle_ns = now_ns.saturating_sub(slot.last_work_ns);
                if always_poll {
                    if idle_ns >= budget_ns.max(ARM_INTERVAL_NS) {
                        slot.stay_awake(now_ns);
                    }
                } else if idle_ns >= slot.spin.ns(budget_ns) && self.put_to_sleep(id, now_ns) {
                    self.active.swap_remove(position);
                    continue;
                }
            }
            work += found;
            position += 1;
        }
        self.counters.spurious_polls.add(spurious);
        self.counters.commands.add(work as u64);
        work
    }

    /// Lets an active task whose turn comes soon prepare for it.
    #[inline]
    fn look_ahead(&self, position: usize) {
        let Some(id) = self.active.get(position) else { return };
        if let Some(slot) = &self.slots[id.index()] {
            slot.task.look_ahead();
        }
    }

    /// Arms a task; returns whether it sleeps now.
    fn put_to_sleep(&mut self, id: TaskId, now_ns: u64) -> bool {
        let Some(slot) = self.slot(id) else { return false };
        let armed = slot.task.arm(now_ns);
        slot.state = match armed {
            Arm::Busy => {
                slot.last_work_ns = now_ns;
                return false;
            }
            Arm::Asleep { .. } => State::Asleep,
            Arm::Timed { .. } => State::Timed,
        };
        slot.spin.sleeps(slot.last_work_ns);
        if let Some(until_ns) = armed.until() {
            let at_ns = slot.overdue.defer(until_ns, now_ns);
            if at_ns > until_ns {
                self.counters.overdue.add(1);
            }
            self.deadlines.set(id, at_ns);
        }
        if let Arm::Timed { .. } = armed {
            self.timed.add(id, now_ns);
        }
        self.counters.task_sleeps.add(1);
        true
    }

    /// Wakes tasks whose deadline has come, and polls tasks that nothing can wake. Returns the work done.
    pub(crate) fn look_at_times(&mut self, now_ns: u64) -> usize {
        if self.deadlines.is_due(now_ns) {
            self.wake_due(now_ns);
        }
        if self.timed.nearest_ns() <= now_ns { self.look_at_timed(now_ns) } else { 0 }
    }

    fn wake_due(&mut self, now_ns: u64) {
        let mut due = std::mem::take(&mut self.due);
        self.deadlines.take_due(now_ns, &mut due);
        for id in due.drain(..) {
            self.wake(id, now_ns);
        }
        self.due = due;
    }

    fn look_at_timed(&mut self, now_ns: u64) -> usize {
        let budget_ns = self.spin_ns;
        let (mut work, mut spurious) = (0, 0);
        let mut due = std::mem::take(&mut self.due_looks);
        self.timed.take_due(now_ns, &mut due);
        for (id, level) in due.drain(..) {
            let Some(slot) = self.slot(id) else { continue };
            let found = slot.task.turn(now_ns);
            if found > 0 {
                work += found;
                slot.spin.found(now_ns, budget_ns);
                self.activate(id, now_ns);
            } else {
                spurious += 1;
                self.timed.add_slower(id, level, now_ns);
            }
        }
        self.due_looks = due;
        self.counters.spurious_polls.add(spurious);
        self.counters.commands.add(work as u64);
        work
    }

    /// Returns when the thread must be awake although nothing happens: `u64::MAX` for never, and `None` if
    /// there is something to poll right now.
    pub(crate) fn sleep_until_ns(&mut self) -> Option<u64> {
        let quiet = self.active.is_empty() && !self.always_poll;
        quiet.then(|| self.deadlines.nearest_ns().min(self.timed.nearest_ns()))
    }
}
