//! Service of queues whose memory the host unmaps and maps again.

use crate::model::{Controller, Subsystem};
use crate::state::queue::{CompletionQueue, Service, SubmissionQueue};
use crate::state::remote_queues::cause::RecallCause;
use crate::state::unmapped_queues::{CHECK_NS, FATAL_AFTER_NS, UnmappedQueues};
use sluice_memory::{Access, Pages, Removed, Space};
use sluice_nvme::CompletionEntry;

impl Controller {
    /// Stops serving queues in removed memory until it is mapped again. Shadow doorbells
    /// do not come back, so a controller without the ones that its host uses enters fatal status.
    pub fn forget_memory(&mut self, subsystem: &mut Subsystem, removed: &Removed) {
        subsystem.forget_memory(removed);
        self.remote_groups.recall(RecallCause::Memory);
        let lose = |service: &mut Service, memory: &Pages| {
            let is_lost = service.takes() && removed.touches_pages(memory);
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
            self.make_due(0);
        }
        if let Some(shadow) = self.doorbells.shadow()
            && (removed.touches_pages(&shadow.doorbells) || removed.touches_pages(&shadow.event_index))
        {
            self.doorbells.drop_shadow();
            self.registers.set_fatal();
        }
    }

    /// Serves unmapped queues again whose memory is in the new map. Returns the completions that were held for
    /// such queues, each with its queue.
    pub(crate) fn find_queues(&mut self, space: &Space) -> Vec<(u16, CompletionEntry)> {
        if self.unmapped.check_ns.is_none() {
            return Vec::new();
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
        let held = std::mem::take(&mut self.unmapped.entries);
        if !unmapped {
            self.unmapped = UnmappedQueues::default();
        }
        held
    }

    /// Finds the memory of a queue group that returns in the present map. A queue without memory is not served
    /// until it is mapped again.
    pub(crate) fn find_group(
        &mut self,
        cq: &mut CompletionQueue,
        sqs: &mut [SubmissionQueue],
        space: &Space,
    ) {
        let find = |service: &mut Service, memory: &mut Pages, address, access| {
            match space.queue(address, memory.len(), access) {
                Ok(found) => *memory = found,
                Err(_) if service.takes() => *service = Service::Unmapped,
                Err(_) => {}
            }
            *service == Service::Unmapped
        };
        let mut unmapped = find(&mut cq.service, &mut cq.memory, cq.address, Access::Write);
        for sq in sqs {
            unmapped |= find(&mut sq.service, &mut sq.memory, sq.address, Access::Read);
        }
        if unmapped {
            self.unmapped.begin();
        }
    }

    /// Holds a completion for an unmapped queue. Its slot stays reserved.
    #[cold]
    pub(crate) fn hold_completion(&mut self, cq: u16, entry: CompletionEntry) {
        self.unmapped.hold(cq, entry);
    }

    /// Returns the number of completions that are held for unmapped queues.
    pub(crate) fn held_completions(&self) -> u32 {
        self.unmapped.held()
    }

    /// Drops the completions that are held for a deleted queue.
    pub(crate) fn drop_held_completions(&mut self, cq: u16) {
        self.unmapped.forget(cq);
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
