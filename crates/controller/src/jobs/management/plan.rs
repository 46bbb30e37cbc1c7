//! Planning of a request: its task in the current state, or the status of its refusal. Nothing changes here.

use crate::model::management::Task;
use crate::model::{Namespace, Subsystem};
use crate::state::limits::NN;
use crate::state::management::{ATTACHED_MAX, Attachment, Creation, Request};
use sluice_nvme::{NSID_ALL, Status};

impl Subsystem {
    /// Returns the task for a request.
    pub(super) fn plan(&self, request: Request) -> Result<Task, Status> {
        if let Some(erasure) =
            self.jobs().erasure.as_ref().filter(|_| !matches!(request, Request::Attach { .. }))
        {
            return Err(erasure.status());
        }
        match request {
            Request::Create(creation) => self.plan_creation(creation),
            Request::Delete(nsid) => self.plan_deletion(nsid),
            Request::DeleteThis(uuid) => {
                let found = self.iter().find(|it| it.uuid() == uuid).map(Namespace::nsid);
                self.plan_deletion(found.ok_or(Status::INVALID_FIELD)?)
            }
            Request::Attach { nsid, cntlids, attach } => self.plan_attachment(nsid, &cntlids, attach),
        }
    }

    fn plan_creation(&self, creation: Creation) -> Result<Task, Status> {
        let bytes = u128::from(creation.blocks) * u128::from(creation.block_size);
        if bytes > u128::from(self.unallocated()) {
            return Err(Status::NAMESPACE_INSUFFICIENT_CAPACITY);
        }
        let free = (1..=NN).find(|nsid| self.get(*nsid).is_none());
        let nsid = free.ok_or(Status::NAMESPACE_IDENTIFIER_UNAVAILABLE)?;
        Ok(Task::Create(Creation { nsid, ..creation }, None))
    }

    fn plan_deletion(&self, nsid: u32) -> Result<Task, Status> {
        let concerned: Vec<&Namespace> = match nsid {
            NSID_ALL => self.iter().collect(),
            _ => vec![self.get(nsid).ok_or(Self::status_of_inactive(nsid))?],
        };
        // Hosts cannot delete namespaces of the configuration.
        match concerned.iter().all(|namespace| namespace.is_created()) {
            true => Ok(Task::Delete(concerned.into_iter().map(Namespace::nsid).collect())),
            false => Err(Status::OPERATION_DENIED),
        }
    }

    fn plan_attachment(&self, nsid: u32, cntlids: &[u16], attach: bool) -> Result<Task, Status> {
        let namespace = self.get(nsid).ok_or(Self::status_of_inactive(nsid))?;
        let number_of = |cntlid: &u16| {
            let found = self.present().find(|(_, it)| it == cntlid);
            found.map(|(number, _)| number).ok_or(Status::CONTROLLER_LIST_INVALID)
        };
        let named: Vec<u8> = cntlids.iter().map(number_of).collect::<Result<_, _>>()?;
        let before = namespace.attached();
        if named.iter().any(|number| namespace.is_attached(*number) == attach) {
            return Err(match attach {
                true => Status::NAMESPACE_ALREADY_ATTACHED,
                false => Status::NAMESPACE_NOT_ATTACHED,
            });
        }
        if attach && !namespace.is_shared() && (named.len() > 1 || before != 0) {
            return Err(Status::NAMESPACE_IS_PRIVATE);
        }
        let mut attachment: Attachment = namespace.attachment().clone();
        if !namespace.is_shared() {
            // A host that is not connected does not block a private namespace.
            attachment.listed.clear();
        }
        named.iter().for_each(|number| attachment.set(&self.host_name(*number), attach));
        if attachment.listed.len() > ATTACHED_MAX {
            return Err(Status::NAMESPACE_ATTACHMENT_LIMIT_EXCEEDED);
        }
        Ok(match attach {
            true => Task::Attach { nsid, attachment, first: named.first().copied() },
            false => Task::Detach { nsid, attachment, before: namespace.attachment().clone(), lost: 0 },
        })
    }
}
