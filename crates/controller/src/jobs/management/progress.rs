//! Execution of a management command, from its plan to its end.

use crate::model::management::{Task, TaskStage, UnderWay};
use crate::model::{Namespace, Subsystem, erasing};
use crate::state::mailbox::Notice;
use crate::state::management::{Attachment, Creation, Request};
use crate::state::persist::PersistentRecord;
use crate::state::refusal::Refusal;
use crate::state::{client_dma, fused};
use sluice_command::{Command, Controllers, Origin, Slot};
use sluice_nvme::Status;
use sluice_nvme::opcode::{admin, io};

impl Subsystem {
    /// Takes a command with its request.
    pub(crate) fn manage(&mut self, command: Command, request: Request, now_ns: u64) {
        self.jobs_mut().management.waiting.push_back((Some(command), request));
        self.run_requests(now_ns);
    }

    /// Deletes a namespace that a host has created, for the operator. It is gone when its commands have
    /// ended, or stays if they do not end.
    pub fn delete_namespace(&mut self, nsid: u32, now_ns: u64) -> Result<(), Refusal> {
        match self.get(nsid) {
            Some(namespace) if namespace.is_created() => {}
            _ => return Err(Refusal::NoSuchNamespace(nsid)),
        }
        if self.jobs().erasure.is_some() {
            return Err(Refusal::Formatted);
        }
        let uuid = self.get(nsid).map(Namespace::uuid).unwrap_or_default();
        self.jobs_mut().management.waiting.push_back((None, Request::DeleteThis(uuid)));
        self.run_requests(now_ns);
        Ok(())
    }

    /// Withdraws the operator's deletions that have not begun. Returns whether one has: it ends soon, with or
    /// without success.
    pub fn withdraw_deletions(&mut self) -> bool {
        self.jobs_mut().management.waiting.retain(|(command, _)| command.is_some());
        self.jobs().management.under_way.as_ref().is_some_and(|it| it.number == Origin::SUBSYSTEM)
    }

    /// Returns the next request, from the controller that has waited longest since its last one.
    fn next_request(&mut self) -> Option<(Option<Command>, Request)> {
        let number = |it: &(Option<Command>, Request)| {
            it.0.as_ref().map_or(Origin::SUBSYSTEM, |command| self.controller_of(command))
        };
        let turn = |number: u8| number.wrapping_sub(self.jobs().management.last).wrapping_sub(1);
        let waiting = self.jobs().management.waiting.iter().map(number).enumerate();
        let (at, number) = waiting.min_by_key(|(_, number)| turn(*number))?;
        self.jobs_mut().management.last = number;
        self.jobs_mut().management.waiting.remove(at)
    }

    /// Starts the next request, unless one is under way.
    fn run_requests(&mut self, now_ns: u64) {
        while self.jobs().management.under_way.is_none()
            && let Some((command, request)) = self.next_request()
        {
            // Another host may have reserved the namespace meanwhile.
            let may = command.as_ref().map_or(Ok(()), |command| self.check_request(command));
            match may.and_then(|()| self.plan(request)) {
                Ok(task) => self.start(command, task, now_ns),
                Err(status) => self.finish_management(command, status, 0),
            }
        }
    }

    fn check_request(&self, command: &Command) -> Result<(), Status> {
        self.check_admin(self.controller_of(command), self.entry(command))
    }

    /// Completes a command.
    fn finish_management(&mut self, command: Option<Command>, status: Status, dw0: u32) {
        let Some(command) = command else { return };
        self.decide_with(command, status, |slot| slot.request.offset = dw0.into());
    }

    fn start(&mut self, command: Option<Command>, mut task: Task, now_ns: u64) {
        let of = |command| self.controller_of(command);
        let number = command.as_ref().map_or(Origin::SUBSYSTEM, of);
        match &mut task {
            // From now on commands find no such namespace.
            Task::Delete(nsids) => {
                for nsid in nsids {
                    self.get_mut(*nsid).into_iter().for_each(Namespace::leave);
                    self.announce(Notice::Deleting(*nsid));
                }
            }
            Task::Detach { nsid, attachment, lost, .. } => {
                *lost = self.reattach(*nsid, attachment.clone(), None);
            }
            Task::Create(..) | Task::Attach { .. } => {}
        }
        self.await_copies();
        let until_ns = now_ns.saturating_add(WAIT_NS);
        let (stage, next_ns) = (TaskStage::Waiting, now_ns);
        self.jobs_mut().management.under_way =
            Some(UnderWay { command, number, task, stage, next_ns, until_ns });
        self.advance_management(now_ns);
    }

    /// Sets the attachment of a namespace. Returns a bit per controller that has gained or lost it.
    fn reattach(&mut self, nsid: u32, attachment: Attachment, first: Option<u8>) -> u32 {
        let index = nsid.wrapping_sub(1);
        let Some(mut namespace) = self.take_out_namespace(index) else { return 0 };
        let before = namespace.attached();
        namespace.set_attachment(attachment);
        self.attach_present(&mut namespace, first);
        let changed = before ^ namespace.attached();
        self.put_back_namespace(index, namespace);
        changed
    }

    /// Continues the task that is under way, if it is time.
    pub(crate) fn advance_management(&mut self, now_ns: u64) {
        let due = |it: &mut UnderWay| it.stage != TaskStage::Persisting && now_ns >= it.next_ns;
        let Some(mut it) = self.jobs_mut().management.under_way.take_if(due) else { return };
        it.next_ns = now_ns.saturating_add(PAUSE_NS);
        // This includes commands that have begun to wait since the last look.
        for &nsid in it.task.leaving() {
            let deleted = matches!(it.task, Task::Delete(_));
            let kept = self.get(nsid).filter(|_| !deleted).map_or(0, Namespace::attached);
            self.end_waiting(nsid, Controllers::of_bits(!kept), Status::CAPACITY_EXCEEDED, now_ns);
        }
        self.make_due(it.next_ns);
        match it.stage {
            TaskStage::Draining if self.is_vacant(&it.task) => self.remove(it, now_ns),
            TaskStage::Waiting if self.is_vacant(&it.task) => {
                it.stage = TaskStage::Persisting;
                let what = it.task.record_to_persist();
                self.jobs_mut().management.under_way = Some(it);
                self.persist(what, now_ns);
            }
            TaskStage::Waiting if now_ns >= it.until_ns => {
                tracing::warn!("hosts' commands did not come to their end: a namespace stays as it is");
                self.give_up(it, Status::COMMAND_SEQUENCE_ERROR, now_ns);
            }
            _ => self.jobs_mut().management.under_way = Some(it),
        }
    }

    /// Returns whether no command is on its way through the namespaces that go.
    fn is_vacant(&self, task: &Task) -> bool {
        let nsids = task.leaving();
        if nsids.is_empty() {
            return true;
        }
        let is_deletion = matches!(task, Task::Delete(_));
        // This includes a controller without the namespace that has come since.
        let has =
            |number: u8| nsids.iter().any(|nsid| self.get(*nsid).is_some_and(|it| it.is_attached(number)));
        let is_in_the_way = |slot: &Slot| {
            let origin = slot.origin;
            let is_io = match origin.sq {
                // These are flushes of a write cache that is switched off, and commands that a device gets
                // unchanged.
                0 => origin.opcode == admin::SET_FEATURES || origin.raw,
                // Waiting commands are checked again before they begin.
                _ => origin.opcode != fused::WAITS,
            };
            // Commands of the drive itself belong to no detached controller.
            let is_host = origin.is_host() && origin.sq != Origin::INTERNAL_SQ;
            let of_these = is_deletion || is_host && !has(origin.controller);
            // The next sources and destinations of a Copy are not visible.
            let copies = origin.opcode == io::COPY && origin.awaited;
            let there = nsids.contains(&(u32::from(origin.namespace) + 1)) || copies;
            !slot.is_child() && is_io && of_these && there && !client_dma::has(slot)
        };
        !self.has_live(is_in_the_way)
    }

    /// Delivers the namespace that a host creates, which was built by the control plane. It is persisted
    /// next, or dropped.
    ///
    /// # Errors
    /// Its layers would make more commands than a drive can have, so it must not be persisted.
    pub fn made(&mut self, creation: Creation, namespace: Namespace) -> Result<(), Refusal> {
        if !self.make_room_for(&namespace) {
            return Err(Refusal::TooManyCommands);
        }
        if let Some(UnderWay { task: Task::Create(wanted, made), .. }) =
            &mut self.jobs_mut().management.under_way
            && *wanted == creation
        {
            *made = Some(Box::new(namespace));
        }
        Ok(())
    }

    /// Continues a task after its change was persisted, or could not be.
    pub(crate) fn management_persisted(&mut self, what: &PersistentRecord, well: bool, now_ns: u64) {
        let is_it =
            |it: &mut UnderWay| it.stage == TaskStage::Persisting && it.task.record_to_persist() == *what;
        let Some(mut it) = self.jobs_mut().management.under_way.take_if(is_it) else { return };
        if !well {
            return self.give_up(it, Status::INTERNAL_ERROR, now_ns);
        }
        match it.task {
            Task::Create(creation, Some(namespace)) => {
                self.add(*namespace, now_ns, creation);
                self.finish_management(it.command, Status::SUCCESS, creation.nsid);
            }
            // The namespace was not built, although the sink reported success.
            Task::Create(_, None) => self.finish_management(it.command, Status::INTERNAL_ERROR, 0),
            Task::Delete(_) => {
                (it.stage, it.next_ns) = (TaskStage::Draining, now_ns);
                self.jobs_mut().management.under_way = Some(it);
                return self.advance_management(now_ns);
            }
            Task::Attach { nsid, attachment, first } => {
                let changed = self.reattach(nsid, attachment, first);
                self.notify_others(changed, it.number, nsid);
                self.finish_management(it.command, Status::SUCCESS, 0);
            }
            Task::Detach { nsid, lost, .. } => {
                self.notify_others(lost, it.number, nsid);
                self.finish_management(it.command, Status::SUCCESS, 0);
            }
        }
        self.run_requests(now_ns);
    }

    fn give_up(&mut self, it: UnderWay, status: Status, now_ns: u64) {
        match it.task {
            Task::Delete(nsids) => {
                let refusal = erasing::refusal(self);
                for nsid in nsids {
                    let Some(namespace) = self.get_mut(nsid) else { continue };
                    namespace.stay();
                    refusal.into_iter().for_each(|status| namespace.close(status));
                }
            }
            Task::Detach { nsid, before, .. } => drop(self.reattach(nsid, before, None)),
            Task::Create(..) | Task::Attach { .. } => {}
        }
        self.finish_management(it.command, status, 0);
        self.run_requests(now_ns);
    }

    /// Adds a namespace, which no controller has yet.
    fn add(&mut self, mut namespace: Namespace, now_ns: u64, creation: Creation) {
        self.attach_present(&mut namespace, None);
        if let Some(status) = erasing::refusal(self) {
            namespace.close(status);
        }
        tracing::info!(nsid = creation.nsid, bytes = creation.bytes(), "a host created a namespace");
        self.put(namespace);
        self.note_creation(creation, now_ns);
    }

    /// Removes namespaces whose deletion was persisted. Nothing of them is in flight.
    fn remove(&mut self, it: UnderWay, now_ns: u64) {
        let Task::Delete(nsids) = it.task else { return };
        for nsid in nsids {
            let Some(namespace) = self.take(nsid) else { continue };
            tracing::info!(nsid, "a namespace that a host created is deleted");
            self.note_deletion(nsid, now_ns);
            self.announce(Notice::Deleted(nsid));
            self.notify_others(namespace.attached(), it.number, nsid);
        }
        self.persist(PersistentRecord::Removal, now_ns);
        self.finish_management(it.command, Status::SUCCESS, 0);
        self.run_requests(now_ns);
    }

    /// Notifies controllers whose namespaces have changed, except for the one of the command (Base 8.11).
    fn notify_others(&mut self, numbers: u32, but: u8, nsid: u32) {
        let notified = (0..u32::BITS as u8).filter(|number| *number != but && numbers & 1 << number != 0);
        notified.for_each(|number| self.notify(number, Notice::NamespaceChanged(nsid)));
    }
}

/// Time for commands in flight to end.
const WAIT_NS: u64 = 8_000_000_000;

/// Time between two checks whether they have ended.
const PAUSE_NS: u64 = 1_000_000;
