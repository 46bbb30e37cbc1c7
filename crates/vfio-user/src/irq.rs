//! DEVICE_GET_IRQ_INFO and DEVICE_SET_IRQS: interrupts as event file descriptors.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Indices of the interrupt types of a PCI device.
pub mod index {
    pub const INTX: u32 = 0;
    pub const MSI: u32 = 1;
    pub const MSIX: u32 = 2;
    pub const ERROR: u32 = 3;
    pub const REQUEST: u32 = 4;
    /// Number of types; DEVICE_GET_INFO's `num_irqs`.
    pub const COUNT: u32 = 5;
}

/// Payload of DEVICE_GET_IRQ_INFO, in the command and in the reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IrqInfo {
    /// Size of this structure in bytes.
    pub argsz: u32,
    /// Flags [`IrqInfo::EVENTFD`] and the following.
    pub flags: u32,
    /// Index, one of [`index`].
    pub index: u32,
    /// Number of interrupts of this type.
    pub count: u32,
}

impl IrqInfo {
    pub const SIZE: usize = 16;
    /// Flag of interrupts that are signalled through an eventfd.
    pub const EVENTFD: u32 = 1;
    pub const MASKABLE: u32 = 1 << 1;
    /// Flag of interrupts that are masked when they are signalled, until they are unmasked.
    pub const AUTOMASKED: u32 = 1 << 2;
    /// Flag of interrupts that are set up all at once or not at all.
    pub const NORESIZE: u32 = 1 << 3;
}

/// Payload of DEVICE_SET_IRQS. The data flags determine the data behind it: nothing, one byte for each
/// interrupt, or (for eventfds) file descriptors beside the message. The reply has no payload.
///
/// Zero interrupts with [`IrqSet::DATA_NONE`] and [`IrqSet::ACTION_TRIGGER`] turn the type off; eventfd data
/// with fewer descriptors than `count` removes eventfds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IrqSet {
    /// Size of this structure and the bytes that follow it.
    pub argsz: u32,
    /// Flags: one data flag and one action flag.
    pub flags: u32,
    /// Index, one of [`index`].
    pub index: u32,
    /// First interrupt.
    pub start: u32,
    /// Number of interrupts.
    pub count: u32,
}

impl IrqSet {
    pub const SIZE: usize = 20;

    pub const DATA_NONE: u32 = 1;
    pub const DATA_BOOL: u32 = 1 << 1;
    pub const DATA_EVENTFD: u32 = 1 << 2;
    pub const DATA_MASK: u32 = Self::DATA_NONE | Self::DATA_BOOL | Self::DATA_EVENTFD;

    pub const ACTION_MASK: u32 = 1 << 3;
    pub const ACTION_UNMASK: u32 = 1 << 4;
    pub const ACTION_TRIGGER: u32 = 1 << 5;
    pub const ACTIONS: u32 = Self::ACTION_MASK | Self::ACTION_UNMASK | Self::ACTION_TRIGGER;

    /// Returns the data flags alone.
    pub fn data(&self) -> u32 {
        self.flags & Self::DATA_MASK
    }

    /// Returns the action flags alone.
    pub fn action(&self) -> u32 {
        self.flags & Self::ACTIONS
    }
}

const _: () = assert!(size_of::<IrqInfo>() == IrqInfo::SIZE);
const _: () = assert!(size_of::<IrqSet>() == IrqSet::SIZE);
