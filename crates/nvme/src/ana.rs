//! Asymmetric Namespace Access (Base 8.1).

use crate::Status;

/// Access of a controller to the namespaces of a group (Base 8.1.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnaState {
    /// Optimized state, also of a controller that reports none.
    #[default]
    Optimized = 0x1,
    NonOptimized = 0x2,
    Inaccessible = 0x3,
    PersistentLoss = 0x4,
    Change = 0xf,
}

impl AnaState {
    pub const ALL: [Self; 5] =
        [Self::Optimized, Self::NonOptimized, Self::Inaccessible, Self::PersistentLoss, Self::Change];

    /// Returns the state with this number.
    pub fn of(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as u8 == code)
    }

    /// Returns the state that a controller reveals by this refusal of a command.
    pub fn of_refusal(status: Status) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.refusal().is_some_and(|it| status.same_code(it)))
    }

    /// Returns the status of a refused command in this state; none if commands are carried out.
    pub fn refusal(self) -> Option<Status> {
        match self {
            Self::Optimized | Self::NonOptimized => None,
            Self::Inaccessible => Some(Status::ASYMMETRIC_ACCESS_INACCESSIBLE),
            Self::PersistentLoss => Some(Status::ASYMMETRIC_ACCESS_PERSISTENT_LOSS),
            Self::Change => Some(Status::ASYMMETRIC_ACCESS_TRANSITION),
        }
    }

    /// Returns the state in the operator's notation.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Optimized => "optimized",
            Self::NonOptimized => "non-optimized",
            Self::Inaccessible => "inaccessible",
            Self::PersistentLoss => "persistent-loss",
            Self::Change => "change",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_found_by_its_number_and_by_what_it_refuses_with() {
        for state in AnaState::ALL {
            assert_eq!(AnaState::of(state as u8), Some(state));
            let found = state.refusal().and_then(AnaState::of_refusal);
            assert_eq!(found, state.refusal().map(|_| state));
        }
        assert_eq!((AnaState::of(0), AnaState::of(5)), (None, None));
        assert_eq!(AnaState::of_refusal(Status::SUCCESS), None);
    }
}
