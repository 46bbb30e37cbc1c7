//! A device in another process: whose socket may be gone while it is still at work.

use crate::loss::Stubborn;
use crate::rig::{Drive, LIMIT, Scratch, eventually, start_reactor};
use sluice_command::Layer;
use sluice_host::{Controller, Deadline, DmaBuffer, QueueLayout, QueuePair, entry};
use sluice_nvme::Status;
use sluice_targets::{Address, NvmeConfig, NvmeControl, OnLoss, PreparedNvme};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Folder in which the other process serves its device. Files are orders, which the process removes when they
/// are done.
const SERVE_IN: &str = "SLUICE_TEST_SERVE_IN";
const KEEP: &str = "keep";
const DRAIN: &str = "drain";

/// Runs the other process, which has this test alone.
#[test]
fn serves_a_device() {
    let Some(directory) = std::env::var_os(SERVE_IN).map(PathBuf::from) else { return };
    let reactor = start_reactor();
    let keeps = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&keeps);
    let device = Drive::serve(&reactor, directory.join("device"), 512, |_, _| Box::new(Stubborn(told)));
    let obey = |order: &str| {
        eventually(order, || directory.join(order).exists());
        match order {
            KEEP => keeps.store(true, Ordering::Relaxed),
            _ => device.ask(|endpoint| endpoint.drain(sluice_reactor::now_ns())),
        }
        std::fs::remove_file(directory.join(order)).expect("the order");
    };
    obey(KEEP);
    obey(DRAIN);
    // Until it is killed.
    std::thread::sleep(LIMIT);
}

struct Server(Child);

impl Server {
    fn start(directory: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("our own name"));
        command.args(["--exact", "elsewhere::serves_a_device"]).env(SERVE_IN, directory);
        let server = Self(command.stdout(Stdio::null()).spawn().expect("started"));
        eventually("it serves", || directory.join("device/cntrl").exists());
        server
    }

    fn order(directory: &Path, order: &str) {
        std::fs::write(directory.join(order), "").expect("an order");
        eventually("it is obeyed", || !directory.join(order).exists());
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A drive with a read on a device whose server has disconnected, and still executes the read.
struct Left {
    scratch: Scratch,
    server: Server,
    control: NvmeControl,
    queue: QueuePair,
    held: u16,
    _memory: DmaBuffer,
    _guest: Controller,
    _drive: Drive,
}

impl Left {
    fn new() -> Self {
        let scratch = Scratch::new();
        let above = start_reactor();
        let server = Server::start(scratch.path());
        let socket = scratch.path().join("device/cntrl");
        let config = NvmeConfig {
            on_loss: OnLoss::Fail,
            timeout: Duration::from_secs(3),
            ..NvmeConfig::new(Address::VfioUser(socket.clone()), 1)
        };
        // A socket exists before its server listens.
        let mut opened = PreparedNvme::open(&config);
        eventually("it lets us in", || {
            if opened.is_err() {
                opened = PreparedNvme::open(&config);
            }
            opened.is_ok()
        });
        let seed = opened.expect("just seen");
        let control = seed.control();
        let make = move |task, io: &sluice_reactor::Io| -> Box<dyn Layer> {
            Box::new(seed.build(task, io, 0).expect("room for a file"))
        };
        let drive = Drive::serve(&above, scratch.path().join("disk"), 512, make);
        let mut guest = drive.guest();
        let memory = guest.memory().allocate(4096).expect("memory");
        let mut queue = guest.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
        let read = |queue: &mut QueuePair| {
            let cid = queue.submit_prp(entry::read(1, 0, 8), memory.range(0, 4096)).expect("room");
            queue.ring().expect("rung");
            cid
        };
        eventually("the device is shown the memory", || {
            let before = control.status().copied;
            let cid = read(&mut queue);
            assert!(wait(&mut queue, cid).is_success());
            control.status().copied == before
        });
        Server::order(scratch.path(), KEEP);
        let sent = control.status().sent;
        let held = read(&mut queue);
        eventually("the device has it", || control.status().sent > sent);
        Server::order(scratch.path(), DRAIN);
        eventually("the socket is gone", || !socket.exists());
        eventually("the device is given up", || control.status().losses == 1);
        Self { scratch, server, control, queue, held, _memory: memory, _guest: guest, _drive: drive }
    }

    /// Checks for long enough that the target tries several times to reconnect.
    fn is_not_answered(&mut self) {
        std::thread::sleep(Duration::from_secs(1));
        self.queue.reap(|_| panic!("the device may still write"));
        assert!(!self.control.status().connected);
    }

    fn fails(&mut self) {
        let status = wait(&mut self.queue, self.held);
        assert!(status.same_code(Status::INTERNAL_PATH_ERROR), "{status:?}");
    }
}

fn wait(queue: &mut QueuePair, cid: u16) -> Status {
    let deadline = Deadline::after(LIMIT, "a read");
    queue.wait(cid, &deadline, drop).expect("answered").status()
}

#[test]
fn a_server_that_takes_leave_has_not_ended() {
    let mut left = Left::new();
    left.is_not_answered();
    left.server.kill();
    left.fails();
}

#[test]
fn a_server_in_the_place_of_another_does_not_answer_for_it() {
    let mut left = Left::new();
    let _next = Server::start(left.scratch.path());
    left.is_not_answered();
    left.server.kill();
    left.fails();
    eventually("it is connected to", || left.control.status().connected);
}
