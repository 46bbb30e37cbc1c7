//! Actions of a function besides its answers: requests of its own, a timer, translations for the classifier.

use crate::abi::REQUESTS_MAX;
use crate::{Done, Effect, Passage, Properties};
use sluice_command::Request;
pub use sluice_memory::Extent as Buffer;
use sluice_memory::{Extents, Window};
use sluice_nvme::Status;
use std::collections::VecDeque;

/// Handle of a command that a function holds. While requests of the function use its data, the command is not
/// finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held(u64);

impl Held {
    /// Handle of no command.
    const NONE: Self = Self(u64::MAX);

    /// Creates the handle of a command with this number. The generation tells it from earlier commands with
    /// the number.
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
    /// Beginning of a buffer, which comes back with [`Done`].
    Own(Buffer),
    /// Data of a command that the function holds, from this byte on.
    Of(Held, usize),
}

/// Layer below a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Below {
    /// Size in bytes.
    pub size: u64,
    /// Block size in bytes, a power of two.
    pub block_size: u32,
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

/// State of a function: its actions, and what it waits for.
#[derive(Debug, Default)]
pub(crate) struct IoState {
    /// Actions that are still to be executed, in their order.
    pub(crate) effects: VecDeque<Effect>,
    /// Held commands that go on, with their stages, or are finished.
    pub(crate) resumed: VecDeque<(Held, Option<u8>, Status)>,
    /// Order of an operator who waits: whether the drive is quiet for it.
    pub(crate) order_is_quiet: Option<bool>,
    pub(crate) answer: Option<Result<String, String>>,
    pub(crate) below: Vec<Below>,
    pub(crate) alarm_ns: Option<u64>,
    pub(crate) now_ns: u64,
    /// Whether requests are not accepted any more.
    pub(crate) stopping: bool,
    /// Requests in flight by tag; they have no status yet.
    requests: Vec<Option<Done>>,
    /// Bit for each free tag.
    free_tags: u64,
    /// Commands that the function holds, by number, and the command of the present call.
    held: Vec<Passage>,
    /// Offset in the arena from which it is the function's.
    pub(crate) pool_at: usize,
    pool: Extents,
}

const _: () = assert!(REQUESTS_MAX as u32 == u64::BITS, "each tag has a bit");

impl IoState {
    pub(crate) fn new(properties: &Properties, arena_bytes: usize) -> Self {
        let pool = (properties.pool as usize).min(arena_bytes);
        Self {
            effects: VecDeque::with_capacity(REQUESTS_MAX.into()),
            resumed: VecDeque::with_capacity(REQUESTS_MAX.into()),
            requests: (0..REQUESTS_MAX).map(|_| None).collect(),
            free_tags: u64::MAX,
            pool_at: arena_bytes - pool,
            pool: Extents::new(pool),
            ..Self::default()
        }
    }

    /// Ends a request. Returns none if there is no such request.
    pub(crate) fn done(&mut self, tag: u64, status: Status) -> Option<Done> {
        let done = self.requests.get_mut(usize::try_from(tag).ok()?)?.take()?;
        self.free_tags |= 1 << tag;
        Some(Done { status, ..done })
    }

    /// Notes a command that the function holds. The table grows, once, to the most commands at a time.
    pub(crate) fn keep(&mut self, passage: &Passage) {
        let number = passage.held.number() as usize;
        if self.held.len() <= number {
            self.held.resize(number + 1, Passage { held: Held::NONE, ..*passage });
        }
        self.held[number] = *passage;
    }

    /// Removes a held command. Returns none if the function does not hold it.
    pub(crate) fn release(&mut self, held: Held) -> Option<Passage> {
        let place = self.held.get_mut(held.number() as usize).filter(|passage| passage.held == held)?;
        let passage = *place;
        place.held = Held::NONE;
        Some(passage)
    }

    /// Returns a tag for another request.
    fn free_tag(&self) -> Option<usize> {
        (self.free_tags != 0 && !self.stopping).then(|| self.free_tags.trailing_zeros() as usize)
    }

    /// Returns the offset in the arena of a request's data; none if there is less than it needs.
    fn data_offset_of(&self, data: &Data, request: &Request) -> Option<u64> {
        let (at, length) = match data {
            Data::None => return (!request.has_data()).then_some(0),
            Data::Own(buffer) => (self.pool_at + buffer.offset(), buffer.len()),
            Data::Of(held, from) => {
                let passage = self.held.get(held.number() as usize).filter(|it| it.held == *held)?;
                (passage.data_offset as usize + from, (passage.data_length as usize).checked_sub(*from)?)
            }
        };
        (request.has_data() && request.length <= length as u64).then_some(at as u64)
    }
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

    /// Returns whether a request would be sent now.
    pub fn has_room(&self) -> bool {
        self.state.free_tag().is_some()
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
        let data_offset_and_tag = self.state.data_offset_of(&data, &request).zip(self.state.free_tag());
        let Some((data_offset, tag)) = data_offset_and_tag else { return Err(data) };
        let buffer = if let Data::Own(buffer) = data { Some(buffer) } else { None };
        self.state.requests[tag] = Some(Done { token, status: Status::SUCCESS, buffer });
        self.state.free_tags &= !(1 << tag);
        let tag = tag as u64;
        self.state.effects.push_back(Effect::Request { tag, layer, request, data_offset });
        Ok(())
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
