//! Stripe: chunks of the drive in turn on several layers, so that all layers work at once.

use super::parts::{self, DIVIDED, LEGS_MAX};
use crate::{Kind, OpenCx, Prepared, SetShape, Shape};
use serde::{Deserialize, Serialize};
use sluice_command::{Characteristics, Command, Frame, Lane, Layer, Operation, Request};
use sluice_options::{Fault, Size};
use utoipa::ToSchema;

/// Chunks of the drive, in turn on several layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StripeOptions<L> {
    /// Bytes of a chunk, which lies on one layer: a multiple of 4 KiB from 16 KiB to 1 GiB, 64 KiB if not
    /// given.
    #[serde(default = "default_chunk")]
    pub chunk: Size,
    /// Whether each member must have a label; if not given, labels count where there are some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<bool>,
    /// The layers besides the rest of the stack, which is the first.
    #[schema(no_recursion)]
    pub layers: Vec<L>,
}

fn default_chunk() -> Size {
    Size(64 << 10)
}

/// Minimum size of a chunk: with smaller chunks, a command would have too many parts.
const CHUNK_MIN: Size = Size(16 << 10);

/// Maximum size of a chunk: with larger chunks, hardly any command would have two parts.
const CHUNK_MAX: Size = Size(1 << 30);

impl<L> Kind<L> for StripeOptions<L> {
    const NAME: &'static str = "stripe";
    const ABOUT: &'static str = "Divides the drive among several layers, chunk by chunk in turn. \
        It is as large as the smallest of them, times their number.";
    const LAYERS: (usize, usize) = (1, LEGS_MAX - 1);

    fn check(&self) -> Result<(), Fault> {
        let fits = (CHUNK_MIN..=CHUNK_MAX).contains(&self.chunk);
        if !fits || !self.chunk.0.is_multiple_of(Stripe::UNIT) {
            return Err(Fault::at_key("chunk", format!("{} is not possible", self.chunk))
                .hint("use a multiple of 4KiB, from 16KiB to 1GiB"));
        }
        Ok(())
    }

    fn shape(&self) -> Shape {
        let moved = Shape::moved(format!("stripe of {}", self.chunk));
        let set = Some(SetShape { kind: "stripe", chunk: self.chunk.0, labels: self.labels });
        Shape { is_composed: true, is_stateless: true, set, ..moved }
    }

    fn layers(&self) -> &[L] {
        &self.layers
    }

    fn layers_mut(&mut self) -> &mut [L] {
        &mut self.layers
    }

    fn open(&self, cx: &OpenCx<'_>) -> Result<Prepared, Fault> {
        let (chunk, data_max) = (self.chunk.0, cx.transfer_max);
        Ok(Prepared::new(move |below| Stripe::new(StripeConfig { chunk, legs: below as u64, data_max })))
    }
}

/// Geometry of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeConfig {
    /// Bytes that lie together on one layer: a multiple of [`Stripe::UNIT`].
    pub chunk: u64,
    /// Layers below, 2 or more.
    pub legs: u64,
    /// Most bytes of a command's data, which limit its number of parts.
    pub data_max: u64,
}

/// Layer that has chunk n on layer n modulo their number. The drive is as large as the smallest layer, in
/// whole chunks, times their number.
#[derive(Debug)]
pub struct Stripe {
    config: StripeConfig,
}

/// Part of a command on one layer, in bytes of that layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    leg: usize,
    offset: u64,
    end: u64,
}

impl Stripe {
    /// Unit of chunks in bytes: a multiple of every block size.
    pub const UNIT: u64 = 4096;

    pub fn new(config: StripeConfig) -> Self {
        Self { config }
    }

    /// Returns the layer and the offset of a byte.
    fn place(&self, offset: u64) -> (usize, u64) {
        let StripeConfig { chunk, legs, .. } = self.config;
        let number = offset / chunk;
        ((number % legs) as usize, number / legs * chunk + offset % chunk)
    }

    /// Returns the number of chunks that bytes touch.
    fn chunks(&self, offset: u64, end: u64) -> u64 {
        end.div_ceil(self.config.chunk) - offset / self.config.chunk
    }

    /// Returns part `number` of some bytes: those in one chunk.
    fn chunk(&self, offset: u64, end: u64, number: u32) -> (u64, u64) {
        let chunk = self.config.chunk;
        let first = offset / chunk + u64::from(number);
        ((first * chunk).max(offset), ((first + 1) * chunk).min(end))
    }

    /// Returns the share of some bytes on the layer of the `number`th chunk touched. It is contiguous there.
    fn share(&self, offset: u64, end: u64, number: u64) -> Share {
        let StripeConfig { chunk, legs, .. } = self.config;
        let (first, last) = (offset / chunk + number, (end - 1) / chunk);
        let last_here = last - (last - first) % legs;
        let (leg, start) = self.place((first * chunk).max(offset));
        let (_, last_byte) = self.place(((last_here + 1) * chunk).min(end) - 1);
        Share { leg, offset: start, end: last_byte + 1 }
    }

    /// Divides a command without data: one part for each layer, however long it is.
    fn divide_range(&self, command: Command, request: Request, lane: &mut Lane<'_>) {
        let count = self.chunks(request.offset, request.end()).min(self.config.legs);
        lane.fork(command, count as u32, DIVIDED, [0; 2], |number, whole, child| {
            let Share { leg, offset, end } = self.share(request.offset, request.end(), number.into());
            child.request = Request { offset, length: end - offset, ..whole.request };
            leg
        });
    }

    /// Divides a command with data: one part for each chunk.
    fn divide_data(&self, command: Command, request: Request, lane: &mut Lane<'_>) {
        let count = self.chunks(request.offset, request.end());
        lane.fork(command, count as u32, DIVIDED, [0; 2], |number, whole, child| {
            let (from, end) = self.chunk(request.offset, request.end(), number);
            let (leg, offset) = self.place(from);
            parts::take(whole, child, from, end, offset);
            leg
        });
    }
}

impl Layer for Stripe {
    fn name(&self) -> &'static str {
        "stripe"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        let StripeConfig { chunk, legs, data_max } = self.config;
        let together = parts::together(below);
        let smallest = below.iter().map(|leg| leg.size).min().unwrap_or(0);
        let most = (data_max / chunk + 2).max(legs);
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        Characteristics {
            size: (smallest / chunk * chunk).saturating_mul(legs),
            boundary: u32::try_from(chunk).unwrap_or(0),
            fan_out: most.saturating_mul(together.fan_out.saturating_add(1)),
            ..together
        }
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let request = lane.slot(&command).request;
        if request.operation == Operation::Flush {
            return parts::flush_all(self.config.legs as usize, command, lane);
        }
        if request.length == 0 || self.chunks(request.offset, request.end()) == 1 {
            let (leg, offset) = self.place(request.offset);
            return parts::move_to(leg, offset, command, lane);
        }
        match request.has_data() {
            true => self.divide_data(command, request, lane),
            false => self.divide_range(command, request, lane),
        }
    }

    fn resume(&mut self, command: Command, frame: Frame, lane: &mut Lane<'_>) {
        parts::resume(command, frame, lane);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    /// Checks byte by byte that a share is the union of the chunks of its layer, and contiguous.
    #[test]
    fn a_range_is_one_piece_on_each_layer() {
        let mut random = Random::new(1);
        for _ in 0..2000 {
            let config =
                StripeConfig { chunk: random.between(1, 5), legs: random.between(2, 5), data_max: 40 };
            let stripe = Stripe::new(config);
            let offset = random.below(60);
            let end = offset + random.between(1, 40);
            let count = stripe.chunks(offset, end).min(config.legs);
            let mut found = Vec::new();
            for number in 0..count {
                let Share { leg, offset, end } = stripe.share(offset, end, number);
                found.extend((offset..end).map(|byte| (leg, byte)));
            }
            let mut expected: Vec<_> = (offset..end).map(|byte| stripe.place(byte)).collect();
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "{config:?} {offset}..{end}");
        }
    }
}
