//! Frames: state that a layer pushes on a command, for the command's return.

use crate::NodeId;
use zerocopy::FromZeros;

/// State of a layer, pushed when it forwards a command and handed to [`Layer::resume`](crate::Layer::resume)
/// when the command returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromZeros)]
pub struct Frame {
    /// Layer that pushed the frame, and is resumed with it.
    pub(crate) node: NodeId,
    /// Named stage of the layer, as a number.
    pub stage: u8,
    /// Data of the layer, such as the request before it was rewritten.
    pub data: [u64; 2],
}

impl Frame {
    /// Depth of the deepest stack that a command can pass: one frame for each layer on its way.
    pub const MAX: usize = 8;
}

/// The frames of one command, a fixed-size stack.
#[derive(Clone, Copy, Debug, Default, FromZeros)]
pub(crate) struct Frames {
    frames: [Frame; Frame::MAX],
    depth: u8,
}

impl Frames {
    #[inline]
    pub(crate) fn push(&mut self, frame: Frame) {
        // A deeper stack is refused when it is built, so this is an invariant.
        self.frames[usize::from(self.depth)] = frame;
        self.depth += 1;
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Frame> {
        self.depth = self.depth.checked_sub(1)?;
        Some(self.frames[usize::from(self.depth)])
    }

    pub(crate) fn top(&self) -> Option<&Frame> {
        self.frames[..usize::from(self.depth)].last()
    }

    pub(crate) fn has(&self, node: NodeId) -> bool {
        self.frames[..usize::from(self.depth)].iter().any(|frame| frame.node == node)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.depth == 0
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.depth = 0;
    }
}
