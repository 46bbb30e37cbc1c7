//! Layers that check all requests: a request that passes the controller is valid, whatever the host has sent.

use sluice_command::{
    Characteristics, Command, Deallocated, Lane, Layer, NodeId, Operation, Request, Slot, Stack,
    StackBuilder, Ticket,
};
use sluice_controller::{
    Attached, Config, Creation, Identity, Namespace, NamespaceConfig, PERSIST_INTERVAL_NS, PersistentRecord,
    Pool, Subsystem,
};
use sluice_nvme::Status;
use sluice_router::RouterBuilder;
use sluice_targets::Memory;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// Control of the commands that wait at a test's gates.
#[derive(Debug, Default)]
pub struct Keeper {
    /// Bit by bit, whether the next command is held; rotates.
    pub pattern: AtomicU32,
    /// Commands that are held: their namespaces and tickets, the oldest first.
    held: Mutex<VecDeque<(u32, Ticket)>>,
    last: Mutex<Option<u64>>,
    /// Records that the controller has to store.
    pub asked: Mutex<VecDeque<PersistentRecord>>,
    /// Flag that a record was not stored.
    pub forgot: AtomicBool,
}

impl Keeper {
    /// Returns the token with which a held command continues.
    pub fn next(&self) -> Option<u64> {
        let (nsid, ticket) = self.held.lock().expect("not poisoned").pop_front()?;
        let token = Subsystem::token_prefix(nsid, GATE) | u64::from(ticket.0);
        *self.last.lock().expect("not poisoned") = Some(token);
        Some(token)
    }

    /// Returns a token that was used before.
    pub fn stale(&self) -> Option<u64> {
        *self.last.lock().expect("not poisoned")
    }

    pub fn holds(&self) -> bool {
        let pattern = self.pattern.load(Relaxed);
        self.pattern.store(pattern.rotate_right(1), Relaxed);
        pattern & 1 != 0
    }
}

/// Checks every request, and forwards it at once or on request of its keeper.
#[derive(Debug)]
struct Gate {
    nsid: u32,
    block_size: u32,
    /// Bytes below the gate, as reported last.
    size: Cell<u64>,
    keeper: Arc<Keeper>,
}

/// Position of the gate in its stack, over the target.
const GATE: NodeId = NodeId(1);

/// Checks the guarantees for a layer (see [`Layer`]).
fn check(request: &Request, slot: &Slot, size: u64, block_size: u32) {
    let Request { operation, offset, length, .. } = *request;
    assert!(offset.checked_add(length).is_some_and(|end| end <= size), "{request:?} of {size} bytes");
    assert!((offset | length).is_multiple_of(block_size.into()), "{request:?} in blocks of {block_size}");
    if matches!(operation, Operation::Read | Operation::Write) {
        assert_eq!(slot.data.len_bytes() as u64, length, "{request:?}");
    }
}

impl Layer for Gate {
    fn name(&self) -> &'static str {
        "gate"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        self.size.set(below[0].size);
        below[0].over()
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let slot = lane.slot(&command);
        check(&slot.request, slot, self.size.get(), self.block_size);
        if self.keeper.holds() {
            let ticket = lane.park(command);
            self.keeper.held.lock().expect("not poisoned").push_back((self.nsid, ticket));
        } else {
            lane.forward(command);
        }
    }

    fn event(&mut self, ticket: Ticket, _result: i32, lane: &mut Lane<'_>) {
        if let Some(command) = lane.unpark(ticket) {
            lane.forward(command);
        }
    }
}

/// A target of bytes, with canaries before and behind it.
#[derive(Clone, Debug)]
pub struct Vault(Arc<Mutex<Vec<u8>>>);

impl Vault {
    const MARGIN: usize = 4096;
    const CANARY: u8 = 0xc5;

    fn new(size: usize) -> Self {
        let mut bytes = vec![Self::CANARY; size + 2 * Self::MARGIN];
        bytes[Self::MARGIN..][..size].fill(0);
        Self(Arc::new(Mutex::new(bytes)))
    }

    fn size(&self) -> u64 {
        (self.0.lock().expect("not poisoned").len() - 2 * Self::MARGIN) as u64
    }

    pub fn check_margins(&self) {
        let bytes = self.0.lock().expect("not poisoned");
        let (before, rest) = bytes.split_at(Self::MARGIN);
        let (_, behind) = rest.split_at(rest.len() - Self::MARGIN);
        let untouched = before.iter().chain(behind).all(|byte| *byte == Self::CANARY);
        assert!(untouched, "bytes outside of the namespace were written");
    }

    fn execute(&self, slot: &Slot) {
        let Request { operation, offset, length, .. } = slot.request;
        let mut bytes = self.0.lock().expect("not poisoned");
        let range = &mut bytes[Self::MARGIN + offset as usize..][..length as usize];
        let moved = match operation {
            Operation::Read => slot.data.copy_from(0, range),
            Operation::Write => slot.data.copy_to(0, range),
            Operation::WriteZeroes | Operation::Deallocate => {
                range.fill(0);
                range.len()
            }
            Operation::Flush => 0,
        };
        assert_eq!(moved, range.len());
    }
}

impl Layer for Vault {
    fn name(&self) -> &'static str {
        "vault"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        let target = Characteristics::target(self.size(), 512);
        Characteristics { volatile_cache: true, deallocated: Deallocated::Zeroes, ..target }
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let slot = lane.slot(&command);
        // The target may have shrunk while the command was held; a request beyond its end must not arrive.
        check(&slot.request, slot, self.size(), 512);
        self.execute(slot);
        lane.finish(command, Status::SUCCESS);
    }

    fn resized(&mut self, size: u64) {
        let mut bytes = self.0.lock().expect("not poisoned");
        let end = bytes.len() - Self::MARGIN;
        bytes.truncate(end.min(Self::MARGIN + size as usize));
        bytes.resize(Self::MARGIN + size as usize, 0);
        bytes.resize(2 * Self::MARGIN + size as usize, Self::CANARY);
    }
}

/// The two namespaces of the drive under test: NSID, bytes of a block, blocks. The second has more than
/// one command may transfer.
pub const NAMESPACES: [(u32, u32, u64); 2] = [(1, 512, 128), (3, 4096, 300)];

/// The drive's NVMe Qualified Name.
pub const SUBNQN: &str = "nqn.2026-11.example.sluice:fuzz";

/// Returns a configuration, the control of its commands, and the first of its targets.
pub fn config() -> (Config, Arc<Keeper>, Vault) {
    let keeper = Arc::new(Keeper::default());
    let [first, second] = NAMESPACES;
    let vault = Vault::new(first.1 as usize * first.2 as usize);
    let memory = Memory::new(u64::from(second.1) * second.2).expect("memory");
    let namespaces = vec![
        namespace(first, Box::new(vault.clone()), &keeper),
        namespace(second, Box::new(memory), &keeper),
    ];
    let identity = Identity {
        subnqn: SUBNQN.to_owned(),
        serial: "1".to_owned(),
        model: "fuzz".to_owned(),
        firmware: "1".to_owned(),
    };
    (Config { identity, namespaces }, keeper, vault)
}

/// Returns a drive: its controller, the control of its commands, and the first of its targets.
pub fn drive() -> (Attached, Arc<Keeper>, Vault) {
    let (config, keeper, vault) = config();
    let mut drive = Attached::new(config).expect("memory");
    drive.subsystem.set_pool(Pool { size: POOL, volatile_cache: false });
    let asked = Arc::clone(&keeper);
    drive.subsystem.on_persist(move |what| asked.asked.lock().expect("not poisoned").push_back(what));
    (drive, keeper, vault)
}

/// Bytes for namespaces that hosts create.
const POOL: u64 = 256 << 10;

/// Stores the records of a drive, or fails to; a namespace that a host creates is built. Returns the number
/// of records.
pub fn remember(drive: &mut Attached, keeper: &Arc<Keeper>, now_ns: u64) -> usize {
    let asked = std::mem::take(&mut *keeper.asked.lock().expect("not poisoned"));
    let count = asked.len();
    for what in asked {
        let well = !keeper.holds();
        keeper.forgot.fetch_or(!well, Relaxed);
        if let (PersistentRecord::Creation(creation), true) = (&what, well) {
            let namespace = created(*creation, keeper);
            drive.subsystem.made(*creation, namespace).expect("room for its commands");
        }
        drive.subsystem.persisted(what, well, now_ns);
    }
    count
}

/// Returns the next deadline of a drive if it is near: no later than the next time a record may be stored.
pub fn looks_again_ns(drive: &mut Attached, now_ns: u64) -> Option<u64> {
    let soon = now_ns.saturating_add(1)..=now_ns.saturating_add(PERSIST_INTERVAL_NS);
    drive.deadline_ns().filter(|deadline_ns| soon.contains(deadline_ns))
}

/// Returns a namespace that the host creates.
fn created(creation: Creation, keeper: &Arc<Keeper>) -> Namespace {
    let Creation { nsid, block_size, blocks, shared, .. } = creation;
    let memory = Memory::new(creation.bytes()).expect("memory");
    let namespace = namespace((nsid, block_size, blocks), Box::new(memory), keeper);
    namespace.created(shared)
}

fn namespace(
    (nsid, block_size, _): (u32, u32, u64),
    target: Box<dyn Layer>,
    keeper: &Arc<Keeper>,
) -> Namespace {
    let config = NamespaceConfig { nsid, block_size, uuid: [nsid as u8; 16] };
    let router = RouterBuilder::new(stack(nsid, block_size, target, keeper)).build();
    // The model of written data supports neither blocks of another size nor an erasure.
    Namespace::new(config, router).expect("a namespace that is possible").forbid_erasing()
}

fn stack(nsid: u32, block_size: u32, target: Box<dyn Layer>, keeper: &Arc<Keeper>) -> Stack {
    let mut stack = StackBuilder::new();
    let below = stack.add(target, &[]).expect("one layer");
    let gate = Gate { nsid, block_size, size: Cell::new(0), keeper: Arc::clone(keeper) };
    let gate = stack.add(Box::new(gate), &[below]).expect("two layers");
    assert_eq!(gate, GATE);
    stack.build()
}
