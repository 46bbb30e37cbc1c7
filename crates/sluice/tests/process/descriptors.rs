//! A daemon that runs out of descriptors in the middle of an order.
//!
//! Each answer has to be true after a restart: a refused change is not done then, and an accepted one is.

use crate::common::{Daemon, namespace};
use rustix::fs::OFlags;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use sluice_host::Controller;
use sluice_nvme::SubmissionEntry;
use sluice_nvme::opcode::admin;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Returns the numbers of the descriptors that a process has open.
fn open_in(process: u32) -> Vec<u64> {
    let entries =
        std::fs::read_dir(Path::new("/proc").join(process.to_string()).join("fd")).expect("it runs");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

fn limit(daemon: &Daemon, descriptors: u64) {
    let process = Pid::from_raw(daemon.pid().cast_signed()).expect("a process");
    let wanted = Rlimit { current: Some(descriptors), maximum: Some(4096) };
    prlimit(Some(process), Resource::Nofile, wanted).expect("it is ours");
}

/// Leaves a daemon `free` unused descriptors.
fn leave(daemon: &Daemon, free: usize) {
    // A descriptor that is closed on another thread meanwhile would be one more.
    let mut open = open_in(daemon.pid());
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let before = std::mem::replace(&mut open, open_in(daemon.pid()));
        if before == open {
            break;
        }
    }
    let unused = (0..4096).filter(|number| !open.contains(number));
    limit(daemon, unused.take(free + 1).last().expect("some are free"));
}

fn format(host: &mut Controller, lbaf: u32) -> bool {
    let entry = SubmissionEntry { opcode: admin::FORMAT_NVM, nsid: 1, cdw10: lbaf, ..Default::default() };
    host.admin(entry).is_ok()
}

#[test]
fn a_format_that_was_refused_for_want_of_descriptors_is_not_made_by_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk.img");
    let mut daemon = Daemon::start(&format!(
        "[[drive]]\nname = \"demo\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"{}\"\nsize = \"1MiB\"\n",
        path.display()
    ));
    let mut outcomes = Vec::new();
    for free in 0..5 {
        let mut host = daemon.host("demo");
        let mut disk = namespace(&mut host, 1);
        let before = disk.block_size();
        disk.write(0, &[7; 4096]).expect("it is in range");
        disk.flush().expect("nothing is wrong");
        drop(disk);
        leave(&daemon, free);
        let (lbaf, after) = if before == 512 { (1, 4096) } else { (0, 512) };
        let is_done = format(&mut host, lbaf);
        limit(&daemon, 1024);
        drop(host);
        daemon.crash();
        daemon.restart();
        let mut host = daemon.host("demo");
        let mut disk = namespace(&mut host, 1);
        let mut block = [0; 4096];
        disk.read(0, &mut block).expect("it is in range");
        let (wanted, size) = if is_done { (0, after) } else { (7, before) };
        assert_eq!((block, disk.block_size()), ([wanted; 4096], size), "{free} free, done: {is_done}");
        outcomes.push(is_done);
    }
    assert!(!outcomes[0] && outcomes[4], "{outcomes:?}: none is too few, and some are enough");
}

#[test]
fn a_drive_whose_deletion_was_refused_for_want_of_descriptors_is_there_after_a_restart() {
    let mut daemon = Daemon::start("");
    for free in 1..7 {
        let name = format!("drive-{free}");
        daemon.ok(&["drive", "create", &name, "--null", "1MiB"]);
        leave(&daemon, free);
        let is_done = std::thread::scope(|scope| {
            let order = scope.spawn(|| daemon.run(&["drive", "delete", &name]).status.success());
            // An order waits if the daemon cannot even accept its caller. The caller gets an answer once the
            // limit is raised.
            let waits = (0..200).all(|_| {
                std::thread::sleep(Duration::from_millis(10));
                !order.is_finished()
            });
            if waits {
                limit(&daemon, 1024);
            }
            order.join().expect("it ends")
        });
        limit(&daemon, 1024);
        daemon.crash();
        daemon.restart();
        let is_there = daemon.run(&["drive", "show", &name]).status.success();
        assert_eq!(is_there, !is_done, "{free} free, done: {is_done}");
    }
}

/// Checks that functions and the next version of the daemon get none of its descriptors. Only the first three are meant for
/// them.
#[test]
fn a_process_that_the_daemon_starts_inherits_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port").port();
    let daemon = Daemon::start(&format!(
        "[tcp]\nlisten = [\"127.0.0.1:{port}\"]\n\
         [[shared]]\nname = \"thin\"\ntype = \"thin\"\npath = \"{}\"\nsize = \"8MiB\"\n\
         [[shared]]\nname = \"memory\"\ntype = \"memory-pool\"\nsize = \"1MiB\"\n\
         [[drive]]\nname = \"demo\"\n[drive.tcp]\n[drive.vfio_user]\nsockets = 1\n\
         [[drive.namespace]]\ntarget = \"thin\"\nshared = \"thin\"\nvolume = \"v\"\nsize = \"1GiB\"\n\
         [[drive.namespace]]\ntarget = \"memory-pool\"\nshared = \"memory\"\nsize = \"1MiB\"\n\
         [[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n\
         [[drive.namespace]]\ntarget = \"file\"\npath = \"{}\"\nsize = \"1MiB\"\n\
         functions = [ {{ kind = \"uif\", function = \"pass\", place = \"process\" }} ]\n",
        file("pool.img"),
        file("disk.img"),
    ));
    let mut host = daemon.host("demo");
    let _disk = namespace(&mut host, 1);
    // This process may have got some itself, and passes them on.
    let (own, found) = (inherited(std::process::id()), inherited(daemon.pid()));
    let more: Vec<_> = found.into_iter().filter(|file| !own.contains(file)).collect();
    assert!(more.is_empty(), "{more:?}");
}

/// Returns the files of descriptors beyond the first three that the processes get which a process starts.
fn inherited(process: u32) -> Vec<PathBuf> {
    let folder = Path::new("/proc").join(process.to_string());
    let is_inherited = |number: &u64| {
        // It may have been closed meanwhile.
        let information =
            std::fs::read_to_string(folder.join(format!("fdinfo/{number}"))).unwrap_or_default();
        let flags = information.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
        flags.is_some_and(|flags| flags & OFlags::CLOEXEC.bits().cast_signed() == 0)
    };
    let numbers = open_in(process).into_iter().filter(|number| *number > 2 && is_inherited(number));
    numbers.filter_map(|number| std::fs::read_link(folder.join(format!("fd/{number}"))).ok()).collect()
}
