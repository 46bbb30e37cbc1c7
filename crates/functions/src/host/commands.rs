//! State of each command in the layer.

use super::arena::Buffer;
use sluice_command::{Request, Ticket};
use sluice_nvme::Status;

/// Holder of a command, or its reason to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Progress {
    /// Not in the layer.
    #[default]
    Gone,
    /// Waits for a function, for an entry of the ring, or for a buffer.
    Waiting,
    /// Held by the function.
    Sent,
    /// Held by the layer below.
    Below,
    /// Back from below, waits for an entry of the ring.
    Returning,
}

/// Next step after the layer below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Next {
    /// The command is finished.
    #[default]
    Finish,
    /// The function sees the command if it succeeded: its interest is
    /// [`Interest::After`](sluice_uif::Interest::After).
    ShowSuccess,
    /// The function sees the command, with this stage.
    Return(u8),
}

/// State of one command, from its arrival to its end.
#[derive(Debug)]
pub(super) struct CommandState {
    pub(super) progress: Progress,
    pub(super) ticket: Ticket,
    /// Number that changes whenever the function is sent the command, so that a late reply does not match.
    pub(super) generation: u32,
    pub(super) sent_ns: u64,
    /// Connection with which the command began.
    pub(super) link: u32,
    pub(super) buffer: Option<Buffer>,
    /// Request of the host, until the function changes it.
    pub(super) request: Request,
    pub(super) next: Next,
    /// Times that the command has returned to the function.
    pub(super) returns: u32,
    /// Status from below.
    pub(super) status: Status,
    pub(super) cookie: [u64; 2],
}

impl Default for CommandState {
    fn default() -> Self {
        Self {
            progress: Progress::Gone,
            ticket: Ticket(0),
            generation: 0,
            sent_ns: 0,
            link: 0,
            buffer: None,
            request: Request::default(),
            next: Next::Finish,
            returns: 0,
            status: Status::SUCCESS,
            cookie: [0; 2],
        }
    }
}

/// States by number of the command's slot.
#[derive(Debug, Default)]
pub(super) struct CommandTable(Vec<CommandState>);

/// Bits of a ticket that number the slot.
const SLOT_MASK: u32 = (1 << 20) - 1;

impl CommandTable {
    /// Takes a command that arrives. Grows, once, to the most commands that are ever here at a time.
    pub(super) fn open(&mut self, ticket: Ticket) -> u32 {
        let index = ticket.0 & SLOT_MASK;
        if self.0.len() <= index as usize {
            self.0.resize_with(index as usize + 1, CommandState::default);
        }
        let state = &mut self.0[index as usize];
        debug_assert!(state.progress == Progress::Gone && state.buffer.is_none());
        (state.progress, state.ticket) = (Progress::Waiting, ticket);
        index
    }

    pub(super) fn of(&mut self, index: u32) -> &mut CommandState {
        &mut self.0[index as usize]
    }

    /// Returns the command of a reply's tag, if the function has it. The tag is any 64 bits.
    pub(super) fn sent(&mut self, tag: u64) -> Option<u32> {
        let index = tag as u32;
        let state = self.0.get(index as usize)?;
        (state.progress == Progress::Sent && state.generation == (tag >> 32) as u32).then_some(index)
    }

    /// Returns whether a command of a matching connection has this progress.
    pub(super) fn has_in(&self, progress: Progress, link: impl Fn(u32) -> bool) -> bool {
        self.0.iter().any(|state| state.progress == progress && link(state.link))
    }

    /// Returns all commands with this progress.
    pub(super) fn all_in(&self, progress: Progress) -> Vec<u32> {
        (0..).zip(&self.0).filter(|(_, state)| state.progress == progress).map(|(index, _)| index).collect()
    }

    /// Returns whether the function has had a command since before `since_ns`.
    pub(super) fn is_overdue(&self, since_ns: u64) -> bool {
        self.0.iter().any(|state| state.progress == Progress::Sent && state.sent_ns < since_ns)
    }
}
