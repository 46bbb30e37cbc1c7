//! The floor of NVMe/TCP: what two processors can tell one another over TCP on the loopback device, with as many
//! bytes as a command has, and nobody who looks at them.
//!
//! One thread is the host, one the controller. Each sends all it has to say in one call, as far as there is room, and
//! takes what has come in one; neither waits for anything but the other. What is sent lies in the cache.

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

/// Bytes of a call at most.
const SENT_MAX: usize = 1 << 20;
const RECEIVED_MAX: usize = 256 << 10;

/// What goes to and fro for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exchange {
    request: usize,
    response: usize,
    /// Under way at a time.
    depth: usize,
}

impl Exchange {
    /// That of the commands of a cell. Data that a controller asks for is sent unasked, with the bytes of the asking
    /// behind it: the turn that it takes is NVMe's.
    pub(super) fn of(shape: &Shape) -> Self {
        let (data, depth) = (shape.block_size.0 as usize, shape.queue_depth.0 as usize);
        let (request, response) = match shape.mix {
            Mix::READ => (CAPSULE, HEADER + data),
            _ if data <= sluice_controller::IN_CAPSULE_MAX as usize => (CAPSULE + data, HEADER),
            _ => (CAPSULE + HEADER + data, HEADER + HEADER),
        };
        Self { request, response, depth }
    }

    /// Exchanges a second.
    pub(super) fn measure(self, time: Duration, cores: &Cores) -> io::Result<f64> {
        let start = Instant::now();
        let count = self.run(cores, |_| start.elapsed() >= time)?;
        Ok(rate(count, start.elapsed()))
    }

    /// Goes on until `is_over` says so of the number of exchanges, which is returned.
    fn run(self, cores: &Cores, is_over: impl Fn(u64) -> bool + Send) -> io::Result<u64> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        let (mut host, mut controller) = (End::new(near)?, End::new(listener.accept()?.0)?);
        thread::scope(|scope| {
            scope.spawn(|| {
                cores::pin(cores.reactor);
                // It ends with the host.
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

    /// The host's thread.
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

/// One end of the connection.
struct End {
    socket: TcpStream,
    outbox: Vec<u8>,
    inbox: Vec<u8>,
    /// Bytes that are to be sent.
    unsent: usize,
    /// Bytes that came of a message that is not complete.
    part: usize,
}

impl End {
    fn new(socket: TcpStream) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        Ok(Self { socket, outbox: vec![0; SENT_MAX], inbox: vec![0; RECEIVED_MAX], unsent: 0, part: 0 })
    }

    /// Sends what there is to send, and returns how many messages of so many bytes have come. An error at the end.
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

/// Bytes that were sent or received; none if that has to wait.
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

    /// Of any size, and more at a time than the kernel takes.
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
