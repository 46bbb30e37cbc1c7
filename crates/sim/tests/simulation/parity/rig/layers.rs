//! The layers below a function: disks that answer its requests, fail some, and lose their power.

use super::{Asked, Rig};
use sluice_command::Operation;
use sluice_functions::host::entry;
use sluice_nvme::Status;
use sluice_uif::abi::{Submission, disposition, kind};

impl Rig {
    /// Ends a request of a layer, or lets time pass. Returns false if the power fails now.
    pub(in super::super) fn turn(&mut self) -> bool {
        if self.asked.is_empty() {
            let alarm_ns = self.session.alarm_ns().unwrap_or(self.now_ns);
            self.now_ns = alarm_ns.max(self.now_ns) + 1;
            self.session.expire(&mut self.memory, self.now_ns);
            self.listen();
            return true;
        }
        self.now_ns += self.random.below(10_000_000);
        let asked = self.asked.swap_remove(self.random.below(self.asked.len() as u64) as usize);
        let layer = usize::from(asked.reply.layer);
        let is_log = layer == self.members;
        if is_log && asked.request.operation != Operation::Read {
            self.log_writes += 1;
            if self.cut_at == Some(self.log_writes) {
                self.asked.push(asked);
                return false;
            }
        }
        let is_read = asked.request.operation == Operation::Read;
        self.changes += u64::from(!is_read);
        if !is_read && self.cut_change == Some(self.changes) {
            self.asked.push(asked);
            return false;
        }
        if let Some(status) = self.take_loss(layer, asked.request.operation) {
            self.answer(&asked, status);
            return true;
        }
        if is_read && !is_log && self.random.chance(self.media) {
            self.answer(&asked, Status::UNRECOVERED_READ_ERROR);
            return true;
        }
        if is_log && self.log_faults > 0.0 && self.random.chance(self.log_faults) {
            let chance = if self.random.one_in(2) { 1.0 } else { 0.5 };
            self.apply(&asked, chance);
            self.answer(&asked, Status::WRITE_FAULT);
            return true;
        }
        let good = self.up[layer] && (is_log || !self.random.chance(self.faults));
        self.apply(&asked, if good { 1.0 } else { 0.5 });
        self.answer(&asked, if good { Status::SUCCESS } else { Status::WRITE_FAULT });
        true
    }

    fn answer(&mut self, asked: &Asked, status: Status) {
        let about = Submission { tag: asked.reply.tag, status: status.0, ..entry::about(&asked.request) };
        match asked.reply.disposition {
            disposition::REQUEST => self.show(&Submission { kind: kind::DONE, ..about }),
            disposition::FORWARD => self.finish(asked.reply.tag, status),
            _ => {
                let returned = Submission {
                    kind: kind::RETURNED,
                    tag: self.next_tag_of(asked.reply.tag as u32 as usize),
                    stage: asked.reply.stage,
                    cookie: asked.reply.cookie,
                    data_offset: asked.data as u32,
                    data_length: asked.request.length as u32,
                    ..about
                };
                self.show(&returned);
            }
        }
    }

    /// Executes each block of a request with this probability.
    pub(in super::super) fn apply(&mut self, asked: &Asked, chance: f64) {
        let (layer, request) = (usize::from(asked.reply.layer), asked.request);
        let length = request.length as usize;
        match request.operation {
            Operation::Flush if chance == 1.0 => self.disks[layer].lock().flush(),
            Operation::Flush => {}
            Operation::Read => {
                let into = self.memory.bytes(asked.data, length).expect("it is there");
                self.disks[layer].lock().read(request.offset, into);
            }
            _ => {
                let data = match request.operation {
                    Operation::Write => self.memory.bytes(asked.data, length).expect("it is there").to_vec(),
                    _ => vec![0; length],
                };
                for (at, block) in
                    (request.offset..).step_by(self.atom as usize).zip(data.chunks(self.atom as usize))
                {
                    if self.random.chance(chance) {
                        self.disks[layer].lock().write(at, block);
                        if layer == 0 {
                            self.note_origin(asked, at, block.len());
                        }
                    }
                }
                if request.fua && chance == 1.0 {
                    self.disks[layer].lock().persist(request.offset..request.end());
                }
            }
        }
    }

    /// Cuts the power of layer 0 alone, which reports that once. Requests to it are sent again by its target.
    pub(in super::super) fn lose_power_below(&mut self) {
        for asked in &self.asked.clone() {
            if asked.reply.layer == 0 {
                self.apply(asked, 0.5);
            }
        }
        self.disks[0].lock().power_cut();
        self.model.lose_unflushed();
        self.loss[0] = true;
    }

    /// Has a layer report another storage from now on. Returns the former number.
    pub(in super::super) fn exchange_storage(&mut self, layer: usize, number: u64) -> u64 {
        std::mem::replace(&mut self.storage[layer], number)
    }
}
