//! What a function can do besides answering: requests of its own, time, news for the classifier.

use crate::abi::{REQUESTS_MAX, Reply, Submission, disposition, flag, translation};
use crate::{Done, Properties};
use sluice_command::Request;
pub use sluice_memory::Extent as Buffer;
use sluice_memory::{Extents, Window};
use sluice_nvme::Status;
use std::collections::VecDeque;

/// A command that a function holds. While requests of the function's use its data, it is not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held(pub(crate) u64);

/// Data of a request of the function's own.
#[derive(Debug)]
pub enum Data {
    /// There is none: a flush, or zeros.
    None,
    /// The beginning of a buffer, which comes back with [`Done`](crate::Done).
    Own(Buffer),
    /// That of a command that the function holds, from this byte on.
    Of(Held, usize),
}

/// A layer below a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Below {
    /// Bytes.
    pub size: u64,
    /// Bytes, a power of two.
    pub block_size: u32,
    /// Differs from that of all other storage, and outlives restarts. Zero if there is no such number.
    pub id: u128,
    /// Nothing was ever written there.
    pub is_new: bool,
}

/// What a classifier need not ask the function again. Ranges are bytes of the function's layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation {
    /// These bytes are at `to`; writes may go there unasked, or not.
    Insert { from: u64, length: u64, to: u64, writable: bool },
    /// Nothing is known of these any more.
    Forget { from: u64, length: u64 },
    /// Writes to these ask again.
    Protect { from: u64, length: u64 },
}

/// In the hands of a function, while one of its methods runs.
#[derive(Debug)]
pub struct Io<'a> {
    pub(crate) state: &'a mut IoState,
    pub(crate) memory: Window<'a>,
}

/// What a function has said and what it waits for.
#[derive(Debug, Default)]
pub(crate) struct IoState {
    /// For the daemon, in the order it was said.
    pub(crate) replies: Vec<Reply>,
    /// Held commands that go on, with their stages; or are finished.
    pub(crate) resumed: VecDeque<(Held, Option<u8>, Status)>,
    /// What an operator wants, who waits for an answer, and the answer.
    pub(crate) order: Option<Submission>,
    pub(crate) answer: Option<Result<String, String>>,
    pub(crate) below: Vec<Below>,
    pub(crate) alarm_ns: Option<u64>,
    pub(crate) now_ns: u64,
    /// No more requests.
    pub(crate) stopping: bool,
    /// By tag, those in flight; they have no status yet.
    requests: Vec<Option<Done>>,
    /// The commands that it holds; while it looks at one, that is the last.
    pub(crate) held: Vec<Submission>,
    /// From here on the arena is the function's.
    pub(crate) pool_at: usize,
    pool: Extents,
}

impl IoState {
    pub(crate) fn new(properties: &Properties, arena_bytes: usize) -> Self {
        let pool = (properties.pool as usize).min(arena_bytes);
        let requests = (0..REQUESTS_MAX).map(|_| None).collect();
        Self { requests, pool_at: arena_bytes - pool, pool: Extents::new(pool), ..Self::default() }
    }

    /// A request is done. None if there is no such request.
    pub(crate) fn done(&mut self, tag: u64, status: Status) -> Option<Done> {
        let done = self.requests.get_mut(usize::try_from(tag).ok()?)?.take()?;
        Some(Done { status, ..done })
    }

    /// The entry of a command that was held, which is so no more.
    pub(crate) fn release_held(&mut self, held: Held) -> Option<Submission> {
        let place = self.held.iter().position(|entry| entry.tag == held.0)?;
        Some(self.held.swap_remove(place))
    }

    /// A tag for another request.
    fn free_tag(&self) -> Option<usize> {
        self.requests.iter().position(Option::is_none).filter(|_| !self.stopping)
    }

    /// Where in the arena a request has its data; none if there is less than it needs.
    fn data_offset_of(&self, data: &Data, request: &Request) -> Option<u64> {
        let (at, length) = match data {
            Data::None => return (!request.has_data()).then_some(0),
            Data::Own(buffer) => (self.pool_at + buffer.offset(), buffer.len()),
            Data::Of(held, from) => {
                let entry = self.held.iter().rfind(|entry| entry.tag == held.0)?;
                (entry.data_offset as usize + from, (entry.data_length as usize).checked_sub(*from)?)
            }
        };
        (request.has_data() && request.length <= length as u64).then_some(at as u64)
    }
}

impl Io<'_> {
    /// The layers below, by number: first the rest of the stack, then what the configuration names in
    /// `layers`.
    pub fn layers(&self) -> &[Below] {
        &self.state.below
    }

    /// Nanoseconds of a clock that never goes back.
    pub fn now_ns(&self) -> u64 {
        self.state.now_ns
    }

    /// Calls [`timer`](crate::Function::timer) at this time, or soon after. One time, the last that was said.
    pub fn wake_at(&mut self, now_ns: Option<u64>) {
        self.state.alarm_ns = now_ns;
    }

    /// The function takes commands from now on; or it cannot, for this reason, and all commands fail with it.
    pub fn ready(&mut self, status: Status) {
        let (disposition, status) = (disposition::READY, status.0);
        self.state.replies.push(Reply { disposition, status, ..Reply::default() });
    }

    /// Memory for a request, zeros or what it was last used for. None if there is no such piece now.
    pub fn buffer(&mut self, length: usize) -> Option<Buffer> {
        self.state.pool.take(length)
    }

    /// Gives a buffer back.
    pub fn release(&mut self, buffer: Buffer) {
        self.state.pool.give(buffer);
    }

    /// What is in a buffer.
    pub fn bytes(&mut self, buffer: &Buffer) -> &mut [u8] {
        let at = self.state.pool_at + buffer.offset();
        self.memory.bytes(at, buffer.len()).expect("buffers lie in the pool")
    }

    /// True if a request would be sent now.
    pub fn has_room(&self) -> bool {
        self.state.free_tag().is_some()
    }

    /// Asks a layer below for something; [`done`](crate::Function::done) has the answer, with `token`. It is
    /// Invalid Field for more data than [`DATA_MAX`](crate::abi::DATA_MAX).
    ///
    /// # Errors
    /// The data, if that cannot be asked now: there is no [room](Self::has_room), or the data is shorter than
    /// the request.
    pub fn request(&mut self, layer: u8, request: Request, data: Data, token: u64) -> Result<(), Data> {
        let data_offset_and_tag = self.state.data_offset_of(&data, &request).zip(self.state.free_tag());
        let Some((data_offset, tag)) = data_offset_and_tag else { return Err(data) };
        let buffer = if let Data::Own(buffer) = data { Some(buffer) } else { None };
        self.state.requests[tag] = Some(Done { token, status: Status::SUCCESS, buffer });
        let (disposition, asked) = (disposition::REQUEST, Reply::about(tag as u64, &request));
        self.state.replies.push(Reply { disposition, layer, data_offset, ..asked });
        Ok(())
    }

    /// A command that was held is finished, as soon as the present method is over.
    pub fn finish(&mut self, held: Held, status: Status) {
        self.state.resumed.push_back((held, None, status));
    }

    /// Has a command that was held come to [`returned`](crate::Function::returned), as soon as the present
    /// method is over, with this stage and status.
    pub fn resume(&mut self, held: Held, stage: u8, status: Status) {
        self.state.resumed.push_back((held, Some(stage), status));
    }

    /// Tells the drive's classifier where things are, if the configuration says which of its maps is to know.
    pub fn translate(&mut self, update: Translation) {
        let (disposition, mut cookie) = (disposition::TRANSLATE, [0; 2]);
        let (operation, offset, length) = match update {
            Translation::Insert { from, length, to, writable } => {
                cookie = [to, writable.into()];
                (translation::INSERT, from, length)
            }
            Translation::Forget { from, length } => (translation::FORGET, from, length),
            Translation::Protect { from, length } => (translation::PROTECT, from, length),
        };
        self.state.replies.push(Reply { disposition, operation, offset, length, cookie, ..Reply::default() });
    }

    /// True if an operator's order found the drive quiet (`--quiesce`): no command is in flight, not even one
    /// that a classifier sends past this function, and none begins until the order is answered.
    pub fn is_quiet(&self) -> bool {
        self.state.order.is_some_and(|order| order.flags & flag::QUIET != 0)
    }

    /// The answer to a [`control`](crate::Function::control) that was to come later.
    pub fn answer(&mut self, words: Result<String, String>) {
        self.state.answer = Some(words);
    }
}
