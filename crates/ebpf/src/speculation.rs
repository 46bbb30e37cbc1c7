//! Bounds that hold under speculation.
//!
//! A processor may speculate that a comparison holds, and read at an index that did not pass it. The result
//! is thrown away, but leaves traces in its caches that a program can measure. An index from [`clamp`] is
//! inside even under wrong speculation, because it is computed without a jump.
#![allow(unsafe_code)] // one instruction that compilers do not optimise away

/// Returns the index, if it is less than `bound`; otherwise zero.
#[inline(always)]
pub(crate) fn clamp(index: usize, bound: usize) -> usize {
    index & mask(index, bound)
}

/// Returns all ones if the index is less than `bound`; otherwise zero.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn mask(index: usize, bound: usize) -> usize {
    let mask: usize;
    // SAFETY: it computes with registers alone.
    unsafe {
        std::arch::asm!(
            "cmp {index}, {bound}",
            "sbb {mask}, {mask}",
            index = in(reg) index,
            bound = in(reg) bound,
            mask = out(reg) mask,
            options(pure, nomem, nostack),
        );
    }
    mask
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn mask(index: usize, bound: usize) -> usize {
    let mask: usize;
    // SAFETY: it computes with registers alone.
    unsafe {
        std::arch::asm!(
            "cmp {index}, {bound}",
            "sbc {mask}, xzr, xzr",
            "csdb",
            index = in(reg) index,
            bound = in(reg) bound,
            mask = out(reg) mask,
            options(pure, nomem, nostack),
        );
    }
    mask
}

/// Returns the mask on other machines. Programs are interpreted there, and an optimiser may undo this.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn mask(index: usize, bound: usize) -> usize {
    usize::from(std::hint::black_box(index) < bound).wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_inside_stays_and_the_rest_is_zero() {
        let edges = [0, 1, 2, 7, 8, usize::MAX / 2, usize::MAX / 2 + 1, usize::MAX - 1, usize::MAX];
        for index in edges {
            for bound in edges {
                assert_eq!(clamp(index, bound), if index < bound { index } else { 0 }, "{index} and {bound}");
            }
        }
    }
}
