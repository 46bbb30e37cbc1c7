//! Fuzzing of logs with damage that their checksums do not show.

use crate::log::{BLOCK, LOG_MIN, sign};
use crate::{Begun, Config, Ended, MEMBERS_MAX, Members, Mirror, Step};

const SIZE: u64 = 64 << 10;
const MEMBERS: usize = 3;
const LOG: usize = LOG_MIN as usize;
/// Blocks of a half that the short history of [`write`] can reach.
const REACHED: usize = 10;
/// Operations of a history.
const ORDERS: usize = 16;
/// Limit of steps; a set that needs more until it is idle never ends.
const STEPS_MAX: u32 = 20_000;

const CONFIG: Config = Config {
    members: MEMBERS,
    size: SIZE,
    region_bytes: 4096,
    log_bytes: LOG_MIN,
    piece_bytes: 2048,
    rate: 1 << 20,
    promotes: true,
    id: 7,
    storage: [0; MEMBERS_MAX],
    // The log is blank at first.
    new: Members(0b111),
};

/// Writes a log, damages it as the input determines, and loads it. Either the log is refused with a message,
/// or the set issues no step outside of the drive and becomes idle, with every member current.
pub fn run(input: &[u8]) {
    let (orders, damage) = input.split_at(input.len().min(ORDERS));
    let mut log = vec![0; LOG];
    write(&mut log, orders);
    let mut signed = true;
    for patch in damage.chunks_exact(8) {
        let place = usize::from(u16::from_le_bytes([patch[0], patch[1]])) % (REACHED * BLOCK - 3);
        let half = usize::from(patch[2] & 1) * LOG / 2;
        log[half + place..][..4].copy_from_slice(&patch[4..]);
        signed &= patch[3] != 1;
    }
    if signed {
        log.chunks_mut(LOG / 2).for_each(|half| sign(&mut half[..(REACHED + 1) * BLOCK]));
    }
    let mut set = Set::open(&mut log);
    set.rest(0);
    match set.ready.take().expect("it was read") {
        Err(words) => {
            assert!(!words.is_empty() && words.len() < 400, "{words:.400}");
            // An operator may now choose a member.
            if set.mirror.asks() {
                assert!(set.mirror.copy_from(MEMBERS).is_err());
                set.mirror.copy_from(1).expect("it is a member");
                set.rest(STEPS_MAX);
                assert_eq!(set.ready.take(), Some(Ok(())));
                assert_eq!(set.mirror.status().current, Members::first(MEMBERS));
            }
        }
        Ok(()) => {
            set.mirror.bring_back(Members::first(MEMBERS), false);
            set.write(0, Members::NONE);
            set.rest(STEPS_MAX);
            let status = set.mirror.status();
            assert_eq!((status.current, status.dirty_bytes), (Members::first(MEMBERS), 0), "{status:?}");
        }
    }
}

/// Writes a log with a history: one operation for each byte of `orders`.
fn write(log: &mut [u8], orders: &[u8]) {
    let mut set = Set::open(log);
    set.rest(0);
    for order in orders {
        let (member, block) = (usize::from(order >> 3) % MEMBERS, u64::from(order >> 4));
        match order % 8 {
            0 => set.mirror.lose(member),
            1 => set.mirror.bring_back(Members::first(MEMBERS), order & 8 != 0),
            2 => drop(set.mirror.take_out(member)),
            3 => set.rest(STEPS_MAX),
            4 => set.write(block, Members::one(member)),
            _ => set.write(block, Members::NONE),
        }
        set.rest(0);
    }
}

/// Set whose members fail only where a test requests it.
struct Set<'a> {
    mirror: Mirror,
    log: &'a mut [u8],
    ready: Option<Result<(), String>>,
    now_ns: u64,
    /// Members on which the write in flight fails.
    failing: Members,
}

impl<'a> Set<'a> {
    fn open(log: &'a mut [u8]) -> Self {
        let mirror = Mirror::new(CONFIG).expect("a shape that can be");
        Self { mirror, log, ready: None, now_ns: 0, failing: Members::NONE }
    }

    /// Writes a block, which fails on some members.
    fn write(&mut self, block: u64, failing: Members) {
        self.failing = failing;
        let bytes = block % (SIZE / 512) * 512;
        if let (write, Begun::Go(to)) = self.mirror.begin(bytes..bytes + 512)
            && let Ended::Good | Ended::Failed = self.mirror.end(write, failing.and(to))
        {
            return;
        }
        self.rest(0);
    }

    /// Performs steps until there are none. Then advances the clock at most `times` times, as long as the set
    /// has an alarm and is not idle.
    fn rest(&mut self, times: u32) {
        for turn in 0.. {
            let mut steps = 0;
            while let Some(step) = self.mirror.next(self.now_ns) {
                self.perform(step);
                steps += 1;
                assert!(steps < STEPS_MAX, "it never ends");
            }
            let status = self.mirror.status();
            let rests = status.current == status.members && status.dirty_bytes == 0;
            let Some(alarm_ns) = self.mirror.alarm_ns().filter(|_| turn < times && !rests) else { break };
            self.now_ns = alarm_ns.max(self.now_ns + 1000);
        }
    }

    fn perform(&mut self, step: Step) {
        let inside = |offset: u64, length: u64| {
            assert!(
                length > 0 && offset.checked_add(length).is_some_and(|end| end <= SIZE),
                "{offset} {length}"
            );
        };
        match step {
            Step::Ready(outcome) => self.ready = Some(outcome),
            Step::ReadLog { offset, length } => {
                let bytes = self.log[offset as usize..][..length].to_vec();
                self.mirror.log_read(Some(&bytes));
            }
            Step::WriteLog { offset } => {
                let bytes = self.mirror.log_bytes();
                self.log[offset as usize..][..bytes.len()].copy_from_slice(bytes);
                self.mirror.log_written(true, self.now_ns);
            }
            Step::Flush { member } => {
                assert!(member < MEMBERS);
                self.mirror.flushed(member, true);
            }
            Step::Copy { from, to, offset, length } => {
                inside(offset, length);
                assert!(!to.is_empty() && !to.contains(from) && Members::first(MEMBERS).covers(to));
                assert!(self.mirror.status().current.contains(from), "it is copied from one that has it all");
                self.mirror.copied(Members::NONE, self.now_ns);
            }
            Step::Compare { offset, length, .. } => {
                inside(offset, length);
                self.mirror.compared(Some(true), self.now_ns);
            }
            Step::Go { write, to } => {
                assert!(Members::first(MEMBERS).covers(to));
                let _ = self.mirror.end(write, self.failing.and(to));
            }
            Step::Over { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_sim::Random;

    #[test]
    fn damage_that_checksums_do_not_show_is_refused_or_lived_with() {
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let mut input: Vec<u8> = (0..ORDERS).map(|_| random.next_u64() as u8).collect();
            for _ in 0..random.below(6) {
                let words = if random.one_in(2) { 40 } else { 10 * 1024 };
                let word = random.below(words) as u16;
                let value = if random.one_in(2) { random.below(70) } else { random.next_u64() } as u32;
                input.extend((word * 4).to_le_bytes());
                input.extend([random.below(2) as u8, 0]);
                input.extend(value.to_le_bytes());
            }
            run(&input);
        }
    }

    /// Checks a crash found by fuzzing: a record that changes the generation of member 251.
    #[test]
    fn a_member_that_cannot_be_is_in_no_set() {
        assert!(!Members::first(8).contains(251));
        run(&[
            0x05, 0x45, 0x04, 0xc5, 0x85, 0x03, 0x0d, 0x00, 0x25, 0x95, 0x02, 0x55, 0x01, 0x15, 0x03, 0xe5,
            0x31, 0x20, 0x00, 0xf6, 0xfb, 0xfd, 0x00, 0x00, 0xfb, 0xfb, 0xfb, 0xfb, 0xfb, 0xfb, 0xfb, 0xfb,
            0xfb, 0xfb, 0xfb, 0xfb, 0xfb, 0xfb, 0xfb, 0xfb, 0xfb, 0xfb, 0xfb, 0x00, 0x0f, 0x00, 0x00, 0x00,
            0x29, 0x20, 0x01, 0x00, 0xff, 0xff, 0xff, 0x7f,
        ]);
    }

    /// Checks a hang found by fuzzing: a region needs several ticks, and no alarm followed the first.
    #[test]
    fn a_set_that_is_left_alone_becomes_clean() {
        let mut log = vec![0; LOG];
        write(&mut log, &[3]);
        let mut set = Set::open(&mut log);
        set.rest(0);
        set.write(0, Members::NONE);
        assert!(set.mirror.status().dirty_bytes > 0);
        set.rest(STEPS_MAX);
        assert_eq!(set.mirror.status().dirty_bytes, 0);
    }

    #[test]
    fn a_log_that_nobody_damaged_is_loaded_and_one_that_was_is_noticed() {
        let mut log = vec![0; LOG];
        write(&mut log, &[5, 0x45, 4, 0xc5]);
        let (mut whole, mut spoilt) = (log.clone(), log);
        sign(&mut whole[..(REACHED + 1) * BLOCK]);
        spoilt[BLOCK] ^= 1;
        spoilt[LOG / 2 + BLOCK] ^= 1;
        for (log, damaged) in [(&mut whole, false), (&mut spoilt, true)] {
            let mut set = Set::open(log);
            set.rest(0);
            // Without the log, the newest member is unknown.
            assert_eq!(set.ready.as_ref().map(Result::is_err), Some(damaged));
        }
    }
}
