//! Persistent Event Log of a drive (Base 5.16.1.14). It is bounded, and survives restarts of the daemon.
//!
//! Each event is encoded when it is recorded, in the format of the log page. A full log drops the oldest
//! event of the type that takes most room. So a host that resets its controller again and again does not
//! displace other events.

use sluice_nvme::feature::TimestampData;
use sluice_nvme::persistent_event::{EventHeader, LogHeader, event};
use std::collections::VecDeque;
use std::fmt;
use zerocopy::{FromBytes, IntoBytes};

/// Event types that are recorded, as listed in the log page.
pub(crate) const KINDS: [u8; 11] = [
    event::SMART_SNAPSHOT,
    event::FIRMWARE_COMMIT,
    event::TIMESTAMP_CHANGE,
    event::POWER_ON_OR_RESET,
    event::HARDWARE_ERROR,
    event::CHANGE_NAMESPACE,
    event::FORMAT_START,
    event::FORMAT_COMPLETION,
    event::SANITIZE_START,
    event::SANITIZE_COMPLETION,
    event::SET_FEATURE,
];

/// Controller identifier of an event that concerns no controller.
pub(crate) const NO_CONTROLLER: u16 = 0xffff;

/// Bytes of the log page with its header; Identify's PELS is the same in units of 64 KiB.
pub const PERSISTENT_EVENT_LOG_BYTES: usize = 64 << 10;

const EVENTS_BYTES: usize = PERSISTENT_EVENT_LOG_BYTES - LogHeader::SIZE;

/// Time from an event until the log is persisted, so that several events are persisted together. The second
/// constant is the minimum time between two writes.
const SOON_NS: u64 = 100_000_000;

pub(crate) const PAUSE_NS: u64 = 1_000_000_000;

const NS_PER_MS: u64 = 1_000_000;

/// Events of a drive, encoded one after the other, the oldest first.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PersistentEventRecord(pub(crate) Vec<u8>);

impl PersistentEventRecord {
    /// Returns none if these bytes are not a sequence of events, or too many.
    pub fn new(bytes: Vec<u8>) -> Option<Self> {
        (bytes.len() <= EVENTS_BYTES && Split(&bytes).all(|event| event.is_some())).then_some(Self(bytes))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns type and data of each event, the oldest first.
    pub(crate) fn events(&self) -> impl Iterator<Item = (u8, &[u8])> {
        Split(&self.0).flatten().map(|event| (event[0], &event[EventHeader::SIZE..]))
    }
}

impl fmt::Debug for PersistentEventRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PersistentEventRecord({} events)", Split(&self.0).count())
    }
}

/// Iterator over concatenated events. It returns none, and ends, at bytes that are no event.
pub(crate) struct Split<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Split<'a> {
    type Item = Option<&'a [u8]>;

    fn next(&mut self) -> Option<Option<&'a [u8]>> {
        if self.0.is_empty() {
            return None;
        }
        let all = std::mem::take(&mut self.0);
        let Ok((header, _)) = EventHeader::ref_from_prefix(all) else { return Some(None) };
        let length = EventHeader::SIZE + usize::from(header.length.get());
        let is_whole = header.header_length == EventHeader::LENGTH;
        let Some((event, rest)) = all.split_at_checked(length).filter(|_| is_whole) else {
            return Some(None);
        };
        self.0 = rest;
        Some(Some(event))
    }
}

/// Clock with milliseconds since 1970-01-01.
type Clock = Box<dyn Fn() -> u64 + Send>;

/// Persistent events of a subsystem, with the state of their persistence.
#[derive(Default)]
pub(crate) struct PersistentEvents {
    /// Encoded events, the oldest first.
    pub(crate) events: VecDeque<Box<[u8]>>,
    pub(crate) bytes: usize,
    pub(crate) clock: Option<Clock>,
    /// Time of the last event.
    pub(crate) now_ns: u64,
    /// Time at which new events must be persisted.
    pub(crate) due_ns: Option<u64>,
    /// Whether events are being persisted.
    pub(crate) awaits: bool,
    /// Time before which events are not persisted again.
    pub(crate) rests_until_ns: u64,
    /// Number of contexts that hosts have established.
    pub(crate) generation: u16,
}

impl PersistentEvents {
    /// Replaces all events by those of a record.
    pub(crate) fn replace(&mut self, record: &PersistentEventRecord) {
        self.events = Split(&record.0).flatten().map(Box::from).collect();
        self.bytes = record.0.len();
    }
}

impl fmt::Debug for PersistentEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PersistentEvents")
            .field("events", &self.events.len())
            .field("bytes", &self.bytes)
            .finish()
    }
}

impl PersistentEvents {
    /// Returns the timestamp of an event at this time.
    pub(crate) fn timestamp(&self, now_ns: u64) -> u64 {
        match &self.clock {
            Some(clock) => TimestampData::new(clock(), true).0,
            None => TimestampData::new(now_ns / NS_PER_MS, false).0,
        }
    }

    pub(crate) fn add(&mut self, kind: u8, controller: u16, data: &[u8], now_ns: u64) {
        let header = EventHeader::new(kind, controller, self.timestamp(now_ns), data.len() as u16);
        let event: Box<[u8]> = [header.as_bytes(), data].concat().into();
        while self.bytes + event.len() > EVENTS_BYTES {
            self.drop_one();
        }
        self.bytes += event.len();
        self.events.push_back(event);
        if self.clock.is_some() {
            self.due_ns.get_or_insert(self.rests_until_ns.max(now_ns.saturating_add(SOON_NS)));
        }
    }

    /// Drops the oldest event of the type that takes most bytes.
    fn drop_one(&mut self) {
        let mut bytes = [0; 256];
        self.events.iter().for_each(|event| bytes[usize::from(event[0])] += event.len());
        let most = (0..=u8::MAX).max_by_key(|kind| bytes[usize::from(*kind)]).unwrap_or(0);
        if let Some(at) = self.events.iter().position(|event| event[0] == most) {
            self.bytes -= self.events.remove(at).map_or(0, |event| event.len());
        }
    }

    pub(crate) fn count(&self) -> u32 {
        self.events.len() as u32
    }

    /// Returns the events, the newest first.
    pub(crate) fn events(&self) -> impl Iterator<Item = &[u8]> {
        self.events.iter().rev().map(|event| &**event)
    }

    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.due_ns.filter(|_| !self.awaits)
    }

    pub(crate) fn record(&self) -> PersistentEventRecord {
        PersistentEventRecord(self.events.iter().flat_map(|event| event.iter().copied()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_nvme::persistent_event::event;

    #[test]
    fn there_is_room_for_so_much_and_the_most_frequent_goes_first() {
        let mut log = PersistentEvents::default();
        log.add(event::FORMAT_START, 1, &[1; 12], 0);
        log.add(event::SMART_SNAPSHOT, 1, &[2; 512], 0);
        for n in 0..10_000_u64 {
            log.add(event::POWER_ON_OR_RESET, 1, &n.to_le_bytes(), n);
            assert!(log.bytes <= EVENTS_BYTES);
        }
        assert!(log.bytes > EVENTS_BYTES - 64);
        let kinds: Vec<u8> = log.events().map(|event| event[0]).collect();
        assert_eq!(kinds[kinds.len() - 2..], [event::SMART_SNAPSHOT, event::FORMAT_START]);
        let newest = log.events().next().map(|event| event[EventHeader::SIZE..].to_vec());
        assert_eq!(newest, Some(9_999_u64.to_le_bytes().to_vec()));
    }

    #[test]
    fn what_is_kept_is_read_again_and_nothing_else() {
        let mut log = PersistentEvents::default();
        log.add(event::POWER_ON_OR_RESET, 1, &[7; 44], 0);
        log.add(event::TIMESTAMP_CHANGE, 1, &[8; 16], 0);
        let bytes = log.record().0;
        let record = PersistentEventRecord::new(bytes.clone()).expect("a history");
        assert_eq!(Split(&record.0).flatten().count(), 2);
        assert_eq!(PersistentEventRecord::new(Vec::new()), Some(PersistentEventRecord::default()));
        let first = EventHeader::SIZE + 44;
        for length in (1..bytes.len()).filter(|length| *length != first) {
            assert_eq!(PersistentEventRecord::new(bytes[..length].to_vec()), None, "{length} bytes");
        }
        assert_eq!(PersistentEventRecord::new(vec![0; 3 * EventHeader::SIZE]), None);
        assert_eq!(
            PersistentEventRecord::new(bytes.repeat(PERSISTENT_EVENT_LOG_BYTES / bytes.len() + 1)),
            None
        );
    }
}
