//! Which controllers have which namespaces.

use super::Subsystem;
use crate::Namespace;

/// If a controller of this name has a namespace, which those with these numbers have already. One that is not shared is
/// the first's that may have it.
fn may_have(namespace: &Namespace, name: &crate::KnownAs, others: u32) -> bool {
    namespace.attachment().has(name) && (namespace.is_shared() || others == 0)
}

impl Subsystem {
    /// A controller is there, and is somebody else's perhaps: it has what is attached to that name.
    pub(crate) fn attach_all(&mut self, number: u8) {
        let (name, numbers) = (self.host_name(number), self.trays.present_numbers());
        self.each_namespace(|namespace| {
            let others = namespace.attached() & !(1 << number);
            let has = may_have(namespace, &name, others);
            namespace.attach(others | u32::from(has) << number, &numbers);
        });
    }

    /// A controller is nobody's: what only one may have is for the next.
    pub(crate) fn detach_all(&mut self, number: u8) {
        let numbers = self.trays.present_numbers();
        self.each_namespace(|namespace| namespace.attach(namespace.attached() & !(1 << number), &numbers));
    }

    /// A namespace has just come, or is attached otherwise: those of the controllers that are there have it that it is
    /// attached to. Of one that is not shared it is `first` who has it, or who had it.
    pub(crate) fn attach_present(&self, namespace: &mut Namespace, first: Option<u8>) {
        let numbers = self.trays.present_numbers();
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

    /// A namespace that is attached to this controller.
    pub(crate) fn active(&self, number: u8, nsid: u32) -> Option<&Namespace> {
        self.get(nsid).filter(|namespace| namespace.is_attached(number) && !namespace.is_leaving())
    }

    /// Those that are, in ascending order of their NSIDs.
    pub(crate) fn iter_active(&self, number: u8) -> impl Iterator<Item = &Namespace> + Clone {
        self.iter().filter(move |namespace| namespace.is_attached(number) && !namespace.is_leaving())
    }
}
