//! Clones of volumes in use, beside the random commands of all volumes.

use super::disk::{SECTOR, SharedDisk};
use super::rig::Volume;
use super::stack::{BLOCK, BLOCKS, Drive, Value, bytes};
use crate::Error;
use crate::committer::Committer;
use crate::layer::OnFull;
use sluice_command::Request;
use sluice_nvme::Status;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Instant;

type Home = Committer<SharedDisk>;

/// A clone with the values that each block may have.
struct Snapshot {
    name: String,
    /// Number of the drive that it is of.
    of: usize,
    possible: Vec<Vec<Value>>,
    /// The reply; none if the clone is made.
    reply: Option<Receiver<Result<(), Error>>>,
}

#[derive(Default)]
pub(super) struct Snapshots {
    all: Vec<Snapshot>,
    count: u32,
    /// Clones that were made under commands.
    pub(super) made: u32,
}

impl Snapshot {
    /// Adds the present values of the drive, and the new ones of commands under way.
    fn follow(&mut self, drive: &Drive) {
        for (number, (possible, now)) in self.possible.iter_mut().zip(drive.values()).enumerate() {
            let new = drive.values_under_way(number as u64).chain([now]);
            for value in new {
                if !possible.contains(&value) {
                    possible.push(value);
                }
            }
        }
    }

    /// Reads all of the clone. Returns false if the power has failed meanwhile.
    fn check(&self, committer: &mut Home, disk: &SharedDisk) -> bool {
        let opened = Volume::open(committer, disk, &self.name, BLOCKS * BLOCK, OnFull::Fail);
        let Ok(mut volume) = opened else {
            assert!(disk.lock().is_dead, "it opens");
            return false;
        };
        for (number, possible) in self.possible.iter().enumerate() {
            let request = Request { offset: number as u64 * BLOCK, length: BLOCK, ..Request::default() };
            let (status, data) = volume.run(committer, request, &[]).expect("it ends");
            if disk.lock().is_dead {
                return false;
            }
            assert_eq!(status, Status::SUCCESS);
            // A write of a block is in the clone as a whole, or not at all.
            assert!(
                possible.iter().any(|value| bytes(*value, BLOCK as usize) == data),
                "block {number} of {} has {:x?}, and not one of {possible:?}",
                self.name,
                data.chunks(SECTOR).map(|sector| &sector[..5]).collect::<Vec<_>>(),
            );
        }
        true
    }
}

impl Snapshots {
    /// Orders a clone of a drive, if there are few.
    pub(super) fn order(&mut self, committer: &mut Home, of: usize, drive: &Drive) {
        if self.all.len() > 2 {
            return;
        }
        self.count += 1;
        let (reply, answer) = channel();
        let name = format!("clone {}", self.count);
        committer.order_clone(name.clone(), drive.name.clone(), Instant::now(), reply);
        let possible = vec![Vec::new(); BLOCKS as usize];
        let mut snapshot = Snapshot { name, of, possible, reply: Some(answer) };
        snapshot.follow(drive);
        self.all.push(snapshot);
    }

    /// Notes the changes of a drive, and the replies.
    pub(super) fn follow(&mut self, of: usize, drive: &Drive) {
        for snapshot in self.all.iter_mut().filter(|it| it.of == of && it.reply.is_some()) {
            snapshot.follow(drive);
        }
        self.all.retain_mut(|snapshot| {
            let answer = snapshot.reply.as_ref().map(Receiver::try_recv);
            match answer {
                Some(Ok(Ok(()))) => {
                    snapshot.reply = None;
                    self.made += 1;
                    true
                }
                // The pool does not write any more.
                Some(Ok(Err(_)) | Err(TryRecvError::Disconnected)) => false,
                Some(Err(TryRecvError::Empty)) | None => true,
            }
        });
    }

    /// Checks a clone that is made, and deletes it.
    pub(super) fn check_one(&mut self, committer: &mut Home, disk: &SharedDisk) {
        let Some(found) = self.all.iter().position(|snapshot| snapshot.reply.is_none()) else { return };
        if self.all[found].check(committer, disk) {
            let deleted = committer.delete_volume(&self.all[found].name);
            assert!(deleted.is_ok() || disk.lock().is_dead, "{deleted:?}");
            if !disk.lock().is_dead {
                self.all.swap_remove(found);
            }
        }
    }

    /// Checks all clones after a power cut, and deletes them. One without a reply may be there or not.
    pub(super) fn check_all(&mut self, committer: &mut Home, disk: &SharedDisk) {
        let names: Vec<String> = committer.book().volumes().map(|(_, volume)| volume.name.clone()).collect();
        for snapshot in self.all.drain(..) {
            let is_there = names.contains(&snapshot.name);
            // A deletion may have begun.
            if is_there {
                assert!(snapshot.check(committer, disk), "the power is on");
            }
        }
        for name in names.iter().filter(|name| name.starts_with("clone ")) {
            committer.delete_volume(name).expect("it has no user");
        }
    }
}
