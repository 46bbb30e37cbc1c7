//! Letting go of things whose end takes its time, on a thread that has it: the last reference to a
//! guest's memory takes milliseconds.
//!
//! One thread for the whole process, started when first needed, and others for what comes while that is behind: a client
//! can see to it that it is, and then give back gigabytes. What a client may have made endless is none of its business:
//! that goes to the `closer` of its endpoint.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

/// Things that wait for the thread, at most.
const QUEUE: usize = 1024;

/// Other threads at a time, at most: each has one thing, and few are large.
const MORE: usize = 64;

type Thing = Box<dyn Send>;

static THREAD: OnceLock<SyncSender<Thing>> = OnceLock::new();

/// Other threads that there are.
static OTHERS: AtomicUsize = AtomicUsize::new(0);

/// Drops what takes time but comes to an end. Here only if no thread can be had.
pub(crate) fn drop_later(thing: impl Send + 'static) {
    match THREAD.get_or_init(start).try_send(Box::new(thing)) {
        Ok(()) => {}
        Err(TrySendError::Full(thing) | TrySendError::Disconnected(thing)) => beside(thing),
    }
}

/// Drops it on a thread of its own.
fn beside(thing: Thing) {
    if OTHERS.fetch_add(1, Relaxed) < MORE {
        let run = move || {
            drop(thing);
            OTHERS.fetch_sub(1, Relaxed);
        };
        // One that is not started drops what it was to.
        if std::thread::Builder::new().name("sluice-release".to_owned()).spawn(run).is_ok() {
            return;
        }
    }
    OTHERS.fetch_sub(1, Relaxed);
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
        drop_later(Witness(sender));
        let dropped_by = receiver.recv_timeout(Duration::from_secs(60)).expect("dropped");
        assert_ne!(dropped_by, thread::current().id());
    }

    /// Says when its end begins, which comes when somebody else's does.
    struct Lasting(Sender<()>, Receiver<()>);

    impl Drop for Lasting {
        fn drop(&mut self) {
            let _ = self.0.send(());
            let _ = self.1.recv();
        }
    }

    #[test]
    fn so_they_are_while_many_wait() {
        let (begins, begun) = std::sync::mpsc::channel();
        let (end, lasts) = std::sync::mpsc::channel();
        drop_later(Lasting(begins, lasts));
        begun.recv_timeout(Duration::from_secs(60)).expect("it begins");
        (0..QUEUE).for_each(|_| drop_later(()));
        let (sender, receiver) = std::sync::mpsc::channel();
        drop_later(Witness(sender));
        let dropped_by = receiver.recv_timeout(Duration::from_secs(60)).expect("dropped");
        assert_ne!(dropped_by, thread::current().id());
        drop(end);
    }
}
