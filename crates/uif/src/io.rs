//! What a function can do besides answering: requests of its own, time, news for the classifier.

use crate::Properties;
use crate::abi::{LAYERS_MAX, REQUESTS_MAX, Reply, Submission, disposition, translation};
use sluice_command::Request;
use sluice_memory::{Extent, Extents, Window};
use sluice_nvme::Status;
use std::collections::VecDeque;

/// A command that a function holds. While requests of the function's use its data, it is not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held(pub(crate) u64);

/// A piece of the function's own memory.
#[derive(Debug, PartialEq, Eq)]
pub struct Buffer {
    extent: Extent,
    length: usize,
}

impl Buffer {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

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
    pub(crate) desk: &'a mut Desk,
    pub(crate) memory: Window<'a>,
}

/// What a function has said and what it waits for.
#[derive(Debug)]
pub(crate) struct Desk {
    /// For the daemon, in the order it was said.
    pub(crate) replies: Vec<Reply>,
    /// Held commands that go on, with their stages; or are finished.
    pub(crate) resumed: VecDeque<(Held, Option<u8>, Status)>,
    /// The answer to an operator.
    pub(crate) answer: Option<Result<String, String>>,
    /// The drive is quiet until then.
    pub(crate) quiet: bool,
    pub(crate) below: [Below; LAYERS_MAX],
    pub(crate) layers: usize,
    pub(crate) alarm_ns: Option<u64>,
    pub(crate) now_ns: u64,
    /// No more requests.
    pub(crate) stopping: bool,
    /// By tag, those in flight.
    requests: Vec<Option<Own>>,
    in_flight: usize,
    /// The command that the function is looking at.
    pub(crate) shown: Option<Submission>,
    /// Those that it holds.
    held: Vec<Submission>,
    /// From here on the arena is the function's.
    pub(crate) pool_at: usize,
    pool: Extents,
}

#[derive(Debug)]
struct Own {
    token: u64,
    buffer: Option<Buffer>,
}

impl Desk {
    pub(crate) fn new(properties: &Properties, arena_bytes: usize) -> Self {
        let pool = (properties.pool as usize).min(arena_bytes);
        Self {
            replies: Vec::with_capacity(64),
            resumed: VecDeque::with_capacity(64),
            answer: None,
            quiet: false,
            below: [Below::default(); LAYERS_MAX],
            layers: 0,
            alarm_ns: None,
            now_ns: 0,
            stopping: false,
            requests: (0..REQUESTS_MAX).map(|_| None).collect(),
            in_flight: 0,
            shown: None,
            held: Vec::with_capacity(256),
            pool_at: arena_bytes - pool,
            pool: Extents::new(pool),
        }
    }

    /// A request is done; its token and its buffer. None if there is no such request.
    pub(crate) fn done(&mut self, tag: u64) -> Option<(u64, Option<Buffer>)> {
        let own = self.requests.get_mut(usize::try_from(tag).ok()?)?.take()?;
        self.in_flight -= 1;
        Some((own.token, own.buffer))
    }

    /// The function keeps the command that it was shown, as it left it.
    pub(crate) fn hold(&mut self, entry: Submission) {
        self.held.push(entry);
    }

    /// The entry of a command that was held, which is so no more.
    pub(crate) fn let_go(&mut self, held: Held) -> Option<Submission> {
        let place = self.held.iter().position(|entry| entry.tag == held.0)?;
        Some(self.held.swap_remove(place))
    }

    fn entry(&self, held: Held) -> Option<&Submission> {
        self.shown.iter().chain(&self.held).find(|entry| entry.tag == held.0)
    }
}

impl Io<'_> {
    /// The layers below, by number: first the rest of the stack, then what the configuration names in
    /// `layers`.
    pub fn layers(&self) -> &[Below] {
        &self.desk.below[..self.desk.layers]
    }

    /// Nanoseconds of a clock that never goes back.
    pub fn now_ns(&self) -> u64 {
        self.desk.now_ns
    }

    /// Calls [`timer`](crate::Function::timer) at this time, or soon after. One time, the last that was said.
    pub fn wake_at(&mut self, now_ns: Option<u64>) {
        self.desk.alarm_ns = now_ns;
    }

    /// The function takes commands from now on; or it cannot, for this reason, and all commands fail with it.
    pub fn ready(&mut self, status: Status) {
        self.desk.replies.push(Reply {
            disposition: disposition::READY,
            status: status.0,
            ..Reply::default()
        });
    }

    /// Memory for a request, zeros or what it was last used for. None if there is no such piece now.
    pub fn buffer(&mut self, length: usize) -> Option<Buffer> {
        Some(Buffer { extent: self.desk.pool.take(length)?, length })
    }

    /// Gives a buffer back.
    pub fn release(&mut self, buffer: Buffer) {
        self.desk.pool.give(buffer.extent);
    }

    /// What is in a buffer.
    pub fn bytes(&mut self, buffer: &Buffer) -> &mut [u8] {
        let at = self.desk.pool_at + buffer.extent.offset();
        self.memory.bytes(at, buffer.length).expect("buffers lie in the pool")
    }

    /// True if a request would be sent now.
    pub fn has_room(&self) -> bool {
        self.desk.in_flight < usize::from(REQUESTS_MAX) && !self.desk.stopping
    }

    /// Asks a layer below for something; [`done`](crate::Function::done) has the answer, with `token`.
    ///
    /// # Errors
    /// The data, if that cannot be asked now: there is no [room](Self::has_room), or the data is shorter than
    /// the request.
    pub fn request(&mut self, layer: u8, request: Request, data: Data, token: u64) -> Result<(), Data> {
        let Some(at) = self.place_of(&data, &request).filter(|_| self.has_room()) else { return Err(data) };
        let Some(tag) = self.desk.requests.iter().position(Option::is_none) else { return Err(data) };
        let buffer = if let Data::Own(buffer) = data { Some(buffer) } else { None };
        self.desk.requests[tag] = Some(Own { token, buffer });
        self.desk.in_flight += 1;
        let asked = Reply { disposition: disposition::REQUEST, layer, data_offset: at, ..Reply::default() };
        self.desk.replies.push(asked.about(tag as u64, &request));
        Ok(())
    }

    /// Where in the arena a request has its data; none if there is less than it needs.
    fn place_of(&self, data: &Data, request: &Request) -> Option<u64> {
        let (at, length) = match data {
            Data::None => return (!request.has_data()).then_some(0),
            Data::Own(buffer) => (self.desk.pool_at + buffer.extent.offset(), buffer.length),
            Data::Of(held, from) => {
                let entry = self.desk.entry(*held)?;
                (entry.data_offset as usize + from, (entry.data_length as usize).checked_sub(*from)?)
            }
        };
        (request.has_data() && request.length <= length as u64).then_some(at as u64)
    }

    /// A command that was held is finished, as soon as the present method is over.
    pub fn finish(&mut self, held: Held, status: Status) {
        self.desk.resumed.push_back((held, None, status));
    }

    /// Has a command that was held come to [`returned`](crate::Function::returned), as soon as the present
    /// method is over, with this stage and status.
    pub fn resume(&mut self, held: Held, stage: u8, status: Status) {
        self.desk.resumed.push_back((held, Some(stage), status));
    }

    /// Tells the drive's classifier where things are, if the configuration says which of its maps is to know.
    pub fn translate(&mut self, news: Translation) {
        let (operation, offset, length, cookie) = match news {
            Translation::Insert { from, length, to, writable } => {
                (translation::INSERT, from, length, [to, writable.into()])
            }
            Translation::Forget { from, length } => (translation::FORGET, from, length, [0; 2]),
            Translation::Protect { from, length } => (translation::PROTECT, from, length, [0; 2]),
        };
        let disposition = disposition::TRANSLATE;
        let entry = Reply { disposition, operation, offset, length, cookie, ..Reply::default() };
        self.desk.replies.push(entry);
    }

    /// True if an operator's order found the drive quiet (`--quiesce`): no command is in flight, not even one
    /// that a classifier sends past this function, and none begins until the order is answered.
    pub fn is_quiet(&self) -> bool {
        self.desk.quiet
    }

    /// The answer to a [`control`](crate::Function::control) that was to come later.
    pub fn answer(&mut self, words: Result<String, String>) {
        self.desk.answer = Some(words);
    }
}
