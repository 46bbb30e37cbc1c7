//! The slab of owned commands, and the layers they pass through.
//!
//! A [`Command`] is a value that stands for one slot of a [`Slab`]. A command cannot be copied and cannot be
//! forgotten: its holder forwards it, parks it or finishes it. Layers (storage functions and targets) are
//! nodes of a [`Stack`]. While a layer processes a command it has a [`Lane`], and every operation on a
//! command is a method of that lane.
//!
//! Addresses below the router are bytes, so that layers of different block sizes compose; sizes and
//! alignments were checked against the namespace before a command arrives here.
#![forbid(unsafe_code)]

mod abort;
mod command;
mod controllers;
mod edit_stack;
mod frame;
pub mod handover;
mod lane;
mod layer;
mod layer_counters;
mod opcodes;
pub mod record;
mod request;
mod slab;
mod slot;
mod stack;
mod trace;

pub use abort::Aborted;
pub use command::{Command, Ticket};
pub use controllers::Controllers;
pub use edit_stack::{Busy, Insertion};
pub use frame::Frame;
pub use lane::Lane;
pub use layer::{Characteristics, Deallocated, Layer, Storage, TURN_BYTES, common_boundary};
pub use layer_counters::{COUNTED_LAYERS_MAX, LayerCounters, LayerCounts};
pub use opcodes::{Opcodes, Passthrough};
pub use request::{Operation, Origin, Request, Route};
pub use slab::{Limits, Slab};
pub use slot::{Range, Slot, SlotState, Steps};
pub use stack::{NodeId, Stack, StackBuilder, StackError};
pub use trace::{StageTimes, TRACED_MAX, Trace, TraceStage};
