//! Clones: stacks that reach the same data as other stacks, at the same time and on another reactor.
//!
//! A layer can have a clone if it keeps no state between two commands except its configuration, and if the
//! control side does not query it. Layers of other kinds work on one reactor at a time.

use super::function::PreparedFunction;
use super::namespace::{PreparedStack, StackControl};
use sluice_functions::Prepared;
use sluice_spec::error::ApiError;
use sluice_spec::size::Size;

/// A function that can have a clone.
#[derive(Clone, Debug)]
pub(super) struct Stateless {
    prepared: Prepared,
    /// Number of layers besides the rest of the stack.
    layers: usize,
}

impl Stateless {
    pub(super) fn of(function: &PreparedFunction) -> Option<Self> {
        match function {
            PreparedFunction::Layer { prepared, is_stateless: true, below } => {
                Some(Self { prepared: prepared.clone(), layers: below.len() })
            }
            PreparedFunction::Layer { .. } | PreparedFunction::Uif(..) => None,
        }
    }

    fn over(self, below: Vec<PreparedStack>) -> PreparedFunction {
        PreparedFunction::Layer { prepared: self.prepared, is_stateless: true, below }
    }
}

impl StackControl {
    /// Opens a clone of the stack, if each of its layers can have one. `size` is that of the namespace. May
    /// block.
    pub(super) fn open_clone(&self, size: Size) -> Result<Option<PreparedStack>, ApiError> {
        self.clone_layers(Some(size))
    }

    fn clone_layers(&self, size: Option<Size>) -> Result<Option<PreparedStack>, ApiError> {
        if !self.functions.is_empty() || self.paused {
            return Ok(None);
        }
        let Some(stateless) = self.stateless.iter().cloned().collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        // A target that is not the whole namespace has a size of its own.
        let size = size.filter(|_| stateless.is_empty());
        let Some(target) = self.target.open_clone(size)? else { return Ok(None) };
        let (mut functions, mut layers) = (Vec::new(), self.layers.iter());
        for function in stateless {
            let below = layers.by_ref().take(function.layers).map(|layer| layer.clone_layers(None));
            let Some(below) = below.collect::<Result<Option<Vec<_>>, _>>()? else { return Ok(None) };
            functions.push(function.over(below));
        }
        Ok(Some(PreparedStack { target, functions, pause: None }))
    }
}
