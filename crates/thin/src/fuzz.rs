//! Pools with some history, damaged under right checksums: each is refused in words, or is a pool whose space adds up, and
//! whose volumes are cloned and deleted.

use crate::block::BLOCK;
use crate::book::{Book, Change};
use crate::committer::Committer;
use crate::layout::EXTENT;
use crate::pool::PoolUse;
use crate::storage::Storage;
use crate::store::Store;
use std::io;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};

const DISK: usize = 3 << 20;

/// A disk in memory.
#[derive(Clone, Debug)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Memory {
    fn with<T>(&self, run: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        run(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Storage for Memory {
    fn read(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let at = at as usize;
        let found =
            |disk: &mut Vec<u8>| disk.get(at..at + bytes.len()).map(|from| bytes.copy_from_slice(from));
        self.with(found).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let at = at as usize;
        self.with(|disk| disk[at..at + bytes.len()].copy_from_slice(bytes));
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn reserve(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes of an input; zeros behind its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn below(&mut self, end: u32) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), 0, 0]) % end
    }
}

/// Makes a pool with changes that the input chooses.
fn make(disk: &Memory, input: &mut Input<'_>) {
    let Ok((mut store, mut book)) = Store::open(disk.clone(), DISK as u64, 7) else { return };
    for number in 0..input.byte() % 64 {
        let (volume, name) = (input.below(8), format!("v{number}"));
        let change = match input.byte() % 8 {
            0 | 1 => Change::Create { volume, name, size: EXTENT * u64::from(input.below(64) + 1) },
            2 => Change::Clone { volume, name, from: input.below(8) },
            3 => Change::Delete { volume },
            4 => Change::Resize { volume, size: EXTENT * u64::from(input.below(64) + 1) },
            _ => {
                let physical = Some(input.below(book.extents())).filter(|it| it % 5 > 0);
                Change::Map { volume, logical: input.below(64), physical }
            }
        };
        // A change that contradicts the state is not written.
        let mut later = book.clone();
        if later.apply(&change, |_| {}).is_ok() && store.commit(&book, &[change]).is_ok() {
            book = later;
        }
    }
}

/// Changes bytes of blocks that are in use, and makes their checksums right.
fn damage(disk: &mut [u8], input: &mut Input<'_>) {
    let used: Vec<usize> = (0..DISK / BLOCK).filter(|at| disk[at * BLOCK..][..8] == *b"SluiceTP").collect();
    for _ in 0..input.byte() % 16 {
        let Some(number) = used.get(input.below(used.len().max(1) as u32) as usize) else { return };
        let block = &mut disk[number * BLOCK..][..BLOCK];
        for _ in 0..input.byte() % 4 + 1 {
            // Heads and first items are where most of the meaning is.
            let at =
                if input.byte().is_multiple_of(2) { input.below(256) } else { input.below(BLOCK as u32) };
            block[at as usize] ^= input.byte();
        }
        let sum = crc32c::crc32c_append(crc32c::crc32c(&block[..8]), &block[12..]);
        block[8..12].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Checks that each mapping counts once.
fn check(book: &Book) {
    let mut counts = vec![0; book.extents() as usize];
    for (_, volume) in book.volumes() {
        let mapped = volume.map.iter().map(|(logical, word)| {
            assert!(u64::from(logical) < volume.size / EXTENT, "it is in the volume");
            counts[word as usize - 1] += 1;
        });
        assert_eq!(mapped.count() as u64, volume.mapped);
    }
    assert_eq!(counts.iter().map(|count| u64::from(*count)).sum::<u64>(), book.mappings());
    assert!((0..).zip(counts).all(|(extent, count)| book.references(extent) == count));
}

/// Returns the use of the pool, with the exclusive extents of each volume.
fn counted(pool: &mut Committer<Memory>) -> PoolUse {
    let (reply, answer) = channel();
    pool.order_count(reply);
    while pool.step_counts(usize::MAX) > 0 {}
    let usage = answer.recv().expect("the count is over").expect("the pool counts");
    assert!(usage.volumes.iter().all(|volume| volume.exclusive.is_some()));
    usage
}

/// Runs an input.
///
/// # Panics
/// A damaged pool is used although it contradicts itself.
pub fn run(data: &[u8]) {
    let _ = opens(data);
}

/// Runs an input; returns whether the damaged pool opens.
fn opens(data: &[u8]) -> bool {
    let mut input = Input(data);
    let disk = Memory(Arc::new(Mutex::new(vec![0; DISK])));
    make(&disk, &mut input);
    disk.with(|disk| damage(disk, &mut input));
    let mut pool = match Committer::open(disk.clone(), DISK as u64, 8) {
        Ok(pool) => pool,
        Err(why) => {
            assert!(!why.to_string().is_empty());
            return false;
        }
    };
    check(&pool.home.object().book);
    let names: Vec<String> = pool.usage().volumes.into_iter().map(|volume| volume.name).collect();
    for (number, name) in names.iter().enumerate().take(8) {
        // The name may be taken, or the metadata full.
        let _ = pool.clone_volume(&format!("clone {number}"), name);
    }
    check(&pool.home.object().book);
    let before = counted(&mut pool);
    drop(pool);
    let mut pool = Committer::open(disk, DISK as u64, 9).expect("it opens again");
    assert_eq!(counted(&mut pool), before, "an opening changes nothing");
    for volume in before.volumes {
        pool.delete_volume(&volume.name).expect("nobody uses it");
    }
    let usage = pool.usage();
    assert_eq!((usage.free, usage.credit), (usage.size, 0));
    true
}

#[cfg(test)]
mod tests {
    use sluice_functions::Random;

    #[test]
    fn damaged_pools_are_refused_or_whole() {
        let mut opened = 0;
        for seed in 0..150 {
            let mut random = Random::new(seed);
            let bytes: Vec<u8> = (0..random.below(600)).map(|_| random.next_u64() as u8).collect();
            opened += u32::from(super::opens(&bytes));
        }
        assert!((20..130).contains(&opened), "{opened} of 150 are opened");
        super::run(&[]);
    }
}
