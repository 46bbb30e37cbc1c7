//! Deferred drop of objects that take time to release: the last reference to a guest's memory takes
//! milliseconds.
//!
//! The process has one drop thread, started when first needed. While that thread is behind, each further
//! object gets a thread of its own: a client can keep the drop thread behind and then release gigabytes. A
//! client may be able to make the close of a descriptor endless. Such descriptors do not come here; the
//! endpoint's `deferred_close` takes them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

/// Objects that may wait for the drop thread.
const QUEUE: usize = 1024;

/// Further threads at a time: each drops one object, and few objects are large.
const MORE: usize = 64;

type Thing = Box<dyn Send>;

static THREAD: OnceLock<SyncSender<Thing>> = OnceLock::new();

/// Number of further threads.
static OTHERS: AtomicUsize = AtomicUsize::new(0);

/// Drops an object whose drop takes time but ends. The caller's thread drops the object only if no thread can
/// be started.
pub fn drop_later(thing: impl Send + 'static) {
    match THREAD.get_or_init(start).try_send(Box::new(thing)) {
        Ok(()) => {}
        Err(TrySendError::Full(thing) | TrySendError::Disconnected(thing)) => beside(thing),
    }
}

/// Drops an object on a thread of its own.
fn beside(thing: Thing) {
    if OTHERS.fetch_add(1, Relaxed) < MORE {
        let run = move || {
            drop(thing);
            OTHERS.fetch_sub(1, Relaxed);
        };
        // A spawn that fails drops the closure, and with it the object.
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
        // The closure held the receiver, so every send fails and returns its object.
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

    /// Object that sends the identifier of the thread that drops it.
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

    /// Object that reports the begin of its drop, which lasts until the other sender is dropped.
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
