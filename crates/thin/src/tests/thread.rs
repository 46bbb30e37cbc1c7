//! The thread of a pool, and its callers.

use super::disk::SharedDisk;
use crate::{EXTENT, OnFull, Storage, ThinPool};
use sluice_functions::Random;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const DISK: usize = 3 << 20;

/// A disk whose writes wait for a lock.
struct Gate(SharedDisk, Arc<Mutex<()>>);

impl Storage for Gate {
    fn read(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read(at, bytes)
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        drop(self.1.lock().expect("not poisoned"));
        Storage::write(&mut self.0, at, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Storage::flush(&mut self.0)
    }

    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        self.0.reserve(bytes)
    }
}

#[test]
fn the_space_of_a_pool_is_known_while_its_thread_writes() {
    let gate = Arc::new(Mutex::new(()));
    let disk = SharedDisk::new(DISK, 1 << 20, 0xa5, Random::new(1));
    let pool = ThinPool::start(Gate(disk, Arc::clone(&gate)), DISK as u64, ()).expect("it is made");
    let size = pool.usage(true).expect("it replies").size;
    let closed = gate.lock().expect("not poisoned");
    std::thread::scope(|scope| {
        let opened = scope.spawn(|| pool.open("a", EXTENT, OnFull::Fail).map(drop));
        // The order may come before or after these.
        for _ in 0..50 {
            let usage = pool.recent_usage(Duration::from_millis(1)).expect("it is known");
            assert_eq!((usage.size, usage.free, usage.volumes.len()), (size, size, 0));
        }
        drop(closed);
        opened.join().expect("no panic").expect("it opens");
    });
    // An answer that was ordered before may come first.
    let limit = Duration::from_secs(60);
    let counts = [(); 2].map(|()| pool.recent_usage(limit).expect("it replies").volumes.len());
    assert_eq!(counts[1], 1);
}
