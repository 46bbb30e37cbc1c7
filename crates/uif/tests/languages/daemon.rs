//! Daemon's end of a function's process, under a test's control, with the expected replies beside it.

use crate::exercise::{ALARM_NS, Exercise};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
    socketpair,
};
use sluice_memory::{Buffers, SharedRegion};
use sluice_uif::abi::{CONTROL_BYTES, Header, Hello, MAGIC, Reply, Submission, VERSION, Welcome};
use sluice_uif::ring::{Receiver, Rings, Sender};
use sluice_uif::socket::receive;
use sluice_uif::{Options, Session};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// Small, so that a function often has more replies than the ring has room for.
const ENTRIES: u32 = 16;
/// Commands with data of their own.
pub(crate) const SLOTS: usize = 12;
pub(crate) const SLOT_BYTES: usize = 4096;
pub(crate) const CONTROL_AT: usize = SLOTS * SLOT_BYTES;
const ARENA_BYTES: usize = CONTROL_AT + CONTROL_BYTES + 8 * 4096;
/// Longer than any step takes.
const LIMIT: Duration = Duration::from_secs(30);

/// Other end of the socket.
pub(crate) enum Peer {
    Process(Child),
    /// Thread of this process.
    Thread,
}

impl Peer {
    pub(crate) fn spawn(mut command: Command, socket: OwnedFd) -> Self {
        Self::Process(command.stdin(Stdio::from(socket)).spawn().expect("the program is there"))
    }
}

pub(crate) fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("sockets")
}

/// Function's process that answers, and a function here that gives the expected answers.
pub(crate) struct Daemon {
    peer: Peer,
    socket: Option<OwnedFd>,
    out: Sender,
    back: Receiver,
    doorbell: OwnedFd,
    bell: OwnedFd,
    arena: Buffers,
    model: Session,
    model_arena: Buffers,
}

fn rings() -> Rings {
    let region = SharedRegion::new("rings", Rings::bytes(ENTRIES).expect("a size")).expect("memory");
    let header = Header { magic: MAGIC, version: VERSION, entries: ENTRIES, ..Header::default() };
    region.write(0, header.as_bytes());
    Rings::open(region, VERSION).expect("rings")
}

/// Sends the daemon's Hello, and returns the answer.
fn handshake(
    socket: &OwnedFd,
    rings: &Rings,
    arena: &SharedRegion,
    bells: [&OwnedFd; 2],
    options: &str,
) -> Welcome {
    let hello = Hello {
        magic: MAGIC,
        version: VERSION,
        options: options.len() as u32,
        rings_bytes: rings.region().len() as u64,
        arena_bytes: ARENA_BYTES as u64,
    };
    let message = [hello.as_bytes(), options.as_bytes()].concat();
    let fds = [rings.region().fd(), arena.fd(), bells[0].as_fd(), bells[1].as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    let message = [IoSlice::new(&message)];
    sendmsg(socket, &message, &mut ancillary, SendFlags::empty()).expect("it listens");
    let mut bytes = [0; size_of::<Welcome>()];
    let (length, _) = receive(socket.as_fd(), &mut bytes, Instant::now() + LIMIT).expect("it answers");
    assert_eq!(length, bytes.len());
    Welcome::read_from_bytes(&bytes).expect("its length")
}

impl Daemon {
    /// Returns a connection, or the text of a refusal.
    pub(crate) fn start(peer: Peer, socket: OwnedFd, options: &str) -> Result<Self, String> {
        let rings = rings();
        let arena = SharedRegion::new("arena", ARENA_BYTES).expect("memory");
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bells = [(); 2].map(|()| eventfd(0, flags).expect("a descriptor"));
        let welcome = handshake(&socket, &rings, &arena, [&bells[0], &bells[1]], options);
        assert_eq!((welcome.magic, welcome.version), (MAGIC, VERSION));
        if welcome.refused != 0 {
            return Err(String::from_utf8_lossy(&welcome.words).trim_end_matches('\0').to_owned());
        }
        let function = Exercise::open(&Options::new([("byte".into(), "90".into())])).expect("it is right");
        assert_eq!(welcome.interests, [2, 1, 1, 1, 0, 0, 0, 0]);
        let numbers = (welcome.block_size, welcome.scratch, welcome.transforms, welcome.pool, welcome.size);
        assert_eq!(numbers, (512, 4096, 1, 8 * 4096, 0));
        let (out, back) = rings.daemon();
        let [doorbell, bell] = bells;
        let model_arena = Buffers::new(SharedRegion::new("model", ARENA_BYTES).expect("memory"));
        let model = Session::new(function, ARENA_BYTES);
        let (socket, arena) = (Some(socket), Buffers::new(arena));
        Ok(Self { peer, socket, out, back, doorbell, bell, arena, model, model_arena })
    }

    /// Puts bytes into both arenas.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        self.arena.write(at, bytes);
        self.model_arena.write(at, bytes);
    }

    pub(crate) fn read(&self, at: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.arena.read(at, &mut bytes);
        bytes
    }

    /// Sends these entries to the function, and returns all its replies after comparing them with the
    /// expected ones.
    pub(crate) fn exchange(&mut self, entries: &[Submission]) -> Vec<Reply> {
        for entry in entries {
            self.model.take(entry, &mut self.model_arena, 0);
        }
        self.model.expire(&mut self.model_arena, ALARM_NS);
        let expected: Vec<Reply> = self.model.replies(usize::MAX).collect();
        for entry in entries {
            self.wait_for_room(1);
            self.out.push(entry);
        }
        if self.out.publish() {
            rustix::io::write(&self.doorbell, &1u64.to_ne_bytes()).expect("it is not full");
        }
        let mut said = Vec::new();
        while said.len() < expected.len() {
            said.push(self.recv());
        }
        assert_eq!(said, expected, "to {entries:#?}");
        // Some entries have no reply, so that only the head shows that they were taken.
        self.wait_for_room(ENTRIES as u16);
        assert_eq!(self.back.waiting(), Ok(0), "more than that");
        let whole = |arena: &Buffers| {
            let mut bytes = vec![0; ARENA_BYTES];
            arena.read(0, &mut bytes);
            bytes
        };
        assert!(whole(&self.arena) == whole(&self.model_arena), "other data, after {entries:#?}");
        said
    }

    fn wait_for_room(&self, room: u16) {
        let deadline = Instant::now() + LIMIT;
        while self.out.room() < room {
            assert!(Instant::now() < deadline, "it takes nothing");
            std::thread::yield_now();
        }
    }

    /// Sleeps until there is a reply, as a daemon does.
    fn recv(&mut self) -> Reply {
        let limit = Timespec { tv_sec: LIMIT.as_secs() as i64, tv_nsec: 0 };
        while self.back.waiting().expect("it keeps to the rules") == 0 {
            self.back.request_wakeup();
            if self.back.waiting() == Ok(0) {
                let rung = poll(&mut [PollFd::new(&self.bell, PollFlags::IN)], Some(&limit)).expect("waits");
                assert!(rung > 0, "the function said nothing, or did not ring");
                let _ = rustix::io::read(&self.bell, &mut [0; 8]);
            }
            self.back.cancel_wakeup();
        }
        self.back.take()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The function exits by itself when its daemon is gone.
        self.socket.take();
        if let Peer::Process(child) = &mut self.peer
            && !std::thread::panicking()
        {
            assert!(child.wait().expect("it is ours").success(), "a function ended badly");
        }
    }
}
