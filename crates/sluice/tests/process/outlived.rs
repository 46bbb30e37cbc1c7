//! "No Flush succeeds after a failed one", over the end of the daemon or the function that had it fail.
//!
//! The host stays: after each restart it connects again. The data is on a [disk with a volatile cache](crate::volatile)
//! that fails a sync, and then has lost what was not synced.

use crate::common::{Daemon, namespace, wait_for};
use crate::nvme::pattern;
use crate::volatile::{Disk, boot_id};
use sluice_nvme::Status;

/// Bytes of the drives, and of what a store of versions has beside them.
const SIZE: usize = 16 << 20;
const STORE: usize = 64 << 20;

/// Bytes that a test writes at once.
const PART: usize = 64 << 10;

/// A drive on the disk, with a function above it or none.
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

/// What a Flush of a host that has just connected comes to.
fn flush(daemon: &Daemon) -> Result<(), Status> {
    let mut host = daemon.host("disk");
    namespace(&mut host, 1).flush().map_err(|error| error.status().expect("a status"))
}

/// A host that sent the Flush once more would be told that all is well.
fn is_final_write_fault(status: Result<(), Status>) -> bool {
    status == Err(Status(Status::WRITE_FAULT.0 | Status::DNR))
}

fn account(daemon: &Daemon) -> String {
    std::fs::read_to_string(daemon.folder.path().join("state/unflushed/disk")).unwrap_or_default()
}

/// The first Flush of a host fails after the daemon ended in such a way, and no other does.
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

/// A sync that fails at the stop, when no host is there to be told.
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

/// A host on a virtual machine ends with its machine, and the next one has lost nothing that it wrote.
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
