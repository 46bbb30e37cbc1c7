//! Letting go of things whose end may take long, on threads that may wait for it.
//!
//! Two threads for the whole process, started when first needed: one for what takes milliseconds (the
//! last reference to a guest's memory), one for what a hostile client may have made endless (closing a
//! file that the client serves). What is endless must not keep what is slow from being released.

use std::mem;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

/// Things that wait for a thread, at most.
const QUEUE: usize = 1024;

type Thing = Box<dyn Send>;

struct Thread {
    name: &'static str,
    sender: OnceLock<SyncSender<Thing>>,
}

static SLOW: Thread = Thread { name: "sluice-release", sender: OnceLock::new() };
static ENDLESS: Thread = Thread { name: "sluice-stranger", sender: OnceLock::new() };

/// Drops what takes time but comes to an end. If the thread cannot keep up, drops it here.
pub(super) fn slow(thing: impl Send + 'static) {
    drop(SLOW.take(Box::new(thing)));
}

/// Drops what may wait for a client. If the thread is stuck already, the thing is never dropped: that
/// leaks descriptors, in numbers bounded by what one client may send before it is disconnected.
pub(super) fn perhaps_never(thing: impl Send + 'static) {
    if let Some(thing) = ENDLESS.take(Box::new(thing)) {
        tracing::warn!("a client's file descriptors cannot be closed and are left open");
        mem::forget(thing);
    }
}

impl Thread {
    /// Hands a thing to the thread, or back.
    fn take(&'static self, thing: Thing) -> Option<Thing> {
        match self.sender.get_or_init(|| self.start()).try_send(thing) {
            Ok(()) => None,
            Err(TrySendError::Full(thing) | TrySendError::Disconnected(thing)) => Some(thing),
        }
    }

    fn start(&'static self) -> SyncSender<Thing> {
        let (sender, receiver) = sync_channel(QUEUE);
        let run = move || receive(&receiver);
        if let Err(error) = std::thread::Builder::new().name(self.name.to_owned()).spawn(run) {
            // The receiver went with the closure, so every thing will be handed back.
            tracing::warn!(%error, thread = self.name, "cannot start a thread that releases resources");
        }
        sender
    }
}

fn receive(receiver: &Receiver<Thing>) {
    while let Ok(thing) = receiver.recv() {
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
    fn each_is_dropped_elsewhere() {
        for release in [slow, perhaps_never] {
            let (sender, receiver) = std::sync::mpsc::channel();
            release(Witness(sender));
            let dropped_by = receiver.recv_timeout(Duration::from_secs(60)).expect("dropped");
            assert_ne!(dropped_by, thread::current().id());
        }
    }
}
