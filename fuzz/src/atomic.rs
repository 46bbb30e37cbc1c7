//! Logs of the function `atomic` with any entries under right checksums: each is refused, or written inside of the
//! drive once.

pub fn run(data: &[u8]) {
    sluice_functions::atomic_log::run(data);
}
