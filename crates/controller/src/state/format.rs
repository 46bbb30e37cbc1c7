//! State of a Format NVM.

/// Format that a host requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatRecord {
    pub nsid: u32,
    /// Bytes of a block.
    pub block_size: u32,
    pub state: FormatState,
}

/// State of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatState {
    Running,
    Done,
    /// Failure. The namespace has its former block size, and may have lost data.
    Failed,
}

/// Identify's FNA: formats and erases one namespace, and does not take the broadcast NSID; no cryptographic
/// erase.
pub(crate) const ATTRIBUTES: u8 = 1 << 3;

/// Block sizes of the LBA formats.
pub(crate) const BLOCK_SIZES: [u32; 2] = [512, 4096];
