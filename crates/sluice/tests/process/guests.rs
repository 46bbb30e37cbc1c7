//! Malicious guests against a real daemon: it lives, the drive beside goes on with the right data, the next
//! guest is served, and no resource leaks. Faults in the messages of a client are in the front-end's own
//! tests.
//!
//! SLUICE_ROUNDS is the number of rounds, and SLUICE_GUESTS the number of guests with thousands of maps at a
//! time. Manual runs may use more.

use crate::common::{Daemon, LIMIT, namespace, wait_for};
use crate::neighbour::Neighbour;
use crate::peer::Peer;
use crate::vmm::belongings;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use sluice_functions::Random;
use sluice_host::{Controller, Deadline, Mode, QueueLayout, entry};
use sluice_memory::SharedRegion;
use sluice_nvme::{SglDescriptor, SglType, SubmissionEntry, opcode::io};
use sluice_vfio_user::{Command, dma::DmaMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use zerocopy::IntoBytes;

const PAGE: usize = 4096;
const ROUNDS: u32 = 4;
const GUESTS: usize = 100;
const MAPS: u64 = 2000;
const REGIONS_MAX: u64 = 65_535;

/// Number of messages in flight at a time.
const BATCH: u64 = 64;

fn drive(name: &str, size: &str) -> String {
    format!("[[drive]]\nname = \"{name}\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"{size}\"\n")
}

/// Returns memory like a monitor's, with its file.
fn memory(bytes: usize) -> (SharedRegion, OwnedFd) {
    let file = memfd_create("sluice-test-guest", MemfdFlags::CLOEXEC).expect("a file in memory");
    ftruncate(&file, bytes as u64).expect("room");
    let region = SharedRegion::from_fd(file.try_clone().expect("a descriptor"), 0, bytes);
    (region.expect("it can be mapped"), file)
}

/// Rewrites the entries of a queue while the daemon reads them, and rings its doorbells with random values.
fn queues_that_are_rewritten(host: &mut Controller, place: Place<'_>) {
    let memory = host.memory();
    let [sq, cq, data] = [PAGE, PAGE, 16 * PAGE].map(|bytes| memory.allocate(bytes).expect("memory"));
    host.admin(entry::create_cq(1, cq.iova(), 64, None)).expect("created");
    host.admin(entry::create_sq(1, sq.iova(), 64, 1)).expect("created");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::new(1);
            while !over.load(Relaxed) {
                // A word of an entry gets a plausible value, or a random one.
                let slot = random.below(64) as usize * 64;
                let (at, value) = match random.below(4) {
                    0 => (0, random.below(26) | random.below(4) << 14 | 1 << 32),
                    1 => (24, data.iova() + random.below(16) * PAGE as u64),
                    2 => (40 + 8 * random.below(3) as usize, random.below(1 << 12)),
                    _ => (8 * random.below(8) as usize, random.next_u64()),
                };
                sq.region().atomic_u64(slot + at).store(value, Relaxed);
            }
        });
        let mut random = Random::new(2);
        for round in 0..3000 {
            if round % 100 == 0 {
                place(1);
            }
            let which = random.below(2) as u32;
            // Writing fails if the drive has disconnected the guest.
            let _ = host.write_doorbell(2 + which, random.below(64) as u32);
        }
        over.store(true, Relaxed);
    });
}

fn doorbells_that_are_not_there(host: &mut Controller, place: Place<'_>) {
    let _queue = host.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
    for index in (0..600).chain(1000..1024) {
        if index % 50 == 2 {
            place(1);
        }
        for value in [0, 63, 64, 0xffff, u32::MAX] {
            let _ = host.write_doorbell(index, value);
        }
    }
}

/// Sends lists that point at themselves, and lists of billions of bytes.
fn lists_without_end(host: &mut Controller, place: Place<'_>) {
    let mut queue = host.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
    let list = host.memory().allocate(PAGE).expect("memory");
    let sgl = |kind, length| SglDescriptor::new(kind, list.iova(), length);
    let every = |region: &SharedRegion, bytes: &[u8]| {
        (0..PAGE).step_by(bytes.len()).for_each(|at| region.write(at, bytes));
    };
    let segments = [
        sgl(SglType::SEGMENT, 4096),
        sgl(SglType::LAST_SEGMENT, 4096),
        sgl(SglType::SEGMENT, !15),
        sgl(SglType::BIT_BUCKET, 0),
        sgl(SglType::DATA_BLOCK, 0),
    ];
    for opcode in [io::READ, io::WRITE, io::COMPARE] {
        place(1);
        let prp = SubmissionEntry { opcode, dptr: [list.iova(), list.iova()], ..entry::read(1, 0, 2048) };
        every(list.region(), &list.iova().to_le_bytes());
        let mut entries = vec![prp];
        for descriptor in segments {
            const SGL: u8 = 1 << 6;
            every(list.region(), descriptor.as_bytes());
            for first in [sgl(SglType::SEGMENT, !15), sgl(SglType::LAST_SEGMENT, 4096)] {
                entries.push(SubmissionEntry { flags: SGL, dptr: first.to_dptr(), ..prp });
            }
            for entry in entries.drain(..) {
                let cid = queue.submit(entry).expect("there is room");
                queue.ring().expect("a doorbell");
                let deadline = Deadline::after(LIMIT, "a command with an odd list");
                queue.wait(cid, &deadline, drop).expect("it is completed, whatever its status");
            }
        }
    }
}

/// Truncates the file behind data, and then behind a queue, while commands use it.
fn memory_that_is_truncated(host: &mut Controller, place: Place<'_>) {
    let mut queue = host.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
    let (region, file) = memory(1 << 20);
    let data = host.memory().share(region).expect("mapped");
    place(1);
    for n in 0..60u64 {
        let read = entry::read(1, n * 32, 32);
        queue.submit_prp(read, data.range(n as usize * (16 << 10), 16 << 10)).expect("there is room");
    }
    queue.ring().expect("a doorbell");
    ftruncate(&file, 0).expect("it is ours");
    let mut left = 60;
    wait_for("the end of all commands, whatever their status", || {
        left -= queue.reap(drop);
        left == 0
    });
    let read = entry::read(1, 0, 32);
    if queue.submit_prp(read, data.range(0, 16 << 10)).is_some() {
        let _ = queue.ring();
    }
    let (region, file) = memory(2 * PAGE);
    let queues = host.memory().share(region).expect("mapped");
    host.admin(entry::create_cq(2, queues.iova(), 64, None)).expect("created");
    host.admin(entry::create_sq(2, queues.iova() + PAGE as u64, 64, 2)).expect("created");
    place(2);
    ftruncate(&file, 0).expect("it is ours");
    let _ = host.write_doorbell(4, 63);
}

/// Callback with the number of a queue that could be moved now.
type Place<'a> = &'a dyn Fn(u16);

type Attack = (&'static str, fn(&mut Controller, Place<'_>));

pub(crate) fn attacks() -> [Attack; 4] {
    [
        ("queues that are rewritten", queues_that_are_rewritten),
        ("doorbells that are not there", doorbells_that_are_not_there),
        ("lists without end", lists_without_end),
        ("memory that is truncated", memory_that_is_truncated),
    ]
}

#[test]
fn guests_that_mean_harm_harm_nobody_but_their_own_drive() {
    let rounds = std::env::var("SLUICE_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().expect("a number"));
    let daemon = Daemon::start(&(drive("victim", "4MiB") + &drive("other", "16MiB")));
    let neighbour = Neighbour::on(&daemon, "other");
    // The first write allocates all memory of the drive, so that later rounds need no more.
    namespace(&mut daemon.host("victim"), 1).write(0, &vec![1; 4 << 20]).expect("it is in range");
    let mut before = None;
    for round in 0..rounds {
        let mode = if round % 2 == 0 { Mode::Trapped } else { Mode::Mapped };
        for (what, attack) in attacks() {
            eprintln!("round {round}: {what}");
            attack(&mut daemon.host_with("victim", mode), &|_| {});
            neighbour.goes_on();
        }
        let mut next = daemon.host("victim");
        let mut disk = namespace(&mut next, 1);
        disk.write(5, &[round as u8; 512]).expect("the next guest is served");
        let mut read = [0; 512];
        disk.read(5, &mut read).expect("the next guest is served");
        assert_eq!(read, [round as u8; 512]);
        drop(disk);
        drop(next);
        before.get_or_insert_with(|| belongings(daemon.pid()));
    }
    neighbour.end();
    let (descriptors, memory) = before.expect("there was a round");
    wait_for("the last descriptor is closed", || belongings(daemon.pid()).0 <= descriptors + 2);
    let after = belongings(daemon.pid()).1;
    assert!(after <= memory + (8 << 10), "{after} KiB, and {memory} before");
}

/// Maps pages out of one file, each by itself, with a gap of a page between them.
fn map(peer: &mut Peer, pages: std::ops::Range<u64>, file: &OwnedFd) {
    let mut page = pages.start;
    while page < pages.end {
        let batch = page..pages.end.min(page + BATCH);
        let one = |page: u64| {
            let map = DmaMap { argsz: 32, flags: 3, offset: 0, address: page * 8192, size: PAGE as u64 };
            peer.send(Command::DMA_MAP, map.as_bytes(), &[file.as_fd()])
        };
        let ids: Vec<u16> = batch.clone().map(one).collect();
        ids.into_iter().for_each(|id| drop(peer.reply_to(id).expect("mapped")));
        page = batch.end;
    }
}

fn mappings(pid: u32) -> usize {
    std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs").lines().count()
}

#[test]
fn guests_with_thousands_of_maps_each() {
    let guests = std::env::var("SLUICE_GUESTS").map_or(GUESTS, |guests| guests.parse().expect("a number"));
    let names: Vec<String> = (0..guests).map(|number| format!("guest-{number}")).collect();
    let drives: String = names.iter().map(|name| drive(name, "1MiB")).collect();
    let daemon = Daemon::start(&(drives + &drive("other", "16MiB")));
    let neighbour = Neighbour::on(&daemon, "other");
    let connect = |name: &String| {
        let mut peer = Peer::connect(daemon.socket(name).parent().expect("a folder"));
        peer.negotiate(b"{\"capabilities\":{\"max_msg_fds\":16}}\0");
        let (_, file) = memory(1 << 20);
        (peer, file)
    };
    let mut there: Vec<_> = names.iter().map(connect).collect();
    let (before, lines) = (belongings(daemon.pid()), mappings(daemon.pid()));
    for (peer, file) in &mut there {
        map(peer, 0..MAPS, file);
    }
    neighbour.goes_on();
    let (after, added) = (belongings(daemon.pid()), mappings(daemon.pid()) - lines);
    let per_map = (after.1 - before.1) * 1024 / (guests as u64 * MAPS);
    eprintln!("{guests} guests, {MAPS} maps each: {per_map} bytes for each map, {added} mappings");
    assert!(per_map <= 512, "{per_map} bytes for each map");
    assert!(added <= guests * 4, "{added} mappings");
    assert!(after.0 <= before.0 + guests * 4, "{} descriptors, and {} before", after.0, before.0);
    // The first guest goes on to the limit of maps.
    let (peer, file) = &mut there[0];
    map(peer, MAPS..REGIONS_MAX, file);
    peer.map(REGIONS_MAX * 8192, PAGE as u64, Some(file.as_fd())).expect_err("one more than there may be");
    peer.unmap(0, PAGE as u64).expect("unmapped");
    peer.map(REGIONS_MAX * 8192, PAGE as u64, Some(file.as_fd())).expect("there is room for one");
    neighbour.goes_on();
    drop(there);
    let now = || belongings(daemon.pid()).0;
    wait_for("all of it is given back", || mappings(daemon.pid()) <= lines && now() <= before.0);
    neighbour.end();
}
