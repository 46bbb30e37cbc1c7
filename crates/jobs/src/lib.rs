//! Background work: which job may do its next step, when, and how much of it.
//!
//! A function that copies, compares or frees data in the background has a [`Scheduler`] with a place for each
//! kind of [job](Report). The scheduler does no work and has no clock: the function passes the time, requests
//! the [next step](Scheduler::next) and reports its begin and end. So a job's pace can be tested in simulated
//! time.
//!
//! - A step is bounded by its budget, so a job never holds its reactor for long.
//! - A [`Pace`] limits a job in MiB per second, and in the share of time in which a step may be in flight.
//! - Jobs that are due share the steps by their [`Priority`].
//! - A job that is paused, or that has nothing to do, sets [no alarm](Scheduler::alarm_ns): an idle drive has
//!   no timer.
//!
//! Nothing here allocates but a [`Report`], which only an operator requests.
#![forbid(unsafe_code)]

mod order;
mod pace;
mod report;
mod scheduler;

pub use order::{Order, Verb};
pub use pace::{Pace, PaceChange, Priority};
pub use report::{Report, State};
pub use scheduler::{Progress, STEP_MAX, STEP_MIN, Scheduler};

#[cfg(test)]
mod tests;
