//! Stores of the snapshot function, damaged where their checksums do not show it: each is refused in words,
//! or is one drive whose versions can be restored and deleted.

pub fn run(data: &[u8]) {
    sluice_functions::store::fuzz::run(data);
}
