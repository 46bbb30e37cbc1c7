//! Fuzzing of logs with any content under right checksums.

use super::Atomic;
use super::format::{self, BLOCK, Entry, Geometry, Superblock};
use sluice_command::Operation;
use sluice_memory::{Buffers, SharedRegion};
use sluice_nvme::Status;
use sluice_uif::{Below, Direct, Effect};

const LIMIT: u64 = 4096;
const SLOTS: u32 = 6;
const DATA: usize = 32 << 10;
const LOG: usize = 2 * BLOCK + SLOTS as usize * (BLOCK + LIMIT as usize);
const ARENA: usize = 5 << 20;
/// Bytes of an input that describe an entry, or damage.
const ORDER: usize = 8;
/// Most requests of an opening.
const STEPS_MAX: usize = 100;

/// Makes a log as the input determines, and opens it. It is refused, or its entries are written inside of the
/// drive, and the next opening writes nothing.
pub fn run(input: &[u8]) {
    let mut log = vec![0; LOG];
    let (head, orders) = input.split_at(input.len().min(ORDER));
    let number = |at: usize| u64::from(head.get(at).copied().unwrap_or_default());
    let geometry = Geometry { id: 7, limit: LIMIT * (1 + number(0) % 2), slots: 1 + (number(1) % 7) as u32 };
    let superblock =
        Superblock { geometry, watermark: number(2) << (number(5) % 64), storage: number(3).into() };
    let copy = (number(4) % 2) as usize * BLOCK;
    format::write_superblock(&mut log[copy..copy + BLOCK], &superblock);
    for order in orders.chunks_exact(ORDER) {
        apply(&mut log, &geometry, order);
    }
    let mut data = vec![0; DATA];
    if open(&mut data, &mut log) == Status::SUCCESS {
        let before = data.clone();
        assert_eq!(open(&mut data, &mut log), Status::SUCCESS, "it is opened again");
        assert!(data == before, "all entries are durable at their places");
    }
}

/// Writes an entry, or other bytes.
fn apply(log: &mut [u8], geometry: &Geometry, order: &[u8]) {
    let slot = u32::from(order[1]) % SLOTS;
    let at = geometry.slot_at(slot) as usize;
    let bytes = at..(at + geometry.slot_bytes()).min(log.len());
    match order[0] % 4 {
        0 => {
            let place = (usize::from(order[2]) << 8 | usize::from(order[3])) % (LOG - 4);
            log[place..place + 4].copy_from_slice(&order[4..]);
        }
        _ if bytes.len() == geometry.slot_bytes() => {
            let length = 512 * (1 + u32::from(order[2]) % (geometry.limit as u32 / 512));
            let sequence = u64::from(order[3]) << (order[6] % 64);
            let offset = (u64::from(order[4]) * 512) << (order[7] % 64);
            log[bytes.start + BLOCK..bytes.end].fill(order[5]);
            format::seal(&mut log[bytes], geometry.id, &Entry { sequence, slot, offset, length });
        }
        _ => {}
    }
}

/// Opens the log. Returns the status with which the function starts.
fn open(data: &mut [u8], log: &mut [u8]) -> Status {
    let (statuses, _) = run_slowly(data, log, 0);
    *statuses.first().expect("it serves or refuses")
}

/// Opens the log on layers whose requests take so long each, until no request is left. Returns the statuses with which the
/// function is ready, and the requests behind the first of them.
fn run_slowly(data: &mut [u8], log: &mut [u8], step_ns: u64) -> (Vec<Status>, Vec<Operation>) {
    let (mut statuses, mut later) = (Vec::new(), Vec::new());
    let mut now_ns = 1;
    let mut function = Direct::new(Box::new(Atomic::new(LIMIT)), ARENA);
    let mut memory = Buffers::new(SharedRegion::new("arena", ARENA).expect("memory"));
    for (number, size) in [DATA, LOG].into_iter().enumerate() {
        let layer = Below { size: size as u64, block_size: 512, atomic: 512, id: 3, is_new: false };
        function.set_layer(number, layer);
    }
    function.start(&mut memory, now_ns);
    for _ in 0..STEPS_MAX {
        match function.take_effect() {
            Some(Effect::Ready(status)) => statuses.push(status),
            Some(Effect::Request { tag, layer, request, data_offset }) => {
                let disk = if layer == 0 { &mut *data } else { &mut *log };
                let place = request.offset as usize..request.end() as usize;
                let place = disk.get_mut(place).expect("requests lie inside of the layers");
                let bytes = memory.bytes(data_offset as usize, place.len()).expect("inside of the arena");
                match request.operation {
                    Operation::Read => bytes.copy_from_slice(place),
                    Operation::Write => place.copy_from_slice(bytes),
                    _ => assert_eq!(request.length, 0, "a Flush"),
                }
                now_ns += step_ns;
                later.extend((!statuses.is_empty()).then_some(request.operation));
                function.done(tag, Status::SUCCESS, &mut memory, now_ns);
            }
            Some(Effect::Translate(_)) => {}
            None => return (statuses, later),
        }
    }
    panic!("it has no end");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    #[test]
    fn no_log_leads_outside_or_is_written_twice() {
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let length = random.below(120) as usize;
            let input: Vec<u8> = (0..length).map(|_| random.next_u64() as u8).collect();
            run(&input);
        }
    }

    /// Checks that inputs reach the places: an entry of the log is written.
    #[test]
    fn an_entry_is_written_to_its_place() {
        let (mut data, mut log) = (vec![0; DATA], vec![0; LOG]);
        let geometry = Geometry { id: 7, limit: LIMIT, slots: SLOTS };
        format::write_superblock(&mut log[..BLOCK], &Superblock { geometry, watermark: 5, storage: 3 });
        apply(&mut log, &geometry, &[1, 2, 1, 9, 4, 0x5a, 0, 0]);
        apply(&mut log, &geometry, &[1, 3, 1, 4, 0, 0x77, 0, 0]);
        assert_eq!(open(&mut data, &mut log), Status::SUCCESS);
        assert_eq!(data.iter().filter(|byte| **byte == 0x5a).count(), 1024);
        assert!(data[2048..3072].iter().all(|byte| *byte == 0x5a) && !data.contains(&0x77));
    }

    /// Opens a log on slow layers: the function is announced when its log is checked, and not at the end.
    #[test]
    fn a_long_recovery_is_announced_before_its_end() {
        for (seconds, is_long) in [(1, false), (5, true)] {
            let (mut data, mut log) = (vec![0; DATA], vec![0; LOG]);
            let geometry = Geometry { id: 7, limit: LIMIT, slots: SLOTS };
            format::write_superblock(&mut log[..BLOCK], &Superblock { geometry, watermark: 5, storage: 3 });
            apply(&mut log, &geometry, &[1, 2, 1, 9, 4, 0x5a, 0, 0]);
            let (statuses, later) = run_slowly(&mut data, &mut log, seconds * 1_000_000_000);
            assert_eq!(statuses, [Status::SUCCESS]);
            let rest: &[Operation] = &[Operation::Read, Operation::Write, Operation::Flush, Operation::Write];
            assert_eq!(later, if is_long { rest } else { &[] });
            assert_eq!(data.iter().filter(|byte| **byte == 0x5a).count(), 1024);
        }
    }
}
