//! Admin commands that query (Identify, Get Log Page, features), Abort, and the operator's changes meanwhile.

use super::events::Event;
use super::job::{Expected, Job};
use super::{DriveNamespace, Scenario};
use crate::buffer::{Buffer, Direction};
use crate::{Action, ModelNamespace};
use sluice_nvme::{Cns, FeatureId, LogId, NSID_ALL, Status, SubmissionEntry, opcode::admin as opcode};

/// Bytes of an Identify structure, and of the longest log page.
const PAGE: usize = 4096;

/// The largest NSID (Identify Controller, NN).
pub(super) const NN: u32 = sluice_controller::NAMESPACES_MAX as u32;

impl Scenario<'_> {
    pub(super) fn ask_something(&mut self) {
        match self.random.below(9) {
            0 => self.identify_namespace(),
            1 => self.identify_list(),
            2 => self.identify_nothing(),
            3 => self.read_error_log(),
            4 => self.read_no_log(),
            5 => self.set_write_cache(),
            6 => self.ask_wrong_features(),
            7 => self.abort_any(),
            _ => self.grow_any(),
        }
    }

    /// Sends an admin command with a buffer of `length` bytes; returns the status and the buffer's contents.
    fn admin_with_buffer(&mut self, mut entry: SubmissionEntry, length: usize) -> (Status, Vec<u8>) {
        let mut buffer = Buffer::prp(&mut self.host.guest, &mut self.random, length as u32);
        buffer.describe(&mut entry);
        buffer.seal(&self.host.guest);
        let status = self.admin(entry);
        let mut bytes = vec![0; length];
        buffer.read(&self.host.guest, 0, &mut bytes);
        let direction = if status.is_success() { Direction::ToHost } else { Direction::FromHost };
        buffer.check_and_release(&mut self.host.guest, direction);
        (status, bytes)
    }

    fn identify(&mut self, cns: Cns, nsid: u32) -> (Status, Vec<u8>) {
        let cdw10 = u32::from(cns.0);
        self.admin_with_buffer(
            SubmissionEntry { opcode: opcode::IDENTIFY, nsid, cdw10, ..SubmissionEntry::default() },
            PAGE,
        )
    }

    fn any_nsid(&mut self) -> u32 {
        match self.random.below(4) {
            0 => *self.random.pick(&[0, NN + 1, NSID_ALL - 1, NSID_ALL]),
            1 => self.random.below(u64::from(NN)) as u32 + 1,
            _ => self.random.pick(&self.drive.namespaces).nsid,
        }
    }

    /// Checks Identify Namespace (NVM Command Set 4.1.5.1): size and format of an active namespace, zeroes
    /// for an inactive one, and an error for an invalid NSID.
    fn identify_namespace(&mut self) {
        let nsid = self.any_nsid();
        let (status, bytes) = self.identify(Cns::NAMESPACE, nsid);
        if !(1..=NN).contains(&nsid) {
            return assert_eq!(status, Status::INVALID_NAMESPACE, "NSID {nsid:#x}");
        }
        assert_eq!(status, Status::SUCCESS, "NSID {nsid:#x}");
        let Some(namespace) = self.drive.namespaces.iter().find(|namespace| namespace.nsid == nsid) else {
            return assert!(bytes.iter().all(|&byte| byte == 0), "NSID {nsid} is inactive");
        };
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let (nsze, ncap) = (number(0), number(8));
        // FLBAS names the format; its LBADS is the block size as a power of two.
        let format = usize::from(bytes[26] & 0xf);
        let lbads = bytes[128 + 4 * format + 2];
        assert_eq!((nsze, ncap, 1 << lbads), (namespace.blocks, namespace.blocks, namespace.block_size));
    }

    /// Checks the list of active namespaces above an NSID, in order.
    fn identify_list(&mut self) {
        let nsid = self.any_nsid();
        let (status, bytes) = self.identify(Cns::ACTIVE_NAMESPACES, nsid);
        if nsid >= NSID_ALL - 1 {
            return assert_eq!(status, Status::INVALID_NAMESPACE, "NSID {nsid:#x}");
        }
        let listed: Vec<u32> = bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let mut above: Vec<u32> = self.drive.namespaces.iter().map(|namespace| namespace.nsid).collect();
        above.retain(|&active| active > nsid);
        above.resize(PAGE / 4, 0);
        assert_eq!((status, listed), (Status::SUCCESS, above));
    }

    fn identify_nothing(&mut self) {
        let cns = Cns(*self.random.pick(&[0x04, 0x0b, 0x1d, 0x30, 0x80, 0xff]));
        assert_eq!(self.identify(cns, 0).0, Status::INVALID_FIELD, "{cns:?}");
    }

    fn log(&mut self, log: LogId, length: usize, retain: bool) -> (Status, Vec<u8>) {
        let dwords = length as u32 / 4 - 1;
        let cdw10 = dwords << 16 | u32::from(retain) << 15 | u32::from(log.0);
        let entry = SubmissionEntry { opcode: opcode::GET_LOG_PAGE, cdw10, ..SubmissionEntry::default() };
        let answer = self.admin_with_buffer(entry, length);
        if answer.0.is_success() && !retain {
            self.events.log_was_read(log.0);
        }
        answer
    }

    /// Checks Error Information (Base 5.16.1.2): the newest first, and each a command that did fail.
    fn read_error_log(&mut self) {
        let retain = self.random.one_in(2);
        let (status, bytes) = self.log(LogId::ERROR_INFORMATION, PAGE, retain);
        assert_eq!(status, Status::SUCCESS);
        self.host.reap_all();
        self.take_inbox();
        let mut last = u64::MAX;
        for entry in bytes.as_chunks::<64>().0 {
            let word = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
            let count = u64::from_le_bytes(std::array::from_fn(|byte| entry[byte]));
            if count == 0 {
                break;
            }
            assert!(count < last, "error {count} comes after {last}");
            last = count;
            let (sq, cid, error) = (word(8), word(10), word(12) >> 1);
            // An error without a command, such as a doorbell's, names none.
            let is_command = sq != u16::MAX && cid != u16::MAX;
            let known = self.errors.contains(&(sq, cid, error)) || self.unseen.contains(&(sq, cid));
            assert!(!is_command || known, "SQ {sq} CID {cid} never failed with {error:#x}");
        }
    }

    fn read_no_log(&mut self) {
        let log = LogId(*self.random.pick(&[0x07, 0x0b, 0x15, 0x70, 0xc0, 0xff]));
        assert_eq!(self.log(log, 512, true).0, Status::INVALID_LOG_PAGE, "{log:?}");
    }

    fn feature(&mut self, opcode: u8, cdw10: u32, cdw11: u32) -> (Status, u32) {
        self.admin_answer(SubmissionEntry { opcode, cdw10, cdw11, ..SubmissionEntry::default() })
    }

    /// Sets Volatile Write Cache (Base 5.27.1.4). Once it is disabled, all finished writes are durable, and
    /// so is every write that begins after.
    fn set_write_cache(&mut self) {
        let enable = self.random.one_in(2);
        let id = u32::from(FeatureId::VOLATILE_WRITE_CACHE.0);
        if !self.drive.namespaces.iter().any(|namespace| namespace.volatile_cache) {
            let (status, _) = self.feature(opcode::GET_FEATURES, id, 0);
            return assert_eq!(status, Status::INVALID_FIELD, "there is no cache");
        }
        if enable {
            self.set_model_caches(true);
        }
        let was_enabled = self.feature(opcode::GET_FEATURES, id, 0).1 != 0;
        let cached = (0..self.models.len()).filter(|&index| self.drive.namespaces[index].volatile_cache);
        let begin = |index: usize| (index, self.models[index].begin(Action::Flush));
        let flushes: Vec<_> = cached.map(begin).collect();
        let (status, _) = self.feature(opcode::SET_FEATURES, id, enable.into());
        let done = status.is_success();
        assert!(done || self.drive.faults.contains(&status), "{status:?}");
        for (index, flush) in flushes {
            self.models[index].end(flush, done && !enable && was_enabled);
        }
        if done && !enable {
            self.set_model_caches(false);
        }
    }

    fn set_model_caches(&mut self, enabled: bool) {
        let set = |(model, namespace): (&mut ModelNamespace, &DriveNamespace)| {
            model.set_volatile_cache(enabled && namespace.volatile_cache);
        };
        self.models.iter_mut().zip(&self.drive.namespaces).for_each(set);
    }

    fn ask_wrong_features(&mut self) {
        const SAVE: u32 = 1 << 31;
        const RESERVED_SELECT: u32 = 5 << 8;
        let queues = u32::from(FeatureId::NUMBER_OF_QUEUES.0);
        let arbitration = u32::from(FeatureId::ARBITRATION.0);
        let none = *self.random.pick(&[0x00, 0x03, 0x0d, 0x77, 0xc0, 0xff]);
        let has_queues = self.host.cqs.len() > 1;
        let in_time = if has_queues { Status::COMMAND_SEQUENCE_ERROR } else { Status::SUCCESS };
        for (opcode, cdw10, expected) in [
            (opcode::SET_FEATURES, none, Status::INVALID_FIELD),
            (opcode::GET_FEATURES, none, Status::INVALID_FIELD),
            (opcode::SET_FEATURES, arbitration | SAVE, Status::FEATURE_NOT_SAVEABLE),
            (opcode::GET_FEATURES, arbitration | RESERVED_SELECT, Status::INVALID_FIELD),
            (opcode::SET_FEATURES, queues, in_time),
        ] {
            assert_eq!(self.feature(opcode, cdw10, 0).0, expected, "opcode {opcode:#x}, CDW10 {cdw10:#x}");
        }
    }

    /// Aborts some command. If the answer reports an abort, the command comes back with that status.
    fn abort_any(&mut self) {
        let any_job = self.jobs.keys().next_back().copied();
        let request = self.any_request().map(|cid| (0, cid));
        let nobody = (0, self.random.next_u64() as u16);
        let Some((sq, cid)) = *self.random.pick(&[any_job, request, Some(nobody)]) else { return };
        let entry = SubmissionEntry {
            opcode: opcode::ABORT,
            cdw10: u32::from(cid) << 16 | u32::from(sq),
            ..SubmissionEntry::default()
        };
        let (status, dw0) = self.admin_answer(entry);
        assert_eq!(status, Status::SUCCESS);
        let aborted = dw0 & 1 == 0;
        if aborted && sq == 0 {
            assert!(!self.is_requested(cid), "an aborted request is still there");
        }
    }

    /// Enlarges a namespace as the operator. The host gets an event, and finds the namespace in the list of
    /// changes.
    fn grow_any(&mut self) {
        let index = self.random.below(self.drive.namespaces.len() as u64) as usize;
        let namespace = &mut self.drive.namespaces[index];
        let Some(disk) = &namespace.disk else { return };
        // A command beyond the end of the namespace might be inside of it then.
        let beyond = |job: &Job| matches!(job.expected, Expected::Refused(Status::LBA_OUT_OF_RANGE));
        if namespace.blocks > 2000 || self.jobs.values().any(beyond) {
            return;
        }
        namespace.blocks += self.random.between(1, 64);
        let size = namespace.blocks * u64::from(namespace.block_size);
        let nsid = namespace.nsid;
        self.host.resize(nsid, size);
        assert_eq!(disk.lock().config().size, size);
        self.models[index].grow(namespace.blocks);
        self.events.happened(Some(Event::NAMESPACE_CHANGED));
        if self.random.one_in(2) {
            let (status, bytes) = self.log(LogId::CHANGED_NAMESPACE_LIST, PAGE, false);
            assert_eq!(status, Status::SUCCESS);
            let listed = bytes.as_chunks().0.iter().any(|bytes| u32::from_le_bytes(*bytes) == nsid);
            assert!(listed, "NSID {nsid} has changed");
        }
    }
}
