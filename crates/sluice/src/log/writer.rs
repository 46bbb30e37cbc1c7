//! A thread that writes, so that a reactor never waits for a full pipe.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;
use tracing_subscriber::fmt::MakeWriter;

/// Number of messages that can wait to be written; further ones are dropped and counted.
const WAITING_MAX: usize = 1024;

/// Time limit of [`Flush`] at the end of the process.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

enum Item {
    Line(Vec<u8>),
    /// A request for a reply once everything before it has been written.
    Mark(SyncSender<()>),
}

/// Queue of formatted messages to the thread.
#[derive(Clone)]
pub(super) struct Sink {
    queue: SyncSender<Item>,
    dropped: Arc<AtomicU64>,
}

/// Handle that waits, when dropped, until earlier messages are written.
#[must_use = "dropped at once it waits for nothing"]
pub struct Flush {
    queue: SyncSender<Item>,
}

impl std::fmt::Debug for Flush {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Flush")
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        let (answer, answered) = sync_channel(1);
        if self.queue.try_send(Item::Mark(answer)).is_ok() {
            let _ = answered.recv_timeout(FLUSH_LIMIT);
        }
    }
}

/// Starts the thread, which writes to standard error until the process ends.
pub(super) fn start() -> (Sink, Flush) {
    start_with(WAITING_MAX, io::stderr())
}

fn start_with(waiting_max: usize, out: impl Write + Send + 'static) -> (Sink, Flush) {
    let (queue, items) = sync_channel(waiting_max);
    let dropped = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&dropped);
    let spawned =
        thread::Builder::new().name("log".to_owned()).spawn(move || write_all(&items, &counted, out));
    // If the thread cannot be started, messages are dropped, and the daemon goes on.
    drop(spawned);
    (Sink { queue: queue.clone(), dropped }, Flush { queue })
}

fn write_all(items: &Receiver<Item>, dropped: &AtomicU64, mut out: impl Write) {
    for item in items {
        // An error is ignored: if standard error is closed, there is nowhere to report it.
        let _ = match item {
            Item::Line(line) => out.write_all(&line),
            Item::Mark(answer) => answer.send(()).map_err(io::Error::other),
        };
        let lost = dropped.swap(0, Relaxed);
        if lost > 0 {
            let _ = writeln!(out, "({lost} messages were dropped, because nobody read fast enough)");
        }
    }
}

impl<'a> MakeWriter<'a> for Sink {
    type Writer = &'a Sink;

    fn make_writer(&'a self) -> &'a Sink {
        self
    }
}

impl Write for &Sink {
    /// Takes one whole message.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.queue.try_send(Item::Line(line.to_vec())).is_err() {
            self.dropped.fetch_add(1, Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_reader_that_does_not_read_holds_up_nobody() {
        let (mut reader, pipe) = io::pipe().expect("a pipe");
        let (sink, flush) = start_with(4, pipe);
        // The lines are far more than a pipe and the queue can take.
        let line = [&[b'x'; 1023][..], b"\n"].concat();
        for _ in 0..1000 {
            (&sink).write_all(&line).expect("it never fails");
        }
        drop((sink, flush));
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("the thread ends");
        let lost: usize = text
            .lines()
            .filter_map(|line| line.strip_prefix('(')?.split(' ').next()?.parse::<usize>().ok())
            .sum();
        let written = text.lines().filter(|line| line.starts_with('x')).count();
        assert!(lost > 0, "more was written than fits");
        assert_eq!(written + lost, 1000);
    }
}
