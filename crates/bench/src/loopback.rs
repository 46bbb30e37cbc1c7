//! The floor of NVMe/TCP: exchanges of two processors over TCP on the loopback device, with the bytes of
//! commands, whose content is not looked at.
//!
//! One thread is the host, one the controller. Each sends all bytes that it has to send in one call, as far
//! as there is room, and receives in one call. Each waits for nothing but the other. The sent bytes are in
//! the cache.

use super::cell::{Mix, Shape};
use super::cores::{self, Cores};
use super::tally::rate;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a command capsule without data, and of a response or the header of data (TCP Transport 3.6).
const CAPSULE: usize = 72;
const HEADER: usize = 24;

/// Maximum bytes of a call.
const SENT_MAX: usize = 1 << 20;
const RECEIVED_MAX: usize = 256 << 10;

/// Bytes that are exchanged for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exchange {
    request: usize,
    response: usize,
    /// Exchanges in flight.
    depth: usize,
}

impl Exchange {
    /// Returns the exchange for the commands of a cell. Data that a controller requests is sent without the
    /// request, whose bytes count in the response: that round trip is NVMe's.
    pub(super) fn of(shape: &Shape) -> Self {
        let (data, depth) = (shape.block_size.0 as usize, shape.queue_depth.0 as usize);
        let (request, response) = match shape.mix {
            Mix::READ => (CAPSULE, HEADER + data),
            _ if data <= sluice_controller::IN_CAPSULE_MAX as usize => (CAPSULE + data, HEADER),
            _ => (CAPSULE + HEADER + data, HEADER + HEADER),
        };
        Self { request, response, depth }
    }

    /// Returns the exchanges a second.
    pub(super) fn measure(self, time: Duration, cores: &Cores) -> io::Result<f64> {
        let start = Instant::now();
        let count = self.run(cores, |_| start.elapsed() >= time)?;
        Ok(rate(count, start.elapsed()))
    }

    /// Runs until `is_over` returns true for the number of exchanges. Returns that number.
    fn run(self, cores: &Cores, is_over: impl Fn(u64) -> bool + Send) -> io::Result<u64> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        let (mut host, mut controller) = (End::new(near)?, End::new(listener.accept()?.0)?);
        thread::scope(|scope| {
            scope.spawn(|| {
                cores::pin(cores.reactor);
                // The controller's thread ends with the host.
                while let Ok(requests) = controller.turn(self.request) {
                    controller.unsent += requests * self.response;
                }
            });
            let host = scope.spawn(|| {
                cores::pin(cores.host);
                let done = self.ask(&mut host, is_over);
                let _ = host.socket.shutdown(Shutdown::Both);
                done
            });
            host.join().unwrap_or_else(|_| Err(io::Error::other("a thread of the floor has ended")))
        })
    }

    /// Runs the host's thread. Returns the number of exchanges.
    fn ask(self, host: &mut End, is_over: impl Fn(u64) -> bool) -> io::Result<u64> {
        let mut done = 0;
        host.unsent = self.depth * self.request;
        while !is_over(done) {
            let responses = host.turn(self.response)?;
            host.unsent += responses * self.request;
            done += responses as u64;
        }
        Ok(done)
    }
}

/// An end of the connection.
struct End {
    socket: TcpStream,
    outbox: Vec<u8>,
    inbox: Vec<u8>,
    /// Bytes still to be sent.
    unsent: usize,
    /// Received bytes of an incomplete message.
    part: usize,
}

impl End {
    fn new(socket: TcpStream) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        Ok(Self { socket, outbox: vec![0; SENT_MAX], inbox: vec![0; RECEIVED_MAX], unsent: 0, part: 0 })
    }

    /// Sends pending bytes. Returns the number of messages of `message` bytes that have arrived, or an error
    /// at the end of the connection.
    fn turn(&mut self, message: usize) -> io::Result<usize> {
        const FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
        if self.unsent > 0 {
            let bytes = &self.outbox[..self.unsent.min(SENT_MAX)];
            self.unsent -= moved(send(&self.socket, bytes, FLAGS))?;
        }
        let received = recv(&self.socket, &mut self.inbox[..], RecvFlags::DONTWAIT).map(|(_, count)| count);
        if received == Ok(0) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let bytes = self.part + moved(received)?;
        self.part = bytes % message;
        Ok(bytes / message)
    }
}

/// Returns the bytes that were sent or received; zero if the call would have to wait.
fn moved(result: Result<usize, Errno>) -> io::Result<usize> {
    match result {
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::shape;

    const ANYWHERE: Cores = Cores { reactor: None, host: None };

    #[test]
    fn a_command_has_its_bytes() {
        let exchange = |request, response| Exchange { request, response, depth: 32 };
        assert_eq!(Exchange::of(&shape(4096, 32, Mix::READ)), exchange(72, 4120));
        assert_eq!(Exchange::of(&shape(4096, 32, Mix::WRITE)), exchange(4168, 24));
        assert_eq!(Exchange::of(&shape(128 << 10, 32, Mix::WRITE)), exchange(131_168, 48));
    }

    /// Covers messages of any size, and more bytes at a time than the kernel takes.
    #[test]
    fn what_is_asked_is_answered() {
        for (request, response, depth) in
            [(72, 4120, 1), (4168, 24, 32), (72, 131_096, 128), (131_168, 48, 128)]
        {
            let exchange = Exchange { request, response, depth };
            let done = exchange.run(&ANYWHERE, |done| done >= 300).expect("a connection");
            assert!(done >= 300, "{exchange:?}");
        }
    }
}
