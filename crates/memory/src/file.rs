//! Files that may back guest memory, and their identity.

use crate::PAGE_SIZE;
use rustix::fs::{OFlags, SealFlags};
use rustix::io::Errno;
use std::fmt;
use std::os::fd::BorrowedFd;

/// Properties of a file that are needed to map it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileInfo {
    pub(crate) id: FileId,
    pub(crate) size: u64,
    /// Bytes of a page: 4096, or the size of the file's huge pages.
    pub(crate) page_size: usize,
}

/// Identity of a file, with the access of its descriptor. Two descriptors of a file that differ in access are
/// two mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
    pub(crate) writable: bool,
}

impl FileId {
    /// Returns an identity that is the same for every access.
    pub(crate) fn read_only(self) -> Self {
        Self { writable: false, ..self }
    }
}

impl FileInfo {
    /// Examines a descriptor that a client sent. The file may be anything: a directory, a terminal, a file on
    /// a file system that the client itself serves and that would never answer. Reading the seals is safe for
    /// all of them, and only files in memory have any.
    pub(crate) fn of(fd: BorrowedFd<'_>) -> Result<FileInfo, MapError> {
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| MapError::NotMemory)?;
        let writable = match rustix::fs::fcntl_getfl(fd)? & OFlags::RWMODE {
            OFlags::RDWR => !seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE),
            OFlags::RDONLY => false,
            _ => return Err(MapError::AccessDenied),
        };
        let stat = rustix::fs::fstat(fd)?;
        let id = FileId { device: stat.st_dev, inode: stat.st_ino, writable };
        let size = u64::try_from(stat.st_size).map_err(|_| MapError::BeyondFile)?;
        // hugetlbfs reports the size of its huge pages here, and mapping depends on it. On other file systems
        // it may be the size of a transparent huge page, to which nothing has to be aligned.
        let statfs = rustix::fs::fstatfs(fd)?;
        let huge = statfs.f_type as i64 == HUGETLBFS_MAGIC;
        let page_size = if huge { statfs.f_bsize as usize } else { PAGE_SIZE };
        if !page_size.is_power_of_two() {
            return Err(MapError::NotMemory);
        }
        Ok(FileInfo { id, size, page_size })
    }
}

const HUGETLBFS_MAGIC: i64 = 0x958458f6;

/// Reason for which a region was not mapped, or not unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MapError {
    /// A region of no bytes.
    Empty,
    /// An address, length or offset that is not a multiple of 4096.
    Unaligned,
    /// The end of the region is beyond 2^64.
    Wraps,
    /// A byte of the region is mapped already.
    Overlaps,
    /// More than [`MAX_REGIONS`](crate::MAX_REGIONS), [`MAX_FILES`](crate::MAX_FILES) or
    /// [`MAX_MAPPED_BYTES`](crate::MAX_MAPPED_BYTES).
    Limit,
    /// More than [`FILES_OF_EACH`](crate::FILES_OF_EACH), while all clients together have
    /// [`FILES_IN_COMMON`](crate::FILES_IN_COMMON) beyond those.
    Crowded,
    /// More than the [limit of the client's memory](crate::Space::set_memory_limit).
    TooMuchMemory,
    /// The descriptor is not of a memfd, or a file on tmpfs or hugetlbfs.
    NotMemory,
    /// The region ends beyond the file.
    BeyondFile,
    /// The descriptor allows less than the region's permissions require.
    AccessDenied,
    /// Unmap: there is no region in the range.
    NotMapped,
    /// Unmap: a region is only partly in the range.
    PartOfRegion,
    /// The kernel refused.
    System(Errno),
}

impl MapError {
    /// Returns the error number of the vfio-user reply.
    pub fn errno(&self) -> i32 {
        let errno = match self {
            MapError::Empty | MapError::Unaligned | MapError::BeyondFile => Errno::INVAL,
            MapError::Wraps => Errno::OVERFLOW,
            MapError::Overlaps => Errno::EXIST,
            MapError::Limit | MapError::Crowded => Errno::NOSPC,
            MapError::TooMuchMemory => Errno::NOMEM,
            MapError::NotMemory => Errno::NODEV,
            MapError::AccessDenied => Errno::ACCESS,
            MapError::NotMapped => Errno::NOENT,
            MapError::PartOfRegion => Errno::INVAL,
            MapError::System(errno) => *errno,
        };
        errno.raw_os_error()
    }
}

impl From<Errno> for MapError {
    fn from(errno: Errno) -> Self {
        MapError::System(errno)
    }
}

impl From<std::io::Error> for MapError {
    fn from(error: std::io::Error) -> Self {
        MapError::System(error.raw_os_error().map_or(Errno::NOSPC, Errno::from_raw_os_error))
    }
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MapError::Empty => "a region of no bytes",
            MapError::Unaligned => "address, length or offset is not a multiple of 4096",
            MapError::Wraps => "the region ends beyond the address space",
            MapError::Overlaps => "the region overlaps one that is mapped",
            MapError::Limit => "too many regions, files or bytes mapped",
            MapError::Crowded => {
                "other clients have very many files mapped, and this one has its 16: give the guest fewer memory devices, or \
                 the drives another daemon"
            }
            MapError::TooMuchMemory => "more memory than the socket's limit",
            MapError::NotMemory => "not a memfd, nor a file on tmpfs or hugetlbfs",
            MapError::BeyondFile => "the region ends beyond its file",
            MapError::AccessDenied => "the file descriptor does not allow the access asked for",
            MapError::NotMapped => "no region in the range",
            MapError::PartOfRegion => "the range covers only a part of a region",
            MapError::System(errno) => return write!(f, "cannot map: {errno}"),
        })
    }
}

impl std::error::Error for MapError {}
