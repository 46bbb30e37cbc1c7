//! State of a function between its calls.

use crate::abi::REQUESTS_MAX;
use crate::{Below, Data, Done, Effect, Held, Passage, Properties};
use sluice_command::Request;
use sluice_memory::Extents;
use sluice_nvme::Status;
use std::collections::VecDeque;

/// State of a function: its actions, and the results that it waits for.
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
    pub(crate) pool: Extents,
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

    /// Returns whether a request would be sent now.
    pub(crate) fn has_room(&self) -> bool {
        self.free_tags != 0 && !self.stopping
    }

    /// Sends a request to a layer below.
    ///
    /// # Errors
    /// Returns the data if there is no room, or the data is shorter than the request.
    pub(crate) fn begin(&mut self, layer: u8, request: Request, data: Data, token: u64) -> Result<(), Data> {
        let data_offset = self.data_offset_of(&data, &request).filter(|_| self.has_room());
        let Some(data_offset) = data_offset else { return Err(data) };
        let buffer = if let Data::Own(buffer) = data { Some(buffer) } else { None };
        let tag = self.free_tags.trailing_zeros();
        self.free_tags &= !(1 << tag);
        self.requests[tag as usize] = Some(Done { token, status: Status::SUCCESS, buffer });
        let tag = tag.into();
        self.effects.push_back(Effect::Request { tag, layer, request, data_offset });
        Ok(())
    }

    /// Returns the offset in the arena of a request's data; none if there is less than it needs.
    fn data_offset_of(&self, data: &Data, request: &Request) -> Option<u64> {
        let (at, length) = match data {
            Data::None => return (!request.has_data()).then_some(0),
            Data::Own(buffer) => (self.pool_at + buffer.offset(), buffer.len()),
            Data::Part(part) => (self.pool_at + part.at, part.length),
            Data::Of(held, from) => {
                let passage = self.held.get(held.number() as usize).filter(|it| it.held == *held)?;
                (passage.data_offset as usize + from, (passage.data_length as usize).checked_sub(*from)?)
            }
        };
        (request.has_data() && request.length <= length as u64).then_some(at as u64)
    }
}
