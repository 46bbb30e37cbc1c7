//! Events of the drives, for operators: the last ones are in memory, and each reader has its own place among them.

mod watch;

use super::lock;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::SystemTime;
use utoipa::ToSchema;

/// Events in memory. The oldest is dropped for a further one.
const EVENTS_MAX: usize = 1024;

/// Events that a reader receives at a time.
const BATCH_MAX: usize = 128;

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    DriveAdded,
    DriveRemoved,
    DriveOpened,
    /// The drive could not be opened.
    DriveFailed,
    /// The first client of the drive is there.
    ClientConnected,
    /// The last client of the drive is gone.
    ClientGone,
    /// A device or remote namespace behind the drive is lost.
    TargetLost,
    TargetBack,
    /// The operator has paused a target: its commands wait.
    TargetPaused,
    TargetResumed,
    /// A target was put in the place of another.
    TargetReplaced,
    /// The controller behind a target was reset by an operator.
    TargetReset,
    /// A further tenth of a firmware image is downloaded.
    FirmwareProgress,
    /// An image was committed to a controller.
    FirmwareCommitted,
    JobStarted,
    /// A further tenth of a job is done.
    JobProgress,
    JobPaused,
    /// A job is over: done, failed or cancelled.
    JobEnded,
    /// The classifier has failed commands.
    ClassifierErrors,
    /// Commands took longer than `metrics.slow_ms`.
    SlowCommand,
    /// The drive has stopped its reactor in a page fault.
    Stall,
    /// A pool has less than a tenth of its bytes left.
    PoolLow,
    PoolOk,
    /// Earlier events are not in memory any more.
    Lost,
}

impl EventKind {
    /// Returns the name of the kind.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DriveAdded => "drive_added",
            Self::DriveRemoved => "drive_removed",
            Self::DriveOpened => "drive_opened",
            Self::DriveFailed => "drive_failed",
            Self::ClientConnected => "client_connected",
            Self::ClientGone => "client_gone",
            Self::TargetLost => "target_lost",
            Self::TargetBack => "target_back",
            Self::TargetPaused => "target_paused",
            Self::TargetResumed => "target_resumed",
            Self::TargetReplaced => "target_replaced",
            Self::TargetReset => "target_reset",
            Self::FirmwareProgress => "firmware_progress",
            Self::FirmwareCommitted => "firmware_committed",
            Self::JobStarted => "job_started",
            Self::JobProgress => "job_progress",
            Self::JobPaused => "job_paused",
            Self::JobEnded => "job_ended",
            Self::ClassifierErrors => "classifier_errors",
            Self::SlowCommand => "slow_command",
            Self::Stall => "stall",
            Self::PoolLow => "pool_low",
            Self::PoolOk => "pool_ok",
            Self::Lost => "lost",
        }
    }
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Number of the event since the daemon started, counted from 1. Further events have higher numbers.
    pub number: u64,
    /// Milliseconds since 1970-01-01 UTC at which the daemon noticed it.
    pub time_ms: u64,
    pub event: EventKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drive: Option<String>,
    /// Description in words.
    pub text: String,
}

/// An event without its number and time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NewEvent {
    event: EventKind,
    drive: Option<String>,
    text: String,
}

/// The last events. Readers copy them, so that a slow reader holds nothing.
#[derive(Debug, Default)]
pub struct EventLog {
    /// Number of events ever, and the last of them. Locked for a moment only.
    events: Mutex<(u64, VecDeque<Event>)>,
    is_closed: AtomicBool,
}

impl EventLog {
    /// Notes an event of a drive.
    pub(super) fn note(&self, event: EventKind, drive: &str, text: String) {
        self.push(NewEvent { event, drive: Some(drive.to_owned()), text });
    }

    fn push(&self, new: NewEvent) {
        let NewEvent { event, drive, text } = new;
        let mut events = lock(&self.events);
        events.0 += 1;
        let number = events.0;
        if events.1.len() == EVENTS_MAX {
            events.1.pop_front();
        }
        events.1.push_back(Event { number, time_ms: now_ms(), event, drive, text });
    }

    /// Returns the next events after the one with this number, none if there is no later one. The first is
    /// [`EventKind::Lost`] if some are not in memory any more. A number of a previous daemon stands for all events.
    pub fn since(&self, number: u64) -> Vec<Event> {
        let events = lock(&self.events);
        let number = if number > events.0 { 0 } else { number };
        let first = events.1.front().map_or(events.0 + 1, |first| first.number);
        let lost = (first - 1).saturating_sub(number);
        let lost = (lost > 0).then(|| Event {
            number: first - 1,
            time_ms: now_ms(),
            event: EventKind::Lost,
            drive: None,
            text: format!("{lost} earlier events are not in memory any more"),
        });
        let skipped = number.saturating_sub(first - 1) as usize;
        lost.into_iter().chain(events.1.iter().skip(skipped).take(BATCH_MAX).cloned()).collect()
    }

    /// Ends the readers that wait for further events: the daemon stops.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Relaxed);
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(log: &EventLog, count: usize) {
        for number in 0..count {
            let text = number.to_string();
            log.push(NewEvent { event: EventKind::Stall, drive: Some("d".to_owned()), text });
        }
    }

    fn numbers(events: &[Event]) -> Vec<u64> {
        events.iter().map(|event| event.number).collect()
    }

    #[test]
    fn a_reader_receives_each_event_once() {
        let log = EventLog::default();
        assert_eq!(log.since(0), []);
        push(&log, 3);
        assert_eq!(numbers(&log.since(0)), [1, 2, 3]);
        assert_eq!(numbers(&log.since(2)), [3]);
        assert_eq!(log.since(3), []);
        assert_eq!(numbers(&log.since(700)), [1, 2, 3], "a number of a previous daemon");
    }

    #[test]
    fn lost_events_are_counted() {
        let log = EventLog::default();
        push(&log, EVENTS_MAX + 10);
        let events = log.since(4);
        assert_eq!((events[0].event, events[0].number), (EventKind::Lost, 10));
        assert!(events[0].text.starts_with("6 earlier"), "{}", events[0].text);
        assert_eq!(numbers(&events[1..]), (11..11 + BATCH_MAX as u64).collect::<Vec<_>>());
        assert!(log.since(10)[0].event == EventKind::Stall, "the next event is still there");
        let (mut read, mut at) = (0, 0);
        while let Some(last) = log.since(at).last() {
            read += log.since(at).iter().filter(|event| event.event != EventKind::Lost).count();
            at = last.number;
        }
        assert_eq!(read, EVENTS_MAX);
    }

    #[test]
    fn names_of_kinds_are_those_of_the_api() {
        for kind in [EventKind::DriveAdded, EventKind::ClassifierErrors, EventKind::PoolOk, EventKind::Lost] {
            assert_eq!(serde_json::to_value(kind).expect("JSON"), kind.as_str());
        }
    }
}
