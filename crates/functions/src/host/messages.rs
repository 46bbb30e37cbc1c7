//! Lines that a function's process writes to its standard error, on their way into the daemon's log.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Bytes of the longest line; the rest of a longer one is another line.
const LINE_MAX: usize = 500;

/// Bytes of one read.
const READ_MAX: usize = 16 << 10;

/// Reads of one turn: as many as empty the largest pipe that a process without privileges can make. A process
/// that writes faster waits for its pipe.
const READS_MAX: usize = (1 << 20) / READ_MAX;

/// Lines of one process that are logged in [`WINDOW`]: fewer than the log takes of all functions in that
/// time.
const LINES_MAX: u32 = 40;

const WINDOW: Duration = Duration::from_secs(10);

/// Limit on the logged lines of a process: endless output must not hide the messages of other processes.
#[derive(Debug)]
pub(super) struct LineLimit {
    since: Instant,
    logged: u32,
    left_out: u64,
}

impl LineLimit {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, logged: 0, left_out: 0 }
    }

    /// Returns the number of lines that were left out before this one; none if this one is left out, too.
    pub(super) fn admit(&mut self, now: Instant) -> Option<u64> {
        if now.saturating_duration_since(self.since) >= WINDOW {
            (self.since, self.logged) = (now, 0);
        }
        if self.logged >= LINES_MAX {
            self.left_out += 1;
            return None;
        }
        self.logged += 1;
        Some(self.take_left_out())
    }

    /// Takes the number of left-out lines that were not logged yet.
    pub(super) fn take_left_out(&mut self) -> u64 {
        std::mem::take(&mut self.left_out)
    }
}

/// Daemon's end of the pipe.
#[derive(Debug)]
pub(super) struct Messages {
    pipe: OwnedFd,
    /// Beginning of a line whose end has not come.
    begun: Vec<u8>,
    is_over: bool,
}

impl Messages {
    pub(super) fn new(pipe: OwnedFd) -> io::Result<Self> {
        fcntl_setfl(&pipe, fcntl_getfl(&pipe)? | OFlags::NONBLOCK)?;
        Ok(Self { pipe, begun: Vec::new(), is_over: false })
    }

    /// Returns the pipe to wait for, until all its writers are gone.
    pub(super) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        (!self.is_over).then(|| self.pipe.as_fd())
    }

    /// Passes on all lines that are there. They have no control characters: one line stays one line of the
    /// log, and cannot imitate a message of the daemon.
    pub(super) fn take(&mut self, mut each: impl FnMut(&str)) {
        let mut bytes = [0; READ_MAX];
        for _ in 0..READS_MAX {
            match rustix::io::read(&self.pipe, &mut bytes) {
                Ok(0) => return self.end(each),
                Ok(count) => self.split(&bytes[..count], &mut each),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return,
                Err(_) => return self.end(each),
            }
        }
    }

    /// Passes on the line whose end does not come.
    pub(super) fn end(&mut self, mut each: impl FnMut(&str)) {
        self.is_over = true;
        let line = clean(&std::mem::take(&mut self.begun));
        if !line.is_empty() {
            each(&line);
        }
    }

    fn split(&mut self, bytes: &[u8], mut each: impl FnMut(&str)) {
        for byte in bytes {
            if *byte != b'\n' {
                self.begun.push(*byte);
            }
            if *byte == b'\n' || self.begun.len() >= LINE_MAX {
                let line = clean(&std::mem::take(&mut self.begun));
                if !line.is_empty() {
                    each(&line);
                }
            }
        }
    }
}

/// Returns the text without control characters and without characters that hide or reorder others.
fn clean(bytes: &[u8]) -> String {
    let hides =
        |c: char| matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}');
    let text = String::from_utf8_lossy(bytes);
    text.chars()
        .map(|c| if c.is_control() || hides(c) { ' ' } else { c })
        .collect::<String>()
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(words: &[&[u8]]) -> Vec<String> {
        let (theirs, ours) = rustix::pipe::pipe().map(|(ours, theirs)| (theirs, ours)).expect("a pipe");
        let (mut messages, mut lines) = (Messages::new(ours).expect("a pipe"), Vec::new());
        messages.take(|_| panic!("nothing is there"));
        for word in words {
            rustix::io::write(&theirs, word).expect("there is room");
            messages.take(|line| lines.push(line.to_owned()));
        }
        assert!(messages.pipe().is_some());
        drop(theirs);
        messages.take(|line| lines.push(line.to_owned()));
        assert!(messages.pipe().is_none());
        lines
    }

    #[test]
    fn lines_without_end_are_left_out_and_counted() {
        let began = Instant::now();
        let mut limit = LineLimit::new(began);
        let admitted = (0..1000).filter(|_| limit.admit(began).is_some()).count();
        assert_eq!(admitted, LINES_MAX as usize);
        assert_eq!(limit.admit(began + WINDOW), Some(1000 - u64::from(LINES_MAX)));
        assert_eq!(limit.admit(began + WINDOW), Some(0));
        assert_eq!(limit.take_left_out(), 0);
    }

    #[test]
    fn lines_are_whole_and_plain() {
        assert_eq!(lines(&[b"one\ntw", b"o\n\n", b"the end"]), ["one", "two", "the end"]);
        let forged = lines(&[b"fine\r\x1b[2K2026 ERROR \xe2\x80\xaeall is lost\n\xff\n"]);
        assert_eq!(forged, ["fine  [2K2026 ERROR  all is lost", "\u{fffd}"]);
    }

    #[test]
    fn all_that_fits_into_the_pipe_is_taken() {
        let word = b"x\n".repeat(15_000);
        assert_eq!(lines(&[&word, &word]).len(), 30_000);
        let (ours, theirs) = rustix::pipe::pipe().expect("a pipe");
        let (mut messages, mut count) = (Messages::new(ours).expect("a pipe"), 0);
        rustix::io::write(&theirs, &word).expect("there is room");
        rustix::io::write(&theirs, b"cut").expect("there is room");
        messages.take(|_| count += 1);
        assert_eq!(count, 15_000);
        // Another process may still have the other end.
        messages.end(|line| count += usize::from(line == "cut"));
        assert!(count == 15_001 && messages.pipe().is_none());
    }

    #[test]
    fn a_line_without_an_end_takes_little_memory() {
        let long = lines(&[&[b'x'; 1200]]);
        assert_eq!(long.iter().map(String::len).collect::<Vec<_>>(), [500, 500, 200]);
    }
}
