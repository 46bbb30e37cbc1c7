//! Every interleaving of going to sleep and being given work, as far as the C11 memory model allows
//! them, explored by loom on the functions the reactor and the controller use.
//!
//! A lost wake-up shows as a deadlock: the sleeper waits for a bell that nobody rings.

use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use sluice_reactor::park::{Bed, SharedWord, arm_event_index, publish_tail};

struct Word(AtomicU32);

impl SharedWord for Word {
    fn read(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    fn write(&self, value: u32) {
        self.0.store(value, Ordering::Release);
    }

    fn replace(&self, from: u32, to: u32) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn full_barrier() {
        fence(Ordering::SeqCst);
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

    fn replace(&self, from: u32, to: u32) -> bool {
        self.0.replace(from, to)
    }

    fn full_barrier() {}
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

trait New: SharedWord + Send + Sync + 'static {
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

/// An event index that the first tails do not pass: what a busy device leaves there.
const BEHIND: u32 = 0xFFFF;

/// A host publishes `tails` one after the other and rings when told to; the device
/// sleeps when there is nothing new, and ends with the last tail.
fn shadow_doorbell<W: New>(tails: &'static [u16]) {
    struct Doorbell<W> {
        shadow: W,
        event_index: W,
        bell: Bell,
    }
    let event_index = W::new(BEHIND);
    let doorbell = Arc::new(Doorbell { shadow: W::new(0), event_index, bell: Bell::new() });
    let host = {
        let doorbell = Arc::clone(&doorbell);
        thread::spawn(move || {
            for &tail in tails {
                if publish_tail(&doorbell.shadow, &doorbell.event_index, tail) {
                    doorbell.bell.ring();
                }
            }
        })
    };
    let last = tails.last().map_or(0, |&tail| u32::from(tail));
    let mut seen = doorbell.shadow.read();
    while seen != last {
        match arm_event_index(&doorbell.event_index, &doorbell.shadow, seen) {
            Some(tail) => seen = tail,
            None => {
                doorbell.bell.wait();
                seen = doorbell.shadow.read();
            }
        }
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
    loom::model(|| shadow_doorbell::<Word>(&[1]));
    bounded(|| shadow_doorbell::<Word>(&[1, 2]));
    // A queue of three entries, whose tail wraps.
    bounded(|| shadow_doorbell::<Word>(&[2, 0, 1]));
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_barrier_a_mail_is_slept_through() {
    loom::model(|| mailbox::<Careless>(1));
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_barrier_a_tail_is_slept_through() {
    loom::model(|| shadow_doorbell::<Careless>(&[1]));
}
