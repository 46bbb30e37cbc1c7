//! Controller properties (Base 3.1.3), by their offset in the register space of the memory-based
//! transport.

pub const CAP: u32 = 0x00;
pub const VS: u32 = 0x08;
pub const INTMS: u32 = 0x0c;
pub const INTMC: u32 = 0x10;
pub const CC: u32 = 0x14;
pub const CSTS: u32 = 0x1c;
pub const NSSR: u32 = 0x20;
pub const AQA: u32 = 0x24;
pub const ASQ: u32 = 0x28;
pub const ACQ: u32 = 0x30;
pub const CMBLOC: u32 = 0x38;
pub const CMBSZ: u32 = 0x3c;
pub const CRTO: u32 = 0x68;
/// Value of a write to NSSR that resets the NVM subsystem: "NVMe" (Base 3.1.3.7).
pub const SUBSYSTEM_RESET: u32 = 0x4e56_4d65;
/// First doorbell: SQ 0 tail, then CQ 0 head, SQ 1 tail ... (stride 4 bytes, CAP.DSTRD = 0).
pub const DOORBELLS: u32 = 0x1000;

/// Version 2.0.0, the value of VS and Identify.
pub const VERSION: u32 = 0x0002_0000;

/// Controller Configuration (Base 3.1.3.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cc(pub u32);

impl Cc {
    pub fn enabled(self) -> bool {
        self.0 & 1 != 0
    }
    /// Returns the I/O command set selected.
    pub fn css(self) -> u8 {
        (self.0 >> 4 & 7) as u8
    }
    /// Returns the memory page size in bytes.
    pub fn page_size(self) -> usize {
        4096 << (self.0 >> 7 & 0xf)
    }
    /// Returns the arbitration mechanism selected.
    pub fn ams(self) -> u8 {
        (self.0 >> 11 & 7) as u8
    }
    /// Returns the shutdown notification: 0 none, 1 normal, 2 abrupt.
    pub fn shn(self) -> u8 {
        (self.0 >> 14 & 3) as u8
    }
    /// Returns the I/O submission queue entry size as a power of two.
    pub fn iosqes(self) -> u8 {
        (self.0 >> 16 & 0xf) as u8
    }
    /// Returns the I/O completion queue entry size as a power of two.
    pub fn iocqes(self) -> u8 {
        (self.0 >> 20 & 0xf) as u8
    }
}

/// Controller Status bits (Base 3.1.3.6).
pub mod csts {
    pub const RDY: u32 = 1;
    /// Controller fatal status.
    pub const CFS: u32 = 1 << 1;
    pub const SHST_MASK: u32 = 3 << 2;
    pub const SHST_COMPLETE: u32 = 2 << 2;
    pub const SHST_IN_PROGRESS: u32 = 1 << 2;
    /// NVM Subsystem Reset Occurred. The host clears the bit by writing it.
    pub const NSSRO: u32 = 1 << 4;
}
