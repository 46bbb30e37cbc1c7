//! Work with secrets that leaves nothing on the stack.

use std::hint::black_box;

/// Bytes of the stack that are overwritten: more than any cipher or hash here uses.
const STACK: usize = 64 << 10;

/// Bytes that are overwritten after ciphering, which spills round keys where the processor has too few
/// registers.
const CIPHER_STACK: usize = 4 << 10;

/// Runs `work` with secrets, and then overwrites the stack below. Round keys and states of hashes that were
/// moved or went out of scope lie there until they are overwritten.
pub fn sealed<T>(work: impl FnOnce() -> T) -> T {
    let result = called(work);
    overwrite::<STACK>();
    result
}

/// Runs work that only [encrypts or decrypts](crate::Xts), and overwrites less, which costs little beside 4
/// KiB of it.
#[inline]
pub fn ciphering<T>(work: impl FnOnce() -> T) -> T {
    let result = called(work);
    overwrite::<CIPHER_STACK>();
    result
}

/// Runs the work in a frame of its own, so that all of it lies in the overwritten part.
#[inline(never)]
fn called<T>(work: impl FnOnce() -> T) -> T {
    work()
}

#[inline(never)]
fn overwrite<const BYTES: usize>() {
    black_box(&mut [0u8; BYTES]);
}
