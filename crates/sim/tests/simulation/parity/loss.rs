//! Power cuts of a single layer, while the function goes on.

use super::rig::{Asked, BLOCK, Rig, SLOT, SLOTS};
use sluice_command::Operation;
use sluice_nvme::Status;
use sluice_sim::read_tag;
use sluice_uif::abi::disposition;

/// Number of storage that was not seen yet.
pub(super) const UNSEEN: u64 = u64::MAX;

/// Returns the number of storage as a function gets it.
pub(super) fn storage_words(number: u64) -> [u64; 2] {
    [number, if number == UNSEEN { UNSEEN } else { 0 }]
}

impl Rig {
    /// Has a layer lose its power: now, as the next request reports, or at the next flush, which fails.
    pub(super) fn lose(&mut self, layer: usize, at_flush: bool) {
        match at_flush {
            true => self.flush_loss[layer] = true,
            false => {
                self.cut_power_of(layer);
                self.loss[layer] = true;
            }
        }
    }

    /// Returns the status with which a request reports a loss of its layer.
    pub(super) fn take_loss(&mut self, layer: usize, operation: Operation) -> Option<Status> {
        if self.loss.get_mut(layer).is_some_and(std::mem::take) {
            if layer == 0 {
                self.lose_read_blocks();
            }
            return Some(Status::WRITES_LOST);
        }
        let is_flush = operation == Operation::Flush;
        if !is_flush || !self.flush_loss.get_mut(layer).is_some_and(std::mem::take) {
            return None;
        }
        self.cut_power_of(layer);
        Some(Status::WRITE_FAULT)
    }

    /// Notes whether data of layer 0 came with a command of the host.
    pub(super) fn note_origin(&mut self, asked: &Asked, at: u64, length: usize) {
        let is_own = asked.reply.disposition == disposition::REQUEST && asked.data >= SLOTS * SLOT;
        let first = (at / BLOCK) as usize;
        for block in first..first + length.div_ceil(BLOCK as usize) {
            self.is_direct.get_mut(block).into_iter().for_each(|it| *it = !is_own);
        }
    }

    fn cut_power_of(&mut self, layer: usize) {
        for asked in self.asked.clone() {
            // The target sends the requests again.
            if usize::from(asked.reply.layer) == layer && asked.request.operation != Operation::Read {
                self.apply(&asked, 0.5);
            }
        }
        match layer {
            0 => self.cut_power_of_drive(),
            _ => self.cut_power_of_device(),
        }
    }

    fn cut_power_of_drive(&mut self) {
        let before = self.image(0);
        self.disks[0].lock().power_cut();
        let after = self.image(0);
        let tag = |image: &[u8], block: usize| {
            read_tag(&image[block * BLOCK as usize..][..BLOCK as usize]).expect("whole blocks")
        };
        // The host's own writes were on the drive alone. A write under way may be in the cache, too.
        let lost: Vec<(bool, bool)> = (0..self.blocks)
            .map(|block| {
                let allowed = self.model.candidates(block);
                let is_there = |image| allowed.contains(&tag(image, block as usize));
                let is_changed = tag(&before, block as usize) != tag(&after, block as usize);
                let is_lost = self.is_direct[block as usize] && is_changed && is_there(&before);
                (is_lost, is_lost && !is_there(&after) && self.model.known(block).is_some())
            })
            .collect();
        let is_owed = |block: u64, found| lost[block as usize].1 && found == tag(&after, block as usize);
        self.model.lose_blocks(|block| lost[block as usize].0, is_owed);
        self.lost = lost.iter().map(|(is_lost, _)| *is_lost).collect();
    }

    /// Loses blocks whose lost data was read from a cache before the report.
    fn lose_read_blocks(&mut self) {
        let lost = std::mem::take(&mut self.lost);
        self.model.lose_blocks(|block| lost.get(block as usize) == Some(&true), |_, _| false);
    }

    /// Cuts the power of a cache's device. In write-through mode nothing is lost.
    fn cut_power_of_device(&mut self) {
        self.disks[1].lock().power_cut();
        if self.options.get("mode") != Some("write-through") {
            self.model.lose_blocks(|_| true, |_, _| false);
        }
    }
}
