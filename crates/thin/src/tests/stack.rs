//! Volumes with random commands of several hosts at a time, and the power fails in any write or flush.

use super::disk::{SECTOR, SharedDisk};
use super::rig::{COMMANDS, Volume};
use super::snapshots::Snapshots;
use crate::EXTENT;
use crate::committer::Committer;
use crate::layer::OnFull;
use sluice_command::{Operation, Request};
use sluice_functions::Random;
use sluice_nvme::Status;
use std::collections::HashMap;

const DISK: usize = 3 << 20;

/// Bytes that have one value together.
pub(super) const BLOCK: u64 = 16 << 10;

/// Blocks of a volume.
pub(super) const BLOCKS: u64 = 4 * 10;

/// Possible content of a block: a volume with the number of a write; none for zeros.
pub(super) type Value = Option<(u8, u32)>;

/// Command on its way.
#[derive(Clone, Copy, Debug)]
struct Flight {
    request: Request,
    /// Number of the write.
    write: u32,
    /// Number of the step in which the command began.
    began: u64,
}

/// A block as the host may read it.
#[derive(Clone, Debug)]
struct Block {
    /// Values that a power cut may leave: the durable one first, and all later ones.
    possible: Vec<(Value, u64)>,
}

/// A volume with its model.
pub(super) struct Drive {
    volume: Option<Volume>,
    pub(super) name: String,
    number: u8,
    blocks: Vec<Block>,
    flights: HashMap<usize, Flight>,
    /// Blocks with a command that changes them.
    changing: HashMap<u64, usize>,
}

pub(super) fn bytes(value: Value, length: usize) -> Vec<u8> {
    let Some((volume, write)) = value else { return vec![0; length] };
    let sector = |_| {
        let mut sector = [volume; SECTOR];
        sector[..4].copy_from_slice(&write.to_le_bytes());
        sector
    };
    (0..length / SECTOR).flat_map(sector).collect()
}

impl Drive {
    fn new(number: u8) -> Self {
        let blocks = vec![Block { possible: vec![(None, 0)] }; BLOCKS as usize];
        let (volume, flights, changing) = (None, HashMap::new(), HashMap::new());
        Self { volume, name: format!("volume {number}"), number, blocks, flights, changing }
    }

    fn open(&mut self, committer: &mut Committer<SharedDisk>, disk: &SharedDisk) {
        let opened = Volume::open(committer, disk, &self.name, BLOCKS * BLOCK, OnFull::Fail);
        match opened {
            Ok(volume) => self.volume = Some(volume),
            Err(why) => assert!(disk.lock().is_dead, "{why}"),
        }
    }

    /// Returns the newest value of each block.
    pub(super) fn values(&self) -> impl Iterator<Item = Value> + '_ {
        self.blocks.iter().map(|block| block.possible.last().expect("never empty").0)
    }

    /// Returns the values that commands under way give a block.
    pub(super) fn values_under_way(&self, block: u64) -> impl Iterator<Item = Value> + '_ {
        let flight = self.changing.get(&block).and_then(|place| self.flights.get(place));
        flight
            .into_iter()
            .map(|it| (it.request.operation == Operation::Write).then_some((self.number, it.write)))
    }

    /// Submits a random command on blocks that no other command changes.
    fn submit(&mut self, write: u32, step: u64, random: &mut Random) {
        let Some(volume) = &mut self.volume else { return };
        if volume.places.is_empty() {
            return;
        }
        let operation = *random.pick(&[
            Operation::Read,
            Operation::Read,
            Operation::Write,
            Operation::Write,
            Operation::Write,
            Operation::WriteZeroes,
            Operation::Deallocate,
            Operation::Flush,
        ]);
        let first = random.below(BLOCKS);
        let count = random.between(1, 13).min(BLOCKS - first);
        if (first..first + count).any(|block| self.changing.contains_key(&block)) {
            return;
        }
        let (mut offset, mut length) = (first * BLOCK, count * BLOCK);
        if operation == Operation::Flush {
            (offset, length) = (0, 0);
        }
        let fua = operation.modifies() && operation != Operation::Deallocate && random.below(4) == 0;
        let request = Request { operation, fua, offset, length, ..Request::default() };
        let data = bytes(Some((self.number, write)), length as usize);
        let place = volume.submit(request, &data);
        self.flights.insert(place, Flight { request, write, began: step });
        if operation.modifies() {
            self.changing.extend((first..first + count).map(|block| (block, place)));
        }
    }

    /// Checks ended commands against the model.
    fn check(&mut self, step: u64, is_dead: bool) {
        let Some(volume) = &mut self.volume else { return };
        for (place, request, status) in std::mem::take(&mut volume.ended) {
            volume.places.push(place);
            let flight = self.flights.remove(&place).expect("it was submitted");
            self.changing.retain(|_, of| *of != place);
            assert_eq!(request, flight.request, "the request comes back as it was");
            let is_full = status == Status::CAPACITY_EXCEEDED;
            assert!(status.is_success() || is_dead || is_full, "{request:?} ended with {status:?}");
            let blocks = request.offset / BLOCK..request.end() / BLOCK;
            let new: Value = (request.operation == Operation::Write).then_some((self.number, flight.write));
            match request.operation {
                Operation::Read if status.is_success() => {
                    let data = volume.data(place, request.length as usize);
                    for (block, data) in blocks.zip(data.chunks(BLOCK as usize)) {
                        let busy_before =
                            self.blocks[block as usize].possible.last().is_some_and(|it| it.1 > flight.began);
                        let now = self.blocks[block as usize].possible.last().expect("never empty").0;
                        if !busy_before && !self.changing.contains_key(&block) {
                            assert!(
                                data == bytes(now, data.len()),
                                "block {block} of {} is not {now:?}",
                                self.name
                            );
                        }
                    }
                }
                Operation::Flush if status.is_success() => {
                    for block in &mut self.blocks {
                        // Later values may be lost, and the newest one from before the flush may not.
                        let kept = block.possible.iter().rposition(|(_, at)| *at < flight.began).unwrap_or(0);
                        block.possible.drain(..kept);
                    }
                }
                Operation::Read | Operation::Flush => {}
                _ if status.is_success() => {
                    for block in blocks {
                        let possible = &mut self.blocks[block as usize].possible;
                        if request.fua {
                            possible.clear();
                        }
                        possible.push((new, step));
                    }
                }
                // A refused write may have changed nothing: extents are allocated before any byte is written.
                _ if is_full => {}
                _ => {
                    for block in blocks {
                        self.blocks[block as usize].possible.push((new, step));
                    }
                }
            }
        }
    }

    /// Forgets the volume after a power cut: commands under way may have been executed in part.
    fn lose(&mut self) {
        self.volume = None;
        for flight in std::mem::take(&mut self.flights).into_values() {
            let request = flight.request;
            if request.operation.modifies() {
                let new = (request.operation == Operation::Write).then_some((self.number, flight.write));
                for block in request.offset / BLOCK..request.end() / BLOCK {
                    self.blocks[block as usize].possible.push((new, u64::MAX));
                }
            }
        }
        self.changing.clear();
    }

    /// Reads all after a power cut: each sector has a possible value, which is durable then.
    fn reread(&mut self, committer: &mut Committer<SharedDisk>) {
        let volume = self.volume.as_mut().expect("it is open");
        for (number, block) in self.blocks.iter_mut().enumerate() {
            let request = Request { offset: number as u64 * BLOCK, length: BLOCK, ..Request::default() };
            let (status, data) = volume.run(committer, request, &[]).expect("it ends");
            assert_eq!(status, Status::SUCCESS);
            let possible: Vec<Vec<u8>> = block.possible.iter().map(|(it, _)| bytes(*it, SECTOR)).collect();
            for sector in data.chunks(SECTOR) {
                assert!(
                    possible.iter().any(|it| it == sector),
                    "block {number} of {} has {:x?}, and not one of {:?}",
                    self.name,
                    &sector[..8],
                    block.possible
                );
            }
            // One value again, so that later reads can be compared.
            let request = Request { operation: Operation::WriteZeroes, fua: true, ..request };
            let (status, _) = volume.run(committer, request, &[]).expect("it ends");
            assert_eq!(status, Status::SUCCESS);
            block.possible = vec![(None, 0)];
        }
    }
}

/// Accounts for each extent: it is free, or credit, or of one volume.
fn account(committer: &Committer<SharedDisk>) {
    let usage = committer.usage();
    let allocated: u64 = usage.volumes.iter().map(|volume| volume.allocated).sum();
    let book = committer.book();
    let mapped = (u64::from(book.extents()) - book.unmapped()) * EXTENT;
    assert!(if usage.volumes.len() > 3 { allocated >= mapped } else { allocated == mapped }, "{usage:?}");
    assert_eq!(usage.free + usage.credit + usage.bad + mapped, usage.size, "{usage:?}");
}

fn run(seed: u64, cuts: u64) -> u32 {
    let mut random = Random::new(seed);
    // The content of other tenants is everywhere on the disk.
    let disk = SharedDisk::new(2 * DISK, 1 << 20, 0xa5, random.split());
    let mut drives: Vec<Drive> = (1..=3).map(Drive::new).collect();
    let mut snapshots = Snapshots::default();
    // The pool grows to twice its size.
    let mut size = DISK as u64;
    let (mut write, mut step) = (0, 1);
    for cut in 0..=cuts {
        if cut < cuts {
            disk.lock().cut_after(random.below(120));
        }
        let mut is_open = false;
        if let Ok(mut committer) = Committer::open(disk.clone(), size, 3) {
            is_open = true;
            drives.iter_mut().for_each(|drive| drive.open(&mut committer, &disk));
            for _ in 0..4000 {
                if disk.lock().is_dead {
                    break;
                }
                (write, step) = (write + 1, step + 1);
                let number = random.below(3) as usize;
                let drive = &mut drives[number];
                match random.below(8) {
                    _ if random.below(60) == 0 => snapshots.order(&mut committer, number, drive),
                    _ if random.below(1000) == 0 => {
                        size = (size + random.below(9) * EXTENT).min(2 * DISK as u64);
                        committer.grow(size).expect("it grows");
                    }
                    _ if random.below(200) == 0 => snapshots.check_one(&mut committer, &disk),
                    0 | 1 => drive.submit(write, step, &mut random),
                    2 => drop(committer.turn()),
                    3 => drive.volume.iter_mut().for_each(Volume::poll),
                    _ => {
                        let _ = drive.volume.as_mut().is_some_and(|volume| volume.execute(&mut random));
                    }
                }
                let is_dead = disk.lock().is_dead;
                drives[number].check(step, is_dead);
                snapshots.follow(number, &drives[number]);
                if step.is_multiple_of(50) && !is_dead {
                    account(&committer);
                }
            }
        }
        assert!(is_open || disk.lock().is_dead, "only a power cut refuses a pool");
        drives.iter_mut().for_each(Drive::lose);
        disk.lock().restart();
        let opened = Committer::open(disk.clone(), size, 4);
        let mut committer = opened.unwrap_or_else(|why| panic!("seed {seed}: it loads: {why}"));
        snapshots.check_all(&mut committer, &disk);
        for drive in &mut drives {
            drive.open(&mut committer, &disk);
            drive.reread(&mut committer);
        }
        account(&committer);
        drives.iter_mut().for_each(Drive::lose);
        step += 1;
    }
    assert!(write > COMMANDS as u32);
    snapshots.made
}

#[test]
fn no_volume_ever_shows_the_bytes_of_another_one_nor_loses_durable_ones() {
    let seeds = std::env::var("SLUICE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(6);
    let made: u32 = (0..seeds).map(|seed| run(seed, 6)).sum();
    assert!(made > 0, "clones are made under commands");
}
