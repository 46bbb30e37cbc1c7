//! Verified load on drives that move between two reactors.

use super::*;

/// Commands of a drive at a time. Each has blocks of its own.
const LANES: usize = 4;

/// Bytes of a block, and blocks of a lane.
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 256;

/// Most blocks of a command.
const COMMAND_BLOCKS: u64 = 40;

/// Outcomes of all loads.
#[derive(Debug, Default)]
struct Counts {
    done: u64,
    refused: u64,
    faults: Vec<String>,
}

#[derive(Clone, Copy)]
struct Running {
    operation: Operation,
    first: u64,
    count: u64,
    stamp: u64,
}

/// Commands without end, whose results are verified.
pub(super) struct Load {
    drive: u64,
    random: u64,
    stamp: u64,
    /// Stamp of each block; zero for zeros.
    stamps: Vec<u64>,
    running: [Option<Running>; LANES],
    stops: bool,
    counts: Arc<Mutex<Counts>>,
}

impl Load {
    fn new(drive: u64, counts: &Arc<Mutex<Counts>>) -> Self {
        let stamps = vec![0; LANES * BLOCKS as usize];
        let (random, counts) = (drive + 1, Arc::clone(counts));
        Self { drive, random, stamp: 0, stamps, running: [None; LANES], stops: false, counts }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % bound
    }

    /// Returns the words of a block with this stamp.
    fn word(&self, block: u64, stamp: u64) -> u64 {
        if stamp == 0 { 0 } else { stamp << 24 | block << 8 | self.drive }
    }

    pub(super) fn has_work(&self) -> bool {
        !self.stops && self.running.iter().any(Option::is_none)
    }

    pub(super) fn turn(&mut self, host: &mut Host) -> usize {
        let ended = std::mem::take(&mut host.ended);
        for &(lane, status) in &ended {
            self.check(lane, status, &host.memory);
        }
        for lane in 0..LANES {
            if !self.stops && self.running[lane].is_none() {
                self.start(lane, host);
            }
        }
        ended.len()
    }

    fn start(&mut self, lane: usize, host: &mut Host) {
        let count = 1 + self.below(COMMAND_BLOCKS);
        let (first, count) = match self.below(8) {
            0 => (lane as u64 * BLOCKS, BLOCKS),
            _ => (lane as u64 * BLOCKS + self.below(BLOCKS - count), count),
        };
        let operation = match self.below(10) {
            _ if count == BLOCKS => Operation::Deallocate,
            0 => Operation::Deallocate,
            1 => Operation::WriteZeroes,
            2..=5 => Operation::Read,
            _ => Operation::Write,
        };
        self.stamp += 1;
        let at = lane << 20;
        for block in first..first + count {
            let place = at + ((block - first) * BLOCK) as usize;
            match operation {
                Operation::Write => {
                    let word = self.word(block, self.stamp).to_le_bytes();
                    host.memory.fill(place, BLOCK as usize, 0x77);
                    host.memory.write(place, &word);
                    host.memory.write(place + BLOCK as usize - 8, &word);
                }
                _ if operation == Operation::Read => host.memory.fill(place, BLOCK as usize, 0xee),
                _ => {}
            }
        }
        let twice = self.running[lane].replace(Running { operation, first, count, stamp: self.stamp });
        assert!(twice.is_none());
        let (offset, length) = (first * BLOCK, count * BLOCK);
        host.submit(lane, Request { operation, offset, length, ..Request::default() }, at);
    }

    fn check(&mut self, lane: usize, status: Status, memory: &SharedRegion) {
        let counts = Arc::clone(&self.counts);
        let mut counts = counts.lock().expect("no test panics with it");
        let Some(Running { operation, first, count, stamp }) = self.running[lane].take() else {
            return counts.faults.push(format!("drive {}: a command of lane {lane} ends twice", self.drive));
        };
        counts.done += 1;
        match (operation, status) {
            (Operation::Write, Status::CAPACITY_EXCEEDED) => return counts.refused += 1,
            (_, Status::SUCCESS) => {}
            _ => counts.faults.push(format!("drive {}: {operation:?}: {status:?}", self.drive)),
        }
        for block in first..first + count {
            let place = (lane << 20) + ((block - first) * BLOCK) as usize;
            match operation {
                Operation::Write => self.stamps[block as usize] = stamp,
                Operation::Read => {
                    let expected = self.word(block, self.stamps[block as usize]).to_le_bytes();
                    for at in [place, place + BLOCK as usize - 8] {
                        let mut found = [0; 8];
                        memory.read(at, &mut found);
                        if found != expected {
                            let drive = self.drive;
                            counts
                                .faults
                                .push(format!("drive {drive}, block {block}: {found:x?} for {expected:x?}"));
                        }
                    }
                }
                _ => self.stamps[block as usize] = 0,
            }
        }
    }
}

/// Moves drives `SLUICE_MOVES` times, 200 times if that is not set.
#[test]
fn drives_move_under_verified_load_and_nothing_is_lost() {
    const DRIVES: u64 = 8;
    let moves = std::env::var("SLUICE_MOVES").ok().and_then(|moves| moves.parse().ok()).unwrap_or(200);
    let reactors = [reactor("first"), reactor("second")];
    // A sixth of the memory that the drives write to.
    let extents = DRIVES * LANES as u64 * BLOCKS * BLOCK / EXTENT / 6;
    let pool = MemoryPool::start(&reactors[0], extents * EXTENT).expect("memory");
    let counts = Arc::new(Mutex::new(Counts::default()));
    let size = LANES as u64 * BLOCKS * BLOCK;
    let drives: Vec<_> = (0..DRIVES)
        .map(|drive| Drive::new(&pool, &reactors[drive as usize % 2], size, Some(Load::new(drive, &counts))))
        .collect();
    for step in 0..moves {
        let task = &drives[step * 5 % drives.len()].task;
        let other = usize::from(task.reactor().is(&reactors[0]));
        task.move_to(&reactors[other], MOVE_LIMIT).expect("the drive moves");
        if step == moves / 3 || step == moves / 2 {
            reactors[usize::from(step == moves / 2)]
                .mail(|_| thread::sleep(Duration::from_secs(1)))
                .expect("room");
        }
    }
    let done = || counts.lock().expect("no test panics with it").done;
    let before = done();
    wait_for("further work", || done() > before + 1_000);
    for drive in &drives {
        drive.call(|host| host.load.as_mut().expect("a load").stops = true);
    }
    for drive in &drives {
        wait_for("the end of all commands", || drive.call(|host| host.slab.in_flight() == 0));
    }
    drives.into_iter().for_each(Drive::delete);
    wait_for("the return of all extents", || free(&pool) == extents);
    pool.remove().expect("it is not in use");
    let counts = counts.lock().expect("no test panics with it");
    assert_eq!(counts.faults, [""; 0]);
    assert!(counts.refused > 0 && counts.refused < counts.done / 2, "{counts:?}");
    println!("{moves} moves, {} commands, {} refused", counts.done, counts.refused);
}
