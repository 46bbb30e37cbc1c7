//! Power losses of this machine while hosts on the network stay up.
//!
//! The specification lets a volatile write cache lose unflushed data, and gives a later Flush no status for
//! it. So the Flush succeeds, and hosts find the loss where the specification has a place for it.

use crate::common::{Daemon, namespace};
use crate::history::events;
use crate::nvme::pattern;
use crate::volatile::{Disk, boot_id};
use sluice_host::identify::power_id;
use sluice_nvme::log::SmartHealth;
use sluice_nvme::persistent_event::event;
use sluice_nvme::{LogId, NSID_ALL};
use std::net::TcpListener;
use zerocopy::{FromZeros, IntoBytes};

const SIZE: usize = 16 << 20;
const PART: usize = 64 << 10;

/// Values about the drive's power that a host can read.
#[derive(Debug, PartialEq)]
struct Found {
    cycles: u64,
    unsafe_shutdowns: u64,
    power_id: [u8; 16],
    /// Number of unsafe shutdown events in the Persistent Event Log.
    events: usize,
}

fn look(daemon: &Daemon) -> Found {
    let mut host = daemon.host("disk");
    let mut page = SmartHealth::new_zeroed();
    host.get_log_page(LogId::SMART_HEALTH, NSID_ALL, 0, page.as_mut_bytes()).expect("the log");
    let power_id = power_id(host.identity().expect("it was read")).expect("a drive of Sluice has one");
    let events = events(&mut host).iter().filter(|(kind, _)| *kind == event::HARDWARE_ERROR).count();
    host.shutdown().expect("shut down");
    Found { cycles: page.power_cycles[0], unsafe_shutdowns: page.unsafe_shutdowns[0], power_id, events }
}

/// Starts the machine again, after the disk has lost its unsynced data.
fn lose_power(daemon: &mut Daemon, disk: &Disk, boots: u32) {
    daemon.crash();
    disk.cut();
    daemon.boot = Some(boot_id(daemon.folder.path(), boots));
    daemon.restart();
}

#[test]
fn hosts_find_that_this_machine_lost_its_power() {
    let Some(disk) = Disk::new(SIZE) else { return };
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let mut daemon = Daemon::start(&format!(
        "[tcp]\nlisten = [\"127.0.0.1:{port}\"]\n[[drive]]\nname = \"disk\"\n[drive.tcp]\n\
         [drive.vfio_user]\nsockets = 1\n\
         [[drive.namespace]]\ntarget = \"file\"\npath = \"{}\"\n",
        disk.path().display()
    ));
    let first = look(&daemon);
    assert_eq!((first.cycles, first.unsafe_shutdowns), (1, 0));
    daemon.stop();
    daemon.restart();
    let stopped = look(&daemon);
    assert_eq!(stopped, Found { cycles: 2, ..first }, "an orderly stop loses nothing");
    daemon.crash();
    daemon.restart();
    let killed = look(&daemon);
    assert_eq!(
        (killed.unsafe_shutdowns, killed.power_id),
        (0, stopped.power_id),
        "the machine kept its power"
    );
    let before = look(&daemon);
    let mut host = daemon.host("disk");
    let mut writer = namespace(&mut host, 1);
    writer.write(0, &pattern(1, PART)).expect("written");
    writer.flush().expect("flushed");
    writer.write(0, &pattern(2, PART)).expect("written");
    drop((writer, host));
    lose_power(&mut daemon, &disk, 1);
    // The daemon stores the loss before it serves, so it counts also if the power is lost again at once.
    lose_power(&mut daemon, &disk, 2);
    let after = look(&daemon);
    assert!(after.cycles > before.cycles && after.power_id != before.power_id, "{before:?}, {after:?}");
    assert!(after.unsafe_shutdowns >= before.unsafe_shutdowns + 2, "{before:?}, {after:?}");
    assert!(after.events > before.events, "{before:?}, {after:?}");
    let mut host = daemon.host("disk");
    let mut disk = namespace(&mut host, 1);
    let mut read = vec![0; PART];
    disk.read(0, &mut read).expect("read");
    assert!(read == pattern(1, PART), "what was flushed is there");
    disk.flush().expect("there is nothing left to lose");
}
