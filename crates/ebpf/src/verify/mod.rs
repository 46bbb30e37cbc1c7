//! The verifier: what can be known of a program before it runs.
//!
//! It has two purposes, and neither is safety. It tells an author what is certainly wrong, with the
//! instruction and the line; and it proves for most accesses where they go, so that generated code needs
//! no search. What it cannot prove is checked when it happens, and what it proves wrongly would still be
//! confined: generated code compares with the bounds of whatever region it was promised.
//!
//! It is an abstract interpretation with one state per basic block. States only grow and loops are
//! widened, so it ends; a budget makes sure that it ends soon.

mod check;
mod span;
mod state;
mod step;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::mem;
use std::ops::Range;

use crate::error::{LoadError, LoadErrorKind};
use crate::helpers::Helper;
use crate::insn::Insn;
use crate::layout::{ContextLayout, Region};
use crate::maps::MapDef;
use crate::object::Code;
use state::{Base, State, Value};
use step::Step;

/// What is known of the address of one access, or of the map of one call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Proof {
    /// Nothing: look when it happens.
    #[default]
    Nothing,
    /// This byte of the context.
    Context(usize),
    /// So far below the frame pointer.
    Frame(i64),
    /// Somewhere in these bytes of a region, or outside them and wrong.
    Within(Region, Range<usize>),
    /// The map that a helper is given, and its key if that is in the frame: so far below the frame pointer.
    Map { map: u32, key: Option<i64> },
}

/// Something that an author may want to know of a program that was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The slot number.
    pub insn: usize,
    pub text: &'static str,
}

/// What verification found.
#[derive(Debug, Clone, Default)]
pub(crate) struct Verified {
    /// One for each slot.
    pub(crate) proofs: Vec<Proof>,
    pub(crate) notes: Vec<Note>,
    /// Stack bytes may be read before they are written, so they must be zero when a run begins.
    pub(crate) reads_fresh_stack: bool,
}

/// What a program is verified against.
pub(crate) struct Subject<'a> {
    pub(crate) code: &'a Code,
    pub(crate) helpers: &'a [Option<Helper>],
    pub(crate) maps: &'a [MapDef],
    pub(crate) layout: &'a ContextLayout,
}

/// Joins of a block after which it is widened.
const JOINS_BEFORE_WIDENING: u32 = 6;
/// Rounds that take back what widening overshot.
const NARROWINGS: usize = 2;
/// Steps that verification may take for each slot of the program, and for every program.
const STEPS_PER_SLOT: usize = 200;
const STEPS_ALWAYS: usize = 20_000;

/// Verifies a program.
pub(crate) fn verify(subject: &Subject<'_>) -> Result<Verified, LoadError> {
    let mut flow = Flow::new(subject);
    flow.run()?;
    flow.conclude()
}

struct Flow<'a> {
    subject: &'a Subject<'a>,
    /// What is known where a block begins, once it was reached.
    states: Vec<Option<Box<State>>>,
    joins: Vec<u32>,
    leaders: Vec<bool>,
    todo: BTreeSet<usize>,
    steps_left: usize,
    /// While states still grow.
    widening: bool,
}

impl<'a> Flow<'a> {
    fn new(subject: &'a Subject<'a>) -> Self {
        let slots = subject.code.insns.len();
        let mut flow = Self {
            subject,
            states: vec![None; slots],
            joins: vec![0; slots],
            leaders: subject.code.leaders(),
            todo: BTreeSet::new(),
            steps_left: STEPS_ALWAYS + slots * STEPS_PER_SLOT,
            widening: true,
        };
        flow.begin();
        flow
    }

    /// Where the program starts.
    fn begin(&mut self) {
        let mut arguments = [Value::Uninit; 5];
        arguments[0] = Value::pointer(Base::Context);
        self.reach(self.subject.code.entry, &State::start(arguments));
    }

    /// A path comes to the beginning of a block.
    fn reach(&mut self, at: usize, state: &State) {
        let (Some(known), Some(joins)) = (self.states.get_mut(at), self.joins.get_mut(at)) else { return };
        let changed = match known {
            Some(known) => {
                *joins += 1;
                known.join(state, self.widening && *joins > JOINS_BEFORE_WIDENING)
            }
            None => {
                *known = Some(Box::new(state.clone()));
                true
            }
        };
        if changed {
            self.todo.insert(at);
        }
    }

    fn run(&mut self) -> Result<(), LoadError> {
        while let Some(at) = self.todo.pop_first() {
            let Some(state) = self.states.get(at).and_then(Clone::clone) else { continue };
            self.block(at, *state, &mut |_, _| Ok(()))?;
        }
        self.widening = false;
        (0..NARROWINGS).try_for_each(|_| self.narrow())
    }

    /// Widening overshoots: a loop's index that is compared at the end looks unbounded at the start. What is
    /// known covers everything that can happen, so what follows from it in one more round does too, and is
    /// often less.
    fn narrow(&mut self) -> Result<(), LoadError> {
        let slots = self.states.len();
        let covering = mem::replace(&mut self.states, vec![None; slots]);
        self.joins.fill(0);
        self.begin();
        for (at, state) in covering.into_iter().enumerate() {
            if let Some(state) = state {
                self.block(at, *state, &mut |_, _| Ok(()))?;
            }
        }
        self.todo.clear();
        Ok(())
    }

    /// Once nothing changes any more, what is known holds on all paths: now it counts.
    fn conclude(mut self) -> Result<Verified, LoadError> {
        let mut verified =
            Verified { proofs: vec![Proof::Nothing; self.states.len()], ..Verified::default() };
        self.steps_left = usize::MAX;
        for at in 0..self.states.len() {
            let Some(state) = self.states.get(at).and_then(Clone::clone) else { continue };
            self.block(at, *state, &mut |at, step| {
                if let Some(error) = step.error.take() {
                    return Err(LoadError::at(at, error));
                }
                verified.notes.extend(step.note.map(|text| Note { insn: at, text }));
                verified.reads_fresh_stack |= step.reads_fresh_stack;
                if let Some(proof) = verified.proofs.get_mut(at) {
                    *proof = mem::take(&mut step.proof);
                }
                Ok(())
            })?;
        }
        Ok(verified)
    }

    /// Follows one block, and goes on where it leads.
    fn block(
        &mut self,
        start: usize,
        mut state: State,
        seen: &mut dyn FnMut(usize, &mut Step<'_>) -> Result<(), LoadError>,
    ) -> Result<(), LoadError> {
        let mut at = start;
        loop {
            self.steps_left =
                self.steps_left.checked_sub(1).ok_or_else(|| LoadError::at(at, LoadErrorKind::TooComplex))?;
            let subject = self.subject;
            let Some(insn) = subject.code.insn(at) else { return Ok(()) };
            let mut step = Step::new(subject, &mut state);
            step.insn(at, insn);
            seen(at, &mut step)?;
            match *insn {
                Insn::Exit => return Ok(()),
                Insn::Jump { target } => {
                    self.reach(target as usize, &state);
                    return Ok(());
                }
                Insn::Branch { target, .. } => {
                    if let Some(taken) = step::follow(&state, insn, true) {
                        self.reach(target as usize, &taken);
                    }
                    let Some(next) = step::follow(&state, insn, false) else { return Ok(()) };
                    state = next;
                }
                Insn::CallLocal { target } => {
                    self.reach(target as usize, &State::start(step::handed_on(&state)));
                    step::returned(&mut state);
                }
                _ => {}
            }
            at += insn.slots();
            if self.leaders.get(at).copied().unwrap_or(true) {
                self.reach(at, &state);
                return Ok(());
            }
        }
    }
}

/// For tests of the verifier itself: the state where a block begins.
#[cfg(test)]
pub(crate) fn states(subject: &Subject<'_>) -> Result<Vec<Option<Box<State>>>, LoadError> {
    let mut flow = Flow::new(subject);
    flow.run()?;
    Ok(flow.states)
}
