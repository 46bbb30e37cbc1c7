//! Closes descriptors on a thread of its own: the close of a hostile file may never end.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// Thread that closes descriptors.
#[derive(Debug)]
pub(crate) struct Closing(Sender<Vec<OwnedFd>>);

impl Closing {
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (sender, receiver) = channel::<Vec<OwnedFd>>();
        thread::Builder::new().name("closing".to_owned()).spawn(move || receiver.iter().for_each(drop))?;
        Ok(Self(sender))
    }

    pub(crate) fn close(&self, fds: Vec<OwnedFd>) {
        // The thread lives as long as the sender.
        let _ = self.0.send(fds);
    }
}
