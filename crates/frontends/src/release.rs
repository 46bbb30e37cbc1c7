//! Letting go of things whose end takes its time, on a thread that has it: the last reference to a
//! guest's memory takes milliseconds.
//!
//! One thread for the whole process, started when first needed. What a client may have made endless is
//! none of its business: that goes to the `closer` of its endpoint.

use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

/// Things that wait for the thread, at most.
const QUEUE: usize = 1024;

type Thing = Box<dyn Send>;

static THREAD: OnceLock<SyncSender<Thing>> = OnceLock::new();

/// Drops what takes time but comes to an end. If the thread cannot keep up, drops it here.
pub(crate) fn slow(thing: impl Send + 'static) {
    match THREAD.get_or_init(start).try_send(Box::new(thing)) {
        Ok(()) => {}
        Err(TrySendError::Full(thing) | TrySendError::Disconnected(thing)) => drop(thing),
    }
}

fn start() -> SyncSender<Thing> {
    let (sender, receiver) = sync_channel(QUEUE);
    let run = move || drop_all(&receiver);
    if let Err(error) = std::thread::Builder::new().name("sluice-release".to_owned()).spawn(run) {
        // The receiver went with the closure, so every thing will be handed back.
        tracing::warn!(%error, "cannot start the thread that releases guests' memory");
    }
    sender
}

fn drop_all(things: &Receiver<Thing>) {
    while let Ok(thing) = things.recv() {
        drop(thing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::Sender;
    use std::thread::{self, ThreadId};
    use std::time::Duration;

    /// Says which thread dropped it.
    struct Witness(Sender<ThreadId>);

    impl Drop for Witness {
        fn drop(&mut self) {
            let _ = self.0.send(thread::current().id());
        }
    }

    #[test]
    fn things_are_dropped_elsewhere() {
        let (sender, receiver) = std::sync::mpsc::channel();
        slow(Witness(sender));
        let dropped_by = receiver.recv_timeout(Duration::from_secs(60)).expect("dropped");
        assert_ne!(dropped_by, thread::current().id());
    }
}
