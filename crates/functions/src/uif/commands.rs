//! How far each command has come.

use super::arena::Buffer;
use sluice_command::{Request, Ticket};
use sluice_nvme::Status;

/// Where a command is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Progress {
    /// Not here.
    #[default]
    Gone,
    /// Waits for a function, for a place in the ring, or for a buffer.
    Waiting,
    /// The function has it.
    Sent,
    /// The layer below has it.
    Below,
    /// Back from below, waits for a place in the ring.
    Returning,
}

/// What comes after the layer below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Next {
    /// It is finished.
    #[default]
    Finish,
    /// The function sees it, unless it failed: it wanted to see it afterwards only.
    ShowSuccess,
    /// The function sees it, with this stage.
    Return(u8),
}

/// One command, from its arrival to its end.
#[derive(Debug)]
pub(super) struct CommandState {
    pub(super) progress: Progress,
    pub(super) ticket: Ticket,
    /// Changes whenever the function is sent the command: tells a late reply from the one waited for.
    pub(super) generation: u32,
    pub(super) sent_ns: u64,
    /// Which connection it began with.
    pub(super) link: u32,
    pub(super) buffer: Option<Buffer>,
    /// What it asks for now, which is what the host asked for until the function changes it.
    pub(super) request: Request,
    pub(super) next: Next,
    /// Times that the function had it come back.
    pub(super) returns: u32,
    /// How it went below.
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

/// By number of the command's slot.
#[derive(Debug, Default)]
pub(super) struct CommandTable(Vec<CommandState>);

/// The bits of a ticket that number the slot.
const SLOT_MASK: u32 = (1 << 20) - 1;

impl CommandTable {
    /// A command arrives. Grows, once, to the most that are ever here at a time.
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

    /// The command that this tag of a reply means, if the function has it. Any 64 bits.
    pub(super) fn sent(&mut self, tag: u64) -> Option<u32> {
        let index = tag as u32;
        let state = self.0.get(index as usize)?;
        (state.progress == Progress::Sent && state.generation == (tag >> 32) as u32).then_some(index)
    }

    /// True if one is in this place that began with such a connection.
    pub(super) fn has_in(&self, progress: Progress, link: impl Fn(u32) -> bool) -> bool {
        self.0.iter().any(|state| state.progress == progress && link(state.link))
    }

    /// All that are in this place.
    pub(super) fn all_in(&self, progress: Progress) -> Vec<u32> {
        (0..).zip(&self.0).filter(|(_, state)| state.progress == progress).map(|(index, _)| index).collect()
    }

    /// True if the function has had a command since before `since_ns`.
    pub(super) fn is_overdue(&self, since_ns: u64) -> bool {
        self.0.iter().any(|state| state.progress == Progress::Sent && state.sent_ns < since_ns)
    }
}
