//! Asymmetric Namespace Access (Base 8.1): the preferred paths of a host to a namespace.
//!
//! Namespaces are in groups. An operator sets the state of a group at a port, where hosts come in. A
//! controller belongs to the port that its host came to.

use crate::state::limits::{ANA_GROUPS_MAX, NAMESPACES_MAX};
use sluice_nvme::log::{AnaGroup, AnaHeader};
use sluice_nvme::{AnaState, Status};
use zerocopy::IntoBytes;

/// Longest time in seconds that a group stays in the change state, as reported to hosts (ANATT). After that
/// they give up the path.
pub const TRANSITION_SECONDS: u8 = 60;

/// Identify's ANACAP: all states are reported, and a namespace stays in its group while it is attached.
pub(crate) const CAPABILITIES: u8 = 0b0101_1111;

/// Bytes of the longest log page.
pub(crate) const LOG_BYTES: usize =
    AnaHeader::SIZE + ANA_GROUPS_MAX as usize * AnaGroup::SIZE + NAMESPACES_MAX * size_of::<u32>();

/// Rule of an operator. If several apply, the last one counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnaRule {
    /// Port to which the rule is limited.
    pub port: Option<String>,
    /// Group to which the rule is limited.
    pub group: Option<u32>,
    pub state: AnaState,
}

impl AnaRule {
    fn applies(&self, port: &str, group: u32) -> bool {
        self.port.as_ref().is_none_or(|it| it == port) && self.group.is_none_or(|it| it == group)
    }
}

/// State of a group at a controller.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Access {
    state: AnaState,
    /// Count of changes in the log page at the last change of this group.
    changed: u64,
}

/// Paths through a controller.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    pub(crate) port: String,
    /// Changes of the controller's log page since its last reset.
    pub(crate) changes: u64,
    /// Groups in the order of their numbers.
    pub(crate) groups: [Access; ANA_GROUPS_MAX as usize],
}

impl Paths {
    /// Computes the states anew. Returns whether the state of a group in `used` has changed.
    pub(crate) fn update(&mut self, rules: &[AnaRule], used: u32) -> bool {
        let mut changed = false;
        for (group, access) in (1..).zip(&mut self.groups) {
            let rule = rules.iter().rfind(|rule| rule.applies(&self.port, group));
            let state = rule.map_or(AnaState::Optimized, |rule| rule.state);
            if std::mem::replace(&mut access.state, state) != state && used & bit(group) != 0 {
                access.changed = self.changes + 1;
                changed = true;
            }
        }
        self.changes += u64::from(changed);
        changed
    }

    /// Returns a bit per group that refuses some commands.
    pub(crate) fn refuses(&self) -> u32 {
        let refuses = |(_, access): &(u32, &Access)| access.state.refusal().is_some();
        (1..).zip(&self.groups).filter(refuses).fold(0, |bits, (group, _)| bits | bit(group))
    }
}

/// Returns the bit of a group.
pub(crate) fn bit(group: u32) -> u32 {
    1 << (group - 1)
}

const _: () = assert!(ANA_GROUPS_MAX <= u32::BITS);

/// ANA states of a subsystem's groups.
#[derive(Debug, Default)]
pub(crate) struct Ana {
    pub(crate) rules: Vec<AnaRule>,
    /// Paths by controller number.
    pub(crate) paths: Vec<Paths>,
}

impl Ana {
    fn access(&self, number: u8, group: u32) -> Access {
        let entry = self.paths.get(usize::from(number));
        entry.and_then(|entry| entry.groups.get(group as usize - 1)).copied().unwrap_or_default()
    }

    /// Returns the status for commands to a namespace of a group that this controller cannot reach.
    pub(crate) fn check(&self, number: u8, group: u32) -> Result<(), Status> {
        self.access(number, group).state.refusal().map_or(Ok(()), Err)
    }

    /// Clears the counts of changes of a controller that is enabled.
    pub(crate) fn reset(&mut self, number: u8) {
        if let Some(entry) = self.paths.get_mut(usize::from(number)) {
            entry.changes = 0;
            entry.groups.iter_mut().for_each(|access| access.changed = 0);
        }
    }

    /// Returns the log page of a controller (Base 5.16.1.13). It lists the NSIDs of the groups unless
    /// `groups_only` is set. `namespaces` are NSIDs in ascending order, each with its group.
    pub(crate) fn log(
        &self,
        number: u8,
        namespaces: impl Iterator<Item = (u32, u32)> + Clone,
        groups_only: bool,
    ) -> Vec<u8> {
        let members = |group: u32| namespaces.clone().filter(move |(_, of)| *of == group);
        let groups: Vec<u32> = (1..=ANA_GROUPS_MAX).filter(|it| members(*it).next().is_some()).collect();
        let changes = self.paths.get(usize::from(number)).map_or(0, |entry| entry.changes);
        let mut page = AnaHeader::new(changes, groups.len() as u16).as_bytes().to_vec();
        for group in groups {
            let nsids = members(group).map(|(nsid, _)| nsid).filter(|_| !groups_only);
            let Access { state, changed } = self.access(number, group);
            let count = nsids.clone().count() as u32;
            page.extend(AnaGroup::new(group, count, changed, state as u8).as_bytes());
            nsids.for_each(|nsid| page.extend(nsid.to_le_bytes()));
        }
        page
    }
}
