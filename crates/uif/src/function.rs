//! What an author of a storage function writes.

use crate::abi::operation;
use sluice_command::{Operation, Request};
use sluice_nvme::Status;

/// A storage function: looks at commands on their way, and says what becomes of them.
///
/// Who checks what: a request lies inside the layer and is a multiple of the function's block size, and its
/// data is as long as it says. What the function sends below is checked again by the daemon: a range
/// outside of the layer, or data longer than the command's buffer, fails the command.
///
/// A method returns soon: all commands of a drive wait for it, and of all its drives if it is placed in
/// the daemon. What takes several steps sends the command below and goes on when it is back; what it has to
/// remember until then goes into the command's [cookie](Call::cookie).
pub trait Function: Send {
    /// What it is, asked once.
    fn properties(&self) -> Properties;

    /// A command before the layer below has seen it.
    fn submit(&mut self, call: &mut Call<'_>) -> Answer;

    /// A command that was below: it had [`Interest::After`], or [`Answer::ForwardAndReturn`].
    fn returned(&mut self, call: &mut Call<'_>) -> Answer;
}

/// What a function is, and which commands it wants to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// By [`Operation`], see [`interest`](Self::interest).
    pub interests: [Interest; operation::COUNT],
    /// The smallest unit of a request, bytes: 512 or 4096.
    pub block_size: u32,
    /// Bytes of the buffer that a Write Zeroes gets, zeros at first; less if the command is shorter.
    pub scratch: u32,
    /// What stands below is not what the host reads: deallocated blocks do not read as zeros.
    pub transforms: bool,
}

impl Properties {
    /// Sees nothing yet, and changes nothing.
    pub const NONE: Self = Self {
        interests: [Interest::Skip; operation::COUNT],
        block_size: 512,
        scratch: 0,
        transforms: false,
    };

    /// The same, with this interest in an operation.
    #[must_use]
    pub fn with(mut self, operation: Operation, interest: Interest) -> Self {
        self.interests[usize::from(crate::wire::operation_code(operation))] = interest;
        self
    }

    pub fn interest(&self, operation: Operation) -> Interest {
        self.interests[usize::from(crate::wire::operation_code(operation))]
    }
}

/// When a function wants to see an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interest {
    /// Never: such commands pass it by.
    #[default]
    Skip,
    /// First, before they go below.
    Before,
    /// When they are back with success, and only then.
    After,
}

/// A command in the hands of a function.
#[derive(Debug)]
pub struct Call<'a> {
    /// What is asked, or what it was sent below with. A function that forwards may change it.
    pub request: Request,
    /// The command's own buffer. Of a write it is a copy of the host's data, which the host cannot change
    /// any more; of a read it goes to the host when the command finishes with success.
    pub data: &'a mut [u8],
    /// Of a command that is back: how it went below.
    pub status: Status,
    /// Of a command that is back: what it was forwarded with; zero after [`Interest::After`].
    pub stage: u8,
    /// The function's own, zero at first: what it leaves here is here when the command is back.
    pub cookie: [u64; 2],
}

/// What becomes of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is finished.
    Finish(Status),
    /// It goes below with [`Call::request`] and the buffer; its status there is its own.
    Forward,
    /// The same, and it comes back to [`Function::returned`] with this stage.
    ForwardAndReturn(u8),
}
