//! Snapshot: a drive whose state can be frozen, read in that state, and rolled back to it.
//!
//! The layer below is a [store](crate::store): metadata, and chunks. A chunk of the drive that was never
//! written is unmapped, and reads as zeros. A chunk that only the drive has is written in place. If a version
//! has it, too, the write goes to a new chunk, and the rest of the old one is copied. When all of that is
//! durable the change is written to the log, and then the command is finished.
//!
//! So Flush does not wait for this function, unless the log has to be repaired. The change of every
//! acknowledged write was written before, and the flush of the data covers it, too. FUA waits until the
//! change is durable.
//!
//! A classifier that keeps translations (`classifiers/snapshot.c`) sends commands past this function,
//! straight to the store. Therefore a chunk of the store that the drive or a version has is reused only after
//! an order that found the drive quiet: deallocated blocks keep their chunk until then. And no chunk that a
//! version sees is announced as writable.

mod control;
mod copy;
mod drive;
mod flush;
mod jobs;
mod sweep;
mod view;

pub use drive::Snapshot;
pub use view::View;

use super::service::{self, Item, Metric, Service, check_options};
use crate::store::{CHUNK_MAX, CHUNK_MIN, METRICS, ORDERS, Shape, StoreOrder, is_name, parse_bytes};
use sluice_command::{Operation, Request};
use sluice_crypt::Given;
use sluice_uif::{Data, Function, Io, Options};

/// Bytes of a chunk unless the options set another size.
const CHUNK: u64 = 64 << 10;

/// First stage of a flush that comes back from the store. Each flush of the function's own that fails begins
/// the next one.
const BACK: u8 = 2;

/// Makes the function: over a store, or, with the option `version`, over the store of another drive.
///
/// # Errors
/// The options are not valid.
pub fn make(options: &Options) -> Result<Box<dyn Function>, String> {
    check_options::<Snapshot>(options)?;
    let number = |key: &str| {
        let words = options.get(key).map(|words| (words, parse_bytes(words)));
        words.map(|(words, bytes)| {
            bytes.ok_or(format!("{key} is a number of bytes, or like 20GiB, not {words}"))
        })
    };
    let size = number("size").unwrap_or(Err("snapshot needs the option size, of the drive".to_owned()))?;
    let chunk = number("chunk").unwrap_or(Ok(CHUNK))?;
    if size == 0 || !size.is_multiple_of(4096) {
        return Err("size is a multiple of 4096 bytes".to_owned());
    }
    if !chunk.is_power_of_two() || !(CHUNK_MIN..=CHUNK_MAX).contains(&chunk) {
        return Err("chunk is a power of two, from 4KiB to 1MiB".to_owned());
    }
    let shape = Shape { size, chunk };
    Ok(match options.get("version") {
        None => Box::new(Snapshot::new(shape).with_delete_rate(rate(options)?)),
        Some(name) if is_name(name) => Box::new(View::new(shape, name)),
        Some(name) => return Err(format!("no version can be called `{}`", name.escape_debug())),
    })
}

impl Service for Snapshot {
    const NAME: &'static str = "snapshot";
    const ABOUT: &'static str = "Keeps versions of the drive, which can be read and gone back to.";
    const OPTIONS: &'static [Item] = &[
        Item { name: "size", about: "Bytes of the drive; needed." },
        Item { name: "chunk", about: "Bytes of a chunk, `64KiB` by default." },
        Item { name: "version", about: "Version of another drive's store that this drive reads." },
        Item { name: "delete_mib_s", about: "MiB a second that a deletion of a version frees at most." },
    ];
    const ORDERS: &'static [Item] = ORDERS;
    const METRICS: &'static [Metric] = METRICS;
    const HAS_JOBS: bool = true;

    type Order = StoreOrder;

    fn make(options: &Options, _: &Given) -> Result<Box<dyn Function>, String> {
        make(options)
    }
}

/// Returns the limit of deletions in MiB per second, if there is one.
fn rate(options: &Options) -> Result<Option<u32>, String> {
    let Some(word) = options.get("delete_mib_s") else { return Ok(None) };
    match word.parse() {
        Ok(rate) if rate > 0 => Ok(Some(rate)),
        _ => Err(format!("delete_mib_s is a number of MiB a second, from 1, not {word}")),
    }
}

/// Requester of a request of the function's: the upper half of its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Requester {
    Metadata,
    Copy,
    Job,
}

/// Returns the token of a request: its requester, and the requester's number.
fn token(requester: Requester, number: usize) -> u64 {
    (requester as u64) << 32 | number as u64
}

fn of_token(token: u64) -> (Requester, usize) {
    let requester = match token >> 32 {
        0 => Requester::Metadata,
        1 => Requester::Copy,
        _ => Requester::Job,
    };
    (requester, token as u32 as usize)
}

fn request(operation: Operation, offset: u64, length: u64) -> Request {
    Request { operation, offset, length, ..Request::default() }
}

/// Sends a request to the store. Returns false if no more requests are accepted.
fn send(io: &mut Io<'_>, request: Request, data: Data, token: u64) -> bool {
    service::send(io, 0, request, data, token)
}

#[cfg(test)]
mod tests {
    mod alone;
    mod orders;

    use super::*;

    #[test]
    fn sizes_and_chunks_are_taken_to_their_limits_and_no_further() {
        let make = |size: &str, chunk: &str| {
            let options = [("size", size), ("chunk", chunk)];
            make(&Options::new(options.map(|(key, value)| (key.to_owned(), value.to_owned()))))
        };
        for (size, is_good) in [
            ("0", false),
            ("1", false),
            ("512", false),
            ("4095", false),
            ("4096", true),
            ("4097", false),
            ("8192", true),
            ("12287", false),
            ("1TiB", true),
            ("-4096", false),
            ("x", false),
        ] {
            assert_eq!(make(size, "64KiB").is_ok(), is_good, "size {size}");
        }
        for (chunk, is_good) in [
            ("0", false),
            ("2KiB", false),
            ("4095", false),
            ("4KiB", true),
            ("12KiB", false),
            ("1MiB", true),
            ("1048577", false),
            ("2MiB", false),
        ] {
            assert_eq!(make("1GiB", chunk).is_ok(), is_good, "chunk {chunk}");
        }
    }
}
