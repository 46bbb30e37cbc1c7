//! Layers whose time has come.

use crate::host::{Host, entry};
use sluice_command::{Characteristics, Command, Lane, Layer, Stack};
use sluice_controller::{Namespace, NamespaceConfig};
use sluice_nvme::Status;
use sluice_nvme::opcode::admin;
use sluice_router::RouterBuilder;
use std::sync::{Arc, Mutex};

/// Always has more to do, and notes when it was let.
struct Busy {
    nsid: u32,
    expired: Arc<Mutex<Vec<u32>>>,
}

impl Layer for Busy {
    fn name(&self) -> &'static str {
        "busy"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        Characteristics::target(1 << 20, 512)
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        lane.finish(command, Status::SUCCESS);
    }

    fn deadline_ns(&self) -> Option<u64> {
        Some(0)
    }

    fn expire(&mut self, _lane: &mut Lane<'_>) {
        self.expired.lock().expect("not poisoned").push(self.nsid);
    }
}

/// What namespaces have to do is spread over turns, which others have to wait for.
#[test]
fn namespaces_take_turns_when_their_time_has_come() {
    const NAMESPACES: u32 = 10;
    let expired = Arc::<Mutex<Vec<u32>>>::default();
    let busy = |nsid| {
        let stack = Stack::of(Box::new(Busy { nsid, expired: Arc::clone(&expired) }));
        let config = NamespaceConfig { nsid, block_size: 512, uuid: [nsid as u8; 16] };
        Namespace::new(config, RouterBuilder::new(stack).build()).expect("a namespace that is possible")
    };
    let mut host = Host::enabled((1..=NAMESPACES).map(busy).collect());
    // Timers are looked at when something has moved.
    host.submit(0, entry(admin::KEEP_ALIVE));
    host.turn();
    let mut all = Vec::new();
    for _ in 0..100 {
        expired.lock().expect("not poisoned").clear();
        host.turn();
        let now = std::mem::take(&mut *expired.lock().expect("not poisoned"));
        assert!((1..=4).contains(&now.len()), "{now:?}");
        all.extend(now);
    }
    let next = |nsid: u32| nsid % NAMESPACES + 1;
    assert!(all.windows(2).all(|pair| pair[1] == next(pair[0])), "one after the other: {all:?}");
}
