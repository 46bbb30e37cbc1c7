//! Get Log Page (Base 5.16).

use crate::admin::features::Scope;
use crate::admin::{Answer, Outcome, describe, features, persistent};
use crate::model::request::Admin;
use crate::model::{Controller, Subsystem, erasing, self_test};
use crate::state::doorbells::DoorbellMode;
use crate::state::limits::{NAMESPACES_MAX, TRANSFER_MAX};
use crate::state::persistent_event::PERSISTENT_EVENT_LOG_BYTES;
use crate::state::{ana, health};
use sluice_nvme::log::{FirmwareSlot, ReservationNotification, SelfTestLog, effects, supported};
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::{LogId, NSID_ALL, Status, SubmissionEntry};
use zerocopy::{FromZeros, IntoBytes};

/// Supported log pages.
const LOGS: [LogId; 13] = [
    LogId::SUPPORTED_LOG_PAGES,
    LogId::ERROR_INFORMATION,
    LogId::SMART_HEALTH,
    LogId::FIRMWARE_SLOT,
    LogId::CHANGED_NAMESPACE_LIST,
    LogId::COMMAND_EFFECTS,
    LogId::SELF_TEST,
    LogId::ASYMMETRIC_NAMESPACE_ACCESS,
    LogId::PERSISTENT_EVENT,
    LogId::SANITIZE_STATUS,
    LogId::FEATURE_EFFECTS,
    LogId::MI_COMMAND_EFFECTS,
    LogId::RESERVATION_NOTIFICATION,
];

/// Bytes of the longest page.
const PAGE_MAX: usize = 4096;

/// Request for a log page.
pub(super) struct LogRequest {
    log: LogId,
    /// Bytes from the start of the page.
    pub(super) offset: u64,
    /// Number of bytes.
    pub(super) length: u64,
    /// Whether the event that the page explains stays pending.
    retain_event: bool,
    /// Return Groups Only, in the log specific field.
    groups_only: bool,
}

pub(crate) fn get_log_page(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    admin: &Admin<'_>,
) -> Answer {
    let request = LogRequest::of(admin.entry)?;
    if request.log == LogId::PERSISTENT_EVENT {
        return persistent::get(controller, subsystem, admin, &request);
    }
    let mut page = Page::new();
    page.fill(controller, subsystem, &request, admin.now_ns);
    // The bytes beyond the end of the page are undefined (Base 5.16), so none are sent.
    let start = page.length.min(request.offset as usize);
    let end = page.length.min(start + request.length as usize);
    if start < end {
        admin.to_buffer(request.length as usize, &page.bytes[start..end])?;
    }
    if !request.retain_event {
        controller.log_was_read(request.log);
    }
    Ok(Outcome::Done(0))
}

impl LogRequest {
    fn of(entry: &SubmissionEntry) -> Result<LogRequest, Status> {
        const RETAIN_ASYNCHRONOUS_EVENT: u32 = 1 << 15;
        const RETURN_GROUPS_ONLY: u32 = 1 << 8;
        let log = LogId(entry.cdw10 as u8);
        if !LOGS.contains(&log) {
            return Err(Status::INVALID_LOG_PAGE);
        }
        // NUMDL and NUMDU, dwords, 0's based.
        let dwords = u64::from(entry.cdw10 >> 16 | entry.cdw11 << 16) + 1;
        let request = LogRequest {
            log,
            offset: u64::from(entry.cdw12) | u64::from(entry.cdw13) << 32,
            length: dwords * size_of::<u32>() as u64,
            retain_event: entry.cdw10 & RETAIN_ASYNCHRONOUS_EVENT != 0,
            groups_only: entry.cdw10 & RETURN_GROUPS_ONLY != 0,
        };
        request.check(entry)?;
        Ok(request)
    }

    fn check(&self, entry: &SubmissionEntry) -> Result<(), Status> {
        // An offset that is an index is only for pages that support it, which no page here does.
        const OFFSET_TYPE: u32 = 1 << 23;
        // All pages belong to the controller or the subsystem (LPA bit 0 is for the health of one namespace).
        let of_controller = entry.nsid == 0 || entry.nsid == NSID_ALL;
        let other_command_set = self.log == LogId::COMMAND_EFFECTS && entry.cdw14 >> 24 != 0;
        let valid = of_controller
            && entry.cdw14 & OFFSET_TYPE == 0
            && !other_command_set
            && self.offset.is_multiple_of(size_of::<u32>() as u64)
            && self.offset <= length_of(self.log) as u64
            && self.length <= u64::from(TRANSFER_MAX);
        if valid { Ok(()) } else { Err(Status::INVALID_FIELD) }
    }
}

/// Returns the bytes of a log page.
fn length_of(log: LogId) -> usize {
    match log {
        LogId::SUPPORTED_LOG_PAGES | LogId::FEATURE_EFFECTS | LogId::MI_COMMAND_EFFECTS => 1024,
        LogId::SMART_HEALTH | LogId::FIRMWARE_SLOT | LogId::SANITIZE_STATUS => 512,
        LogId::SELF_TEST => SelfTestLog::SIZE,
        LogId::ASYMMETRIC_NAMESPACE_ACCESS => ana::LOG_BYTES,
        LogId::RESERVATION_NOTIFICATION => ReservationNotification::SIZE,
        LogId::PERSISTENT_EVENT => PERSISTENT_EVENT_LOG_BYTES,
        _ => PAGE_MAX,
    }
}

/// Current contents of a log page.
struct Page {
    bytes: [u8; PAGE_MAX],
    length: usize,
}

impl Page {
    fn new() -> Self {
        Self { bytes: [0; PAGE_MAX], length: 0 }
    }

    fn fill(&mut self, controller: &Controller, subsystem: &Subsystem, request: &LogRequest, now_ns: u64) {
        self.length = length_of(request.log);
        match request.log {
            LogId::SUPPORTED_LOG_PAGES => {
                let more = |log| if log == LogId::PERSISTENT_EVENT { persistent::READS_HEADER } else { 0 };
                self.put_all(LOGS.iter().map(|&log| (usize::from(log.0), supported::LSUPP | more(log))));
            }
            LogId::ERROR_INFORMATION => {
                let errors = controller.errors().map(IntoBytes::as_bytes);
                errors.enumerate().for_each(|(index, error)| self.put(index * error.len(), error));
            }
            LogId::SMART_HEALTH => self.put(0, controller.smart(subsystem, now_ns).as_bytes()),
            LogId::FIRMWARE_SLOT => self.put(0, firmware(controller, subsystem).as_bytes()),
            // The list has room for all namespaces of a drive, so it never reports only an overflow.
            LogId::CHANGED_NAMESPACE_LIST => {
                self.put_all(controller.changed_namespaces().enumerate());
            }
            LogId::COMMAND_EFFECTS => self.put_all(command_effects(controller, subsystem)),
            LogId::SANITIZE_STATUS => self.put(0, erasing::log(subsystem).as_bytes()),
            LogId::SELF_TEST => self.put(0, self_test::log(controller, subsystem).as_bytes()),
            LogId::FEATURE_EFFECTS => self.put_all(feature_effects(subsystem)),
            LogId::ASYMMETRIC_NAMESPACE_ACCESS => {
                let log = subsystem.ana().log(
                    controller.number(),
                    subsystem.iter_active(controller.number()).map(|it| (it.nsid(), it.ana_group())),
                    request.groups_only,
                );
                self.length = log.len();
                self.put(0, &log);
            }
            LogId::RESERVATION_NOTIFICATION => self.put(0, controller.reservation_page().as_bytes()),
            // There is no management endpoint, so that none of its commands is supported: zeros.
            _ => {}
        }
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Writes dwords by their index.
    fn put_all(&mut self, dwords: impl Iterator<Item = (usize, u32)>) {
        dwords.for_each(|(index, dword)| self.put(index * size_of::<u32>(), &dword.to_le_bytes()));
    }
}

const _: () = {
    use sluice_nvme::log::{CHANGED_NAMESPACES, ErrorInformation};
    assert!(NAMESPACES_MAX <= CHANGED_NAMESPACES);
    assert!(ana::LOG_BYTES <= PAGE_MAX);
    assert!(health::ERROR_ENTRIES * ErrorInformation::SIZE == PAGE_MAX);
};

fn firmware(controller: &Controller, subsystem: &Subsystem) -> FirmwareSlot {
    let mut page = FirmwareSlot::new_zeroed();
    page.active = 1;
    page.revisions[0] = describe::controller(controller, subsystem).fr;
    page
}

/// Effects of I/O commands, without their scope, which is optional. Linux logs any bits beyond these two as
/// unusual.
const READS: u32 = effects::SUPPORTED;

const WRITES: u32 = READS | effects::DATA_CHANGES;

/// Returns the effects by opcode, admin commands first and I/O commands from 256 on: all commands that
/// [`execute`](super::execute) and [`intake`](crate::engine::intake) take.
fn command_effects(controller: &Controller, subsystem: &Subsystem) -> impl Iterator<Item = (usize, u32)> {
    const IO: usize = 256;
    const ADMIN: u32 = effects::SUPPORTED | effects::SCOPE_CONTROLLER;
    const FORMATS: u32 = effects::SUPPORTED
        | effects::DATA_CHANGES
        | effects::SCOPE_NAMESPACE
        | effects::NAMESPACE_CAPABILITY
        | effects::ALONE_IN_NAMESPACE;
    let queues =
        [admin::DELETE_IO_SQ, admin::CREATE_IO_SQ, admin::DELETE_IO_CQ, admin::CREATE_IO_CQ].into_iter();
    let queues = queues.filter(|_| !controller.is_fabrics()).map(|opcode| (usize::from(opcode), ADMIN));
    let always = [
        (usize::from(admin::GET_LOG_PAGE), ADMIN),
        (usize::from(admin::IDENTIFY), ADMIN),
        (usize::from(admin::ABORT), ADMIN),
        (usize::from(admin::SET_FEATURES), ADMIN),
        (usize::from(admin::GET_FEATURES), ADMIN),
        (usize::from(admin::ASYNC_EVENT_REQUEST), ADMIN),
        (usize::from(admin::FIRMWARE_COMMIT), ADMIN),
        (usize::from(admin::FIRMWARE_DOWNLOAD), ADMIN),
        (usize::from(admin::DEVICE_SELF_TEST), ADMIN),
        (usize::from(admin::KEEP_ALIVE), ADMIN),
        (usize::from(admin::FORMAT_NVM), FORMATS),
        (IO + usize::from(io::FLUSH), READS),
        (IO + usize::from(io::WRITE), WRITES),
        (IO + usize::from(io::READ), READS),
        (IO + usize::from(io::WRITE_UNCORRECTABLE), WRITES),
        (IO + usize::from(io::COMPARE), READS),
        (IO + usize::from(io::VERIFY), READS),
        (IO + usize::from(io::COPY), WRITES),
        (IO + usize::from(io::WRITE_ZEROES), WRITES),
        (IO + usize::from(io::RESERVATION_REGISTER), READS),
        (IO + usize::from(io::RESERVATION_REPORT), READS),
        (IO + usize::from(io::RESERVATION_ACQUIRE), READS),
        (IO + usize::from(io::RESERVATION_RELEASE), READS),
    ];
    let has_shadow = controller.doorbell_mode() == DoorbellMode::Trapped;
    let shadow = has_shadow.then_some((usize::from(admin::DOORBELL_BUFFER_CONFIG), ADMIN));
    let deallocates = subsystem.deallocates();
    let deallocate = deallocates.then_some((IO + usize::from(io::DATASET_MANAGEMENT), WRITES));
    const SANITIZES: u32 =
        effects::SUPPORTED | effects::DATA_CHANGES | effects::SCOPE_SUBSYSTEM | effects::ALONE;
    const MANAGES: u32 = effects::SUPPORTED | effects::SCOPE_SUBSYSTEM | effects::NAMESPACE_INVENTORY;
    // The data of a deleted namespace is gone.
    const DELETES: u32 = MANAGES | effects::DATA_CHANGES;
    let pool = subsystem.jobs().management.pool;
    let management = pool.map(|_| {
        [
            (usize::from(admin::NAMESPACE_MANAGEMENT), DELETES),
            (usize::from(admin::NAMESPACE_ATTACHMENT), MANAGES),
        ]
    });
    let sanitizes = erasing::capabilities(subsystem) != 0;
    let sanitize = sanitizes.then_some((usize::from(admin::SANITIZE), SANITIZES));
    always
        .into_iter()
        .chain(sanitize)
        .chain(management.into_iter().flatten())
        .chain(queues)
        .chain(shadow)
        .chain(deallocate)
        .chain(handed_on(subsystem))
}

/// Returns the effects of commands that a target passes to its device: anything, except for a Verify.
fn handed_on(subsystem: &Subsystem) -> impl Iterator<Item = (usize, u32)> {
    const IO: usize = 256;
    const ANYTHING: u32 = effects::SUPPORTED | effects::SCOPE_NAMESPACE | effects::DATA_CHANGES;
    let listed = subsystem.passthrough();
    let io = listed.io.iter().map(|opcode| match opcode {
        io::VERIFY => (IO + usize::from(opcode), READS),
        _ => (IO + usize::from(opcode), WRITES),
    });
    let own = listed.admin.iter().filter(|opcode| *opcode != admin::GET_LOG_PAGE);
    io.chain(own.map(|opcode| (usize::from(opcode), ANYTHING)))
}

/// Returns the effects by feature identifier.
fn feature_effects(subsystem: &Subsystem) -> impl Iterator<Item = (usize, u32)> {
    features::supported(subsystem).map(|(id, scope)| {
        let scope = match scope {
            Scope::Controller => effects::SCOPE_CONTROLLER,
            Scope::Namespace => effects::SCOPE_NAMESPACE,
        };
        (usize::from(id.0), effects::SUPPORTED | scope)
    })
}
