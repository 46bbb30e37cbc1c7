//! Interrupts: eventfds of the client, signalled through the ring.
//!
//! The ring keeps at most one write per eventfd in flight and notes further signals, so a full eventfd costs
//! its client an interrupt and the server nothing.

use super::descriptor::Kind as Descriptor;
use super::record::{HandOverError, Incoming, Outgoing, option};
use super::token::{Kind, Token};
use rustix::io::ReadWriteFlags;
use sluice_command::record::{Reader, Writer};
use sluice_reactor::{FileSlot, Io, TaskId};
use sluice_vfio_user::Errno;
use sluice_vfio_user::irq::{IrqInfo, IrqSet, index};
use std::io::IoSliceMut;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use zerocopy::FromBytes;

/// Interrupts of one client.
#[derive(Debug)]
pub(super) struct Interrupts {
    io: Io,
    task: TaskId,
    port: u8,
    msix: Vec<Vector>,
    intx: Pin,
    /// Interrupts that were passed to the ring.
    signalled: u64,
    /// Count of eventfds that unmask INTx, which distinguishes their events.
    epochs: u32,
}

#[derive(Debug, Default)]
struct Vector {
    eventfd: Option<FileSlot>,
    /// Signal on its way to the eventfd.
    sending: bool,
    /// Interrupt without an eventfd; its bit in the pending bit array.
    pending: bool,
}

/// INTx: a level, turned into events. An event masks the pin; when the client unmasks it and the level
/// is still there, another follows.
#[derive(Debug, Default)]
struct Pin {
    eventfd: Option<FileSlot>,
    /// Signal on its way to the eventfd.
    sending: bool,
    masked: bool,
    /// Eventfd that unmasks, and the epoch of its events.
    unmask: Option<(FileSlot, u32)>,
}

/// SET_IRQS message with valid flags and bounds.
#[derive(Debug)]
struct Request<'a> {
    index: u32,
    /// Range of interrupts; empty only to turn all off.
    range: Range<usize>,
    action: u32,
    data: Data<'a>,
}

#[derive(Debug)]
enum Data<'a> {
    /// All interrupts of the range.
    None,
    /// Interrupts of the range whose byte is not zero.
    Bool(&'a [u8]),
    /// Descriptors that come with the message.
    Eventfds,
}

impl<'a> Request<'a> {
    /// Parses a message. `vectors` is the number of MSI-X interrupts.
    fn parse(payload: &'a [u8], vectors: u32) -> Result<Self, Errno> {
        let (set, rest) = IrqSet::read_from_prefix(payload).map_err(|_| Errno::INVAL)?;
        let one_of_each = set.data().is_power_of_two() && set.action().is_power_of_two();
        let known = set.flags == set.data() | set.action();
        if (set.argsz as usize) < IrqSet::SIZE || !one_of_each || !known {
            return Err(Errno::INVAL);
        }
        let available = count(set.index, vectors);
        let fits = set.start < available && set.count <= available - set.start;
        let turns_off = set.start == 0 && set.flags == IrqSet::DATA_NONE | IrqSet::ACTION_TRIGGER;
        if !fits || set.count == 0 && !turns_off {
            return Err(Errno::INVAL);
        }
        let range = set.start as usize..(set.start + set.count) as usize;
        let data = match set.data() {
            IrqSet::DATA_NONE => Data::None,
            IrqSet::DATA_BOOL => Data::Bool(rest.get(..range.len()).ok_or(Errno::INVAL)?),
            _ => Data::Eventfds,
        };
        Ok(Self { index: set.index, range, action: set.action(), data })
    }

    /// Returns the interrupts that a message without descriptors selects.
    fn chosen(&self) -> impl Iterator<Item = usize> {
        let start = self.range.start;
        self.range.clone().filter(move |&number| match self.data {
            Data::Bool(bytes) => bytes[number - start] != 0,
            _ => true,
        })
    }
}

/// Returns the number of interrupts of a type.
fn count(index: u32, vectors: u32) -> u32 {
    match index {
        index::INTX => 1,
        index::MSIX => vectors,
        _ => 0,
    }
}

/// Returns the answer to DEVICE_GET_IRQ_INFO for one type.
pub(super) fn info(index: u32, vectors: u16) -> IrqInfo {
    let flags = match index {
        index::INTX => IrqInfo::EVENTFD | IrqInfo::MASKABLE | IrqInfo::AUTOMASKED,
        index::MSIX => IrqInfo::EVENTFD,
        _ => 0,
    };
    IrqInfo { argsz: IrqInfo::SIZE as u32, flags, index, count: count(index, u32::from(vectors)) }
}

impl Interrupts {
    pub(super) fn new(io: Io, task: TaskId, port: u8, vectors: u16) -> Self {
        let msix = (0..vectors).map(|_| Vector::default()).collect();
        Self { io, task, port, msix, intx: Pin::default(), signalled: 0, epochs: 0 }
    }

    pub(super) fn put(&self, part: &mut Writer, outgoing: &mut Outgoing) {
        part.list(&self.msix, |part, vector| {
            part.option(vector.eventfd.as_ref(), |part, eventfd| outgoing.put(part, eventfd.as_fd()));
            part.put(vector.pending);
        });
        part.option(self.intx.eventfd.as_ref(), |part, eventfd| outgoing.put(part, eventfd.as_fd()));
        part.put(self.intx.masked);
        let unmask = self.intx.unmask.as_ref().map(|(eventfd, _)| eventfd);
        part.option(unmask, |part, eventfd| outgoing.put(part, eventfd.as_fd()));
    }

    pub(super) fn take(&mut self, part: &mut Reader<'_>, incoming: &Incoming) -> Result<(), HandOverError> {
        let io = self.io.clone();
        let eventfd = |part: &mut Reader<'_>| -> Result<FileSlot, HandOverError> {
            Ok(io.register_file(incoming.take(part)?)?)
        };
        let count = part.below(u32::from(self.vectors()) + 1, "number of interrupts")?;
        for vector in self.msix.iter_mut().take(count as usize) {
            vector.eventfd = option(part, eventfd)?;
            vector.pending = part.get()?;
        }
        self.intx.eventfd = option(part, eventfd)?;
        self.intx.masked = part.get()?;
        let unmask = option(part, eventfd)?;
        self.intx.unmask = unmask.map(|eventfd| self.watch_unmask(eventfd));
        Ok(())
    }

    /// Returns the number of MSI-X vectors.
    pub(super) fn vectors(&self) -> u16 {
        self.msix.len() as u16
    }

    /// Signals an MSI-X vector. A vector without an eventfd stays pending if `keep`.
    #[inline]
    pub(super) fn signal(&mut self, vector: u16, keep: bool) {
        let number = u32::from(vector);
        let Some(vector) = self.msix.get_mut(usize::from(vector)) else { return };
        match &vector.eventfd {
            Some(eventfd) => {
                self.io.signal(eventfd, self.task, signal_token(self.port, number));
                vector.sending = true;
                self.signalled += 1;
            }
            None => vector.pending |= keep,
        }
    }

    /// Returns a copy of a vector's eventfd, if it has one.
    pub(super) fn eventfd(&self, vector: u16) -> Option<OwnedFd> {
        let eventfd = self.msix.get(usize::from(vector))?.eventfd.as_ref()?;
        eventfd.as_fd().try_clone_to_owned().ok()
    }

    /// Returns whether INTx has an eventfd.
    #[inline]
    pub(super) fn has_intx(&self) -> bool {
        self.intx.eventfd.is_some()
    }

    /// Sets the level of INTx. A pin that is asserted and unmasked is signalled, which masks it.
    pub(super) fn set_intx(&mut self, asserted: bool) {
        if let Some(eventfd) = self.intx.eventfd.as_ref().filter(|_| asserted && !self.intx.masked) {
            self.io.signal(eventfd, self.task, signal_token(self.port, INTX));
            self.signalled += 1;
            self.intx.sending = true;
            self.intx.masked = true;
        }
    }

    /// Handles an event of the eventfd that unmasks INTx. After a move of the task the event may come without
    /// a signal.
    pub(super) fn unmask_event(&mut self, epoch: u32) {
        let unmask = self.intx.unmask.as_ref().filter(|(_, its)| *its == epoch);
        if unmask.is_some_and(|(eventfd, _)| take_count(eventfd)) {
            self.intx.masked = false;
        }
    }

    /// Notes that the last signal to an eventfd has arrived there.
    pub(super) fn sent(&mut self, epoch: u32) {
        match self.msix.get_mut(epoch as usize) {
            Some(vector) => vector.sending = false,
            None => self.intx.sending = false,
        }
    }

    /// Returns whether every signalled interrupt has arrived at its eventfd.
    pub(super) fn are_sent(&self) -> bool {
        !self.intx.sending && !self.msix.iter().any(|vector| vector.sending)
    }

    /// Returns the number of interrupts signalled since the last call.
    pub(super) fn take_signalled(&mut self) -> u64 {
        std::mem::take(&mut self.signalled)
    }

    /// Reads the pending bit array (PCI Local Bus 3.0, 6.8.2.10), from its byte `offset` on.
    pub(super) fn read_pending(&self, offset: usize, out: &mut [u8]) {
        for (at, byte) in (offset..).zip(out) {
            let vectors = self.msix.iter().skip(at.saturating_mul(8)).take(8);
            *byte = vectors.enumerate().map(|(bit, vector)| u8::from(vector.pending) << bit).sum();
        }
    }

    /// Resets the interrupts: none is pending or masked any more. The client's eventfds stay.
    pub(super) fn reset(&mut self) {
        self.msix.iter_mut().for_each(|vector| vector.pending = false);
        self.intx.masked = false;
    }

    /// Executes DEVICE_SET_IRQS. Takes the descriptors that it uses out of `fds`.
    ///
    /// # Errors
    /// EINVAL for a message that makes no sense, or for a descriptor of no eventfd. Then nothing has changed.
    pub(super) fn set(&mut self, payload: &[u8], fds: &mut Vec<OwnedFd>) -> Result<(), Errno> {
        let request = Request::parse(payload, self.msix.len() as u32)?;
        if matches!(request.data, Data::Eventfds) {
            let given = fds.len();
            let eventfds = fds.iter().all(|fd| Descriptor::of(fd.as_fd()) == Descriptor::Eventfd);
            if !eventfds || given != 0 && given != request.range.len() {
                return Err(Errno::INVAL);
            }
        }
        match (request.action, request.index) {
            (IrqSet::ACTION_TRIGGER, index) if request.range.is_empty() => self.turn_off(index),
            (IrqSet::ACTION_TRIGGER, _) => return self.set_trigger(&request, fds),
            (_, index::INTX) => return self.set_mask(&request, fds),
            // The client masks MSI-X vectors itself, in their table.
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }

    fn turn_off(&mut self, index: u32) {
        match index {
            index::INTX => self.intx = Pin::default(),
            _ => (0..self.msix.len()).for_each(|number| self.assign(number, None)),
        }
    }

    fn set_trigger(&mut self, request: &Request<'_>, fds: &mut Vec<OwnedFd>) -> Result<(), Errno> {
        if !matches!(request.data, Data::Eventfds) {
            request.chosen().for_each(|number| self.trigger(request.index, number));
            return Ok(());
        }
        let slots = self.register(fds)?;
        // A message without descriptors removes the eventfds of the whole range.
        let slots = slots.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
        for (number, slot) in request.range.clone().zip(slots) {
            match request.index {
                index::INTX => {
                    let unmask = self.intx.unmask.take();
                    self.intx = Pin { eventfd: slot, unmask, ..Pin::default() };
                }
                _ => self.assign(number, slot),
            }
        }
        Ok(())
    }

    /// Registers all descriptors or none.
    fn register(&self, fds: &mut Vec<OwnedFd>) -> Result<Vec<FileSlot>, Errno> {
        let register = |fd| self.io.register_file(fd);
        let slots: Result<Vec<_>, _> = fds.drain(..).map(register).collect();
        slots.map_err(|error| error.raw_os_error().map_or(Errno::NOMEM, Errno::from_raw_os_error))
    }

    fn assign(&mut self, number: usize, eventfd: Option<FileSlot>) {
        let vector = &mut self.msix[number];
        // A signal to an eventfd that is dropped causes no event any more.
        (vector.eventfd, vector.sending) = (eventfd, false);
        if vector.eventfd.is_some() && std::mem::take(&mut vector.pending) {
            self.signal(number as u16, false);
        }
    }

    /// Signals an interrupt for the client, as the device would.
    fn trigger(&mut self, index: u32, number: usize) {
        match index {
            index::INTX => self.set_intx(true),
            _ => self.signal(number as u16, false),
        }
    }

    fn set_mask(&mut self, request: &Request<'_>, fds: &mut Vec<OwnedFd>) -> Result<(), Errno> {
        let unmask = request.action == IrqSet::ACTION_UNMASK;
        match &request.data {
            Data::Eventfds if unmask => {
                // There is one INTx, and so at most one descriptor.
                let eventfd = self.register(fds)?.pop();
                self.intx.unmask = eventfd.map(|eventfd| self.watch_unmask(eventfd));
            }
            Data::Eventfds => return Err(Errno::INVAL),
            _ if request.chosen().next().is_some() => self.intx.masked = !unmask,
            _ => {}
        }
        Ok(())
    }

    fn watch_unmask(&mut self, eventfd: FileSlot) -> (FileSlot, u32) {
        self.epochs = self.epochs.wrapping_add(1);
        let token = Token { port: self.port, kind: Kind::Unmask, epoch: self.epochs };
        self.io.watch(&eventfd, self.task, token.raw());
        (eventfd, self.epochs)
    }
}

/// Returns whether an eventfd was signalled since the last call. The eventfd is the client's, which may make
/// reads wait.
fn take_count(eventfd: &FileSlot) -> bool {
    let mut count = [0; size_of::<u64>()];
    let buffers = &mut [IoSliceMut::new(&mut count)];
    // An eventfd has no offset.
    let taken = rustix::io::preadv2(eventfd, buffers, u64::MAX, ReadWriteFlags::NOWAIT);
    // If it cannot be read without waiting, the event itself counts as a signal.
    taken != Err(Errno::AGAIN)
}

/// Number of INTx in place of a vector's.
const INTX: u32 = u32::MAX;

/// Returns the token of signals to the eventfd of a vector, or of INTx.
const fn signal_token(port: u8, number: u32) -> u64 {
    Token { port, kind: Kind::Signal, epoch: number }.raw()
}

#[cfg(test)]
mod tests;
