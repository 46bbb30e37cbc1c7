//! NVMe passthrough commands of Linux (`linux/nvme_ioctl.h`): on io_uring ([`Io::nvme`](crate::Io::nvme)),
//! and by ioctl for queries before there is a ring.

// An ioctl is a call of C.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `_IO('N', 0x40)`: the NSID of a namespace's device.
const IOCTL_ID: libc::c_ulong = 0x4e40;
/// Returns `_IOWR('N', n, struct nvme_passthru_cmd)`; the structure has 72 bytes.
const fn request(number: u32) -> u32 {
    0xc048_4e00 | number
}
const IOCTL_ADMIN_CMD: u32 = request(0x41);
const URING_CMD_IO: u32 = request(0x80);
const URING_CMD_IO_VEC: u32 = request(0x81);
const URING_CMD_ADMIN: u32 = request(0x82);
const URING_CMD_ADMIN_VEC: u32 = request(0x83);

/// Bytes of an Identify data structure.
pub const IDENTIFY_BYTES: usize = 4096;
const IDENTIFY: u8 = 0x06;

/// Queue of a device that a command is for. The kernel takes I/O commands from a namespace's device
/// (`/dev/ng0n1`), admin commands from a controller's (`/dev/nvme0`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvmeQueue {
    Io,
    Admin,
}

impl NvmeQueue {
    /// Returns the kernel's operation: with one buffer of data or none, or with a list of buffers.
    pub(crate) fn operation(self, is_list: bool) -> u32 {
        match (self, is_list) {
            (Self::Io, false) => URING_CMD_IO,
            (Self::Io, true) => URING_CMD_IO_VEC,
            (Self::Admin, false) => URING_CMD_ADMIN,
            (Self::Admin, true) => URING_CMD_ADMIN_VEC,
        }
    }
}

/// A submission queue entry, except for the fields that the kernel fills in: identifier, flags and pointers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvmeCommand {
    pub opcode: u8,
    pub nsid: u32,
    /// Dwords 2 and 3.
    pub cdw2_3: [u32; 2],
    /// Dwords 10 to 15.
    pub cdw10_15: [u32; 6],
    /// Milliseconds until the kernel aborts the command and, if that fails, resets the controller; zero for
    /// the kernel's own limit.
    pub timeout_ms: u32,
}

/// `struct nvme_passthru_cmd` and `struct nvme_uring_cmd`, which differ only in their last dword, as large as
/// the space in a ring's entry.
#[repr(C, align(8))]
pub(crate) struct Wire(pub(crate) [u32; 20]);

impl NvmeCommand {
    /// Returns the structure with data at an address: `length` bytes, or a list of `length` buffers.
    pub(crate) fn wire(&self, address: u64, length: u32) -> Wire {
        let mut dwords = [0; 20];
        dwords[0] = self.opcode.into();
        dwords[1] = self.nsid;
        dwords[2..4].copy_from_slice(&self.cdw2_3);
        // 4 and 5: no metadata.
        (dwords[6], dwords[7]) = (address as u32, (address >> 32) as u32);
        dwords[9] = length;
        dwords[10..16].copy_from_slice(&self.cdw10_15);
        dwords[16] = self.timeout_ms;
        Wire(dwords)
    }
}

impl Wire {
    pub(crate) fn bytes(&self) -> [u8; 80] {
        let mut bytes = [0; 80];
        for (bytes, dword) in bytes.chunks_exact_mut(4).zip(self.0) {
            bytes.copy_from_slice(&dword.to_ne_bytes());
        }
        bytes
    }
}

/// Returns the NSID of a namespace's device.
///
/// # Errors
/// The kernel's error, such as ENOTTY for a file that is no such device.
pub fn namespace_id(device: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: takes no argument.
    match unsafe { libc::ioctl(device.as_raw_fd(), IOCTL_ID as _) } {
        -1 => Err(io::Error::last_os_error()),
        nsid => Ok(nsid.cast_unsigned()),
    }
}

/// Sends Identify to the device's controller, for the structure that `cns` names. Blocks as long as the
/// controller.
///
/// # Errors
/// The kernel's error; a status of the controller as an error in words.
pub fn identify(device: BorrowedFd<'_>, cns: u8, nsid: u32) -> io::Result<Box<[u8; IDENTIFY_BYTES]>> {
    let mut data = Box::new([0; IDENTIFY_BYTES]);
    let command = NvmeCommand {
        opcode: IDENTIFY,
        nsid,
        cdw10_15: [cns.into(), 0, 0, 0, 0, 0],
        ..NvmeCommand::default()
    };
    let mut wire = command.wire(data.as_mut_ptr().addr() as u64, IDENTIFY_BYTES as u32);
    // Allows the address above to be used.
    data.as_mut_ptr().expose_provenance();
    // SAFETY: a structure of the size that the request number encodes. Its address and length are those of
    // memory that no other code uses meanwhile.
    match unsafe { libc::ioctl(device.as_raw_fd(), IOCTL_ADMIN_CMD as _, &raw mut wire) } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(data),
        status => Err(io::Error::other(format!("the controller answers Identify with status {status:#x}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_laid_out_as_the_kernel_has_it() {
        let command = NvmeCommand {
            opcode: 2,
            nsid: 3,
            cdw2_3: [4, 5],
            cdw10_15: [10, 11, 12, 13, 14, 15],
            timeout_ms: 16,
        };
        let bytes = command.wire(0x1122_3344_5566_7788, 512).bytes();
        let dword = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        assert_eq!((bytes[0], bytes[1], dword(4), dword(8), dword(12)), (2, 0, 3, 4, 5));
        // nvme_uring_cmd: metadata at 16, addr at 24, metadata_len at 32, data_len at 36, cdw10 at 40.
        assert_eq!((dword(16), dword(20), dword(24), dword(28)), (0, 0, 0x5566_7788, 0x1122_3344));
        assert_eq!((dword(32), dword(36), dword(40), dword(60), dword(64)), (0, 512, 10, 15, 16));
        assert_eq!(bytes[68..], [0; 12]);
    }
}
