//! Every interleaving of going to sleep and being given work, as far as the C11 memory model allows
//! them, explored by loom on the functions that the reactor (`park`) and the controller
//! (`sluice_memory::doorbell`) run.
//!
//! A lost wake-up shows as a deadlock: the sleeper waits for a bell that nobody rings.

use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use sluice_memory::doorbell::{SharedWord, publish, request_rings, suppress_rings};
use sluice_reactor::park::{Bed, ContestedWord};

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

/// The same without the barrier: what the model must find fault with.
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

/// What a sleeper waits for: an eventfd, or a message on a socket. It stays rung until it is heard.
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
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

/// `senders` threads leave one mail each; the reader sleeps whenever it finds none, until it has all.
fn mailbox<W: New>(senders: u32) {
    struct Mailbox<W> {
        mails: AtomicU32,
        bed: Bed<W>,
        bell: Bell,
    }
    let bed = Bed::new(W::new(0));
    let mailbox = Arc::new(Mailbox { mails: AtomicU32::new(0), bed, bell: Bell::new() });
    for _ in 0..senders {
        let mailbox = Arc::clone(&mailbox);
        thread::spawn(move || {
            mailbox.mails.fetch_add(1, Ordering::Release);
            if mailbox.bed.must_wake() {
                mailbox.bell.ring();
            }
        });
    }
    let mut read = 0;
    while read < senders {
        mailbox.bed.lie_down();
        if mailbox.mails.load(Ordering::Acquire) == 0 {
            mailbox.bell.wait();
        }
        mailbox.bed.get_up();
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

    /// Host: moves it, and rings if it must.
    fn publish(&self, new: u16, bell: &Bell) {
        if publish(&self.shadow, &self.event_index, new) {
            bell.ring();
        }
    }
}

/// A host publishes the tails of `queues` as `moves` say, one after the other, and rings when told to; the
/// device looks at all of its queues, sleeps when there is nothing new in any, and ends with the last tails.
fn shadow_doorbells<W: New, const QUEUES: usize>(moves: &'static [(usize, u16)]) {
    let queues: [Doorbell<W>; QUEUES] = std::array::from_fn(|_| Doorbell::new(0));
    let shared = Arc::new((queues, Bell::new()));
    let host = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            let (queues, bell) = &*shared;
            moves.iter().for_each(|&(queue, tail)| queues[queue].publish(tail, bell));
        })
    };
    let (queues, bell) = &*shared;
    let mut last = [0; QUEUES];
    moves.iter().for_each(|&(queue, tail)| last[queue] = u32::from(tail));
    let look = || std::array::from_fn(|queue| queues[queue].shadow.read());
    let mut seen: [u32; QUEUES] = look();
    while seen != last {
        request_rings(queues.iter().map(|queue| &queue.event_index).zip(seen));
        if look() == seen {
            bell.wait();
        }
        queues.iter().zip(seen).for_each(|(queue, seen)| suppress_rings(&queue.event_index, seen));
        seen = look();
    }
    host.join().expect("the host runs through");
}

/// An entry waits because the completion queue is full. The host releases a slot and submits one more entry,
/// in either order; the device sleeps when it can take none, and ends when it has taken both.
///
/// The event index asks for a move of the tail beyond what was *taken*, which one beyond what waits does not
/// pass: it is the head that wakes the device.
fn full_completion_queue<W: New>(submits_first: bool) {
    let shared = Arc::new((Doorbell::<W>::new(1), Doorbell::<W>::new(0), Bell::new()));
    let host = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            let (tail, head, bell) = &*shared;
            if submits_first {
                tail.publish(2, bell);
                head.publish(2, bell);
            } else {
                head.publish(2, bell);
                tail.publish(2, bell);
            }
        })
    };
    let (tail, head, bell) = &*shared;
    let (mut taken, mut released) = (0, 0);
    // Like the controller, it reads the head only if it has an entry and knows of no slot.
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
            bell.wait();
        }
        suppress_rings(&tail.event_index, taken);
    }
    host.join().expect("the host runs through");
}

/// For models with too many interleavings to see all: those with at most three preemptions, which find
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
