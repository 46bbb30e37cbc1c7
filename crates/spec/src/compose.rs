//! Drives that are made of several targets, as a user describes them.

use super::{Fault, FunctionSpec, LayerSpec};
use crate::size::Size;
use serde::{Deserialize, Serialize};
use sluice_functions::Stripe;
use utoipa::ToSchema;

/// Maximum number of layers besides the rest of the stack.
const LAYERS_MAX: usize = 7;

/// Chunks of the drive, in turn on several layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StripeSpec {
    /// Bytes of a chunk, which lies on one layer: a multiple of 4 KiB, 16 KiB or more.
    #[serde(default = "default_chunk")]
    pub chunk: Size,
    /// Whether each member must have a label; if not given, labels count where there are some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<bool>,
    /// The layers besides the rest of the stack, which is the first.
    #[schema(no_recursion)]
    pub layers: Vec<LayerSpec>,
}

/// Layers one behind the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConcatSpec {
    /// Whether each member must have a label; if not given, labels count where there are some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<bool>,
    /// The layers behind the rest of the stack, which is the first.
    #[schema(no_recursion)]
    pub layers: Vec<LayerSpec>,
}

fn default_chunk() -> Size {
    Size(64 << 10)
}

impl StripeSpec {
    /// Minimum size of a chunk: with smaller chunks, a command would have too many parts.
    const CHUNK_MIN: Size = Size(16 << 10);
    /// Maximum size of a chunk: with larger chunks, hardly any command would have two parts.
    const CHUNK_MAX: Size = Size(1 << 30);

    pub(super) fn check(&self) -> Result<(), Fault> {
        let fits = (Self::CHUNK_MIN..=Self::CHUNK_MAX).contains(&self.chunk);
        if !fits || !self.chunk.0.is_multiple_of(Stripe::UNIT) {
            return Err(Fault::at_key("chunk", format!("{} is not possible", self.chunk))
                .hint("use a multiple of 4KiB, from 16KiB to 1GiB"));
        }
        check_layers(&self.layers)
    }
}

impl ConcatSpec {
    pub(super) fn check(&self) -> Result<(), Fault> {
        check_layers(&self.layers)
    }
}

fn check_layers(layers: &[LayerSpec]) -> Result<(), Fault> {
    if layers.is_empty() {
        return Err(Fault::at_key("layers", "one layer alone is nothing to put together")
            .hint("add one, such as layers = [ { target = \"file\", path = \"/b.img\" } ]"));
    }
    if layers.len() > LAYERS_MAX {
        return Err(Fault::at_key("layers", format!("at most {LAYERS_MAX} besides the stack are possible")));
    }
    for (index, layer) in layers.iter().enumerate() {
        // Functions behind the SDK are numbered along the stack, and a layer aside has no place in that
        // order.
        if layer.functions.iter().any(|function| matches!(function, FunctionSpec::Uif(_))) {
            return Err(Fault::at_key("functions", "no `uif` can stand on one layer of several")
                .hint("put it over all of them")
                .inside("layers", index));
        }
        layer.as_namespace().check().map_err(|fault| fault.inside("layers", index))?;
    }
    Ok(())
}
