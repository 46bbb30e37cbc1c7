//! ANA states of the namespaces of a drive.

use crate::model::{Controller, Subsystem};
use crate::state::ana::{Ana, AnaRule, Paths, bit};
use crate::state::limits::NN;
use crate::state::mailbox::Notice;

impl Subsystem {
    /// Sets the operator's rules, and notifies hosts of changed states.
    pub fn set_ana(&mut self, rules: Vec<AnaRule>) {
        self.ana.rules = rules;
        let (used, is_shared) = (self.used_groups(), self.is_shared());
        let Self { ana: Ana { rules, paths }, mailboxes, .. } = self;
        for (number, entry) in (0..).zip(paths) {
            if entry.update(rules, used) && is_shared {
                mailboxes.notify(number, Notice::AccessChanged);
            }
        }
        self.guard_namespaces();
    }

    /// Returns a bit per group that has namespaces.
    fn used_groups(&self) -> u32 {
        self.iter().fold(0, |bits, namespace| bits | bit(namespace.ana_group()))
    }

    /// Makes commands to namespaces be checked if not every controller may reach the namespace.
    pub(crate) fn guard_namespaces(&mut self) {
        let refused = self.ana.paths.iter().fold(0, |bits, entry| bits | entry.refuses());
        for nsid in 1..=NN {
            if let Some(namespace) = self.get_mut(nsid) {
                let group = namespace.ana_group();
                namespace.set_asymmetric(refused & bit(group) != 0);
            }
        }
    }

    /// Resets the reported states of a controller, when a host enables the controller.
    pub(crate) fn reset_ana(&mut self, number: u8) {
        self.ana.reset(number);
    }

    pub(crate) fn ana(&self) -> &Ana {
        &self.ana
    }
}

impl Controller {
    /// Sets the port of a new host.
    pub fn set_port(&self, subsystem: &mut Subsystem, port: &str) {
        let number = usize::from(self.number);
        let Ana { rules, paths } = &mut subsystem.ana;
        if paths.len() <= number {
            paths.resize_with(number + 1, Paths::default);
        }
        paths[number] = Paths { port: port.to_owned(), ..Paths::default() };
        paths[number].update(rules, 0);
        subsystem.guard_namespaces();
    }
}
