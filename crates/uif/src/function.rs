//! Trait that an author of a storage function implements.

use crate::abi::operation;
use crate::{Held, Io};
use sluice_command::{Operation, Request};
use sluice_nvme::Status;

/// Storage function: sees commands on their way, and decides each one's next step.
///
/// The request of a command lies inside the layer and is a multiple of the function's block size, and its
/// data has the announced length. The daemon checks again what the function sends below: a range outside the
/// layer, or data longer than the command's buffer, fails the command.
///
/// A method returns soon: all commands of a drive wait for it, and those of all its drives if it is placed in
/// the daemon. A function that takes several steps sends the command below and goes on when it returns, with
/// its notes in the command's [cookie](Call::cookie). Or it [holds](Call::hold) the command, sends requests
/// to the layers below ([`Io::request`]), and goes on when they are [`done`](Function::done).
///
/// A function that was killed, moved or restarted begins anew, with everything that it wrote below, and gets
/// its unfinished commands again.
pub trait Function: Send {
    /// Returns the function's properties. Called once.
    fn properties(&self) -> Properties;

    /// Starts on the layers below ([`Io::layers`]). Commands come after [`Io::ready`]. Called again when a
    /// layer has another size.
    fn start(&mut self, io: &mut Io<'_>) {
        io.ready(Status::SUCCESS);
    }

    /// Handles a command that the layer below has not seen.
    fn submit(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer;

    /// Handles a command that was below, by [`Interest::After`] or [`Answer::ForwardAndReturn`], or one that
    /// was held, see [`Io::resume`].
    fn returned(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        let _ = io;
        Answer::Finish(call.status)
    }

    /// Handles the end of a request of the function's own. Its buffer may be kept for another request.
    fn done(&mut self, done: Done, io: &mut Io<'_>) {
        if let Some(buffer) = done.buffer {
            io.release(buffer);
        }
    }

    /// Handles the time of [`Io::wake_at`].
    fn timer(&mut self, io: &mut Io<'_>) {
        let _ = io;
    }

    /// Executes an order of an operator (`sluice function tell`). Orders come one at a time. A longer one
    /// returns [`Control::Later`] and is answered with [`Io::answer`].
    fn control(&mut self, text: &str, io: &mut Io<'_>) -> Control {
        let _ = (text, io);
        Control::Now(Err("this function takes no orders".into()))
    }

    /// Reports counters: names in the style of Prometheus (`resync_bytes_total`), and values.
    fn metrics(&self, count: &mut dyn FnMut(&str, u64)) {
        let _ = count;
    }
}

/// Properties of a function, and the commands that it sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Interests in the order of [`Operation`], see [`with`](Self::with).
    pub interests: [Interest; operation::COUNT],
    /// Smallest unit of a request in bytes: 512 or 4096.
    pub block_size: u32,
    /// Bytes of the buffer that a Write Zeroes gets, zeros at first; fewer if the command is shorter.
    pub scratch: u32,
    /// Bytes of memory for requests of the function's own ([`Io::buffer`]), at most
    /// [`POOL_MAX`](crate::abi::POOL_MAX).
    pub pool: u32,
    /// Whether the data below differs from that of the host: deallocated blocks do not read as zeros then.
    pub transforms: bool,
    /// Bytes of the function's layer for those above; zero for as many as its first layer below has.
    pub size: u64,
}

impl Properties {
    /// Properties of a function that sees nothing yet, and changes nothing.
    pub const NONE: Self = Self {
        interests: [Interest::Skip; operation::COUNT],
        block_size: 512,
        scratch: 0,
        pool: 0,
        transforms: false,
        size: 0,
    };

    /// Returns the properties with this interest in an operation.
    #[must_use]
    pub fn with(mut self, operation: Operation, interest: Interest) -> Self {
        self.interests[operation as usize] = interest;
        self
    }
}

/// Time at which a function sees an operation; the numbers are those of the ABI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interest {
    /// Never: such commands pass the function.
    #[default]
    Skip = 0,
    /// First, before they go below.
    Before = 1,
    /// Later, when they are back from below with success, and only then.
    After = 2,
}

/// Command that a function is called with.
///
/// A function that changes read data sends the command below first:
///
/// ```
/// use sluice_uif::{Answer, Call, Function, Interest, Io, Operation, Properties};
///
/// struct Invert;
///
/// impl Function for Invert {
///     fn properties(&self) -> Properties {
///         Properties { transforms: true, ..Properties::NONE }
///             .with(Operation::Write, Interest::Before)
///             .with(Operation::Read, Interest::After)
///     }
///
///     fn submit(&mut self, call: &mut Call<'_>, _io: &mut Io<'_>) -> Answer {
///         call.data.iter_mut().for_each(|byte| *byte = !*byte);
///         Answer::Forward
///     }
///
///     fn returned(&mut self, call: &mut Call<'_>, _io: &mut Io<'_>) -> Answer {
///         call.data.iter_mut().for_each(|byte| *byte = !*byte);
///         Answer::Finish(call.status)
///     }
/// }
/// # use sluice_memory::{Buffers, SharedRegion};
/// # use sluice_uif::abi::{Submission, disposition, kind, operation};
/// # let mut memory = Buffers::new(SharedRegion::new("arena", 4096).expect("memory"));
/// # let mut session = sluice_uif::Session::new(Box::new(Invert), 4096);
/// # memory.write(0, &[0xf0; 512]);
/// # for (operation, kind, expected, disposition) in [
/// #     (operation::WRITE, kind::COMMAND, 0x0f, disposition::FORWARD),
/// #     (operation::READ, kind::RETURNED, 0xf0, disposition::FINISH),
/// # ] {
/// #     let (length, data_length) = (512, 512);
/// #     let entry = Submission { operation, kind, length, data_length, ..Submission::default() };
/// #     session.take(&entry, &mut memory, 0);
/// #     assert_eq!(session.replies(1).next().expect("a reply").disposition, disposition);
/// #     assert_eq!(memory.bytes(0, 512).expect("inside"), &[expected; 512]);
/// # }
/// ```
#[derive(Debug)]
pub struct Call<'a> {
    /// Request of the host, or the request that was sent below. A function that forwards may change it.
    pub request: Request,
    /// Layer below that the command is forwarded to, by number.
    pub layer: u8,
    /// Buffer of the command. Of a write it is a copy of the host's data, which the host cannot change any
    /// more; of a read it goes to the host when the command finishes with success.
    pub data: &'a mut [u8],
    /// Status from below of a command that returns.
    pub status: Status,
    /// Stage with which a returning command was forwarded or resumed; zero after [`Interest::After`].
    pub stage: u8,
    /// Notes of the function, zero at first: they are kept until the command returns.
    pub cookie: [u64; 2],
    pub(crate) held: Held,
}

impl Call<'_> {
    /// Returns the handle of the command, for a function that answers with [`Answer::Hold`].
    pub fn hold(&self) -> Held {
        self.held
    }
}

/// Next step of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The command is finished.
    Finish(Status),
    /// The command goes below with [`Call::request`] and the buffer; its status there is its own.
    Forward,
    /// The command goes below as with `Forward`, and comes back to [`Function::returned`] with this stage.
    ForwardAndReturn(u8),
    /// The function keeps the command, until [`Io::finish`] or [`Io::resume`]. The operator's deadline for
    /// commands goes on meanwhile.
    Hold,
}

/// Request of the function's own that is done.
#[derive(Debug)]
pub struct Done {
    /// Token of the request.
    pub token: u64,
    pub status: Status,
    /// Buffer of the request, now the function's again.
    pub buffer: Option<crate::Buffer>,
}

/// Answer to [`Function::control`], as text or JSON; an error text for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    Now(Result<String, String>),
    /// The answer comes with [`Io::answer`].
    Later,
}
