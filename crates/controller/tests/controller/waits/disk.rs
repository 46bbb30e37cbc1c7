//! A namespace's layer that holds every command until the test answers, and checks each one that arrives.

use sluice_command::{
    Aborted, Characteristics, Command, Deallocated, Lane, Layer, NodeId, Operation, Origin, Request, Stack,
    Ticket,
};
use sluice_controller::{Attachment, Namespace, NamespaceConfig, Subsystem};
use sluice_nvme::Status;
use sluice_nvme::opcode::admin;
use sluice_router::RouterBuilder;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

/// The origin of a fused pair's commands while a layer has them.
const FUSED: u8 = 0x7e;
/// The queue of commands that the drive makes itself.
const INTERNAL_SQ: u16 = u16::MAX;

/// Content of each byte of all disks, which writes do not change.
pub(super) const CONTENT: u8 = 0x5a;
pub(super) const BLOCKS: u64 = 64;

/// Returns whether the Compare of a pair at this block fails, and so its Write.
pub(super) fn compares_in_vain(slba: u64) -> bool {
    slba.is_multiple_of(4)
}

/// Command that the layer has.
#[derive(Clone, Debug)]
pub(super) struct Held {
    ticket: Ticket,
    /// Ordinal of this command among all arrivals.
    pub(super) arrival: u64,
    pub(super) origin: Origin,
    pub(super) request: Request,
    /// Commands in flight when this command's queue was deleted: they have no order with it.
    pub(super) abandoned: Option<Arc<BTreeSet<Key>>>,
}

impl Held {
    pub(super) fn is_host(&self) -> bool {
        is_host(&self.origin)
    }

    fn overlaps(&self, request: &Request) -> bool {
        self.request.offset < request.end() && request.offset < self.request.end()
    }
}

/// Host, submission queue, command identifier.
pub(super) type Key = (usize, u16, u16);

fn key(origin: &Origin) -> Key {
    (origin.controller.into(), origin.sq, origin.cid)
}

fn is_host(origin: &Origin) -> bool {
    origin.sq != 0 && origin.sq != INTERNAL_SQ
}

fn is_erasing(origin: &Origin) -> bool {
    origin.sq == INTERNAL_SQ && origin.opcode == admin::FORMAT_NVM
}

fn is_of_one_queue(one: &Origin, other: &Origin) -> bool {
    (one.controller, one.sq, one.epoch) == (other.controller, other.sq, other.epoch)
}

/// Pair whose Compare has arrived, and whose Write has not been answered.
#[derive(Debug)]
struct FusedBlocks {
    origin: Origin,
    request: Request,
}

#[derive(Debug)]
pub(super) struct Disk {
    nsid: u32,
    pub(super) held: Vec<Held>,
    /// Number of arrivals in the whole run.
    arrivals: u64,
    fused: Option<FusedBlocks>,
    /// First violation of a rule.
    pub(super) breach: Option<String>,
    /// Whether commands end when an abort is requested.
    aborts: bool,
    /// Number of the last arrival among the flushes that have succeeded.
    pub(super) flushed: u64,
}

impl Disk {
    fn check(&mut self, origin: &Origin, request: &Request) {
        let in_the_way = |held: &&Held| {
            let is_later = |others: &Arc<BTreeSet<Key>>| !others.contains(&key(origin));
            let abandoned =
                held.abandoned.as_ref().is_some_and(is_later) && held.request.operation.modifies();
            match () {
                () if is_erasing(origin) => held.is_host(),
                () if !is_host(origin) => false,
                () if is_erasing(&held.origin) => true,
                () if !held.overlaps(request) || !held.is_host() => false,
                () if origin.opcode == FUSED || held.origin.opcode == FUSED => {
                    !(origin.opcode == held.origin.opcode && is_of_one_queue(origin, &held.origin))
                }
                () => abandoned,
            }
        };
        if let Some(held) = self.held.iter().find(in_the_way) {
            let found = format!("namespace {}: {origin:?} {request:?} beside {held:?}", self.nsid);
            self.breach.get_or_insert(found);
        }
        self.check_fused(origin, request);
    }

    /// Notes a breach if a command comes between the two of a pair.
    fn check_fused(&mut self, origin: &Origin, request: &Request) {
        if let Some(FusedBlocks { origin: of, request: blocks }) = &self.fused
            && is_host(origin)
            && request.offset < blocks.end()
            && blocks.offset < request.end()
            && !is_of_one_queue(of, origin)
        {
            let found =
                format!("namespace {}: {origin:?} {request:?} between the commands of {of:?}", self.nsid);
            self.breach.get_or_insert(found);
        }
        if origin.opcode == FUSED && request.operation == Operation::Read {
            self.fused = Some(FusedBlocks { origin: *origin, request: *request });
        }
    }

    fn answered(&mut self, held: &Held, is_good: bool) {
        let is_last =
            held.request.operation == Operation::Write || compares_in_vain(held.request.offset / 512);
        if held.origin.opcode == FUSED && (is_last || !is_good) {
            self.fused = None;
        }
        if held.request.operation == Operation::Flush && is_good {
            self.flushed = self.flushed.max(held.arrival);
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Watched(Arc<Mutex<Disk>>);

impl Watched {
    pub(super) fn new(nsid: u32, aborts: bool) -> Self {
        let (held, arrivals, flushed) = (Vec::new(), 0, 0);
        Self(Arc::new(Mutex::new(Disk { nsid, held, arrivals, fused: None, breach: None, aborts, flushed })))
    }

    pub(super) fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().expect("not poisoned")
    }

    /// Makes a namespace over this disk that hosts can detach and delete.
    pub(super) fn namespace(&self) -> Namespace {
        let nsid = self.disk().nsid;
        let config = NamespaceConfig { nsid, block_size: 512, uuid: [nsid as u8; 16] };
        let router = RouterBuilder::new(Stack::of(Box::new(self.clone()))).build();
        let namespace = Namespace::new(config, router).expect("a namespace that is possible");
        namespace.created(true).attached_to(Attachment::ALL)
    }

    /// Returns the token that answers a held command.
    pub(super) fn token(&self, index: usize) -> u64 {
        let disk = self.disk();
        Subsystem::token_prefix(disk.nsid, NodeId(0)) | u64::from(disk.held[index].ticket.0)
    }

    /// Returns how many commands have arrived.
    pub(super) fn arrivals(&self) -> u64 {
        self.disk().arrivals
    }
}

impl Layer for Watched {
    fn name(&self) -> &'static str {
        "watched"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        Characteristics {
            volatile_cache: true,
            deallocated: Deallocated::Zeroes,
            optimal_write: 4096,
            atomic_write: 4096,
            ..Characteristics::target(BLOCKS * 512, 512)
        }
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let mut disk = self.disk();
        let slot = lane.slot(&command);
        let (origin, request) = (slot.origin, slot.request);
        disk.check(&origin, &request);
        disk.arrivals += 1;
        let arrival = disk.arrivals;
        let ticket = lane.park(command);
        disk.held.push(Held { ticket, arrival, origin, request, abandoned: None });
    }

    fn event(&mut self, ticket: Ticket, _result: i32, lane: &mut Lane<'_>) {
        let Some(command) = lane.unpark(ticket) else { return };
        let mut disk = self.disk();
        let index = disk.held.iter().position(|held| held.ticket.0 == ticket.0).expect("one that is held");
        let held = disk.held.remove(index);
        disk.answered(&held, true);
        if held.request.operation == Operation::Read {
            let slot = lane.slot_mut(&command);
            slot.data.copy_from(0, &vec![CONTENT; held.request.length as usize]);
        }
        lane.finish(command, Status::SUCCESS);
    }

    fn abort(&mut self, which: Aborted, why: Status, lane: &mut Lane<'_>) {
        let mut disk = self.disk();
        if !disk.aborts {
            return;
        }
        for held in std::mem::take(&mut disk.held) {
            match lane.is_aborted(which, held.ticket).then(|| lane.unpark(held.ticket)).flatten() {
                Some(command) => {
                    disk.answered(&held, false);
                    lane.finish(command, why);
                }
                None => disk.held.push(held),
            }
        }
    }
}
