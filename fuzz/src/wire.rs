//! A vfio-user endpoint and a client of it, driven by hand on one thread.
//!
//! An endpoint can only be created on a reactor's thread, so that an input runs there; but the reactor has no
//! turn before the end of the input. This module sends the endpoint the events of the ring (readability,
//! room, a connection).

use crate::layers::{self, Keeper, Vault};
use crate::scratch;
use sluice_frontend_vfio_user::{Config, DoorbellPolicy, Endpoint, Listener, Status};
use sluice_reactor::{Arm, Local, PollFlags, ReactorConfig, ReactorHandle, Task, TaskId};
use sluice_vfio_user::{Connection, Errno, Error, Header};
use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{OnceLock, mpsc};

/// Turns after which a missing event is an error.
pub const PATIENCE: usize = 2000;

/// Runs an input on the reactor's thread.
pub fn run_on_reactor(data: &[u8], run: fn(&mut Local, &[u8])) {
    static REACTOR: OnceLock<ReactorHandle> = OnceLock::new();
    let reactor = REACTOR.get_or_init(|| {
        let config = ReactorConfig { ring_entries: 256, max_files: 1024, ..ReactorConfig::default() };
        ReactorHandle::start(config).expect("io_uring works here")
    });
    let data = data.to_vec();
    // Waits without a limit: libFuzzer has one, and all of this may be stopped for a while.
    let (done, wait) = mpsc::sync_channel(1);
    let run = move |local: &mut Local| {
        run(local, &data);
        done.send(()).expect("somebody waits");
    };
    reactor.mail(run).expect("there is one mail at a time");
    wait.recv().expect("a panic would have ended the process");
}

/// Source of a completion of the endpoint, by the numbers of its `token` module. A wrong number shows at
/// once: the endpoint would answer nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingEvent {
    Listener = 0,
    Message = 1,
    Room = 2,
    Unmask = 4,
}

/// An endpoint, and the functions of its reactor.
pub struct Wire<'a> {
    local: &'a mut Local,
    task: TaskId,
    directory: PathBuf,
    pub keeper: Arc<Keeper>,
    vault: Vault,
    now_ns: u64,
    /// Number of accepted clients.
    epoch: u32,
}

impl std::fmt::Debug for Wire<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl<'a> Wire<'a> {
    pub fn new(local: &'a mut Local, doorbells: DoorbellPolicy) -> Self {
        let directory = scratch().join("drive");
        let listener = Listener::bind(&directory, 0o600).expect("the directory is ours");
        let (controller, keeper, vault) = layers::drive();
        let config = Config { name: "fuzz".to_owned(), doorbells, ..Config::default() };
        let task = local.add(|task, io| Box::new(Endpoint::new(task, io, listener, controller, config)));
        Self { local, task, directory, keeper, vault, now_ns: 1, epoch: 0 }
    }

    fn endpoint(&mut self) -> &mut Endpoint {
        self.local.task_mut(self.task).expect("it stays until the end")
    }

    pub fn status(&mut self) -> Status {
        self.endpoint().status()
    }

    pub fn turn(&mut self) -> usize {
        let (now_ns, keeper) = (self.now_ns, Arc::clone(&self.keeper));
        let remembered = layers::remember(self.endpoint().device_mut(), &keeper, now_ns);
        remembered + self.endpoint().turn(now_ns)
    }

    /// Advances to the time of the next periodic check, if there is one.
    pub fn pass_time(&mut self) -> bool {
        let now_ns = self.now_ns;
        let due = layers::looks_again_ns(self.endpoint().device_mut(), now_ns);
        due.into_iter().for_each(|due_ns| self.now_ns = due_ns);
        due.is_some()
    }

    /// Arms the endpoint, as the reactor does before sleep.
    pub fn arm(&mut self) -> Arm {
        let now_ns = self.now_ns;
        let armed = self.endpoint().arm(now_ns);
        self.endpoint().disarm();
        armed
    }

    pub fn wait(&mut self, ns: u64) {
        self.now_ns = self.now_ns.saturating_add(ns);
    }

    /// Sends an event of the ring to the endpoint.
    pub fn send_event(&mut self, event: RingEvent, epoch: u32, result: i32, more: bool) {
        const OWNER: u64 = 0xff << 40;
        let (token, now_ns) = (OWNER | (event as u64) << 32 | u64::from(epoch), self.now_ns);
        self.endpoint().event(token, result, more, now_ns);
    }

    /// Sends an event with any token.
    pub fn event(&mut self, token: u64, result: i32) {
        let now_ns = self.now_ns;
        self.endpoint().event(token, result, true, now_ns);
    }

    /// Sends an event of the client's socket to the endpoint.
    pub fn deliver(&mut self) {
        self.send_event(RingEvent::Message, self.epoch, i32::from(PollFlags::IN.bits()), true);
        self.send_event(RingEvent::Room, self.epoch, i32::from(PollFlags::OUT.bits()), true);
    }

    /// Answers a command that was held, as the target; returns false if there is none.
    pub fn answer(&mut self) -> bool {
        let token = self.keeper.next();
        token.into_iter().for_each(|token| self.event(token, 0));
        token.is_some()
    }

    /// Connects, and gives the endpoint a turn to accept.
    pub fn connect(&mut self) -> Client {
        let socket = UnixStream::connect(self.directory.join("cntrl")).expect("somebody listens");
        // After an error accept is tried again a while later.
        self.wait(1_000_000_000);
        self.send_event(RingEvent::Listener, 0, i32::from(PollFlags::IN.bits()), true);
        self.turn();
        self.epoch = self.status().counters.clients as u32;
        Client::over(socket)
    }

    /// Waits until the last client is gone with all of its state.
    pub fn close_client(&mut self) {
        self.keeper.pattern.store(0, Relaxed);
        for _ in 0..PATIENCE {
            self.deliver();
            while self.answer() {}
            let status = self.status();
            if self.turn() > 0 {
                continue;
            }
            if !status.connected && status.regions == 0 {
                return;
            }
            self.pass_time();
        }
        panic!("a client that is gone leaves something behind: {:?}", self.status());
    }

    /// Ends the endpoint, which must be orderly after any input.
    pub fn finish(mut self) {
        let now_ns = self.now_ns;
        self.endpoint().drain(now_ns);
        self.close_client();
        assert!(self.endpoint().is_drained());
        self.vault.check_margins();
        let removed = self.local.remove(self.task);
        drop(removed);
        self.check_descriptors();
    }

    /// Checks that descriptors are closed, which threads do that may wait. Late threads are given time; if a
    /// descriptor is never closed, libFuzzer's limit reports it.
    fn check_descriptors(&self) {
        const OFTEN: u32 = 64;
        const MANY: usize = 700;
        thread_local!(static RUNS: Cell<u32> = const { Cell::new(0) });
        if !RUNS.replace(RUNS.get().wrapping_add(1)).is_multiple_of(OFTEN) {
            return;
        }
        let open = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        while open() >= MANY {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

/// Client's end.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    next_id: u16,
}

/// Payload of a reply, or its error.
pub type Reply = Result<Vec<u8>, Errno>;

impl Client {
    pub fn over(socket: UnixStream) -> Self {
        Self { connection: Connection::new(socket), next_id: 0 }
    }

    /// Returns a header with an identifier of its own.
    pub fn header(&mut self, command: sluice_vfio_user::Command) -> Header {
        self.next_id = self.next_id.wrapping_add(1);
        Header::command(self.next_id, command)
    }

    /// Sends a message; bytes without room are kept. Returns false if the other end is gone, or has not read
    /// for too long.
    pub fn send(&mut self, header: Header, payload: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        self.connection.send(header, payload, &[], fds).is_ok()
    }

    /// Sends kept bytes.
    pub fn flush(&mut self) -> bool {
        self.connection.flush().is_ok()
    }

    /// Sends bytes as they are, as far as there is room.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
        let _ = rustix::net::send(&self.connection, bytes, flags);
    }

    /// Returns the next reply, if one has arrived.
    pub fn receive(&mut self) -> Result<Option<(Header, Vec<u8>)>, Error> {
        let message = self.connection.receive()?;
        Ok(message.map(|message| (message.header, message.payload.to_vec())))
    }
}
