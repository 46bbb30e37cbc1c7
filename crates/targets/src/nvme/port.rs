//! What a target and the keeper of its device say to each other.

use super::NvmeControl;
use super::buffers::Buffers;
use super::confine::Partition;
use super::error::Trouble;
use super::raw::Errand;
use super::window::Window;
use crate::remote::{NamespaceInfo, Notifier};
use sluice_host::{Interrupt, QueuePair};
use sluice_memory::MemoryFile;
use sluice_nvme::Status;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender};
use std::time::Duration;

/// Counts connections to a device: what belongs to an earlier one is of no use any more.
pub(super) type Life = u32;

/// A target's end.
#[derive(Debug)]
pub(super) struct Port {
    /// Queue identifier on the device, in every life of it.
    pub(super) id: u16,
    pub(super) window: Window,
    pub(super) range: Partition,
    pub(super) info: NamespaceInfo,
    pub(super) news: Receiver<News>,
    /// Rung when there are news.
    pub(super) notifier: Arc<Notifier>,
}

/// What a target drives the device with while one connection lasts. Let go of by the keeper, since
/// the device has to be told.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) life: Life,
    pub(super) queue: QueuePair,
    pub(super) interrupt: Interrupt,
    pub(super) buffers: Buffers,
    /// Of the device in this life.
    pub(super) info: NamespaceInfo,
}

/// What the keeper is asked to do.
pub(super) enum Order {
    /// Somebody waits for a range of the device.
    Open { range: Wanted, answer: SyncSender<Result<(Port, Link), Trouble>> },
    /// Show a file to the device; answered by [`News::Lent`].
    Lend { port: u16, life: Life, loan: usize, file: MemoryFile, iova: u64 },
    /// Take a file back; answered by [`News::Returned`].
    TakeBack { port: u16, life: Life, loan: usize, bytes: u64, iova: u64 },
    /// Send an admin command as it is; answered by [`News::Answered`], whatever becomes of the device.
    Admin { port: u16, life: Life, errand: Box<Errand> },
    /// The device may have lost writes that it had acknowledged: the log is told.
    SayLost { port: u16 },
    /// A command was not answered in time.
    Silent { port: u16, life: Life },
    /// Something whose end takes time, or concerns the device.
    Discard(Box<dyn Send>),
    /// The target is gone. Its link, if it has one, and what it did not hear any more, which may be another; what it lent
    /// is the keeper's to take back.
    Close { port: u16, link: Option<Box<Link>>, news: Receiver<News> },
}

/// A range that somebody wants.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) namespace: u32,
    pub(super) first_block: u64,
    pub(super) blocks: Option<u64>,
    /// How long anything that this target waits for may take.
    pub(super) timeout: Duration,
    pub(super) control: NvmeControl,
}

/// What the keeper has to tell a target.
#[derive(Debug)]
pub(super) enum News {
    /// The device is there again.
    Up(Box<Link>),
    /// The device is gone, or was given up. Nothing of that life will be answered. Until it is [`News::Free`],
    /// memory that it was lent may still change.
    Down,
    /// The device of the last life does not reach any memory any more.
    Free,
    /// The device sees a loan, or cannot.
    Lent { loan: usize, seen: bool },
    /// An admin command is over, with its data.
    Answered { errand: Box<Errand>, status: Status },
    /// The device does not see a loan any more.
    Returned { loan: usize },
}

/// The way to the keeper. When the last one is dropped, it ends.
#[derive(Clone, Debug)]
pub(super) struct Orders {
    /// None only while it is dropped: the keeper has to be woken after that.
    sender: Option<Sender<Order>>,
    notifier: Arc<Notifier>,
}

impl Orders {
    pub(super) fn new(sender: Sender<Order>, notifier: Arc<Notifier>) -> Self {
        Self { sender: Some(sender), notifier }
    }

    /// False if there is no keeper any more, which is only so when the process ends.
    pub(super) fn send(&self, order: Order) -> bool {
        let sent = self.sender.as_ref().is_some_and(|sender| sender.send(order).is_ok());
        self.notifier.notify();
        sent
    }
}

impl Drop for Orders {
    fn drop(&mut self) {
        self.sender = None;
        self.notifier.notify();
    }
}
