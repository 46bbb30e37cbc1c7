//! The part of PCI configuration space that an NVMe driver uses (NVMe over PCIe Transport 3.8).

use crate::{Error, PciTransport, Region};

/// Command register.
pub const COMMAND: u64 = 0x04;
pub const COMMAND_MEMORY_SPACE: u16 = 1 << 1;
pub const COMMAND_BUS_MASTER: u16 = 1 << 2;
/// Status register; bit 4 is set if there are capabilities.
pub const STATUS: u64 = 0x06;
pub const STATUS_CAPABILITIES: u16 = 1 << 4;
/// Class code in bits 31:8.
pub const REVISION_AND_CLASS: u64 = 0x08;
/// Mass storage, non-volatile memory, NVM Express I/O controller.
pub const CLASS_NVME: u32 = 0x01_08_02;
/// Offset of the first capability.
pub const CAPABILITIES: u64 = 0x34;

pub const CAPABILITY_PM: u8 = 0x01;
pub const CAPABILITY_PCIE: u8 = 0x10;
pub const CAPABILITY_MSIX: u8 = 0x11;

/// Message control of the MSI-X capability, and the bit in it that turns it on.
const MSIX_CONTROL: u64 = 2;
const MSIX_ENABLE: u16 = 1 << 15;
/// Device control of the PCI Express capability, and the bit in it that resets the function.
const PCIE_DEVICE_CONTROL: u64 = 8;
const PCIE_FUNCTION_LEVEL_RESET: u16 = 1 << 15;

/// Longer than any chain that fits the 256 bytes of configuration space that have them.
const MAX_CAPABILITIES: usize = 48;

/// Reads two bytes of configuration space.
pub fn read16(transport: &dyn PciTransport, offset: u64) -> Result<u16, Error> {
    let mut bytes = [0; 2];
    transport.read(Region::CONFIG, offset, &mut bytes)?;
    Ok(u16::from_le_bytes(bytes))
}

/// Sets bits in two bytes of configuration space.
pub fn set16(transport: &dyn PciTransport, offset: u64, bits: u16) -> Result<(), Error> {
    let value = read16(transport, offset)? | bits;
    transport.write(Region::CONFIG, offset, &value.to_le_bytes())
}

/// Returns base class, sub class and programming interface.
pub fn class(transport: &dyn PciTransport) -> Result<u32, Error> {
    Ok(transport.read32(Region::CONFIG, REVISION_AND_CLASS)? >> 8)
}

/// Lets the function answer accesses to its registers and access memory.
pub fn enable_bus_master(transport: &dyn PciTransport) -> Result<(), Error> {
    set16(transport, COMMAND, COMMAND_MEMORY_SPACE | COMMAND_BUS_MASTER)
}

/// Returns the offset of a capability, if the function has it.
pub fn find_capability(transport: &dyn PciTransport, id: u8) -> Result<Option<u64>, Error> {
    if read16(transport, STATUS)? & STATUS_CAPABILITIES == 0 {
        return Ok(None);
    }
    let mut offset = read16(transport, CAPABILITIES)? & 0xfc;
    for _ in 0..MAX_CAPABILITIES {
        if offset == 0 {
            return Ok(None);
        }
        let [found, next] = read16(transport, offset.into())?.to_le_bytes();
        if found == id {
            return Ok(Some(offset.into()));
        }
        offset = u16::from(next & 0xfc);
    }
    Err(Error::Protocol("the chain of PCI capabilities has no end"))
}

/// Turns MSI-X on.
pub fn enable_msix(transport: &dyn PciTransport) -> Result<(), Error> {
    let capability = find_capability(transport, CAPABILITY_MSIX)?;
    let capability = capability.ok_or(Error::Unsupported("a function without MSI-X"))?;
    set16(transport, capability + MSIX_CONTROL, MSIX_ENABLE)
}

/// Resets the function through its PCI Express capability, as a virtual machine monitor passes it on.
pub fn function_level_reset(transport: &dyn PciTransport) -> Result<(), Error> {
    let capability = find_capability(transport, CAPABILITY_PCIE)?;
    let capability = capability.ok_or(Error::Unsupported("a function without PCI Express"))?;
    set16(transport, capability + PCIE_DEVICE_CONTROL, PCIE_FUNCTION_LEVEL_RESET)
}
