//! The side of a home that other threads reach: numbers of ports, and signals of ports with messages.

use crate::notifier::Notifier;
use crate::port::{ANSWERS, Port, REQUESTS};
use crate::ring::{Receiver, Sender, ring};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::{error, fmt, io};

/// Most ports of an object.
pub const PORTS_MAX: usize = 64 * 64;

/// Number of a port of an object. A number is used again after the port is closed and reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortNumber(pub u16);

impl PortNumber {
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Reason for which an object has no further port, or is not removed.
#[derive(Debug)]
pub enum Refused {
    /// The object is removed, or its reactor has ended.
    Gone,
    /// The object has [`PORTS_MAX`] ports.
    TooManyPorts,
    /// Number of ports that are not yet closed and reclaimed.
    InUse(usize),
    /// The system has no further eventfd.
    Io(io::Error),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the shared object is removed, or its reactor has ended"),
            Self::TooManyPorts => write!(f, "the shared object has {PORTS_MAX} users already"),
            Self::InUse(1) => {
                f.write_str("the shared object is in use by one namespace: delete the namespace first")
            }
            Self::InUse(ports) => {
                write!(f, "the shared object is in use by {ports} namespaces: delete the namespaces first")
            }
            Self::Io(error) => write!(f, "no eventfd for the shared object (see ulimit -n): {error}"),
        }
    }
}

impl error::Error for Refused {}

/// The side of a port that the home reaches.
#[derive(Debug)]
pub(crate) struct PortSide {
    /// Latest round of recalls that concerns the port.
    pub(crate) recall: AtomicU32,
    pub(crate) closed: AtomicBool,
    /// Number of notes that the home has acknowledged, and whether a later one has failed.
    pub(crate) noted: AtomicU64,
    pub(crate) notes_failed: AtomicBool,
    /// Number of the last call of the home.
    pub(crate) calls: AtomicU32,
    pub(crate) notifier: Notifier,
}

/// The home's end of a port, on its way to the home.
#[derive(Debug)]
pub struct Connection {
    pub(crate) number: PortNumber,
    pub(crate) requests: Receiver,
    pub(crate) answers: Sender,
    pub(crate) side: Arc<PortSide>,
}

impl Connection {
    /// Returns the number of the port.
    #[must_use]
    pub fn number(&self) -> PortNumber {
        self.number
    }
}

/// A bit for each port. The summary has a bit for each word with some.
#[derive(Debug)]
struct Bits {
    summary: AtomicU64,
    words: [AtomicU64; 64],
}

impl Bits {
    fn new() -> Self {
        Self { summary: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; 64] }
    }

    fn set(&self, number: PortNumber) {
        let (word, bit) = (number.index() / 64, number.index() % 64);
        self.words[word].fetch_or(1 << bit, Ordering::AcqRel);
        self.summary.fetch_or(1 << word, Ordering::AcqRel);
    }

    /// Takes all bits. A bit that is set meanwhile is taken now or the next time.
    fn take(&self, mut each: impl FnMut(PortNumber)) {
        let mut summary = self.summary.swap(0, Ordering::AcqRel);
        while summary != 0 {
            let word = summary.trailing_zeros();
            summary &= summary - 1;
            let mut bits = self.words[word as usize].swap(0, Ordering::AcqRel);
            while bits != 0 {
                each(PortNumber((word * 64 + bits.trailing_zeros()) as u16));
                bits &= bits - 1;
            }
        }
    }
}

/// The side of a home that ports and control threads reach.
#[derive(Debug)]
pub struct HomeSide {
    pub(crate) notifier: Notifier,
    signals: Bits,
    /// A bit for each number in use. Control threads set a bit, and the home clears it.
    numbers: [AtomicU64; 64],
    /// Set when the object is removed. Locked by control threads only.
    removed: Mutex<bool>,
}

impl HomeSide {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            notifier: Notifier::new()?,
            signals: Bits::new(),
            numbers: [const { AtomicU64::new(0) }; 64],
            removed: Mutex::new(false),
        })
    }

    /// Announces messages of a port.
    pub(crate) fn signal(&self, number: PortNumber) {
        self.signals.set(number);
        self.notifier.notify();
    }

    #[inline]
    pub(crate) fn is_signalled(&self) -> bool {
        self.signals.summary.load(Ordering::Acquire) != 0
    }

    /// Calls `each` for all ports with messages.
    pub(crate) fn take_signals(&self, each: impl FnMut(PortNumber)) {
        self.signals.take(each);
    }

    /// Wakes a home that sleeps, for a message that came another way.
    pub fn wake(&self) {
        self.notifier.notify();
    }

    /// Announces messages of a port again; called by the home itself.
    pub(crate) fn signal_again(&self, number: PortNumber) {
        self.signals.set(number);
    }

    /// Returns the number of ports that are not yet closed and reclaimed.
    #[must_use]
    pub fn ports(&self) -> usize {
        self.numbers.iter().map(|word| word.load(Ordering::Acquire).count_ones() as usize).sum()
    }

    fn take_number(&self) -> Option<PortNumber> {
        (0..PORTS_MAX as u16).map(PortNumber).find(|number| {
            let bit = 1 << (number.index() % 64);
            self.numbers[number.index() / 64].fetch_or(bit, Ordering::AcqRel) & bit == 0
        })
    }

    /// Frees the number of a port that no home was given. For control threads.
    pub fn release(&self, number: PortNumber) {
        self.free_number(number);
    }

    pub(crate) fn free_number(&self, number: PortNumber) {
        self.numbers[number.index() / 64].fetch_and(!(1 << (number.index() % 64)), Ordering::AcqRel);
    }

    /// Creates a port, whose other end the caller brings to [`Home::attach`](crate::Home::attach). For control
    /// threads.
    ///
    /// # Errors
    /// The object is removed, has too many ports, or there is no descriptor left.
    pub fn connect(self: &Arc<Self>) -> Result<(Port, Connection), Refused> {
        // A panic ends the process, so the lock is never poisoned.
        let removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        if *removed {
            return Err(Refused::Gone);
        }
        let notifier = Notifier::new().map_err(Refused::Io)?;
        let number = self.take_number().ok_or(Refused::TooManyPorts)?;
        let side = Arc::new(PortSide {
            recall: AtomicU32::new(0),
            closed: AtomicBool::new(false),
            noted: AtomicU64::new(0),
            notes_failed: AtomicBool::new(false),
            calls: AtomicU32::new(0),
            notifier,
        });
        let ((outgoing, requests), (answers, incoming)) = (ring(REQUESTS), ring(ANSWERS));
        let connection = Connection { number, requests, answers, side: Arc::clone(&side) };
        Ok((Port::new(number, outgoing, incoming, side, Arc::clone(self)), connection))
    }

    /// Marks the object as removed: it has no further ports. For control threads.
    ///
    /// # Errors
    /// The object is in use, or is removed already.
    pub fn remove(&self) -> Result<(), Refused> {
        let mut removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        match self.ports() {
            _ if *removed => Err(Refused::Gone),
            0 => {
                *removed = true;
                Ok(())
            }
            ports => Err(Refused::InUse(ports)),
        }
    }
}

impl AsFd for HomeSide {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }
}
