//! SET_IRQS in all its forms, and the signals that arrive at the eventfds.

mod rig;

use rig::driver::Driver;
use rig::{Peer, Rig, eventually};
use rustix::event::{EventfdFlags, eventfd};
use sluice_vfio_user::irq::{IrqSet, index};
use sluice_vfio_user::{Command, Errno};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use zerocopy::IntoBytes;

const EVENTFD: u32 = IrqSet::DATA_EVENTFD | IrqSet::ACTION_TRIGGER;
const FIRE: u32 = IrqSet::DATA_NONE | IrqSet::ACTION_TRIGGER;
const UNMASK: u32 = IrqSet::DATA_NONE | IrqSet::ACTION_UNMASK;
const MASK: u32 = IrqSet::DATA_NONE | IrqSet::ACTION_MASK;

/// Eventfd whose counter a test reads.
struct Bell(OwnedFd);

impl Bell {
    fn new() -> Self {
        Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd"))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Returns the number of signals since the last call.
    fn take(&self) -> u64 {
        let mut count = 0u64;
        match rustix::io::read(&self.0, count.as_mut_bytes()) {
            Ok(_) => count,
            Err(error) => {
                assert_eq!(error, Errno::AGAIN);
                0
            }
        }
    }

    fn assert_rings(&self) {
        eventually("the eventfd is signalled", || self.take() > 0);
    }

    fn add(&self, count: u64) {
        rustix::io::write(&self.0, count.as_bytes()).expect("room in the counter");
    }
}

fn wire(guest: &mut Peer, index: u32, vector: u32, bell: &Bell) {
    guest.set_irqs(EVENTFD, index, vector..vector + 1, &[bell.fd()]).expect("wired");
}

#[test]
fn each_vector_has_its_eventfd() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let mut driver = Driver::start(&mut guest, &[1, 63, 64, 127, 128]);
    let bells: Vec<Bell> = (0..129).map(|_| Bell::new()).collect();
    for (vector, bell) in bells.iter().enumerate() {
        wire(&mut guest, index::MSIX, vector as u32, bell);
    }
    for vector in [0, 1, 63, 64, 127, 128] {
        driver.complete(&mut guest, &[vector]);
        bells[usize::from(vector)].assert_rings();
    }
    assert_eq!(bells.iter().map(Bell::take).sum::<u64>(), 0, "nobody else was signalled");
    assert_eq!(rig.drive.status().counters.interrupts, 6);
}

#[test]
fn sixteen_at_once() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let mut driver = Driver::start(&mut guest, &[100, 115]);
    let bells: Vec<Bell> = (0..16).map(|_| Bell::new()).collect();
    let fds: Vec<_> = bells.iter().map(Bell::fd).collect();
    guest.set_irqs(EVENTFD, index::MSIX, 100..116, &fds).expect("wired");
    driver.complete(&mut guest, &[100, 115]);
    bells[0].assert_rings();
    bells[15].assert_rings();
}

#[test]
fn taken_away_one_by_one_and_all_at_once() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let mut driver = Driver::start(&mut guest, &[1, 2, 3, 9]);
    let bells: Vec<Bell> = (0..4).map(|_| Bell::new()).collect();
    let fds: Vec<_> = bells.iter().map(Bell::fd).collect();
    guest.set_irqs(EVENTFD, index::MSIX, 0..4, &fds).expect("wired");
    guest.set_irqs(EVENTFD, index::MSIX, 1..2, &[]).expect("one taken away");
    driver.complete(&mut guest, &[0, 1, 2]);
    bells[0].assert_rings();
    bells[2].assert_rings();
    assert_eq!(bells[1].take(), 0);

    guest.set_irqs(FIRE, index::MSIX, 0..0, &[]).expect("all taken away");
    driver.complete(&mut guest, &[0, 1, 2, 3]);
    // A later interrupt arrives, so an earlier one would have arrived before.
    wire(&mut guest, index::MSIX, 9, &bells[0]);
    driver.complete(&mut guest, &[9]);
    bells[0].assert_rings();
    assert_eq!(bells.iter().map(Bell::take).sum::<u64>(), 0);
}

/// Conformance: PCIe 3.5, an interrupt that cannot be sent stays pending.
#[test]
fn an_interrupt_without_an_eventfd_stays_pending_while_msix_is_enabled() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let mut driver = Driver::start(&mut guest, &[3, 70]);
    let bell = Bell::new();
    driver.complete(&mut guest, &[3]);
    assert_eq!(guest.read(0, 0x3000, 8), Ok(vec![0; 8]), "MSI-X is not enabled");

    guest.write(7, 0x52, &0x8000u16.to_le_bytes()).expect("MSI-X enabled");
    driver.complete(&mut guest, &[3, 70]);
    let mut pending = vec![0; 24];
    (pending[0], pending[8]) = (1 << 3, 1 << 6);
    assert_eq!(guest.read(0, 0x3000, 24), Ok(pending));
    wire(&mut guest, index::MSIX, 3, &bell);
    bell.assert_rings();
    assert_eq!(guest.read(0, 0x3000, 1), Ok(vec![0]));

    guest.call(Command::DEVICE_RESET, &[]).expect("reset");
    assert_eq!(guest.read(0, 0x3000, 24), Ok(vec![0; 24]));
}

#[test]
fn the_client_can_trigger_interrupts_itself() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let bells: Vec<Bell> = (0..3).map(|_| Bell::new()).collect();
    let fds: Vec<_> = bells.iter().map(Bell::fd).collect();
    guest.set_irqs(EVENTFD, index::MSIX, 0..3, &fds).expect("wired");
    guest.set_irqs(FIRE, index::MSIX, 1..2, &[]).expect("fired");
    bells[1].assert_rings();
    let set = IrqSet {
        argsz: 23,
        flags: IrqSet::DATA_BOOL | IrqSet::ACTION_TRIGGER,
        index: index::MSIX,
        start: 0,
        count: 3,
    };
    let payload = [set.as_bytes(), &[1, 0, 1]].concat();
    guest.call(Command::DEVICE_SET_IRQS, &payload).expect("fired");
    bells[0].assert_rings();
    bells[2].assert_rings();
    assert_eq!(bells[1].take(), 0);
}

/// Conformance: PCIe 3.5, the pin's interrupt is a level.
#[test]
fn intx_is_a_level() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let mut driver = Driver::start(&mut guest, &[]);
    let bell = Bell::new();
    wire(&mut guest, index::INTX, 0, &bell);
    driver.complete_unseen(&mut guest, &[0]);
    bell.assert_rings();
    // The pin has masked itself. Unmasked while the level is still asserted, it is signalled again.
    for _ in 0..3 {
        guest.ping();
        assert_eq!(bell.take(), 0);
        guest.set_irqs(UNMASK, index::INTX, 0..1, &[]).expect("unmasked");
        bell.assert_rings();
    }
    driver.acknowledge(&mut guest, 0);
    guest.set_irqs(UNMASK, index::INTX, 0..1, &[]).expect("unmasked");
    guest.set_irqs(MASK, index::INTX, 0..1, &[]).expect("masked");
    driver.complete_unseen(&mut guest, &[0]);
    guest.ping();
    guest.ping();
    assert_eq!(bell.take(), 0);
    guest.set_irqs(UNMASK, index::INTX, 0..1, &[]).expect("unmasked");
    bell.assert_rings();
}

#[test]
fn intx_shows_in_the_status_register_and_yields_to_its_disable_bits() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let mut driver = Driver::start(&mut guest, &[]);
    let bell = Bell::new();
    guest.write(7, 4, &0x400u16.to_le_bytes()).expect("interrupt disable");
    wire(&mut guest, index::INTX, 0, &bell);
    driver.complete_unseen(&mut guest, &[0]);
    assert_eq!(guest.read(7, 6, 2), Ok(vec![0x18, 0]));
    guest.ping();
    assert_eq!(bell.take(), 0);
    guest.write(7, 4, &0u16.to_le_bytes()).expect("enabled again");
    bell.assert_rings();
}

#[test]
fn intx_is_unmasked_by_an_eventfd_again_and_again() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let mut driver = Driver::start(&mut guest, &[]);
    let (bell, unmask) = (Bell::new(), Bell::new());
    wire(&mut guest, index::INTX, 0, &bell);
    let flags = IrqSet::DATA_EVENTFD | IrqSet::ACTION_UNMASK;
    guest.set_irqs(flags, index::INTX, 0..1, &[unmask.fd()]).expect("wired");
    driver.complete_unseen(&mut guest, &[0]);
    bell.assert_rings();
    for _ in 0..5 {
        unmask.add(1);
        bell.assert_rings();
    }
    // Without the eventfd, nothing unmasks the pin any more.
    guest.set_irqs(flags, index::INTX, 0..1, &[]).expect("taken away");
    guest.ping();
    unmask.add(1);
    guest.ping();
    guest.ping();
    assert_eq!(bell.take(), 0);
}

/// Checks that a pin that its client keeps masked stays masked, though a move causes an event of every watch.
#[test]
fn intx_that_is_masked_stays_so_when_its_drive_moves() {
    let rig = Rig::new();
    let other = rig::start_reactor();
    let mut guest = rig.drive.guest();
    let mut driver = Driver::start(&mut guest, &[]);
    let bell = Bell::new();
    // Reads of this eventfd block, as any client may choose.
    let unmask = Bell(eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"));
    wire(&mut guest, index::INTX, 0, &bell);
    let flags = IrqSet::DATA_EVENTFD | IrqSet::ACTION_UNMASK;
    guest.set_irqs(flags, index::INTX, 0..1, &[unmask.fd()]).expect("wired");
    driver.complete_unseen(&mut guest, &[0]);
    bell.assert_rings();
    unmask.add(1);
    bell.assert_rings();
    let task = rig.drive.handle();
    for to in [&other, &rig.reactor, &other] {
        task.move_to(to, std::time::Duration::from_secs(10)).expect("nothing is under way");
        guest.ping();
        guest.ping();
        assert_eq!(bell.take(), 0, "it is masked");
        unmask.add(1);
        bell.assert_rings();
    }
    task.move_to(&rig.reactor, std::time::Duration::from_secs(10)).expect("nothing is under way");
    other.stop();
}

#[test]
fn a_full_eventfd_that_blocks_costs_its_client_an_interrupt_and_nobody_else() {
    let rig = Rig::new();
    let neighbour = rig.neighbour();
    let mut guest = rig.drive.guest();
    let mut driver = Driver::start(&mut guest, &[1]);
    // The eventfd blocks, and its counter is at the maximum.
    let full = Bell(eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"));
    full.add(u64::MAX - 1);
    let bell = Bell::new();
    wire(&mut guest, index::MSIX, 0, &full);
    wire(&mut guest, index::MSIX, 1, &bell);
    for _ in 0..10 {
        driver.complete(&mut guest, &[0, 1]);
        bell.assert_rings();
        guest.ping();
        neighbour.guest().ping();
    }
    // Once there is room, the interrupts held back arrive as one.
    assert_eq!(full.take(), u64::MAX - 1);
    eventually("the interrupt that waited", || full.take() > 0);
}

#[test]
fn a_client_can_leave_while_its_eventfd_is_full() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let mut driver = Driver::start(&mut guest, &[]);
    let full = Bell(eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"));
    full.add(u64::MAX - 1);
    wire(&mut guest, index::MSIX, 0, &full);
    driver.complete(&mut guest, &[0]);
    drop(guest);
    eventually("the client is gone", || !rig.drive.status().connected);
    rig.drive.guest().ping();
}

#[test]
fn only_eventfds_are_taken() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let mut driver = Driver::start(&mut guest, &[]);
    let bell = Bell::new();
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null").expect("there is one");
    let memory = rustix::fs::memfd_create("memory", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
    let strangers = [reader.as_fd(), writer.as_fd(), null.as_fd(), memory.as_fd()];
    for stranger in strangers {
        assert_eq!(guest.set_irqs(EVENTFD, index::MSIX, 0..1, &[stranger]), Err(Errno::INVAL));
        assert_eq!(guest.set_irqs(EVENTFD, index::INTX, 0..1, &[stranger]), Err(Errno::INVAL));
        // One invalid descriptor makes the whole message invalid.
        assert_eq!(guest.set_irqs(EVENTFD, index::MSIX, 0..2, &[bell.fd(), stranger]), Err(Errno::INVAL));
    }
    let unmask = IrqSet::DATA_EVENTFD | IrqSet::ACTION_UNMASK;
    assert_eq!(guest.set_irqs(unmask, index::INTX, 0..1, &[reader.as_fd()]), Err(Errno::INVAL));
    driver.complete(&mut guest, &[0]);
    guest.ping();
    assert_eq!(bell.take(), 0);
}

#[test]
fn numbers_of_descriptors_that_make_no_sense() {
    let rig = Rig::new();
    let mut guest = rig.drive.guest();
    let bell = Bell::new();
    let two = [bell.fd(), bell.fd()];
    assert_eq!(guest.set_irqs(EVENTFD, index::MSIX, 0..3, &two), Err(Errno::INVAL));
    assert_eq!(guest.set_irqs(EVENTFD, index::MSIX, 0..1, &two), Err(Errno::INVAL));
    assert_eq!(guest.set_irqs(EVENTFD, index::INTX, 0..1, &two), Err(Errno::INVAL));
    assert_eq!(guest.set_irqs(EVENTFD, index::MSIX, 129..130, &two[..1]), Err(Errno::INVAL));
    let mask = IrqSet::DATA_EVENTFD | IrqSet::ACTION_MASK;
    assert_eq!(guest.set_irqs(mask, index::INTX, 0..1, &two[..1]), Err(Errno::INVAL));
    assert_eq!(guest.set_irqs(MASK, index::MSIX, 0..1, &[]), Err(Errno::INVAL));
    // Superfluous descriptors are closed, and the message is valid.
    guest.set_irqs(FIRE, index::MSIX, 0..1, &two).expect("fired");
    guest.ping();
}
