//! The fields of Identify data that a driver needs.

/// Identify Controller data (Base 5.2.13.2.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentifyController {
    pub serial_number: String,
    pub model_number: String,
    pub firmware_revision: String,
    pub subsystem_nqn: String,
    pub controller_id: u16,
    pub version: u32,
    /// The longest transfer of one command, in bytes; `None` if it is not limited.
    pub max_transfer: Option<usize>,
    /// Optional admin commands (OACS).
    pub admin_commands: u16,
    /// Optional NVM commands (ONCS).
    pub nvm_commands: u16,
    /// The largest NSID there can be.
    pub namespaces: u32,
    /// There is a volatile write cache.
    pub volatile_write_cache: bool,
    /// SGL support as it stands (SGLS).
    pub sgls: u32,
}

/// OACS bit 8: Doorbell Buffer Config.
const OACS_DOORBELL_BUFFER_CONFIG: u16 = 1 << 8;

impl IdentifyController {
    pub fn parse(data: &[u8; 4096]) -> Self {
        Self {
            serial_number: text(&data[4..24]),
            model_number: text(&data[24..64]),
            firmware_revision: text(&data[64..72]),
            subsystem_nqn: text(&data[768..1024]),
            controller_id: number(data, 78, 2) as u16,
            version: number(data, 80, 4) as u32,
            max_transfer: max_transfer(data[77]),
            admin_commands: number(data, 256, 2) as u16,
            nvm_commands: number(data, 520, 2) as u16,
            namespaces: number(data, 516, 4) as u32,
            volatile_write_cache: data[525] & 1 != 0,
            sgls: number(data, 536, 4) as u32,
        }
    }

    pub fn has_doorbell_buffer_config(&self) -> bool {
        self.admin_commands & OACS_DOORBELL_BUFFER_CONFIG != 0
    }
}

/// Identify Namespace data of the NVM command set (NVM Command Set 4.1.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentifyNamespace {
    /// Size (NSZE), in blocks.
    pub blocks: u64,
    /// Capacity (NCAP), in blocks.
    pub capacity: u64,
    /// Utilization (NUSE), in blocks.
    pub utilization: u64,
    /// In bytes.
    pub block_size: u32,
    /// Of each block, in bytes.
    pub metadata_size: u16,
}

impl IdentifyNamespace {
    /// `None` if the format in use is not one that blocks can have.
    pub fn parse(data: &[u8; 4096]) -> Option<Self> {
        let flbas = usize::from(data[26]);
        let format = 128 + 4 * (flbas & 0xf | flbas >> 1 & 0x30);
        let shift = data[format + 2];
        (9..32).contains(&shift).then(|| Self {
            blocks: number(data, 0, 8),
            capacity: number(data, 8, 8),
            utilization: number(data, 16, 8),
            block_size: 1 << shift,
            metadata_size: number(data, format, 2) as u16,
        })
    }
}

/// MDTS is a power of two in units of the smallest page size, which is 4096 here; zero is no limit.
fn max_transfer(mdts: u8) -> Option<usize> {
    (mdts != 0).then(|| sluice_nvme::PAGE_SIZE.checked_shl(mdts.into()).unwrap_or(usize::MAX))
}

fn number(data: &[u8; 4096], offset: usize, size: usize) -> u64 {
    data[offset..offset + size].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

/// ASCII, filled up with spaces or zeros.
fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).trim_end_matches([' ', '\0']).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller() {
        let mut data = [0; 4096];
        data[4..24].copy_from_slice(b"SERIAL              ");
        data[768..777].copy_from_slice(b"nqn.2014-");
        data[77] = 5;
        data[78..80].copy_from_slice(&[0x34, 0x12]);
        data[257] = 1;
        data[516] = 2;
        let controller = IdentifyController::parse(&data);
        assert_eq!(controller.serial_number, "SERIAL");
        assert_eq!(controller.subsystem_nqn, "nqn.2014-");
        assert_eq!(controller.max_transfer, Some(128 << 10));
        assert_eq!((controller.controller_id, controller.namespaces), (0x1234, 2));
        assert!(controller.has_doorbell_buffer_config());
    }

    #[test]
    fn a_namespace() {
        let mut data = [0; 4096];
        data[0] = 100;
        data[26] = 0x21;
        data[128 + 4 * 17 + 2] = 12;
        let namespace = IdentifyNamespace::parse(&data).expect("4096-byte blocks");
        assert_eq!((namespace.blocks, namespace.block_size), (100, 4096));
        data[128 + 4 * 17 + 2] = 255;
        assert_eq!(IdentifyNamespace::parse(&data), None);
    }
}
