//! Metadata logs of redundant sets, damaged where their checksums do not show it: each is refused in words,
//! or there is a set that comes to rest.

pub fn run(data: &[u8]) {
    sluice_redundancy::fuzz::run(data);
}
