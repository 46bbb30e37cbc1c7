//! What the controllers of one drive share: its identity, its namespaces and the slab of its commands.

use crate::{COMMANDS_MAX, NAMESPACES_MAX, Namespace};
use sluice_command::{Busy, Command, Deallocated, Limits, Slab, Slot, Stack};
use sluice_memory::{Removed, Space};
use sluice_nvme::{Status, SubmissionEntry};
use std::io;

/// What a drive says of itself (Base 5.17.2.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// NVM subsystem NVMe Qualified Name, at most 223 bytes.
    pub subnqn: String,
    /// Serial number, at most 20 ASCII characters.
    pub serial: String,
    /// Model number, at most 40 ASCII characters.
    pub model: String,
    /// Firmware revision, at most 8 ASCII characters.
    pub firmware: String,
    /// Controller identifier, unique in the subsystem.
    pub cntlid: u16,
}

/// The largest NSID there can be.
pub(crate) const NN: u32 = NAMESPACES_MAX as u32;

#[derive(Debug)]
pub(crate) struct Subsystem {
    pub(crate) identity: Identity,
    /// By NSID less one.
    namespaces: Vec<Option<Namespace>>,
    pub(crate) slab: Slab,
    deallocates: bool,
    /// A layer finds its work by looking.
    pub(crate) polls: bool,
    /// Namespaces that have commands to settle.
    touched: Vec<u16>,
}

impl Subsystem {
    pub(crate) fn new(identity: Identity, list: Vec<Namespace>) -> io::Result<Self> {
        let (fan_out, reserve) = needs(list.iter());
        let deallocates = list.iter().any(|n| n.characteristics().deallocated != Deallocated::Unsupported);
        let polls = list.iter().any(|n| n.router.stack().polls());
        let mut namespaces: Vec<Option<Namespace>> = Vec::new();
        for namespace in list {
            let index = namespace.nsid() as usize - 1;
            if namespaces.len() <= index {
                namespaces.resize_with(index + 1, || None);
            }
            namespaces[index] = Some(namespace);
        }
        let slab = Slab::new(Limits::with_reserve(COMMANDS_MAX, fan_out, reserve))?;
        let touched = Vec::with_capacity(NAMESPACES_MAX);
        Ok(Self { identity, namespaces, slab, deallocates, polls, touched })
    }

    #[inline]
    pub(crate) fn get(&self, nsid: u32) -> Option<&Namespace> {
        self.namespaces.get(nsid.wrapping_sub(1) as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, nsid: u32) -> Option<&mut Namespace> {
        self.namespaces.get_mut(nsid.wrapping_sub(1) as usize)?.as_mut()
    }

    /// What is wrong with an NSID that is not an active namespace's: one that could be is inactive,
    /// and that is a field's fault; any other, the broadcast NSID too, is invalid (Base 3.2.1.5).
    pub(crate) fn absent(nsid: u32) -> Status {
        match nsid {
            1..=NN => Status::INVALID_FIELD,
            _ => Status::INVALID_NAMESPACE,
        }
    }

    /// Active namespaces in ascending order of their NSID.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Namespace> + Clone {
        self.namespaces.iter().flatten()
    }

    /// True if some namespace does something with Deallocate. If none does, Dataset Management is not
    /// supported, and Identify's ONCS says so: a host that is told it may discard believes it.
    #[inline]
    pub(crate) fn deallocates(&self) -> bool {
        self.deallocates
    }

    /// NSIDs of those that may lose finished writes at a power cut, in ascending order.
    pub(crate) fn cached_namespaces(&self) -> impl Iterator<Item = u32> {
        self.iter().filter(|namespace| namespace.characteristics().volatile_cache).map(Namespace::nsid)
    }

    /// Takes a command that was just fetched: `check` looks at it beside its slot, the slot's number and
    /// its namespace, and says whether there is anything to send. None if there is no such namespace.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        command: Command,
        entry: &SubmissionEntry,
        now_ns: u64,
        done: &mut Vec<Command>,
        check: impl FnOnce(&mut Slot, usize, &Namespace) -> Result<Next, Status>,
    ) -> Result<(), Command> {
        let index = entry.nsid.wrapping_sub(1);
        let Some(Some(namespace)) = self.namespaces.get_mut(index as usize) else { return Err(command) };
        let number = self.slab.number(&command);
        let slot = self.slab.slot_mut(&command);
        slot.origin.namespace = index as u16;
        match check(slot, number, namespace) {
            Ok(Next::Send) => {
                namespace.router.submit(command, &mut self.slab, now_ns);
                touch(namespace, index, &mut self.touched);
            }
            Ok(Next::Pass) => {
                namespace.router.pass(command, &mut self.slab, now_ns);
                touch(namespace, index, &mut self.touched);
            }
            Ok(Next::Nothing) => done.push(command),
            Err(status) => {
                slot.status = status;
                done.push(command);
            }
        }
        Ok(())
    }

    /// Hands a command of our own making to its namespace's router.
    pub(crate) fn submit(&mut self, nsid: u32, command: Command, now_ns: u64) {
        let index = nsid.wrapping_sub(1);
        let namespace = self.namespaces[index as usize].as_mut().expect("the namespace was checked");
        namespace.router.submit(command, &mut self.slab, now_ns);
        touch(namespace, index, &mut self.touched);
    }

    /// The first step of a command, in a namespace that need not be its own.
    pub(crate) fn submit_to(&mut self, nsid: u32, command: Command, now_ns: u64) {
        self.slab.slot_mut(&command).origin.namespace = nsid.wrapping_sub(1) as u16;
        self.submit(nsid, command, now_ns);
    }

    /// Hands a command that goes on as its host wrote it to its namespace's router.
    pub(crate) fn pass(&mut self, nsid: u32, command: Command, now_ns: u64) {
        let index = nsid.wrapping_sub(1);
        let namespace = self.namespaces[index as usize].as_mut().expect("the namespace was checked");
        self.slab.slot_mut(&command).origin.namespace = index as u16;
        namespace.router.pass(command, &mut self.slab, now_ns);
        touch(namespace, index, &mut self.touched);
    }

    /// Hands a command of our own making to the layers, without asking a program.
    pub(crate) fn submit_unasked(&mut self, nsid: u32, command: Command, now_ns: u64) {
        let index = nsid.wrapping_sub(1);
        self.slab.slot_mut(&command).origin.namespace = index as u16;
        let namespace = self.namespaces[index as usize].as_mut().expect("the namespace was checked");
        namespace.router.submit_unasked(command, &mut self.slab, now_ns);
        touch(namespace, index, &mut self.touched);
    }

    /// The next step of a command that takes several.
    pub(crate) fn resubmit(&mut self, nsid: u32, command: Command, now_ns: u64) {
        let index = nsid.wrapping_sub(1);
        self.slab.slot_mut(&command).origin.namespace = index as u16;
        let namespace = self.namespaces[index as usize].as_mut().expect("the namespace was checked");
        namespace.router.resubmit(command, &mut self.slab, now_ns);
        touch(namespace, index, &mut self.touched);
    }

    /// Takes a layer out of a namespace's stack: see [`Router::take_out`](sluice_router::Router::take_out).
    pub(crate) fn take_out(&mut self, nsid: u32, at: usize, now_ns: u64) -> Result<(), Busy> {
        let index = nsid.wrapping_sub(1);
        let Some(Some(namespace)) = self.namespaces.get_mut(index as usize) else { return Err(Busy) };
        namespace.router.take_out(at, &mut self.slab, now_ns)?;
        // What waited in the layer is on its way.
        touch(namespace, index, &mut self.touched);
        Ok(())
    }

    /// Looks at the stacks anew. False if there cannot be as many commands as their layers may make.
    pub(crate) fn restacked(&mut self) -> bool {
        let polls = self.iter().any(|n| n.router.stack().polls());
        let (fan_out, reserve) = needs(self.iter());
        self.polls = polls;
        self.slab.make_room(fan_out, reserve)
    }

    /// An engine answered for a layer of the namespace at `index`.
    pub(crate) fn event(
        &mut self,
        index: usize,
        at: sluice_command::NodeId,
        ticket: sluice_command::Ticket,
        result: i32,
        now_ns: u64,
    ) {
        let Some(Some(namespace)) = self.namespaces.get_mut(index) else { return };
        namespace.router.event(at, ticket, result, &mut self.slab, now_ns);
        touch(namespace, index as u32, &mut self.touched);
    }

    /// Works off what moves in the touched namespaces; appends what finished to `done`.
    #[inline]
    pub(crate) fn settle(&mut self, now_ns: u64, done: &mut Vec<Command>) {
        while let Some(index) = self.touched.pop() {
            if let Some(namespace) = self.namespaces[usize::from(index)].as_mut() {
                namespace.touched = false;
                namespace.router.settle(&mut self.slab, now_ns, done);
            }
        }
    }

    #[inline]
    pub(crate) fn has_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// Lets the layers look that find their work so. Returns how much they had to do.
    pub(crate) fn poll(&mut self, space: &Space, now_ns: u64) -> usize {
        let mut work = 0;
        for (index, namespace) in self.namespaces.iter_mut().enumerate() {
            let Some(namespace) = namespace else { continue };
            let found = namespace.router.stack_mut().poll(space, &mut self.slab, now_ns);
            if found > 0 {
                touch(namespace, index as u32, &mut self.touched);
            }
            work += found;
        }
        work
    }

    /// About to sleep. True if a layer has work after all.
    pub(crate) fn arm(&mut self) -> bool {
        self.polls && self.each_stack().fold(false, |work, stack| stack.arm() | work)
    }

    pub(crate) fn disarm(&mut self) {
        if self.polls {
            self.each_stack().for_each(Stack::disarm);
        }
    }

    pub(crate) fn forget_memory(&mut self, removed: &Removed) {
        self.each_stack().for_each(|stack| stack.forget_memory(removed));
    }

    /// True while somebody beyond a layer may reach memory that the host took back.
    pub(crate) fn lends(&self, removed: &Removed) -> bool {
        self.iter().any(|namespace| namespace.router.stack().lends(removed))
    }

    /// The host is gone or begins anew: what only waits ends, what was lent further is taken back.
    pub(crate) fn recall(&mut self) {
        self.each_stack().for_each(Stack::recall);
    }

    /// The drain after a recall is over.
    pub(crate) fn renew(&mut self) {
        self.each_stack().for_each(Stack::renew);
    }

    pub(crate) fn is_recalled(&self) -> bool {
        self.iter().all(|namespace| namespace.router.stack().is_recalled())
    }

    fn each_stack(&mut self) -> impl Iterator<Item = &mut Stack> {
        self.namespaces.iter_mut().flatten().map(|namespace| namespace.router.stack_mut())
    }

    /// The earliest time a layer wants to be called at.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.iter().filter_map(|namespace| namespace.router.deadline_ns()).min()
    }

    /// Calls every layer whose time has come.
    pub(crate) fn expire(&mut self, now_ns: u64) {
        for (index, namespace) in self.namespaces.iter_mut().enumerate() {
            let Some(namespace) = namespace else { continue };
            if namespace.router.deadline_ns().is_some_and(|deadline| deadline <= now_ns) {
                namespace.router.expire(&mut self.slab, now_ns);
                touch(namespace, index as u32, &mut self.touched);
            }
        }
    }
}

/// What comes of a command that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Its request goes to the router.
    Send,
    /// It goes to the router as it is.
    Pass,
    /// It asks for nothing and is finished.
    Nothing,
}

/// Children that a command of these namespaces can have, and the commands that their layers make themselves.
fn needs<'a>(namespaces: impl Iterator<Item = &'a Namespace> + Clone) -> (u32, u32) {
    let fan_out = namespaces.clone().map(|n| n.characteristics().fan_out).max().unwrap_or(0);
    let reserve = namespaces.map(|n| n.router.stack().reserve()).fold(0, u32::saturating_add);
    (fan_out, reserve)
}

#[inline]
fn touch(namespace: &mut Namespace, index: u32, touched: &mut Vec<u16>) {
    if !namespace.touched {
        namespace.touched = true;
        touched.push(index as u16);
    }
}
