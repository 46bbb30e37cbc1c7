//! Maintenance of a controller behind a target: controller resets, and firmware (Base 5.12, 5.13).

use super::NamespaceInfo;
use sluice_nvme::identify::IdentifyController;
use sluice_nvme::{Status, SubmissionEntry, opcode};
use std::fmt;
use std::time::Duration;

/// Bytes of a page, the unit of the Firmware Update Granularity (FWUG).
const GRANULE: usize = 4096;

/// Time for a Firmware Commit, at least: a controller writes the image to its flash.
const COMMIT_MIN: Duration = Duration::from_secs(60);

/// Time for the answer to a Firmware Commit, at most. MTFA can be 6553 s, and a client of the API waits for 300 s. A reset comes after
/// the commit.
const COMMIT_MAX: Duration = Duration::from_secs(100);

/// Times for a Firmware Commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitLimits {
    /// Time for its answer.
    pub answer: Duration,
    /// Time for which the controller may be busy with it.
    pub busy: Duration,
}

impl CommitLimits {
    /// Creates the limits from the Maximum Time for Firmware Activation (MTFA), in units of 100 ms.
    fn of(mtfa: u16) -> Self {
        let busy = (Duration::from_millis(100) * u32::from(mtfa)).max(COMMIT_MIN);
        Self { answer: busy.min(COMMIT_MAX), busy }
    }
}

/// State of a controller that a reset must not change, or restores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerContext {
    /// Firmware Revision (FR).
    pub firmware: String,
    /// Firmware slots (FRMW).
    pub slots: u8,
    /// Whether the first slot is read-only.
    pub is_first_read_only: bool,
    /// Whether the controller has the firmware commands (OACS).
    pub has_firmware_commands: bool,
    /// Bytes of a Firmware Image Download.
    pub piece: usize,
    /// Bytes of data that one command carries at most.
    pub piece_max: usize,
    pub commit_limits: CommitLimits,
    /// I/O queues of this host.
    pub queues: u32,
    /// Namespaces in use by this host.
    pub namespaces: u32,
    /// Whether an Asynchronous Event Request is outstanding.
    pub requests_events: bool,
}

impl ControllerContext {
    /// Checks whether one command carries a piece of an image.
    ///
    /// # Errors
    /// The controller needs larger pieces.
    pub fn check_pieces(&self) -> Result<(), MaintenanceFault> {
        match self.piece > self.piece_max {
            true => Err(MaintenanceFault::Granularity { has: self.piece, most: self.piece_max }),
            false => Ok(()),
        }
    }

    /// Creates the context from Identify Controller data, without queues and namespaces. `piece_max` limits the data
    /// of one command.
    pub(crate) fn of(controller: &IdentifyController, piece_max: usize) -> Result<Self, MaintenanceFault> {
        let granularity = match controller.fwug {
            0 | 0xff => GRANULE,
            pages => usize::from(pages) * GRANULE,
        };
        let firmware = String::from_utf8_lossy(&controller.fr).trim().to_owned();
        Ok(Self {
            firmware,
            slots: controller.frmw >> 1 & 7,
            is_first_read_only: controller.frmw & 1 != 0,
            has_firmware_commands: controller.oacs & 1 << 2 != 0,
            piece: granularity,
            piece_max,
            commit_limits: CommitLimits::of(controller.mtfa),
            queues: 0,
            namespaces: 0,
            requests_events: false,
        })
    }
}

/// Reset that makes a committed image active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// The command succeeded: an image of action 3 is active, one of action 1 or 2 after any reset.
    Ready,
    /// A Controller Level Reset makes it active.
    ControllerReset,
}

/// Outcome of a controller reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResetReport {
    /// Time that the controller needed by itself: to shut down, to be reachable again, and to become ready.
    pub device: Duration,
    pub context: ControllerContext,
}

/// Reason why maintenance of a controller failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MaintenanceFault {
    /// The target is gone.
    Gone,
    /// The controller is not connected.
    NotConnected,
    /// The controller did not answer, or the connection failed.
    Failed(String),
    /// The admin thread did not begin the order in time. The order was withdrawn.
    Busy { limit: Duration },
    /// The daemon ends. An order that has not begun was withdrawn.
    Ending { has_begun: bool },
    /// The controller refused a command.
    Refused { command: &'static str, status: Status },
    /// The controller needs larger pieces of an image than one command carries.
    Granularity { has: usize, most: usize },
    /// The image becomes active with a reset that this host cannot do.
    NeedsReset(&'static str),
    /// The controller came back as another one, or with other storage.
    Differs(String),
    /// The controller did not come back in time.
    NotBack { limit: Duration, last: String },
}

impl MaintenanceFault {
    /// Returns whether the controller has been reset, so that its target may not go on unseen.
    pub fn is_after_reset(&self) -> bool {
        matches!(self, Self::Differs(_) | Self::NotBack { .. })
    }
}

impl fmt::Display for MaintenanceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("its target is closed"),
            Self::NotConnected => f.write_str("it is not connected"),
            Self::Failed(why) => f.write_str(why),
            Self::Busy { limit } => {
                write!(f, "it was busy for {} s, and the order was withdrawn", limit.as_secs())
            }
            Self::Ending { has_begun: false } => f.write_str("the daemon is stopping: nothing was done"),
            Self::Ending { has_begun: true } => {
                f.write_str("the daemon is stopping, and does not wait for the controller")
            }
            Self::Refused { command, status } => write!(f, "{command} failed: {}", name_of(*status)),
            Self::Granularity { has, most } => {
                write!(f, "it takes firmware in pieces of {has} bytes (FWUG), and a command carries {most}")
            }
            Self::NeedsReset(reset) => {
                write!(f, "the image is in its slot, and becomes active with {reset}")
            }
            Self::Differs(how) => write!(f, "it came back as another one: {how}"),
            Self::NotBack { limit, last } => {
                write!(f, "it did not come back within {} s; the last attempt: {last}", limit.as_secs())
            }
        }
    }
}

/// Returns the name of a status of the firmware commands.
fn name_of(status: Status) -> String {
    let name = match (status.sct(), status.sc()) {
        (1, 0x06) => "Invalid Firmware Slot",
        (1, 0x07) => "Invalid Firmware Image",
        (1, 0x12) => "Firmware Activation Requires Maximum Time Violation",
        (1, 0x13) => "Firmware Activation Prohibited",
        (1, 0x14) => "Overlapping Range",
        (0, 0x01) => "Invalid Command Opcode",
        (0, 0x02) => "Invalid Field in Command",
        _ => return format!("{status:?}"),
    };
    name.to_owned()
}

/// Builds Firmware Image Download of a piece at an offset, both in bytes and multiples of four.
pub(crate) fn download(offset: u32, length: usize) -> SubmissionEntry {
    SubmissionEntry {
        opcode: opcode::admin::FIRMWARE_DOWNLOAD,
        cdw10: (length as u32 / 4).wrapping_sub(1),
        cdw11: offset / 4,
        ..SubmissionEntry::default()
    }
}

/// Builds Firmware Commit.
pub(crate) fn commit(slot: u8, action: u8) -> SubmissionEntry {
    SubmissionEntry {
        opcode: opcode::admin::FIRMWARE_COMMIT,
        cdw10: u32::from(slot & 7) | u32::from(action & 7) << 3,
        ..SubmissionEntry::default()
    }
}

/// Returns the effect of a Firmware Commit that was completed with `status`.
pub(crate) fn activation(status: Status) -> Result<Activation, MaintenanceFault> {
    match (status.sct(), status.sc()) {
        _ if status.is_success() => Ok(Activation::Ready),
        (1, 0x11) => Ok(Activation::ControllerReset),
        (1, 0x0b) => Err(MaintenanceFault::NeedsReset("a conventional reset: a power cycle of the device")),
        (1, 0x10) => Err(MaintenanceFault::NeedsReset("an NVM subsystem reset")),
        _ => Err(MaintenanceFault::Refused { command: "Firmware Commit", status }),
    }
}

/// Checks that a namespace is the same after a reset, and of the same size.
pub(crate) fn check_same(before: &NamespaceInfo, after: &NamespaceInfo) -> Result<(), MaintenanceFault> {
    match after.difference(before) {
        Some(how) => Err(MaintenanceFault::Differs(how)),
        None if !after.replaces(before, before.blocks) => {
            Err(MaintenanceFault::Differs("it has fewer properties than before".to_owned()))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use zerocopy::FromZeros;

    pub(in crate::remote) fn controller(fwug: u8) -> IdentifyController {
        let mut controller = IdentifyController::new_zeroed();
        (controller.fr, controller.frmw, controller.oacs) = (*b"1.2     ", 0b101, 1 << 2);
        (controller.fwug, controller.mtfa) = (fwug, 3000);
        controller
    }

    #[test]
    fn a_context_has_the_limits_of_the_firmware_commands() {
        let context = ControllerContext::of(&controller(2), 8192).expect("two pages fit");
        assert_eq!((context.firmware.as_str(), context.slots, context.piece), ("1.2", 2, 8192));
        assert!(context.is_first_read_only && context.has_firmware_commands);
        let limits = CommitLimits { answer: Duration::from_secs(100), busy: Duration::from_secs(300) };
        assert_eq!(context.commit_limits, limits);
        let limit = |mtfa| {
            let mut controller = controller(2);
            controller.mtfa = mtfa;
            ControllerContext::of(&controller, 8192).map(|it| {
                let CommitLimits { answer, busy } = it.commit_limits;
                (answer.as_secs(), busy.as_secs())
            })
        };
        assert_eq!([0, 700, u16::MAX].map(limit), [Ok((60, 60)), Ok((70, 70)), Ok((100, 6553))]);
        assert_eq!(ControllerContext::of(&controller(0xff), 4096).map(|it| it.piece), Ok(4096));
        assert_eq!(context.check_pieces(), Ok(()));
        let larger = ControllerContext::of(&controller(3), 8192).expect("it may be reset");
        let fault = MaintenanceFault::Granularity { has: 12288, most: 8192 };
        assert_eq!(larger.check_pieces(), Err(fault));
    }

    #[test]
    fn entries_count_in_dwords() {
        let entry = download(8192, 4096);
        assert_eq!((entry.opcode, entry.cdw10, entry.cdw11), (0x11, 1023, 2048));
        let entry = commit(2, 3);
        assert_eq!((entry.opcode, entry.cdw10), (0x10, 2 | 3 << 3));
    }

    #[test]
    fn a_commit_names_the_reset_that_it_needs() {
        let status = |code: u16| Status(1 << 8 | code);
        assert_eq!(activation(Status::SUCCESS), Ok(Activation::Ready));
        assert_eq!(activation(status(0x11)), Ok(Activation::ControllerReset));
        let said = |code| activation(status(code)).expect_err("it is refused").to_string();
        assert!(said(0x0b).contains("power cycle") && said(0x10).contains("subsystem reset"));
        assert!(said(0x07).contains("Invalid Firmware Image") && said(0x13).contains("Prohibited"));
    }
}
