//! Actions of a function besides its answers: requests of its own, a timer, translations for the classifier.

use crate::Effect;
use crate::state::IoState;
use sluice_command::Request;
pub use sluice_memory::Extent as Buffer;
use sluice_memory::Window;
use sluice_nvme::Status;

/// Handle of a command that a function holds. While requests of the function use its data, the command is not
/// finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held(u64);

impl Held {
    /// Handle of no command.
    pub(crate) const NONE: Self = Self(u64::MAX);

    /// Creates the handle of a command with this number. The generation distinguishes it from earlier
    /// commands with the number.
    pub fn new(number: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(number))
    }

    /// Returns the number of the command.
    pub fn number(self) -> u32 {
        self.0 as u32
    }

    /// Returns number and generation in one: the generation is the high half.
    pub fn tag(self) -> u64 {
        self.0
    }
}

/// Data of a request of the function's own.
#[derive(Debug)]
pub enum Data {
    /// No data: a flush, or zeros.
    None,
    /// Beginning of a buffer, which comes back with [`Done`](crate::Done).
    Own(Buffer),
    /// Part of a buffer, which the function keeps until the request is done.
    Part(Part),
    /// Data of a command that the function holds, from this byte on.
    Of(Held, usize),
}

/// Part of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub(crate) at: usize,
    pub(crate) length: usize,
}

impl Part {
    /// Returns the part from byte `from` on; none if the buffer does not have so many bytes.
    pub fn of(buffer: &Buffer, from: usize, length: usize) -> Option<Self> {
        let is_inside = from.checked_add(length).is_some_and(|end| end <= buffer.len());
        is_inside.then(|| Self { at: buffer.offset() + from, length })
    }
}

/// Layer below a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Below {
    /// Size in bytes.
    pub size: u64,
    /// Block size in bytes, a power of two.
    pub block_size: u32,
    /// Bytes of the unit that is never torn: a write inside of one such unit, counted from the beginning of
    /// the layer, is done as a whole or not at all. A power of two, or zero if it is unknown.
    pub atomic: u32,
    /// Number of the storage: unique among all storage, and kept over restarts. Zero if there is none.
    pub id: u128,
    /// Whether nothing was ever written to the layer.
    pub is_new: bool,
}

/// Update for the classifier's translation cache. Ranges are bytes of the function's layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation {
    /// Entry: these bytes are at `to`; if `writable`, writes may go there directly.
    Insert { from: u64, length: u64, to: u64, writable: bool },
    /// The cache drops its entries for these bytes.
    Forget { from: u64, length: u64 },
    /// Writes to these bytes go to the function again.
    Protect { from: u64, length: u64 },
}

/// Access for a function while one of its methods runs.
#[derive(Debug)]
pub struct Io<'a> {
    pub(crate) state: &'a mut IoState,
    pub(crate) memory: Window<'a>,
}

impl Io<'_> {
    /// Returns the layers below, by number: first the rest of the stack, then the `layers` of the
    /// configuration.
    pub fn layers(&self) -> &[Below] {
        &self.state.below
    }

    /// Returns nanoseconds of a clock that never goes back.
    pub fn now_ns(&self) -> u64 {
        self.state.now_ns
    }

    /// Sets the one time at which [`timer`](crate::Function::timer) is called, or soon after. A later call
    /// replaces it.
    pub fn wake_at(&mut self, now_ns: Option<u64>) {
        self.state.alarm_ns = now_ns;
    }

    /// Reports that the function takes commands from now on, or that all commands fail with this status.
    pub fn ready(&mut self, status: Status) {
        self.state.effects.push_back(Effect::Ready(status));
    }

    /// Returns memory for a request, with zeros or its last content. Returns none if no part of that length
    /// is free.
    pub fn buffer(&mut self, length: usize) -> Option<Buffer> {
        self.state.pool.take(length)
    }

    /// Gives a buffer back.
    pub fn release(&mut self, buffer: Buffer) {
        self.state.pool.give(buffer);
    }

    /// Returns the content of a buffer.
    pub fn bytes(&mut self, buffer: &Buffer) -> &mut [u8] {
        let at = self.state.pool_at + buffer.offset();
        self.memory.bytes(at, buffer.len()).expect("buffers lie in the pool")
    }

    /// Copies bytes from a part of a buffer to a part of another one, or of the same. The shorter part counts.
    pub fn copy(&mut self, from: Part, to: Part) {
        let length = from.length.min(to.length);
        let (low, high) = (from.at.min(to.at), from.at.max(to.at) + length);
        let bytes = self.memory.bytes(self.state.pool_at + low, high - low).expect("buffers lie in the pool");
        let (from, to) = (from.at - low, to.at - low);
        bytes.copy_within(from..from + length, to);
    }

    /// Returns whether a request would be sent now.
    pub fn has_room(&self) -> bool {
        self.state.has_room()
    }

    /// Sends a request to a layer below; [`done`](crate::Function::done) gets the result, with `token`. The
    /// status is Invalid Field for more data than [`DATA_MAX`](crate::abi::DATA_MAX).
    ///
    /// A function that writes a record of its own to layer 1 before a command goes below:
    ///
    /// ```
    /// use sluice_uif::{Answer, Call, Data, Done, Held, Io, Operation, Request, Status};
    ///
    /// fn submit(call: &mut Call<'_>, io: &mut Io<'_>, held: &mut Option<Held>) -> Answer {
    ///     let Some(buffer) = io.buffer(512) else { return Answer::Finish(Status::INTERNAL_ERROR) };
    ///     io.bytes(&buffer)[..8].copy_from_slice(&call.request.offset.to_le_bytes());
    ///     let record = Request { operation: Operation::Write, fua: true, length: 512, ..Request::default() };
    ///     if let Err(Data::Own(buffer)) = io.request(1, record, Data::Own(buffer), 0) {
    ///         io.release(buffer);
    ///         return Answer::Finish(Status::INTERNAL_ERROR);
    ///     }
    ///     *held = Some(call.hold());
    ///     Answer::Hold
    /// }
    ///
    /// fn done(done: Done, io: &mut Io<'_>, held: &mut Option<Held>) {
    ///     done.buffer.into_iter().for_each(|buffer| io.release(buffer));
    ///     // The command comes to `returned`, which forwards it.
    ///     held.take().into_iter().for_each(|command| io.resume(command, 1, done.status));
    /// }
    /// ```
    ///
    /// # Errors
    /// Returns the data if the request cannot be sent: there is no [room](Self::has_room), or the data is
    /// shorter than the request.
    pub fn request(&mut self, layer: u8, request: Request, data: Data, token: u64) -> Result<(), Data> {
        self.state.begin(layer, request, data, token)
    }

    /// Finishes a held command, as soon as the present method is over.
    pub fn finish(&mut self, held: Held, status: Status) {
        self.state.resumed.push_back((held, None, status));
    }

    /// Has a held command come to [`returned`](crate::Function::returned), as soon as the present method is
    /// over, with this stage and status.
    pub fn resume(&mut self, held: Held, stage: u8, status: Status) {
        self.state.resumed.push_back((held, Some(stage), status));
    }

    /// Sends the drive's classifier an update of its translation cache, if the configuration names a map for
    /// that.
    pub fn translate(&mut self, update: Translation) {
        self.state.effects.push_back(Effect::Translate(update));
    }

    /// Returns whether the drive is quiet for an operator's order (`--quiesce`). No command is in flight
    /// then, not even one that a classifier sends past this function, and none begins until the order is
    /// answered.
    pub fn is_quiet(&self) -> bool {
        self.state.order_is_quiet == Some(true)
    }

    /// Answers a [`control`](crate::Function::control) that returned
    /// [`Control::Later`](crate::Control::Later).
    pub fn answer(&mut self, words: Result<String, String>) {
        self.state.answer = Some(words);
    }
}
