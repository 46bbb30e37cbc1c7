//! Handling of a client that truncates its file.
//!
//! Touching a page of a mapping beyond the end of its file raises SIGBUS, and so does a hugetlbfs page that
//! cannot be allocated. A client may cause both at any time, and must not end the daemon by it. So every
//! mapping of a file that other processes have is entered in a table. A handler for the whole process looks a
//! faulting address up there: the mapping is *poisoned*. From the faulting page to its end it becomes private
//! zero pages, and the access continues. Commands in flight read zeros or write into nothing; every later
//! translation through that mapping fails.
//!
//! The handler may run on any thread between any two instructions: it takes no lock, allocates nothing, and
//! sees the table only through atomics.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};

/// The most file mappings that the process can hold at once: half of the kernel's limit (vm.max_map_count),
/// and as many as 128 clients may have ([`MAX_FILES`](crate::MAX_FILES)).
pub const MAX_MAPPINGS: usize = 32_768;

static TABLE: [Slot; MAX_MAPPINGS] = [const { Slot::new() }; MAX_MAPPINGS];

/// Number of the first slot that was never used: the handler need not look further.
static HIGH_WATER: AtomicUsize = AtomicUsize::new(0);

/// A mapping. A sequence lock of one writer (the owner) and the handler as its reader: a mapping that just
/// faulted is in use and so cannot be changing, which is why the handler may skip any slot that is.
struct Slot {
    taken: AtomicBool,
    poisoned: AtomicBool,
    /// Odd while the three below change.
    sequence: AtomicU32,
    start: AtomicUsize,
    end: AtomicUsize,
    page_size: AtomicUsize,
}

impl Slot {
    const fn new() -> Self {
        Slot {
            taken: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
            sequence: AtomicU32::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            page_size: AtomicUsize::new(0),
        }
    }

    fn set(&self, start: usize, end: usize, page_size: usize) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.page_size.store(page_size, Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    /// Returns the faulting page and the mapping's end, if `address` is in this mapping.
    fn locate(&self, address: usize) -> Option<(usize, usize, usize)> {
        let sequence = self.sequence.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        let end = self.end.load(Ordering::Relaxed);
        let page_size = self.page_size.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let stable = sequence.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == sequence;
        (stable && (start..end).contains(&address)).then(|| (address & !(page_size - 1), end, page_size))
    }
}

/// A mapping's entry in the table, until dropped.
pub(crate) struct Registration(&'static Slot);

impl Registration {
    /// Enters `length` bytes at `start`, both multiples of `page_size`, a power of two.
    pub(crate) fn new(start: usize, length: usize, page_size: usize) -> io::Result<Registration> {
        install()?;
        let free = |slot: &&Slot| {
            slot.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let index = TABLE.iter().position(|slot| free(&slot)).ok_or(io::ErrorKind::StorageFull)?;
        let slot = &TABLE[index];
        HIGH_WATER.fetch_max(index + 1, Ordering::SeqCst);
        slot.poisoned.store(false, Ordering::Relaxed);
        slot.set(start, start + length, page_size);
        Ok(Registration(slot))
    }

    /// Returns a flag that is set, and never cleared, when an access to the mapping has faulted.
    pub(crate) fn poisoned(&self) -> &'static AtomicBool {
        &self.0.poisoned
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.0.set(0, 0, 0);
        self.0.taken.store(false, Ordering::Release);
    }
}

/// Installs the handler, once for the process. Done by the first mapping; a program that has handlers
/// of its own for SIGBUS installs them before.
pub fn install() -> io::Result<()> {
    static OUTCOME: OnceLock<Result<(), i32>> = OnceLock::new();
    let outcome = OUTCOME.get_or_init(|| {
        // SAFETY: an all-zero `sigaction` is a valid one, filled in below; the handler keeps to the rules for
        // a signal handler.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_sigbus as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&mut action.sa_mask);
            match libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) {
                0 => Ok(()),
                _ => Err(*libc::__errno_location()),
            }
        }
    });
    outcome.map_err(io::Error::from_raw_os_error)
}

extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo; errno is the interrupted thread's and is put back; sigaction
    // and raise may be called from a handler.
    unsafe {
        let errno = *libc::__errno_location();
        let by_access = (*info).si_code > 0;
        if !(by_access && absorb((*info).si_addr().addr())) {
            // Not a mapping in the table: the default action. A faulting access faults again after the
            // return; a signal that was sent has to be sent again.
            libc::signal(signal, libc::SIG_DFL);
            if !by_access {
                libc::raise(signal);
            }
        }
        *libc::__errno_location() = errno;
    }
}

/// Poisons the mapping that `address` is in, and puts zero pages there. Returns false if there is none.
fn absorb(address: usize) -> bool {
    let used = HIGH_WATER.load(Ordering::SeqCst).min(MAX_MAPPINGS);
    for slot in &TABLE[..used] {
        let Some((page, end, page_size)) = slot.locate(address) else { continue };
        slot.poisoned.store(true, Ordering::SeqCst);
        // To the end at once, so that a mapping is cut in two at most, whatever the client does: the number
        // of areas a process may have is limited. Under strict overcommit that may be more than this process
        // may have; then page by page.
        return map_zeros(page, end - page) || map_zeros(page, page_size);
    }
    false
}

fn map_zeros(start: usize, length: usize) -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: replaces pages of a mapping in the table, which its owner neither unmaps while an access to it
    // is under way nor forms references to.
    unsafe {
        let address = std::ptr::without_provenance_mut(start);
        let mapped = libc::mmap(address, length, protection, flags, -1, 0);
        if mapped != libc::MAP_FAILED {
            // Data of the guest may still be written there.
            libc::madvise(mapped, length, libc::MADV_DONTDUMP);
        }
        mapped != libc::MAP_FAILED
    }
}
