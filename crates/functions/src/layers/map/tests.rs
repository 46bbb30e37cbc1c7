use super::*;
use crate::{Kind, Random};
use sluice_command::{Limits, Origin, Request, Slab, Stack, StackBuilder};
use sluice_memory::SharedRegion;
use sluice_nvme::SubmissionEntry;
use std::collections::BTreeMap;
use std::sync::Mutex;

const BLOCK: u64 = 512;

/// BM-Store's table (section IV, figure 4): rows of eight entries with a base in bits 7:2 and an SSD in bits 1:0,
/// and for each row a byte with a bit for each valid entry.
struct PaperTable {
    entries: [[u8; 8]; 8],
    valid: [u8; 8],
}

impl PaperTable {
    /// Returns SSD and physical address by equations (1) to (4).
    fn find(&self, host: u64, chunk: u64) -> Option<(usize, u64)> {
        let entries_of_row = 8;
        let i = (host / chunk) / entries_of_row;
        let j = (host / chunk) % entries_of_row;
        let (row, is_valid) = (self.entries.get(i as usize)?, self.valid[i as usize] >> j & 1 == 1);
        let entry = row[j as usize];
        is_valid.then(|| (usize::from(entry & 0b11), u64::from(entry >> 2) * chunk + host % chunk))
    }

    fn to_map(&self, shift: u32) -> MapTable {
        let entries = self.entries.iter().zip(&self.valid).flat_map(|(row, valid)| {
            row.iter().enumerate().map(move |(at, entry)| {
                let chunk = MapChunk { target: usize::from(entry & 3), chunk: u64::from(entry >> 2) };
                (valid >> at & 1 == 1).then_some(chunk)
            })
        });
        MapTable::new(shift, entries)
    }
}

/// Checks addresses that were computed by hand from the equations, with chunks of 64 GiB.
#[test]
fn golden_vectors_of_the_paper() {
    const GIB: u64 = 1 << 30;
    let mut paper = PaperTable { entries: [[0; 8]; 8], valid: [0; 8] };
    paper.entries[0] = [0b0000_0000, 0b0000_0001, 0b0000_0110, 0b1111_1111, 0b0000_0100, 0, 0, 0];
    paper.entries[7][7] = 0b1010_1010;
    paper.valid[0] = 0b0000_1111;
    paper.valid[7] = 0b1000_0000;
    let map = paper.to_map(36);
    assert_eq!((map.chunk(), map.size()), (64 * GIB, 4096 * GIB));
    let vectors = [
        (0, Some((0, 0))),
        (64 * GIB - 1, Some((0, 64 * GIB - 1))),
        (64 * GIB, Some((1, 0))),
        (130 * GIB, Some((2, 66 * GIB))),
        (192 * GIB + 4096, Some((3, 4032 * GIB + 4096))),
        // Entry (0, 4) has contents, and is not valid.
        (256 * GIB, None),
        (512 * GIB, None),
        (4032 * GIB, Some((2, 2688 * GIB))),
        (4096 * GIB - 1, Some((2, 2752 * GIB - 1))),
        (4096 * GIB, None),
        (u64::MAX, None),
    ];
    for (host, expected) in vectors {
        assert_eq!(map.find(host), expected, "{host}");
        assert_eq!(paper.find(host, 64 * GIB), expected, "{host}");
    }
}

#[test]
fn any_table_of_the_paper_gives_its_addresses() {
    let mut random = Random::new(7);
    for _ in 0..200 {
        let mut paper = PaperTable { entries: [[0; 8]; 8], valid: [0; 8] };
        paper.entries.iter_mut().flatten().for_each(|it| *it = random.below(256) as u8);
        paper.valid.iter_mut().for_each(|it| *it = random.below(256) as u8);
        let shift = random.between(20, 40) as u32;
        let map = paper.to_map(shift);
        for _ in 0..200 {
            let host = random.below(66 << shift);
            assert_eq!(map.find(host), paper.find(host, 1 << shift), "{host} of {map:?}");
        }
    }
}

/// Requests that reached the targets.
type Log = Arc<Mutex<Vec<(usize, Request)>>>;

struct Target {
    number: usize,
    size: u64,
    log: Log,
    failing: Arc<Mutex<Option<u64>>>,
}

impl Layer for Target {
    fn name(&self) -> &'static str {
        "target"
    }

    fn characteristics(&self, _: &[Characteristics]) -> Characteristics {
        Characteristics::target(self.size, BLOCK as u32)
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let slot = lane.slot(&command);
        let bytes = if slot.request.has_data() { slot.request.length as usize } else { 0 };
        assert_eq!(slot.data.len_bytes(), bytes, "data and request differ");
        let mut log = self.log.lock().expect("not poisoned");
        log.push((self.number, slot.request));
        let fails = *self.failing.lock().expect("not poisoned") == Some(log.len() as u64);
        lane.finish(command, if fails { Status::WRITE_FAULT } else { Status::SUCCESS });
    }
}

struct Rig {
    stack: Stack,
    slab: Slab,
    memory: SharedRegion,
    log: Log,
    failing: Arc<Mutex<Option<u64>>>,
}

impl Rig {
    fn new(table: MapTable, targets: usize, size: u64) -> Self {
        let (log, failing) = (Log::default(), Arc::default());
        let mut builder = StackBuilder::new();
        let below: Vec<_> = (0..targets)
            .map(|number| {
                let (log, failing) = (Arc::clone(&log), Arc::clone(&failing));
                builder.add(Box::new(Target { number, size, log, failing }), &[]).expect("a target")
            })
            .collect();
        builder.add(Box::new(Map::new(Arc::new(table), targets)), &below).expect("a map");
        let stack = builder.build();
        let slab = Slab::new(Limits::new(4, stack.characteristics().fan_out)).expect("a slab");
        let memory = SharedRegion::new("map", 1 << 16).expect("memory");
        Self { stack, slab, memory, log, failing }
    }

    fn submit(&mut self, operation: Operation, offset: u64, length: u64) -> Status {
        let command = self.slab.admit(&SubmissionEntry::default(), Origin::default()).expect("room");
        let slot = self.slab.slot_mut(&command);
        slot.request = Request { operation, offset, length, ..Request::default() };
        if slot.request.has_data() {
            slot.data.push(self.memory.segment(0, length as u32)).expect("one segment");
        }
        self.stack.submit(self.stack.root(), command, &mut self.slab, 0);
        let mut done = Vec::new();
        self.stack.run_completions(&mut self.slab, 0, &mut done);
        let command = done.pop().expect("it is finished");
        let slot = self.slab.slot(&command);
        assert_eq!((slot.request.offset, slot.request.length), (offset, length), "as it was");
        let status = slot.status;
        self.slab.release(command);
        status
    }

    /// Returns the blocks that were reached since the last call, in order.
    fn blocks(&mut self) -> Vec<(usize, u64)> {
        let requests = std::mem::take(&mut *self.log.lock().expect("not poisoned"));
        let of = |(target, it): (usize, Request)| {
            (it.offset / BLOCK..it.end() / BLOCK).map(move |block| (target, block))
        };
        requests.into_iter().flat_map(of).collect()
    }
}

/// Returns a random table over targets of `per_target` chunks each, without a chunk twice.
fn any_table(random: &mut Random, shift: u32, targets: usize, per_target: u64) -> MapTable {
    let mut free: Vec<MapChunk> = (0..targets)
        .flat_map(|target| (0..per_target).map(move |chunk| MapChunk { target, chunk }))
        .collect();
    let in_order = random.one_in(3);
    let length = random.between(1, free.len() as u64 + 3);
    MapTable::new(
        shift,
        (0..length).map(|_| match free.is_empty() || random.one_in(6) {
            true => None,
            false if in_order => Some(free.remove(0)),
            false => Some(free.swap_remove(random.below(free.len() as u64) as usize)),
        }),
    )
}

/// Compares the blocks that commands reach with those of a simple model.
#[test]
fn commands_reach_the_blocks_of_the_model_or_none() {
    let mut random = Random::new(11);
    let (mut failed, mut crossed) = (0, 0);
    for _ in 0..300 {
        let shift = random.between(9, 12) as u32;
        let (targets, per_target) = (random.between(1, 4) as usize, random.between(1, 12));
        let table = any_table(&mut random, shift, targets, per_target);
        let blocks_of_chunk = (1 << shift) / BLOCK;
        let model: BTreeMap<u64, (usize, u64)> = (0..)
            .zip(table.entries())
            .filter_map(|(number, entry)| Some((number, entry?)))
            .flat_map(|(number, at): (u64, MapChunk)| {
                (0..blocks_of_chunk).map(move |block| {
                    (number * blocks_of_chunk + block, (at.target, at.chunk * blocks_of_chunk + block))
                })
            })
            .collect();
        let all = table.size() / BLOCK;
        let mut rig = Rig::new(table, targets, per_target << shift);
        for _ in 0..40 {
            let operation = *random.pick(&[
                Operation::Read,
                Operation::Write,
                Operation::WriteZeroes,
                Operation::Deallocate,
            ]);
            let first = random.below(all);
            let count = random.between(1, (all - first).min(64));
            let expected: Option<Vec<_>> =
                (first..first + count).map(|block| model.get(&block).copied()).collect();
            let status = rig.submit(operation, first * BLOCK, count * BLOCK);
            crossed += u32::from(count > blocks_of_chunk);
            match expected {
                Some(expected) => {
                    assert_eq!(status, Status::SUCCESS);
                    assert_eq!(rig.blocks(), expected, "{operation:?} {first} {count}");
                }
                None => {
                    failed += 1;
                    assert_eq!(status, unmapped(operation));
                    assert_eq!(rig.blocks(), [], "no part is executed");
                }
            }
        }
        assert_eq!(rig.submit(Operation::Flush, 0, 0), Status::SUCCESS);
        assert_eq!(rig.log.lock().expect("not poisoned").drain(..).count(), targets);
    }
    assert!(failed > 100 && crossed > 1000, "{failed} {crossed}");
}

#[test]
fn a_round_that_fails_is_the_last() {
    let chunk = |chunk| Some(MapChunk { target: (chunk % 2) as usize, chunk });
    let mut rig = Rig::new(MapTable::new(9, (0..40).map(chunk)), 2, 40 << 9);
    assert_eq!(rig.submit(Operation::Write, 0, 40 << 9), Status::SUCCESS);
    assert_eq!(rig.blocks().len(), 40);
    *rig.failing.lock().expect("not poisoned") = Some(12);
    assert_eq!(rig.submit(Operation::Write, 0, 40 << 9), Status::WRITE_FAULT);
    assert_eq!(rig.blocks().len(), 2 * PARTS, "the second round has ended, and no third begins");
}

fn options(keys: &str) -> MapOptions<u32> {
    serde_json::from_str(&format!("{{{keys}}}")).expect("options")
}

fn fault(keys: &str) -> String {
    let fault = options(keys).check().expect_err(keys);
    format!("{}: {} ({})", fault.at, fault.error, fault.hint.expect("a remedy"))
}

#[test]
fn automatic_tables_fill_and_spread() {
    let order = |keys: &str| {
        let options = options(keys);
        options.check().expect("it is right");
        options.table().entries().map(|it| it.map(|it| (it.target, it.chunk))).collect::<Vec<_>>()
    };
    let some = |of: &[(usize, u64)]| of.iter().map(|it| Some(*it)).collect::<Vec<_>>();
    let of = |place: &str| order(&format!(r#""layers": [1, 2], "place": "{place}", "counts": [2, 1, 3]"#));
    assert_eq!(of("fill"), some(&[(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2)]));
    assert_eq!(of("spread"), some(&[(0, 0), (1, 0), (2, 0), (0, 1), (2, 1), (2, 2)]));
    assert_eq!(order(r#""counts": [2]"#), some(&[(0, 0), (0, 1)]));
    assert_eq!(order(r#""chunks": [[0, 3], null, [], [0, 1]]"#), [Some((0, 3)), None, None, Some((0, 1))]);
    let text = serde_json::to_string(&options(r#""chunks": [[0, 3], null]"#)).expect("it is written");
    assert_eq!(text, r#"{"chunk":68719476736,"chunks":[[0,3],[]]}"#);
}

#[test]
fn wrong_options_are_refused_with_key_and_remedy() {
    for size in ["512KiB", "3MiB", "0B", "1000000000B"] {
        let words = fault(&format!(r#""chunk": "{size}", "counts": [1]"#));
        assert!(words.starts_with("chunk: ") && words.contains("power of two from 1MiB"), "{words}");
    }
    for (keys, at, words) in [
        (r#""chunks": [[0, 1], [0, 2], [0, 1]]"#, "chunks: ", "entries 0 and 2 are both chunk 1 of target 0"),
        (r#""chunks": [[1, 0]]"#, "chunks: ", "entry 0 names target 1 (use targets 0 to 0"),
        (r#""chunks": [[18446744073709551615, 0]]"#, "chunks: ", "entry 0 names target"),
        (r#""chunks": [[0, 18446744073709551615]]"#, "chunks: ", "entry 0 is chunk 18446744073709551615"),
        (r#""chunks": []"#, "chunks: ", "the drive has no chunk"),
        (r#""chunks": [[0, 0]], "place": "fill""#, "place: ", "remove one of both"),
        (r#""chunks": [[0, 0]], "counts": [1]"#, "counts: ", "remove one of both"),
        ("", "counts: ", "such as counts = [8]"),
        (r#""counts": [1, 1]"#, "counts: ", "2 counts, but 1 targets"),
        (r#""counts": [1, 1], "layers": [1]"#, "place: ", "use place = "),
        (r#""counts": [65537]"#, "counts: ", "are too many"),
        (r#""counts": [18446744073709551615]"#, "counts: ", "are too many"),
        (r#""chunk": "4611686018427387904B", "counts": [3]"#, "counts: ", "are too many"),
    ] {
        let found = fault(keys);
        assert!(found.starts_with(at) && found.contains(words), "{keys}: {found}");
    }
    // The shape of wrong options takes no more memory than that of right ones.
    let wrong: MapOptions<u32> = options(r#""counts": [18446744073709551615, 18446744073709551615]"#);
    assert!(wrong.shape().is_composed);
    assert!(serde_json::from_str::<MapOptions<u32>>(r#"{"chunks": [[1]]}"#).is_err());
}

#[test]
fn chunks_lie_in_their_targets() {
    let check = |keys: &str, sizes: &[u64]| {
        let (groups, devices) = (crate::Groups::default(), crate::Devices::default());
        let (commands_max, transfer_max) = (1, 1);
        let cx = crate::OpenCx { drive: "d", commands_max, transfer_max, groups: &groups, devices: &devices };
        let options = options(keys);
        options
            .open(&cx)
            .expect("it opens")
            .check_sizes(sizes)
            .map_err(|it| format!("{}: {} ({})", it.at, it.error, it.hint.expect("a remedy")))
    };
    const MIB: u64 = 1 << 20;
    let table = r#""chunk": "1MiB", "layers": [1], "chunks": [[0, 1], [], [1, 2]]"#;
    assert_eq!(check(table, &[2 * MIB, 3 * MIB]), Ok(()));
    let found = check(table, &[2 * MIB, 3 * MIB - 1]).expect_err("it is too small");
    assert_eq!(
        found,
        "chunks: entry 2 is chunk 2 of target 1, which has 2 chunks of 1MiB (use chunks 0 to 1 of it, or make it larger)"
    );
    let found = check(table, &[0, 3 * MIB]).expect_err("it has no size");
    assert!(found.contains("use smaller chunks, or a larger target"), "{found}");
    let found = check(r#""chunk": "1MiB", "counts": [3]"#, &[2 * MIB]).expect_err("it is too small");
    assert!(found.starts_with("counts: entry 2 is chunk 2"), "{found}");
}

/// Checks that Sanitize, which could not end with success, is not offered over holes.
#[test]
fn a_table_with_holes_cannot_be_erased() {
    let chunk = |chunk| MapChunk { target: 0, chunk };
    for (last, keeps) in [(Some(chunk(1)), false), (None, true)] {
        let table = MapTable::new(9, [Some(chunk(0)), last]);
        let layer = Map::new(Arc::new(table), 1);
        assert_eq!(layer.characteristics(&[Characteristics::target(1 << 20, 512)]).keeps_versions, keeps);
    }
}
