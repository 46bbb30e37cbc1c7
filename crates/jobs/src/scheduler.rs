//! Scheduler of a function's jobs.

use crate::pace::Meter;
use crate::{Pace, PaceChange, Report, State, Verb};

/// Maximum and minimum budget of a step, bytes. A slow pace has smaller steps, so that they are spread evenly.
pub const STEP_MAX: u64 = 1 << 20;
pub const STEP_MIN: u64 = 64 << 10;

/// Number of steps per second of a job with a slow pace, at least.
const STEPS_S: u64 = 8;

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Number of bytes that are done.
    Done(u64),
    /// Number of bytes in flight; [`Scheduler::end`] follows.
    Begun(u64),
    /// The job has no work left.
    Finished,
}

/// Job with its limits and counters.
#[derive(Clone, Copy, Debug, Default)]
struct Job {
    state: State,
    pace: Pace,
    /// Bytes of the current or last run.
    done: u64,
    meter: Meter,
    /// Earliest time of the next step.
    not_before_ns: u64,
    /// Bytes so far, weighted by the priority.
    virtual_time: u64,
    /// Begin of the step in flight.
    began_ns: Option<u64>,
}

/// Scheduler of `N` jobs, by number. A step of the same job begins when the one before it has ended.
#[derive(Clone, Copy, Debug)]
pub struct Scheduler<const N: usize> {
    jobs: [Job; N],
    step_max: u64,
}

impl<const N: usize> Default for Scheduler<N> {
    fn default() -> Self {
        Self::with_steps(STEP_MAX)
    }
}

impl<const N: usize> Scheduler<N> {
    /// Creates a scheduler whose steps have at most `step_max` bytes.
    pub fn with_steps(step_max: u64) -> Self {
        Self { jobs: [Job::default(); N], step_max }
    }

    /// Sets the limits with which a job begins.
    pub fn set_pace(&mut self, job: usize, pace: Pace) {
        self.jobs[job].pace = pace;
    }

    /// Returns the job whose step begins now, with the budget of the step in bytes. `wants` returns whether a
    /// job has work.
    pub fn next(&self, now_ns: u64, wants: impl Fn(usize) -> bool) -> Option<(usize, u64)> {
        let can = |job: &usize| self.due_ns(*job, &wants).is_some_and(|due_ns| due_ns <= now_ns);
        let next = (0..N).filter(can).min_by_key(|job| self.jobs[*job].virtual_time)?;
        Some((next, self.budget(next)))
    }

    /// Returns the time at which the next step may begin; none if no job has work that may go on.
    pub fn alarm_ns(&self, wants: impl Fn(usize) -> bool) -> Option<u64> {
        (0..N).filter_map(|job| self.due_ns(job, &wants)).min()
    }

    fn due_ns(&self, number: usize, wants: &impl Fn(usize) -> bool) -> Option<u64> {
        let job = &self.jobs[number];
        let can = job.state != State::Paused && job.began_ns.is_none() && wants(number);
        can.then_some(job.not_before_ns)
    }

    /// Returns the budget of a job's step, bytes.
    pub fn budget(&self, job: usize) -> u64 {
        let bytes_s = self.jobs[job].pace.bytes_s().unwrap_or(u64::MAX);
        (bytes_s / STEPS_S).clamp(STEP_MIN.min(self.step_max), self.step_max)
    }

    /// Executes steps that are due and do not wait. `work` gets a job's number and budget. Returns at the
    /// first step in flight, and after `most` steps.
    pub fn run(
        &mut self,
        now_ns: u64,
        most: usize,
        wants: impl Fn(usize) -> bool,
        mut work: impl FnMut(usize, u64) -> Progress,
    ) {
        for _ in 0..most {
            let Some((job, budget)) = self.next(now_ns, &wants) else { return };
            match work(job, budget) {
                Progress::Done(bytes) => {
                    self.begin(job, bytes, now_ns);
                    self.end(job, bytes, now_ns);
                }
                Progress::Begun(bytes) => return self.begin(job, bytes, now_ns),
                Progress::Finished => return self.finish(job),
            }
        }
    }

    /// Begins a step of `bytes`, and a run of the job if it does not run.
    pub fn begin(&mut self, number: usize, bytes: u64, now_ns: u64) {
        if self.jobs[number].state != State::Running {
            self.start(number);
        }
        let job = &mut self.jobs[number];
        let cost_ns = job.pace.time_of(bytes);
        // A step that is late by less than its own time does not slow the job down.
        let from_ns = job.not_before_ns.clamp(now_ns.saturating_sub(cost_ns), now_ns);
        job.not_before_ns = from_ns.saturating_add(cost_ns);
        job.virtual_time = job.virtual_time.saturating_add(bytes.saturating_mul(job.pace.priority.cost()));
        job.began_ns = Some(now_ns);
    }

    /// Starts a run of a job. It has no advantage from the time when it did not run.
    pub fn start(&mut self, number: usize) {
        let others = self
            .jobs
            .iter()
            .enumerate()
            .filter(|(other, job)| *other != number && job.state == State::Running);
        let floor = others.map(|(_, job)| job.virtual_time).min().unwrap_or_default();
        let job = &mut self.jobs[number];
        (job.state, job.done, job.meter) = (State::Running, 0, Meter::default());
        job.virtual_time = job.virtual_time.max(floor);
    }

    /// Ends the step in flight, in which so many bytes were done.
    pub fn end(&mut self, job: usize, bytes: u64, now_ns: u64) {
        let job = &mut self.jobs[job];
        let Some(began_ns) = job.began_ns.take() else { return };
        let pause_ns = job.pace.pause_after(now_ns.saturating_sub(began_ns));
        job.not_before_ns = job.not_before_ns.max(now_ns.saturating_add(pause_ns));
        job.done += bytes;
        if bytes > 0 {
            job.meter.count(bytes, now_ns);
        }
    }

    /// Drops the step in flight, in which nothing was done.
    pub fn abandon(&mut self, job: usize) {
        self.jobs[job].began_ns = None;
    }

    /// Delays the next step of a job, for example after an error.
    pub fn delay(&mut self, job: usize, until_ns: u64) {
        let job = &mut self.jobs[job];
        job.not_before_ns = job.not_before_ns.max(until_ns);
    }

    /// Ends the run of a job that has no work left.
    pub fn finish(&mut self, job: usize) {
        self.leave(job, State::Done);
    }

    /// Ends the run of a job that cannot come to its end.
    pub fn fail(&mut self, job: usize) {
        self.leave(job, State::Failed);
    }

    /// Ends the run of a job that an operator has cancelled.
    pub fn cancel(&mut self, job: usize) {
        self.leave(job, State::Cancelled);
    }

    fn leave(&mut self, job: usize, state: State) {
        let job = &mut self.jobs[job];
        job.began_ns = None;
        if job.state.is_active() {
            job.state = state;
        }
    }

    /// Notes a run that has come to its end elsewhere.
    pub fn note_done(&mut self, job: usize, bytes: u64) {
        self.jobs[job] = Job { state: State::Done, done: bytes, ..self.jobs[job] };
    }

    /// Pauses a running job. A step in flight comes to its end.
    pub fn pause(&mut self, job: usize) {
        let job = &mut self.jobs[job];
        if job.state == State::Running {
            job.state = State::Paused;
        }
    }

    /// Resumes a paused job.
    pub fn resume(&mut self, job: usize) {
        if self.jobs[job].state == State::Paused {
            self.go_on(job);
        }
    }

    /// Continues the last run of a job.
    pub fn go_on(&mut self, job: usize) {
        let done = self.jobs[job].done;
        self.start(job);
        self.jobs[job].done = done;
    }

    /// Changes the limits of a job. A step that waits for a limit waits no longer than the new ones require.
    pub fn change_pace(&mut self, job: usize, change: PaceChange, now_ns: u64) {
        let budget = self.budget(job);
        let job = &mut self.jobs[job];
        job.pace.change(change);
        job.not_before_ns = job.not_before_ns.min(now_ns.saturating_add(job.pace.time_of(budget)));
    }

    /// Returns whether a job runs or is paused.
    pub fn are_active(&self) -> bool {
        self.jobs.iter().any(|job| job.state.is_active())
    }

    /// Returns the state of a job.
    pub fn state(&self, job: usize) -> State {
        self.jobs[job].state
    }

    /// Returns the bytes of the job's run.
    pub fn done(&self, job: usize) -> u64 {
        self.jobs[job].done
    }

    /// Returns the rate of a running job in bytes per second.
    pub fn bytes_s(&self, job: usize) -> u64 {
        match self.jobs[job].state {
            State::Running => self.jobs[job].meter.bytes_s,
            _ => 0,
        }
    }

    /// Returns the report of a job with `left` bytes to do.
    pub fn report(&self, number: usize, name: &str, left: u64, detail: String) -> Report {
        let Job { state, pace, done, .. } = self.jobs[number];
        let accepts = match state {
            State::Idle | State::Done | State::Failed => vec![Verb::Pace],
            State::Running => vec![Verb::Pause, Verb::Cancel, Verb::Pace],
            State::Paused => vec![Verb::Resume, Verb::Cancel, Verb::Pace],
            State::Cancelled => vec![Verb::Resume, Verb::Pace],
        };
        let total = if state == State::Done { done } else { done.saturating_add(left) };
        Report {
            name: name.to_owned(),
            state,
            done,
            total,
            bytes_s: self.bytes_s(number),
            pace,
            detail,
            accepts,
        }
    }

    /// Executes the part of an order that concerns the scheduler alone. Returns the job and the verb that is
    /// left to do: [`Verb::Cancel`], or [`Verb::Resume`] of a cancelled job.
    ///
    /// # Errors
    /// Returns a message if there is no such job, or its state does not accept the order.
    pub fn execute(
        &mut self,
        verb: Verb,
        name: &str,
        change: PaceChange,
        names: &[&str; N],
        now_ns: u64,
    ) -> Result<(usize, Option<Verb>), String> {
        let known = names.iter().position(|known| *known == name);
        let number =
            known.ok_or_else(|| format!("there is no job `{name}`; the jobs are {}", names.join(", ")))?;
        let state = self.jobs[number].state;
        let left = match (verb, state) {
            (Verb::Pace, _) => {
                self.change_pace(number, change, now_ns);
                None
            }
            (Verb::Pause, State::Running | State::Paused) => {
                self.pause(number);
                None
            }
            (Verb::Resume, State::Running | State::Paused) => {
                self.resume(number);
                None
            }
            (Verb::Resume, State::Cancelled) => Some(Verb::Resume),
            (Verb::Cancel, State::Running | State::Paused) => Some(Verb::Cancel),
            (_, State::Idle) => return Err(format!("the job {name} does not run")),
            _ => return Err(format!("the job {name} is {}", state.word())),
        };
        Ok((number, left))
    }
}
