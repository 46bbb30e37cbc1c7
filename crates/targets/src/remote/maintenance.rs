//! Maintenance of a controller behind a target: controller resets, and firmware (Base 5.12, 5.13).
//!
//! The control plane sends an order at a time to the admin thread of the controller, and waits for the answer. The
//! thread serves its target between two orders. A reset is answered when the controller is back.

use super::{NamespaceInfo, Notifier};
use sluice_nvme::identify::IdentifyController;
use sluice_nvme::{Status, SubmissionEntry, opcode};
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

/// Time for an answer of the admin thread beyond the time of the controller.
const GRACE: Duration = Duration::from_secs(30);

/// Bytes of a page, the unit of the Firmware Update Granularity (FWUG).
const GRANULE: usize = 4096;

/// Time for a Firmware Commit, at least: a controller writes the image to its flash.
const COMMIT_LIMIT: Duration = Duration::from_secs(60);

/// Pause between two attempts to connect to a controller that is reset.
pub(crate) const ATTEMPT_PAUSE: Duration = Duration::from_millis(5);

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
    /// Time for a Firmware Commit.
    pub commit_limit: Duration,
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
            commit_limit: COMMIT_LIMIT.max(Duration::from_millis(100) * u32::from(controller.mtfa)),
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

/// Sender of the answer to an order.
pub(crate) type Reply<T> = SyncSender<Result<T, MaintenanceFault>>;

/// An order for an admin thread.
pub(crate) enum Order {
    /// Stores the context of the controller, for comparison after a reset.
    Save(Reply<ControllerContext>),
    Download {
        offset: u32,
        piece: Vec<u8>,
        reply: Reply<()>,
    },
    Commit {
        slot: u8,
        action: u8,
        limit: Duration,
        reply: Reply<Activation>,
    },
    /// Shuts the controller down and resets it. The target of the controller is idle.
    Reset {
        limit: Duration,
        reply: Reply<ResetReport>,
    },
    /// Compares the controller with its stored context, without a reset.
    Compare(Reply<ControllerContext>),
}

/// Admin thread of a controller, which executes the orders of the control plane.
pub(crate) trait Maintained {
    /// Stores the context of the controller, for comparison after a reset.
    fn save(&mut self) -> Result<ControllerContext, MaintenanceFault>;

    /// Compares the controller with its stored context.
    fn compare(&mut self) -> Result<ControllerContext, MaintenanceFault>;

    /// Sends the piece of an image that begins at byte `offset`.
    fn download(&mut self, offset: u32, piece: &[u8]) -> Result<(), MaintenanceFault>;

    fn commit(&mut self, slot: u8, action: u8, limit: Duration) -> Result<Activation, MaintenanceFault>;

    /// Shuts the controller down, so that its cache is durable, and resets it. The answer comes when the thread has
    /// connected again.
    fn begin_reset(&mut self, limit: Duration, reply: Reply<ResetReport>);

    /// Executes an order.
    fn execute_order(&mut self, order: Order) {
        match order {
            Order::Save(reply) => answer(&reply, self.save()),
            Order::Compare(reply) => answer(&reply, self.compare()),
            Order::Download { offset, piece, reply } => answer(&reply, self.download(offset, &piece)),
            Order::Commit { slot, action, limit, reply } => answer(&reply, self.commit(slot, action, limit)),
            Order::Reset { limit, reply } => self.begin_reset(limit, reply),
        }
    }
}

/// Answers an order. The requester may have given up waiting.
pub(crate) fn answer<T>(reply: &Reply<T>, result: Result<T, MaintenanceFault>) {
    let _ = reply.try_send(result);
}

/// A reset in progress.
pub(crate) struct PendingReset {
    reply: Reply<ResetReport>,
    limit: Duration,
    began: Instant,
    /// Time of the controller so far.
    device: Duration,
    /// Time since which the controller is tried to reach.
    first_attempt: Option<Instant>,
    last: String,
}

impl PendingReset {
    /// Creates the state after a shutdown that took `device`.
    pub(crate) fn new(reply: Reply<ResetReport>, limit: Duration, device: Duration) -> Self {
        let began = Instant::now();
        Self { reply, limit, began, device, first_attempt: None, last: "none".to_owned() }
    }

    /// Records the begin of an attempt to connect.
    pub(crate) fn attempt(&mut self) {
        self.first_attempt.get_or_insert_with(Instant::now);
    }

    /// Records that the controller could be reached at `reached`, and became ready in `ready`.
    pub(crate) fn reached(&mut self, reached: Instant, ready: Duration) {
        let waited = self.first_attempt.map(|first| reached.saturating_duration_since(first));
        self.device += waited.unwrap_or_default() + ready;
    }

    /// Records a failed attempt. Returns the reset, unless its time is over and it was answered.
    pub(crate) fn failed(mut self, why: String) -> Option<Self> {
        self.last = why;
        if self.began.elapsed() < self.limit {
            return Some(self);
        }
        let fault = MaintenanceFault::NotBack { limit: self.limit, last: self.last };
        answer(&self.reply, Err(fault));
        None
    }

    /// Answers the reset.
    pub(crate) fn end(self, context: Result<ControllerContext, MaintenanceFault>) {
        let device = self.device;
        answer(&self.reply, context.map(|context| ResetReport { device, context }));
    }
}

/// Creates the two ends of the orders for an admin thread with this notifier.
pub(crate) fn orders(notifier: &Arc<Notifier>) -> (Maintenance, Receiver<Order>) {
    let (orders, receiver) = channel();
    (Maintenance { orders, notifier: Arc::clone(notifier) }, receiver)
}

/// Handle of the control plane on the controller behind a target. It keeps no connection alive.
#[derive(Clone, Debug)]
pub struct Maintenance {
    orders: Sender<Order>,
    notifier: Arc<Notifier>,
}

impl Maintenance {
    /// Stores the context of the controller, and returns it. All methods block until the answer comes.
    ///
    /// # Errors
    /// The controller is not connected, or does not answer.
    pub fn save(&self) -> Result<ControllerContext, MaintenanceFault> {
        self.send(GRACE, Order::Save)
    }

    /// Downloads the piece of an image that begins at `offset`.
    ///
    /// # Errors
    /// The controller refuses it, or does not answer.
    pub fn download(&self, offset: u32, piece: Vec<u8>) -> Result<(), MaintenanceFault> {
        self.send(GRACE, |reply| Order::Download { offset, piece, reply })
    }

    /// Commits the downloaded image, or activates the one in a slot.
    ///
    /// # Errors
    /// The controller refuses it, or needs a reset that this host cannot do.
    pub fn commit(&self, slot: u8, action: u8, limit: Duration) -> Result<Activation, MaintenanceFault> {
        self.send(limit + GRACE, |reply| Order::Commit { slot, action, limit, reply })
    }

    /// Resets the controller, whose target is idle, and waits for at most `limit` until it is back.
    ///
    /// # Errors
    /// The controller is another one then, or did not come back. Its target stays as it is.
    pub fn reset(&self, limit: Duration) -> Result<ResetReport, MaintenanceFault> {
        self.send(limit + GRACE, |reply| Order::Reset { limit, reply })
    }

    /// Compares the controller with its stored context.
    ///
    /// # Errors
    /// The controller is another one, or does not answer.
    pub fn compare(&self) -> Result<ControllerContext, MaintenanceFault> {
        self.send(GRACE, Order::Compare)
    }

    fn send<T>(&self, limit: Duration, order: impl FnOnce(Reply<T>) -> Order) -> Result<T, MaintenanceFault> {
        let (reply, replied) = sync_channel(1);
        self.orders.send(order(reply)).map_err(|_| MaintenanceFault::Gone)?;
        self.notifier.notify();
        replied.recv_timeout(limit).unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => Err(MaintenanceFault::NotBack { limit, last: "none".to_owned() }),
            RecvTimeoutError::Disconnected => Err(MaintenanceFault::Gone),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn controller(fwug: u8) -> IdentifyController {
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
        assert_eq!(context.commit_limit, Duration::from_secs(300));
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

    #[test]
    fn a_reset_is_answered_once_its_time_is_over() {
        let (reply, replied) = sync_channel(1);
        let pending = PendingReset::new(reply, Duration::from_secs(600), Duration::ZERO);
        let pending = pending.failed("refused".to_owned()).expect("there is time");
        assert!(replied.try_recv().is_err());
        let late = PendingReset { limit: Duration::ZERO, ..pending };
        assert!(late.failed("still refused".to_owned()).is_none());
        let fault = replied.recv().expect("an answer").expect_err("it is not back");
        assert!(fault.is_after_reset() && fault.to_string().contains("still refused"), "{fault}");
    }

    #[test]
    fn the_time_until_a_controller_is_reached_is_its_own() {
        let (reply, replied) = sync_channel(1);
        let second = Duration::from_secs(1);
        let mut pending = PendingReset::new(reply, second, second);
        pending.attempt();
        let first = pending.first_attempt.expect("it began");
        pending.attempt();
        pending.reached(first + second * 2, second * 3);
        let context = ControllerContext::of(&controller(0), 4096);
        pending.end(context);
        assert_eq!(replied.recv().expect("an answer").map(|report| report.device), Ok(second * 6));
    }
}
