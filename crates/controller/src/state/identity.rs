//! Identity of a drive.

/// Identity of a drive (Base 5.17.2.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// NVM subsystem NVMe Qualified Name, at most 223 bytes.
    pub subnqn: String,
    /// Serial number, at most 20 ASCII characters.
    pub serial: String,
    /// Model number, at most 40 ASCII characters.
    pub model: String,
    /// Firmware revision, at most 8 ASCII characters.
    pub firmware: String,
}
