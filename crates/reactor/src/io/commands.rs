//! NVMe commands that the kernel passes through to a device (IORING_OP_URING_CMD).
//!
//! The commands need entries of twice the usual size in both rings, which would slow down all other
//! operations. So they have a ring of their own, opened when a reactor gets its first device of this kind.
//! The second ring is submitted and checked with the main ring; while the reactor sleeps, the main ring polls
//! it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use io_uring::{cqueue, opcode, squeue, types};
use rustix::event::PollFlags;
use sluice_memory::Segment;

use super::core::{Core, iovec};
use super::files::{FileTable, Registration};
use super::operations::{COMMANDS, Operation, OperationKind};
use super::ring::Ring;
use super::setup::Completing;
use super::{Io, MAX_SEGMENTS};
use crate::counters::CounterCells;
use crate::nvme::{NvmeCommand, NvmeQueue};
use crate::task::TaskId;

/// Entries of the ring.
const ENTRIES: u32 = 256;
/// Devices that one reactor may have.
const FILES_MAX: u32 = 1024;

/// A device registered for NVMe commands. Dropping it unregisters and closes it when the commands that were
/// started on it are done.
#[derive(Debug)]
pub struct CommandFile(Arc<Registration>);

impl AsFd for CommandFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for CommandFile {
    fn drop(&mut self) {
        self.0.dropped(|core, index| {
            if let Some(commands) = &mut core.commands {
                commands.files.retire(&commands.ring, index);
            }
        });
    }
}

impl Io {
    /// Registers a device for NVMe commands.
    ///
    /// # Errors
    /// The kernel has no such commands; ENFILE when there are too many devices.
    pub fn register_nvme(&self, file: OwnedFd) -> io::Result<CommandFile> {
        let task = self.task;
        Core::of_thread(|core| {
            core.retire_strays();
            let commands = core.commands()?;
            Ok(CommandFile(commands.files.insert(&commands.ring, file, task)?))
        })
    }

    /// Has a device execute a command, with its data in `segments` (the first [`MAX_SEGMENTS`] of them, none
    /// of them a bit bucket). The result is the device's status, zero for success, or the kernel's refusal: a
    /// negated errno.
    pub fn nvme(
        &self,
        (device, queue): (&CommandFile, NvmeQueue),
        command: &NvmeCommand,
        segments: &[Segment],
        task: TaskId,
        token: u64,
    ) {
        Core::of_thread(|core| {
            let index = core.here(&device.0);
            let Core { commands, operations, .. } = core;
            let commands = commands.as_mut().expect("a device is registered with this ring");
            let operation = operations.begin(Operation::new(task, token, OperationKind::Command(index)));
            commands.begin(operation, index, queue, command, segments);
        });
    }
}

impl Core {
    /// Returns the ring for commands, which is opened at the first use.
    pub(super) fn commands(&mut self) -> io::Result<&mut Commands> {
        match &mut self.commands {
            Some(commands) => Ok(commands),
            none => Ok(none.insert(Box::new(Commands::open(ENTRIES, FILES_MAX, self.number)?))),
        }
    }

    /// Arms a poll of the ring for commands on the main ring, before the reactor sleeps. Returns false if
    /// there is a completion already.
    pub(super) fn watch_commands(&mut self, counters: &CounterCells) -> bool {
        let Some(commands) = &mut self.commands else { return true };
        commands.submit(counters);
        if commands.ring.has_early() {
            return false;
        }
        if commands.in_flight > 0 && !commands.watched {
            commands.watched = true;
            let events = u32::from(PollFlags::IN.bits());
            let entry = opcode::PollAdd::new(types::Fd(commands.ring.raw_fd()), events).build();
            self.ring.push(entry.user_data(COMMANDS));
        }
        true
    }
}

/// Ring for NVMe commands.
pub(super) struct Commands {
    pub(super) ring: Ring<squeue::Entry128, cqueue::Entry32>,
    pub(super) files: FileTable,
    /// Lists of data, by operation. The kernel may read a list long after it took the command, when it could
    /// not start the command at first: so a list stays until the command has ended.
    lists: Vec<Vec<libc::iovec>>,
    in_flight: u32,
    /// The main ring has a poll on this one.
    pub(super) watched: bool,
}

impl Commands {
    fn open(entries: u32, files: u32, reactor: u32) -> io::Result<Self> {
        let ring = Ring::<squeue::Entry128, cqueue::Entry32>::open(entries, Completing::AtAnyCall)?;
        if !ring.supports(opcode::UringCmd80::CODE) {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let files = FileTable::register(&ring, files, reactor)?;
        Ok(Self { ring, files, lists: Vec::new(), in_flight: 0, watched: false })
    }

    fn begin(
        &mut self,
        operation: u64,
        device: u32,
        queue: NvmeQueue,
        command: &NvmeCommand,
        segments: &[Segment],
    ) {
        self.files.begin(device);
        self.in_flight += 1;
        let (wire, is_list) = match segments {
            [] => (command.wire(0, 0), false),
            [one] => (command.wire(one.pointer().expose_provenance() as u64, one.len()), false),
            many => {
                let list = self.list(operation, many);
                (command.wire(list.as_ptr().expose_provenance() as u64, list.len() as u32), true)
            }
        };
        let entry = opcode::UringCmd80::new(types::Fixed(device), queue.operation(is_list)).cmd(wire.bytes());
        self.ring.push(entry.build().user_data(operation));
    }

    /// Copies a list to memory that stays until the operation has ended. The memory is kept for the next.
    fn list(&mut self, operation: u64, segments: &[Segment]) -> &[libc::iovec] {
        let position = operation as usize;
        if self.lists.len() <= position {
            self.lists.resize_with(position + 1, Vec::new);
        }
        let list = &mut self.lists[position];
        list.clear();
        let segments = &segments[..segments.len().min(MAX_SEGMENTS)];
        list.extend(segments.iter().map(iovec));
        list
    }

    /// Accounts for the end of a command on this device.
    pub(super) fn end(&mut self, device: u32) {
        self.in_flight -= 1;
        self.files.end(&self.ring, device);
    }

    pub(super) fn submit(&mut self, counters: &CounterCells) {
        if self.ring.needs_enter() {
            self.ring.submit();
        }
        counters.syscalls.add(self.ring.take_enters());
    }
}

/// Has a device execute one command and waits for it, without a reactor, to check whether that works at all.
/// The result is that of [`Io::nvme`].
///
/// # Errors
/// There is no io_uring with such commands; EOPNOTSUPP where the kernel is too old for them.
pub fn try_nvme(device: &OwnedFd, command: &NvmeCommand, data: Segment) -> io::Result<i32> {
    let mut commands = Commands::open(1, 1, 0)?;
    let index = commands.files.put(&commands.ring, device)?;
    commands.begin(0, index, NvmeQueue::Io, command, &[data]);
    loop {
        commands.ring.wait(None);
        if let Some(completion) = commands.ring.next_completion() {
            return Ok(completion.result);
        }
    }
}
