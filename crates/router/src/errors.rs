//! What a program can do wrong, and how often it did.

use std::fmt;

/// Why a verdict was not carried out. The command fails with Internal Error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProgramError {
    /// The program ended without a verdict.
    Trapped,
    /// Bits are set that mean nothing, at least with this rule.
    UnknownBits,
    /// It starts a leg that the namespace has no path for.
    NoSuchPath,
    /// It starts a leg that is in flight.
    LegInFlight,
    /// More legs at once than the drive has room for.
    TooManyLegs,
    /// Legs were started for this command too often.
    TooManyStarts,
    /// It holds a command that no event will come for, or waits for the end of a leg that is not in
    /// flight.
    NothingToWaitFor,
    /// It finishes with a leg that was never started.
    NeverStarted,
    /// It starts legs, or asks to be called at an earlier hook, before completion.
    TooLate,
    /// It skips more blocks than the command has.
    SkipsTooMuch,
    /// It calls a command a success that no leg transferred all of.
    NotTransferred,
}

impl ProgramError {
    pub const ALL: [ProgramError; 11] = [
        Self::Trapped,
        Self::UnknownBits,
        Self::NoSuchPath,
        Self::LegInFlight,
        Self::TooManyLegs,
        Self::TooManyStarts,
        Self::NothingToWaitFor,
        Self::NeverStarted,
        Self::TooLate,
        Self::SkipsTooMuch,
        Self::NotTransferred,
    ];
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Trapped => "the program ended without a verdict",
            Self::UnknownBits => "the verdict has bits that mean nothing",
            Self::NoSuchPath => "the verdict starts a leg that has no path",
            Self::LegInFlight => "the verdict starts a leg that is in flight",
            Self::TooManyLegs => "the verdict starts more legs than the drive has room for",
            Self::TooManyStarts => "the verdict starts legs for a command that has had too many",
            Self::NothingToWaitFor => "the verdict waits for something that will not come",
            Self::NeverStarted => "the verdict finishes with a leg that was never started",
            Self::TooLate => "the verdict asks for more when the command is about to be completed",
            Self::SkipsTooMuch => "the verdict skips more blocks than the command has",
            Self::NotTransferred => "the verdict calls a command a success that was not transferred",
        })
    }
}

impl std::error::Error for ProgramError {}

/// What the programs of a router did since it was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    errors: [u64; ProgramError::ALL.len()],
    /// Hooks at which a program changed what it may not: a fact, more blocks than there are, a FUA taken
    /// back, a leg outside of the namespace. The change was dropped.
    pub overreached: u64,
    /// Programs that were detached for their errors.
    pub detached: u64,
}

impl Counters {
    /// Commands that failed for this reason.
    pub fn of(&self, error: ProgramError) -> u64 {
        self.errors[error as usize]
    }

    /// Commands that failed because of a program.
    pub fn errors(&self) -> u64 {
        self.errors.iter().sum()
    }

    pub(crate) fn count(&mut self, error: ProgramError) {
        self.errors[error as usize] += 1;
    }
}
