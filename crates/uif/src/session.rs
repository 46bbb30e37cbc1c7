//! Function at work: entries of the daemon in, replies out. It needs neither rings nor a process, so that it
//! is the same wherever the function is placed.

use crate::abi::{CONTROL_BYTES, LAYERS_MAX, Reply, Submission, disposition, flag, kind};
use crate::io::{Below, IoState};
use crate::{Answer, Control, Function, Io};
use sluice_memory::Buffers;
use sluice_nvme::Status;

/// Order that every function answers.
const METRICS: &str = "metrics";

/// Answer to an operator while the last order is not answered yet.
const BUSY: &str = "it is still at work on the last order";

/// Function with its state.
pub struct Session {
    function: Box<dyn Function>,
    state: IoState,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Session {
    /// Creates a session with an arena of so many bytes, whose end is the function's own.
    pub fn new(function: Box<dyn Function>, arena_bytes: usize) -> Self {
        let state = IoState::new(&function.properties(), arena_bytes);
        Self { function, state }
    }

    /// Works on an entry. `memory` is the arena; the part that the entry names is the function's now.
    pub fn take(&mut self, entry: &Submission, memory: &mut Buffers, now_ns: u64) {
        self.state.now_ns = now_ns;
        match entry.kind {
            kind::COMMAND | kind::RETURNED => self.deliver(entry, memory),
            kind::DONE => self.done(entry, memory),
            kind::BELOW => self.below(entry),
            kind::START => self.with(memory, |function, io| function.start(io)),
            kind::CONTROL => self.control(entry, memory),
            kind::STOP => self.state.stopping = true,
            _ => {}
        }
        self.run_resumed(memory);
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
            self.run_resumed(memory);
        }
    }

    /// Takes the replies since the last call, at most `most` of them.
    pub fn replies(&mut self, most: usize) -> std::vec::Drain<'_, Reply> {
        let most = most.min(self.state.replies.len());
        self.state.replies.drain(..most)
    }

    /// Returns whether there are more replies.
    pub fn has_more(&self) -> bool {
        !self.state.replies.is_empty()
    }

    fn with<T>(&mut self, memory: &mut Buffers, act: impl FnOnce(&mut dyn Function, &mut Io<'_>) -> T) -> T {
        let (_, pool) = memory.windows(self.state.pool_at);
        act(self.function.as_mut(), &mut Io { state: &mut self.state, memory: pool })
    }

    /// Calls the function with a command.
    fn deliver(&mut self, entry: &Submission, memory: &mut Buffers) {
        let (data, pool) = memory.windows(self.state.pool_at);
        let data = data.into_bytes(entry.data_offset as usize, entry.data_length as usize);
        let Some(mut call) = data.and_then(|data| entry.call(data)) else {
            return self.state.replies.push(Reply::finished(entry, Status::INTERNAL_ERROR));
        };
        let mut io = Io { state: &mut self.state, memory: pool };
        // From now on requests may use its data.
        io.state.held.push(*entry);
        let answer = match entry.kind {
            kind::RETURNED => self.function.returned(&mut call, &mut io),
            _ => self.function.submit(&mut call, &mut io),
        };
        self.state.held.pop();
        let (disposition, stage, status) = match answer {
            Answer::Hold => return self.state.held.push(entry.as_left(&call)),
            Answer::Finish(status) => (disposition::FINISH, 0, status.0),
            Answer::Forward => (disposition::FORWARD, 0, 0),
            Answer::ForwardAndReturn(stage) => (disposition::FORWARD_AND_RETURN, stage, 0),
        };
        let (layer, cookie, sent) = (call.layer, call.cookie, Reply::about(entry.tag, &call.request));
        self.state.replies.push(Reply { disposition, stage, status, layer, cookie, ..sent });
    }

    fn done(&mut self, entry: &Submission, memory: &mut Buffers) {
        if let Some(done) = self.state.done(entry.tag, Status(entry.status)) {
            self.with(memory, |function, io| function.done(done, io));
        }
    }

    fn below(&mut self, entry: &Submission) {
        let (number, below) = (usize::from(entry.stage), &mut self.state.below);
        if number < LAYERS_MAX {
            below.resize(below.len().max(number + 1), Below::default());
            let [low, high] = entry.cookie.map(u128::from);
            let (size, block_size, id) = (entry.offset, entry.length as u32, high << 64 | low);
            below[number] = Below { size, block_size, id, is_new: entry.flags & flag::NEW != 0 };
        }
    }

    fn control(&mut self, entry: &Submission, memory: &mut Buffers) {
        let text = memory.bytes(entry.data_offset as usize, entry.data_length as usize);
        let text = String::from_utf8_lossy(text.unwrap_or_default()).into_owned();
        if text == METRICS {
            let mut lines = String::new();
            self.function.metrics(&mut |name, value| lines += &format!("{name} {value}\n"));
            return self.reply_to_order(entry, &Ok(lines), memory);
        }
        if self.state.order.is_some() {
            return self.reply_to_order(entry, &Err(BUSY.into()), memory);
        }
        self.state.order = Some(*entry);
        // An answer from before the order belongs to no order.
        self.state.answer = None;
        if let Control::Now(answer) = self.with(memory, |function, io| function.control(&text, io)) {
            self.state.answer = Some(answer);
        }
    }

    /// Continues the held commands that the function resumed or finished, and answers an operator's order.
    fn run_resumed(&mut self, memory: &mut Buffers) {
        while let Some((held, stage, status)) = self.state.resumed.pop_front() {
            let Some(entry) = self.state.release_held(held) else { continue };
            match stage {
                None => self.state.replies.push(Reply::finished(&entry, status)),
                Some(stage) => {
                    let (kind, status) = (kind::RETURNED, status.0);
                    self.deliver(&Submission { kind, stage, status, ..entry }, memory);
                }
            }
        }
        if let Some(answer) = self.state.answer.take()
            && let Some(entry) = self.state.order.take()
        {
            self.reply_to_order(&entry, &answer, memory);
        }
    }

    /// Answers an operator's order.
    fn reply_to_order(&mut self, entry: &Submission, answer: &Result<String, String>, memory: &mut Buffers) {
        let (status, words) = match answer {
            Ok(words) => (Status::SUCCESS, words),
            Err(words) => (Status::INVALID_FIELD, words),
        };
        let mut length = words.len().min(CONTROL_BYTES);
        while !words.is_char_boundary(length) {
            length -= 1;
        }
        let room = memory.bytes(entry.data_offset as usize, length).unwrap_or_default();
        room.copy_from_slice(&words.as_bytes()[..room.len()]);
        let (tag, status, length) = (entry.tag, status.0, room.len() as u64);
        self.state.replies.push(Reply { tag, status, length, ..Reply::default() });
    }
}
