//! Queues whose memory is away: taken back by the host, and perhaps shown again.
//!
//! Firmware does that. When SeaBIOS makes a part of its memory read-only, QEMU takes back all of it and shows it
//! anew in other pieces, the queues of an enabled controller included. So such a queue rests. Only a host that
//! uses it meanwhile, and waits for it in vain, is told that the controller is in fatal status (Base 3.1.3.6).

use crate::Controller;
use crate::queue::Service;
use crate::remote_queues::RecallCause;
use crate::subsystem::Subsystem;
use sluice_memory::{Access, Pages, Removed, Space};
use sluice_nvme::CompletionEntry;

/// How long a host may wait for what is away.
const FATAL_AFTER_NS: u64 = 1_000_000_000;

/// Between two looks at whether it waits.
const CHECK_NS: u64 = 100_000_000;

/// What is to be done while memory of queues is away.
#[derive(Debug, Default)]
pub(crate) struct UnmappedQueues {
    /// When to look whether the host waits; none if nothing is away.
    check_ns: Option<u64>,
    /// Since when it does.
    wanted_ns: Option<u64>,
    /// Completions of commands that were in flight, with their queue.
    entries: Vec<(u16, CompletionEntry)>,
}

impl UnmappedQueues {
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.check_ns
    }

    /// Memory of a queue was found to be away.
    pub(crate) fn begin(&mut self) {
        // With the next turn, which knows the time.
        self.check_ns.get_or_insert(0);
    }

    /// A completion for a queue that is away: its slot stays promised.
    #[cold]
    pub(crate) fn hold(&mut self, cq: u16, entry: CompletionEntry) {
        self.entries.push((cq, entry));
    }

    /// Completions that wait for their queue.
    pub(crate) fn held(&self) -> u32 {
        self.entries.len() as u32
    }

    /// A queue is deleted.
    pub(crate) fn forget(&mut self, cq: u16) {
        self.entries.retain(|(queue, _)| *queue != cq);
    }
}

impl Controller {
    /// The removed memory is gone: queues over it rest until it is [there again](Self::find_memory). Shadow doorbells
    /// do not come back, and a controller without those that its host writes to is in fatal status.
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

    /// The host has shown more of its memory: queues that rested for the want of it go on.
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

    /// Looks whether the host waits for a queue that is away.
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
            tracing::warn!("the host uses queues whose memory it has taken back");
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
