//! The entries of a discovery controller (Base 3.1.2.3 and 5.16.1.23).

use super::NvmeTcpConfig;
use super::error::{ErrorKind, NvmeTcpError};
use super::fabrics::Association;
use super::transport::Tcp;
use sluice_nvme::discovery::{DiscoveryEntry, DiscoveryHeader};
use sluice_nvme::fabrics::DISCOVERY_NQN;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Entries that are read at most. A log with more is an error.
const ENTRIES_MAX: u64 = 4096;

/// Times that the log is read anew because it changed meanwhile.
const TRIES: u32 = 5;

/// Reads the log of the discovery controller at the address of `config`. Blocks, for no longer than a few
/// times its timeout.
///
/// # Errors
/// The error names the address and gives advice.
pub fn discover(config: &NvmeTcpConfig) -> Result<Vec<DiscoveryEntry>, NvmeTcpError> {
    let config = NvmeTcpConfig { subnqn: DISCOVERY_NQN.to_owned(), ..config.clone() };
    read_log(&config).map_err(|kind| NvmeTcpError {
        address: config.address.clone(),
        subnqn: config.subnqn.clone(),
        kind,
    })
}

fn read_log(config: &NvmeTcpConfig) -> Result<Vec<DiscoveryEntry>, ErrorKind> {
    let transport = Tcp { address: config.address.clone() };
    let mut association = Association::start(&transport, config)?;
    for _ in 0..TRIES {
        let header = header(&mut association)?;
        if header.records > ENTRIES_MAX {
            return Err(ErrorKind::Unsupported("more entries than can be believed"));
        }
        let mut entries = Vec::new();
        for index in 0..header.records {
            let mut bytes = [0; DiscoveryEntry::SIZE];
            let offset = DiscoveryHeader::SIZE as u64 + index * DiscoveryEntry::SIZE as u64;
            association.discovery_log(offset, &mut bytes)?;
            entries.extend(DiscoveryEntry::read_from_bytes(&bytes).ok());
        }
        // With another generation some entry may be missing, or appear twice.
        if self::header(&mut association)?.generation == header.generation {
            let _ = association.shut_down();
            return Ok(entries);
        }
    }
    Err(ErrorKind::Unsupported("a log that changes all the time"))
}

fn header(association: &mut Association) -> Result<DiscoveryHeader, ErrorKind> {
    let mut header = DiscoveryHeader::new_zeroed();
    association.discovery_log(0, header.as_mut_bytes())?;
    Ok(header)
}
