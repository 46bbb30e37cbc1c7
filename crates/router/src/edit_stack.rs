//! Insertion of a layer into the stack behind a router, and its removal. For a drive without commands in
//! flight.

use crate::router::Router;
use sluice_command::{Busy, Insertion, NodeId, Slab, StackBuilder, StackError};

impl Router {
    /// Inserts a layer, as [`Stack::insert`](sluice_command::Stack::insert) does. Further paths still enter
    /// the layers that they entered.
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

    /// Inserts a layer, as [`insert`](Self::insert) does. Further paths that entered the layer below it enter the new one,
    /// so that no command passes by.
    pub fn insert_for_all<E: From<StackError>>(
        &mut self,
        at: usize,
        build: impl FnOnce(NodeId, &mut StackBuilder) -> Result<NodeId, E>,
        accept: impl FnOnce(Insertion) -> Result<(), E>,
    ) -> Result<(), E> {
        let under = self.stack.chain().get(at).copied();
        self.insert(at, build, accept)?;
        let new = self.stack.chain().get(at).copied();
        if let (Some(under), Some(new)) = (under, new) {
            self.paths.iter_mut().filter(|path| path.entry == under).for_each(|path| path.entry = new);
            self.derive();
        }
        Ok(())
    }

    /// Replaces a layer and all below it, as [`Stack::exchange`](sluice_command::Stack::exchange) does. No further path
    /// may enter one of them.
    pub fn exchange<E: From<StackError>>(
        &mut self,
        at: usize,
        build: impl FnOnce(&mut StackBuilder) -> Result<NodeId, E>,
        accept: impl FnOnce(Insertion) -> Result<(), E>,
    ) -> Result<(), E> {
        self.stack.exchange(at, build, accept)?;
        self.paths[0].entry = self.stack.root();
        self.derive();
        Ok(())
    }

    /// Removes a layer, as [`Stack::take_out`](sluice_command::Stack::take_out) does. A path that entered the
    /// layer enters the one below.
    pub fn take_out(&mut self, at: usize, slab: &mut Slab, now_ns: u64) -> Result<(), Busy> {
        let node = *self.stack.chain().get(at).ok_or(Busy)?;
        let under = self.stack.take_out(at, slab, now_ns)?;
        self.paths.iter_mut().filter(|path| path.entry == node).for_each(|path| path.entry = under);
        self.derive();
        Ok(())
    }

    /// Removes a layer, as [`Stack::unlink`](sluice_command::Stack::unlink) does.
    pub fn unlink(&mut self, at: usize) {
        self.stack.unlink(at);
        self.paths[0].entry = self.stack.root();
        self.derive();
    }
}
