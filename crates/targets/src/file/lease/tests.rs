//! Leases in files, renewed by threads.

use super::super::tests::Folder;
use super::*;
use std::collections::BTreeSet;
use std::fs;

const MS: u64 = 1_000_000;

/// Times that are short where a longer one would only slow the test down.
pub(in super::super) const QUICK: Timing = Timing {
    renew_ns: 2 * MS,
    expire_ns: 1_000_000 * MS,
    still_ns: 2_000_000 * MS,
    latency_ns: 1_000_000 * MS,
    settle_ns: MS,
};

/// Makes a blank file for a lease.
pub(in super::super) fn blank(folder: &Folder) -> PathBuf {
    let path = folder.path().join("lease");
    fs::write(&path, [0; block::BLOCK_BYTES]).expect("a file");
    path
}

/// Overwrites the block with the claim of another daemon.
pub(in super::super) fn overwrite(path: &Path) {
    let claim = Claim { holder: 7, counter: 1, name: "process 7 on host far".to_owned(), held: true };
    BlockFile::open(path).and_then(|mut block| block.write(&claim)).expect("it can be written");
}

fn take(path: &Path, timing: Timing) -> Result<Lease, FileErrorKind> {
    Lease::take(path, Path::new("/the/storage"), timing)
}

#[test]
fn one_that_is_held_is_refused_and_one_given_back_is_taken() {
    let folder = Folder::on_disk();
    let path = blank(&folder);
    let first = take(&path, QUICK).expect("nobody has it");
    assert!(first.is_held(now_ns()) && super::super::probe_lease(&path).is_ok());
    let refused = take(&path, QUICK).expect_err("it is renewed").at(Path::new("/the/storage"));
    assert!(refused.is_in_use());
    let words = refused.to_string();
    assert!(words.contains(&format!("is held by process {} on host", std::process::id())), "{words}");
    drop(first);
    // The last renewal may still be in progress.
    let second = loop {
        match take(&path, QUICK) {
            Err(FileErrorKind::Lease(_, Refusal::Taken(_))) => thread::yield_now(),
            taken => break taken.expect("it was given back"),
        }
    };
    assert!(second.is_held(now_ns()));
}

/// Checks a character device: it has no direct I/O, and would forget each claim.
#[test]
fn only_a_file_is_opened_without_direct_io() {
    let refused = BlockFile::open(Path::new("/dev/zero")).expect_err("it is no storage");
    assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn a_claim_that_stands_still_is_followed() {
    let folder = Folder::on_disk();
    let path = blank(&folder);
    overwrite(&path);
    assert!(take(&path, Timing { still_ns: 10 * MS, ..QUICK }).is_ok());
}

#[test]
fn a_lease_that_is_overwritten_is_lost() {
    let folder = Folder::on_disk();
    let path = blank(&folder);
    let lease = take(&path, QUICK).expect("nobody has it");
    overwrite(&path);
    // The claim may come between a read and a write of the holder.
    while lease.is_held(now_ns()) {
        overwrite(&path);
        thread::yield_now();
    }
}

#[test]
fn what_is_no_lease_is_left_alone() {
    let folder = Folder::on_disk();
    let path = blank(&folder);
    let data = [0x5a; block::BLOCK_BYTES];
    fs::write(&path, data).expect("a file");
    for refused in [take(&path, QUICK).map(drop), look(&path)] {
        let refused = refused.expect_err("it is something else").at(Path::new("/the/storage"));
        assert!(refused.to_string().contains("is no lease") && !refused.is_in_use());
    }
    assert!(super::super::probe_lease(&path).is_err());
    assert_eq!(fs::read(&path).expect("it is there"), data);
    for name in ["missing", "."] {
        let refused = take(&folder.path().join(name), QUICK).expect_err("no file");
        assert!(refused.at(Path::new("/the/storage")).to_string().contains("cannot be opened"));
    }
    fs::write(&path, [0; 512]).expect("a file");
    assert!(take(&path, QUICK).is_err(), "it is too short");
}

/// Checks that no two attempts have the same number: a holder recognizes its claim by that alone.
#[test]
fn each_attempt_has_a_number_of_its_own() {
    let numbers: Vec<u128> = (0..64).map(|_| random()).collect();
    let halves = numbers.iter().flat_map(|number| [*number as u64, (*number >> 64) as u64]);
    assert_eq!(halves.collect::<BTreeSet<_>>().len(), 128);
}

#[test]
fn a_thread_waits_until_its_lease_is_given_back() {
    let shared = Arc::new(Shared {
        path: PathBuf::new(),
        storage: PathBuf::new(),
        until_ns: AtomicU64::new(u64::MAX),
        told: AtomicBool::new(false),
        ended: Mutex::new(false),
        woken: Condvar::new(),
    });
    assert!(!shared.wait(0));
    let lease = Lease(Arc::clone(&shared));
    let gives_back = thread::spawn(move || drop(lease));
    assert!(shared.wait(now_ns() + 60_000 * MS), "the time is not over");
    gives_back.join().expect("it does not panic");
    assert!(shared.wait(0));
}

#[test]
fn a_loss_is_told_with_its_reason() {
    let claim = Claim { holder: 7, counter: 1, name: "host far".to_owned(), held: true };
    for (loss, words) in [
        (Loss::Late, "has not succeeded in time"),
        (Loss::Overwritten(Content::Claim(claim)), "host far has taken it"),
        (Loss::Overwritten(Content::Blank), "another program has written to it"),
        (Loss::Overwritten(Content::Other), "another program has written to it"),
    ] {
        assert!(loss.to_string().contains(words), "{loss}");
    }
}
