//! The switch of the changes that one build contains. mutants.py compiles it and gives it to every crate of the workspace.
//!
//! A file holds the number of the active change, and behind it one byte for each place. A test's processes map the file
//! when they start, before they give up rights. So processes with another environment and another user have it, too.
#![feature(const_eval_select, core_intrinsics)]
#![allow(internal_features)]

use std::ffi::c_void;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicUsize};

/// The file, in the folder that each run of tests has to itself.
const FILE: &str = "/tmp/sluice-mutant";
/// Bytes of the number at the start of the file.
const NUMBER: usize = 4;

static ACTIVE: AtomicU32 = AtomicU32::new(0);
static PLACES: AtomicPtr<AtomicU8> = AtomicPtr::new(null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    fn mmap(address: *mut c_void, length: usize, protection: i32, flags: i32, file: i32, offset: i64) -> *mut c_void;
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

extern "C" fn at_start() {
    if let Some(number) = std::env::var("SLUICE_MUTANT").ok().and_then(|number| number.parse().ok()) {
        ACTIVE.store(number, Relaxed);
        return;
    }
    let Ok(file) = std::fs::File::options().read(true).write(true).open(FILE) else { return };
    let length = file.metadata().map_or(0, |about| about.len() as usize);
    if length < NUMBER {
        return;
    }
    // SAFETY: a new mapping, which stays. PROT_READ | PROT_WRITE, MAP_SHARED.
    let start = unsafe { mmap(null_mut(), length, 3, 1, file.as_raw_fd(), 0) };
    if start as isize == -1 {
        return;
    }
    // SAFETY: the number is at the start of the mapping, which is a page's.
    ACTIVE.store(unsafe { start.cast::<u32>().read() }, Relaxed);
    COUNT.store(length - NUMBER, Relaxed);
    // SAFETY: the mapping is longer than the number.
    PLACES.store(unsafe { start.cast::<AtomicU8>().add(NUMBER) }, Relaxed);
}

/// Returns the number of the active change, 0 for none, and marks the place as reached. While the compiler evaluates, no
/// change is active.
#[inline]
pub const fn active(place: usize) -> u32 {
    core::intrinsics::const_eval_select((place,), none, read)
}

const fn none(_place: usize) -> u32 {
    0
}

#[inline]
fn read(place: usize) -> u32 {
    if place < COUNT.load(Relaxed) {
        // SAFETY: the mapping has COUNT places.
        unsafe { &*PLACES.load(Relaxed).add(place) }.store(1, Relaxed);
    }
    ACTIVE.load(Relaxed)
}
