//! Commands that a program decides on: their hooks, and the legs that the program starts.
//!
//! A single leg is the command itself, so that several legs one after the other cost no more than one. Of
//! several legs at once each is a child, and the command waits in its slot. When a leg is back the command's
//! handle is available again, until the end of the hook.

use crate::context::{Context, Facts, Hook, Steering};
use crate::errors::ProgramError;
use crate::flight::{Flight, LegLimits};
use crate::program::Trapped;
use crate::router::Router;
use crate::steer::Aim;
use crate::verdict::{Leg, Legs, Verdict};
use sluice_command::{Command, Operation, Request, Route, Slab, TraceStage};
use sluice_nvme::opcode::io as opcode;
use sluice_nvme::{Status, SubmissionEntry};

/// A program's verdict, and the steering as the program left it.
type Answer = Result<(Verdict, Steering), ProgramError>;

/// Returns the opcode that a classifier is shown: for a Copy that of the present Read or Write.
#[inline]
fn opcode_of(entry: &SubmissionEntry, request: &Request) -> u8 {
    match entry.opcode {
        opcode::COPY => step_of_copy(request),
        other => other,
    }
}

#[cold]
fn step_of_copy(request: &Request) -> u8 {
    match request.operation {
        Operation::Read => opcode::READ,
        _ => opcode::WRITE,
    }
}

impl Router {
    /// Runs the submission hook of a command or of one of its further steps.
    ///
    /// Most programs leave most commands as they are, without a later hook. This function only has the cost of
    /// these.
    pub(crate) fn begin(&mut self, command: Command, further_step: bool, slab: &mut Slab, now_ns: u64) {
        self.begin_with::<false>(command, further_step, slab, now_ns);
    }

    /// Runs the submission hook of a command. With `TRACED` the stages of the command are noted.
    #[inline(always)]
    pub(crate) fn begin_with<const TRACED: bool>(
        &mut self,
        command: Command,
        further_step: bool,
        slab: &mut Slab,
        now_ns: u64,
    ) {
        let slot = slab.slot(&command);
        let (request, is_raw) = (&slot.request, slot.origin.raw);
        let steering = self.format.steering(request);
        let before = steering.words();
        let mut context = self.context(further_step, request, steering, &command, slab);
        let verdict = self.programs.classify_new(&mut context);
        let is_unchanged = context.steering.words() == before;
        if TRACED {
            slab.note_stage(&command, TraceStage::Classified);
        }
        match verdict == Ok(Verdict::send(Leg::FIRST)) && is_unchanged && !is_raw {
            true if TRACED => {
                slab.note_stage(&command, TraceStage::Sent(Leg::FIRST.number()));
                self.take_first_path(command, slab, now_ns);
            }
            true => self.take_first_path(command, slab, now_ns),
            false => self.begin_elsewhere::<TRACED>(verdict, &context, command, slab, now_ns),
        }
    }

    /// Carries out the verdict of a submission hook that is not just the first path.
    ///
    /// Most programs need no later hook of most commands, and move all of a command. The program keeps the
    /// command only while the command's request is replaced.
    #[inline(never)]
    fn begin_elsewhere<const TRACED: bool>(
        &mut self,
        verdict: Result<Verdict, Trapped>,
        context: &Context,
        command: Command,
        slab: &mut Slab,
        now_ns: u64,
    ) {
        let (number, slot) = (slab.number(&command), slab.slot_mut(&command));
        let steering = &context.steering;
        // A leg that is shorter than its command, or has no path, takes the complete checks.
        let (Ok(Some(leg)), Some((offset, fua)), false) = (
            verdict.map(Verdict::only_leg),
            self.format.moved(&slot.request, steering),
            context.has_overreached() || slot.origin.raw,
        ) else {
            return self.begin_checked(verdict, context, command, slab, now_ns);
        };
        let Some(&bounds) = self.path_bounds.get(leg.index()) else {
            return self.begin_checked(verdict, context, command, slab, now_ns);
        };
        if let Some(status) = bounds.refuses(&Request { offset, fua, ..slot.request }) {
            slot.status = status;
            return self.done.push(command);
        }
        let mut program = 0;
        if (slot.request.offset, slot.request.fua) != (offset, fua) {
            program = self.programs.enter();
            self.flight(number).send_plain(slot.request);
            (slot.request.offset, slot.request.fua) = (offset, fua);
        }
        slot.route = Route { path: leg.number(), target: steering.target, hints: steering.hints, program };
        if TRACED {
            slab.note_stage(&command, TraceStage::Sent(leg.number()));
        }
        self.stack.submit(bounds.entry, command, slab, now_ns);
    }

    /// Carries out a verdict with the checks of all verdicts, and stores the command's state.
    #[inline(never)]
    fn begin_checked(
        &mut self,
        verdict: Result<Verdict, Trapped>,
        context: &Context,
        command: Command,
        slab: &mut Slab,
        now_ns: u64,
    ) {
        let answer = self.answer(verdict, context);
        let program = self.programs.enter();
        let slot = slab.slot_mut(&command);
        slot.route = Route { program, ..Route::default() };
        let request = slot.request;
        self.flight(slab.number(&command)).begin(request, context.facts().further_step != 0);
        self.act(answer, command, slab, now_ns);
    }

    #[inline]
    fn flight(&mut self, number: usize) -> &mut Flight {
        if number >= self.flights.len() {
            self.grow_flights(number);
        }
        &mut self.flights[number]
    }

    #[cold]
    #[inline(never)]
    fn grow_flights(&mut self, number: usize) {
        self.flights.resize_with(number + 1, Flight::default);
    }

    /// Returns whether a command that came back is over: no program has it, or it was all of its only leg.
    #[inline]
    pub(crate) fn is_over(&mut self, command: &Command, slab: &mut Slab) -> bool {
        let number = slab.number(command);
        let slot = slab.slot_mut(command);
        let program = slot.route.program;
        if program == 0 {
            return true;
        }
        if slot.is_child() || !self.flights[number].is_plain() {
            return false;
        }
        slot.request = self.flights[number].request;
        slot.route = Route::default();
        self.programs.leave(program);
        true
    }

    /// Handles a leg that is back from the stack, or was not let in.
    pub(crate) fn leg_returned(&mut self, leg: Command, slab: &mut Slab, now_ns: u64) {
        if self.is_over(&leg, slab) {
            return self.done.push(leg);
        }
        let slot = slab.slot_mut(&leg);
        let (path, status) = (slot.route.path, slot.status);
        let command = if slot.is_child() { slab.join_leg(leg) } else { leg };
        let flight = &mut self.flights[slab.number(&command)];
        let slot = slab.slot_mut(&command);
        slot.request = flight.request;
        slot.widen();
        let leg = Leg::new(path).expect("layers leave the path alone");
        flight.leg_done(leg, status);
        if flight.is_called_at(leg) {
            return self.call_program(Hook::LegDone(leg, status), command, slab, now_ns);
        }
        flight.decide();
        self.wait_or_complete(command, slab);
    }

    /// Runs the program at the end of a leg, and carries out its verdict.
    fn call_program(&mut self, hook: Hook, command: Command, slab: &mut Slab, now_ns: u64) {
        let answer = self.run_program(hook, &command, slab);
        self.act(answer, command, slab, now_ns);
    }

    /// Carries out the verdict of a hook before the last.
    fn act(&mut self, answer: Answer, command: Command, slab: &mut Slab, now_ns: u64) {
        let decided = match &answer {
            Ok(answer) => self.decide(answer, &command, slab),
            Err(error) => Err(*error),
        };
        match decided {
            Ok((legs, aim)) if !legs.is_empty() => return self.start(command, legs, &aim, slab, now_ns),
            Ok(_) => {}
            Err(error) => {
                let program = slab.slot(&command).route.program;
                if let Ok((verdict, _)) = answer {
                    self.programs.refuse(program, verdict);
                }
                self.count_error(error, program);
                self.flights[slab.number(&command)].fail();
            }
        }
        self.wait_or_complete(command, slab);
    }

    /// Checks a verdict and accepts it; returns its legs and their request.
    #[inline]
    fn decide(
        &mut self,
        (verdict, steering): &(Verdict, Steering),
        command: &Command,
        slab: &Slab,
    ) -> Result<(Legs, Aim), ProgramError> {
        let decision = verdict.decode()?;
        let limits = LegLimits { paths: Legs::first(self.path_bounds.len()), legs_max: self.legs_max };
        let flight = &mut self.flights[slab.number(command)];
        let aim = match decision.start.is_empty() {
            true => Aim::default(),
            false => self.format.aim(&flight.request, steering)?,
        };
        flight.accept(&decision, limits)?;
        self.counters.overreached += u64::from(aim.overreached);
        Ok((decision.start, aim))
    }

    /// Runs the program of a command at a later hook.
    fn run_program(&mut self, hook: Hook, command: &Command, slab: &Slab) -> Answer {
        let flight = &self.flights[slab.number(command)];
        let (request, further_step) = (&flight.request, flight.further_step);
        let steering = self.format.steering(request);
        let context = self.context(further_step, request, steering, command, slab);
        let mut context = context.at_hook(hook, flight.cookie, flight.in_flight().bits());
        let program = slab.slot(command).route.program;
        let verdict = self.programs.classify(program, &mut context);
        self.answer(verdict, &context)
    }

    /// Returns the context of a submission hook.
    #[inline(always)]
    fn context(
        &self,
        further_step: bool,
        request: &Request,
        steering: Steering,
        command: &Command,
        slab: &Slab,
    ) -> Context {
        let queue = slab.slot(command).origin.sq;
        let own;
        let entry = match queue {
            1.. => slab.entry(command),
            0 => {
                own = self.format.flush();
                &own
            }
        };
        let facts = Facts::of_step(&self.format.facts, queue, opcode_of(entry, request), further_step);
        Context::of_submission(facts, steering, entry)
    }

    /// Returns the answer of a program that was run, and counts a forbidden change of its context.
    #[inline]
    fn answer(&mut self, verdict: Result<Verdict, Trapped>, context: &Context) -> Answer {
        let verdict = verdict.map_err(|_| ProgramError::Trapped)?;
        self.counters.overreached += u64::from(context.has_overreached());
        Ok((verdict, context.steering))
    }

    /// Starts the legs of a verdict.
    fn start(&mut self, command: Command, legs: Legs, aim: &Aim, slab: &mut Slab, now_ns: u64) {
        let flight = &mut self.flights[slab.number(&command)];
        let is_alone = flight.in_flight().count() == 1;
        if slab.is_tracing()
            && let Some(first) = legs.iter().next()
        {
            slab.note_stage(&command, TraceStage::Sent(first.number()));
        }
        legs.iter().for_each(|leg| flight.set_chunk(leg, aim.chunk));
        let slot = slab.slot_mut(&command);
        slot.route.target = aim.target;
        slot.route.hints = aim.hints;
        match legs.iter().next() {
            Some(leg) if is_alone => {
                slot.request = aim.request;
                if aim.chunk.length < flight.request.length && !slot.data.is_empty() {
                    slot.narrow(aim.chunk.skip as usize, aim.chunk.length as usize);
                }
                self.send(leg, command, slab, now_ns);
            }
            _ => {
                for leg in legs.iter() {
                    let child = slab.leg(&command, aim.request, aim.chunk.skip as usize);
                    self.send(leg, child, slab, now_ns);
                }
                slab.await_legs(command);
            }
        }
    }

    /// Sends a leg down its path, if its address is valid there.
    #[inline]
    fn send(&mut self, leg: Leg, command: Command, slab: &mut Slab, now_ns: u64) {
        let bounds = self.path_bounds[leg.index()];
        let slot = slab.slot_mut(&command);
        slot.route.path = leg.number();
        slot.status = Status::SUCCESS;
        match bounds.refuses(&slot.request) {
            None if slot.origin.raw => self.stack.pass(bounds.entry, command, slab, now_ns),
            None => self.stack.submit(bounds.entry, command, slab, now_ns),
            Some(status) => {
                slot.status = status;
                self.stopped.push(command);
            }
        }
    }

    fn wait_or_complete(&mut self, command: Command, slab: &mut Slab) {
        match self.flights[slab.number(&command)].in_flight().is_empty() {
            true => self.complete(command, slab),
            false => slab.await_legs(command),
        }
    }

    /// Completes a finished command, when all legs are back.
    fn complete(&mut self, command: Command, slab: &mut Slab) {
        let program = slab.slot(&command).route.program;
        let status = self.final_status(&command, slab).unwrap_or_else(|error| {
            self.count_error(error, program);
            Status::INTERNAL_ERROR
        });
        let slot = slab.slot_mut(&command);
        slot.status = status;
        slot.route = Route::default();
        self.programs.leave(program);
        self.done.push(command);
    }

    /// Runs the last hook, if the program requested it, and returns the command's status.
    #[inline]
    fn final_status(&mut self, command: &Command, slab: &Slab) -> Result<Status, ProgramError> {
        let flight = &mut self.flights[slab.number(command)];
        match std::mem::take(&mut flight.before_completion) {
            true => self.last_hook(command, slab),
            false => flight.status(),
        }
    }

    #[inline(never)]
    fn last_hook(&mut self, command: &Command, slab: &Slab) -> Result<Status, ProgramError> {
        let number = slab.number(command);
        let hook = Hook::BeforeCompletion(self.flights[number].outcome());
        let (verdict, _) = self.run_program(hook, command, slab)?;
        let decision = verdict.decode()?;
        self.flights[number].accept_last(&decision)?;
        self.flights[number].status()
    }

    /// Counts an error of the program. One too many detaches it: later commands take the first path.
    #[cold]
    fn count_error(&mut self, error: ProgramError, program: u16) {
        self.counters.count(error);
        if self.programs.count_error(program, self.errors_max) {
            self.programs.replace(None);
            self.counters.detached += 1;
            (self.detached)();
            tracing::warn!(
                drive = self.drive,
                nsid = self.format.nsid,
                last = %error,
                "the classifier made too many errors and was detached; commands take the first path"
            );
        }
    }
}
