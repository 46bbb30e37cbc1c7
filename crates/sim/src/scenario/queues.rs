//! Creation and deletion of I/O queues under load (Base 5.4 to 5.7), and doorbells of queues that do not
//! exist.

use super::Scenario;
use super::events::Event;
use crate::host::Doorbells;
use crate::ring::{CompletionRing, SubmissionRing};
use sluice_controller::{DoorbellMode, IO_QUEUES_MAX, QUEUE_ENTRIES_MAX};
use sluice_nvme::{PAGE_SIZE, Status, SubmissionEntry, opcode::admin as opcode};

/// Largest identifier in use; the smallest is 1.
const IDS: u64 = 6;

/// Flags of the create commands, CDW11.
const CONTIGUOUS: u32 = 1;
const INTERRUPTS: u32 = 2;

impl Scenario<'_> {
    /// Sends one of the queue commands, legal or not.
    pub(super) fn change_queues(&mut self) {
        match self.random.below(8) {
            0 => self.create_any_queue(),
            1 => self.delete_any_sq(),
            2 => self.delete_any_cq(),
            3 => self.create_pair(),
            4 => self.create_impossible_cq(),
            5 => self.create_impossible_sq(),
            6 => self.delete_impossible(),
            _ => self.send_no_command(),
        }
    }

    /// Creates a submission queue for a free identifier, and a completion queue if that is needed.
    pub(super) fn create_pair(&mut self) {
        let free = |id: &u16| !self.host.sqs.contains_key(id);
        let Some(id) = (1..=IDS as u16).find(free) else { return };
        if !self.host.cqs.contains_key(&id) {
            self.create_cq(id);
        }
        self.create_sq(id, id);
    }

    /// Creates a completion queue, or a further submission queue for an existing one.
    pub(super) fn create_any_queue(&mut self) {
        let id = self.random.between(1, IDS) as u16;
        let cqs: Vec<u16> = self.host.cqs.keys().copied().filter(|&cq| cq != 0).collect();
        if !self.host.cqs.contains_key(&id) {
            self.create_cq(id);
        } else if !self.host.sqs.contains_key(&id) {
            let cq = *self.random.pick(&cqs);
            self.create_sq(id, cq);
        }
    }

    /// Returns a size: mostly small, so that queues fill up; a few take more than a page.
    fn any_size(&mut self) -> u32 {
        let most = *self.random.pick(&[4, 16, 64, 300]);
        self.random.between(2, most) as u32
    }

    fn create_cq(&mut self, id: u16) {
        let size = self.any_size();
        let vector = self.random.below(u64::from(self.host.controller.controller.vectors())) as u16;
        let vector = self.random.one_in(2).then_some(vector);
        let address = self.host.queue_memory(size, 16);
        let status = self.admin(create(opcode::CREATE_IO_CQ, id, size, address, vector_flags(vector)));
        assert_eq!(status, Status::SUCCESS);
        self.host.cqs.insert(id, CompletionRing::new(id, address, size, vector));
    }

    fn create_sq(&mut self, id: u16, cq: u16) {
        let size = self.any_size();
        let address = self.host.queue_memory(size, 64);
        let flags = u32::from(cq) << 16 | CONTIGUOUS;
        let status = self.admin(create(opcode::CREATE_IO_SQ, id, size, address, flags));
        assert_eq!(status, Status::SUCCESS);
        self.host.sqs.insert(id, SubmissionRing::new(id, cq, address, size));
    }

    /// Deletes a submission queue under its commands. Commands that were taken come back before the deletion
    /// does; the others never come back.
    fn delete_any_sq(&mut self) {
        let id = self.random.between(1, IDS) as u16;
        if !self.host.sqs.contains_key(&id) {
            return;
        }
        self.deleting = Some(id);
        assert_eq!(self.admin(delete(opcode::DELETE_IO_SQ, id)), Status::SUCCESS);
        self.deleting = None;
        let queue = self.host.sqs.remove(&id).expect("it was there");
        self.host.free_queue_memory(queue.address, queue.size, 64);
        for cid in queue.outstanding {
            let job = self.jobs.remove(&(id, cid)).expect("a command for each CID");
            self.fail(&job);
            self.cut_off((id, cid), job);
        }
    }

    /// Deletes a completion queue; it must be refused while a submission queue needs it.
    fn delete_any_cq(&mut self) {
        let id = self.random.between(1, IDS) as u16;
        if !self.host.cqs.contains_key(&id) {
            return;
        }
        let in_use = self.host.sqs.values().any(|queue| queue.cq == id);
        let expected = if in_use { Status::INVALID_QUEUE_DELETION } else { Status::SUCCESS };
        assert_eq!(self.admin(delete(opcode::DELETE_IO_CQ, id)), expected);
        if !in_use {
            let queue = self.host.cqs.remove(&id).expect("it was there");
            self.host.free_queue_memory(queue.address, queue.size, 16);
        }
    }

    /// Returns an identifier that is not in use among the completion queues, if there is one.
    fn free_id(&self, is_used: impl Fn(&u16) -> bool) -> Option<u16> {
        (1..=IO_QUEUES_MAX).find(|id| !is_used(id))
    }

    fn impossible_id(&mut self, used: Option<u16>) -> u16 {
        let beyond = self.random.between(u64::from(IO_QUEUES_MAX) + 1, u16::MAX.into()) as u16;
        *self.random.pick(&[0, beyond, used.unwrap_or(0)])
    }

    fn create_impossible_cq(&mut self) {
        let Some(id) = self.free_id(|id| self.host.cqs.contains_key(id)) else { return };
        let page = self.host.guest.page(&mut self.random);
        let used = self.host.cqs.keys().last().copied();
        let wrong_id = self.impossible_id(used);
        let vectors = self.host.controller.controller.vectors();
        let wrong_vector = self.random.between(vectors.into(), u16::MAX.into()) as u16;
        let good = |id, size, address, flags| create(opcode::CREATE_IO_CQ, id, size, address, flags);
        let (entry, expected) = match self.random.below(7) {
            0 => (good(wrong_id, 2, page, CONTIGUOUS), Status::INVALID_QUEUE_IDENTIFIER),
            1 => (good(id, 1, page, CONTIGUOUS), Status::INVALID_QUEUE_SIZE),
            2 => (good(id, QUEUE_ENTRIES_MAX + 1, page, CONTIGUOUS), Status::INVALID_QUEUE_SIZE),
            3 => (good(id, 2, page, 0), Status::INVALID_FIELD),
            4 => (good(id, 2, page, vector_flags(Some(wrong_vector))), Status::INVALID_INTERRUPT_VECTOR),
            5 => (good(id, 2, page + self.random.between(1, 4095), CONTIGUOUS), Status::PRP_OFFSET_INVALID),
            _ => (good(id, 2, crate::Guest::READ_ONLY, CONTIGUOUS), Status::DATA_TRANSFER_ERROR),
        };
        assert_eq!(self.admin(entry), expected, "{entry:x?}");
        self.host.guest.release([page]);
    }

    fn create_impossible_sq(&mut self) {
        let Some(id) = self.free_id(|id| self.host.sqs.contains_key(id)) else { return };
        let Some(cq) = self.host.cqs.keys().copied().find(|&cq| cq != 0) else { return };
        let no_cq = self.free_id(|id| self.host.cqs.contains_key(id)).unwrap_or(0);
        let page = self.host.guest.page(&mut self.random);
        let used = self.host.sqs.keys().last().copied();
        let wrong_id = self.impossible_id(used);
        let wrong_cq = self.impossible_id(None);
        let good = |id, size, address, cq: u16| {
            create(opcode::CREATE_IO_SQ, id, size, address, u32::from(cq) << 16 | CONTIGUOUS)
        };
        let (entry, expected) = match self.random.below(7) {
            0 => (good(wrong_id, 2, page, cq), Status::INVALID_QUEUE_IDENTIFIER),
            1 => (good(id, 1, page, cq), Status::INVALID_QUEUE_SIZE),
            2 => (good(id, QUEUE_ENTRIES_MAX + 1, page, cq), Status::INVALID_QUEUE_SIZE),
            3 => (good(id, 2, page, no_cq), Status::COMPLETION_QUEUE_INVALID),
            4 => (good(id, 2, page, wrong_cq), Status::INVALID_QUEUE_IDENTIFIER),
            5 => (good(id, 2, page + self.random.between(1, 4095), cq), Status::PRP_OFFSET_INVALID),
            _ => (good(id, 2, crate::Guest::HOLE, cq), Status::DATA_TRANSFER_ERROR),
        };
        assert_eq!(self.admin(entry), expected, "{entry:x?}");
        self.host.guest.release([page]);
    }

    fn delete_impossible(&mut self) {
        let free_sq = self.free_id(|id| self.host.sqs.contains_key(id));
        let free_cq = self.free_id(|id| self.host.cqs.contains_key(id));
        let wrong_sq = self.impossible_id(free_sq);
        let wrong_cq = self.impossible_id(free_cq);
        assert_eq!(self.admin(delete(opcode::DELETE_IO_SQ, wrong_sq)), Status::INVALID_QUEUE_IDENTIFIER);
        assert_eq!(self.admin(delete(opcode::DELETE_IO_CQ, wrong_cq)), Status::INVALID_QUEUE_IDENTIFIER);
    }

    fn send_no_command(&mut self) {
        let opcode = *self.random.pick(&[0x03, 0x07, 0x0b, 0x0f, 0x20, 0x7b, 0x7f, 0xc0, 0xff]);
        let entry = SubmissionEntry { opcode, ..SubmissionEntry::default() };
        assert_eq!(self.admin(entry), Status::INVALID_OPCODE, "{opcode:#x}");
    }

    /// Rings doorbells of queues that do not exist, or with invalid values. The controller reports them with
    /// an asynchronous event if the host has enabled it; nothing else is affected.
    pub(super) fn ring_nonsense(&mut self) {
        if self.host.doorbells == Doorbells::Mapped {
            return;
        }
        let sqs: Vec<(u16, u32)> = self.host.sqs.values().map(|queue| (queue.id, queue.size)).collect();
        let (id, size) = *self.random.pick(&sqs);
        let beyond = self.random.between(size.into(), u32::MAX.into()) as u32;
        let nobody = IO_QUEUES_MAX as u32 + self.random.between(1, 300) as u32;
        let (offset, value, event) = match self.random.below(4) {
            0 => (u32::from(id) * 8, beyond, Some(Event::INVALID_DOORBELL_VALUE)),
            1 => (nobody * 8, 1, Some(Event::INVALID_DOORBELL_REGISTER)),
            2 => (nobody * 8 + 4, 1, Some(Event::INVALID_DOORBELL_REGISTER)),
            _ => (u32::from(id) * 8 + self.random.between(1, 3) as u32, 1, None),
        };
        self.host.write_doorbell(offset, value);
        self.events.happened(event);
    }

    /// Gives the controller shadow doorbell buffers, if it supports them and has none.
    pub(super) fn use_shadow_doorbells(&mut self) {
        let offered = self.host.controller.controller.doorbell_mode() == DoorbellMode::Trapped;
        if !offered || self.host.doorbells != Doorbells::Trapped || !self.random.one_in(4) {
            return;
        }
        let [doorbells, event_index] = [0; 2].map(|_| self.host.queue_memory(1, PAGE_SIZE as u32));
        let entry = SubmissionEntry {
            opcode: opcode::DOORBELL_BUFFER_CONFIG,
            dptr: [doorbells, event_index],
            ..SubmissionEntry::default()
        };
        assert_eq!(self.admin(entry), Status::SUCCESS);
        self.host.use_shadow(doorbells, event_index);
    }
}

fn vector_flags(vector: Option<u16>) -> u32 {
    CONTIGUOUS | vector.map_or(0, |vector| INTERRUPTS | u32::from(vector) << 16)
}

fn create(opcode: u8, id: u16, size: u32, address: u64, flags: u32) -> SubmissionEntry {
    SubmissionEntry {
        opcode,
        dptr: [address, 0],
        cdw10: (size - 1) << 16 | u32::from(id),
        cdw11: flags,
        ..SubmissionEntry::default()
    }
}

fn delete(opcode: u8, id: u16) -> SubmissionEntry {
    SubmissionEntry { opcode, cdw10: id.into(), ..SubmissionEntry::default() }
}
