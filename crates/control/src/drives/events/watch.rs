//! Comparison of the drives with their state a second ago. A look at a drive without classifier and functions wakes no
//! reactor.

use super::super::{Drives, Entry, JobState, JobView, SharedView, lock};
use super::{EventKind, NewEvent};
use sluice_controller::SlowCommand;
use sluice_spec::error::ApiError;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Interval between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Time limit for the jobs of a drive whose function is slow.
const JOBS_LIMIT: Duration = Duration::from_millis(40);

/// Most events of one kind from one look at a drive.
const CHANGES_MAX: u64 = 8;

/// State of a drive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct DriveState {
    /// Number of this open, or the reason why the drive is not open.
    open: Option<u64>,
    problem: String,
    /// Times that a first client came or the last one went, since the open.
    transitions: u64,
    /// Devices, each with whether it is connected.
    devices: BTreeMap<String, bool>,
    stalls: u64,
    classifier_errors: u64,
    /// Slow commands since the open, and the slowest one since the last look.
    slow: u64,
    slowest: Option<SlowCommand>,
}

/// State of everything that has events.
#[derive(Debug, Default)]
struct Look {
    drives: BTreeMap<String, DriveState>,
    jobs: BTreeMap<String, JobView>,
    pools: Vec<SharedView>,
}

/// State at the last look.
#[derive(Debug, Default)]
struct Watch {
    drives: BTreeMap<String, DriveState>,
    jobs: BTreeMap<String, JobView>,
    /// Pools of which less than a tenth was left.
    low: BTreeSet<String>,
}

impl Watch {
    /// Returns the differences from the last look.
    fn compare(&mut self, now: Look) -> Vec<NewEvent> {
        let mut events = Vec::new();
        for name in self.drives.keys().filter(|name| !now.drives.contains_key(*name)) {
            events.push(event(EventKind::DriveRemoved, name, "it is not among the drives any more"));
        }
        for (name, state) in &now.drives {
            let before = self.drives.get(name);
            if before.is_none() {
                events.push(event(EventKind::DriveAdded, name, "it is among the drives"));
            }
            compare_drive(name, before.unwrap_or(&DriveState::default()), state, &mut events);
        }
        for job in now.jobs.values() {
            events.extend(job_event(self.jobs.get(&job.id), job));
        }
        for pool in &now.pools {
            events.extend(self.pool_event(pool));
        }
        (self.drives, self.jobs) = (now.drives, now.jobs);
        events
    }

    fn pool_event(&mut self, pool: &SharedView) -> Option<NewEvent> {
        let left = format!("{} of {} of the pool {} are left", pool.free, pool.size, pool.name);
        let event = |event| Some(NewEvent { event, drive: None, text: left.clone() });
        let (free, size) = (u128::from(pool.free.0), u128::from(pool.size.0));
        match self.low.contains(&pool.name) {
            // Nothing is known of a pool that is not open.
            _ if pool.problem.is_some() => None,
            false if free * 10 < size => {
                self.low.insert(pool.name.clone());
                event(EventKind::PoolLow)
            }
            // A pool at the threshold must not have an event each second.
            true if free * 100 > size * 15 => {
                self.low.remove(&pool.name);
                event(EventKind::PoolOk)
            }
            _ => None,
        }
    }
}

fn event(event: EventKind, drive: &str, text: impl Into<String>) -> NewEvent {
    NewEvent { event, drive: Some(drive.to_owned()), text: text.into() }
}

fn compare_drive(name: &str, before: &DriveState, now: &DriveState, events: &mut Vec<NewEvent>) {
    // Counters begin anew with each open.
    let fresh = DriveState { stalls: before.stalls, ..DriveState::default() };
    let before = match now.open {
        Some(_) if now.open != before.open => {
            events.push(event(EventKind::DriveOpened, name, "it is open"));
            &fresh
        }
        None if before.open.is_some() || before.problem != now.problem => {
            events.push(event(EventKind::DriveFailed, name, now.problem.clone()));
            &fresh
        }
        _ => before,
    };
    let transitions = now.transitions.saturating_sub(before.transitions).min(CHANGES_MAX);
    for transition in now.transitions - transitions..now.transitions {
        events.push(match transition % 2 {
            0 => event(EventKind::ClientConnected, name, "a client is there"),
            _ => event(EventKind::ClientGone, name, "the last client is gone"),
        });
    }
    for (device, is_connected) in &now.devices {
        // A device that was never connected is not lost.
        match (before.devices.get(device).copied().unwrap_or(true), is_connected) {
            (true, false) => events.push(event(EventKind::TargetLost, name, format!("{device} is lost"))),
            (false, true) => {
                events.push(event(EventKind::TargetBack, name, format!("{device} is connected")))
            }
            _ => {}
        }
    }
    let stalls = now.stalls.saturating_sub(before.stalls);
    if stalls > 0 {
        let text = format!("it has stopped its reactor in a page fault ({stalls} times in a second)");
        events.push(event(EventKind::Stall, name, text));
    }
    if let Some(slowest) = now.slowest {
        let text = match now.slow.saturating_sub(before.slow) {
            0 | 1 => slowest.to_string(),
            commands => format!("{slowest}; {} others were slow in this second", commands - 1),
        };
        events.push(event(EventKind::SlowCommand, name, text));
    }
    let errors = now.classifier_errors.saturating_sub(before.classifier_errors);
    if errors > 0 {
        let text = format!("its classifier has failed {errors} steps of commands in a second");
        events.push(event(EventKind::ClassifierErrors, name, text));
    }
}

/// Returns the event of a job since the last look.
fn job_event(before: Option<&JobView>, now: &JobView) -> Option<NewEvent> {
    let tenths = |job: &JobView| (u128::from(job.done) * 10).checked_div(job.total.into()).unwrap_or(0);
    let began = now.state.is_active() && !before.is_some_and(|before| before.state.is_active());
    let kind = match (before, now.state) {
        (None, state) if !state.is_active() => return None,
        _ if began => EventKind::JobStarted,
        (Some(before), state) if before.state != state => match state {
            JobState::Running => EventKind::JobStarted,
            JobState::Paused => EventKind::JobPaused,
            JobState::Cancelled | JobState::Done | JobState::Failed => EventKind::JobEnded,
        },
        (Some(before), JobState::Running) if tenths(now) > tenths(before) => EventKind::JobProgress,
        _ => return None,
    };
    let percent = (u128::from(now.done) * 100).checked_div(now.total.into()).unwrap_or(0);
    let text = format!("job {} is {}, {percent} % done", now.id, now.state.word());
    Some(event(kind, &now.drive, text))
}

impl Drives {
    /// Starts a thread that looks for events.
    pub fn watch_events(self: &Arc<Self>) -> Result<(), ApiError> {
        let drives = Arc::downgrade(self);
        let watch = move || {
            let mut watch = Watch::default();
            loop {
                let Some(drives) = drives.upgrade() else { return };
                for event in watch.compare(drives.look()) {
                    if let (EventKind::SlowCommand, Some(drive)) = (event.event, &event.drive) {
                        tracing::warn!("drive {drive}: {}", event.text);
                    }
                    drives.events.push(event);
                }
                drop(drives);
                std::thread::sleep(LOOK);
            }
        };
        std::thread::Builder::new()
            .name("events".to_owned())
            .spawn(watch)
            .map(drop)
            .map_err(|error| ApiError::internal(format!("cannot start a thread: {error}")))
    }

    fn look(&self) -> Look {
        let entries: Vec<Entry> = lock(&self.entries).values().cloned().collect();
        let mut look = Look::default();
        for entry in &entries {
            look.drives.insert(entry.spec.name.clone(), self.drive_state(entry));
            if entry.running.as_ref().is_ok_and(|running| running.has_function(1)) {
                let jobs = self.jobs_of(&entry.spec.name, JOBS_LIMIT);
                look.jobs.extend(jobs.into_iter().map(|(_, job)| (job.id.clone(), job)));
            }
        }
        look.pools = self.engine.shared().unwrap_or_default();
        look
    }

    fn drive_state(&self, entry: &Entry) -> DriveState {
        let stalls = lock(&self.stalls).get(&entry.spec.name).copied().unwrap_or_default();
        let running = match &entry.running {
            Ok(running) => running,
            Err(problem) => {
                return DriveState { problem: problem.in_one_line(), stalls, ..DriveState::default() };
            }
        };
        let device = |device: super::super::DeviceView| {
            let words = format!("{} (namespace {} of the drive)", device.device, device.nsid);
            (words, device.connected)
        };
        let (slow, slowest) = running.take_slowest();
        let errors = entry.spec.classifier.as_ref().and_then(|_| running.status().ok());
        DriveState {
            open: Some(running.generation()),
            problem: String::new(),
            transitions: running.client_transitions(),
            devices: running.devices().into_iter().map(device).collect(),
            stalls,
            classifier_errors: errors.map_or(0, |status| status.counters.classifier_errors),
            slow,
            slowest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_spec::SharedKind;
    use sluice_spec::size::Size;

    fn open(generation: u64) -> DriveState {
        DriveState { open: Some(generation), ..DriveState::default() }
    }

    fn kinds(watch: &mut Watch, drives: &[(&str, DriveState)]) -> Vec<EventKind> {
        let drives = drives.iter().map(|(name, state)| ((*name).to_owned(), state.clone())).collect();
        watch.compare(Look { drives, ..Look::default() }).iter().map(|event| event.event).collect()
    }

    #[test]
    fn drives_come_fail_open_and_go() {
        let mut watch = Watch::default();
        let failed = DriveState { problem: "no file".to_owned(), ..DriveState::default() };
        use EventKind::*;
        assert_eq!(kinds(&mut watch, &[("a", failed.clone())]), [DriveAdded, DriveFailed]);
        assert_eq!(kinds(&mut watch, &[("a", failed)]), []);
        assert_eq!(
            kinds(&mut watch, &[("a", open(1)), ("b", open(2))]),
            [DriveOpened, DriveAdded, DriveOpened]
        );
        assert_eq!(kinds(&mut watch, &[("a", open(1)), ("b", open(3))]), [DriveOpened], "opened anew");
        assert_eq!(kinds(&mut watch, &[("b", open(3))]), [DriveRemoved]);
    }

    #[test]
    fn clients_that_come_and_go_between_two_looks_are_seen() {
        let mut watch = Watch::default();
        let with = |transitions| DriveState { transitions, ..open(1) };
        use EventKind::*;
        kinds(&mut watch, &[("a", with(0))]);
        assert_eq!(kinds(&mut watch, &[("a", with(1))]), [ClientConnected]);
        assert_eq!(kinds(&mut watch, &[("a", with(4))]), [ClientGone, ClientConnected, ClientGone]);
        assert_eq!(kinds(&mut watch, &[("a", with(1004))]).len(), CHANGES_MAX as usize);
    }

    #[test]
    fn targets_stalls_and_errors_are_changes() {
        let mut watch = Watch::default();
        let with = |connected, stalls, classifier_errors| {
            let devices = [("x".to_owned(), connected)].into();
            DriveState { devices, stalls, classifier_errors, ..open(1) }
        };
        use EventKind::*;
        kinds(&mut watch, &[("a", with(true, 5, 5))]);
        assert_eq!(kinds(&mut watch, &[("a", with(true, 5, 5))]), []);
        assert_eq!(kinds(&mut watch, &[("a", with(false, 6, 9))]), [TargetLost, Stall, ClassifierErrors]);
        assert_eq!(kinds(&mut watch, &[("a", with(true, 6, 9))]), [TargetBack]);
    }

    #[test]
    fn slow_commands_of_a_second_are_one_event() {
        let slowest =
            SlowCommand { ns: 1_500_000_000, opcode: 2, nsid: 2, slba: 64, blocks: 8, sq: 3, cid: 7 };
        let mut watch = Watch::default();
        let mut text = |slow, slowest| {
            let drives = [("a".to_owned(), DriveState { slow, slowest, ..open(1) })].into();
            watch
                .compare(Look { drives, ..Look::default() })
                .pop()
                .map(|event| event.text)
                .unwrap_or_default()
        };
        text(0, None);
        assert_eq!(text(1, Some(slowest)), slowest.to_string());
        assert_eq!(text(4, Some(slowest)), format!("{slowest}; 2 others were slow in this second"));
        assert_eq!(text(4, None), "");
    }

    #[test]
    fn a_job_has_an_event_for_each_tenth() {
        let job = |state, done| JobView {
            id: "a:1:1:resync".to_owned(),
            state,
            done,
            total: 1000,
            ..JobView::default()
        };
        let mut watch = Watch::default();
        let mut at = |job: JobView| {
            let jobs = [(job.id.clone(), job)].into();
            let events = watch.compare(Look { jobs, ..Look::default() });
            events.into_iter().map(|event| (event.event, event.text)).next()
        };
        let text = |words: &str| format!("job a:1:1:resync is {words} % done");
        assert_eq!(at(job(JobState::Done, 1000)), None, "it was over before");
        assert_eq!(at(job(JobState::Running, 0)), Some((EventKind::JobStarted, text("running, 0"))));
        assert_eq!(at(job(JobState::Running, 99)), None);
        assert_eq!(at(job(JobState::Running, 350)), Some((EventKind::JobProgress, text("running, 35"))));
        assert_eq!(at(job(JobState::Paused, 390)), Some((EventKind::JobPaused, text("paused, 39"))));
        assert_eq!(at(job(JobState::Running, 390)), Some((EventKind::JobStarted, text("running, 39"))));
        assert_eq!(at(job(JobState::Failed, 400)), Some((EventKind::JobEnded, text("failed, 40"))));
        assert_eq!(at(job(JobState::Failed, 400)), None);
    }

    #[test]
    fn a_pool_at_its_threshold_has_one_event() {
        let pool = |free| {
            let (name, kind, size) = ("p".to_owned(), SharedKind::MemoryPool, Size(1000));
            SharedView { name, kind, reactor: 0, size, free: Size(free), users: 1, ..SharedView::default() }
        };
        let mut watch = Watch::default();
        let mut at = |free| {
            watch.compare(Look { pools: vec![pool(free)], ..Look::default() }).first().map(|it| it.event)
        };
        assert_eq!([100, 99, 100, 99, 150].map(&mut at), [None, Some(EventKind::PoolLow), None, None, None]);
        assert_eq!([151, 50].map(at), [Some(EventKind::PoolOk), Some(EventKind::PoolLow)]);
    }
}
