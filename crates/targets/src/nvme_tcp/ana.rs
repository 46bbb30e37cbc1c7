//! Asymmetric Namespace Access: the access state of a path, as the controller reports it (Base 8.1).

use sluice_nvme::AnaState;
use sluice_nvme::log::{AnaGroup, AnaHeader};
use zerocopy::FromBytes;

/// Returns the bytes of the log page of `groups` groups, without their namespaces.
pub(super) fn log_bytes(groups: u32) -> usize {
    AnaHeader::SIZE + AnaGroup::SIZE * groups as usize
}

/// Returns the state of a group from a log page without namespaces; none if the group is missing or
/// malformed.
pub(super) fn state_of(log: &[u8], group: u32) -> Option<AnaState> {
    let (header, groups) = AnaHeader::read_from_prefix(log).ok()?;
    let groups = groups.chunks_exact(AnaGroup::SIZE).take(header.groups.into());
    let mut groups = groups.filter_map(|bytes| AnaGroup::read_from_bytes(bytes).ok());
    AnaState::of(groups.find(|it| it.group == group)?.state & 0xf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn a_group_is_found_by_its_number_and_nothing_beyond_the_count_is() {
        let mut log = AnaHeader::new(1, 2).as_bytes().to_vec();
        for (group, state) in [(7, 3), (9, 0x12), (11, 1)] {
            log.extend(AnaGroup::new(group, 0, 1, state).as_bytes());
        }
        assert_eq!(log.len(), log_bytes(3));
        assert_eq!(state_of(&log, 7), Some(AnaState::Inaccessible));
        assert_eq!(state_of(&log, 9), Some(AnaState::NonOptimized), "four bits of it are reserved");
        assert_eq!(state_of(&log, 11), None);
        assert_eq!(state_of(&log[..AnaHeader::SIZE + 40], 9), None, "it is cut off");
        assert_eq!(state_of(&[], 7), None);
    }
}
