//! Function that is called: commands, requests and answers are values. There are no rings and no entries here.

use crate::abi::LAYERS_MAX;
use crate::state::IoState;
use crate::{Answer, Below, Call, Control, Function, Held, Io, Translation};
use sluice_command::Request;
use sluice_memory::Buffers;
use sluice_nvme::Status;

/// Order that every function answers.
const METRICS: &str = "metrics";

/// Answer to an operator while the last order is not answered yet.
const BUSY: &str = "it is still at work on the last order";

/// Command on its way through a function.
#[derive(Clone, Copy, Debug)]
pub struct Passage {
    /// Handle of the command. Its number is small, and no other command in the function has it.
    pub held: Held,
    /// Request of the host; after an answer, the request for the layers below.
    pub request: Request,
    /// Layer below that the answer sends the command to.
    pub layer: u8,
    /// Stage of a command that returns.
    pub stage: u8,
    /// Status from below of a command that returns.
    pub status: Status,
    /// Notes of the function.
    pub cookie: [u64; 2],
    /// Offset of the data in the arena, and its length, in bytes.
    pub data_offset: u32,
    pub data_length: u32,
}

/// Action of a function besides its answers.
#[derive(Clone, Copy, Debug)]
pub enum Effect {
    /// Request of the function's own. [`Direct::done`] takes its end, by `tag`.
    Request {
        tag: u64,
        layer: u8,
        request: Request,
        data_offset: u64,
    },
    /// The function takes commands from now on, or all commands fail with this status.
    Ready(Status),
    Translate(Translation),
}

/// Function with its state.
///
/// After each call the caller takes the [effects](Self::take_effect), then executes the answer. It then takes
/// the answers of held commands that [go on](Self::proceed), and the [answer](Self::take_answer) to an order.
pub struct Direct {
    function: Box<dyn Function>,
    state: IoState,
}

impl std::fmt::Debug for Direct {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Direct").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Direct {
    /// Creates the state of a function with an arena of so many bytes, whose end is the function's own.
    pub fn new(function: Box<dyn Function>, arena_bytes: usize) -> Self {
        let state = IoState::new(&function.properties(), arena_bytes);
        Self { function, state }
    }

    /// Calls the function with a command: a new one, or one that `returns`. `memory` is the arena, and the
    /// data of the command there is the function's now. Returns the answer; the passage has the request, the
    /// layer and the cookie that belong to it.
    pub fn call(
        &mut self,
        passage: &mut Passage,
        returns: bool,
        memory: &mut Buffers,
        now_ns: u64,
    ) -> Answer {
        self.state.now_ns = now_ns;
        self.deliver(passage, returns, memory)
    }

    fn deliver(&mut self, passage: &mut Passage, returns: bool, memory: &mut Buffers) -> Answer {
        let (data, pool) = memory.windows(self.state.pool_at);
        let data = data.into_bytes(passage.data_offset as usize, passage.data_length as usize);
        let Some(data) = data else { return Answer::Finish(Status::INTERNAL_ERROR) };
        // From now on requests may use its data.
        self.state.keep(passage);
        let Passage { held, request, stage, status, cookie, .. } = *passage;
        let mut call = Call { request, layer: 0, data, status, stage, cookie, held };
        let mut io = Io { state: &mut self.state, memory: pool };
        let answer = match returns {
            true => self.function.returned(&mut call, &mut io),
            false => self.function.submit(&mut call, &mut io),
        };
        (passage.request, passage.layer, passage.cookie) = (call.request, call.layer, call.cookie);
        match answer {
            Answer::Hold => self.state.keep(passage),
            _ => drop(self.state.release(held)),
        }
        answer
    }

    /// Continues the next held command that the function resumed or finished, up to its answer.
    pub fn proceed(&mut self, memory: &mut Buffers) -> Option<(Passage, Answer)> {
        while let Some((held, stage, status)) = self.state.resumed.pop_front() {
            let Some(mut passage) = self.state.release(held) else { continue };
            let Some(stage) = stage else {
                (passage.layer, passage.cookie) = (0, [0; 2]);
                return Some((passage, Answer::Finish(status)));
            };
            (passage.stage, passage.status) = (stage, status);
            match self.deliver(&mut passage, true, memory) {
                Answer::Hold => {}
                answer => return Some((passage, answer)),
            }
        }
        None
    }

    /// Returns the next action of the function, in their order.
    pub fn take_effect(&mut self) -> Option<Effect> {
        self.state.effects.pop_front()
    }

    /// Ends a request of the function's own.
    pub fn done(&mut self, tag: u64, status: Status, memory: &mut Buffers, now_ns: u64) {
        self.state.now_ns = now_ns;
        if let Some(done) = self.state.done(tag, status) {
            self.with(memory, |function, io| function.done(done, io));
        }
    }

    /// Notes a layer below, for the next [`start`](Self::start).
    pub fn set_layer(&mut self, number: usize, layer: Below) {
        let below = &mut self.state.below;
        if number < LAYERS_MAX {
            below.resize(below.len().max(number + 1), Below::default());
            below[number] = layer;
        }
    }

    /// Starts the function on the layers below.
    pub fn start(&mut self, memory: &mut Buffers, now_ns: u64) {
        self.state.now_ns = now_ns;
        self.with(memory, |function, io| function.start(io));
    }

    /// Sends the function an order of an operator, while the drive is quiet if `quiet`. Returns the answer of
    /// orders that need no work; the others are answered by [`take_answer`](Self::take_answer).
    pub fn order(
        &mut self,
        text: &str,
        quiet: bool,
        memory: &mut Buffers,
        now_ns: u64,
    ) -> Option<Result<String, String>> {
        self.state.now_ns = now_ns;
        if text == METRICS {
            let mut lines = String::new();
            self.function.metrics(&mut |name, value| lines += &format!("{name} {value}\n"));
            return Some(Ok(lines));
        }
        if self.state.order_is_quiet.is_some() {
            return Some(Err(BUSY.into()));
        }
        self.state.order_is_quiet = Some(quiet);
        // An answer from before the order belongs to no order.
        self.state.answer = None;
        if let Control::Now(answer) = self.with(memory, |function, io| function.control(text, io)) {
            self.state.answer = Some(answer);
        }
        None
    }

    /// Takes the answer to the last order, once the function has given it.
    pub fn take_answer(&mut self) -> Option<Result<String, String>> {
        let answer = self.state.answer.take()?;
        self.state.order_is_quiet.take().map(|_| answer)
    }

    /// Has the function send no more requests.
    pub fn stop(&mut self) {
        self.state.stopping = true;
    }

    /// Returns the time at which [`expire`](Self::expire) is to be called.
    pub fn alarm_ns(&self) -> Option<u64> {
        self.state.alarm_ns
    }

    /// Calls the function's timer, if it is due.
    pub fn expire(&mut self, memory: &mut Buffers, now_ns: u64) {
        self.state.now_ns = now_ns;
        if self.state.alarm_ns.is_some_and(|alarm_ns| now_ns >= alarm_ns) {
            self.state.alarm_ns = None;
            self.with(memory, |function, io| function.timer(io));
        }
    }

    fn with<T>(&mut self, memory: &mut Buffers, act: impl FnOnce(&mut dyn Function, &mut Io<'_>) -> T) -> T {
        let (_, pool) = memory.windows(self.state.pool_at);
        act(self.function.as_mut(), &mut Io { state: &mut self.state, memory: pool })
    }
}
