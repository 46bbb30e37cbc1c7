//! Fuzzing of tables with any content under right checksums.

use super::LocalCache;
use super::format::{self, BLOCK, Entry, Geometry, NO_LINE, Superblock};
use super::settings::Settings;
use sluice_command::Operation;
use sluice_memory::{Buffers, SharedRegion};
use sluice_nvme::Status;
use sluice_uif::{Below, Direct, Effect, Options};

const LINE: u64 = 16 << 10;
const DRIVE: usize = 5 * LINE as usize + 4096;
const DEVICE: usize = 12 * LINE as usize;
const ARENA: usize = 5 << 20;
/// Bytes of an input that describe an entry, or damage.
const ORDER: usize = 8;
/// Most requests of an opening and an order.
const STEPS_MAX: usize = 4000;

/// Makes a device as the input determines, and opens it. It is refused, or its dirty sectors are written inside of the
/// drive, and the next opening finds none.
pub fn run(input: &[u8]) {
    let mut device = vec![0x33; DEVICE];
    let (head, orders) = input.split_at(input.len().min(ORDER));
    let number = |at: usize| u64::from(head.get(at).copied().unwrap_or_default());
    let line = LINE << (number(0) % 2);
    let geometry = Geometry { id: 7, line, slots: 8 + (number(1) % 4) as u32 };
    let superblock =
        Superblock { geometry, sequence: number(2) << (number(5) % 64), storage: number(3).into() };
    device[..2 * BLOCK].fill(0);
    let copy = (number(4) % 2) as usize * BLOCK;
    format::write_superblock(&mut device[copy..copy + BLOCK], &superblock);
    let mut entries = [Entry { line: NO_LINE, dirty: 0 }; 16];
    let mut damage = Vec::new();
    for order in orders.chunks_exact(ORDER) {
        let slot = usize::from(order[1]) % entries.len();
        match order[0] % 4 {
            0 => damage.push(order),
            1 => entries[slot].line = u64::from(order[2]) << (order[3] % 64),
            _ => {
                let sectors = u128::from(order[2]) << (order[3] % 32);
                entries[slot] = Entry { line: u64::from(order[4] % 7), dirty: sectors };
            }
        }
    }
    let at = geometry.block_at(0, (number(6) % 2) as u8) as usize;
    format::write_block(&mut device[at..at + BLOCK], 7, 0, number(7) + 1, entries.into_iter());
    for order in damage {
        let place = (usize::from(order[2]) << 8 | usize::from(order[3])) % (DEVICE - 4);
        device[place..place + 4].copy_from_slice(&order[4..]);
    }
    let mut drive = vec![0; DRIVE];
    if open(&mut drive, &mut device) == Status::SUCCESS {
        let before = drive.clone();
        assert_eq!(open(&mut drive, &mut device), Status::SUCCESS, "it is opened again");
        assert!(drive == before, "all dirty data was on the drive");
    }
}

/// Opens the device, and writes all dirty data to the drive. Returns the status with which the function starts.
fn open(drive: &mut [u8], device: &mut [u8]) -> Status {
    let options = [("mode", "write-back"), ("line", "16KiB")];
    let options = Options::new(options.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let settings = Settings::of(&options).expect("they are good ones");
    let mut function = Direct::new(Box::new(LocalCache::new(settings)), ARENA);
    let mut memory = Buffers::new(SharedRegion::new("arena", ARENA).expect("memory"));
    for (number, size) in [DRIVE, DEVICE].into_iter().enumerate() {
        let layer = Below { size: size as u64, block_size: 512, atomic: 512, id: 3, is_new: false };
        function.set_layer(number, layer);
    }
    let mut now_ns = 1;
    function.start(&mut memory, now_ns);
    let mut ready = None;
    for _ in 0..STEPS_MAX {
        match function.take_effect() {
            Some(Effect::Ready(status)) if status == Status::SUCCESS && ready.is_none() => {
                ready = Some(status);
                assert_eq!(function.order("flush", false, &mut memory, now_ns), None);
            }
            Some(Effect::Ready(status)) => return status,
            Some(Effect::Request { tag, layer, request, data_offset }) => {
                let disk = if layer == 0 { &mut *drive } else { &mut *device };
                let place = request.offset as usize..request.end() as usize;
                let place = disk.get_mut(place).expect("requests lie inside of the layers");
                let bytes = memory.bytes(data_offset as usize, place.len()).expect("inside of the arena");
                match request.operation {
                    Operation::Read => bytes.copy_from_slice(place),
                    Operation::Write => place.copy_from_slice(bytes),
                    _ => assert_eq!(request.length, 0, "a Flush"),
                }
                function.done(tag, Status::SUCCESS, &mut memory, now_ns);
            }
            Some(Effect::Translate(_)) => {}
            None => {
                if let Some(answer) = function.take_answer() {
                    let status = answer.expect("nothing fails");
                    assert!(status.contains("\"dirty_bytes\":0,"), "{status}");
                    return Status::SUCCESS;
                }
                now_ns = function.alarm_ns().unwrap_or(now_ns) + 1;
                function.expire(&mut memory, now_ns);
            }
        }
    }
    panic!("it neither serves nor refuses");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    #[test]
    fn no_table_leads_outside_or_is_written_twice() {
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let length = random.below(100) as usize;
            let input: Vec<u8> = (0..length).map(|_| random.next_u64() as u8).collect();
            run(&input);
        }
    }

    /// Checks that inputs reach the places: a dirty sector is written to the drive.
    #[test]
    fn a_dirty_sector_is_written_to_the_drive() {
        let (mut drive, mut device) = (vec![0; DRIVE], vec![0; DEVICE]);
        let geometry = Geometry { id: 7, line: LINE, slots: 8 };
        format::write_superblock(&mut device[..BLOCK], &Superblock { geometry, sequence: 5, storage: 3 });
        let entries = [Entry { line: NO_LINE, dirty: 0 }, Entry { line: 2, dirty: 0b110 }];
        let at = geometry.block_at(0, 1) as usize;
        format::write_block(&mut device[at..at + BLOCK], 7, 0, 9, entries.into_iter());
        let slot = geometry.slot_at(1) as usize;
        device[slot..slot + LINE as usize].fill(0x5a);
        assert_eq!(open(&mut drive, &mut device), Status::SUCCESS);
        let first = 2 * LINE as usize + 512;
        assert!(drive[first..first + 1024].iter().all(|byte| *byte == 0x5a));
        assert_eq!(drive.iter().filter(|byte| **byte != 0).count(), 1024);
    }
}
