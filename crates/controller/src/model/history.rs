//! Contents of the persistent events.

use crate::model::{Controller, Subsystem, erasing};
use crate::state::management::Creation;
use crate::state::persistent_event::{NO_CONTROLLER, PersistentEventRecord};
use crate::state::power::PowerCounts;
use crate::state::sanitize::SanitizeRecord;
use crate::state::{format, persistent_event};
use sluice_nvme::feature::TimestampData;
use sluice_nvme::persistent_event::{
    ChangeNamespace, FirmwareCommit, FormatCompletion, FormatStart, HardwareError, PowerOnOrReset,
    SanitizeCompletion, SanitizeStart, SetFeature, TimestampChange, event,
};
use sluice_nvme::{FeatureId, Status, SubmissionEntry};
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

impl Subsystem {
    /// Restores the counts of earlier daemons. If the last one was cut off (`was_cut`), unflushed writes may
    /// be lost: hosts find that in the Persistent Event Log. Restore its events before.
    pub fn resume_power(&mut self, counts: PowerCounts, was_cut: bool) {
        self.health.resume_power(counts);
        if was_cut {
            let mut data = HardwareError::new_zeroed();
            data.code = U16::new(HardwareError::UNSAFE_SHUTDOWN);
            self.record_event(event::HARDWARE_ERROR, persistent_event::NO_CONTROLLER, data.as_bytes(), 0);
        }
    }

    pub fn power_counts(&self) -> PowerCounts {
        self.health.power_counts()
    }

    pub(crate) fn note_format_start(&mut self, entry: &SubmissionEntry, now_ns: u64) {
        let mut data = FormatStart::new_zeroed();
        (data.nsid, data.cdw10) = (U32::new(entry.nsid), U32::new(entry.cdw10));
        data.attributes = format::ATTRIBUTES;
        self.record_event(event::FORMAT_START, NO_CONTROLLER, data.as_bytes(), now_ns);
    }

    pub(crate) fn note_format_end(&mut self, nsid: u32, result: Result<(), Status>, now_ns: u64) {
        let status = result.err().unwrap_or(Status::SUCCESS);
        let data = FormatCompletion {
            nsid: U32::new(nsid),
            outcome: if result.is_err() { 0b11 } else { 0 },
            status: U32::new(u32::from(status.0)),
            ..FormatCompletion::new_zeroed()
        };
        self.record_event(event::FORMAT_COMPLETION, NO_CONTROLLER, data.as_bytes(), now_ns);
    }

    pub(crate) fn note_creation(&mut self, creation: Creation, now_ns: u64) {
        let mut data = ChangeNamespace::new_zeroed();
        let format = format::BLOCK_SIZES.iter().position(|size| *size == creation.block_size);
        (data.nsze, data.ncap) = (U64::new(creation.blocks), U64::new(creation.blocks));
        (data.flbas, data.nmic) = (format.unwrap_or(0) as u8, u8::from(creation.shared));
        (data.anagrpid, data.nsid) = (U32::new(creation.ana_group), U32::new(creation.nsid));
        self.record_event(event::CHANGE_NAMESPACE, NO_CONTROLLER, data.as_bytes(), now_ns);
    }

    pub(crate) fn note_deletion(&mut self, nsid: u32, now_ns: u64) {
        const DELETE: u32 = 1;
        let mut data = ChangeNamespace::new_zeroed();
        (data.cdw10, data.nsid) = (U32::new(DELETE), U32::new(nsid));
        self.record_event(event::CHANGE_NAMESPACE, NO_CONTROLLER, data.as_bytes(), now_ns);
    }

    pub(crate) fn note_sanitize_start(&mut self, record: SanitizeRecord, now_ns: u64) {
        let capabilities = U32::new(erasing::capabilities(self));
        let SanitizeRecord { cdw10, pattern, .. } = record;
        let data = SanitizeStart { capabilities, cdw10: U32::new(cdw10), cdw11: U32::new(pattern) };
        self.record_event(event::SANITIZE_START, NO_CONTROLLER, data.as_bytes(), now_ns);
    }

    pub(crate) fn note_sanitize_end(&mut self, now_ns: u64) {
        let log = erasing::log(self);
        let mut data = SanitizeCompletion::new_zeroed();
        (data.progress, data.status) = (U16::new(log.progress), U16::new(log.status));
        self.record_event(event::SANITIZE_COMPLETION, NO_CONTROLLER, data.as_bytes(), now_ns);
    }

    /// Restores earlier events before the first turn, and sets the clock. `clock` returns milliseconds since
    /// 1970-01-01. From now on events are persisted.
    pub fn resume_persistent_events(
        &mut self,
        record: &PersistentEventRecord,
        clock: impl Fn() -> u64 + Send + 'static,
    ) {
        self.jobs.persistent_events.replace(record);
        self.jobs.persistent_events.clock = Some(Box::new(clock));
    }

    /// Records an event. `controller` is an identifier, or [`NO_CONTROLLER`].
    pub(crate) fn record_event(&mut self, kind: u8, controller: u16, data: &[u8], now_ns: u64) {
        self.jobs.persistent_events.now_ns = now_ns;
        self.jobs.persistent_events.add(kind, controller, data, now_ns);
        if let Some(due_ns) = self.jobs.persistent_events.deadline_ns() {
            self.make_due(due_ns);
        }
    }

    /// Returns the timestamp for the log page.
    pub(crate) fn timestamp(&self, now_ns: u64) -> u64 {
        self.jobs.persistent_events.timestamp(now_ns)
    }
}

/// Returns the revision of the firmware for Identify.
pub(crate) fn firmware(subsystem: &Subsystem) -> [u8; 8] {
    let mut revision = [0; 8];
    ascii(&mut revision, &subsystem.identity.firmware);
    revision
}

/// Fills a field with text, cut off or padded with spaces (Base 1.4.2). Characters outside of printable ASCII
/// become question marks.
pub(crate) fn ascii(field: &mut [u8], text: &str) {
    let printable = |c: char| if matches!(c, ' '..='~') { c as u8 } else { b'?' };
    let padded = text.chars().map(printable).chain(std::iter::repeat(b' '));
    field.iter_mut().zip(padded).for_each(|(byte, c)| *byte = c);
}

impl Controller {
    /// Records that the controller became ready. `is_power_on` is whether this is the first time since a
    /// reset from outside.
    pub(crate) fn note_ready(&self, subsystem: &mut Subsystem, is_power_on: bool, now_ns: u64) {
        if is_power_on {
            let page = subsystem.health.smart(0, &self.errors, now_ns);
            subsystem.record_event(event::SMART_SNAPSHOT, self.cntlid, page.as_bytes(), now_ns);
        }
        let mut data = PowerOnOrReset::new_zeroed();
        data.firmware = firmware(subsystem);
        data.controller = U16::new(self.cntlid);
        data.in_progress = u8::from(subsystem.jobs.erasure.is_some());
        data.power_cycles = U32::new(subsystem.health.power_cycles() as u32);
        data.power_on_ms = U64::new(subsystem.health.power_on_ms(now_ns));
        data.timestamp = U64::new(self.features.timestamp(now_ns).0);
        subsystem.record_event(event::POWER_ON_OR_RESET, self.cntlid, data.as_bytes(), now_ns);
    }

    /// Records that the host went away without a shutdown.
    pub(crate) fn note_unsafe_shutdown(&self, subsystem: &mut Subsystem) {
        let mut data = HardwareError::new_zeroed();
        data.code = U16::new(HardwareError::UNSAFE_SHUTDOWN);
        let now_ns = subsystem.jobs.persistent_events.now_ns;
        subsystem.record_event(event::HARDWARE_ERROR, self.cntlid, data.as_bytes(), now_ns);
    }

    pub(crate) fn note_firmware_commit(
        &self,
        subsystem: &mut Subsystem,
        cdw10: u32,
        status: Status,
        now_ns: u64,
    ) {
        let revision = firmware(subsystem);
        let data = FirmwareCommit {
            old_revision: revision,
            new_revision: revision,
            action: (cdw10 >> 3 & 7) as u8,
            slot: (cdw10 & 7) as u8,
            status_type: status.sct(),
            status_code: status.sc(),
            vendor_code: U16::new(0),
        };
        subsystem.record_event(event::FIRMWARE_COMMIT, self.cntlid, data.as_bytes(), now_ns);
    }

    pub(crate) fn note_timestamp(&self, subsystem: &mut Subsystem, previous: TimestampData, now_ns: u64) {
        let since_reset_ms = U64::new(self.features.since_reset_ms(now_ns));
        let data = TimestampChange { previous: U64::new(previous.0), since_reset_ms };
        subsystem.record_event(event::TIMESTAMP_CHANGE, self.cntlid, data.as_bytes(), now_ns);
    }

    /// Records a Set Features command, except for features that every host sets at its start.
    pub(crate) fn note_feature(&self, subsystem: &mut Subsystem, entry: &SubmissionEntry, now_ns: u64) {
        let id = FeatureId(entry.cdw10 as u8);
        if [FeatureId::NUMBER_OF_QUEUES, FeatureId::ASYNC_EVENTS, FeatureId::TIMESTAMP].contains(&id) {
            return;
        }
        let (layout, cdw11) = (U32::new(SetFeature::TWO_DWORDS), U32::new(entry.cdw11));
        let data = SetFeature { layout, cdw10: U32::new(entry.cdw10), cdw11 };
        subsystem.record_event(event::SET_FEATURE, self.cntlid, data.as_bytes(), now_ns);
    }
}
