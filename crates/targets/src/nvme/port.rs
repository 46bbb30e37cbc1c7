//! Messages between a target and the admin thread of its device.

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

/// Count of connections to a device. Objects of an earlier generation are of no use any more.
pub(super) type Generation = u32;

/// A target's end of a port.
#[derive(Debug)]
pub(super) struct Port {
    /// Queue identifier on the device, in every generation.
    pub(super) id: u16,
    pub(super) window: Window,
    pub(super) range: Partition,
    pub(super) info: NamespaceInfo,
    pub(super) events: Receiver<ThreadEvent>,
    /// Notifier of the target, signalled after each event.
    pub(super) notifier: Arc<Notifier>,
}

/// The target's access to the device during one connection. The admin thread drops it, since the device's
/// queue has to be deleted.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) generation: Generation,
    pub(super) queue: QueuePair,
    pub(super) interrupt: Interrupt,
    pub(super) buffers: Buffers,
    /// Properties of the namespace in this generation.
    pub(super) info: NamespaceInfo,
}

/// A request to the admin thread.
pub(super) enum ThreadRequest {
    /// Opens a range of the device for a waiting caller.
    Open { range: RangeRequest, reply: SyncSender<Result<(Port, Link), ErrorKind>> },
    /// Maps a file for the device; answered by [`ThreadEvent::Mapped`].
    Map { port: u16, generation: Generation, mapping: usize, file: MemoryFile, iova: u64 },
    /// Unmaps a file; answered by [`ThreadEvent::Unmapped`].
    Unmap { port: u16, generation: Generation, mapping: usize, bytes: u64, iova: u64 },
    /// Sends an admin command unchanged; answered by [`ThreadEvent::AdminDone`] even if the device is lost.
    Admin { port: u16, generation: Generation, request: Box<AdminRequest> },
    /// Logs that the device may have lost writes that it had acknowledged.
    LogLoss { port: u16 },
    /// Reports a command that was not answered in time.
    TimedOut { port: u16, generation: Generation },
    /// Drops an object whose drop takes time, or concerns the device.
    Discard(Box<dyn Send>),
    /// Closes the port of a target that is gone. The request has the target's link, and its unreceived
    /// events, one of which may be another link. The admin thread unmaps the target's files.
    Close { port: u16, link: Option<Box<Link>>, events: Receiver<ThreadEvent> },
}

/// A range to be opened.
#[derive(Clone, Debug)]
pub(super) struct RangeRequest {
    pub(super) namespace: u32,
    pub(super) first_block: u64,
    pub(super) blocks: Option<u64>,
    /// Time limit of all operations that this target waits for.
    pub(super) timeout: Duration,
    pub(super) control: NvmeControl,
}

/// An event from the admin thread to a target.
#[derive(Debug)]
pub(super) enum ThreadEvent {
    /// The device is connected again.
    Up(Box<Link>),
    /// The device was shut down in order: all writes that it acknowledged are durable.
    Durable,
    /// The device is gone, or was given up. No command of that generation will be completed. Until
    /// [`ThreadEvent::MemoryReleased`], memory that was mapped for it may still change.
    Down,
    /// The device of the last generation does not reach any memory any more.
    MemoryReleased,
    /// The device has mapped a file, or refused it.
    Mapped { mapping: usize, is_mapped: bool },
    /// An admin command is over, with its data.
    AdminDone { request: Box<AdminRequest>, status: Status },
    /// A file is not mapped for the device any more.
    Unmapped { mapping: usize },
}

/// Sender of requests to the admin thread, which ends when the last sender is dropped.
#[derive(Clone, Debug)]
pub(super) struct RequestSender {
    /// The channel; none only in `drop`, since the admin thread has to be woken after that.
    sender: Option<Sender<ThreadRequest>>,
    notifier: Arc<Notifier>,
}

impl RequestSender {
    pub(super) fn new(sender: Sender<ThreadRequest>, notifier: Arc<Notifier>) -> Self {
        Self { sender: Some(sender), notifier }
    }

    /// Sends a request. Returns false if there is no admin thread any more, which is only so when the process
    /// ends.
    pub(super) fn send(&self, request: ThreadRequest) -> bool {
        let sent = self.sender.as_ref().is_some_and(|sender| sender.send(request).is_ok());
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
