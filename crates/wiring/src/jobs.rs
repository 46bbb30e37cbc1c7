//! Background work of a drive's controller and functions.

use super::drive::WiredDrive;
use super::function::FunctionControl;
use sluice_control::drives::{FunctionJobs, OF_CONTROLLER};
use sluice_controller::BackgroundJob;
use sluice_functions::host::{PendingAnswer, UifControl};
use sluice_jobs::{Order, Report};
use sluice_spec::UifSpec;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Latest list of a function's jobs.
#[derive(Debug, Default)]
pub(super) struct Jobs(Mutex<Listed>);

#[derive(Debug, Default)]
struct Listed {
    /// Pending query. A function that does not answer gets no other.
    asked: Option<PendingAnswer>,
    known: Vec<Report>,
}

impl Jobs {
    /// Returns the list of a function that has jobs.
    pub(super) fn of(spec: &UifSpec) -> Option<Self> {
        spec.service().is_some_and(|service| service.has_jobs).then(Self::default)
    }

    /// Sends the function a query, unless one is pending.
    fn query(&self, function: &UifControl) {
        let mut listed = self.lock();
        if !function.status().up {
            // The next instance of the function has jobs of its own.
            listed.known.clear();
            return;
        }
        // An answer from before this call is outdated.
        listed.take_answer(Instant::now());
        listed.asked.get_or_insert_with(|| function.start_query(&Order::List.text()));
    }

    /// Returns the jobs, or those of the last answer if none arrives by `until`.
    fn answer(&self, until: Instant) -> Vec<Report> {
        let mut listed = self.lock();
        listed.take_answer(until);
        listed.known.clone()
    }

    /// Locks the list. A panic ends the process, so the lock is never poisoned.
    fn lock(&self) -> MutexGuard<'_, Listed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listed {
    fn take_answer(&mut self, until: Instant) {
        let Some(answer) = self.asked.as_ref().and_then(|asked| asked.wait(until)) else { return };
        self.asked = None;
        // A function that is on its way to another place answers with an error, and has no jobs meanwhile.
        self.known = answer.ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    }
}

impl WiredDrive {
    /// Returns the jobs of the controller and of all functions. Waits at most `limit` for the functions'
    /// answers.
    pub(super) fn list_jobs(&self, limit: Duration) -> Vec<FunctionJobs> {
        let functions: Vec<(usize, u32, Arc<FunctionControl>)> = (1..)
            .zip(self.uifs())
            .filter(|(_, (_, function))| function.jobs.is_some())
            .map(|(number, (nsid, function))| (number, nsid, function))
            .collect();
        let each =
            |function: &FunctionControl| function.jobs.iter().for_each(|jobs| jobs.query(&function.uif));
        functions.iter().for_each(|(_, _, function)| each(function));
        let until = Instant::now() + limit;
        let of = |(number, nsid, function): (usize, u32, Arc<FunctionControl>)| {
            let reports = function.jobs.as_ref().map(|jobs| jobs.answer(until)).unwrap_or_default();
            FunctionJobs { number, nsid, function: function.about.clone(), reports }
        };
        let of_hosts = self.query(|drive| drive.subsystem().background_jobs()).unwrap_or_default();
        of_hosts.into_iter().map(of_host).chain(functions.into_iter().map(of)).collect()
    }
}

fn of_host(BackgroundJob { nsid, report }: BackgroundJob) -> FunctionJobs {
    FunctionJobs { number: OF_CONTROLLER, nsid, function: "controller".to_owned(), reports: vec![report] }
}
