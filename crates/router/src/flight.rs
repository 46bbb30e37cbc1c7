//! One command between its first hook and its completion: which legs it has, what they brought, and
//! when that is enough. Nothing in here touches a slot; the rules can be read, and tested, alone.

use crate::{Decision, Finish, Leg, Legs, ProgramError, Winner};
use sluice_command::Request;
use sluice_nvme::Status;

/// Verdicts of one command that start legs: enough for 1 MiB in pieces of 4 KiB, and an end to a
/// program that starts a leg whenever one is done.
pub const STARTS_MAX: u16 = 256;

/// What the namespace has to offer.
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
    /// The command as its controller made it.
    pub(crate) request: Request,
    /// Every step of a command but the first.
    pub(crate) further_step: bool,
    pub(crate) cookie: u16,
    pub(crate) before_completion: bool,
    finish: Finish,
    events: Legs,
    started: Legs,
    in_flight: Legs,
    starts: u16,
    /// All of it is one leg, whose end is its own: nobody is called, nothing else can happen.
    is_plain: bool,
    /// Bytes from the front of the command that good legs have transferred.
    transferred: u64,
    /// What it is finished with, once it is.
    outcome: Option<Status>,
    /// Of the legs that were started: where they are, and how they ended last.
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
    /// A command begins. What legs brought an earlier one is not looked at before they are started.
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

    /// What the command is finished with.
    ///
    /// # Panics
    /// If it is not: no verdict is accepted that leaves a command without an end when its legs are back.
    #[inline]
    pub(crate) fn outcome(&self) -> Status {
        self.outcome.expect("all legs are back")
    }

    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// A command is all of its only leg, and nobody is to be called: its request is what has to be put back.
    #[inline]
    pub(crate) fn send_plain(&mut self, request: Request) {
        self.request = request;
        self.is_plain = true;
    }

    /// True if the end of this leg is a hook.
    #[inline]
    pub(crate) fn is_called_at(&self, leg: Leg) -> bool {
        self.outcome.is_none() && self.events.contains(leg)
    }

    /// Checks a verdict against what the command is, and makes it the one that holds. Its legs count as
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

    /// The same for the verdict before completion, which may choose the status and nothing else.
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

    /// What the verdict waits for has to come.
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

    /// Where a leg that was just started is.
    #[inline]
    pub(crate) fn set_chunk(&mut self, leg: Leg, chunk: Chunk) {
        self.chunks[leg.index()] = chunk;
    }

    /// A leg is back. Whether that finishes the command is for [`decide`](Self::decide) to say, or for
    /// the program, if it wants to be called.
    #[inline]
    pub(crate) fn leg_done(&mut self, leg: Leg, status: Status) {
        self.in_flight = self.in_flight.without(Legs::of(leg));
        self.statuses[leg.index()] = status;
        let chunk = self.chunks[leg.index()];
        if status.is_success() && chunk.skip <= self.transferred {
            self.transferred = self.transferred.max(chunk.skip + chunk.length);
        }
    }

    /// Finishes the command if its rule says so. What it is finished with stays.
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

    /// The program made an error: the command fails, and nobody is called again.
    pub(crate) fn fail(&mut self) {
        self.events = Legs::NONE;
        self.before_completion = false;
        self.outcome = Some(Status::INTERNAL_ERROR);
    }

    /// What the command completes with, now that all legs are back: a success has to have been
    /// transferred.
    ///
    /// # Errors
    /// The program says so, and no leg failed that could explain it.
    #[inline]
    pub(crate) fn status(&self) -> Result<Status, ProgramError> {
        let said = self.outcome();
        if !said.is_success() || self.is_transferred() {
            return Ok(said);
        }
        match self.won_by(Winner::FirstError) {
            status if status.is_success() => Err(ProgramError::NotTransferred),
            error => Ok(error),
        }
    }

    /// Deallocate is advice that may be ignored (NVM Command Set 3.2.3).
    #[inline]
    fn is_transferred(&self) -> bool {
        self.transferred >= self.request.length
            || self.request.operation == sluice_command::Operation::Deallocate
    }

    #[inline]
    fn done(&self) -> Legs {
        self.started.without(self.in_flight)
    }

    /// How they ended.
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
