//! Devices of the function `local-cache` with any tables under right checksums: each is refused, or its dirty data is
//! written inside of the drive once.

pub fn run(data: &[u8]) {
    sluice_functions::local_cache_table::run(data);
}
