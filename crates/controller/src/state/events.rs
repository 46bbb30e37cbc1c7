//! Asynchronous events (Base 5.2) and the Changed Namespace List (Base 5.16.1.5).
//!
//! All state here is bounded: a pending event is not queued a second time. A type of event that was reported
//! is masked until the host has read the log page that explains it.

use crate::state::limits::NAMESPACES_MAX;
use sluice_command::Command;
use sluice_command::record::{Reader, RecordError, Writer};
use sluice_nvme::LogId;
use sluice_nvme::log::critical_warning;
use std::collections::VecDeque;

/// Asynchronous Event Requests that a host may have outstanding; Identify's AERL is one less.
pub(crate) const REQUESTS_MAX: usize = 4;

/// Type of an event (dword 0 bits 2:0). Each type is masked on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Error = 0,
    Health = 1,
    Notice = 2,
    IoSpecific = 6,
}

/// Number of types, reserved ones included.
const TYPES: usize = 7;

/// Events that a record may have.
const PENDING_MAX: usize = 64;

impl Type {
    fn of(kind: u8) -> Option<Self> {
        [Self::Error, Self::Health, Self::Notice, Self::IoSpecific].into_iter().find(|it| *it as u8 == kind)
    }
}

/// Event to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    kind: Type,
    information: u8,
    /// Log page that explains the event, and clears it when it is read.
    log: LogId,
    /// Bit of Asynchronous Event Configuration that enables the event; zero if it is always enabled.
    enabled_by: u32,
}

impl Event {
    pub(crate) const INVALID_DOORBELL_REGISTER: Event = Event::error(0);
    pub(crate) const INVALID_DOORBELL_VALUE: Event = Event::error(1);
    /// Event of a composite temperature beyond a threshold.
    pub(crate) const TEMPERATURE_THRESHOLD: Event = Event {
        kind: Type::Health,
        information: 1,
        log: LogId::SMART_HEALTH,
        enabled_by: critical_warning::TEMPERATURE as u32,
    };
    /// Event of a changed state of an ANA group.
    pub(crate) const ASYMMETRIC_ACCESS_CHANGE: Event = Event {
        kind: Type::Notice,
        information: 3,
        log: LogId::ASYMMETRIC_NAMESPACE_ACCESS,
        enabled_by: Configuration::ASYMMETRIC_ACCESS_NOTICES,
    };
    /// Event of a new Reservation Notification log page.
    pub(crate) const RESERVATION_LOG_PAGE: Event =
        Event { kind: Type::IoSpecific, information: 0, log: LogId::RESERVATION_NOTIFICATION, enabled_by: 0 };
    const NAMESPACE_ATTRIBUTE_CHANGED: Event = Event {
        kind: Type::Notice,
        information: 0,
        log: LogId::CHANGED_NAMESPACE_LIST,
        enabled_by: Configuration::NAMESPACE_ATTRIBUTE_NOTICES,
    };

    /// Sanitize Operation Completed. It is always reported.
    pub(crate) const SANITIZE_COMPLETED: Event =
        Event { kind: Type::IoSpecific, information: 1, log: LogId::SANITIZE_STATUS, enabled_by: 0 };

    const fn error(information: u8) -> Event {
        Event { kind: Type::Error, information, log: LogId::ERROR_INFORMATION, enabled_by: 0 }
    }

    /// Returns dword 0 of the completion entry that reports the event.
    fn dw0(self) -> u32 {
        self.kind as u32 | u32::from(self.information) << 8 | u32::from(self.log.0) << 16
    }
}

/// Asynchronous Event Configuration (Base 5.27.1.8): the enabled events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Configuration(pub(crate) u32);

impl Configuration {
    /// Bit 8, as in Identify's OAES.
    pub(crate) const NAMESPACE_ATTRIBUTE_NOTICES: u32 = 1 << 8;

    /// Bit 11, as in Identify's OAES.
    pub(crate) const ASYMMETRIC_ACCESS_NOTICES: u32 = 1 << 11;

    /// Critical warnings, which every controller has, and the notices that OAES offers.
    pub(crate) const SUPPORTED: u32 = critical_warning::SPARE as u32
        | critical_warning::TEMPERATURE as u32
        | critical_warning::RELIABILITY as u32
        | critical_warning::READ_ONLY as u32
        | critical_warning::BACKUP as u32
        | Self::NAMESPACE_ATTRIBUTE_NOTICES
        | Self::ASYMMETRIC_ACCESS_NOTICES;

    /// Default with all events enabled, since hosts that send Asynchronous Event Requests use them.
    pub(crate) const DEFAULT: Configuration = Configuration(Self::SUPPORTED);

    fn enables(self, event: Event) -> bool {
        event.enabled_by == 0 || self.0 & event.enabled_by != 0
    }
}

/// Events of a controller, and the requests for them.
#[derive(Debug)]
pub(crate) struct Events {
    /// Asynchronous Event Requests, the oldest first.
    requests: VecDeque<Command>,
    /// Events to report, the oldest first, each at most once.
    pending: Vec<Event>,
    /// Log page, by type, that must be read before the next event of the type is reported.
    masked_by: [Option<LogId>; TYPES],
    configuration: Configuration,
    /// Bit per NSID that has changed since the log page was read.
    changed: [u64; CHANGED_WORDS],
    /// Whether a request can report an event. Kept up to date so that a turn looks only at this.
    deliverable: bool,
}

const CHANGED_WORDS: usize = NAMESPACES_MAX / 64 + 1;

impl Events {
    pub(crate) fn new() -> Self {
        Self {
            requests: VecDeque::with_capacity(REQUESTS_MAX),
            pending: Vec::new(),
            masked_by: [None; TYPES],
            configuration: Configuration::DEFAULT,
            changed: [0; CHANGED_WORDS],
            deliverable: false,
        }
    }

    /// Restores the state after a controller reset. The requests were taken before.
    pub(crate) fn reset(&mut self) {
        debug_assert!(self.requests.is_empty(), "a reset drops every command first");
        self.pending.clear();
        self.masked_by = [None; TYPES];
        self.configuration = Configuration::DEFAULT;
        self.changed = [0; CHANGED_WORDS];
        self.update();
    }

    /// Raises an event. While an event of the type is unread, this one stays pending. It is dropped if its
    /// own log page is read meanwhile.
    pub(crate) fn raise(&mut self, event: Event) {
        if self.configuration.enables(event) && !self.pending.contains(&event) {
            self.pending.push(event);
            self.update();
        }
    }

    /// Adds a namespace to the Changed Namespace List, and raises the event if the host has enabled it.
    pub(crate) fn namespace_changed(&mut self, nsid: u32) {
        if let Some(word) = self.changed.get_mut(nsid as usize / 64) {
            *word |= 1 << (nsid % 64);
        }
        self.raise(Event::NAMESPACE_ATTRIBUTE_CHANGED);
    }

    /// Returns the namespaces in the Changed Namespace List, in ascending order.
    pub(crate) fn changed_namespaces(&self) -> impl Iterator<Item = u32> {
        (1..=NAMESPACES_MAX as u32).filter(|&nsid| self.changed[nsid as usize / 64] >> (nsid % 64) & 1 != 0)
    }

    /// Clears events of a log page that the host has read without retaining the event (RAE = 0).
    pub(crate) fn log_was_read(&mut self, log: LogId) {
        for masked_by in &mut self.masked_by {
            if *masked_by == Some(log) {
                *masked_by = None;
            }
        }
        self.pending.retain(|event| event.log != log);
        if log == LogId::CHANGED_NAMESPACE_LIST {
            self.changed = [0; CHANGED_WORDS];
        }
        self.update();
    }

    pub(crate) fn configuration(&self) -> Configuration {
        self.configuration
    }

    /// Sets the configuration. Unsupported bits stay zero.
    pub(crate) fn configure(&mut self, configuration: Configuration) {
        self.configuration = Configuration(configuration.0 & Configuration::SUPPORTED);
        let configuration = self.configuration;
        self.pending.retain(|event| configuration.enables(*event));
        self.update();
    }

    /// Takes an Asynchronous Event Request, or returns it if their limit is reached.
    pub(crate) fn request(&mut self, command: Command) -> Result<(), Command> {
        if self.requests.len() == REQUESTS_MAX {
            return Err(command);
        }
        self.requests.push_back(command);
        self.update();
        Ok(())
    }

    /// Returns the requests that wait for an event, the oldest first.
    pub(crate) fn requests(&self) -> impl Iterator<Item = &Command> {
        self.requests.iter()
    }

    /// Returns the events without the requests for them.
    pub(crate) fn without_requests(&self) -> Self {
        let Self { pending, masked_by, configuration, changed, .. } = self;
        let (masked_by, configuration, changed) = (*masked_by, *configuration, *changed);
        Self { pending: pending.clone(), masked_by, configuration, changed, ..Self::new() }
    }

    /// Returns the number of requests that wait for an event.
    pub(crate) fn outstanding(&self) -> u32 {
        self.requests.len() as u32
    }

    /// Returns whether [`next`](Self::next) has an event to report.
    #[inline]
    pub(crate) fn is_deliverable(&self) -> bool {
        self.deliverable
    }

    /// Returns the oldest request with dword 0 for the oldest event that may be reported. Events of its type
    /// are masked from here on.
    pub(crate) fn next(&mut self) -> Option<(Command, u32)> {
        let index = self.reportable()?;
        let command = self.requests.pop_front()?;
        let event = self.pending.remove(index);
        self.masked_by[event.kind as usize] = Some(event.log);
        self.update();
        Some((command, event.dw0()))
    }

    /// Takes the request that `wanted` selects.
    pub(crate) fn remove(&mut self, wanted: impl Fn(&Command) -> bool) -> Option<Command> {
        let index = self.requests.iter().position(wanted)?;
        let command = self.requests.remove(index);
        self.update();
        command
    }

    /// Takes every request, since their queue is gone.
    pub(crate) fn take_outstanding(&mut self) -> impl Iterator<Item = Command> {
        self.deliverable = false;
        self.requests.drain(..)
    }

    /// Returns the oldest event of a type that is not masked.
    fn reportable(&self) -> Option<usize> {
        self.pending.iter().position(|event| self.masked_by[event.kind as usize].is_none())
    }

    fn update(&mut self) {
        self.deliverable = !self.requests.is_empty() && self.reportable().is_some();
    }
}

/// Events of a controller in a record, without the requests.
impl Events {
    pub(crate) fn put(&self, part: &mut Writer) {
        part.put(self.configuration.0);
        part.list(&self.pending, |part, event| {
            part.put(event.kind as u8);
            part.put(event.information);
            part.put(event.log.0);
            part.put(event.enabled_by);
        });
        part.list(self.masked_by, |part, log| part.option(log, |part, log| part.put(log.0)));
        part.list(self.changed, Writer::put);
    }

    pub(crate) fn take(part: &mut Reader<'_>) -> Result<Self, RecordError> {
        let mut events = Self::new();
        events.configuration = Configuration(part.get::<u32>()? & Configuration::SUPPORTED);
        events.pending = part.list(PENDING_MAX, |part| {
            let kind = Type::of(part.get()?).ok_or(RecordError::Invalid("event"))?;
            let (information, log) = (part.get()?, LogId(part.get()?));
            Ok(Event { kind, information, log, enabled_by: part.get()? })
        })?;
        let masked_by = part.list(TYPES, |part| part.option(|part| part.get().map(LogId)))?;
        events.masked_by.iter_mut().zip(masked_by).for_each(|(own, log)| *own = log);
        let changed = part.list(CHANGED_WORDS, Reader::get)?;
        events.changed.iter_mut().zip(changed).for_each(|(own, word)| *own = word);
        Ok(events)
    }
}
