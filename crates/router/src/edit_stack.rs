//! A layer that is put into the stack behind a router, or taken out of it. For a drive without commands in flight.

use crate::router::Router;
use sluice_command::{Busy, Insertion, NodeId, Slab, StackBuilder, StackError};

impl Router {
    /// See [`Stack::insert`](sluice_command::Stack::insert). Further paths go on to enter the layers that they
    /// entered.
    pub fn insert<E: From<StackError>>(
        &mut self,
        at: usize,
        build: impl FnOnce(NodeId, &mut StackBuilder) -> Result<NodeId, E>,
        accept: impl FnOnce(Insertion) -> Result<(), E>,
    ) -> Result<(), E> {
        self.stack.insert(at, build, accept)?;
        self.paths[0].entry = self.stack.root();
        self.derive();
        Ok(())
    }

    /// See [`Stack::take_out`](sluice_command::Stack::take_out). A path that entered the layer enters the one
    /// below.
    pub fn take_out(&mut self, at: usize, slab: &mut Slab, now_ns: u64) -> Result<(), Busy> {
        let node = *self.stack.chain().get(at).ok_or(Busy)?;
        let under = self.stack.take_out(at, slab, now_ns)?;
        self.paths.iter_mut().filter(|path| path.entry == node).for_each(|path| path.entry = under);
        self.derive();
        Ok(())
    }

    /// See [`Stack::unlink`](sluice_command::Stack::unlink).
    pub fn unlink(&mut self, at: usize) {
        self.stack.unlink(at);
        self.paths[0].entry = self.stack.root();
        self.derive();
    }
}
