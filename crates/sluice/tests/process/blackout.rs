//! Power cuts of a machine with some disks, whose daemon serves a drive to a host that works.
//!
//! A cut takes unsynced data from the [disks](crate::volatile), and ends the daemon. The model of the
//! [load](crate::numbered) has the writes that may be there after the next start.

use crate::common::{Daemon, LIMIT, wait_for};
use crate::numbered::{Dice, Epoch, Numbered};
use crate::volatile::{Disk, boot_id};
use rustix::process::Signal;
use sluice_host::{Controller, entry};
use sluice_nvme::FeatureId;
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// The machine, and the load of its host.
pub(crate) struct Machine<'a> {
    pub(crate) daemon: Daemon,
    pub(crate) load: Numbered,
    pub(crate) dice: Dice,
    /// Block device over a disk, whose pages fail to be written back in a cut.
    pub(crate) device: Option<PathBuf>,
    disks: &'a [&'a Disk],
    epoch: Epoch,
    boots: u32,
    host: Option<Controller>,
}

impl<'a> Machine<'a> {
    pub(crate) fn start(disks: &'a [&'a Disk], drive: &str, seed: u64) -> Self {
        let epoch = Epoch::default();
        let load = Numbered::new(seed, Epoch::clone(&epoch), false);
        Self {
            daemon: Daemon::start(drive),
            load,
            dice: Dice::new(!seed),
            device: None,
            disks,
            epoch,
            boots: 0,
            host: None,
        }
    }

    /// Connects the host, with the volatile write cache off if the load is of such a host.
    pub(crate) fn connect(&mut self) {
        let mut host = self.daemon.host("disk");
        if self.load.is_through {
            let off = entry::set_features(FeatureId::VOLATILE_WRITE_CACHE, 0, 0);
            assert!(host.admin(off).expect("an answer").status().is_success());
        }
        self.load.connect(&mut host);
        self.host = Some(host);
    }

    pub(crate) fn disconnect(&mut self) {
        self.load.disconnect();
        self.host = None;
    }

    /// Lets the load work until a random number of writes is acknowledged.
    pub(crate) fn work(&mut self, most: u64) {
        let (start, enough) = (Instant::now(), self.load.acknowledged + 20 + self.dice.below(most));
        while self.load.acknowledged < enough {
            assert!(self.load.turn(true) && start.elapsed() < LIMIT, "no writes: {}", self.daemon.log());
        }
    }

    /// Cuts the power of the machine under load, and turns it on again. A part of the unsynced blocks survives.
    pub(crate) fn cut(&mut self) {
        self.cut_with(|_| true);
    }

    /// Cuts the power of the machine, and of the disks where `is_cut` returns true: others keep their caches.
    pub(crate) fn cut_with(&mut self, is_cut: impl Fn(usize) -> bool) {
        self.epoch.fetch_add(1, Relaxed);
        // The daemon must not see the errors of the disks.
        self.daemon.signal(Signal::STOP);
        wait_for("a daemon that is stopped", || is_stopped(self.daemon.pid()));
        let share = self.dice.below(4);
        for (number, disk) in self.disks.iter().enumerate() {
            disk.power_off(|| !is_cut(number) || self.dice.below(4) < share);
        }
        self.daemon.crash();
        self.disconnect();
        self.load.lose_power();
        for disk in self.disks {
            disk.power_on();
        }
        // The kernel reports that failure to the first sync, which must not be the next daemon's.
        if let Some(device) = self.device.as_ref().and_then(|path| File::open(path).ok()) {
            let _ = device.sync_all();
        }
        self.epoch.fetch_add(1, Relaxed);
        self.boots += 1;
        self.daemon.boot = Some(boot_id(self.daemon.folder.path(), self.boots));
        self.daemon.restart();
    }

    /// Returns whether a test goes on after `done` cuts of `least`: further ones follow if none has taken a write.
    pub(crate) fn goes_on(&self, done: u32, least: u32) -> bool {
        let may_lose = !self.load.is_through && self.load.lost == 0;
        done < least || may_lose && done < 5 * least
    }

    /// Reads and checks everything, and flushes it.
    pub(crate) fn settle(&mut self) {
        self.load.settle().unwrap_or_else(|status| panic!("{status:?}\n{}", self.daemon.log()));
    }
}

/// Returns whether all threads of a process are stopped, except for those of io_uring in the kernel.
fn is_stopped(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it is there").flatten();
    let stats = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
    stats.filter(|stat| !stat.contains("(iou-")).all(|stat| stat.contains(") T "))
}
