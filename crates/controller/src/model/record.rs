//! Records of a controller and its subsystem, for another process that continues them.

use crate::model::{Controller, Namespace, Subsystem};
use crate::state::doorbells::{Doorbells, PAGE, Shadow};
use crate::state::persistent_event::{PAUSE_NS, PersistentEventRecord};
use crate::state::queue::{CompletionQueue, Service, SubmissionQueue};
use crate::state::record::{
    CannotHandOver, ControllerRecord, CqRecord, NamespaceRecord, SqRecord, SubsystemRecord,
};
use crate::state::registers::State;
use crate::state::reservation::HostId;
use sluice_command::{Command, Slot};
use sluice_memory::{Access, SharedRegion, Space};
use sluice_nvme::opcode::admin;
use sluice_nvme::{CompletionEntry, SubmissionEntry};
use std::mem;
use std::os::fd::BorrowedFd;

/// Methods of the process that hands over.
impl Subsystem {
    /// Checks whether another process can continue the drive, once the commands in flight have ended.
    ///
    /// # Errors
    /// Work is under way that only this process can finish.
    pub fn may_hand_over(&self) -> Result<(), CannotHandOver> {
        if self.jobs.erasure.is_some() {
            return Err(CannotHandOver("a format or a sanitize operation is under way"));
        }
        if self.jobs.management.is_busy() {
            return Err(CannotHandOver("a host creates or deletes a namespace"));
        }
        if !self.jobs.losses.are_none() {
            return Err(CannotHandOver("acknowledged writes were lost, and not all hosts may know"));
        }
        if self.iter().any(|namespace| namespace.is_leaving() || namespace.check_open().is_err()) {
            return Err(CannotHandOver("a namespace is closed to its hosts"));
        }
        Ok(())
    }

    /// Returns whether nothing is in flight but requests for events, and no result is on its way. While the
    /// drive is held this becomes true after some turns.
    pub fn is_settled(&self) -> bool {
        self.check_settled().is_ok()
    }

    /// Returns why the drive has not [settled](Self::is_settled).
    ///
    /// # Errors
    /// The reason.
    pub fn check_settled(&self) -> Result<(), CannotHandOver> {
        let is_request =
            |slot: &&Slot| slot.origin.sq == 0 && slot.origin.opcode == admin::ASYNC_EVENT_REQUEST;
        let (jobs, requests) = (&self.jobs, self.slab.live().filter(is_request).count());
        let has_results = self.has_completions() || !self.mailboxes.are_empty();
        let has_work = self.held.may_hold()
            || self.has_held_work()
            || jobs.sync.as_ref().is_some_and(|sync| sync.in_flight > 0);
        let has_orders = !jobs.orders.are_none() || !jobs.orders.gone.is_empty();
        let marks = &jobs.uncorrectable;
        let stores =
            !marks.waiting.is_empty() || marks.persisting.is_some() || !jobs.persister.delayed.is_empty();
        let unsettled = [
            (self.slab.in_flight() != requests as u32, "commands are in flight"),
            (has_results, "results are on their way"),
            (has_work, "commands wait for others, or storage is being flushed"),
            (has_orders, "a reservation is being changed"),
            (stores, "state of a host is being stored"),
        ];
        unsettled.into_iter().find(|(is_so, _)| *is_so).map_or(Ok(()), |(_, why)| Err(CannotHandOver(why)))
    }

    /// Returns the record of a drive that is held.
    ///
    /// # Errors
    /// The drive is not [settled](Self::is_settled), or [cannot](Self::may_hand_over) be handed over.
    pub fn record(&self) -> Result<SubsystemRecord, CannotHandOver> {
        self.check_settled()?;
        // Their I/O would come to the storage after the first of the other process.
        if self.slab.children() > 0 {
            return Err(CannotHandOver("commands of its functions are in flight"));
        }
        self.record_at_work()
    }

    /// Returns the descriptor of the segment with the commands in flight.
    pub fn handover_fd(&self) -> BorrowedFd<'_> {
        self.slab.handover_fd()
    }

    /// Returns the record of a drive at work, whose commands in flight are in its segment.
    ///
    /// # Errors
    /// Work is under way that only this process can finish.
    pub fn record_at_work(&self) -> Result<SubsystemRecord, CannotHandOver> {
        self.may_hand_over()?;
        let events = &self.jobs.persistent_events;
        Ok(SubsystemRecord {
            namespaces: self.iter().map(Namespace::record).collect(),
            health: self.health.copy(),
            persistent_events: PersistentEventRecord(events.events.iter().flatten().copied().collect()),
            log_contexts: events.generation,
            power_id: self.power_id,
        })
    }
}

impl Namespace {
    fn record(&self) -> NamespaceRecord {
        NamespaceRecord {
            nsid: self.nsid(),
            uuid: self.uuid(),
            block_size: self.block_size(),
            blocks: self.blocks(),
            reservations: self.reservations.clone(),
        }
    }
}

impl Controller {
    /// Checks whether another process can continue the controller, once the commands in flight have ended.
    ///
    /// # Errors
    /// The state of the controller is not one that a record has.
    pub fn may_hand_over(&self) -> Result<(), CannotHandOver> {
        if self.client_dma.is_some() {
            return Err(CannotHandOver("some of the host's memory is not shared"));
        }
        if self.self_test.is_running() {
            return Err(CannotHandOver("a self-test is under way"));
        }
        if self.registers.state == State::Draining || self.is_shutting_down() {
            return Err(CannotHandOver("a reset or a shutdown is under way"));
        }
        let is_whole = |service: Service, deleting: bool| service != Service::Unmapped && !deleting;
        let sqs = self.sqs.iter().flatten().all(|queue| is_whole(queue.service, queue.deleting));
        let cqs = self.cqs.iter().flatten().all(|queue| is_whole(queue.service, queue.deleting));
        if !sqs || !cqs || !self.deletions.is_empty() || self.unmapped.deadline_ns().is_some() {
            return Err(CannotHandOver("a queue is being deleted, or its memory is unmapped"));
        }
        Ok(())
    }

    /// Drops the notices for a controller that no host has enabled. They are for none: a host that enables it finds
    /// everything as it is.
    pub fn drop_stale_notices(&self, subsystem: &mut Subsystem) {
        if !self.is_enabled() {
            drop(subsystem.collect_mail(self.number));
        }
    }

    /// Returns the record of the controller, while its subsystem is held and settled.
    ///
    /// # Errors
    /// The controller [cannot](Self::may_hand_over) be handed over.
    pub fn record(&self, subsystem: &Subsystem) -> Result<ControllerRecord, CannotHandOver> {
        self.may_hand_over()?;
        if self.remote_groups.is_split() || self.remote_groups.migrating.is_some() {
            return Err(CannotHandOver("queues are on other reactors"));
        }
        let entry = |command: &Command| *subsystem.entry(command);
        let sqs = self.active.iter().filter_map(|id| self.sqs[usize::from(*id)].as_ref());
        Ok(ControllerRecord {
            cntlid: self.cntlid,
            host: subsystem.host(self.number),
            mode: self.mode,
            is_mapped: self.doorbells.is_mapped(),
            shadow: self.doorbells.shadow().map(|shadow| shadow.addresses),
            is_on: self.is_on(),
            io_queues: self.io_queues(),
            registers: self.registers.clone(),
            sqs: sqs.map(SqRecord::of).collect(),
            cqs: self.cqs.iter().flatten().map(CqRecord::of).collect(),
            events: self.events.without_requests(),
            requests: self.events.requests().map(entry).collect(),
            features: self.features.clone(),
            notifications: self.reservation_notifications.clone(),
            errors: self.errors.clone(),
            self_tests: (self.self_test.results.iter().copied().collect(), self.self_test.begun),
            log_context: self.persistent_events.clone(),
        })
    }
}

/// Methods of the process that takes over.
impl Subsystem {
    /// Takes a drive that another process hands over, which stays [held](Self::hold). Call it before its
    /// controllers do. A drive of a process that has died may have grown.
    ///
    /// # Errors
    /// The namespaces are not those of the record.
    pub fn take_over(
        &mut self,
        record: SubsystemRecord,
        may_have_grown: bool,
        now_ns: u64,
    ) -> Result<(), CannotHandOver> {
        let SubsystemRecord { namespaces, health, persistent_events, log_contexts, power_id } = record;
        if namespaces.len() != self.iter().count() {
            return Err(CannotHandOver("the other process finds other namespaces"));
        }
        for record in namespaces {
            let found = self.get_mut(record.nsid);
            let is_same = |namespace: &&mut Namespace| {
                namespace.uuid() == record.uuid
                    && namespace.block_size() == record.block_size
                    && (namespace.blocks() == record.blocks
                        || may_have_grown && namespace.blocks() > record.blocks)
            };
            let Some(namespace) = found.filter(is_same) else {
                return Err(CannotHandOver("the other process finds a namespace with another size"));
            };
            namespace.set_reservations(record.reservations);
        }
        self.health = health;
        self.power_id = power_id.or(self.power_id);
        let events = &mut self.jobs.persistent_events;
        events.replace(&persistent_events);
        events.generation = log_contexts;
        // The last events may not have been persisted.
        events.due_ns = Some(now_ns.saturating_add(PAUSE_NS));
        self.hold(u64::MAX);
        Ok(())
    }

    /// Sets the host of a controller that continues.
    pub(crate) fn resume_host(&mut self, number: u8, host: HostId) {
        let host = if host.is_named() { host } else { HostId::Unnamed(number) };
        self.hosts.get_mut(usize::from(number)).into_iter().for_each(|it| *it = host);
    }
}

impl Controller {
    /// Sets the state of a record, without queues and requests.
    ///
    /// # Errors
    /// The record is not of this controller.
    pub(crate) fn resume_state(
        &mut self,
        record: &mut ControllerRecord,
        now_ns: u64,
    ) -> Result<(), CannotHandOver> {
        if record.cntlid != self.cntlid {
            return Err(CannotHandOver("the other process has another controller identifier"));
        }
        if record.registers.state == State::Enabled && !record.registers.is_supported() {
            return Err(CannotHandOver("the other process does not support the host's configuration"));
        }
        self.registers = record.registers.clone();
        self.mode = record.mode;
        self.limit_io_queues(record.io_queues);
        self.events = mem::replace(&mut record.events, self.events.without_requests());
        self.features = record.features.clone();
        // The host could not restart its timer during the pause.
        self.features.note_activity(now_ns);
        self.reservation_notifications = record.notifications.clone();
        self.errors = record.errors.clone();
        self.self_test.results = mem::take(&mut record.self_tests.0).into();
        self.self_test.begun = record.self_tests.1;
        self.persistent_events = record.log_context.take();
        if record.is_on {
            self.switch_on();
        }
        self.interrupts.configure(&self.features, now_ns);
        Ok(())
    }

    /// Finds the queues and the doorbells of a record in the host's memory, and serves them.
    ///
    /// # Errors
    /// The memory is not mapped, or the queues do not belong together.
    pub(crate) fn resume_queues(
        &mut self,
        record: &ControllerRecord,
        page: SharedRegion,
        space: &Space,
    ) -> Result<(), CannotHandOver> {
        const UNMAPPED: CannotHandOver = CannotHandOver("the other process cannot map a queue of the host");
        let queue = |address, length, access| space.queue(address, length, access).map_err(|_| UNMAPPED);
        if page.len() < self.doorbells().len() {
            return Err(CannotHandOver("the file of the doorbells is too short"));
        }
        space.set_page_size(self.registers.cc.page_size());
        let shadow = record.shadow.map(|addresses| {
            Ok(Shadow {
                addresses,
                doorbells: queue(addresses[0], PAGE, Access::Write)?,
                event_index: queue(addresses[1], PAGE, Access::Write)?,
            })
        });
        self.doorbells = Doorbells::resume(page, record.is_mapped, shadow.transpose()?);
        for it in &record.cqs {
            let memory = queue(it.address, it.size as usize * CompletionEntry::SIZE, Access::Write)?;
            let mut queue = CompletionQueue::new(it.id, it.address, memory, it.size, it.vector);
            queue.resume_at(it.tail, it.phase);
            (queue.head, queue.head_error) = (it.head, it.head_error);
            if self.cqs[usize::from(it.id)].is_some() {
                return Err(CannotHandOver("a queue is there twice"));
            }
            self.handover.get_mut().cqs[usize::from(it.id)] = queue.record();
            self.cqs[usize::from(it.id)] = Some(queue);
        }
        for it in &record.sqs {
            let memory = queue(it.address, it.size as usize * SubmissionEntry::SIZE, Access::Read)?;
            let epoch = self.next_epoch();
            let mut queue = SubmissionQueue::new(it.id, it.cq, epoch, it.address, memory, it.size);
            (queue.head, queue.class) = (it.head, it.class);
            queue.service = if it.is_served { Service::On } else { Service::Over };
            self.resume_sq(queue)?;
        }
        let is_complete = self.sqs[0].is_some() && self.cqs[0].is_some();
        if self.is_ready() && !is_complete {
            return Err(CannotHandOver("the admin queues are missing"));
        }
        // The last interrupts may not have been sent.
        let vectors: Vec<u16> = self.cqs.iter().flatten().filter_map(|queue| queue.vector).collect();
        vectors.into_iter().for_each(|vector| self.signal(vector));
        self.make_due(0);
        Ok(())
    }

    fn resume_sq(&mut self, mut queue: SubmissionQueue) -> Result<(), CannotHandOver> {
        let id = usize::from(queue.id);
        let cq = self.cqs[usize::from(queue.cq)].as_mut().filter(|_| self.sqs[id].is_none());
        let cq = cq.ok_or(CannotHandOver("a queue is there twice, or has no completion queue"))?;
        cq.users += 1;
        (queue.controller, queue.event_index_head) = (self.number, queue.head);
        self.handover.get_mut().sqs[id] = queue.record();
        self.doorbells.put_event_index_behind(queue.id, queue.head);
        self.active.push(queue.id);
        self.sqs[id] = Some(queue);
        Ok(())
    }
}
