//! Session of one client, from VERSION to the end of its connection: messages in, answers out.

use super::client::{self, Client, Context, Next, Refusal};
use super::client_dma::ClientDma;
use super::deferred_close::{Backlog, DeferredClose};
use super::descriptor;
use super::kept::Progress;
use super::reset::Waiting;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sluice_frontend::limited;
use sluice_memory::Removed;
use sluice_vfio_user::{Command, Connection, Error, Header, Sender};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Messages of one client handled in one turn, so that a flood does not starve other tasks.
pub(super) const MAX_MESSAGES_PER_TURN: usize = 32;

/// Descriptors of no use to any message that a client may send before it is disconnected: closing them may
/// take for ever.
const MAX_SURPLUS_FDS: usize = 64;

/// Reason for the end of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// Failure of the socket or of the byte stream in it.
    Connection(Error),
    /// Message that no correct client sends.
    Violation(&'static str),
    /// Decision of the server, without a fault of the client.
    ByServer,
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Ended::Connection(error)
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Connection(error) => error.fmt(f),
            Ended::Violation(what) => f.write_str(what),
            Ended::ByServer => f.write_str("the server ends it"),
        }
    }
}

/// Connected client.
#[derive(Debug)]
pub(super) struct Session {
    connection: Connection,
    pub(super) client: Client,
    /// Answer to the present message, or to the one that waits: no other message is taken meanwhile.
    reply: Vec<u8>,
    waiting: Option<(Header, Waiting)>,
    /// Possibility that the socket has bytes to read.
    readable: bool,
    surplus_fds: usize,
    client_dma: ClientDma,
    /// Progress of a session that is kept.
    progress: Option<Progress>,
}

impl Session {
    pub(super) fn new(socket: UnixStream, client: Client) -> Self {
        Self {
            connection: Connection::new(socket),
            client,
            reply: Vec::new(),
            waiting: None,
            readable: true,
            surplus_fds: 0,
            client_dma: ClientDma::default(),
            progress: None,
        }
    }

    /// Continues a client of another process. The first turn looks for messages.
    pub(super) fn resume(connection: Connection, client: Client, surplus_fds: usize) -> Self {
        let (reply, client_dma) = (Vec::new(), ClientDma::default());
        let (waiting, readable, progress) = (None, true, None);
        Self { connection, client, reply, waiting, readable, surplus_fds, client_dma, progress }
    }

    /// Keeps the session from now on: messages stay in the socket until they are handled, and changes are answered
    /// when a record is [kept](Self::kept).
    pub(super) fn keep(&mut self, mut progress: Progress) {
        self.connection.leave_in_socket();
        // Answers of a process that has died are in the first record, and are sent once.
        progress.has_changed = self.connection.has_unsent();
        if progress.has_changed {
            self.connection.hold();
        }
        self.progress = Some(progress);
    }

    /// Returns the progress of a session that is kept.
    pub(super) fn progress(&self) -> Option<&Progress> {
        self.progress.as_ref()
    }

    /// Returns whether an answer waits for a record.
    pub(super) fn has_changed(&self) -> bool {
        self.progress.as_ref().is_some_and(|progress| progress.has_changed)
    }

    /// Answers what has waited for a record, which is kept now.
    pub(super) fn kept(&mut self) -> Result<usize, Ended> {
        let Some(progress) = &mut self.progress else { return Ok(0) };
        progress.answered(self.connection.position().0);
        self.connection.let_go()?;
        self.release()?;
        Ok(1)
    }

    /// Does not keep the session any more.
    pub(super) fn stop_keeping(&mut self) -> Result<usize, Ended> {
        self.kept()?;
        self.connection.take_from_socket()?;
        self.progress = None;
        Ok(1)
    }

    /// Takes handled messages from the socket, in which those of a kept session stay. Returns whether there were
    /// some.
    fn release(&mut self) -> Result<bool, Ended> {
        // A message that waits is not handled.
        let is_handled = |progress: &&Progress| !progress.has_changed && self.waiting.is_none();
        let Some(progress) = self.progress.as_ref().filter(is_handled) else { return Ok(false) };
        let (position, unreleased) = self.connection.position();
        let Some(first) = self.connection.first_unreleased() else { return Ok(false) };
        progress.taken(position, unreleased, &first);
        self.connection.release()?;
        Ok(true)
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(super) fn surplus_fds(&self) -> usize {
        self.surplus_fds
    }

    /// Returns whether no answer and no DMA request is outstanding.
    pub(super) fn is_settled(&self) -> bool {
        self.waiting.is_none() && self.client_dma.is_empty()
    }

    /// Notes that the socket may have bytes to read.
    pub(super) fn set_readable(&mut self) {
        self.readable = true;
    }

    /// Returns whether a turn would look for a message.
    pub(super) fn is_ready(&self) -> bool {
        self.readable && self.waiting.is_none() && !self.has_changed()
    }

    /// Returns whether answers wait for room in the client's socket.
    pub(super) fn has_unsent(&self) -> bool {
        self.connection.has_unsent()
    }

    /// Sends bytes that had no room before. Returns 1 if all were sent.
    pub(super) fn flush(&mut self) -> Result<usize, Ended> {
        Ok(usize::from(self.connection.flush()?))
    }

    /// Handles the messages that have arrived, up to a limit. Returns their number.
    pub(super) fn turn(&mut self, context: &mut Context<'_>) -> Result<usize, Ended> {
        let mut handled = 0;
        while self.is_ready() && handled < MAX_MESSAGES_PER_TURN {
            if !self.handle_next(context)? {
                if self.release()? {
                    continue;
                }
                self.readable = false;
                break;
            }
            handled += 1;
        }
        if self.progress.is_some() {
            self.release()?;
        }
        Ok(handled)
    }

    /// Handles the next message. Returns false if none has arrived.
    fn handle_next(&mut self, context: &mut Context<'_>) -> Result<bool, Ended> {
        let (socket, receiver, sender) = self.connection.halves();
        let Some(message) = receiver.receive(socket)? else { return Ok(false) };
        let (header, mut fds) = (message.header, message.fds);
        context.counters.messages += 1;
        let doorbells = context.counters.doorbells;
        if header.is_reply() {
            // Replies to DMA requests have no descriptors, and a close on this thread could block.
            if !fds.is_empty() {
                close_surplus(fds, &mut self.surplus_fds, context)?;
            }
            self.client_dma.answered(&header, message.payload, context.controller)?;
            return Ok(true);
        }
        self.reply.clear();
        let next = self.client.handle(&header, message.payload, &mut fds, &mut self.reply, context);
        if !fds.is_empty() {
            close_surplus(fds, &mut self.surplus_fds, context)?;
        }
        let next = match next {
            Ok(Next::Reply)
                if !context.controller.has_all_queues()
                    && !client::is_known_to_all(&header, message.payload) =>
            {
                Ok(Next::Wait(Waiting::recall(context.controller, context.now_ns)))
            }
            next => next,
        };
        if let Some(progress) = &mut self.progress {
            match next {
                // The message stays until its wait is over.
                Ok(Next::Wait(_)) => {}
                Ok(_)
                    if header.command != Command::REGION_READ && context.counters.doorbells == doorbells =>
                {
                    progress.has_changed = true;
                    sender.hold();
                }
                _ => progress.handled(receiver.position()),
            }
        }
        match next {
            Ok(Next::Reply) => answer(sender, socket, &header, &self.reply, &[])?,
            Ok(Next::ReplyWithDoorbells) => {
                answer(sender, socket, &header, &self.reply, &[context.controller.doorbells().fd()])?;
            }
            Ok(Next::Wait(waiting)) => {
                self.waiting = Some((header, waiting));
                self.settle(context)?;
            }
            Err(refusal) => refuse(sender, socket, &header, refusal, context)?,
        }
        Ok(true)
    }

    /// Sends DMA requests for memory that only the client reaches, as many as the client takes now. Returns
    /// their number.
    pub(super) fn send_dma_requests(&mut self, context: &mut Context<'_>) -> Result<usize, Ended> {
        let most = self.client.data_max();
        self.client_dma.send(&mut self.connection, most, context.controller, context.now_ns)
    }

    /// Answers the message that waits, if its wait is over. Returns the number of answers.
    pub(super) fn settle(&mut self, context: &mut Context<'_>) -> Result<usize, Ended> {
        let Some((_, waiting)) = &mut self.waiting else { return Ok(0) };
        if !waiting.is_over(context.controller, context.subsystem) {
            waiting.warn_if_overdue(context.name, context.now_ns);
            return Ok(0);
        }
        let Some((header, waiting)) = self.waiting.take() else { return Ok(0) };
        // Nothing reaches the memory any more, so the exact time of its munmap does not matter.
        if let Some(removed) = waiting.into_removed() {
            sluice_frontend::drop_later(removed);
        }
        let (socket, _, sender) = self.connection.halves();
        if let Some(progress) = &mut self.progress {
            progress.has_changed = true;
            sender.hold();
        }
        answer(sender, socket, &header, &self.reply, &[])?;
        Ok(1)
    }

    /// Returns the wait of the client, if it waits.
    pub(super) fn waiting(&self) -> Option<&Waiting> {
        self.waiting.as_ref().map(|(_, waiting)| waiting)
    }

    /// Returns false if the client has closed its end, even with bytes still unread.
    pub(super) fn is_alive(&self) -> bool {
        let mut polled = [PollFd::new(&self.connection, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ended = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR;
        // A poll that fails shows nothing about the client.
        poll(&mut polled, Some(&now)).is_err() || !polled[0].revents().intersects(ended)
    }

    /// Ends the connection. Returns memory that a command in flight may still need.
    pub(super) fn end(self, deferred_close: &mut DeferredClose) -> Option<Removed> {
        deferred_close.end(self.connection);
        self.waiting.and_then(|(_, waiting)| waiting.into_removed())
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

fn answer(
    sender: &mut Sender,
    socket: BorrowedFd<'_>,
    to: &Header,
    payload: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<(), Ended> {
    if !to.no_reply() {
        sender.send(socket, to.reply(), payload, &[], fds)?;
    }
    Ok(())
}

/// Answers with an error, and ends the connection if the refusal is of the client itself.
#[cold]
fn refuse(
    sender: &mut Sender,
    socket: BorrowedFd<'_>,
    to: &Header,
    refusal: Refusal,
    context: &mut Context<'_>,
) -> Result<(), Ended> {
    context.counters.refused += 1;
    let (drive, command) = (context.name, to.command);
    limited!(warn, context.warnings, context.now_ns, drive, ?command, reason = %refusal, "refused a message");
    if to.is_command() && !to.no_reply() {
        sender.send(socket, to.error_reply(refusal.errno()), &[], &[], &[])?;
    }
    match refusal {
        Refusal::Client(_, what) => Err(Ended::Violation(what)),
        _ => Ok(()),
    }
}

#[cold]
fn close_surplus(fds: Vec<OwnedFd>, surplus_fds: &mut usize, context: &mut Context<'_>) -> Result<(), Ended> {
    let new = descriptor::close_surplus(fds, context.deferred_close);
    *surplus_fds += new;
    if *surplus_fds > MAX_SURPLUS_FDS {
        return Err(Ended::Violation("too many file descriptors that are of no use to a device"));
    }
    match context.deferred_close.backlog(context.now_ns) {
        Backlog::Full | Backlog::Overfull if new > 0 => {
            Err(Ended::Violation("it sent a file descriptor of no use while others cannot be closed"))
        }
        _ => Ok(()),
    }
}
