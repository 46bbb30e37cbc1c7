//! The loop of a reactor.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::clock;
use crate::config::ReactorConfig;
use crate::counters::CounterCells;
use crate::io::{Completion, Io};
use crate::local::Local;
use crate::mailbox::{Mail, Mailbox};
use crate::spin::SpinBudget;
use crate::task::TaskId;
use crate::watch::Part;

/// Turns without work between two reads of the clock: reading it costs as much as such a turn.
const IDLE_TURNS_PER_CLOCK: u32 = 16;

/// Time for the operations of tasks to end when the reactor ends.
const DRAIN_LIMIT_NS: u64 = 5_000_000_000;

/// State shared by a reactor and its handles.
pub(crate) struct Shared {
    pub(crate) mailbox: Mailbox,
    pub(crate) counters: Arc<CounterCells>,
}

pub(crate) struct Reactor {
    shared: Arc<Shared>,
    local: Local,
    spin: SpinBudget,
    idle_turns: u32,
    // Scratch, kept for its memory.
    completions: Vec<Completion>,
    wakes: Vec<TaskId>,
    mails: VecDeque<Mail>,
}

impl Reactor {
    /// Creates a reactor on the thread that will run it.
    pub(crate) fn new(config: &ReactorConfig, shared: Arc<Shared>) -> io::Result<Self> {
        let io = Io::open(config, shared.mailbox.notifier())?;
        let now_ns = clock::now_ns();
        let spin = SpinBudget::new(&config.idle, now_ns);
        let mut local = Local::new(io, config, Arc::clone(&shared.counters), now_ns);
        local.tasks.spin_ns = spin.ns();
        shared.counters.spin_budget_ns.set(spin.ns());
        shared.counters.clear_task();
        shared.counters.thread.set(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs().into());
        let (completions, wakes, mails) = (Vec::new(), Vec::new(), VecDeque::new());
        Ok(Self { shared, local, spin, idle_turns: 0, completions, wakes, mails })
    }

    pub(crate) fn run(mut self) {
        while !self.shared.mailbox.stop_requested() {
            self.turn();
        }
        self.end();
    }

    fn turn(&mut self) {
        self.tick();
        let now_ns = self.local.now_ns;
        let mut work = self.complete();
        self.run_wakes();
        self.ended(Part::Events);
        work += self.look();
        self.ended(Part::Tasks);
        work += self.run_mails();
        if self.local.pending_moves.are_some() {
            work += self.local.finish_moves(clock::now_ns());
        }
        self.ended(Part::Mails);
        work += self.local.tasks.look_at_times(now_ns);
        self.ended(Part::Times);
        self.local.io.submit(&self.shared.counters);
        self.ended(Part::Submit);
        self.account(work);
        if let Some(until_ns) = self.local.tasks.sleep_until_ns() {
            self.sleep(until_ns.min(self.local.pending_moves.nearest_ns()));
        }
    }

    fn ended(&mut self, part: Part) {
        if let Some(watch) = &mut self.local.watch {
            watch.part_ended(part);
        }
    }

    /// Runs a turn of the tasks. While nothing happens it runs several, if the tasks are few: most events
    /// appear in memory, and checking other sources between two polls takes longer than the polls.
    fn look(&mut self) -> usize {
        let now_ns = self.local.now_ns;
        let more = if self.idle_turns > 0 { self.local.tasks.looks() } else { 0 };
        for _ in 0..more {
            let work = self.local.tasks.turn(now_ns);
            if work > 0 {
                return work;
            }
        }
        self.local.tasks.turn(now_ns)
    }

    /// Reads the clock, unless it was read a few idle turns ago.
    fn tick(&mut self) {
        if self.idle_turns.is_multiple_of(IDLE_TURNS_PER_CLOCK) {
            self.advance(clock::now_ns());
        }
    }

    /// Accounts for the time since the clock was last read, as spinning or as part of a turn with work.
    fn advance(&mut self, now_ns: u64) {
        let passed_ns = now_ns - self.local.now_ns;
        self.local.now_ns = now_ns;
        let counters = &self.shared.counters;
        counters.longest_turn_ns.raise_to(passed_ns);
        if let Some(watch) = &mut self.local.watch {
            watch.turn_ended(now_ns, passed_ns, &counters.watched);
        }
        if self.idle_turns == 0 {
            counters.busy_ns.add(passed_ns);
            return;
        }
        counters.spin_ns.add(passed_ns);
        if self.spin.spun(passed_ns, now_ns) {
            self.local.tasks.spin_ns = self.spin.ns();
            counters.spin_budget_ns.set(self.spin.ns());
        }
    }

    fn account(&mut self, work: usize) {
        let counters = &self.shared.counters;
        counters.turns.add(1);
        if work > 0 {
            counters.busy_turns.add(1);
            self.idle_turns = 0;
        } else {
            self.idle_turns = self.idle_turns.wrapping_add(1);
        }
    }

    /// Delivers completions to their tasks.
    fn complete(&mut self) -> usize {
        let mut completions = std::mem::take(&mut self.completions);
        self.local.io.reap(self.idle_turns > 0, &mut completions);
        let work = completions.iter().filter(|completion| !completion.quiet).count();
        for completion in completions.drain(..) {
            self.deliver(&completion);
        }
        self.completions = completions;
        work
    }

    fn deliver(&mut self, completion: &Completion) {
        if completion.silent {
            // It may have been the last operation of a task that leaves.
            return self.local.tasks.release(completion.task, &self.local.io);
        }
        let counters = &self.shared.counters;
        if self.local.tasks.deliver(completion, self.local.now_ns) {
            counters.events.add(1);
        } else if !self.local.pending_moves.take(completion) {
            counters.stray_events.add(1);
            self.local.tasks.release(completion.task, &self.local.io);
        }
    }

    fn run_wakes(&mut self) {
        self.local.io.take_wakes(&mut self.wakes);
        for id in self.wakes.drain(..) {
            self.local.tasks.wake(id, self.local.now_ns);
        }
    }

    fn run_mails(&mut self) -> usize {
        if !self.shared.mailbox.is_filled() {
            return 0;
        }
        self.shared.counters.clear_task();
        self.shared.mailbox.take(&mut self.mails);
        let count = self.mails.len();
        while let Some(mail) = self.mails.pop_front() {
            mail(&mut self.local);
        }
        self.shared.counters.mails.add(count as u64);
        count
    }

    /// Sleeps until something happens, `until_ns` at the latest.
    fn sleep(&mut self, until_ns: u64) {
        let now_ns = clock::now_ns();
        self.advance(now_ns);
        if until_ns <= now_ns || self.local.io.has_wakes() || !self.shared.mailbox.may_sleep() {
            return;
        }
        let timeout = (until_ns != u64::MAX).then(|| Duration::from_nanos(until_ns - now_ns));
        if let Some(watch) = &mut self.local.watch {
            watch.sleeps();
        }
        self.shared.counters.clear_task();
        self.local.io.wait(timeout, &self.shared.counters);
        self.shared.mailbox.woke();
        let woke_ns = clock::now_ns();
        let slept_ns = woke_ns - now_ns;
        self.spin.slept(slept_ns);
        self.shared.counters.sleeps.add(1);
        self.shared.counters.sleep_ns.add(slept_ns);
        self.local.now_ns = woke_ns;
        if let Some(watch) = &mut self.local.watch {
            watch.woke(woke_ns, &self.shared.counters.watched);
        }
        self.idle_turns = 0;
    }

    /// Frees the tasks when none of their operations is in flight. Operations that do not end in time are
    /// leaked with their memory: the kernel may still write to it.
    fn end(mut self) {
        self.shared.mailbox.close();
        self.local.cancel_all_moves();
        self.local.tasks.remove_all(&self.local.io);
        let limit_ns = clock::now_ns() + DRAIN_LIMIT_NS;
        while !self.local.tasks.is_empty() && clock::now_ns() < limit_ns {
            self.local.io.wait(Some(Duration::from_millis(100)), &self.shared.counters);
            self.complete();
        }
        let leak = !self.local.tasks.is_empty();
        if leak {
            tracing::error!("a reactor ends with operations in flight; their memory is leaked");
            std::mem::forget(self.local);
        } else {
            drop(self.local);
        }
        Io::close(leak);
    }
}
