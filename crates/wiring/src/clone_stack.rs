//! Clones: stacks that reach the same data as other stacks, at the same time and on another reactor.
//!
//! A layer can have a clone if it keeps no state between two commands except its configuration, and if the
//! control side does not query it. Layers of other kinds work on one reactor at a time.

use super::function::FunctionSeed;
use super::namespace::{StackControl, StackSeed};
use sluice_functions::{PassConfig, RangeConfig};
use sluice_spec::problem::Problem;
use sluice_spec::size::Size;

/// A function that can have a clone.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stateless {
    Pass(PassConfig),
    Range(RangeConfig),
    /// Chunk size in bytes, and the number of layers besides the rest of the stack.
    Stripe(u64, usize),
    Concat(usize),
}

impl Stateless {
    pub(super) fn of(function: &FunctionSeed) -> Option<Self> {
        match function {
            FunctionSeed::Pass(config) => Some(Self::Pass(*config)),
            FunctionSeed::Range(config) => Some(Self::Range(*config)),
            FunctionSeed::Stripe(chunk, layers) => Some(Self::Stripe(*chunk, layers.len())),
            FunctionSeed::Concat(layers) => Some(Self::Concat(layers.len())),
            FunctionSeed::Delay(_) | FunctionSeed::Fault(..) | FunctionSeed::Uif(..) => None,
        }
    }

    /// Returns the number of layers besides the rest of the stack.
    fn layers(self) -> usize {
        match self {
            Self::Pass(_) | Self::Range(_) => 0,
            Self::Stripe(_, layers) | Self::Concat(layers) => layers,
        }
    }

    fn over(self, layers: Vec<StackSeed>) -> FunctionSeed {
        match self {
            Self::Pass(config) => FunctionSeed::Pass(config),
            Self::Range(config) => FunctionSeed::Range(config),
            Self::Stripe(chunk, _) => FunctionSeed::Stripe(chunk, layers),
            Self::Concat(_) => FunctionSeed::Concat(layers),
        }
    }
}

impl StackControl {
    /// Opens a clone of the stack, if each of its layers can have one. `size` is that of the namespace. May
    /// block.
    pub(super) fn open_clone(&self, size: Size) -> Result<Option<StackSeed>, Problem> {
        self.clone_layers(Some(size))
    }

    fn clone_layers(&self, size: Option<Size>) -> Result<Option<StackSeed>, Problem> {
        if !self.functions.is_empty() {
            return Ok(None);
        }
        let Some(stateless) = self.stateless.iter().copied().collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        // A target that is not the whole namespace has a size of its own.
        let size = size.filter(|_| stateless.is_empty());
        let Some(target) = self.target.open_clone(size)? else { return Ok(None) };
        let (mut functions, mut layers) = (Vec::new(), self.layers.iter());
        for function in stateless {
            let below = layers.by_ref().take(function.layers()).map(|layer| layer.clone_layers(None));
            let Some(below) = below.collect::<Result<Option<Vec<_>>, _>>()? else { return Ok(None) };
            functions.push(function.over(below));
        }
        Ok(Some(StackSeed { target, functions }))
    }
}
