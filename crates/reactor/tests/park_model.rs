//! Every interleaving of going to sleep and receiving work, as far as the C11 memory model allows it. The
//! interleavings are explored by loom on the functions that the reactor (`park`) and the controller
//! (`sluice_memory::doorbell`) run.
//!
//! A lost wake-up shows as a deadlock: the sleeper waits for a notification that is never sent.

use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use sluice_memory::doorbell::{SharedWord, publish, request_rings, suppress_rings};
use sluice_reactor::park::{ContestedWord, ParkFlag};

struct Word(AtomicU32);

impl SharedWord for Word {
    fn read(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    fn write(&self, value: u32) {
        self.0.store(value, Ordering::Release);
    }

    fn full_barrier() {
        fence(Ordering::SeqCst);
    }
}

impl ContestedWord for Word {
    fn replace(&self, from: u32, to: u32) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// A word without the barrier, in which the model must find a lost wake-up.
struct Careless(Word);

impl SharedWord for Careless {
    fn read(&self) -> u32 {
        self.0.read()
    }

    fn write(&self, value: u32) {
        self.0.write(value);
    }

    fn full_barrier() {}
}

impl ContestedWord for Careless {
    fn replace(&self, from: u32, to: u32) -> bool {
        self.0.replace(from, to)
    }
}

/// Source of a sleeper's wake-up: an eventfd, or a message on a socket. A notification stays set until it is
/// read.
struct Notifier {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Notifier {
    fn new() -> Self {
        Self { rung: Mutex::new(false), changed: Condvar::new() }
    }

    fn ring(&self) {
        *self.rung.lock().expect("not poisoned") = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().expect("not poisoned");
        while !*rung {
            rung = self.changed.wait(rung).expect("not poisoned");
        }
        *rung = false;
    }
}

trait New: ContestedWord + Send + Sync + 'static {
    fn new(value: u32) -> Self;
}

impl New for Word {
    fn new(value: u32) -> Self {
        Self(AtomicU32::new(value))
    }
}

impl New for Careless {
    fn new(value: u32) -> Self {
        Self(Word::new(value))
    }
}

/// Checks a mailbox: `senders` threads leave one mail each; the reader sleeps whenever it finds none, until
/// it has all.
fn mailbox<W: New>(senders: u32) {
    struct Mailbox<W> {
        mails: AtomicU32,
        park: ParkFlag<W>,
        notifier: Notifier,
    }
    let park = ParkFlag::new(W::new(0));
    let mailbox = Arc::new(Mailbox { mails: AtomicU32::new(0), park, notifier: Notifier::new() });
    for _ in 0..senders {
        let mailbox = Arc::clone(&mailbox);
        thread::spawn(move || {
            mailbox.mails.fetch_add(1, Ordering::Release);
            if mailbox.park.must_wake() {
                mailbox.notifier.ring();
            }
        });
    }
    let mut read = 0;
    while read < senders {
        mailbox.park.announce_sleep();
        if mailbox.mails.load(Ordering::Acquire) == 0 {
            mailbox.notifier.wait();
        }
        mailbox.park.withdraw();
        read += mailbox.mails.swap(0, Ordering::AcqRel);
    }
}

/// A shadow doorbell with its event index. The device's side has seen `value`.
struct Doorbell<W> {
    shadow: W,
    event_index: W,
}

impl<W: New> Doorbell<W> {
    fn new(value: u32) -> Self {
        let doorbell = Self { shadow: W::new(value), event_index: W::new(0) };
        suppress_rings(&doorbell.event_index, value);
        doorbell
    }

    /// Publishes a value as the host, and rings if it must.
    fn publish(&self, new: u16, notifier: &Notifier) {
        if publish(&self.shadow, &self.event_index, new) {
            notifier.ring();
        }
    }
}

/// Checks several queues. A host publishes the tails of `queues` in the order of `moves`, and rings where it
/// must. The device polls all of its queues, sleeps when none has a new tail, and ends with the last tails.
fn shadow_doorbells<W: New, const QUEUES: usize>(moves: &'static [(usize, u16)]) {
    let queues: [Doorbell<W>; QUEUES] = std::array::from_fn(|_| Doorbell::new(0));
    let shared = Arc::new((queues, Notifier::new()));
    let host = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            let (queues, notifier) = &*shared;
            moves.iter().for_each(|&(queue, tail)| queues[queue].publish(tail, notifier));
        })
    };
    let (queues, notifier) = &*shared;
    let mut last = [0; QUEUES];
    moves.iter().for_each(|&(queue, tail)| last[queue] = u32::from(tail));
    let look = || std::array::from_fn(|queue| queues[queue].shadow.read());
    let mut seen: [u32; QUEUES] = look();
    while seen != last {
        request_rings(queues.iter().map(|queue| &queue.event_index).zip(seen));
        if look() == seen {
            notifier.wait();
        }
        queues.iter().zip(seen).for_each(|(queue, seen)| suppress_rings(&queue.event_index, seen));
        seen = look();
    }
    host.join().expect("the host runs through");
}

/// Checks a device whose entry waits because the completion queue is full. The host releases a slot and
/// submits one more entry, in either order. The device sleeps when it can take none, and ends when it has
/// taken both.
///
/// The event index requests a doorbell for a move of the tail beyond the entries that were *taken*. One more
/// entry behind the waiting one does not pass it: the head wakes the device.
fn full_completion_queue<W: New>(submits_first: bool) {
    let shared = Arc::new((Doorbell::<W>::new(1), Doorbell::<W>::new(0), Notifier::new()));
    let host = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            let (tail, head, notifier) = &*shared;
            if submits_first {
                tail.publish(2, notifier);
                head.publish(2, notifier);
            } else {
                head.publish(2, notifier);
                tail.publish(2, notifier);
            }
        })
    };
    let (tail, head, notifier) = &*shared;
    let (mut taken, mut released) = (0, 0);
    // Like the controller, the model reads the head only if it has an entry and no free slot.
    let mut look = |taken| {
        tail.shadow.read() != taken && {
            if released == 0 {
                released = head.shadow.read();
            }
            released != 0
        }
    };
    while taken != 2 {
        while look(taken) {
            taken += 1;
        }
        if taken == 2 {
            break;
        }
        request_rings([(&tail.event_index, taken), (&head.event_index, 0)]);
        if !look(taken) {
            notifier.wait();
        }
        suppress_rings(&tail.event_index, taken);
    }
    host.join().expect("the host runs through");
}

/// Runs a model with too many interleavings to explore all: those with at most three preemptions, which find
/// almost every race there is.
fn bounded(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn no_mail_is_slept_through() {
    loom::model(|| mailbox::<Word>(1));
    bounded(|| mailbox::<Word>(2));
}

#[test]
fn no_tail_is_slept_through() {
    loom::model(|| shadow_doorbells::<Word, 1>(&[(0, 1)]));
    bounded(|| shadow_doorbells::<Word, 1>(&[(0, 1), (0, 2)]));
    // A queue of three entries, whose tail wraps.
    bounded(|| shadow_doorbells::<Word, 1>(&[(0, 2), (0, 0), (0, 1)]));
}

#[test]
fn one_barrier_is_enough_for_all_queues() {
    bounded(|| shadow_doorbells::<Word, 2>(&[(1, 1)]));
    bounded(|| shadow_doorbells::<Word, 2>(&[(0, 1), (1, 1)]));
    bounded(|| shadow_doorbells::<Word, 2>(&[(1, 1), (0, 1), (1, 2)]));
}

#[test]
fn no_head_is_slept_through() {
    bounded(|| full_completion_queue::<Word>(true));
    bounded(|| full_completion_queue::<Word>(false));
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_barrier_a_mail_is_slept_through() {
    loom::model(|| mailbox::<Careless>(1));
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_barrier_a_tail_is_slept_through() {
    loom::model(|| shadow_doorbells::<Careless, 1>(&[(0, 1)]));
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_barrier_the_tail_of_the_second_queue_is_slept_through() {
    bounded(|| shadow_doorbells::<Careless, 2>(&[(1, 1)]));
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_barrier_a_head_is_slept_through() {
    bounded(|| full_completion_queue::<Careless>(true));
}
