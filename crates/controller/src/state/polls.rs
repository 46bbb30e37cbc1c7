//! Schedule of the polls of layers: once in a turn of the reactor, in which several controllers may have theirs.

/// Turns of controllers in which the layers of their subsystem are polled.
#[derive(Debug, Default)]
pub(crate) enum Polls {
    /// No layer is polled.
    #[default]
    Never,
    /// There is at most one controller, and each of its turns polls.
    EachTurn,
    /// The first controller in each round polls.
    EachRound(Round),
}

impl Polls {
    pub(crate) fn new(is_polled: bool, controllers: usize) -> Self {
        match (is_polled, controllers) {
            (false, _) => Self::Never,
            (true, 0 | 1) => Self::EachTurn,
            (true, _) => Self::EachRound(Round::default()),
        }
    }
}

/// Turn of the reactor, in which each controller has at most one turn, all with the same time.
#[derive(Debug, Default)]
pub(crate) struct Round {
    now_ns: u64,
    /// Bit per controller that had its turn.
    controllers: u32,
}

impl Round {
    /// Notes a turn of a controller. Returns whether it is the first one of a round.
    pub(crate) fn begins_with(&mut self, controller: u8, now_ns: u64) -> bool {
        let own = 1 << controller;
        let is_first = self.controllers == 0 || self.controllers & own != 0 || self.now_ns != now_ns;
        if is_first {
            *self = Self { now_ns, controllers: 0 };
        }
        self.controllers |= own;
        is_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_ends_with_the_time_or_when_a_controller_has_its_next_turn() {
        let mut round = Round::default();
        let turns = [(2, 0), (0, 0), (1, 0), (0, 0), (2, 0), (1, 5), (31, 5), (31, 5), (0, 6)];
        let first = turns.map(|(controller, now_ns)| round.begins_with(controller, now_ns));
        assert_eq!(first, [true, false, false, true, false, true, false, true, true]);
    }
}
