//! Verifier: facts about a program before it runs.
//!
//! It has two purposes, and neither is safety. It reports certain errors to the author, with the instruction
//! and the line. It proves the target of most accesses, so that generated code needs no search. An access
//! without a proof is checked when it happens. A wrong proof would still be confined: generated code compares
//! with the bounds of the region of the proof.
//!
//! It is an abstract interpretation with one state per basic block. States only grow and loops are widened,
//! so it ends; a budget makes sure that it ends soon.

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

/// Proof about the address of one access, or the map of one call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Proof {
    /// No proof: check when it happens.
    #[default]
    Nothing,
    /// Byte of the context.
    Context(usize),
    /// Distance below the frame pointer.
    Frame(i64),
    /// Some of these bytes of a region, or outside them and wrong.
    Within(Region, Range<usize>),
    /// Map argument of a helper, and the distance of its key below the frame pointer if the key is in the
    /// frame.
    Map { map: u32, key: Option<i64> },
}

/// Note about an accepted program for its author.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Slot number.
    pub insn: usize,
    pub text: &'static str,
}

/// Result of verification.
#[derive(Debug, Clone, Default)]
pub(crate) struct Verified {
    /// Proofs by slot.
    pub(crate) proofs: Vec<Proof>,
    pub(crate) notes: Vec<Note>,
    /// Whether stack bytes may be read before they are written, so that they must be zero when a run begins.
    pub(crate) reads_fresh_stack: bool,
}

/// Program with all that it is verified against.
pub(crate) struct Subject<'a> {
    pub(crate) code: &'a Code,
    pub(crate) helpers: &'a [Option<Helper>],
    pub(crate) maps: &'a [MapDef],
    pub(crate) layout: &'a ContextLayout,
}

/// Joins of a block after which it is widened.
const JOINS_BEFORE_WIDENING: u32 = 6;
/// Rounds that narrow the states after widening.
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
    /// State at the beginning of each block, once it was reached.
    states: Vec<Option<Box<State>>>,
    joins: Vec<u32>,
    leaders: Vec<bool>,
    todo: BTreeSet<usize>,
    steps_left: usize,
    /// Whether states still grow.
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

    /// Adds the start of the program.
    fn begin(&mut self) {
        let mut arguments = [Value::Uninit; 5];
        arguments[0] = Value::pointer(Base::Context);
        self.reach(self.subject.code.entry, &State::start(arguments));
    }

    /// Joins the state of a path at the beginning of a block.
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

    /// Narrows the states. Widening overshoots: a loop's index that is compared at the end looks unbounded at
    /// the start. The states cover everything that can happen, so their successors in one more round do, too,
    /// and are often smaller.
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

    /// Collects errors and proofs when no state changes any more: the states hold on all paths now.
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

    /// Follows one block, and its successors.
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

/// Returns the state where a block begins, for tests of the verifier itself.
#[cfg(test)]
pub(crate) fn states(subject: &Subject<'_>) -> Result<Vec<Option<Box<State>>>, LoadError> {
    let mut flow = Flow::new(subject);
    flow.run()?;
    Ok(flow.states)
}
