//! The controller against the reference model: random legal and illegal commands, creation and deletion of
//! queues, resets, crashes and power cuts, over every kind of target.

use crate::file::{FileDisk, Folder};
use crate::layers::{FAULTS, Plan};
use crate::nvme::NvmeDisk;
use sluice_command::Stack;
use sluice_controller::{Attached, Config, DoorbellMode, Identity, Namespace, NamespaceConfig};
use sluice_reactor::{ReactorConfig, ReactorHandle};
use sluice_router::RouterBuilder;
use sluice_sim::{
    DiskConfig, Drive, DriveNamespace, Effort, Random, Scenario, SimDisk, SimEngine, Tally, seeds,
};
use sluice_targets::{FileConfig, Memory, NoSpace, Null};
use std::path::Path;

/// Seeds that once failed.
const FAILED_ONCE: &[u64] = &[];

const EFFORT: Effort = Effort { flawed_one_in: 6, usual_transfer: 32 << 10 };

fn identity() -> Identity {
    Identity {
        subnqn: "nqn.2026-11.org.example:sim".into(),
        serial: "SIM".into(),
        model: "Sluice".into(),
        firmware: "1".into(),
    }
}

/// Creates a drive of these namespaces. `stack` creates the layers of the namespace at an index.
fn drive<'a>(
    mode: DoorbellMode,
    namespaces: Vec<DriveNamespace>,
    faults: bool,
    stack: impl Fn(usize, &SimEngine) -> Stack + 'a,
) -> Drive<'a> {
    let list = namespaces.clone();
    let make = move |engines: &[SimEngine]| {
        let namespace = |(index, namespace): (usize, &DriveNamespace)| {
            let uuid = [index as u8; 16];
            let config = NamespaceConfig { nsid: namespace.nsid, block_size: namespace.block_size, uuid };
            let router = RouterBuilder::new(stack(index, &engines[index])).build();
            Namespace::new(config, router).expect("a namespace within its limits")
        };
        let namespaces = list.iter().enumerate().map(namespace).collect();
        let mut controller = Attached::new(Config { identity: identity(), namespaces }).expect("memory");
        controller.controller.set_doorbell_mode(mode);
        controller
    };
    Drive { namespaces, make: Box::new(make), faults: if faults { FAULTS } else { &[] } }
}

/// Returns two namespaces of different block sizes, with NSIDs that are not adjacent.
fn namespaces(random: &mut Random, keeps_data: bool) -> Vec<DriveNamespace> {
    let mut one = |nsid, block_size, most| DriveNamespace {
        nsid,
        block_size,
        blocks: random.between(16, most),
        volatile_cache: false,
        keeps_data,
        disk: None,
    };
    // The second is larger than the longest transfer.
    vec![one(1, 512, 300), one(3, 4096, 400)]
}

fn any_mode(random: &mut Random) -> DoorbellMode {
    *random.pick(&[DoorbellMode::Trapped, DoorbellMode::Mapped])
}

/// Creates a drive on simulated disks under random functions.
fn simulated<'a>(random: &mut Random, faults: bool) -> Drive<'a> {
    let mut namespaces = namespaces(random, true);
    let mut plans = Vec::new();
    for namespace in &mut namespaces {
        let config = DiskConfig {
            size: namespace.blocks * u64::from(namespace.block_size),
            // A target with smaller blocks could tear a block of the namespace in a long write.
            block_size: namespace.block_size,
            atomic_write: namespace.block_size << random.below(3),
            volatile_cache: !random.one_in(4),
        };
        namespace.volatile_cache = config.volatile_cache;
        namespace.disk = Some(SimDisk::new(config, random.split()));
        plans.push(Plan::unsplit(random, 4, faults));
    }
    let disks: Vec<SimDisk> = namespaces.iter().filter_map(|namespace| namespace.disk.clone()).collect();
    drive(any_mode(random), namespaces, faults, move |index, engine| {
        plans[index].build(&disks[index..=index], engine)
    })
}

fn memory<'a>(random: &mut Random) -> Drive<'a> {
    let namespaces = namespaces(random, true);
    let sizes: Vec<u64> = namespaces.iter().map(|n| n.blocks * u64::from(n.block_size)).collect();
    let stack =
        move |index: usize, _: &SimEngine| Stack::of(Box::new(Memory::new(sizes[index]).expect("memory")));
    drive(any_mode(random), namespaces, false, stack)
}

/// Creates a drive on files in this folder.
fn file<'a>(random: &mut Random, reactor: &ReactorHandle, folder: &'a Folder) -> Drive<'a> {
    let mut namespaces = namespaces(random, true);
    namespaces.iter_mut().for_each(|namespace| namespace.volatile_cache = true);
    let disk = |namespace: &DriveNamespace| {
        let config = FileConfig {
            path: folder.file(&namespace.nsid.to_string()),
            size: Some(namespace.blocks * u64::from(namespace.block_size)),
            no_space: NoSpace::Fail,
            block_size: namespace.block_size,
            read_only: false,
            raw: true,
        };
        FileDisk::new(reactor.clone(), config)
    };
    let disks: Vec<FileDisk> = namespaces.iter().map(disk).collect();
    drive(any_mode(random), namespaces, false, move |index, engine| disks[index].stack(engine))
}

/// Creates a drive on ranges of devices in memory, a device for each namespace.
fn nvme<'a>(random: &mut Random, reactors: &[ReactorHandle; 2], folder: &Folder) -> Drive<'a> {
    let namespaces = namespaces(random, true);
    let mut disk = |namespace: &DriveNamespace| {
        let folder = folder.file(&namespace.nsid.to_string());
        NvmeDisk::new(reactors, folder, namespace.block_size, namespace.blocks, random.below(100))
    };
    let disks: Vec<NvmeDisk> = namespaces.iter().map(&mut disk).collect();
    drive(any_mode(random), namespaces, false, move |index, engine| disks[index].stack(engine))
}

fn null<'a>(random: &mut Random) -> Drive<'a> {
    let namespaces = namespaces(random, false);
    let sizes: Vec<u64> = namespaces.iter().map(|n| n.blocks * u64::from(n.block_size)).collect();
    drive(any_mode(random), namespaces, false, move |index, _| Stack::of(Box::new(Null::new(sizes[index]))))
}

/// Event between two stretches of a run.
#[derive(Clone, Copy)]
enum Calamity {
    Reset,
    Crash,
    Shutdown,
    PowerCut,
}

const ALL: &[Calamity] = &[Calamity::Reset, Calamity::Crash, Calamity::Shutdown, Calamity::PowerCut];

fn run(seed: u64, drive: Drive<'_>, calamities: &[Calamity]) -> Tally {
    let mut random = Random::new(seed);
    let mut scenario = Scenario::new(random.next_u64(), drive, EFFORT);
    for _ in 0..random.between(1, 4) {
        scenario.run(random.below(800));
        match random.pick(calamities) {
            Calamity::Reset => scenario.reset(),
            Calamity::Crash => scenario.crash(),
            Calamity::Shutdown => scenario.shut_down(),
            Calamity::PowerCut => scenario.power_cut(),
        }
        scenario.verify();
    }
    scenario.run(random.below(400));
    scenario.verify();
    scenario.tally
}

#[test]
fn simulated_storage() {
    let mut copied = 0;
    for seed in seeds(FAILED_ONCE, 16) {
        let drive = simulated(&mut Random::new(seed), false);
        copied += run(seed, drive, ALL).copied;
    }
    assert!(copied > 50, "only {copied} were copies");
}

#[test]
fn simulated_storage_with_faults() {
    for seed in seeds(FAILED_ONCE, 12) {
        let drive = simulated(&mut Random::new(seed), true);
        run(seed, drive, &[Calamity::Reset, Calamity::Crash, Calamity::PowerCut]);
    }
}

#[test]
fn memory_target() {
    for seed in seeds(FAILED_ONCE, 12) {
        run(seed, memory(&mut Random::new(seed)), &[Calamity::Reset]);
    }
}

/// Runs on files in folders in this one.
fn run_on_files(parent: &Path) {
    let reactor = ReactorHandle::start(ReactorConfig::default()).expect("io_uring works here");
    let mut succeeded = 0;
    for seed in seeds(FAILED_ONCE, 24) {
        let folder = Folder::new(parent);
        let drive = file(&mut Random::new(seed), &reactor, &folder);
        succeeded += run(seed, drive, &[Calamity::Reset, Calamity::Crash, Calamity::Shutdown]).succeeded;
    }
    reactor.stop();
    assert!(succeeded > 1000, "only {succeeded} commands were tried");
}

/// Runs in the folder of temporary files: usually on a disk, and so with direct I/O.
#[test]
fn file_target() {
    run_on_files(&std::env::temp_dir());
}

#[test]
fn file_target_through_the_page_cache() {
    run_on_files(Path::new("/dev/shm"));
}

#[test]
fn nvme_target() {
    let mut succeeded = 0;
    for seed in seeds(FAILED_ONCE, 12) {
        let reactors =
            [(); 2].map(|()| ReactorHandle::start(ReactorConfig::default()).expect("io_uring works here"));
        let folder = Folder::new(&std::env::temp_dir());
        let drive = nvme(&mut Random::new(seed), &reactors, &folder);
        succeeded += run(seed, drive, &[Calamity::Reset, Calamity::Crash, Calamity::Shutdown]).succeeded;
        reactors.into_iter().for_each(ReactorHandle::stop);
    }
    assert!(succeeded > 1000, "only {succeeded} commands were tried");
}

#[test]
fn null_target() {
    for seed in seeds(FAILED_ONCE, 12) {
        run(seed, null(&mut Random::new(seed)), &[Calamity::Reset]);
    }
}
