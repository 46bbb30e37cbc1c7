//! "No Flush succeeds after a failed one", over the end of the daemon or the function whose flush failed.
//!
//! The host stays: after each restart it connects again. The data is on a [disk with a volatile
//! cache](crate::volatile) that fails a sync, and then has lost the unsynced data.

use crate::common::{Daemon, namespace, wait_for};
use crate::nvme::pattern;
use crate::volatile::{Disk, boot_id};
use sluice_nvme::Status;

/// Sizes in bytes of the drives, and of the disk below a store of versions.
const SIZE: usize = 16 << 20;
const STORE: usize = 64 << 20;

/// Bytes that a test writes at once.
const PART: usize = 64 << 10;

/// Returns a drive on the disk, with a function above it or none.
fn drive(disk: &Disk, functions: &str) -> String {
    format!(
        "[[drive]]\nname = \"disk\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"{}\"\n{functions}\n",
        disk.path().display()
    )
}

fn replicated() -> &'static str {
    "functions = [ { kind = \"uif\", function = \"replicate\", place = \"daemon\", layers = [\n\
     { target = \"file\", path = \"copy.img\", size = \"16MiB\" },\n\
     { target = \"file\", path = \"set.log\", size = \"4MiB\" } ] } ]"
}

fn versioned() -> &'static str {
    "functions = [ { kind = \"uif\", function = \"snapshot\", place = \"daemon\", options = { size = \"16MiB\" } } ]"
}

/// Connects a host. Returns the result of its first Flush.
fn flush(daemon: &Daemon) -> Result<(), Status> {
    let mut host = daemon.host("disk");
    namespace(&mut host, 1).flush().map_err(|error| error.status().expect("a status"))
}

/// Returns whether the status is Write Fault with DNR. Without DNR, the host would send the Flush once more,
/// and get success.
fn is_final_write_fault(status: Result<(), Status>) -> bool {
    status == Err(Status(Status::WRITE_FAULT.0 | Status::DNR))
}

fn account(daemon: &Daemon) -> String {
    std::fs::read_to_string(daemon.folder.path().join("state/unflushed/disk")).unwrap_or_default()
}

/// Checks that the first Flush of a host fails after such an end of the daemon, and that no other does.
fn is_told_once(daemon: &mut Daemon, end: impl Fn(&mut Daemon), what: &str) {
    end(daemon);
    daemon.restart();
    assert!(is_final_write_fault(flush(daemon)), "{what}: no Flush succeeds after a failed one");
    flush(daemon).unwrap_or_else(|status| panic!("{what}: the host was told, and gets {status:?}"));
    daemon.stop();
    daemon.restart();
    flush(daemon).unwrap_or_else(|status| panic!("{what}: that is over, and the host gets {status:?}"));
}

#[test]
fn no_flush_succeeds_after_a_failed_one_and_a_restart() {
    let kinds = [("file", "", SIZE), ("replicate", replicated(), SIZE), ("snapshot", versioned(), STORE)];
    for (kind, functions, bytes) in kinds {
        for how in ["stopped", "killed"] {
            let Some(disk) = Disk::new(bytes) else { return };
            let mut daemon = Daemon::start(&drive(&disk, functions));
            let mut host = daemon.host("disk");
            let mut namespace = namespace(&mut host, 1);
            namespace.write(0, &pattern(1, PART)).expect("written");
            namespace.flush().expect("flushed");
            namespace.write(0, &pattern(2, PART)).expect("written");
            disk.fail_syncs(1);
            let failed = namespace.flush().map_err(|error| error.status().expect("a status"));
            assert!(is_final_write_fault(failed), "{kind}");
            drop((namespace, host));
            wait_for("the failed Flush to be stored", || account(&daemon).contains("\"untold\":[1]"));
            let end = if how == "stopped" { Daemon::stop } else { Daemon::crash };
            is_told_once(&mut daemon, end, &format!("{kind}, {how}"));
        }
    }
}

/// Checks a sync that fails at the stop, when no host is connected.
#[test]
fn a_sync_that_fails_at_the_stop_is_told_after_it() {
    let Some(disk) = Disk::new(SIZE) else { return };
    let mut daemon = Daemon::start(&drive(&disk, ""));
    let mut host = daemon.host("disk");
    namespace(&mut host, 1).write(0, &pattern(1, PART)).expect("written");
    drop(host);
    disk.fail_syncs(1);
    is_told_once(&mut daemon, Daemon::stop, "stopped");
}

/// Checks a failed flush that no host sent, followed by a stop or a kill of the daemon.
#[test]
fn a_flush_of_the_functions_own_that_failed_is_told_after_the_end_of_the_daemon() {
    for how in ["stopped", "killed"] {
        let Some(disk) = Disk::new(SIZE) else { return };
        let mut daemon = Daemon::start(&drive(&disk, replicated()));
        let mut host = daemon.host("disk");
        let mut namespace = namespace(&mut host, 1);
        namespace.write(0, &pattern(1, PART)).expect("written");
        namespace.flush().expect("flushed");
        disk.fail_syncs(1);
        namespace.write(0, &pattern(2, PART)).expect("written");
        // The set flushes its members some seconds after the last write.
        wait_for("the failed flush to be stored", || account(&daemon).contains("\"doubtful\":[1]"));
        drop((namespace, host));
        let end = if how == "stopped" { Daemon::stop } else { Daemon::crash };
        is_told_once(&mut daemon, end, how);
    }
}

/// Checks a virtual machine that ended with its machine. The next one has lost none of its own writes.
#[test]
fn a_virtual_machine_that_ended_with_its_machine_is_not_told() {
    let Some(disk) = Disk::new(SIZE) else { return };
    let mut daemon = Daemon::start(&drive(&disk, ""));
    let mut host = daemon.host("disk");
    let mut namespace = namespace(&mut host, 1);
    namespace.write(0, &pattern(1, PART)).expect("written");
    disk.fail_syncs(1);
    namespace.flush().expect_err("the disk fails it");
    drop((namespace, host));
    daemon.stop();
    daemon.boot = Some(boot_id(daemon.folder.path(), 1));
    daemon.restart();
    flush(&daemon).expect("that is another life");
}

/// Returns the first block of 4 KiB in which two images differ.
fn first_difference(before: &[u8], after: &[u8]) -> usize {
    let blocks = before.chunks(4096).zip(after.chunks(4096));
    blocks.into_iter().position(|(before, after)| before != after).expect("a commit")
}

/// Checks a store that has lost a block of its log, and has later ones. The store opens at its last durable
/// point by order.
#[test]
fn a_store_that_lost_its_tail_opens_at_its_last_durable_point() {
    const CHUNKS: [u64; 4] = [0, 40, 80, 120];
    let Some(disk) = Disk::new(STORE) else { return };
    let mut daemon = Daemon::start(&drive(&disk, versioned()));
    let parts: Vec<Vec<u8>> = (1..5).map(|seed| pattern(seed, PART)).collect();
    let mut host = daemon.host("disk");
    let mut namespace = namespace(&mut host, 1);
    let block = |chunk: u64| chunk * PART as u64 / 512;
    // Each write is a chunk of its own, and a block of the log. The first comes with the store's first
    // metadata.
    namespace.write(block(160), &parts[0]).expect("written");
    namespace.flush().expect("flushed");
    let mut log = Vec::new();
    for (chunk, part) in CHUNKS.iter().zip(&parts) {
        let before = disk.durable();
        namespace.write(block(*chunk), part).expect("written");
        namespace.flush().expect("flushed");
        log.push(first_difference(&before, &disk.durable()));
    }
    daemon.ok(&["snapshot", "create", "disk", "monday"]);
    assert!(log.windows(2).all(|two| two[0] + 1 == two[1]), "the log is written in order: {log:?}");
    drop((namespace, host));
    daemon.crash();
    // Block 4 is lost; block 5 and the later ones are there.
    let file = std::fs::File::options().write(true).open(disk.path()).expect("the disk");
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 4096], log[2] as u64 * 4096).expect("written");
    file.sync_all().expect("synced");
    drop(file);
    daemon.restart();
    let why = daemon.ok(&["function", "tell", "disk", "status"]);
    assert!(why.contains("the log before block 5") && why.contains("open at last durable point"), "{why}");
    let said = daemon.ok(&["function", "tell", "disk", "open at last durable point"]);
    assert!(said.contains("before block 4 of its log; blocks 4 to 6 are left out"), "{said}");
    assert!(said.contains("changes of 1 chunks") && said.contains("create monday"), "{said}");
    assert!(is_final_write_fault(flush(&daemon)), "acknowledged writes are lost");
    flush(&daemon).expect("the host was told");
    // The drive has the state of the last durable point, also after a restart, and it can be written.
    for round in 0..2 {
        let mut host = daemon.host("disk");
        let mut namespace = crate::common::namespace(&mut host, 1);
        for (chunk, part) in CHUNKS.iter().zip(&parts) {
            let mut read = vec![1; PART];
            namespace.read(block(*chunk), &mut read).expect("read");
            let is_lost = *chunk >= CHUNKS[2];
            let expected = if is_lost && round == 0 { &vec![0; PART] } else { part };
            assert!(read == *expected, "round {round}, chunk {chunk}");
            namespace.write(block(*chunk), part).expect("written");
        }
        namespace.flush().expect("flushed");
        drop((namespace, host));
        daemon.stop();
        daemon.restart();
    }
    assert_eq!(daemon.ok(&["snapshot", "list", "disk", "-o", "json"]).trim(), "[]");
    let said = daemon.fails(&["function", "tell", "disk", "open at last durable point"]);
    assert!(said.contains("nothing is left out"), "{said}");
}
