//! Fields of Identify data that a driver needs.

use sluice_nvme::PAGE_SIZE;
use sluice_nvme::identify::{IdentifyController, IdentifyNamespace, LbaFormat, nidt};

/// OACS bit 8: Doorbell Buffer Config (Base 5.17.2.1).
const OACS_DOORBELL_BUFFER_CONFIG: u16 = 1 << 8;

pub(crate) fn has_doorbell_buffer_config(controller: &IdentifyController) -> bool {
    controller.oacs & OACS_DOORBELL_BUFFER_CONFIG != 0
}

/// Returns the longest transfer of one command (MDTS), in bytes; `None` if it is not limited. MDTS is a power
/// of two in units of the smallest page size, which is 4096 here.
pub fn max_transfer(controller: &IdentifyController) -> Option<usize> {
    let mdts = u32::from(controller.mdts);
    // A limit beyond what can be counted is none.
    let limit = (mdts != 0 && mdts < usize::BITS).then(|| PAGE_SIZE.checked_mul(1 << mdts));
    limit.flatten()
}

/// Returns a value that the controller keeps for as long as it has lost no acknowledged write; `None` if it
/// reports none. Only controllers of Sluice do.
pub fn power_id(controller: &IdentifyController) -> Option<[u8; 16]> {
    let is_given = controller.power_id_mark == IdentifyController::POWER_ID_MARK;
    (is_given && controller.power_id != [0; 16]).then_some(controller.power_id)
}

/// Returns the LBA format in use: its index is in bits 3:0 and 6:5 of FLBAS (NVM Command Set 4.1.5.1).
pub fn lba_format(namespace: &IdentifyNamespace) -> LbaFormat {
    let flbas = usize::from(namespace.flbas);
    namespace.lbaf[flbas & 0xf | flbas >> 1 & 0x30]
}

/// Returns the bytes of a block; `None` if no block can have the format in use.
pub fn block_size(namespace: &IdentifyNamespace) -> Option<u32> {
    let shift = u32::from(lba_format(namespace).lbads);
    (9..u32::BITS).contains(&shift).then(|| 1 << shift)
}

/// Returns the UUID in a Namespace Identification Descriptor list (Base 5.17.2.3); none if it is missing, or
/// the list is malformed.
pub fn uuid(list: &[u8]) -> Option<[u8; 16]> {
    const HEADER: usize = 4;
    let mut rest = list;
    loop {
        let (kind, length) = (*rest.first()?, usize::from(*rest.get(1)?));
        let identifier = rest.get(HEADER..HEADER + length)?;
        match (kind, length) {
            (_, 0) => return None,
            (nidt::UUID, _) => return identifier.try_into().ok(),
            _ => rest = &rest[HEADER + length..],
        }
    }
}

/// Returns a field of ASCII, without the spaces or zeros that fill it up.
pub fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).trim_end_matches([' ', '\0']).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn transfers_are_limited_in_powers_of_two() {
        let mut controller = IdentifyController::new_zeroed();
        for (mdts, limit) in [(0, None), (5, Some(128 << 10)), (63, None), (255, None)] {
            controller.mdts = mdts;
            assert_eq!(max_transfer(&controller), limit);
        }
    }

    #[test]
    fn the_format_in_use() {
        let mut namespace = IdentifyNamespace::new_zeroed();
        namespace.flbas = 0x21;
        namespace.lbaf[17].lbads = 12;
        assert_eq!(block_size(&namespace), Some(4096));
        for impossible in [0, 8, 32, 255] {
            namespace.lbaf[17].lbads = impossible;
            assert_eq!(block_size(&namespace), None);
        }
        namespace.flbas = 0xff;
        assert_eq!(block_size(&namespace), None);
    }

    #[test]
    fn a_uuid_is_found_behind_what_else_identifies_a_namespace() {
        let list = |kind: u8| {
            [&[nidt::NGUID, 16, 0, 0][..], &[7; 16], &[kind, 16, 0, 0], &[9; 16], &[0; 8]].concat()
        };
        assert_eq!(uuid(&list(nidt::UUID)), Some([9; 16]));
        assert_eq!(uuid(&list(nidt::CSI)), None, "it has none");
        assert_eq!(uuid(&list(nidt::UUID)[..39]), None, "it is cut off");
        assert_eq!(uuid(&[nidt::UUID, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]), None, "it has another length");
        assert_eq!(uuid(&[nidt::NGUID]), None);
        assert_eq!(uuid(&[]), None);
    }

    #[test]
    fn names_end_before_what_fills_them_up() {
        assert_eq!(text(b"SERIAL 1    "), "SERIAL 1");
        assert_eq!(text(b"nqn.2014-08\0\0"), "nqn.2014-08");
        assert_eq!(text(b"\xff  "), "\u{fffd}");
    }
}
