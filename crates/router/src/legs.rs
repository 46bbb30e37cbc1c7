//! Commands that a program decides on: its hooks, and the legs it starts.
//!
//! A single leg is the command itself, so that legs one after the other cost nothing more than one. Of
//! several at once each is a child, and the command waits in its slot; when one is back the command is
//! in hand again, until the hook is over.

use crate::context::{Context, Facts, Hook, Steering};
use crate::errors::ProgramError;
use crate::flight::{Flight, Offer};
use crate::router::Router;
use crate::steer::Aim;
use crate::verdict::{Decision, Leg, Legs};
use sluice_command::{Command, Route, Slab};
use sluice_nvme::Status;

/// The admin queue, and the queue of commands that no host sent.
const NO_IO_QUEUES: [u16; 2] = [0, u16::MAX];

impl Router {
    /// The submission hook, of a command or of one of its further steps.
    pub(crate) fn begin(&mut self, command: Command, further_step: bool, slab: &mut Slab, now_ns: u64) {
        let number = slab.number(&command);
        if number >= self.flights.len() {
            self.flights.resize_with(number + 1, Flight::default);
        }
        let slot = slab.slot_mut(&command);
        slot.route = Route { program: self.programs.enter(), ..Route::default() };
        self.flights[number].begin(slot.request, further_step);
        self.consult(Hook::Submission, command, slab, now_ns);
    }

    /// A leg is back from the stack, or was not let in.
    pub(crate) fn leg_returned(&mut self, leg: Command, slab: &mut Slab, now_ns: u64) {
        let slot = slab.slot_mut(&leg);
        let (path, status) = (slot.route.path, slot.status);
        let command = if slot.is_child() { slab.join_leg(leg) } else { leg };
        let flight = &mut self.flights[slab.number(&command)];
        let slot = slab.slot_mut(&command);
        slot.request = flight.request;
        if flight.is_plain() {
            self.programs.leave(slot.route.program);
            slot.route = Route::default();
            return self.done.push(command);
        }
        slot.widen();
        let leg = Leg::new(path).expect("layers leave the path alone");
        flight.leg_done(leg, status);
        if flight.is_called_at(leg) {
            return self.consult(Hook::LegDone(leg, status), command, slab, now_ns);
        }
        flight.decide();
        self.wait_or_complete(command, slab);
    }

    /// Asks the program at a hook before the last, and does what it says.
    fn consult(&mut self, hook: Hook, command: Command, slab: &mut Slab, now_ns: u64) {
        match self.decision(hook, &command, slab) {
            Ok((legs, aim)) if !legs.is_empty() => return self.start(command, legs, &aim, slab, now_ns),
            Ok(_) => {}
            Err(error) => {
                self.blame(error, slab.slot(&command).route.program);
                self.flights[slab.number(&command)].fail();
            }
        }
        self.wait_or_complete(command, slab);
    }

    /// The legs of a verdict that was checked and holds, and what they do.
    #[inline]
    fn decision(&mut self, hook: Hook, command: &Command, slab: &Slab) -> Result<(Legs, Aim), ProgramError> {
        let (decision, steering) = self.ask(hook, command, slab)?;
        let offer = Offer { paths: Legs::first(self.ways.len()), legs_max: self.legs_max };
        let flight = &mut self.flights[slab.number(command)];
        let aim = match decision.start.is_empty() {
            true => Aim::default(),
            false => self.format.aim(&flight.request, &steering)?,
        };
        let is_whole = aim.piece.length == flight.request.length;
        match decision.only_leg() {
            Some(leg) if is_whole && flight.accept_plain(leg, offer) => {}
            _ => flight.accept(&decision, offer)?,
        }
        self.counters.overreached += u64::from(aim.overreached);
        Ok((decision.start, aim))
    }

    /// Runs the program.
    #[inline(always)]
    fn ask(
        &mut self,
        hook: Hook,
        command: &Command,
        slab: &Slab,
    ) -> Result<(Decision, Steering), ProgramError> {
        let slot = slab.slot(command);
        let own;
        let entry = match NO_IO_QUEUES.contains(&slot.origin.sq) {
            false => slab.entry(command),
            true => {
                own = self.format.flush();
                &own
            }
        };
        let flight = &self.flights[slab.number(command)];
        let facts = Facts {
            cookie: flight.cookie,
            queue: slot.origin.sq,
            opcode: entry.opcode,
            in_flight: flight.in_flight().bits(),
            further_step: u8::from(flight.further_step),
            ..self.format.facts()
        };
        let mut context = Context::new(hook, facts, self.format.steering(&flight.request), entry);
        let facts = *context.facts();
        let verdict = self.programs.classify(slot.route.program, &mut context);
        let verdict = verdict.map_err(|_| ProgramError::Trapped)?;
        self.counters.overreached += u64::from(!context.still_has(&facts, entry));
        Ok((verdict.decode()?, context.steering))
    }

    /// Starts the legs of a verdict.
    fn start(&mut self, command: Command, legs: Legs, aim: &Aim, slab: &mut Slab, now_ns: u64) {
        let flight = &mut self.flights[slab.number(&command)];
        let is_alone = flight.is_plain() || flight.in_flight().count() == 1;
        if !flight.is_plain() {
            legs.iter().for_each(|leg| flight.set_piece(leg, aim.piece));
        }
        let slot = slab.slot_mut(&command);
        slot.route.target = aim.target;
        slot.route.hints = aim.hints;
        match legs.iter().next() {
            Some(leg) if is_alone => {
                slot.request = aim.request;
                if aim.piece.length < flight.request.length && !slot.data.is_empty() {
                    slot.narrow(aim.piece.skip as usize, aim.piece.length as usize);
                }
                self.send(leg, command, slab, now_ns);
            }
            _ => {
                for leg in legs.iter() {
                    let child = slab.leg(&command, aim.request, aim.piece.skip as usize);
                    self.send(leg, child, slab, now_ns);
                }
                slab.await_legs(command);
            }
        }
    }

    /// Sends a leg down its path, if its address is good there. The last look at an address is the one
    /// that counts: whatever the program did, and however large the namespace was when the command came.
    #[inline]
    fn send(&mut self, leg: Leg, command: Command, slab: &mut Slab, now_ns: u64) {
        let way = self.ways[leg.index()];
        let slot = slab.slot_mut(&command);
        slot.route.path = leg.number();
        slot.status = Status::SUCCESS;
        if slot.request.end() > way.size {
            slot.status = Status::LBA_OUT_OF_RANGE;
        } else if way.read_only && slot.request.operation.modifies() {
            slot.status = Status::NAMESPACE_WRITE_PROTECTED;
        } else {
            return self.stack.submit(way.entry, command, slab, now_ns);
        }
        self.stopped.push(command);
    }

    fn wait_or_complete(&mut self, command: Command, slab: &mut Slab) {
        match self.flights[slab.number(&command)].in_flight().is_empty() {
            true => self.complete(command, slab),
            false => slab.await_legs(command),
        }
    }

    /// All legs are back, and the command is finished.
    fn complete(&mut self, command: Command, slab: &mut Slab) {
        let program = slab.slot(&command).route.program;
        let status = self.last_word(&command, slab).unwrap_or_else(|error| {
            self.blame(error, program);
            Status::INTERNAL_ERROR
        });
        let slot = slab.slot_mut(&command);
        slot.status = status;
        slot.route = Route::default();
        self.programs.leave(program);
        self.done.push(command);
    }

    /// The last hook, if the program wants it, and what remains to be said of its status.
    #[inline]
    fn last_word(&mut self, command: &Command, slab: &Slab) -> Result<Status, ProgramError> {
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
        let (decision, _) = self.ask(hook, command, slab)?;
        self.flights[number].accept_last(&decision)?;
        self.flights[number].status()
    }

    /// The program made an error. One too many, and it is detached: what comes takes the first path.
    #[cold]
    fn blame(&mut self, error: ProgramError, program: u16) {
        self.counters.count(error);
        if self.programs.blame(program, self.errors_max) {
            self.programs.replace(None);
            self.counters.detached += 1;
            tracing::warn!(
                drive = self.drive,
                nsid = self.format.nsid,
                last = %error,
                "the classifier made too many errors and was detached; commands take the first path"
            );
        }
    }
}
