//! Operations that the next daemon finishes after a kill: Sanitize, and Format NVM; and marks of a host,
//! which it keeps.

use crate::common::{Daemon, LIMIT, namespace, wait_for};
use sluice_host::{Controller, Deadline, QueueLayout};
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::{LogId, Status, SubmissionEntry};
use std::path::{Path, PathBuf};

const BLOCK_ERASE: u32 = 2;

/// Returns a drive on a file; with `slow`, one chunk of an erasure takes longer than a test waits for it.
fn drive(path: &Path, slow: bool) -> String {
    let functions = if slow { "functions = [{ kind = \"delay\", write_us = 60_000_000 }]\n" } else { "" };
    format!(
        "[[drive]]\nname = \"demo\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"{}\"\nsize = \"8MiB\"\n{functions}",
        path.display()
    )
}

/// Returns a full disk, and a daemon that erases it slowly.
fn slow(folder: &Path) -> (PathBuf, Daemon) {
    let path = folder.join("disk.img");
    std::fs::write(&path, vec![7; 8 << 20]).expect("room on the disk");
    let daemon = Daemon::start(&drive(&path, true));
    (path, daemon)
}

/// Kills the daemon, and starts one that erases quickly.
fn crash(daemon: &mut Daemon, path: &Path) {
    daemon.crash();
    let full = std::fs::read(path).expect("the target");
    assert!(full.iter().all(|&byte| byte == 7), "nothing was erased yet");
    daemon.declare("", &drive(path, false));
    daemon.restart();
}

fn is_erased(path: &Path) -> bool {
    std::fs::read(path).expect("the target").iter().all(|&byte| byte == 0)
}

/// Returns SSTAT bits 2:0 of the Sanitize Status log.
fn sanitized(host: &mut Controller) -> u16 {
    let mut page = [0; 512];
    host.get_log_page(LogId::SANITIZE_STATUS, 0xffff_ffff, 0, &mut page).expect("a page");
    u16::from_le_bytes([page[2], page[3]]) & 7
}

/// Conformance: Base 5.24, a sanitize operation goes on over resets and power cycles until it is done.
#[test]
fn a_sanitize_goes_on_with_the_next_daemon() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, mut daemon) = slow(folder.path());
    let mut host = daemon.host("demo");
    let entry = SubmissionEntry { opcode: admin::SANITIZE, cdw10: BLOCK_ERASE, ..Default::default() };
    host.admin(entry).expect("it begins");
    assert_eq!(sanitized(&mut host), 2, "under way");
    drop(host);
    crash(&mut daemon, &path);
    wait_for("the end of the sanitize operation", || is_erased(&path));
    let mut host = daemon.host("demo");
    wait_for("word of it", || sanitized(&mut host) == 1);
    namespace(&mut host, 1).write(0, &[9; 512]).expect("the drive takes commands again");
    // The success is stored, too.
    drop(host);
    daemon.crash();
    daemon.restart();
    let mut host = daemon.host("demo");
    assert_eq!(sanitized(&mut host), 1, "{}", daemon.log());
    let mut block = [0; 512];
    namespace(&mut host, 1).read(0, &mut block).expect("it is in range");
    assert_eq!(block, [9; 512], "it did not begin again");
}

#[test]
fn a_format_goes_on_with_the_next_daemon() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, mut daemon) = slow(folder.path());
    let mut host = daemon.host("demo");
    let entry = SubmissionEntry { opcode: admin::FORMAT_NVM, nsid: 1, cdw10: 1, ..Default::default() };
    host.admin_queue().submit(entry).expect("room");
    host.admin_queue().ring().expect("the daemon is there");
    let state = daemon.folder.path().join("state/hosts/demo.state");
    wait_for("word that it begins", || {
        std::fs::read_to_string(&state).is_ok_and(|state| state.contains("formatting"))
    });
    drop(host);
    crash(&mut daemon, &path);
    wait_for("the end of the format", || is_erased(&path));
    let mut host = daemon.host("demo");
    wait_for("the new blocks", || {
        host.identify_namespace(1).is_ok_and(|page| page.lbaf[usize::from(page.flbas)].lbads == 12)
    });
    drop(host);
    let mut host = daemon.host("demo");
    let mut disk = namespace(&mut host, 1);
    disk.write(0, &[9; 4096]).expect("the drive takes commands again");
    drop((disk, host));
    daemon.crash();
    daemon.restart();
    let mut host = daemon.host("demo");
    let mut block = [0; 4096];
    namespace(&mut host, 1).read(0, &mut block).expect("it is in range");
    assert_eq!(block, [9; 4096], "it did not begin again");
}

#[test]
fn blocks_that_cannot_be_read_are_so_under_the_next_daemon() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk.img");
    let mut daemon = Daemon::start(&drive(&path, false));
    let mut host = daemon.host("demo");
    let mark = SubmissionEntry {
        opcode: io::WRITE_UNCORRECTABLE,
        nsid: 1,
        cdw10: 8,
        cdw12: 7,
        ..Default::default()
    };
    let mut queue = host.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
    let cid = queue.submit(mark).expect("there is room");
    queue.ring().expect("a doorbell");
    let deadline = Deadline::after(LIMIT, "an I/O command");
    assert_eq!(queue.wait(cid, &deadline, drop).expect("it is completed").status(), Status::SUCCESS);
    drop((queue, host));
    daemon.crash();
    daemon.restart();
    let mut host = daemon.host("demo");
    let mut disk = namespace(&mut host, 1);
    let mut block = [0; 512];
    disk.read(7, &mut block).expect("it was not marked");
    let error = disk.read(15, &mut block).expect_err("it was marked");
    assert!(error.status().is_some_and(|it| it.same_code(Status::UNRECOVERED_READ_ERROR)), "{error}");
    disk.write(15, &[9; 512]).expect("it can be written");
    drop((disk, host));
    daemon.crash();
    daemon.restart();
    let mut host = daemon.host("demo");
    let mut disk = namespace(&mut host, 1);
    disk.read(15, &mut block).expect("it was written");
    assert_eq!(block, [9; 512]);
    disk.read(14, &mut block).expect_err("it was not");
}

#[test]
fn a_drive_that_may_have_older_versions_is_not_sanitized() {
    let drive = "[[drive]]\nname = \"demo\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"64MiB\"\n\
        functions = [{ kind = \"uif\", function = \"pass\", place = \"daemon\" }]\n";
    let daemon = Daemon::start(drive);
    let mut host = daemon.host("demo");
    let entry = SubmissionEntry { opcode: admin::SANITIZE, cdw10: BLOCK_ERASE, ..Default::default() };
    let error = host.admin(entry).expect_err("older versions would be left");
    assert!(error.status().is_some_and(|status| status.same_code(Status::INVALID_OPCODE)), "{error}");
}
