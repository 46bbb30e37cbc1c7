//! The process that takes over.

use crate::channel::{Channel, ChannelError};
use crate::greeting::{Greeting, Version, greet};
use crate::kind;
use crate::predecessor::{Limits, Parcel};
use std::fmt;
use std::time::Instant;

/// State of the process that takes over.
pub trait Sink {
    /// Prepares all that touches no storage and no socket.
    ///
    /// # Errors
    /// The process cannot take over; with the reason in words.
    fn prepare(&mut self) -> Result<(), String>;

    /// Takes an item, which stays suspended.
    ///
    /// # Errors
    /// The process cannot have the item; with the reason in words.
    fn take(&mut self, item: &str, parcel: Parcel) -> Result<(), String>;
}

/// Reason why a process did not take over. It must end without touching any item.
#[derive(Debug)]
pub enum TakeOverError {
    Channel(ChannelError),
    Foreign {
        own: Version,
        other: Version,
    },
    /// The process refused.
    Refused(String),
}

impl fmt::Display for TakeOverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Channel(error) => error.fmt(f),
            Self::Foreign { own, other } => write!(
                f,
                "the daemon speaks version {} and reads {} or later; this one speaks {} and reads {} or later",
                other.own, other.oldest, own.own, own.oldest
            ),
            Self::Refused(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for TakeOverError {}

impl From<ChannelError> for TakeOverError {
    fn from(error: ChannelError) -> Self {
        Self::Channel(error)
    }
}

/// Takes all items of the process at the other end of a channel. On success they belong to this process.
///
/// # Errors
/// The other process goes on. This one must end without touching any item.
pub fn take_over(
    channel: &Channel,
    sink: &mut dyn Sink,
    version: Version,
    limits: Limits,
) -> Result<(), TakeOverError> {
    if let Greeting::Foreign(other) = greet(channel, version, Instant::now() + limits.greeting)? {
        return Err(TakeOverError::Foreign { own: version, other });
    }
    let prepared = sink.prepare();
    answer(channel, kind::READY, prepared, limits)?;
    loop {
        // The predecessor drains one drive after the other, for which its own limit counts.
        let message = channel.receive(Instant::now() + limits.ready)?;
        match message.kind {
            kind::ITEM => {
                let (item, record) =
                    item_of(&message.bytes).ok_or(ChannelError::Malformed("an item without a name"))?;
                let parcel = Parcel { bytes: record.to_vec(), fds: message.fds };
                answer(channel, kind::TAKEN, sink.take(item, parcel), limits)?;
            }
            kind::COMMIT => return Ok(()),
            _ => return Err(ChannelError::Malformed("a message of an unknown kind").into()),
        }
    }
}

/// Sends the answer to a step.
fn answer(
    channel: &Channel,
    kind: u16,
    done: Result<(), String>,
    limits: Limits,
) -> Result<(), TakeOverError> {
    let until = Instant::now() + limits.item;
    match done {
        Ok(()) => Ok(channel.send(kind, &[], &[], until)?),
        Err(why) => {
            channel.send(kind::REFUSED, why.as_bytes(), &[], until)?;
            Err(TakeOverError::Refused(why))
        }
    }
}

fn item_of(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (name, record) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    Some((std::str::from_utf8(name).ok()?, record))
}
