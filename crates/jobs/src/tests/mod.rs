//! Pace and fairness in simulated time.

mod rules;

use crate::{Pace, Priority, Progress, Scheduler};

/// Jobs of the simulation.
const JOBS: usize = 3;

const SECOND_NS: u64 = 1_000_000_000;

/// Simulated function: each step takes `step_ns`, one at a time or all jobs side by side.
struct Rig {
    jobs: Scheduler<JOBS>,
    now_ns: u64,
    step_ns: u64,
    /// Bytes left of each job.
    left: [u64; JOBS],
    /// Steps in flight: the job, its bytes, and the time of its end.
    flying: Vec<(usize, u64, u64)>,
    /// Ends of all steps: the time, the job, and its bytes.
    ends: Vec<(u64, usize, u64)>,
    one_at_a_time: bool,
}

impl Rig {
    fn new(step_ns: u64, left: [u64; JOBS]) -> Self {
        Self {
            jobs: Scheduler::default(),
            now_ns: 0,
            step_ns,
            left,
            flying: Vec::new(),
            ends: Vec::new(),
            one_at_a_time: true,
        }
    }

    /// Runs until a time, or until no alarm is set and no step is in flight.
    fn run_until(&mut self, until_ns: u64) {
        loop {
            self.begin();
            let alarm_ns = self.alarm_ns().map(|alarm_ns| alarm_ns.max(self.now_ns));
            let landing_ns = self.flying.iter().map(|(_, _, end_ns)| *end_ns).min();
            let Some(next_ns) = alarm_ns.into_iter().chain(landing_ns).min().filter(|next| *next < until_ns)
            else {
                self.now_ns = self.now_ns.max(until_ns);
                return;
            };
            self.now_ns = next_ns;
            self.land();
        }
    }

    fn alarm_ns(&self) -> Option<u64> {
        let busy = self.one_at_a_time && !self.flying.is_empty();
        self.jobs.alarm_ns(|job| self.left[job] > 0 && !busy)
    }

    fn begin(&mut self) {
        loop {
            let busy = self.one_at_a_time && !self.flying.is_empty();
            let left = self.left;
            let Some((job, budget)) = self.jobs.next(self.now_ns, |job| left[job] > 0 && !busy) else {
                return;
            };
            let bytes = budget.min(self.left[job]);
            self.left[job] -= bytes;
            self.jobs.begin(job, bytes, self.now_ns);
            self.flying.push((job, bytes, self.now_ns + self.step_ns));
        }
    }

    fn land(&mut self) {
        let now_ns = self.now_ns;
        for (job, bytes, _) in self.flying.extract_if(.., |(_, _, end_ns)| *end_ns <= now_ns) {
            self.jobs.end(job, bytes, now_ns);
            self.ends.push((now_ns, job, bytes));
            if self.left[job] == 0 {
                self.jobs.finish(job);
            }
        }
    }

    fn bytes_of(&self, job: usize, from_ns: u64, to_ns: u64) -> u64 {
        let within = |(at, of, _): &&(u64, usize, u64)| *of == job && (from_ns..to_ns).contains(at);
        self.ends.iter().filter(within).map(|(_, _, bytes)| bytes).sum()
    }
}

fn pace(mib_s: Option<u32>, share: Option<u8>, priority: Priority) -> Pace {
    Pace { mib_s, share, priority }
}

#[test]
fn steps_without_a_wait_are_done_in_one_call() {
    let mut jobs = Scheduler::<1>::default();
    let mut left = 5 << 20;
    jobs.run(
        0,
        3,
        |_| true,
        |_, budget| {
            left -= budget;
            Progress::Done(budget)
        },
    );
    assert_eq!((jobs.done(0), left), (3 << 20, 2 << 20), "three steps of a MiB");
    jobs.run(
        0,
        9,
        |_| true,
        |_, budget| match left {
            0 => Progress::Finished,
            _ => {
                left -= budget;
                Progress::Done(budget)
            }
        },
    );
    assert_eq!((jobs.done(0), jobs.state(0)), (5 << 20, crate::State::Done));
}
