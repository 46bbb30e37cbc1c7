//! Asynchronous events against a plain model, and their records.

use super::{bytes_of, read};
use crate::state::events::{Configuration, Event, Events, REQUESTS_MAX};
use crate::state::limits::NAMESPACES_MAX;
use sluice_command::{Limits, Origin, Slab};
use sluice_nvme::{LogId, SubmissionEntry};
use std::collections::BTreeSet;

const NAMESPACE_CHANGED: u32 = 0x0004_0002;

/// Events, each with its dword 0, its log page, and the bits that enable it.
const EVENTS: [(Event, u32, LogId, u32); 6] = [
    (Event::INVALID_DOORBELL_REGISTER, 0x0001_0000, LogId::ERROR_INFORMATION, 0),
    (Event::INVALID_DOORBELL_VALUE, 0x0001_0100, LogId::ERROR_INFORMATION, 0),
    (Event::TEMPERATURE_THRESHOLD, 0x0002_0101, LogId::SMART_HEALTH, 1 << 1),
    (Event::ASYMMETRIC_ACCESS_CHANGE, 0x000c_0302, LogId::ASYMMETRIC_NAMESPACE_ACCESS, 1 << 11),
    (Event::RESERVATION_LOG_PAGE, 0x0080_0006, LogId::RESERVATION_NOTIFICATION, 0),
    (Event::SANITIZE_COMPLETED, 0x0081_0106, LogId::SANITIZE_STATUS, 0),
];

/// Events and requests, as plain lists.
#[derive(Default)]
struct Model {
    requests: Vec<u16>,
    /// Dword 0 of each.
    pending: Vec<u32>,
    /// Log pages, by type.
    masked: Vec<(u32, LogId)>,
    changed: BTreeSet<u32>,
    configuration: u32,
}

impl Model {
    fn raise(&mut self, dw0: u32, enabled_by: u32) {
        let is_enabled = enabled_by == 0 || self.configuration & enabled_by != 0;
        if is_enabled && !self.pending.contains(&dw0) {
            self.pending.push(dw0);
        }
    }

    fn reportable(&self) -> Option<usize> {
        let is_masked = |dw0: u32| self.masked.iter().any(|(kind, _)| *kind == dw0 & 7);
        self.pending.iter().position(|dw0| !is_masked(*dw0))
    }

    fn next(&mut self) -> Option<(u16, u32)> {
        let index = self.reportable().filter(|_| !self.requests.is_empty())?;
        let dw0 = self.pending.remove(index);
        self.masked.push((dw0 & 7, LogId((dw0 >> 16) as u8)));
        Some((self.requests.remove(0), dw0))
    }

    fn read(&mut self, log: LogId) {
        self.masked.retain(|(_, by)| *by != log);
        self.pending.retain(|dw0| (dw0 >> 16) as u8 != log.0);
        if log == LogId::CHANGED_NAMESPACE_LIST {
            self.changed.clear();
        }
    }

    fn enabled_by(dw0: u32) -> u32 {
        let known = EVENTS.iter().find(|(_, it, ..)| *it == dw0);
        known.map_or(1 << 8, |(.., enabled_by)| *enabled_by)
    }
}

/// Small generator of numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Conformance: Base 5.2, an event is reported once, and its type is masked until the log page is read.
#[test]
fn events_are_those_of_a_plain_model() {
    let mut slab = Slab::new(Limits::new(REQUESTS_MAX as u32 + 1, 0)).expect("memory");
    let mut numbers = Numbers(0x1234_5678_9abc_def1);
    let (mut events, mut model) = (Events::new(), Model { configuration: 0x91f, ..Model::default() });
    let (mut cid, mut reported) = (0, 0);
    for _ in 0..20_000 {
        match numbers.below(12) {
            0..3 => {
                let (event, dw0, _, enabled_by) = EVENTS[numbers.below(6) as usize];
                events.raise(event);
                model.raise(dw0, enabled_by);
            }
            3 => {
                let nsid = [0, 1, 63, 64, 127, 128, 129, u32::MAX][numbers.below(8) as usize];
                events.namespace_changed(nsid);
                model.raise(NAMESPACE_CHANGED, 1 << 8);
                model.changed.extend((1..=NAMESPACES_MAX as u32).contains(&nsid).then_some(nsid));
            }
            4..6 => {
                let logs = EVENTS.map(|(_, _, log, _)| log);
                let log = logs.get(numbers.below(7) as usize).copied();
                let log = log.unwrap_or(LogId::CHANGED_NAMESPACE_LIST);
                events.log_was_read(log);
                model.read(log);
            }
            6..8 => {
                cid += 1;
                let entry = SubmissionEntry { cid, ..SubmissionEntry::default() };
                let origin = Origin { cid, ..Origin::LAYER };
                let command = slab.admit(&entry, origin).expect("room for one more than are taken");
                match events.request(command) {
                    Ok(()) => model.requests.push(cid),
                    Err(command) => {
                        assert_eq!(model.requests.len(), REQUESTS_MAX);
                        slab.release(command);
                    }
                }
            }
            8 => {
                let wanted = cid.wrapping_sub(numbers.below(4) as u16);
                let removed = events.remove(|command| slab.slot(command).origin.cid == wanted);
                let index = model.requests.iter().position(|it| *it == wanted);
                assert_eq!(removed.is_some(), index.is_some());
                index.map(|index| model.requests.remove(index));
                removed.into_iter().for_each(|command| slab.release(command));
            }
            9 if numbers.below(3) == 0 => {
                let configuration = [0, 1 << 8, 1 << 11, 2, u32::MAX][numbers.below(5) as usize];
                events.configure(Configuration(configuration));
                model.configuration = configuration & 0x91f;
                let configuration = model.configuration;
                let is_enabled = |dw0: u32| match Model::enabled_by(dw0) {
                    0 => true,
                    bits => configuration & bits != 0,
                };
                model.pending.retain(|dw0| is_enabled(*dw0));
            }
            10 if numbers.below(40) == 0 => {
                let gone: Vec<_> = events.take_outstanding().collect();
                assert_eq!(gone.len(), model.requests.len());
                gone.into_iter().for_each(|command| slab.release(command));
                assert!(!events.is_deliverable());
                events.reset();
                model = Model { configuration: 0x91f, ..Model::default() };
            }
            _ => {
                assert_eq!(
                    events.is_deliverable(),
                    model.reportable().is_some() && !model.requests.is_empty()
                );
                let found = events.next().map(|(command, dw0)| {
                    let cid = slab.slot(&command).origin.cid;
                    slab.release(command);
                    (cid, dw0)
                });
                assert_eq!(found, model.next());
                reported += u32::from(found.is_some());
            }
        }
        assert_eq!(events.configuration(), Configuration(model.configuration));
        assert_eq!(events.outstanding(), model.requests.len() as u32);
        assert!(events.requests().map(|it| slab.slot(it).origin.cid).eq(model.requests.iter().copied()));
        assert!(events.changed_namespaces().eq(model.changed.iter().copied()));
        assert_eq!(events.is_deliverable(), model.reportable().is_some() && !model.requests.is_empty());
    }
    assert!(reported > 1000, "{reported}");
    events.take_outstanding().for_each(|command| slab.release(command));
}

/// Returns dword 0 of all reports, with as many requests as there are events.
fn drained(mut events: Events) -> Vec<u32> {
    let mut slab = Slab::new(Limits::new(1, 0)).expect("memory");
    let mut found = Vec::new();
    loop {
        let command = slab.admit(&SubmissionEntry::default(), Origin::LAYER).expect("room");
        events.request(command).expect("room");
        let next = events.next();
        let Some((command, dw0)) = next else {
            events.take_outstanding().for_each(|command| slab.release(command));
            return found;
        };
        slab.release(command);
        found.push(dw0);
        events.log_was_read(LogId((dw0 >> 16) as u8));
    }
}

#[test]
fn events_keep_their_state_in_records() {
    let mut events = Events::new();
    let mut slab = Slab::new(Limits::new(1, 0)).expect("memory");
    events.raise(Event::INVALID_DOORBELL_VALUE);
    events.request(slab.admit(&SubmissionEntry::default(), Origin::LAYER).expect("room")).expect("room");
    let (command, dw0) = events.next().expect("an event");
    slab.release(command);
    assert_eq!(dw0, 0x0001_0100);
    EVENTS.iter().for_each(|(event, ..)| events.raise(*event));
    [1, 64, 128].into_iter().for_each(|nsid| events.namespace_changed(nsid));
    events.configure(Configuration(1 << 8 | 1 << 11));
    let bytes = bytes_of(|part| events.put(part));
    let mut found = read(&bytes, Events::take);
    assert_eq!((bytes_of(|part| found.put(part)), found.outstanding()), (bytes.clone(), 0));
    assert!(found.changed_namespaces().eq([1, 64, 128]));
    let copy = events.without_requests();
    assert_eq!(bytes_of(|part| copy.put(part)), bytes);
    // Errors are masked, and temperatures are not enabled.
    assert_eq!(drained(copy), [0x000c_0302, 0x0080_0006, 0x0081_0106, NAMESPACE_CHANGED]);
    found.log_was_read(LogId::ERROR_INFORMATION);
    found.raise(Event::INVALID_DOORBELL_REGISTER);
    let all = [0x000c_0302, 0x0080_0006, 0x0081_0106, NAMESPACE_CHANGED, 0x0001_0000];
    assert_eq!(drained(found), all);
}
