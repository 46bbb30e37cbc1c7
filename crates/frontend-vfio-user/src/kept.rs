//! Progress of a client's session in shared memory, for a successor of this process if it dies.
//!
//! Messages stay in the socket until they are handled. A message that changes something is answered when a record
//! with the change is kept. The words below are written before the system call that they announce. So a successor
//! repeats a message that was not handled, and neither a message nor an answer twice. Whether messages were taken from
//! the socket shows in the first message that is there: its identifier is another one then.

use super::record::{HandOverError, Incoming, Outgoing};
use sluice_command::record::{Reader, RecordError, Writer};
use sluice_memory::SharedRegion;
use sluice_vfio_user::{Connection, Error, Header, MAX_MESSAGE_SIZE, Unfinished};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Offsets of the words. Positions count the bytes of the client's stream since the words were made.
mod word {
    /// Position of the socket's next byte, after the messages were taken that begin with [`FIRST`].
    pub(super) const TAKEN: usize = 0;
    /// The same before they were taken.
    pub(super) const BEFORE: usize = 24;
    /// Header of the first of these messages.
    pub(super) const FIRST: usize = 32;
    /// End of the last message that was handled.
    pub(super) const HANDLED: usize = 8;
    /// Number of the last record whose answers were sent.
    pub(super) const ANSWERED: usize = 16;
}

/// Bytes of the file with the words.
const LENGTH: usize = 4096;

/// Most bytes that were handled and are still in the socket.
const SKIP_MAX: u64 = 2 * MAX_MESSAGE_SIZE as u64;

/// Progress of a session that is kept.
#[derive(Debug)]
pub(super) struct Progress {
    words: SharedRegion,
    /// Whether an answer waits for a record.
    pub(super) has_changed: bool,
    /// Number of the next record.
    number: u64,
}

impl Progress {
    /// # Errors
    /// There is no memory for the words.
    pub(super) fn new() -> io::Result<Self> {
        let words = SharedRegion::new("sluice-progress", LENGTH)?;
        Ok(Self { words, has_changed: false, number: 1 })
    }

    /// Notes that a message is about to be answered without a record.
    #[inline]
    pub(super) fn handled(&self, position: u64) {
        self.words.atomic_u64(word::HANDLED).store(position, Release);
    }

    /// Notes that handled messages are about to be taken from the socket: `unreleased` bytes before this position,
    /// which begin with this header.
    pub(super) fn taken(&self, position: u64, unreleased: usize, first: &[u8; Header::SIZE]) {
        take(&self.words, position - unreleased as u64, position, first);
    }

    /// Notes that the answers of a kept record are about to be sent.
    pub(super) fn answered(&mut self, position: u64) {
        self.handled(position);
        self.words.atomic_u64(word::ANSWERED).store(self.number, Release);
        self.number += 1;
        self.has_changed = false;
    }

    pub(super) fn put(&self, part: &mut Writer, outgoing: &mut Outgoing, connection: &Connection) {
        let (position, unreleased) = connection.position();
        let received = connection.unfinished().received.len();
        outgoing.put(part, self.words.fd());
        part.put(self.number);
        part.put(position);
        part.put(position - unreleased as u64 + received as u64);
    }
}

fn take(words: &SharedRegion, before: u64, position: u64, first: &[u8; Header::SIZE]) {
    words.atomic_u64(word::BEFORE).store(before, Release);
    words.write(word::FIRST, first);
    words.atomic_u64(word::TAKEN).store(position, Release);
}

/// Progress of a session whose process has died.
#[derive(Debug)]
pub(super) struct Left {
    words: SharedRegion,
    number: u64,
    /// End of the last message whose effect is in the record.
    position: u64,
    /// Position of the socket's next byte when the record was made.
    taken: u64,
}

impl Left {
    pub(super) fn take(part: &mut Reader<'_>, incoming: &Incoming) -> Result<Self, HandOverError> {
        let words = SharedRegion::from_fd(incoming.take(part)?, 0, LENGTH)?;
        Ok(Self { words, number: part.get()?, position: part.get()?, taken: part.get()? })
    }

    /// Continues the connection behind the last message that was handled.
    ///
    /// # Errors
    /// The socket has fewer bytes than that.
    pub(super) fn resume(
        &self,
        socket: UnixStream,
        mut unfinished: Unfinished<OwnedFd>,
    ) -> Result<Connection, HandOverError> {
        let at = |word| self.words.atomic_u64(word).load(Acquire);
        let failed = |error: Error| io::Error::other(error.to_string());
        let (mut first, there) = ([0; Header::SIZE], Connection::peek(&socket).map_err(failed)?);
        self.words.read(word::FIRST, &mut first);
        let are_there = at(word::TAKEN) > at(word::BEFORE) && first == there;
        let taken = at(if are_there { word::BEFORE } else { word::TAKEN }).max(self.taken);
        let handled = at(word::HANDLED).max(self.position);
        if handled > self.position {
            (unfinished.received, unfinished.received_fds) = (Vec::new(), Vec::new());
        }
        if at(word::ANSWERED) >= self.number {
            (unfinished.unsent, unfinished.attached) = (Vec::new(), Vec::new());
        }
        if let Some(count) = handled.checked_sub(taken).filter(|count| *count > 0) {
            if count > SKIP_MAX {
                return Err(RecordError::Invalid("progress of a session").into());
            }
            take(&self.words, taken, handled, &there);
            Connection::skip(&socket, count as usize).map_err(failed)?;
        }
        let connection = Connection::resume(socket, unfinished);
        Ok(connection.ok_or(RecordError::Invalid("unfinished message"))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_vfio_user::Command;
    use std::io::Write;
    use zerocopy::IntoBytes;

    /// Identifiers of three messages of 16 bytes each.
    const IDS: [u16; 3] = [1, 2, 3];

    fn header(id: u16) -> Header {
        Header { size: 16, ..Header::command(id, Command::DEVICE_RESET) }
    }

    fn first(id: u16) -> [u8; Header::SIZE] {
        let mut bytes = [0; Header::SIZE];
        bytes.copy_from_slice(header(id).as_bytes());
        bytes
    }

    /// Returns what a record of a process has, which has handled `handled` messages and has taken `taken` of
    /// them from the socket.
    fn left(words: SharedRegion, number: u64, handled: u64, taken: u64) -> Left {
        Left { words, number, position: handled * 16, taken: taken * 16 }
    }

    fn unfinished(unsent: usize) -> Unfinished<OwnedFd> {
        let (received, received_fds, attached) = Default::default();
        Unfinished { received, received_fds, unsent: vec![7; unsent], attached }
    }

    /// Returns the identifiers of the messages that a successor handles, and the number of its unsent bytes. The
    /// messages from `from` on are in the socket.
    fn resumed(left: &Left, from: usize, unsent: usize) -> (Vec<u16>, usize) {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        for id in &IDS[from..] {
            theirs.write_all(header(*id).as_bytes()).expect("room");
        }
        let mut connection = left.resume(ours, unfinished(unsent)).expect("it goes on");
        let unsent = connection.unfinished().unsent.len();
        let mut ids = Vec::new();
        while let Some(message) = connection.receive().expect("messages") {
            ids.push(message.header.id);
        }
        (ids, unsent)
    }

    #[test]
    fn a_message_is_handled_once_wherever_the_process_died() {
        // Nothing was handled after the record.
        let progress = Progress::new().expect("memory");
        assert_eq!(resumed(&left(progress.words, 1, 0, 0), 0, 16), (vec![1, 2, 3], 16));
        // The first message was handled, and is in the socket.
        let progress = Progress::new().expect("memory");
        progress.handled(16);
        assert_eq!(resumed(&left(progress.words, 1, 0, 0), 0, 16), (vec![2, 3], 16));
        // It was about to be taken from the socket, and was not.
        let progress = Progress::new().expect("memory");
        progress.handled(16);
        progress.taken(16, 16, &first(1));
        assert_eq!(resumed(&left(progress.words, 1, 0, 0), 0, 16), (vec![2, 3], 16));
        // It was taken.
        let progress = Progress::new().expect("memory");
        progress.handled(16);
        progress.taken(16, 16, &first(1));
        assert_eq!(resumed(&left(progress.words, 1, 0, 0), 1, 16), (vec![2, 3], 16));
        // Two were handled, and one of them was taken.
        let progress = Progress::new().expect("memory");
        progress.handled(16);
        progress.taken(16, 16, &first(1));
        progress.handled(32);
        assert_eq!(resumed(&left(progress.words, 1, 0, 0), 1, 16), (vec![3], 16));
        // The effect of the first message is in the record, which was made before it was taken.
        let progress = Progress::new().expect("memory");
        assert_eq!(resumed(&left(progress.words, 1, 1, 0), 0, 16), (vec![2, 3], 16));
        let progress = Progress::new().expect("memory");
        assert_eq!(resumed(&left(progress.words, 1, 1, 1), 1, 16), (vec![2, 3], 16));
    }

    #[test]
    fn an_answer_is_sent_once() {
        let mut progress = Progress::new().expect("memory");
        progress.has_changed = true;
        progress.answered(16);
        assert!(!progress.has_changed);
        assert_eq!(progress.number, 2);
        let copy =
            || SharedRegion::from_fd(progress.words.fd().try_clone_to_owned().expect("a file"), 0, LENGTH);
        // The record was made before these answers, or after them.
        assert_eq!(resumed(&left(copy().expect("memory"), 1, 1, 0), 0, 16), (vec![2, 3], 0));
        assert_eq!(resumed(&left(copy().expect("memory"), 2, 1, 0), 0, 16), (vec![2, 3], 16));
    }

    /// Checks a position that no process has written: few bytes are skipped.
    #[test]
    fn bytes_that_cannot_be_in_the_socket_are_not_skipped() {
        let progress = Progress::new().expect("memory");
        progress.handled(SKIP_MAX + 1);
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        theirs.write_all(header(1).as_bytes()).expect("room");
        let found = left(progress.words, 1, 0, 0).resume(ours, unfinished(0));
        assert!(matches!(found, Err(HandOverError::Record(RecordError::Invalid("progress of a session")))));
    }
}
