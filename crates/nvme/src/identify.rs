//! Identify data structures (Base 5.17, NVM Command Set 4.1.5).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Controller or namespace structure; open, since hosts may send any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cns(pub u8);

impl Cns {
    pub const NAMESPACE: Cns = Cns(0x00);
    pub const CONTROLLER: Cns = Cns(0x01);
    pub const ACTIVE_NAMESPACES: Cns = Cns(0x02);
    pub const NAMESPACE_DESCRIPTORS: Cns = Cns(0x03);
    pub const COMMAND_SET_NAMESPACE: Cns = Cns(0x05);
    pub const COMMAND_SET_CONTROLLER: Cns = Cns(0x06);
    pub const COMMAND_SET_ACTIVE_NAMESPACES: Cns = Cns(0x07);
    pub const INDEPENDENT_NAMESPACE: Cns = Cns(0x08);
    pub const ALLOCATED_NAMESPACES: Cns = Cns(0x10);
    pub const ALLOCATED_NAMESPACE: Cns = Cns(0x11);
    pub const ATTACHED_CONTROLLERS: Cns = Cns(0x12);
    pub const CONTROLLERS: Cns = Cns(0x13);
    pub const COMMAND_SET_ALLOCATED_NAMESPACES: Cns = Cns(0x1a);
    pub const COMMAND_SET_ALLOCATED_NAMESPACE: Cns = Cns(0x1b);
    pub const COMMAND_SETS: Cns = Cns(0x1c);
}

/// Bytes of every Identify data structure.
pub const SIZE: usize = 4096;

/// Identify Controller (Base 5.17.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct IdentifyController {
    /// PCI vendor identifier.
    pub vid: u16,
    /// PCI subsystem vendor identifier.
    pub ssvid: u16,
    /// Serial number, padded with spaces, like the two that follow.
    pub sn: [u8; 20],
    /// Model number.
    pub mn: [u8; 40],
    /// Firmware revision.
    pub fr: [u8; 8],
    /// Recommended arbitration burst as a power of two.
    pub rab: u8,
    pub ieee: [u8; 3],
    pub cmic: u8,
    /// Maximum data transfer size: a power of two of the smallest page; zero for none.
    pub mdts: u8,
    pub cntlid: u16,
    pub ver: u32,
    /// RTD3 Resume Latency in microseconds.
    pub rtd3r: u32,
    /// RTD3 Entry Latency in microseconds.
    pub rtd3e: u32,
    /// Optional asynchronous events supported.
    pub oaes: u32,
    pub ctratt: u32,
    pub rrls: u16,
    reserved_102: [u8; 9],
    /// Controller type: 1 is an I/O controller.
    pub cntrltype: u8,
    pub fguid: [u8; 16],
    pub crdt: [u16; 3],
    reserved_134: [u8; 119],
    pub nvmsr: u8,
    pub vwci: u8,
    pub mec: u8,
    /// Optional admin commands supported.
    pub oacs: u16,
    /// Abort command limit, 0's based.
    pub acl: u8,
    /// Asynchronous event request limit, 0's based.
    pub aerl: u8,
    pub frmw: u8,
    /// Log page attributes.
    pub lpa: u8,
    /// Error log page entries, 0's based.
    pub elpe: u8,
    /// Number of power states, 0's based.
    pub npss: u8,
    pub avscc: u8,
    pub apsta: u8,
    /// Warning composite temperature threshold, kelvin.
    pub wctemp: u16,
    /// Critical composite temperature threshold, kelvin.
    pub cctemp: u16,
    pub mtfa: u16,
    pub hmpre: u32,
    pub hmmin: u32,
    /// Total NVM capacity in bytes, low half first.
    pub tnvmcap: [u64; 2],
    pub unvmcap: [u64; 2],
    pub rpmbs: u32,
    pub edstt: u16,
    pub dsto: u8,
    pub fwug: u8,
    /// Keep alive granularity in units of 100 ms.
    pub kas: u16,
    pub hctma: u16,
    pub mntmt: u16,
    pub mxtmt: u16,
    pub sanicap: u32,
    pub hmminds: u32,
    pub hmmaxd: u16,
    pub nsetidmax: u16,
    pub endgidmax: u16,
    pub anatt: u8,
    pub anacap: u8,
    pub anagrpmax: u32,
    pub nanagrpid: u32,
    pub pels: u32,
    pub domainid: u16,
    reserved_358: [u8; 10],
    pub megcap: [u64; 2],
    reserved_384: [u8; 2],
    /// Command Quiesce Time in milliseconds; zero if it is not reported. Reserved before version 2.1.
    pub cqt: u16,
    reserved_388: [u8; 124],
    /// Submission queue entry size as powers of two: required in bits 3:0, largest in 7:4.
    pub sqes: u8,
    /// Completion queue entry size, in the same form.
    pub cqes: u8,
    pub maxcmd: u16,
    /// The largest NSID.
    pub nn: u32,
    /// Optional NVM commands supported.
    pub oncs: u16,
    pub fuses: u16,
    pub fna: u8,
    /// Volatile write cache.
    pub vwc: u8,
    /// Atomic write unit normal in logical blocks, 0's based.
    pub awun: u16,
    /// Atomic write unit power fail, in the same form.
    pub awupf: u16,
    pub icsvscc: u8,
    pub nwpc: u8,
    /// Atomic compare and write unit, in the same form.
    pub acwu: u16,
    /// Optional Copy formats supported.
    pub ocfs: u16,
    pub sgls: u32,
    pub mnan: u32,
    pub maxdna: [u64; 2],
    pub maxcna: u32,
    reserved_564: [u8; 204],
    /// NVM subsystem NVMe Qualified Name, ended by a zero.
    pub subnqn: [u8; 256],
    reserved_1024: [u8; 768],
    /// I/O queue command capsule supported size in units of 16 bytes, like the next field. Both, and the
    /// fields up to `ofcs`, are zero over the memory-based transport.
    pub ioccsz: u32,
    /// I/O queue response capsule supported size.
    pub iorcsz: u32,
    /// Offset of in-capsule data in units of 16 bytes (ICDOFF).
    pub icdoff: u16,
    /// Fabrics controller attributes: bit 0 is set for a static controller model.
    pub fcatt: u8,
    /// Maximum SGL data block descriptors; zero for no limit.
    pub msdbd: u8,
    /// Optional Fabrics commands supported.
    pub ofcs: u16,
    reserved_1806: [u8; 242],
    pub psd: [[u8; 32]; 32],
    /// Vendor specific: [`POWER_ID_MARK`](Self::POWER_ID_MARK), if the next field is valid.
    pub power_id_mark: [u8; 16],
    /// Vendor specific: a value that changes whenever acknowledged writes may have been lost.
    pub power_id: [u8; 16],
    /// Vendor specific: [`HOLDS_BACK_MARK`](Self::HOLDS_BACK_MARK), if later commands wait for those of a lost connection.
    pub holds_back_mark: [u8; 16],
    vendor: [u8; 976],
}

impl IdentifyController {
    /// Value of bytes 3087:3072 of a controller that reports a power identifier.
    pub const POWER_ID_MARK: [u8; 16] = *b"SLUICE POWER ID ";

    /// Value of bytes 3119:3104 of a controller whose subsystem delays commands that overlap those of a lost
    /// connection.
    pub const HOLDS_BACK_MARK: [u8; 16] = *b"SLUICE HOLD BACK";
}

/// Identify Namespace of the NVM command set (NVM Command Set 4.1.5.1). Numbers of blocks in 16 bits are 0's
/// based.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct IdentifyNamespace {
    /// Size in logical blocks.
    pub nsze: u64,
    /// Capacity in logical blocks.
    pub ncap: u64,
    /// Blocks in use.
    pub nuse: u64,
    pub nsfeat: u8,
    /// Number of LBA formats, 0's based.
    pub nlbaf: u8,
    /// Format in use.
    pub flbas: u8,
    pub mc: u8,
    pub dpc: u8,
    pub dps: u8,
    pub nmic: u8,
    pub rescap: u8,
    pub fpi: u8,
    /// Deallocate logical block features.
    pub dlfeat: u8,
    /// Atomic write unit normal.
    pub nawun: u16,
    /// Atomic write unit power fail.
    pub nawupf: u16,
    /// Atomic compare and write unit.
    pub nacwu: u16,
    /// Atomic boundary size normal.
    pub nabsn: u16,
    /// Atomic boundary offset, counted from zero.
    pub nabo: u16,
    /// Atomic boundary size power fail.
    pub nabspf: u16,
    /// Optimal I/O boundary in blocks; zero for none, and not 0's based.
    pub noiob: u16,
    /// Capacity in bytes, low half first.
    pub nvmcap: [u64; 2],
    /// Preferred write granularity.
    pub npwg: u16,
    /// Preferred write alignment.
    pub npwa: u16,
    /// Preferred deallocate granularity.
    pub npdg: u16,
    /// Preferred deallocate alignment.
    pub npda: u16,
    /// Optimal write size.
    pub nows: u16,
    pub mssrl: u16,
    pub mcl: u32,
    pub msrc: u8,
    reserved_81: [u8; 11],
    pub anagrpid: u32,
    reserved_96: [u8; 3],
    /// Bit 0: write protected.
    pub nsattr: u8,
    pub nvmsetid: u16,
    pub endgid: u16,
    pub nguid: [u8; 16],
    pub eui64: [u8; 8],
    pub lbaf: [LbaFormat; 64],
    vendor: [u8; 3712],
}

/// An LBA format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LbaFormat {
    /// Bytes of metadata.
    pub ms: u16,
    /// Block size as a power of two.
    pub lbads: u8,
    /// Relative performance, 0 is best.
    pub rp: u8,
}

/// I/O Command Set Independent Identify Namespace (Base 5.17.2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IndependentNamespace {
    pub nsfeat: u8,
    pub nmic: u8,
    pub rescap: u8,
    pub fpi: u8,
    pub anagrpid: u32,
    /// Bit 0: write protected.
    pub nsattr: u8,
    reserved_9: u8,
    pub nvmsetid: u16,
    pub endgid: u16,
    /// Bit 0: ready.
    pub nstat: u8,
    reserved_15: [u8; 4081],
}

/// Namespace identifier types of the descriptors in [`Cns::NAMESPACE_DESCRIPTORS`].
pub mod nidt {
    pub const EUI64: u8 = 1;
    pub const NGUID: u8 = 2;
    pub const UUID: u8 = 3;
    /// Command set identifier.
    pub const CSI: u8 = 4;
}

/// Command set identifier of the NVM command set.
pub const CSI_NVM: u8 = 0;

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<IdentifyController>() == SIZE);
    assert!(offset_of!(IdentifyController, cntrltype) == 111);
    assert!(offset_of!(IdentifyController, oacs) == 256);
    assert!(offset_of!(IdentifyController, tnvmcap) == 280);
    assert!(offset_of!(IdentifyController, sqes) == 512);
    assert!(offset_of!(IdentifyController, sgls) == 536);
    assert!(offset_of!(IdentifyController, subnqn) == 768);
    assert!(offset_of!(IdentifyController, ioccsz) == 1792);
    assert!(offset_of!(IdentifyController, psd) == 2048);
    assert!(size_of::<IdentifyNamespace>() == SIZE);
    assert!(offset_of!(IdentifyNamespace, nvmcap) == 48);
    assert!(offset_of!(IdentifyNamespace, nguid) == 104);
    assert!(offset_of!(IdentifyNamespace, lbaf) == 128);
    assert!(size_of::<IndependentNamespace>() == SIZE);
};
