//! Persistent state of namespaces that hosts manage.

use crate::state::reservation::KnownAs;

/// Request of a host, with only its fields checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Creation; the NSID is still to be chosen.
    Create(Creation),
    /// Deletion of this namespace, or of all with the broadcast NSID.
    Delete(u32),
    /// Deletion of the namespace with this UUID, for the operator.
    DeleteThis([u8; 16]),
    /// Attachment to, or detachment from, the controllers with these identifiers.
    Attach { nsid: u32, cntlids: Vec<u16>, attach: bool },
}

/// Namespace that a host creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Creation {
    pub nsid: u32,
    /// Bytes of a block.
    pub block_size: u32,
    pub blocks: u64,
    /// Whether several controllers may have it at a time.
    pub shared: bool,
    pub ana_group: u32,
}

impl Creation {
    pub fn bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_size)
    }
}

/// Controllers that a namespace is attached to, by the names of their hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Whether it is attached to the names that are not listed, or to the listed ones.
    pub to_others: bool,
    pub listed: Vec<KnownAs>,
}

impl Attachment {
    /// Default attachment of a configured namespace.
    pub const ALL: Attachment = Attachment { to_others: true, listed: Vec::new() };

    /// Attachment of a namespace that a host has just created.
    pub const NONE: Attachment = Attachment { to_others: false, listed: Vec::new() };

    pub fn has(&self, name: &KnownAs) -> bool {
        self.listed.contains(name) != self.to_others
    }

    pub(crate) fn set(&mut self, name: &KnownAs, attached: bool) {
        self.listed.retain(|it| it != name);
        if attached != self.to_others {
            self.listed.push(name.clone());
        }
    }
}

/// Names of controllers that are stored of a namespace. A host that was detached and never comes back has
/// one, too.
pub const ATTACHED_MAX: usize = 256;

/// Capacity that hosts create namespaces of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Number of bytes.
    pub size: u64,
    /// Whether its namespaces may lose finished writes at a power cut. Hosts can read that before they create
    /// one.
    pub volatile_cache: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_so_whatever_the_rule_for_others() {
        let (one, other) = (KnownAs::Socket(1), KnownAs::Nqn("nqn.a".into()));
        for mut attachment in [Attachment::ALL, Attachment::NONE] {
            let others = attachment.to_others;
            for attached in [true, true, false, true, false, false] {
                attachment.set(&one, attached);
                assert_eq!(attachment.has(&one), attached);
                assert_eq!(attachment.has(&other), others);
                assert_eq!(attachment.listed.len(), usize::from(attached != others));
            }
        }
    }
}
