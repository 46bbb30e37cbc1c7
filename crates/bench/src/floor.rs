//! The floor: the speed of two cores when a command costs only its 64-byte entry, its 16-byte completion and
//! its doorbells.
//!
//! One thread is the host, one the device. In a turn the host takes all completions, fills up to the queue
//! depth, and rings each doorbell once. The device copies every new entry and writes a completion for it.
//!
//! Absolute figures of two cores differ by a factor of eight between machines, and on a virtual machine
//! between seconds. So a measurement means something only beside a floor taken just before and just after it.

use super::cores::{self, CoreShare, Cores};
use super::tally::rate;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

/// Entries of a ring.
const ENTRIES: usize = 1024;

/// Turns of the host between two readings of the clock, in all its queues together.
const TURNS_PER_LOOK: usize = 4096;

/// Bit of the phase tag in the second half of a completion.
const PHASE_SHIFT: u32 = 48;

#[derive(Default)]
#[repr(align(64))]
struct Entry([AtomicU64; 8]);

#[derive(Default)]
#[repr(align(16))]
struct Completion([AtomicU64; 2]);

/// A pair of doorbells in one cache line, as in a controller with the usual stride.
#[derive(Default)]
#[repr(align(4096))]
struct Doorbells {
    sq_tail: AtomicU32,
    cq_head: AtomicU32,
}

struct Queue {
    entries: Vec<Entry>,
    completions: Vec<Completion>,
    doorbells: Box<Doorbells>,
}

impl Queue {
    fn new() -> Self {
        Self {
            entries: (0..ENTRIES).map(|_| Entry::default()).collect(),
            completions: (0..ENTRIES).map(|_| Completion::default()).collect(),
            doorbells: Box::default(),
        }
    }
}

/// A position in a ring of completions: the index, and the phase of a new entry.
struct Position {
    index: usize,
    phase: u64,
}

impl Position {
    const START: Position = Position { index: 0, phase: 1 };

    #[inline]
    fn advance(&mut self) {
        self.index = (self.index + 1) % ENTRIES;
        self.phase ^= u64::from(self.index == 0);
    }
}

/// Result of one run of the floor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Floor {
    /// Commands per second.
    pub rate: f64,
    /// The share of its core that the thread with less of it had.
    pub core_share: f64,
}

impl Floor {
    /// Combines two halves of the same length.
    pub fn and(self, other: Floor) -> Floor {
        Floor {
            rate: f64::midpoint(self.rate, other.rate),
            core_share: self.core_share.min(other.core_share),
        }
    }
}

/// Runs the floor with `queues` queues of `depth`.
pub fn measure(depth: u32, queues: u32, time: Duration, cores: &Cores) -> Floor {
    let queues: Vec<Queue> = (0..queues).map(|_| Queue::new()).collect();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let device = scope.spawn(|| {
            cores::pin(cores.reactor);
            serve(&queues, &stop)
        });
        let mut hosts: Vec<Host> = queues.iter().map(|queue| Host::new(queue, depth)).collect();
        meet(&mut hosts);
        let share = CoreShare::begin();
        let rate = drive(&mut hosts, time);
        let share = share.end();
        stop.store(true, Relaxed);
        // The thread cannot panic; if it did, it had nothing of its core.
        Floor { rate, core_share: share.min(device.join().unwrap_or(0.0)) }
    })
}

/// Runs the device's thread. Returns the share of its core that the thread had.
fn serve(queues: &[Queue], stop: &AtomicBool) -> f64 {
    let mut devices: Vec<Device> = queues.iter().map(Device::new).collect();
    let share = CoreShare::begin();
    while !stop.load(Relaxed) {
        devices.iter_mut().for_each(Device::turn);
    }
    black_box(devices.iter().fold(0, |sum, device| sum ^ device.sum));
    share.end()
}

/// Waits until the device runs: in a short run, the time to start a thread is too much.
fn meet(hosts: &mut [Host<'_>]) {
    while hosts.iter().any(|host| host.done == 0) {
        hosts.iter_mut().for_each(Host::turn);
    }
}

/// Runs the hosts for `time`. Returns the commands per second.
fn drive(hosts: &mut [Host<'_>], time: Duration) -> f64 {
    let turns = (TURNS_PER_LOOK / hosts.len().max(1)).max(1);
    let before = done(hosts);
    let start = Instant::now();
    let elapsed = loop {
        for _ in 0..turns {
            hosts.iter_mut().for_each(Host::turn);
        }
        let elapsed = start.elapsed();
        if elapsed >= time {
            break elapsed;
        }
    };
    rate(done(hosts) - before, elapsed)
}

fn done(hosts: &[Host<'_>]) -> u64 {
    hosts.iter().map(|host| host.done).sum()
}

struct Device<'a> {
    queue: &'a Queue,
    head: usize,
    tail: Position,
    /// Checksum of the entries, so that none of them goes unread.
    sum: u64,
}

impl<'a> Device<'a> {
    fn new(queue: &'a Queue) -> Self {
        Self { queue, head: 0, tail: Position::START, sum: 0 }
    }

    #[inline]
    fn turn(&mut self) {
        let tail = self.queue.doorbells.sq_tail.load(Acquire) as usize;
        if self.head == tail {
            return spin_loop();
        }
        while self.head != tail {
            let entry = &self.queue.entries[self.head].0;
            let first = entry[0].load(Relaxed);
            self.sum ^= entry[1..].iter().fold(first, |sum, word| sum ^ word.load(Relaxed));
            let cid = first >> 16 & 0xffff;
            let high = cid << 32 | self.tail.phase << PHASE_SHIFT | self.head as u64;
            let completion = &self.queue.completions[self.tail.index].0;
            completion[0].store(0, Relaxed);
            completion[1].store(high, Release);
            self.tail.advance();
            self.head = (self.head + 1) % ENTRIES;
        }
    }
}

struct Host<'a> {
    queue: &'a Queue,
    depth: u32,
    tail: usize,
    head: Position,
    in_flight: u32,
    done: u64,
}

impl<'a> Host<'a> {
    fn new(queue: &'a Queue, depth: u32) -> Self {
        Self { queue, depth, tail: 0, head: Position::START, in_flight: 0, done: 0 }
    }

    #[inline]
    fn turn(&mut self) {
        let reaped = self.reap();
        if self.in_flight < self.depth {
            self.fill();
            self.queue.doorbells.sq_tail.store(self.tail as u32, Release);
        }
        if reaped > 0 {
            self.queue.doorbells.cq_head.store(self.head.index as u32, Release);
        }
    }

    #[inline]
    fn reap(&mut self) -> u32 {
        let before = self.in_flight;
        while self.in_flight > 0 {
            let high = self.queue.completions[self.head.index].0[1].load(Acquire);
            if high >> PHASE_SHIFT & 1 != self.head.phase {
                break;
            }
            self.head.advance();
            self.in_flight -= 1;
            self.done += 1;
        }
        before - self.in_flight
    }

    #[inline]
    fn fill(&mut self) {
        while self.in_flight < self.depth {
            let tail = self.tail as u64;
            let words = [2 | tail << 16, 1, 0, 0x1000, 0, self.done, 7, tail];
            for (word, value) in self.queue.entries[self.tail].0.iter().zip(words) {
                word.store(value, Relaxed);
            }
            self.tail = (self.tail + 1) % ENTRIES;
            self.in_flight += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_halves_make_a_whole() {
        let half = |rate, core_share| Floor { rate, core_share };
        assert_eq!(half(100.0, 1.0).and(half(300.0, 0.75)), half(200.0, 0.75));
    }

    #[test]
    fn what_is_submitted_comes_back_once_around_the_ring_and_more() {
        let queue = Queue::new();
        let (mut host, mut device) = (Host::new(&queue, 100), Device::new(&queue));
        for round in 0..25 {
            host.turn();
            assert_eq!((host.done, host.in_flight), (round * 100, 100));
            device.turn();
        }
        assert_eq!(host.reap(), 100);
        assert_eq!(queue.doorbells.sq_tail.load(Relaxed) as usize, host.tail);
    }
}
