//! Selection of commands that are to end early.

use crate::{Controllers, Origin};

/// Commands that are to end early: all of some controllers, those of one queue, or a single one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aborted {
    pub controllers: Controllers,
    /// Submission queue identifier; `None` for every queue.
    pub sq: Option<u16>,
    /// Command identifier; `None` for every command.
    pub cid: Option<u16>,
    /// Selects only commands that are [awaited](Origin::awaited).
    pub awaited: bool,
}

impl Aborted {
    /// Selects every command of these controllers.
    pub fn of(controllers: Controllers) -> Self {
        Self { controllers, sq: None, cid: None, awaited: false }
    }

    /// Returns whether the command, or that of which it is a part, is selected. False for commands that
    /// layers made.
    pub fn has(self, origin: &Origin) -> bool {
        self.controllers.has(origin.controller)
            && self.sq.is_none_or(|sq| sq == origin.sq)
            && self.cid.is_none_or(|cid| cid == origin.cid)
            && (origin.awaited || !self.awaited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_that_is_named_narrows_the_choice() {
        let origin = Origin { controller: 2, sq: 3, cid: 4, ..Origin::default() };
        let of = |bit: u32, sq, cid| Aborted { sq, cid, ..Aborted::of(Controllers::of_bits(1 << bit)) };
        assert!(Aborted::of(Controllers::of_bits(4)).has(&origin));
        assert!(of(2, Some(3), None).has(&origin) && of(2, Some(3), Some(4)).has(&origin));
        assert!(!of(1, None, None).has(&origin) && !of(2, Some(4), None).has(&origin));
        assert!(!of(2, Some(3), Some(3)).has(&origin));
        let awaited = Aborted { awaited: true, ..of(2, None, None) };
        assert!(!awaited.has(&origin) && awaited.has(&Origin { awaited: true, ..origin }));
        assert!(!Aborted::of(Controllers::of_bits(u32::MAX)).has(&Origin::LAYER), "no host waits for it");
    }
}
