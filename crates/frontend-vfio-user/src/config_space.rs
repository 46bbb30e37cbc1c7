//! PCI configuration space (PCI Express Base 4.0, chapter 7; NVMe over PCIe Transport 1.0, section 2).

use sluice_controller::PCI_VENDOR;
use std::ops::Range;

/// Bytes of the configuration space of a PCI Express function. All bytes behind the first 256 are zero: there
/// are no extended capabilities.
pub(super) const SIZE: u64 = 4096;

/// Bytes of the part that every PCI function has.
pub(super) const HEADER_SIZE: usize = 256;

/// Maker of the device in the guest's view. The defaults belong to no real device, and NVMe drivers bind by
/// the class. The vendor is also in Identify Controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciIdentity {
    pub vendor: u16,
    pub device: u16,
    pub subsystem_vendor: u16,
    pub subsystem: u16,
    pub revision: u8,
}

impl Default for PciIdentity {
    fn default() -> Self {
        Self {
            vendor: PCI_VENDOR,
            device: 0x51c0,
            subsystem_vendor: PCI_VENDOR,
            subsystem: 0x51c0,
            revision: 1,
        }
    }
}

/// Registers of the header and their bits.
mod header {
    pub(super) const VENDOR: usize = 0x00;
    pub(super) const DEVICE: usize = 0x02;
    pub(super) const COMMAND: usize = 0x04;
    pub(super) const STATUS: usize = 0x06;
    pub(super) const REVISION: usize = 0x08;
    pub(super) const CACHE_LINE: usize = 0x0c;
    pub(super) const BAR0: usize = 0x10;
    pub(super) const SUBSYSTEM_VENDOR: usize = 0x2c;
    pub(super) const SUBSYSTEM: usize = 0x2e;
    pub(super) const CAPABILITIES: usize = 0x34;
    pub(super) const INTERRUPT_LINE: usize = 0x3c;
    pub(super) const INTERRUPT_PIN: usize = 0x3d;

    /// Memory space, bus master, parity error, SERR#, interrupt disable.
    pub(super) const COMMAND_WRITABLE: u16 = 0x0546;
    pub(super) const INTERRUPT_DISABLE: u16 = 1 << 10;
    pub(super) const INTERRUPT_STATUS: u16 = 1 << 3;
    pub(super) const CAPABILITIES_LIST: u16 = 1 << 4;
    /// Mass storage, non-volatile memory, NVM Express I/O controller.
    pub(super) const CLASS: u32 = 0x01_08_02;
    /// 64 bits wide, in memory, not prefetchable.
    pub(super) const BAR_64_BIT: u32 = 4;
    pub(super) const PIN_A: u8 = 1;
}

/// Power Management capability.
mod power {
    pub(super) const AT: usize = 0x40;
    pub(super) const ID: u8 = 0x01;
    pub(super) const CAPABILITIES: usize = AT + 2;
    /// PMCSR.
    pub(super) const CONTROL: usize = AT + 4;
    /// Version 3; D1, D2 and PME# are not supported.
    pub(super) const VERSION: u16 = 3;
    /// PowerState. No_Soft_Reset is zero: coming back from D3hot is a reset.
    pub(super) const STATE: u8 = 3;
    pub(super) const D0: u8 = 0;
    pub(super) const D3_HOT: u8 = 3;
}

/// MSI-X capability.
mod msix {
    pub(super) const AT: usize = 0x50;
    pub(super) const ID: u8 = 0x11;
    pub(super) const CONTROL: usize = AT + 2;
    pub(super) const TABLE: usize = AT + 4;
    pub(super) const PENDING: usize = AT + 8;
    pub(super) const ENABLE: u16 = 1 << 15;
    pub(super) const FUNCTION_MASK: u16 = 1 << 14;
}

/// PCI Express capability, version 2.
mod express {
    pub(super) const AT: usize = 0x60;
    pub(super) const ID: u8 = 0x10;
    pub(super) const CAPABILITIES: usize = AT + 2;
    pub(super) const DEVICE_CAPABILITIES: usize = AT + 4;
    pub(super) const DEVICE_CONTROL: usize = AT + 8;
    pub(super) const LINK_CAPABILITIES: usize = AT + 0x0c;
    pub(super) const LINK_CONTROL: usize = AT + 0x10;
    pub(super) const LINK_STATUS: usize = AT + 0x12;
    pub(super) const DEVICE_CAPABILITIES_2: usize = AT + 0x24;
    pub(super) const DEVICE_CONTROL_2: usize = AT + 0x28;
    pub(super) const LINK_CAPABILITIES_2: usize = AT + 0x2c;
    pub(super) const LINK_CONTROL_2: usize = AT + 0x30;

    /// Version 2, endpoint.
    pub(super) const VERSION: u16 = 2;
    /// Role-based error reporting and function level reset.
    pub(super) const DEVICE: u32 = 1 << 15 | 1 << 28;
    /// Value after a reset: relaxed ordering, no snoop, read requests of 512 bytes.
    pub(super) const DEVICE_CONTROL_RESET: u16 = 0x2810;
    pub(super) const DEVICE_CONTROL_WRITABLE: u16 = 0x78ff;
    /// Bit in the upper byte of Device Control; reads as zero.
    pub(super) const INITIATE_FLR: u8 = 1 << 7;
    /// 8 GT/s, four lanes.
    pub(super) const LINK: u32 = 0x43;
    /// ASPM control and common clock.
    pub(super) const LINK_CONTROL_WRITABLE: u16 = 0x0043;
    /// Completion timeout can be disabled.
    pub(super) const COMPLETION_TIMEOUT_DISABLE: u16 = 1 << 4;
    /// 2.5, 5 and 8 GT/s.
    pub(super) const LINK_SPEEDS: u32 = 0xe;
    pub(super) const TARGET_SPEED: u16 = 3;
}

/// Effect of a write to configuration space beyond the stored bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Effect {
    Nothing,
    /// Function level reset, or the reset at the end of D3hot. The space itself is still as written.
    Reset,
}

/// Size of BAR0, and the offsets of the MSI-X structures in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Bytes, a power of two.
    pub(super) bar0_size: u32,
    /// Vectors of MSI-X; zero for a function that has only its interrupt pin.
    pub(super) vectors: u16,
    /// Offset in BAR0, in bytes.
    pub(super) msix_table: u32,
    /// Offset in BAR0, in bytes.
    pub(super) msix_pending: u32,
}

/// Configuration space of one function.
///
/// Bus mastering is stored and not enforced: there is no bus, and the client decides by DMA_MAP which memory
/// the device reaches.
#[derive(Debug)]
pub(super) struct ConfigSpace {
    bytes: [u8; HEADER_SIZE],
    /// Bits that a write changes.
    writable: [u8; HEADER_SIZE],
    after_reset: [u8; HEADER_SIZE],
}

impl ConfigSpace {
    pub(super) fn new(identity: &PciIdentity, layout: &Layout) -> Self {
        let mut image = Image { bytes: [0; HEADER_SIZE], writable: [0; HEADER_SIZE] };
        image.header(identity, layout);
        if layout.vectors > 0 {
            image.power_management(msix::AT);
            image.msix(layout);
        } else {
            image.power_management(express::AT);
        }
        image.express();
        Self { bytes: image.bytes, writable: image.writable, after_reset: image.bytes }
    }

    /// Returns the present values.
    pub(super) fn bytes(&self) -> &[u8; HEADER_SIZE] {
        &self.bytes
    }

    /// Continues with the values that a client has written to the function of another process.
    pub(super) fn resume(&mut self, written: &[u8; HEADER_SIZE]) {
        for ((byte, writable), written) in self.bytes.iter_mut().zip(&self.writable).zip(written) {
            *byte = *byte & !writable | written & writable;
        }
    }

    /// Reads any bytes; `intx` is the level of the interrupt pin.
    pub(super) fn read(&self, offset: u64, out: &mut [u8], intx: bool) {
        for (at, byte) in places(offset).zip(out) {
            *byte = self.bytes.get(at).copied().unwrap_or(0);
            if intx && at == header::STATUS {
                *byte |= header::INTERRUPT_STATUS as u8;
            }
        }
    }

    /// Writes any bytes. Read-only bytes stay as they are.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> Effect {
        let mut effect = Effect::Nothing;
        for (at, &value) in places(offset).zip(data).take_while(|(at, _)| *at < HEADER_SIZE) {
            if self.write_byte(at, value) == Effect::Reset {
                effect = Effect::Reset;
            }
        }
        effect
    }

    fn write_byte(&mut self, at: usize, value: u8) -> Effect {
        let (old, writable) = (self.bytes[at], self.writable[at]);
        self.bytes[at] = old & !writable | value & writable;
        let leaves_d3 = || old & power::STATE == power::D3_HOT && value & power::STATE == power::D0;
        match at {
            power::CONTROL if leaves_d3() => Effect::Reset,
            FLR_BYTE if value & express::INITIATE_FLR != 0 => Effect::Reset,
            _ => Effect::Nothing,
        }
    }

    /// Restores the values after power-on.
    pub(super) fn reset(&mut self) {
        self.bytes = self.after_reset;
    }

    /// Returns whether the function may assert its interrupt pin. The pin stays deasserted while MSI-X is
    /// enabled (PCI Local Bus 3.0, 6.8.2.3), or while the command register disables it.
    pub(super) fn may_assert_intx(&self) -> bool {
        !self.msix_enabled() && self.word(header::COMMAND) & header::INTERRUPT_DISABLE == 0
    }

    pub(super) fn msix_enabled(&self) -> bool {
        self.word(msix::CONTROL) & msix::ENABLE != 0
    }

    fn word(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }
}

/// Returns the byte indexes from `offset` on. All bytes beyond the header are alike.
fn places(offset: u64) -> std::ops::RangeFrom<usize> {
    offset.min(SIZE) as usize..
}

/// Byte of Device Control that starts a function level reset.
const FLR_BYTE: usize = express::DEVICE_CONTROL + 1;

/// Configuration space under construction.
struct Image {
    bytes: [u8; HEADER_SIZE],
    writable: [u8; HEADER_SIZE],
}

impl Image {
    fn header(&mut self, identity: &PciIdentity, layout: &Layout) {
        self.put_u16(header::VENDOR, identity.vendor, 0);
        self.put_u16(header::DEVICE, identity.device, 0);
        self.put_u16(header::COMMAND, 0, header::COMMAND_WRITABLE);
        self.put_u16(header::STATUS, header::CAPABILITIES_LIST, 0);
        self.put_u32(header::REVISION, header::CLASS << 8 | u32::from(identity.revision), 0);
        self.put_u8(header::CACHE_LINE, 0, 0xff);
        // A BAR's size is where its writable bits begin.
        self.put_u32(header::BAR0, header::BAR_64_BIT, !(layout.bar0_size - 1));
        self.put_u32(header::BAR0 + 4, 0, u32::MAX);
        self.put_u16(header::SUBSYSTEM_VENDOR, identity.subsystem_vendor, 0);
        self.put_u16(header::SUBSYSTEM, identity.subsystem, 0);
        self.put_u8(header::CAPABILITIES, power::AT as u8, 0);
        self.put_u8(header::INTERRUPT_LINE, 0, 0xff);
        self.put_u8(header::INTERRUPT_PIN, header::PIN_A, 0);
    }

    fn power_management(&mut self, next: usize) {
        self.capability(power::AT, power::ID, next);
        self.put_u16(power::CAPABILITIES, power::VERSION, 0);
        self.put_u8(power::CONTROL, 0, power::STATE);
    }

    fn msix(&mut self, layout: &Layout) {
        self.capability(msix::AT, msix::ID, express::AT);
        self.put_u16(msix::CONTROL, layout.vectors - 1, msix::ENABLE | msix::FUNCTION_MASK);
        // The low three bits of both select BAR0.
        self.put_u32(msix::TABLE, layout.msix_table, 0);
        self.put_u32(msix::PENDING, layout.msix_pending, 0);
    }

    fn express(&mut self) {
        self.capability(express::AT, express::ID, 0);
        self.put_u16(express::CAPABILITIES, express::VERSION, 0);
        self.put_u32(express::DEVICE_CAPABILITIES, express::DEVICE, 0);
        self.put_u16(
            express::DEVICE_CONTROL,
            express::DEVICE_CONTROL_RESET,
            express::DEVICE_CONTROL_WRITABLE,
        );
        self.put_u32(express::LINK_CAPABILITIES, express::LINK, 0);
        self.put_u16(express::LINK_CONTROL, 0, express::LINK_CONTROL_WRITABLE);
        self.put_u16(express::LINK_STATUS, express::LINK as u16, 0);
        self.put_u32(express::DEVICE_CAPABILITIES_2, u32::from(express::COMPLETION_TIMEOUT_DISABLE), 0);
        self.put_u16(express::DEVICE_CONTROL_2, 0, express::COMPLETION_TIMEOUT_DISABLE);
        self.put_u32(express::LINK_CAPABILITIES_2, express::LINK_SPEEDS, 0);
        self.put_u16(express::LINK_CONTROL_2, express::TARGET_SPEED, 0);
    }

    fn capability(&mut self, at: usize, id: u8, next: usize) {
        self.put_u8(at, id, 0);
        self.put_u8(at + 1, next as u8, 0);
    }

    fn put_u8(&mut self, at: usize, value: u8, writable: u8) {
        self.put(at..at + 1, &[value], &[writable]);
    }

    fn put_u16(&mut self, at: usize, value: u16, writable: u16) {
        self.put(at..at + 2, &value.to_le_bytes(), &writable.to_le_bytes());
    }

    fn put_u32(&mut self, at: usize, value: u32, writable: u32) {
        self.put(at..at + 4, &value.to_le_bytes(), &writable.to_le_bytes());
    }

    fn put(&mut self, at: Range<usize>, value: &[u8], writable: &[u8]) {
        self.bytes[at.clone()].copy_from_slice(value);
        self.writable[at].copy_from_slice(writable);
    }
}

#[cfg(test)]
mod tests;
