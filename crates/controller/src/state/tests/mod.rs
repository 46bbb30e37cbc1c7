//! Tables of the state's limits, bits and words, and models of its timers.

mod bounce;
mod events;
mod health;
mod hosts;
mod measurement;
mod opcodes;
mod queues;
mod registers;
mod timers;
mod words;

use sluice_command::record::{Reader, RecordError, Writer};

/// Time of all records here.
const NOW_NS: u64 = 5_000_000_000;

/// Returns the bytes of a part of a record.
fn bytes_of(put: impl Fn(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::new(NOW_NS);
    put(&mut writer);
    writer.finish()
}

/// Reads a part of a record, and checks that each shorter one is refused.
fn read<T: std::fmt::Debug>(bytes: &[u8], take: impl Fn(&mut Reader<'_>) -> Result<T, RecordError>) -> T {
    for end in 0..bytes.len() {
        assert!(take(&mut Reader::new(&bytes[..end], NOW_NS)).is_err(), "{end} bytes");
    }
    let mut reader = Reader::new(bytes, NOW_NS);
    let found = take(&mut reader).expect("a part");
    assert!(reader.is_empty(), "{} bytes are left", reader.rest().len());
    found
}
