//! Volumes of thin pools, whose homes are turned with the stack.

use sluice_command::{Characteristics, Command, Lane, Layer};
use sluice_memory::Space;
use sluice_sim::{DiskConfig, Random, SimDisk};
use sluice_thin::{EXTENT, OnFull, PoolByHand, Storage, Thin};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

/// Bytes of a disk that a new pool needs as zeros.
const BLANK: usize = 1 << 20;

/// The metadata of a pool on a disk.
#[derive(Clone, Debug)]
pub(crate) struct Metadata(SimDisk);

impl Storage for Metadata {
    fn read(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.lock().read(at, bytes);
        Ok(())
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut disk = self.0.lock();
        for (number, sector) in bytes.chunks(512).enumerate() {
            disk.write(at + number as u64 * 512, sector);
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().flush();
        Ok(())
    }

    fn reserve(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }
}

type Pool = Arc<Mutex<PoolByHand<Metadata>>>;

/// Layer above a volume that turns the home of the pool.
pub(crate) struct Home(Pool);

impl Layer for Home {
    fn name(&self) -> &'static str {
        "home"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        below[0].over()
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        lane.forward(command);
    }

    fn polls(&self) -> bool {
        true
    }

    fn poll(&mut self, _: u8, _: &Space, _: &mut Lane<'_>) -> usize {
        self.0.lock().expect("not poisoned").turn()
    }
}

/// Pools of a stack by disk.
#[derive(Default)]
pub(crate) struct Pools(BTreeMap<usize, Pool>);

impl Pools {
    /// Opens a volume of the pool on a disk. The pool is opened with its first volume.
    pub(crate) fn open(&mut self, number: usize, disk: &SimDisk, volume: u32, extents: u64) -> (Thin, Home) {
        let pool = self.0.entry(number).or_insert_with(|| {
            let size = disk.lock().config().size;
            let pool = PoolByHand::open(Metadata(disk.clone()), size, 1);
            Arc::new(Mutex::new(pool.expect("a disk of zeros, or with a pool")))
        });
        let name = format!("volume {volume}");
        let opened = pool.lock().expect("not poisoned").open_volume(&name, extents * EXTENT, OnFull::Fail);
        (opened.expect("the pool has room"), Home(Arc::clone(pool)))
    }
}

/// Creates disks for pools. Behind the zeros they have content of earlier users.
pub(crate) fn pool_disks(random: &mut Random, count: usize) -> Vec<SimDisk> {
    let config = DiskConfig {
        size: (3 << 20) + EXTENT * random.below(4),
        block_size: super::plan::BLOCK,
        atomic_write: super::plan::BLOCK << random.below(4),
        volatile_cache: !random.one_in(4),
    };
    let disk = |_| {
        let disk = SimDisk::used(config, random.split());
        disk.lock().write(0, &[0; BLANK]);
        disk.lock().flush();
        disk
    };
    (0..count).map(disk).collect()
}
