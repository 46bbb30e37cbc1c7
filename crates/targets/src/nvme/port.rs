//! What a target and the keeper of its device say to each other.

use super::NvmeControl;
use super::buffers::Buffers;
use super::confine::Partition;
use super::error::ErrorKind;
use super::iova_layout::Window;
use super::raw::AdminRequest;
use crate::remote::{NamespaceInfo, Notifier};
use sluice_host::{Interrupt, QueuePair};
use sluice_memory::MemoryFile;
use sluice_nvme::Status;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender};
use std::time::Duration;

/// Counts connections to a device: what belongs to an earlier one is of no use any more.
pub(super) type Generation = u32;

/// A target's end.
#[derive(Debug)]
pub(super) struct Port {
    /// Queue identifier on the device, in every life of it.
    pub(super) id: u16,
    pub(super) window: Window,
    pub(super) range: Partition,
    pub(super) info: NamespaceInfo,
    pub(super) events: Receiver<ThreadEvent>,
    /// Rung when there are news.
    pub(super) notifier: Arc<Notifier>,
}

/// What a target drives the device with while one connection lasts. Let go of by the keeper, since
/// the device has to be told.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) generation: Generation,
    pub(super) queue: QueuePair,
    pub(super) interrupt: Interrupt,
    pub(super) buffers: Buffers,
    /// Of the device in this life.
    pub(super) info: NamespaceInfo,
}

/// What the keeper is asked to do.
pub(super) enum ThreadRequest {
    /// Somebody waits for a range of the device.
    Open { range: RangeRequest, reply: SyncSender<Result<(Port, Link), ErrorKind>> },
    /// Show a file to the device; answered by [`ThreadEvent::Mapped`].
    Map { port: u16, generation: Generation, mapping: usize, file: MemoryFile, iova: u64 },
    /// Take a file back; answered by [`ThreadEvent::Unmapped`].
    Unmap { port: u16, generation: Generation, mapping: usize, bytes: u64, iova: u64 },
    /// Send an admin command as it is; answered by [`ThreadEvent::AdminDone`], whatever becomes of the device.
    Admin { port: u16, generation: Generation, request: Box<AdminRequest> },
    /// The device may have lost writes that it had acknowledged: the log is told.
    LogLoss { port: u16 },
    /// A command was not answered in time.
    TimedOut { port: u16, generation: Generation },
    /// Something whose end takes time, or concerns the device.
    Discard(Box<dyn Send>),
    /// The target is gone. Its link, if it has one, and what it did not hear any more, which may be another; what it lent
    /// is the keeper's to take back.
    Close { port: u16, link: Option<Box<Link>>, events: Receiver<ThreadEvent> },
}

/// A range that somebody wants.
#[derive(Clone, Debug)]
pub(super) struct RangeRequest {
    pub(super) namespace: u32,
    pub(super) first_block: u64,
    pub(super) blocks: Option<u64>,
    /// How long anything that this target waits for may take.
    pub(super) timeout: Duration,
    pub(super) control: NvmeControl,
}

/// What the keeper has to tell a target.
#[derive(Debug)]
pub(super) enum ThreadEvent {
    /// The device is there again.
    Up(Box<Link>),
    /// The device is gone, or was given up. Nothing of that life will be answered. Until it is [`ThreadEvent::MemoryReleased`],
    /// memory that it was lent may still change.
    Down,
    /// The device of the last life does not reach any memory any more.
    MemoryReleased,
    /// The device sees a loan, or cannot.
    Mapped { mapping: usize, is_mapped: bool },
    /// An admin command is over, with its data.
    AdminDone { request: Box<AdminRequest>, status: Status },
    /// The device does not see a loan any more.
    Unmapped { mapping: usize },
}

/// The way to the keeper. When the last one is dropped, it ends.
#[derive(Clone, Debug)]
pub(super) struct RequestSender {
    /// None only while it is dropped: the keeper has to be woken after that.
    sender: Option<Sender<ThreadRequest>>,
    notifier: Arc<Notifier>,
}

impl RequestSender {
    pub(super) fn new(sender: Sender<ThreadRequest>, notifier: Arc<Notifier>) -> Self {
        Self { sender: Some(sender), notifier }
    }

    /// False if there is no keeper any more, which is only so when the process ends.
    pub(super) fn send(&self, order: ThreadRequest) -> bool {
        let sent = self.sender.as_ref().is_some_and(|sender| sender.send(order).is_ok());
        self.notifier.notify();
        sent
    }
}

impl Drop for RequestSender {
    fn drop(&mut self) {
        self.sender = None;
        self.notifier.notify();
    }
}
