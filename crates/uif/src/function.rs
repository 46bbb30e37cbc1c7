//! What an author of a storage function writes.

use crate::abi::operation;
use crate::{Held, Io};
use sluice_command::{Operation, Request};
use sluice_nvme::Status;

/// A storage function: looks at commands on their way, and says what becomes of them.
///
/// Who checks what: a request lies inside the layer and is a multiple of the function's block size, and its
/// data is as long as it says. What the function sends below is checked again by the daemon: a range
/// outside of the layer, or data longer than the command's buffer, fails the command.
///
/// A method returns soon: all commands of a drive wait for it, and of all its drives if it is placed in
/// the daemon. What takes several steps sends the command below and goes on when it is back, leaving what it
/// has to remember in the command's [cookie](Call::cookie); or it [holds](Call::hold) the command, asks the
/// layers below for what it needs ([`Io::request`]), and goes on when that is [`done`](Function::done).
///
/// A function that is gone (killed, moved, restarted) begins anew, with whatever it wrote below, and gets
/// the commands again that it did not finish.
pub trait Function: Send {
    /// What it is, asked once.
    fn properties(&self) -> Properties;

    /// The layers below are there ([`Io::layers`]). Commands come when it has said [`Io::ready`]. Comes again
    /// when a layer has another size.
    fn start(&mut self, io: &mut Io<'_>) {
        io.ready(Status::SUCCESS);
    }

    /// A command before the layer below has seen it.
    fn submit(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer;

    /// A command that was below: it had [`Interest::After`], or [`Answer::ForwardAndReturn`]. Or one that was
    /// held, see [`Io::resume`].
    fn returned(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        let _ = io;
        Answer::Finish(call.status)
    }

    /// A request of its own is done. Whoever keeps the buffer can use it for another.
    fn done(&mut self, done: Done, io: &mut Io<'_>) {
        if let Some(buffer) = done.buffer {
            io.release(buffer);
        }
    }

    /// The time of [`Io::wake_at`] has come.
    fn timer(&mut self, io: &mut Io<'_>) {
        let _ = io;
    }

    /// An operator wants something (`sluice function tell`). One at a time; what takes longer is
    /// [`Control::Later`], and answered with [`Io::answer`].
    fn control(&mut self, text: &str, io: &mut Io<'_>) -> Control {
        let _ = (text, io);
        Control::Now(Err("this function takes no orders".into()))
    }

    /// What it counts: names in the manner of Prometheus (`resync_bytes_total`), and values.
    fn metrics(&self, count: &mut dyn FnMut(&str, u64)) {
        let _ = count;
    }
}

/// What a function is, and which commands it wants to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// In the order of [`Operation`], see [`with`](Self::with).
    pub interests: [Interest; operation::COUNT],
    /// The smallest unit of a request, bytes: 512 or 4096.
    pub block_size: u32,
    /// Bytes of the buffer that a Write Zeroes gets, zeros at first; less if the command is shorter.
    pub scratch: u32,
    /// Bytes of memory for requests of its own ([`Io::buffer`]), at most
    /// [`POOL_MAX`](crate::abi::POOL_MAX).
    pub pool: u32,
    /// What stands below is not what the host reads: deallocated blocks do not read as zeros.
    pub transforms: bool,
    /// Bytes of the layer that it is to those above; zero for as many as its first layer below has.
    pub size: u64,
}

impl Properties {
    /// Sees nothing yet, and changes nothing.
    pub const NONE: Self = Self {
        interests: [Interest::Skip; operation::COUNT],
        block_size: 512,
        scratch: 0,
        pool: 0,
        transforms: false,
        size: 0,
    };

    /// The same, with this interest in an operation.
    #[must_use]
    pub fn with(mut self, operation: Operation, interest: Interest) -> Self {
        self.interests[operation as usize] = interest;
        self
    }
}

/// When a function wants to see an operation; the numbers are those of the ABI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interest {
    /// Never: such commands pass it by.
    #[default]
    Skip = 0,
    /// First, before they go below.
    Before = 1,
    /// When they are back with success, and only then.
    After = 2,
}

/// A command in the hands of a function.
#[derive(Debug)]
pub struct Call<'a> {
    /// What is asked, or what it was sent below with. A function that forwards may change it.
    pub request: Request,
    /// Where it is forwarded to, by number of the layer below.
    pub layer: u8,
    /// The command's own buffer. Of a write it is a copy of the host's data, which the host cannot change
    /// any more; of a read it goes to the host when the command finishes with success.
    pub data: &'a mut [u8],
    /// Of a command that is back: how it went below.
    pub status: Status,
    /// Of a command that is back: what it was forwarded or resumed with; zero after [`Interest::After`].
    pub stage: u8,
    /// The function's own, zero at first: what it leaves here is here when the command is back.
    pub cookie: [u64; 2],
    pub(crate) tag: u64,
}

impl Call<'_> {
    /// The command, for a function that answers with [`Answer::Hold`].
    pub fn hold(&self) -> Held {
        Held(self.tag)
    }
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
    /// The function keeps it, until [`Io::finish`] or [`Io::resume`]. The operator's deadline for commands
    /// goes on meanwhile.
    Hold,
}

/// A request of the function's own that is done.
#[derive(Debug)]
pub struct Done {
    /// What it was asked with.
    pub token: u64,
    pub status: Status,
    /// The buffer that it was asked with, now the function's again.
    pub buffer: Option<crate::Buffer>,
}

/// An answer to [`Function::control`], in words or JSON; an error in words for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    Now(Result<String, String>),
    /// [`Io::answer`] will say it.
    Later,
}
