//! Attachment of namespaces to controllers.

use crate::model::{Namespace, Subsystem};
use crate::state::mailbox::Notice;
use crate::state::reservation::KnownAs;

/// Returns whether a controller with this name may have a namespace that `others` have already. A private
/// namespace belongs to the first controller that may have it.
fn may_have(namespace: &Namespace, name: &KnownAs, others: u32) -> bool {
    namespace.attachment().has(name) && (namespace.is_shared() || others == 0)
}

impl Subsystem {
    /// Attaches to a controller all namespaces that are attached to its host's name, when it comes or its
    /// name changes.
    pub(crate) fn attach_all(&mut self, number: u8) {
        let name = self.host_name(number);
        self.hand_out(number, Some(&name));
    }

    /// Detaches a controller that has no host any more. Its private namespaces are for another controller, or
    /// for the next.
    pub(crate) fn detach_all(&mut self, number: u8) {
        self.hand_out(number, None);
    }

    /// Attaches to a controller all namespaces of its host's name. A private namespace that this frees goes
    /// to the first other controller that may have it, whose host is notified.
    fn hand_out(&mut self, number: u8, name: Option<&KnownAs>) {
        let present = self.mailboxes.present_numbers();
        let others = present.iter().filter(|other| **other != number);
        let others: Vec<_> = others.map(|other| (*other, self.host_name(*other))).collect();
        let mut gained = Vec::new();
        self.each_namespace(|namespace| {
            let before = namespace.attached();
            let mut attached = before & !(1 << number);
            let has = name.is_some_and(|name| may_have(namespace, name, attached));
            attached |= u32::from(has) << number;
            let next = others.iter().find(|(_, name)| may_have(namespace, name, attached));
            if let (true, Some((next, _))) = (before != 0 && attached == 0, next) {
                attached = 1 << next;
                gained.push((*next, namespace.nsid()));
            }
            namespace.attach(attached, &present);
        });
        gained
            .into_iter()
            .for_each(|(next, nsid)| self.mailboxes.notify(next, Notice::NamespaceChanged(nsid)));
    }

    /// Attaches a namespace that is new, or whose attachment has changed, to all present controllers that may
    /// have it. `first` is the controller that has a private namespace, or had it.
    pub(crate) fn attach_present(&self, namespace: &mut Namespace, first: Option<u8>) {
        let numbers = self.mailboxes.present_numbers();
        let had = |number: &u8| namespace.is_attached(*number);
        let mut order: Vec<u8> = numbers.clone();
        order.sort_by_key(|number| (first != Some(*number), !had(number)));
        let mut attached = 0;
        for number in order {
            let has = may_have(namespace, &self.host_name(number), attached);
            attached |= u32::from(has) << number;
        }
        namespace.attach(attached, &numbers);
    }

    /// Returns a namespace that is attached to this controller.
    pub(crate) fn active(&self, number: u8, nsid: u32) -> Option<&Namespace> {
        self.get(nsid).filter(|namespace| namespace.is_attached(number) && !namespace.is_leaving())
    }

    /// Returns the namespaces attached to this controller, in ascending order of their NSIDs.
    pub(crate) fn iter_active(&self, number: u8) -> impl Iterator<Item = &Namespace> + Clone {
        self.iter().filter(move |namespace| namespace.is_attached(number) && !namespace.is_leaving())
    }
}
