//! A function at work: entries of the daemon's in, replies out. No ring, no process: the same wherever the
//! function is placed.

use crate::abi::{CONTROL_BYTES, Reply, Submission, disposition, flag, kind};
use crate::io::{Below, Desk};
use crate::{Answer, Control, Done, Function, Io};
use sluice_memory::Buffers;
use sluice_nvme::Status;

/// What an operator asks for that every function answers.
const METRICS: &str = "metrics";

/// What he is told who cannot be answered yet.
const BUSY: &str = "it is still at work on the last order";

/// A function and what it has under way.
pub struct Session {
    function: Box<dyn Function>,
    desk: Desk,
    /// Of an operator who waits for an answer.
    control: Option<Submission>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("desk", &self.desk).finish_non_exhaustive()
    }
}

impl Session {
    /// With an arena of so many bytes, whose end is the function's own.
    pub fn new(function: Box<dyn Function>, arena_bytes: usize) -> Self {
        let desk = Desk::new(&function.properties(), arena_bytes);
        Self { function, desk, control: None }
    }

    /// Works on an entry. `memory` is the arena; what of it the entry names is the function's now.
    pub fn take(&mut self, entry: &Submission, memory: &mut Buffers, now_ns: u64) {
        self.desk.now_ns = now_ns;
        match entry.kind {
            kind::COMMAND | kind::RETURNED => self.show(entry, memory),
            kind::DONE => self.done(entry, memory),
            kind::BELOW => self.below(entry),
            kind::START => self.with(memory, |function, io| function.start(io)),
            kind::CONTROL => self.control(entry, memory),
            kind::STOP => self.desk.stopping = true,
            _ => {}
        }
        self.settle(memory);
    }

    /// When [`expire`](Self::expire) is to be called.
    pub fn alarm_ns(&self) -> Option<u64> {
        self.desk.alarm_ns
    }

    /// Looks at the clock.
    pub fn expire(&mut self, memory: &mut Buffers, now_ns: u64) {
        self.desk.now_ns = now_ns;
        if self.desk.alarm_ns.is_some_and(|alarm_ns| now_ns >= alarm_ns) {
            self.desk.alarm_ns = None;
            self.with(memory, |function, io| function.timer(io));
            self.settle(memory);
        }
    }

    /// What was said since the last time, this much at most.
    pub fn replies(&mut self, most: usize) -> std::vec::Drain<'_, Reply> {
        let most = most.min(self.desk.replies.len());
        self.desk.replies.drain(..most)
    }

    /// True if there is more to say.
    pub fn has_more(&self) -> bool {
        !self.desk.replies.is_empty()
    }

    fn with<T>(&mut self, memory: &mut Buffers, act: impl FnOnce(&mut dyn Function, &mut Io<'_>) -> T) -> T {
        let (_, pool) = memory.windows(self.desk.pool_at);
        act(self.function.as_mut(), &mut Io { desk: &mut self.desk, memory: pool })
    }

    /// Shows the function a command.
    fn show(&mut self, entry: &Submission, memory: &mut Buffers) {
        let (data, pool) = memory.windows(self.desk.pool_at);
        let data = data.into_bytes(entry.data_offset as usize, entry.data_length as usize);
        let Some(mut call) = data.and_then(|data| entry.call(data)) else {
            return self.desk.replies.push(Reply::finished(entry, Status::INTERNAL_ERROR));
        };
        let mut io = Io { desk: &mut self.desk, memory: pool };
        // From now on requests may use its data.
        io.desk.shown = Some(*entry);
        let answer = match entry.kind {
            kind::RETURNED => self.function.returned(&mut call, &mut io),
            _ => self.function.submit(&mut call, &mut io),
        };
        self.desk.shown = None;
        match answer {
            Answer::Hold => self.desk.hold(entry.as_left(&call)),
            _ => self.desk.replies.push(Reply::of(entry.tag, &call, answer)),
        }
    }

    fn done(&mut self, entry: &Submission, memory: &mut Buffers) {
        if let Some((token, buffer)) = self.desk.done(entry.tag) {
            let done = Done { token, status: Status(entry.status), buffer };
            self.with(memory, |function, io| function.done(done, io));
        }
    }

    fn below(&mut self, entry: &Submission) {
        let number = usize::from(entry.stage);
        if let Some(below) = self.desk.below.get_mut(number) {
            *below = Below { size: entry.offset, block_size: entry.length as u32 };
            self.desk.layers = self.desk.layers.max(number + 1);
        }
    }

    fn control(&mut self, entry: &Submission, memory: &mut Buffers) {
        let text = memory.bytes(entry.data_offset as usize, entry.data_length as usize);
        let text = String::from_utf8_lossy(text.unwrap_or_default()).into_owned();
        if text == METRICS {
            let mut lines = String::new();
            self.function.metrics(&mut |name, value| lines += &format!("{name} {value}\n"));
            return self.tell(entry, &Ok(lines), memory);
        }
        if self.control.is_some() {
            return self.tell(entry, &Err(BUSY.into()), memory);
        }
        self.control = Some(*entry);
        self.desk.quiet = entry.flags & flag::QUIET != 0;
        // What was said before anybody asked is no answer.
        self.desk.answer = None;
        if let Control::Now(answer) = self.with(memory, |function, io| function.control(&text, io)) {
            self.desk.answer = Some(answer);
        }
    }

    /// What the function asked to have again, and what it has to say to an operator.
    fn settle(&mut self, memory: &mut Buffers) {
        while let Some((held, stage, status)) = self.desk.resumed.pop_front() {
            if let Some(entry) = self.desk.let_go(held) {
                let Some(stage) = stage else {
                    self.desk.replies.push(Reply::finished(&entry, status));
                    continue;
                };
                let entry = Submission { kind: kind::RETURNED, stage, status: status.0, ..entry };
                self.show(&entry, memory);
            }
        }
        if let Some(answer) = self.desk.answer.take()
            && let Some(entry) = self.control.take()
        {
            self.desk.quiet = false;
            self.tell(&entry, &answer, memory);
        }
    }

    /// Tells an operator.
    fn tell(&mut self, entry: &Submission, answer: &Result<String, String>, memory: &mut Buffers) {
        let (status, words) = match answer {
            Ok(words) => (Status::SUCCESS, words),
            Err(words) => (Status::INVALID_FIELD, words),
        };
        let mut length = words.len().min(CONTROL_BYTES);
        while !words.is_char_boundary(length) {
            length -= 1;
        }
        match memory.bytes(entry.data_offset as usize, length) {
            Some(bytes) => bytes.copy_from_slice(&words.as_bytes()[..length]),
            None => length = 0,
        }
        self.desk.replies.push(Reply {
            tag: entry.tag,
            disposition: disposition::FINISH,
            status: status.0,
            length: length as u64,
            ..Reply::default()
        });
    }
}
