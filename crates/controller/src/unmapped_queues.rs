//! Queues whose memory the host has unmapped, and may map again.
//!
//! Firmware does so: when SeaBIOS makes a part of its memory read-only, QEMU unmaps all of it and maps it
//! again in other regions. That includes the queues of an enabled controller. Such a queue is not served
//! meanwhile. The controller enters fatal status (Base 3.1.3.6) only if the host uses such a queue and waits
//! for it in vain.

use crate::Controller;
use crate::queue::Service;
use crate::remote_queues::RecallCause;
use crate::subsystem::Subsystem;
use sluice_memory::{Access, Pages, Removed, Space};
use sluice_nvme::CompletionEntry;

/// Time that a host may wait for an unmapped queue.
const FATAL_AFTER_NS: u64 = 1_000_000_000;

/// Time between two checks whether the host waits.
const CHECK_NS: u64 = 100_000_000;

/// State while queues are unmapped.
#[derive(Debug, Default)]
pub(crate) struct UnmappedQueues {
    /// Time of the next check whether the host waits; none if no queue is unmapped.
    check_ns: Option<u64>,
    /// Time since which the host waits.
    wanted_ns: Option<u64>,
    /// Completions of commands that were in flight, with their queue.
    entries: Vec<(u16, CompletionEntry)>,
}

impl UnmappedQueues {
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.check_ns
    }

    /// Starts the checks, after a queue was found to be unmapped.
    pub(crate) fn begin(&mut self) {
        // The first check is in the next turn, where the time is available.
        self.check_ns.get_or_insert(0);
    }

    /// Holds a completion for an unmapped queue. Its slot stays reserved.
    #[cold]
    pub(crate) fn hold(&mut self, cq: u16, entry: CompletionEntry) {
        self.entries.push((cq, entry));
    }

    /// Returns the number of completions that wait for their queue.
    pub(crate) fn held(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Drops the completions of a deleted queue.
    pub(crate) fn forget(&mut self, cq: u16) {
        self.entries.retain(|(queue, _)| *queue != cq);
    }
}

impl Controller {
    /// Stops serving queues in removed memory until it is [mapped again](Self::find_memory). Shadow doorbells
    /// do not come back, so a controller without the ones that its host uses enters fatal status.
    pub fn forget_memory(&mut self, subsystem: &mut Subsystem, removed: &Removed) {
        subsystem.forget_memory(removed);
        self.remote_groups.recall(RecallCause::Memory);
        let lose = |service: &mut Service, memory: &Pages| {
            let is_lost = *service == Service::On && removed.touches_pages(memory);
            if is_lost {
                *service = Service::Unmapped;
            }
            is_lost
        };
        let mut unmapped = false;
        for queue in self.sqs.iter_mut().flatten() {
            unmapped |= lose(&mut queue.service, &queue.memory);
        }
        for queue in self.cqs.iter_mut().flatten() {
            unmapped |= lose(&mut queue.service, &queue.memory);
        }
        if unmapped {
            self.unmapped.begin();
            self.next_deadline_ns = 0;
        }
        if let Some(shadow) = self.doorbells.shadow()
            && (removed.touches_pages(&shadow.doorbells) || removed.touches_pages(&shadow.event_index))
        {
            self.doorbells.drop_shadow();
            self.registers.set_fatal();
        }
    }

    /// Serves unmapped queues again whose memory is in the new map.
    pub fn find_memory(&mut self, space: &Space) {
        if self.unmapped.check_ns.is_none() {
            return;
        }
        let find = |service: &mut Service, memory: &mut Pages, address, access| {
            if *service == Service::Unmapped
                && let Ok(found) = space.queue(address, memory.len(), access)
            {
                (*service, *memory) = (Service::On, found);
            }
            *service == Service::Unmapped
        };
        let mut unmapped = false;
        for queue in self.sqs.iter_mut().flatten() {
            unmapped |= find(&mut queue.service, &mut queue.memory, queue.address, Access::Read);
        }
        for queue in self.cqs.iter_mut().flatten() {
            unmapped |= find(&mut queue.service, &mut queue.memory, queue.address, Access::Write);
        }
        for (cq, entry) in std::mem::take(&mut self.unmapped.entries) {
            self.post_to(cq, entry);
        }
        self.note_posted();
        if !unmapped {
            self.unmapped = UnmappedQueues::default();
        }
    }

    /// Checks whether the host waits for an unmapped queue.
    pub(crate) fn check_unmapped_queues(&mut self, now_ns: u64) {
        if self.unmapped.check_ns.is_none_or(|check_ns| now_ns < check_ns) {
            return;
        }
        self.unmapped.check_ns = Some(now_ns.saturating_add(CHECK_NS));
        let mut rests = self.sqs.iter().flatten().filter(|queue| {
            let completions = self.cqs[usize::from(queue.cq)].as_ref();
            queue.service == Service::Unmapped
                || completions.is_some_and(|queue| queue.service == Service::Unmapped)
        });
        let rung = rests.any(|queue| self.doorbells.sq_tail(queue.id) != queue.head);
        if !rung && self.unmapped.entries.is_empty() {
            self.unmapped.wanted_ns = None;
            return;
        }
        let since_ns = *self.unmapped.wanted_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since_ns) >= FATAL_AFTER_NS {
            tracing::warn!("the host uses queues whose memory it has unmapped");
            self.unmapped = UnmappedQueues::default();
            let (sqs, cqs) = (self.sqs.iter_mut().flatten(), self.cqs.iter_mut().flatten());
            let services = sqs.map(|queue| &mut queue.service).chain(cqs.map(|queue| &mut queue.service));
            services
                .filter(|service| **service == Service::Unmapped)
                .for_each(|service| *service = Service::Over);
            self.registers.set_fatal();
        }
    }
}
