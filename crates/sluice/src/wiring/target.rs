//! Targets: opened by whoever asks, built on their reactor, resized from both sides.

use super::drive::in_words;
use crate::problem::Problem;
use crate::size::Size;
use crate::spec::Target;
use sluice_command::{Layer, NodeId};
use sluice_reactor::{Io, TaskId};
use sluice_targets::{Memory, Null};

/// A target whose files are open, on its way to its reactor.
pub(super) enum TargetSeed {
    Null { size: Size },
    Memory { size: Size },
}

/// What the control side keeps of a target.
#[derive(Debug)]
pub(super) enum TargetControl {
    /// Nothing that outlives the reactor's part.
    None,
}

impl TargetSeed {
    /// Opens a target. May block.
    pub(super) fn open(target: &Target) -> Result<(Self, TargetControl), Problem> {
        match target {
            Target::Null { size } => Ok((Self::Null { size: *size }, TargetControl::None)),
            Target::Memory { size } => Ok((Self::Memory { size: *size }, TargetControl::None)),
            Target::File { path, .. } => Err(Problem::invalid(format!("{}", path.display()))),
        }
    }

    /// Builds the target on its reactor's thread, where it will be node `node` of namespace `nsid`.
    pub(super) fn build(
        self,
        _task: TaskId,
        _io: &Io,
        _nsid: u32,
        _node: NodeId,
    ) -> Result<Box<dyn Layer>, Problem> {
        match self {
            Self::Null { size } => Ok(Box::new(Null::new(size.0))),
            Self::Memory { size } => {
                let memory = Memory::new(size.0).map_err(|error| {
                    Problem::internal(format!("there is no room for {size} of memory: {error}"))
                })?;
                Ok(Box::new(memory))
            }
        }
    }
}

impl TargetControl {
    /// What a change of size needs besides the reactor's part. May block.
    pub(super) fn resize(&self, _size: Size) -> Result<(), Problem> {
        match self {
            Self::None => Ok(()),
        }
    }
}
