//! The router over targets that answer on request.

mod beyond;
mod context;
mod header;
mod legs;
mod live;
mod model;
mod nvmetro;
mod random;
mod verdicts;

use crate::rig::{BLOCK, BLOCKS, COMMANDS, COUNT, NSID, Rig};
use crate::{Classifier, Context, Hook, Verdict};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Program that answers with given verdicts, hook by hook, and records its contexts.
#[derive(Clone, Default)]
struct Script {
    verdicts: Arc<Mutex<VecDeque<Verdict>>>,
    contexts: Arc<Mutex<Vec<Context>>>,
}

impl Script {
    fn new(verdicts: impl IntoIterator<Item = Verdict>) -> Self {
        Self { verdicts: Arc::new(Mutex::new(verdicts.into_iter().collect())), ..Self::default() }
    }

    fn classifier(&self) -> Box<dyn Classifier> {
        let Self { verdicts, contexts } = self.clone();
        Box::new(move |context: &mut Context| {
            lock(&contexts).push(*context);
            lock(&verdicts).pop_front().expect("there is a verdict for each hook")
        })
    }

    fn hooks(&self) -> Vec<Hook> {
        lock(&self.contexts).iter().map(Context::hook).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rig {
    /// Creates a drive with a script.
    fn scripted(paths: usize, legs: u32, verdicts: impl IntoIterator<Item = Verdict>) -> (Self, Script) {
        let script = Script::new(verdicts);
        (Self::new(paths, legs, |builder| builder.classifier(script.classifier())), script)
    }
}

fn leg(number: u8) -> crate::Leg {
    crate::Leg::new(number).expect("one of seven")
}

fn legs(numbers: &[u8]) -> crate::Legs {
    numbers.iter().fold(crate::Legs::NONE, |set, &number| set.and(leg(number)))
}
