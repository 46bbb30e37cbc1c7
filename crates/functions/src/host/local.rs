//! Calls of a function in this process.

use super::commands::Progress;
use super::control::OrderResult;
use super::layer::Uif;
use super::peer::Peer;
use sluice_command::Lane;
use sluice_nvme::Status;
use sluice_uif::{Answer, Effect, Held, Passage};

/// Call for a function in this process that is no command. Calls are made when the function has no command to
/// answer.
#[derive(Debug)]
pub(super) enum Notice {
    /// End of the request with this tag.
    Done(u64, Status),
    /// Start on the layers below.
    Start,
    /// Order of an operator, and whether the drive is quiet for it.
    Order(String, bool),
    /// Announcement that the function is about to end.
    Stop,
}

/// Outcome of a call.
#[derive(Debug)]
pub(super) enum Outcome {
    Effect(Effect),
    Answer(Passage, Answer),
    Order(OrderResult),
}

impl Uif {
    /// Calls the function with a command, and executes its answer.
    pub(super) fn call(&mut self, index: u32, returns: bool, stage: u8, lane: &mut Lane<'_>) {
        let (Peer::Local(local), Some(arena)) = (&mut self.peer, &mut self.arena) else { return };
        let state = self.commands.of(index);
        let (offset, length) = state.buffer.as_ref().map_or((0, 0), |buffer| (buffer.offset(), buffer.len()));
        let mut passage = Passage {
            held: Held::new(index, state.generation),
            request: state.request,
            layer: 0,
            stage,
            status: state.status,
            cookie: state.cookie,
            data_offset: offset as u32,
            data_length: length as u32,
        };
        let answer = local.function.call(&mut passage, returns, arena.memory(), lane.now_ns());
        self.take_effects(lane);
        self.take_answer(passage, answer, lane);
        self.proceed(lane);
    }

    /// Calls the function with anything else than a command.
    pub(super) fn notify(&mut self, notice: Notice, lane: &mut Lane<'_>) {
        let (Peer::Local(local), Some(arena)) = (&mut self.peer, &mut self.arena) else { return };
        let (memory, now_ns) = (arena.memory(), lane.now_ns());
        match notice {
            Notice::Done(tag, status) => local.function.done(tag, status, memory, now_ns),
            Notice::Start => {
                let layers = (0..).map_while(|number| self.below.describe(number));
                (0..).zip(layers).for_each(|(number, layer)| local.function.set_layer(number, layer));
                local.function.start(memory, now_ns);
            }
            Notice::Order(text, is_quiet) => {
                let answer = local.function.order(&text, is_quiet, memory, now_ns);
                answer.into_iter().for_each(|answer| self.take_outcome(Outcome::Order(answer), lane));
            }
            Notice::Stop => local.function.stop(),
        }
        self.proceed(lane);
    }

    /// Calls the function's timer, if it is due.
    pub(super) fn wake_local(&mut self, lane: &mut Lane<'_>) {
        let (Peer::Local(local), Some(arena)) = (&mut self.peer, &mut self.arena) else { return };
        local.function.expire(arena.memory(), lane.now_ns());
        self.proceed(lane);
    }

    /// Executes the requests of the last call, continues the held commands that the function resumed, and
    /// answers an order.
    fn proceed(&mut self, lane: &mut Lane<'_>) {
        self.take_effects(lane);
        while let (Peer::Local(local), Some(arena)) = (&mut self.peer, &mut self.arena)
            && let Some((passage, answer)) = local.function.proceed(arena.memory())
        {
            self.take_effects(lane);
            self.take_answer(passage, answer, lane);
        }
        self.take_effects(lane);
        if let Peer::Local(local) = &mut self.peer
            && let Some(answer) = local.function.take_answer()
        {
            self.take_outcome(Outcome::Order(answer), lane);
        }
    }

    fn take_effects(&mut self, lane: &mut Lane<'_>) {
        while let Peer::Local(local) = &mut self.peer
            && let Some(effect) = local.function.take_effect()
        {
            self.take_outcome(Outcome::Effect(effect), lane);
        }
    }

    fn take_answer(&mut self, passage: Passage, answer: Answer, lane: &mut Lane<'_>) {
        if answer != Answer::Hold {
            self.take_outcome(Outcome::Answer(passage, answer), lane);
        }
    }

    /// Executes an outcome, or postpones it while a translation cannot be applied.
    #[inline]
    fn take_outcome(&mut self, outcome: Outcome, lane: &mut Lane<'_>) {
        if self.is_held_up() || !self.postponed.is_empty() {
            return self.postponed.push_back(outcome);
        }
        self.execute_outcome(outcome, lane);
    }

    /// Executes the outcomes that were postponed, as far as translations can be applied.
    pub(super) fn execute_postponed(&mut self, lane: &mut Lane<'_>) {
        while !self.is_held_up()
            && let Some(outcome) = self.postponed.pop_front()
        {
            self.execute_outcome(outcome, lane);
        }
    }

    #[inline]
    fn execute_outcome(&mut self, outcome: Outcome, lane: &mut Lane<'_>) {
        match outcome {
            Outcome::Effect(Effect::Request { tag, layer, request, data_offset }) => {
                self.originate(tag, layer, Some(request), data_offset, lane);
            }
            Outcome::Effect(Effect::Ready(status)) => self.started(status),
            Outcome::Effect(Effect::Translate(update)) => self.translate(update),
            Outcome::Answer(passage, answer) => self.execute_passage(&passage, answer, lane),
            Outcome::Order(answer) => self.order_done(answer),
        }
    }

    fn execute_passage(&mut self, passage: &Passage, answer: Answer, lane: &mut Lane<'_>) {
        let Some(index) = self.commands.sent(passage.held.tag()) else {
            return self.instance.counts.stray.increment();
        };
        self.instance.counts.replies.increment();
        let state = self.commands.of(index);
        (state.progress, state.cookie) = (Progress::Waiting, passage.cookie);
        self.execute_step(index, Some((answer, passage.request)), passage.layer, lane);
    }
}
