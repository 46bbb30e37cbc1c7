//! Changes of a namespace's layers while a host uses it.
//!
//! Properties that the host relies on must stay: the size, the durability of finished writes, and the support
//! of Deallocate. Other changes are reported to the host.

use crate::model::Subsystem;
use crate::state::mailbox::Notice;
use crate::state::refusal::Refusal;
use sluice_command::{Busy, Characteristics, Deallocated, Insertion, NodeId, StackBuilder, StackError};

/// Error of a change of layers.
#[derive(Debug)]
pub enum EditStackError<E> {
    /// Error of the caller's `build`.
    Build(E),
    Refused(Refusal),
}

impl<E> From<StackError> for EditStackError<E> {
    fn from(error: StackError) -> Self {
        Self::Refused(Refusal::Stack(error))
    }
}

impl<E> From<Refusal> for EditStackError<E> {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Subsystem {
    /// Inserts a layer into the stack of a namespace, below `at` of its functions. `build` receives the node
    /// under the new layer, and adds the layer with all that it stands on.
    ///
    /// # Errors
    /// Errors of `build`, and refusals. Nothing has changed then.
    pub fn insert_layer<E>(
        &mut self,
        nsid: u32,
        at: usize,
        build: impl FnOnce(NodeId, &mut StackBuilder) -> Result<NodeId, E>,
    ) -> Result<(), EditStackError<E>> {
        let was = self.editable_stack(nsid)?;
        if self.is_crossed(nsid, at) {
            return Err(Refusal::Busy.into());
        }
        let namespace = self.get_mut(nsid).ok_or(Refusal::NoSuchNamespace(nsid))?;
        let block_size = namespace.block_size();
        let build = |under, stack: &mut StackBuilder| build(under, stack).map_err(EditStackError::Build);
        namespace
            .router_mut()
            .insert(at, build, |it| check(&it, block_size).map_err(EditStackError::Refused))?;
        if !self.update_stacks() {
            if let Some(namespace) = self.get_mut(nsid) {
                namespace.router_mut().unlink(at);
            }
            self.update_stacks();
            return Err(Refusal::TooManyCommands.into());
        }
        self.has_other_layers(nsid, was);
        Ok(())
    }

    /// Returns whether a layer could be taken out of the stack of a namespace without a change that its host
    /// relies on.
    pub fn can_do_without_layer(&self, nsid: u32, at: usize) -> Result<(), Refusal> {
        let namespace = self.get(nsid).ok_or(Refusal::NoSuchNamespace(nsid))?;
        let no_such_layer = Refusal::Stack(StackError::NoSuchLayer(NodeId(u8::MAX)));
        same_blocks(&namespace.router().stack().insertion(at).ok_or(no_such_layer)?)
    }

    /// Takes a layer out of the stack of a namespace, below `at` of its functions.
    pub fn take_out_layer(&mut self, nsid: u32, at: usize, now_ns: u64) -> Result<(), Refusal> {
        let was = self.editable_stack(nsid)?;
        self.can_do_without_layer(nsid, at)?;
        self.take_out(nsid, at, now_ns).map_err(|Busy| Refusal::Busy)?;
        self.update_stacks();
        self.has_other_layers(nsid, was);
        Ok(())
    }

    /// Returns the characteristics of a namespace whose layers can change now.
    fn editable_stack(&self, nsid: u32) -> Result<Characteristics, Refusal> {
        let namespace = self.get(nsid).ok_or(Refusal::NoSuchNamespace(nsid))?;
        match () {
            () if self.jobs().erasure.is_some() => Err(Refusal::Formatted),
            () if !self.is_quiet() => Err(Refusal::NotQuiet),
            () => Ok(namespace.characteristics()),
        }
    }

    /// Returns whether a layer over this place of a namespace's stack has a request of its own under way. A
    /// layer that is inserted there now would not see it.
    pub fn is_crossed(&self, nsid: u32, at: usize) -> bool {
        let stack = self.get(nsid).map(|namespace| namespace.router().stack());
        stack.is_some_and(|stack| stack.is_crossed(at, self.slab()))
    }

    /// Notifies hosts if a visible property of the namespace has changed.
    fn has_other_layers(&mut self, nsid: u32, was: Characteristics) {
        let Some(namespace) = self.get_mut(nsid) else { return };
        namespace.stack_edited();
        let visible = |it: Characteristics| Characteristics {
            fan_out: 0,
            requests: 0,
            depth: 0,
            keeps_versions: false,
            ..it
        };
        if visible(was) != visible(namespace.characteristics()) {
            self.announce(Notice::NamespaceChanged(nsid));
        }
    }
}

/// Checks that a layer changes no property of a namespace that its host relies on.
fn check(insertion: &Insertion, block_size: u32) -> Result<(), Refusal> {
    let Insertion { under, layer } = insertion;
    same_blocks(insertion)?;
    if layer.block_size > block_size {
        Err(Refusal::BlockSize(layer.block_size))
    } else if layer.volatile_cache && !under.volatile_cache {
        Err(Refusal::VolatileCache)
    } else {
        Ok(())
    }
}

/// Checks that a namespace has the same blocks with a layer and without, and supports the same operations.
fn same_blocks(Insertion { under, layer }: &Insertion) -> Result<(), Refusal> {
    let deallocates = |it: &Characteristics| it.deallocated != Deallocated::Unsupported;
    if layer.size != under.size {
        Err(Refusal::Size)
    } else if deallocates(layer) != deallocates(under) {
        Err(Refusal::Deallocate)
    } else {
        Ok(())
    }
}
