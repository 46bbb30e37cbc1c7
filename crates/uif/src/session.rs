//! Function that works on the entries of a ring: entries of the daemon in, replies out.

use crate::abi::{CONTROL_BYTES, Reply, Submission, flag, kind};
use crate::{Answer, Below, Direct, Function, Held, Passage};
use sluice_memory::Buffers;
use sluice_nvme::Status;

/// Function in a process of its own, with its replies.
#[derive(Debug)]
pub struct Session {
    direct: Direct,
    /// Replies for the daemon, in their order.
    replies: Vec<Reply>,
    /// Tags of the commands in the function, by the number of each.
    tags: Vec<u64>,
    /// Numbers of no command.
    free: Vec<u32>,
    /// Counter of commands.
    delivered: u32,
    /// Order of an operator who waits.
    order: Option<Submission>,
}

impl Session {
    /// Creates a session with an arena of so many bytes, whose end is the function's own.
    pub fn new(function: Box<dyn Function>, arena_bytes: usize) -> Self {
        let direct = Direct::new(function, arena_bytes);
        let (replies, tags, free) = (Vec::new(), Vec::new(), Vec::new());
        Self { direct, replies, tags, free, delivered: 0, order: None }
    }

    /// Works on an entry. `memory` is the arena; the part that the entry names is the function's now.
    pub fn take(&mut self, entry: &Submission, memory: &mut Buffers, now_ns: u64) {
        match entry.kind {
            kind::COMMAND | kind::RETURNED => self.deliver(entry, memory, now_ns),
            kind::DONE => self.direct.done(entry.tag, Status(entry.status), memory, now_ns),
            kind::BELOW => self.below(entry),
            kind::START => self.direct.start(memory, now_ns),
            kind::CONTROL => self.control(entry, memory, now_ns),
            kind::STOP => self.direct.stop(),
            _ => {}
        }
        self.run_resumed(memory);
    }

    /// Returns the time at which [`expire`](Self::expire) is to be called.
    pub fn alarm_ns(&self) -> Option<u64> {
        self.direct.alarm_ns()
    }

    /// Calls the function's timer, if it is due.
    pub fn expire(&mut self, memory: &mut Buffers, now_ns: u64) {
        self.direct.expire(memory, now_ns);
        self.run_resumed(memory);
    }

    /// Takes the replies since the last call, at most `most` of them.
    pub fn replies(&mut self, most: usize) -> std::vec::Drain<'_, Reply> {
        let most = most.min(self.replies.len());
        self.replies.drain(..most)
    }

    /// Returns whether there are more replies.
    pub fn has_more(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Calls the function with a command.
    fn deliver(&mut self, entry: &Submission, memory: &mut Buffers, now_ns: u64) {
        let number = self.free.pop().unwrap_or(self.tags.len() as u32);
        self.delivered = self.delivered.wrapping_add(1);
        let Some(mut passage) = entry.passage(Held::new(number, self.delivered)) else {
            self.free.extend((number < self.tags.len() as u32).then_some(number));
            return self.replies.push(Reply::finished(entry, Status::INTERNAL_ERROR));
        };
        match self.tags.get_mut(number as usize) {
            Some(tag) => *tag = entry.tag,
            None => self.tags.push(entry.tag),
        }
        let answer = self.direct.call(&mut passage, entry.kind == kind::RETURNED, memory, now_ns);
        self.reply(&passage, answer);
    }

    /// Adds the reply to a command, after the function's requests.
    fn reply(&mut self, passage: &Passage, answer: Answer) {
        self.take_effects();
        let number = passage.held.number();
        let reply = Reply::answer(self.tags[number as usize], passage, answer);
        self.free.extend(reply.map(|_| number));
        self.replies.extend(reply);
    }

    fn take_effects(&mut self) {
        while let Some(effect) = self.direct.take_effect() {
            self.replies.push(Reply::effect(effect));
        }
    }

    fn below(&mut self, entry: &Submission) {
        let [low, high] = entry.cookie.map(u128::from);
        let (size, block_size, atomic) = (entry.offset, entry.length as u32, entry.data_length);
        let (id, is_new) = (high << 64 | low, entry.flags & flag::NEW != 0);
        self.direct.set_layer(entry.stage.into(), Below { size, block_size, atomic, id, is_new });
    }

    fn control(&mut self, entry: &Submission, memory: &mut Buffers, now_ns: u64) {
        let text = memory.bytes(entry.data_offset as usize, entry.data_length as usize);
        let text = String::from_utf8_lossy(text.unwrap_or_default()).into_owned();
        match self.direct.order(&text, entry.flags & flag::QUIET != 0, memory, now_ns) {
            Some(answer) => self.reply_to_order(entry, &answer, memory),
            None => self.order = Some(*entry),
        }
    }

    /// Continues the held commands that the function resumed or finished, and answers an operator's order.
    fn run_resumed(&mut self, memory: &mut Buffers) {
        while let Some((passage, answer)) = self.direct.proceed(memory) {
            self.reply(&passage, answer);
        }
        self.take_effects();
        if let Some(answer) = self.direct.take_answer()
            && let Some(entry) = self.order.take()
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
        self.replies.push(Reply { tag, status, length, ..Reply::default() });
    }
}
