//! A hostile guest and a hostile classifier on one part of a device, whose other part has another user.
//!
//! Two daemons: below, a drive on a file; above, the two drives that share it. The attack must not change or
//! read the other guest's blocks and memory. The same holds for blocks that no drive has.

use crate::common::{Daemon, LIMIT, namespace};
use crate::programs::compile;
use sluice_functions::Random;
use sluice_host::{Controller, Deadline, DmaBuffer, QueueLayout, QueuePair, entry};
use sluice_nvme::{SubmissionEntry, opcode};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const BLOCK: usize = 512;

/// Blocks of the device. The hostile drive has two paths, each with blocks of its own and unused blocks
/// behind them.
const NEIGHBOUR: Range<usize> = 0..8000;
const HOSTILE: [Range<usize>; 2] = [8000..12_000, 14_000..18_000];
const NOBODY: [Range<usize>; 2] = [12_000..14_000, 18_000..32_768];

/// Number of bytes that the hostile guest shares with its drive.
const MEMORY: usize = 1 << 20;
/// Number of commands of one attack.
const COMMANDS: u64 = 1500;
const IN_FLIGHT: u32 = 48;

/// Marks at the beginning of every eight bytes of the neighbour and of the attacker, which no writer makes by
/// accident.
const SECRET: u32 = 0x5ec2_e757;
const POISON: u32 = 0x0bad_0bad;

/// Source of a classifier that steers anywhere and answers with anything, most of it possible.
const STEERING: &str = r#"
static __u64 state = SEED;

static __always_inline __u64 next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

SEC("classifier")
sluice_verdict steer(struct sluice_context *ctx)
{
    __u64 dice = next();

    if (dice & 1)
        ctx->slba = dice & 2 ? next() : ctx->capacity - 64 + next() % 128;
    if (dice & 4)
        ctx->blocks = next() >> (32 + (dice >> 60));
    if (dice & 8)
        ctx->skip = next() >> (32 + (dice >> 59));
    if (dice & 16) {
        ctx->hints = next();
        ctx->target = next();
        ctx->fua = next();
    }
    if ((dice >> 8 & 31) == 0)
        return next();
    if (ctx->hook != SLUICE_HOOK_SUBMISSION && dice & 32)
        return SLUICE_COMPLETE(ctx->status);
    return SLUICE_ALL(SLUICE_FIRST_ERROR) | SLUICE_START(1 + (dice >> 16) % 3) |
           (dice & 64 ? SLUICE_CALL_AT(1 + (dice >> 24) % 3) : 0);
}
"#;

fn marked(mark: u32, seed: u32, length: usize) -> Vec<u8> {
    let word = |n: u32| u64::from(mark) | u64::from(n.wrapping_mul(0x9e37_79b9) ^ seed) << 32;
    (0..length as u32 / 8).flat_map(|n| word(n).to_le_bytes()).collect()
}

fn holds(bytes: &[u8], mark: u32) -> bool {
    let mark = mark.to_le_bytes();
    bytes.windows(4).any(|window| window == mark)
}

/// The hostile guest: a driver that keeps to no rule.
struct Attacker {
    random: Random,
    queue: QueuePair,
    memory: DmaBuffer,
    /// Memory that is mapped and unmapped while commands name it.
    fleeting: Option<DmaBuffer>,
    /// Number of writes that succeeded.
    written: u64,
    /// Flag for each command identifier, set if the command is a Write.
    writes: Vec<bool>,
}

impl Attacker {
    fn new(guest: &mut Controller, seed: u64) -> Self {
        let memory = guest.memory().allocate(MEMORY).expect("memory");
        let queue = guest.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
        let writes = vec![false; 128];
        Self { random: Random::new(seed), queue, memory, fleeting: None, written: 0, writes }
    }

    /// Sends commands until [`COMMANDS`] of them have come back, with any status.
    fn rage(&mut self, guest: &Controller) {
        let deadline = Deadline::after(LIMIT, "the end of an attack");
        let mut back = 0;
        poison(&mut self.random, &self.memory, 0..MEMORY);
        while back < COMMANDS || self.queue.in_flight() > 0 {
            while back < COMMANDS && self.queue.in_flight() < IN_FLIGHT {
                let command = self.command();
                let cid = self.queue.submit(command).expect("room");
                self.writes[usize::from(cid)] = command.opcode == opcode::io::WRITE;
            }
            self.queue.ring().expect("rung");
            // Lists and data change under the commands whose doorbell was just rung.
            let page = self.random.below(MEMORY as u64 / 4096) as usize * 4096;
            poison(&mut self.random, &self.memory, page..page + 4096);
            if self.random.one_in(100) {
                self.fleeting = Some(guest.memory().allocate(64 << 10).expect("memory"));
            }
            let Self { queue, writes, written, .. } = self;
            back += queue.reap(|completion| {
                let is_write = writes[usize::from(completion.cid)];
                *written += u64::from(is_write && completion.status().is_success());
            }) as u64;
            deadline.check().expect("in time");
        }
    }

    fn command(&mut self) -> SubmissionEntry {
        let random = &mut self.random;
        if random.one_in(8) {
            // An honest guest's Write gives the program something to misdirect.
            let blocks = random.between(1, 8) as u32;
            let slba = random.below(HOSTILE[0].len() as u64 - 8);
            let page = self.memory.iova() + (random.below(MEMORY as u64) & !0xfff);
            return SubmissionEntry { dptr: [page, 0], ..entry::write(1, slba, blocks) };
        }
        let most = *random.pick(&[8, 64, 2048, 65_536]);
        let blocks = random.between(1, most) as u32;
        let size = HOSTILE[0].len() as u64;
        let slba = match random.below(5) {
            0 => random.next_u64(),
            // The end overflows, counted in blocks, and in the next case in bytes.
            1 => u64::MAX - random.below(u64::from(blocks) + 2),
            2 => (1 << 55) - random.below(100),
            3 => size - random.below(100),
            _ => random.below(2 * size),
        };
        let mut entry = match random.below(8) {
            0 | 1 => entry::read(1, slba, blocks),
            2..5 => entry::write(1, slba, blocks),
            5 => entry::write_zeroes(1, slba, blocks, random.one_in(2)),
            6 => entry::deallocate(1, random.between(1, 256) as u32),
            _ => SubmissionEntry { opcode: random.next_u64() as u8, ..entry::compare(1, slba, blocks) },
        };
        entry.dptr = [self.address() & !3, self.address() & !0xfff];
        if self.random.one_in(4) {
            // An SGL descriptor of any type: data, segment, last segment or an invalid one; of the right
            // length or any.
            let kind = self.random.below(16) << 60;
            let length =
                if self.random.one_in(2) { u64::from(blocks) * 512 } else { self.random.below(1 << 32) };
            entry.flags = 1 << 6;
            entry.dptr[1] = kind | length;
        }
        if self.random.one_in(10) {
            entry.nsid = self.random.next_u64() as u32 >> self.random.below(32);
        }
        entry
    }

    /// Returns an address in the guest's memory, or one where it has none.
    fn address(&mut self) -> u64 {
        let random = &mut self.random;
        match random.below(8) {
            0 => foreign(random),
            1 => random.next_u64(),
            // The transfer runs over the end of the memory.
            2 => self.memory.iova() + MEMORY as u64 - random.below(4096),
            3 => self.fleeting.as_ref().map_or(0, |fleeting| fleeting.iova() + random.below(64 << 10)),
            _ => self.memory.iova() + random.below(MEMORY as u64),
        }
    }
}

/// Returns an address where the other guest has its memory, or where the device sees the memory of both.
fn foreign(random: &mut Random) -> u64 {
    match random.below(3) {
        0 => (1 << 32) + (random.below(1 << 12) << 12),
        1 => (random.between(1, 3) << 40) + (random.below(1 << 8) << 12),
        _ => (random.between(1, 3) << 40) + (1 << 36) + (random.below(1 << 10) << 12),
    }
}

/// Fills some memory with the attacker's mark. Every third page is a list of pages: the attacker's own, and
/// those of others.
fn poison(random: &mut Random, memory: &DmaBuffer, range: Range<usize>) {
    for page in range.step_by(4096) {
        let mut bytes = marked(POISON, random.next_u64() as u32, 4096);
        if random.one_in(3) {
            for word in bytes.chunks_exact_mut(8) {
                let target = match random.one_in(3) {
                    true => foreign(random),
                    false => memory.iova() + (random.below(MEMORY as u64) & !0xfff),
                };
                word.copy_from_slice(&target.to_le_bytes());
            }
        }
        memory.region().write(page, &bytes);
    }
}

/// Runs the neighbour, which reads back its writes until `stop`. Returns the data that its blocks have to
/// hold then.
fn work(mut guest: Controller, stop: &AtomicBool) -> Vec<u8> {
    // No command of the neighbour ever names this memory.
    let guarded = guest.memory().allocate(MEMORY).expect("memory");
    let guard = marked(SECRET, 77, MEMORY);
    guarded.region().write(0, &guard);
    let mut disk = namespace(&mut guest, 1);
    let mut model = marked(SECRET, 1, NEIGHBOUR.len() * BLOCK);
    disk.write(0, &model).expect("written");
    let mut random = Random::new(3);
    for round in 2.. {
        let [to, from] = [(); 2].map(|()| random.below(NEIGHBOUR.len() as u64 - 64) as usize);
        let data = marked(SECRET, round, 64 * BLOCK);
        disk.write(to as u64, &data).expect("written");
        model[to * BLOCK..][..data.len()].copy_from_slice(&data);
        let mut back = vec![0; 64 * BLOCK];
        disk.read(from as u64, &mut back).expect("read");
        assert!(back == model[from * BLOCK..][..back.len()], "round {round}");
        if round > 20 && stop.load(Relaxed) {
            break;
        }
    }
    let mut bytes = vec![0; MEMORY];
    guarded.region().read(0, &mut bytes);
    assert!(bytes == guard, "somebody wrote into memory that no command named");
    model
}

/// Returns the keys of a range of the device.
fn range(socket: &str, blocks: &Range<usize>) -> String {
    let (first, count) = (blocks.start, blocks.len());
    format!("nvme = {{ vfio_user = \"{socket}\", first_block = {first}, blocks = {count} }}")
}

fn upper(lower: &Daemon) -> Daemon {
    let socket = lower.socket("disk").display().to_string();
    let [neighbour, first, second] =
        [&NEIGHBOUR, &HOSTILE[0], &HOSTILE[1]].map(|blocks| range(&socket, blocks));
    Daemon::start(&format!(
        "[[drive]]\nname = \"neighbour\"\n[[drive.namespace]]\ntarget = \"nvme\"\n{neighbour}\n\
         [[drive]]\nname = \"hostile\"\n[[drive.namespace]]\ntarget = \"nvme\"\n{first}\n\
         paths = [ {{ name = \"other\", target = \"nvme\", {second} }} ]\n"
    ))
}

fn attack(seed: u64) {
    let lower = Daemon::start(
        "[[drive]]\nname = \"disk\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"disk.img\"\nsize = \"16MiB\"\n",
    );
    let upper = upper(&lower);
    let source = format!("#define SEED {}ull\n{STEERING}", seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let object = compile(upper.folder.path(), "steer", &source).display().to_string();
    upper.ok(&["classifier", "attach", "hostile", &object]);

    let stop = AtomicBool::new(false);
    let (neighbour, mut guest) = (upper.host("neighbour"), upper.host("hostile"));
    let mut attacker = Attacker::new(&mut guest, seed);
    let model = std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(neighbour, &stop));
        attacker.rage(&guest);
        stop.store(true, Relaxed);
        worker.join().expect("the neighbour was served, and read what it wrote")
    });

    let image = std::fs::read(lower.folder.path().join("disk.img")).expect("the image");
    let of = |blocks: &Range<usize>| &image[blocks.start * BLOCK..blocks.end * BLOCK];
    assert!(of(&NEIGHBOUR) == model, "seed {seed}: the neighbour's blocks");
    for blocks in &NOBODY {
        assert!(of(blocks).iter().all(|byte| *byte == 0), "seed {seed}: nobody's blocks");
    }
    for blocks in &HOSTILE {
        assert!(!holds(of(blocks), SECRET), "seed {seed}: a secret on the hostile drive");
    }
    // The blocks do not prove that a write succeeded: the attacker may have zeroed them again.
    assert!(attacker.written > 0, "seed {seed}: the attack never got anywhere");
    let mut stolen = vec![0; MEMORY];
    attacker.memory.region().read(0, &mut stolen);
    assert!(!holds(&stolen, SECRET), "seed {seed}: a secret in the hostile guest's memory");
    // Both daemons still answer.
    assert!(upper.ok(&["drive", "list"]).contains("neighbour"));
    assert!(lower.ok(&["drive", "list"]).contains("disk"));
}

#[test]
fn a_hostile_guest_and_its_classifier_stay_in_their_part_of_the_device() {
    (1..=3).for_each(attack);
}
