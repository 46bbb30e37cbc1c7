//! Thin pools, damaged where their checksums do not show it: each is refused in words, or is a pool whose space adds up.

pub fn run(data: &[u8]) {
    sluice_thin::fuzz::run(data);
}
