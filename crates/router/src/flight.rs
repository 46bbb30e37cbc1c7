//! State of a command between its first hook and its completion: its legs, their results, and the rule for
//! the end. No code here accesses a slot, so that the rules can be read, and tested, alone.

use crate::{Decision, Finish, Leg, Legs, ProgramError, Winner};
use sluice_command::Request;
use sluice_nvme::Status;

/// Verdicts of one command that start legs: enough for 1 MiB in chunks of 4 KiB, and a limit for a program
/// that starts a leg whenever one is done.
pub const STARTS_MAX: u16 = 256;

/// Limits of the namespace for legs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LegLimits {
    /// Legs that have a path.
    pub(crate) paths: Legs,
    /// Legs of one command that may be in flight at once.
    pub(crate) legs_max: u32,
}

/// A range of a command, in bytes from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) skip: u64,
    pub(crate) length: u64,
}

#[derive(Debug)]
pub(crate) struct Flight {
    /// Request of the command as its controller made it.
    pub(crate) request: Request,
    /// Flag of every step of a command but the first.
    pub(crate) further_step: bool,
    pub(crate) cookie: u16,
    pub(crate) before_completion: bool,
    finish: Finish,
    events: Legs,
    started: Legs,
    in_flight: Legs,
    starts: u16,
    /// All of the command is one leg, and its end is the leg's: no hook follows.
    is_plain: bool,
    /// Bytes from the front of the command that successful legs have transferred.
    transferred: u64,
    /// Status that the command is finished with, if it is.
    outcome: Option<Status>,
    /// Chunk and last status of each leg that was started.
    chunks: [Chunk; Leg::COUNT],
    statuses: [Status; Leg::COUNT],
}

impl Default for Flight {
    fn default() -> Self {
        Self {
            request: Request::default(),
            further_step: false,
            cookie: 0,
            before_completion: false,
            finish: Finish::Hold,
            events: Legs::NONE,
            started: Legs::NONE,
            in_flight: Legs::NONE,
            starts: 0,
            is_plain: false,
            transferred: 0,
            outcome: None,
            chunks: Default::default(),
            statuses: Default::default(),
        }
    }
}

impl Flight {
    /// Begins a command. Results of an earlier command's legs are not read before the legs are started.
    #[inline]
    pub(crate) fn begin(&mut self, request: Request, further_step: bool) {
        self.request = request;
        self.further_step = further_step;
        self.cookie = 0;
        self.before_completion = false;
        self.finish = Finish::Hold;
        self.events = Legs::NONE;
        self.started = Legs::NONE;
        self.in_flight = Legs::NONE;
        self.starts = 0;
        self.is_plain = false;
        self.transferred = 0;
        self.outcome = None;
    }

    #[inline]
    pub(crate) fn in_flight(&self) -> Legs {
        self.in_flight
    }

    /// Returns the status that the command is finished with.
    ///
    /// # Panics
    /// If it is not finished: no verdict is accepted that leaves a command without an end when its legs are
    /// back.
    #[inline]
    pub(crate) fn outcome(&self) -> Status {
        self.outcome.expect("all legs are back")
    }

    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// Sends a command that is all of its only leg, without a later hook: only its request must be restored.
    #[inline]
    pub(crate) fn send_plain(&mut self, request: Request) {
        self.request = request;
        self.is_plain = true;
    }

    /// Returns whether the end of this leg is a hook.
    #[inline]
    pub(crate) fn is_called_at(&self, leg: Leg) -> bool {
        self.outcome.is_none() && self.events.contains(leg)
    }

    /// Checks a verdict against the command's state, and makes it the valid one. The verdict's legs count as
    /// in flight from here on.
    #[inline]
    pub(crate) fn accept(&mut self, decision: &Decision, limits: LegLimits) -> Result<(), ProgramError> {
        self.check_legs(decision, limits)?;
        self.check_waiting(decision)?;
        self.starts += u16::from(!decision.start.is_empty());
        self.started = self.started.union(decision.start);
        self.in_flight = self.in_flight.union(decision.start);
        self.take_over(decision);
        Ok(())
    }

    /// Accepts the verdict before completion, which may choose the status and nothing else.
    pub(crate) fn accept_last(&mut self, decision: &Decision) -> Result<(), ProgramError> {
        if !decision.start.is_empty() || !decision.events.is_empty() || decision.before_completion {
            return Err(ProgramError::TooLate);
        }
        self.check_waiting(decision)?;
        self.outcome = None;
        self.take_over(decision);
        Ok(())
    }

    #[inline]
    fn take_over(&mut self, decision: &Decision) {
        self.events = decision.events;
        self.before_completion = decision.before_completion;
        self.cookie = decision.cookie;
        self.finish = decision.finish;
        self.decide();
    }

    #[inline]
    fn check_legs(&self, decision: &Decision, limits: LegLimits) -> Result<(), ProgramError> {
        let start = decision.start;
        if start.is_empty() {
            return Ok(());
        }
        if !start.without(limits.paths).is_empty() {
            return Err(ProgramError::NoSuchPath);
        }
        if !start.common(self.in_flight).is_empty() {
            return Err(ProgramError::LegInFlight);
        }
        if self.in_flight.union(start).count() > limits.legs_max {
            return Err(ProgramError::TooManyLegs);
        }
        if self.starts == STARTS_MAX {
            return Err(ProgramError::TooManyStarts);
        }
        Ok(())
    }

    /// Checks that the events which the verdict waits for can occur.
    #[inline]
    fn check_waiting(&self, decision: &Decision) -> Result<(), ProgramError> {
        let in_flight = self.in_flight.union(decision.start);
        let started = self.started.union(decision.start);
        if !decision.events.without(in_flight).is_empty() {
            return Err(ProgramError::NothingToWaitFor);
        }
        let possible = match decision.finish {
            Finish::Hold if decision.events.is_empty() => return Err(ProgramError::NothingToWaitFor),
            Finish::Hold | Finish::Now(_) => true,
            Finish::Leg(leg) => started.contains(leg),
            Finish::All(Winner::Leg(leg)) | Finish::AnyGood(Winner::Leg(leg)) => started.contains(leg),
            Finish::All(Winner::FirstError) | Finish::AnyGood(Winner::FirstError) => !started.is_empty(),
        };
        if possible { Ok(()) } else { Err(ProgramError::NeverStarted) }
    }

    /// Sets the chunk of a leg that was just started.
    #[inline]
    pub(crate) fn set_chunk(&mut self, leg: Leg, chunk: Chunk) {
        self.chunks[leg.index()] = chunk;
    }

    /// Records the end of a leg. The command is finished by [`decide`](Self::decide), or by the program, if
    /// it requested the hook.
    #[inline]
    pub(crate) fn leg_done(&mut self, leg: Leg, status: Status) {
        self.in_flight = self.in_flight.without(Legs::of(leg));
        self.statuses[leg.index()] = status;
        let chunk = self.chunks[leg.index()];
        if status.is_success() && chunk.skip <= self.transferred {
            self.transferred = self.transferred.max(chunk.skip + chunk.length);
        }
    }

    /// Finishes the command if its rule applies. The status of a finished command does not change.
    #[inline]
    pub(crate) fn decide(&mut self) {
        if self.outcome.is_none() {
            self.outcome = match self.finish {
                Finish::Hold => None,
                Finish::Now(status) => Some(status),
                Finish::Leg(leg) => self.done().contains(leg).then(|| self.statuses[leg.index()]),
                Finish::All(winner) => self.in_flight.is_empty().then(|| self.won_by(winner)),
                Finish::AnyGood(_) if self.ends().any(Status::is_success) => Some(Status::SUCCESS),
                Finish::AnyGood(winner) => self.in_flight.is_empty().then(|| self.won_by(winner)),
            };
        }
    }

    /// Fails the command after an error of the program; no hook follows.
    pub(crate) fn fail(&mut self) {
        self.events = Legs::NONE;
        self.before_completion = false;
        self.outcome = Some(Status::INTERNAL_ERROR);
    }

    /// Returns the status that the command completes with, after all legs are back. A success requires a
    /// complete transfer.
    ///
    /// # Errors
    /// The program's status is a success, and no leg failed that could explain the missing transfer.
    #[inline]
    pub(crate) fn status(&self) -> Result<Status, ProgramError> {
        let outcome = self.outcome();
        if !outcome.is_success() || self.is_transferred() {
            return Ok(outcome);
        }
        match self.won_by(Winner::FirstError) {
            status if status.is_success() => Err(ProgramError::NotTransferred),
            error => Ok(error),
        }
    }

    /// Returns whether all of the command was transferred. Deallocate is advice that may be ignored (NVM
    /// Command Set 3.2.3).
    #[inline]
    fn is_transferred(&self) -> bool {
        self.transferred >= self.request.length
            || self.request.operation == sluice_command::Operation::Deallocate
    }

    #[inline]
    fn done(&self) -> Legs {
        self.started.without(self.in_flight)
    }

    /// Returns the statuses of the legs that are done.
    #[inline]
    fn ends(&self) -> impl Iterator<Item = Status> {
        self.done().iter().map(|leg| self.statuses[leg.index()])
    }

    #[inline]
    fn won_by(&self, winner: Winner) -> Status {
        match winner {
            Winner::Leg(leg) => self.statuses[leg.index()],
            Winner::FirstError => self.ends().find(|end| !end.is_success()).unwrap_or(Status::SUCCESS),
        }
    }
}
