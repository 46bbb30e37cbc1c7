//! A correct controller with another reading of the specification than Sluice's: the smallest queues and
//! transfers, unusual but legal values, and answers in another order. Written data is kept.

use super::{BLOCK, BLOCKS, DATA_MAX, Fake, Link, SUBNQN};
use sluice_nvme::fabrics::{self, Fctype, Property};
use sluice_nvme::identify::{IdentifyController, IdentifyNamespace};
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::register::{self, csts};
use sluice_nvme::{Cns, CompletionEntry, SglDescriptor, Status, SubmissionEntry};
use sluice_nvme_tcp::{Data, Digests, Pdu, R2t, encode};
use std::collections::VecDeque;
use std::sync::Mutex;
use zerocopy::{FromZeros, IntoBytes};

/// Reported properties of the controller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// CAP.MQES: entries of a queue less one, which are the commands that it can hold.
    pub(crate) mqes: u16,
    /// CAP.MPSMIN: its smallest page is 4 KiB, shifted by this.
    pub(crate) mpsmin: u8,
    pub(crate) mdts: u8,
    /// Bytes of data in a capsule.
    pub(crate) in_capsule: u32,
    /// CPDA, in bytes.
    pub(crate) alignment: u8,
    /// Bytes of data in each R2T, or in each C2HData PDU.
    pub(crate) piece: u32,
    /// Index of the namespace's LBA format.
    pub(crate) format: u8,
}

/// A controller with such a reading.
pub(crate) struct Odd {
    pub(crate) reading: Reading,
    disk: Mutex<Vec<u8>>,
    /// Violations by the host, under this reading.
    faults: Mutex<Vec<String>>,
    /// The most commands that it had on its I/O queue at a time.
    deepest: Mutex<usize>,
}

impl Odd {
    fn fault(&self, what: String) {
        self.faults.lock().expect("no panic").push(what);
    }

    fn check(&self, is_right: bool, what: &str) {
        if !is_right {
            self.fault(format!("{what}, with {:?}", self.reading));
        }
    }
}

impl Fake {
    pub(crate) fn reading(reading: Reading) -> Self {
        let fake = Self::start(Box::new(|_, _| true));
        let disk = Mutex::new(vec![0x5a; BLOCKS as usize * BLOCK]);
        let odd = Odd { reading, disk, faults: Mutex::default(), deepest: Mutex::default() };
        assert!(fake.access.odd.set(odd).is_ok(), "it is new");
        fake
    }

    /// Returns the host's violations, and the most commands that it had at a time.
    pub(crate) fn judgement(&self) -> (Vec<String>, usize) {
        let odd = self.access.odd.get().expect("it is odd");
        (odd.faults.lock().expect("no panic").clone(), *odd.deepest.lock().expect("no panic"))
    }
}

impl Link {
    /// Sends a response. Its submission queue head is random, since the host has disabled flow control or
    /// does not use it.
    fn respond_oddly(&mut self, entry: &SubmissionEntry, status: Status, value: u64) {
        let mut response = CompletionEntry::new(value as u32, u16::MAX, 0, entry.cid, status, false);
        response.dw1 = (value >> 32) as u32;
        self.send(encode::capsule_resp(&response, Digests::NONE).as_bytes());
    }

    pub(super) fn serve_admin_oddly(&mut self, odd: &Odd) -> Option<()> {
        // The controller becomes ready only after several reads of CSTS.
        let (mut cc, mut looks) = (0u32, 0);
        loop {
            let (Pdu::Command(entry, _), _) = self.next()? else { return None };
            let Reading { mqes, mpsmin, .. } = odd.reading;
            match entry.opcode {
                fabrics::OPCODE if Fctype::of(&entry) == Fctype::PROPERTY_GET => {
                    let value = match Property::of(&entry).offset {
                        // CQR, TO of half a second, CSS of the NVM command set, MPSMIN and MPSMAX.
                        register::CAP => {
                            let pages = u64::from(mpsmin) << 48 | 0xf << 52;
                            u64::from(mqes) | 1 << 16 | 1 << 24 | 1 << 37 | pages
                        }
                        register::CSTS if cc & 1 != 0 => {
                            looks += 1;
                            if looks > 2 { csts::RDY.into() } else { 0 }
                        }
                        _ => 0,
                    };
                    self.respond_oddly(&entry, Status::SUCCESS, value);
                }
                fabrics::OPCODE => {
                    let property = Property::of(&entry);
                    if property.offset == register::CC {
                        cc = property.value as u32;
                        odd.check(cc >> 7 & 0xf >= mpsmin.into(), "CC.MPS is below CAP.MPSMIN");
                    }
                    self.respond_oddly(&entry, Status::SUCCESS, 0);
                }
                admin::IDENTIFY if entry.cdw10 as u8 == Cns::CONTROLLER.0 => {
                    self.give_oddly(odd, &entry, odd.identity().as_bytes());
                }
                // Controllers before NVMe 1.3 have no such list.
                admin::IDENTIFY if entry.cdw10 as u8 == Cns::NAMESPACE_DESCRIPTORS.0 => {
                    self.respond_oddly(&entry, Status::INVALID_FIELD, 0);
                }
                admin::IDENTIFY => self.give_oddly(odd, &entry, odd.namespace().as_bytes()),
                // No event is ever reported.
                admin::ASYNC_EVENT_REQUEST => {}
                _ => self.respond_oddly(&entry, Status::SUCCESS, 0),
            }
        }
    }

    /// Serves an I/O queue, and answers every other command before the one that came first.
    pub(super) fn serve_io_oddly(&mut self, odd: &Odd, mqes: usize) -> Option<()> {
        odd.check(mqes <= odd.reading.mqes.into(), "a queue is larger than CAP.MQES");
        let mut held = VecDeque::new();
        for turn in 0u32.. {
            if held.is_empty() {
                let next = self.next()?;
                self.note(odd, &mut held, next, 0)?;
            }
            let entry = if turn % 2 == 0 { held.pop_back() } else { held.pop_front() };
            let Some((entry, data)) = entry else { continue };
            match entry.opcode {
                io::READ => {
                    let length = SglDescriptor::from_dptr(entry.dptr).length as usize;
                    let start = entry.slba() as usize * BLOCK;
                    let bytes = odd.disk.lock().expect("no panic")[start..start + length].to_vec();
                    self.give_oddly(odd, &entry, &bytes);
                }
                io::WRITE => {
                    let data = match data.is_empty() {
                        true => self.fetch_oddly(odd, &mut held, &entry, turn as u16)?,
                        false => data,
                    };
                    let start = entry.slba() as usize * BLOCK;
                    odd.disk.lock().expect("no panic")[start..start + data.len()].copy_from_slice(&data);
                    self.respond_oddly(&entry, Status::SUCCESS, 0);
                }
                io::FLUSH => self.respond_oddly(&entry, Status::SUCCESS, 0),
                _ => self.respond_oddly(&entry, Status::INVALID_OPCODE, 0),
            }
        }
        None
    }

    /// Takes a command, beside one that is carried out perhaps.
    fn note(
        &mut self,
        odd: &Odd,
        held: &mut VecDeque<(SubmissionEntry, Vec<u8>)>,
        (pdu, data): (Pdu, Vec<u8>),
        beside: usize,
    ) -> Option<()> {
        let Pdu::Command(entry, _) = pdu else { return None };
        let Reading { mqes, in_capsule, mdts, .. } = odd.reading;
        odd.check(data.len() <= in_capsule as usize, "a capsule has more data than IOCCSZ");
        let length = u64::from(SglDescriptor::from_dptr(entry.dptr).length);
        let page = 4096u64 << odd.reading.mpsmin;
        odd.check(mdts == 0 || length <= page << mdts, "a transfer is larger than MDTS");
        held.push_back((entry, data));
        let count = held.len() + beside;
        odd.check(count <= mqes.into(), "there are more commands than the queue has room for");
        let mut deepest = odd.deepest.lock().expect("no panic");
        *deepest = count.max(*deepest);
        Some(())
    }

    /// Requests the data of a write in several parts, while other commands may come.
    fn fetch_oddly(
        &mut self,
        odd: &Odd,
        held: &mut VecDeque<(SubmissionEntry, Vec<u8>)>,
        entry: &SubmissionEntry,
        tag: u16,
    ) -> Option<Vec<u8>> {
        let length = SglDescriptor::from_dptr(entry.dptr).length;
        let mut all = Vec::new();
        while all.len() < length as usize {
            let ttag = tag.wrapping_mul(257).wrapping_add(all.len() as u16) | 0x8000;
            let offset = all.len() as u32;
            let wanted = odd.reading.piece.min(length - offset);
            self.ask(R2t { cccid: entry.cid, ttag, offset, length: wanted });
            let mut got = 0;
            while got < wanted {
                match self.next()? {
                    (Pdu::Data(data), bytes) => {
                        let there = (entry.cid, ttag, offset + got);
                        let is_right = (data.cccid, data.ttag, data.offset) == there;
                        odd.check(is_right, "H2CData is not what was asked for");
                        odd.check(data.length <= DATA_MAX, "H2CData is larger than MAXH2CDATA");
                        got += data.length;
                        odd.check(data.last == (got == wanted), "LAST_PDU is on another than the last");
                        all.extend(bytes);
                    }
                    other => self.note(odd, held, other, 1)?,
                }
            }
        }
        Some(all)
    }

    /// Sends data in many parts, each with a larger alignment than the host needs, and no response if none is
    /// needed.
    fn give_oddly(&mut self, odd: &Odd, entry: &SubmissionEntry, bytes: &[u8]) {
        let is_io = entry.opcode == io::READ;
        let piece = if is_io { odd.reading.piece as usize } else { bytes.len() };
        for (index, part) in bytes.chunks(piece).enumerate() {
            let offset = index * piece;
            let last = offset + part.len() == bytes.len();
            let (offset, length) = (offset as u32, part.len() as u32);
            let data = Data { cccid: entry.cid, ttag: 0, offset, length, last, success: last && is_io };
            let head = encode::c2h_data(data, Digests::NONE, 128);
            self.send(&[head.as_bytes(), part].concat());
        }
        if !is_io {
            self.respond_oddly(entry, Status::SUCCESS, 0);
        }
    }
}

impl Odd {
    fn identity(&self) -> IdentifyController {
        let mut identity = IdentifyController::new_zeroed();
        identity.subnqn[..SUBNQN.len()].copy_from_slice(SUBNQN.as_bytes());
        identity.mdts = self.reading.mdts;
        (identity.ioccsz, identity.iorcsz) = ((64 + self.reading.in_capsule) / 16, 1);
        identity
    }

    fn namespace(&self) -> IdentifyNamespace {
        let mut identity = IdentifyNamespace::new_zeroed();
        (identity.nsze, identity.ncap) = (BLOCKS, BLOCKS);
        (identity.nlbaf, identity.flbas) = (15, self.reading.format);
        identity.lbaf.iter_mut().take(16).for_each(|format| format.lbads = 12);
        identity.lbaf[usize::from(self.reading.format)].lbads = 9;
        identity
    }
}
