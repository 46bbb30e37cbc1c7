//! Errors of programs, and their counters.

use std::fmt;

/// Reason for which a verdict was not carried out. The command fails with Internal Error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProgramError {
    /// The program ended without a verdict.
    Trapped,
    /// Bits are set that have no meaning, at least with this rule.
    UnknownBits,
    /// The verdict starts a leg that the namespace has no path for.
    NoSuchPath,
    /// The verdict starts a leg that is in flight.
    LegInFlight,
    /// More legs at once than the drive has room for.
    TooManyLegs,
    /// Legs were started for this command too often.
    TooManyStarts,
    /// The verdict holds a command without a future event, or waits for the end of a leg that is not in
    /// flight.
    NothingToWaitFor,
    /// The verdict finishes with a leg that was never started.
    NeverStarted,
    /// The verdict before completion starts legs, or requests an earlier hook.
    TooLate,
    /// The steering skips more blocks than the command has.
    SkipsTooMuch,
    /// The verdict finishes a command with success, but no leg transferred all of it.
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

/// Counters of a router's programs since it was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    errors: [u64; ProgramError::ALL.len()],
    /// Hooks at which a program made a change that was not allowed and was dropped. Examples are a read-only
    /// field, more blocks than the command has, a cleared FUA, and a leg outside of the namespace.
    pub overreached: u64,
    /// Programs that were detached for their errors.
    pub detached: u64,
}

impl Counters {
    /// Returns the number of commands that failed for this reason.
    pub fn of(&self, error: ProgramError) -> u64 {
        self.errors[error as usize]
    }

    /// Returns the number of commands that failed because of a program.
    pub fn errors(&self) -> u64 {
        self.errors.iter().sum()
    }

    pub(crate) fn count(&mut self, error: ProgramError) {
        self.errors[error as usize] += 1;
    }
}
