//! Records of a controller and of its subsystem: the state with which another process continues them.
//!
//! A record is taken while no command is in flight but Asynchronous Event Requests. Queues, data and shadow
//! doorbells are in the host's memory, which the other process maps. The doorbell page is a file of its own.

use crate::state::doorbells::DoorbellMode;
use crate::state::events::{Events, REQUESTS_MAX};
use crate::state::features::Features;
use crate::state::health::{ErrorLog, Health};
use crate::state::limits::{IO_QUEUES_MAX, NAMESPACES_MAX, QUEUE_ENTRIES_MAX};
use crate::state::persistent_event::{PERSISTENT_EVENT_LOG_BYTES, PersistentEventRecord};
use crate::state::queue::{CompletionQueue, HeadError, Service, SubmissionQueue};
use crate::state::registers::Registers;
use crate::state::reservation::{HostId, Notifications, Reservations};
use sluice_command::record::{Need, Reader, RecordError, Writer};
use sluice_nvme::SubmissionEntry;
use sluice_nvme::log::{SelfTestLog, SelfTestResult};
use std::fmt;
use zerocopy::{IntoBytes, transmute};

/// Queues of one kind, the admin queue included.
const QUEUES_MAX: usize = IO_QUEUES_MAX as usize + 1;

/// Priority classes of submission queues.
const CLASSES: u8 = 4;

/// Tags of the parts of a controller's record.
mod part {
    pub(super) const CONTROLLER: u16 = 1;
    pub(super) const REGISTERS: u16 = 2;
    pub(super) const QUEUES: u16 = 3;
    pub(super) const EVENTS: u16 = 4;
    pub(super) const FEATURES: u16 = 5;
    pub(super) const NOTIFICATIONS: u16 = 6;
    pub(super) const ERRORS: u16 = 7;
    pub(super) const SELF_TESTS: u16 = 8;
    pub(super) const LOG_CONTEXT: u16 = 9;
}

/// Tags of the parts of a subsystem's record.
mod subsystem_part {
    pub(super) const NAMESPACES: u16 = 1;
    pub(super) const HEALTH: u16 = 2;
    pub(super) const PERSISTENT_EVENTS: u16 = 3;
    pub(super) const POWER_ID: u16 = 4;
}

/// Reason why a drive cannot be continued by another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CannotHandOver(pub &'static str);

impl fmt::Display for CannotHandOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for CannotHandOver {}

/// Submission queue in a record. No command of the queue is in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SqRecord {
    pub(crate) id: u16,
    pub(crate) cq: u16,
    pub(crate) class: u8,
    /// Whether entries are fetched; else an invalid tail has ended that.
    pub(crate) is_served: bool,
    pub(crate) address: u64,
    pub(crate) size: u32,
    pub(crate) head: u32,
}

/// Completion queue in a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CqRecord {
    pub(crate) id: u16,
    pub(crate) vector: Option<u16>,
    pub(crate) address: u64,
    pub(crate) size: u32,
    pub(crate) tail: u32,
    pub(crate) phase: bool,
    pub(crate) head: u32,
    pub(crate) head_error: HeadError,
}

impl SqRecord {
    pub(crate) fn of(queue: &SubmissionQueue) -> Self {
        let SubmissionQueue { id, cq, class, address, size, head, .. } = *queue;
        Self { id, cq, class, is_served: queue.service == Service::On, address, size, head }
    }

    fn put(&self, part: &mut Writer) {
        part.put(self.id);
        part.put(self.cq);
        part.put(self.class);
        part.put(self.is_served);
        part.put(self.address);
        part.put(self.size);
        part.put(self.head);
    }

    fn take(part: &mut Reader<'_>) -> Result<Self, RecordError> {
        let id = part.below(QUEUES_MAX as u16, "queue identifier")?;
        let cq = part.below(QUEUES_MAX as u16, "queue identifier")?;
        let class = part.below(CLASSES, "priority class")?;
        let (is_served, address) = (part.get()?, part.get()?);
        let (size, head) = take_place(part)?;
        Ok(Self { id, cq, class, is_served, address, size, head })
    }
}

impl CqRecord {
    pub(crate) fn of(queue: &CompletionQueue) -> Self {
        let CompletionQueue { id, vector, address, size, tail, head, head_error, .. } = *queue;
        Self { id, vector, address, size, tail, phase: queue.position() >> 31 == 1, head, head_error }
    }

    fn put(&self, part: &mut Writer) {
        part.put(self.id);
        part.option(self.vector, Writer::put);
        part.put(self.address);
        part.put(self.size);
        part.put(self.tail);
        part.put(self.phase);
        part.put(self.head);
        part.put(self.head_error as u8);
    }

    fn take(part: &mut Reader<'_>) -> Result<Self, RecordError> {
        let id = part.below(QUEUES_MAX as u16, "queue identifier")?;
        let vector = part.option(|part| part.below(QUEUES_MAX as u16, "interrupt vector"))?;
        let address = part.get()?;
        let (size, tail) = take_place(part)?;
        let phase = part.get()?;
        let head = part.below(size, "head of a queue")?;
        let head_error = match part.get::<u8>()? {
            0 => HeadError::None,
            1 => HeadError::Seen,
            2 => HeadError::Reported,
            _ => return Err(RecordError::Invalid("state of a head")),
        };
        Ok(Self { id, vector, address, size, tail, phase, head, head_error })
    }
}

/// Takes the size of a queue and an index in it.
fn take_place(part: &mut Reader<'_>) -> Result<(u32, u32), RecordError> {
    let size = part.below(QUEUE_ENTRIES_MAX + 1, "size of a queue")?;
    let index = part.below(size, "index of a queue")?;
    if size < 2 { Err(RecordError::Invalid("size of a queue")) } else { Ok((size, index)) }
}

/// State of a controller.
#[derive(Debug)]
pub struct ControllerRecord {
    pub(crate) cntlid: u16,
    pub(crate) host: HostId,
    pub(crate) mode: DoorbellMode,
    /// Whether a host may have the doorbell page mapped.
    pub(crate) is_mapped: bool,
    /// Guest addresses of the shadow doorbell and event index pages.
    pub(crate) shadow: Option<[u64; 2]>,
    /// Whether the controller was ready since the last reset from outside.
    pub(crate) is_on: bool,
    pub(crate) io_queues: u16,
    pub(crate) registers: Registers,
    /// Submission queues in the order of service.
    pub(crate) sqs: Vec<SqRecord>,
    pub(crate) cqs: Vec<CqRecord>,
    pub(crate) events: Events,
    /// Asynchronous Event Requests, the oldest first.
    pub(crate) requests: Vec<SubmissionEntry>,
    pub(crate) features: Features,
    pub(crate) notifications: Notifications,
    pub(crate) errors: ErrorLog,
    /// Results of self-tests, the newest first, and the number of tests ever begun.
    pub(crate) self_tests: (Vec<SelfTestResult>, u32),
    /// Persistent Event Log page of the context that the host has established.
    pub(crate) log_context: Option<Vec<u8>>,
}

impl ControllerRecord {
    /// Returns the bytes of the record, made at this time.
    pub fn encode(&self, now_ns: u64) -> Vec<u8> {
        let mut writer = Writer::new(now_ns);
        writer.part(part::CONTROLLER, Need::Required, |part| self.put_controller(part));
        writer.part(part::REGISTERS, Need::Required, |part| self.registers.put(part));
        writer.part(part::QUEUES, Need::Required, |part| {
            part.list(&self.cqs, |part, queue| queue.put(part));
            part.list(&self.sqs, |part, queue| queue.put(part));
        });
        writer.part(part::EVENTS, Need::Required, |part| {
            self.events.put(part);
            part.list(&self.requests, |part, entry| part.raw(entry.as_bytes()));
        });
        writer.part(part::FEATURES, Need::Required, |part| self.features.put(part));
        writer.part(part::NOTIFICATIONS, Need::Required, |part| self.notifications.put(part));
        writer.part(part::ERRORS, Need::Optional, |part| self.errors.put(part));
        writer.part(part::SELF_TESTS, Need::Optional, |part| {
            part.list(&self.self_tests.0, |part, result| part.raw(result.as_bytes()));
            part.put(self.self_tests.1);
        });
        writer.part(part::LOG_CONTEXT, Need::Optional, |part| {
            part.option(self.log_context.as_deref(), Writer::bytes);
        });
        writer.finish()
    }

    /// Reads a record that arrives at this time.
    ///
    /// # Errors
    /// The bytes are no record, or the record has required parts of a later version.
    pub fn decode(bytes: &[u8], now_ns: u64) -> Result<Self, RecordError> {
        let mut controller = None;
        let (mut registers, mut queues, mut events, mut features) = (None, None, None, None);
        let (mut notifications, mut errors) = (None, ErrorLog::new());
        let (mut self_tests, mut log_context) = ((Vec::new(), 0), None);
        Reader::new(bytes, now_ns).parts(|tag, mut part| {
            let part = &mut part;
            match tag {
                part::CONTROLLER => controller = Some(ControllerPart::take(part)?),
                part::REGISTERS => registers = Some(Registers::take(part)?),
                part::QUEUES => {
                    let cqs = part.list(QUEUES_MAX, CqRecord::take)?;
                    queues = Some((cqs, part.list(QUEUES_MAX, SqRecord::take)?));
                }
                part::EVENTS => {
                    let state = Events::take(part)?;
                    let requests = part.list(REQUESTS_MAX, |part| {
                        Ok(transmute!(part.array::<{ SubmissionEntry::SIZE }>()?))
                    })?;
                    events = Some((state, requests));
                }
                part::FEATURES => features = Some(Features::take(part)?),
                part::NOTIFICATIONS => notifications = Some(Notifications::take(part)?),
                part::ERRORS => errors = ErrorLog::take(part)?,
                part::SELF_TESTS => {
                    let results = part.list(SelfTestLog::RESULTS, |part| {
                        Ok(transmute!(part.array::<{ SelfTestResult::SIZE }>()?))
                    })?;
                    self_tests = (results, part.get()?);
                }
                part::LOG_CONTEXT => {
                    let page = part.option(|part| part.bytes(PERSISTENT_EVENT_LOG_BYTES))?;
                    log_context = page.map(<[u8]>::to_vec);
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let missing = |tag| move || RecordError::Missing(tag);
        let ControllerPart { cntlid, host, mode, is_mapped, shadow, is_on, io_queues } =
            controller.ok_or_else(missing(part::CONTROLLER))?;
        let (cqs, sqs) = queues.ok_or_else(missing(part::QUEUES))?;
        let (events, requests) = events.ok_or_else(missing(part::EVENTS))?;
        Ok(Self {
            cntlid,
            host,
            mode,
            is_mapped,
            shadow,
            is_on,
            io_queues,
            registers: registers.ok_or_else(missing(part::REGISTERS))?,
            sqs,
            cqs,
            events,
            requests,
            features: features.ok_or_else(missing(part::FEATURES))?,
            notifications: notifications.ok_or_else(missing(part::NOTIFICATIONS))?,
            errors,
            self_tests,
            log_context,
        })
    }

    fn put_controller(&self, part: &mut Writer) {
        part.put(self.cntlid);
        self.host.put(part);
        part.put(self.mode as u8);
        part.put(self.is_mapped);
        part.option(self.shadow, |part, addresses| addresses.into_iter().for_each(|it| part.put(it)));
        part.put(self.is_on);
        part.put(self.io_queues);
    }
}

/// First part of a controller's record.
struct ControllerPart {
    cntlid: u16,
    host: HostId,
    mode: DoorbellMode,
    is_mapped: bool,
    shadow: Option<[u64; 2]>,
    is_on: bool,
    io_queues: u16,
}

impl ControllerPart {
    fn take(part: &mut Reader<'_>) -> Result<Self, RecordError> {
        let (cntlid, host) = (part.get()?, HostId::take(part)?);
        let mode = match part.get::<u8>()? {
            0 => DoorbellMode::Trapped,
            1 => DoorbellMode::Mapped,
            2 => DoorbellMode::Capsules,
            _ => return Err(RecordError::Invalid("doorbell mode")),
        };
        let is_mapped = part.get()?;
        let shadow = part.option(|part| Ok([part.get()?, part.get()?]))?;
        let is_on = part.get()?;
        let io_queues = part.below(IO_QUEUES_MAX + 1, "number of queues")?;
        Ok(Self { cntlid, host, mode, is_mapped, shadow, is_on, io_queues })
    }
}

/// Namespace as hosts see it, and its reservations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamespaceRecord {
    pub(crate) nsid: u32,
    pub(crate) uuid: [u8; 16],
    pub(crate) block_size: u32,
    pub(crate) blocks: u64,
    pub(crate) reservations: Reservations,
}

impl NamespaceRecord {
    fn put(&self, part: &mut Writer) {
        part.put(self.nsid);
        part.raw(&self.uuid);
        part.put(self.block_size);
        part.put(self.blocks);
        self.reservations.put(part);
    }

    fn take(part: &mut Reader<'_>) -> Result<Self, RecordError> {
        Ok(Self {
            nsid: part.get()?,
            uuid: part.array()?,
            block_size: part.get()?,
            blocks: part.get()?,
            reservations: Reservations::take(part)?,
        })
    }
}

/// State of a subsystem, without its controllers.
#[derive(Debug)]
pub struct SubsystemRecord {
    pub(crate) namespaces: Vec<NamespaceRecord>,
    pub(crate) health: Health,
    pub(crate) persistent_events: PersistentEventRecord,
    /// Number of contexts of the Persistent Event Log that hosts have established.
    pub(crate) log_contexts: u16,
    /// Value that stays the same as long as no acknowledged write is lost.
    pub(crate) power_id: Option<[u8; 16]>,
}

impl SubsystemRecord {
    /// Returns the bytes of the record, made at this time.
    pub fn encode(&self, now_ns: u64) -> Vec<u8> {
        let mut writer = Writer::new(now_ns);
        writer.part(subsystem_part::NAMESPACES, Need::Required, |part| {
            part.list(&self.namespaces, |part, namespace| namespace.put(part));
        });
        writer.part(subsystem_part::HEALTH, Need::Required, |part| self.health.put(part));
        writer.part(subsystem_part::PERSISTENT_EVENTS, Need::Optional, |part| {
            part.bytes(self.persistent_events.as_bytes());
            part.put(self.log_contexts);
        });
        writer.part(subsystem_part::POWER_ID, Need::Optional, |part| {
            part.option(self.power_id, |part, it| part.raw(&it));
        });
        writer.finish()
    }

    /// Reads a record that arrives at this time.
    ///
    /// # Errors
    /// Those of [`ControllerRecord::decode`].
    pub fn decode(bytes: &[u8], now_ns: u64) -> Result<Self, RecordError> {
        let (mut namespaces, mut health, mut power_id) = (None, None, None);
        let mut events = (PersistentEventRecord::default(), 0);
        Reader::new(bytes, now_ns).parts(|tag, mut part| {
            let part = &mut part;
            match tag {
                subsystem_part::NAMESPACES => {
                    namespaces = Some(part.list(NAMESPACES_MAX, NamespaceRecord::take)?);
                }
                subsystem_part::HEALTH => health = Some(Health::take(part)?),
                subsystem_part::PERSISTENT_EVENTS => {
                    let bytes = part.bytes(PERSISTENT_EVENT_LOG_BYTES)?.to_vec();
                    let record = PersistentEventRecord::new(bytes);
                    events = (record.ok_or(RecordError::Invalid("event log"))?, part.get()?);
                }
                subsystem_part::POWER_ID => power_id = part.option(Reader::array)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(Self {
            namespaces: namespaces.ok_or(RecordError::Missing(subsystem_part::NAMESPACES))?,
            health: health.ok_or(RecordError::Missing(subsystem_part::HEALTH))?,
            persistent_events: events.0,
            log_contexts: events.1,
            power_id,
        })
    }
}

#[cfg(test)]
mod tests;
