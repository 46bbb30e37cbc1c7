//! The file target on real files and a real ring.

mod chunks;
mod closing;
mod device;
mod errors;
mod lease;
mod model;
mod opening;
mod ranges;
mod shorten;
mod space;

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use sluice_command::{Limits, NodeId, Origin, Request, Slab, Stack};
use sluice_memory::{Segment, SharedRegion};
use sluice_nvme::SubmissionEntry;
use sluice_reactor::{Arm, ReactorConfig, ReactorHandle, Task};

use super::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Size of the host's memory in bytes.
const MEMORY: usize = 16 << 20;

/// A folder that is removed with the test.
pub(super) struct Folder(PathBuf);

impl Folder {
    fn new(parent: &Path) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("sluice-file-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let path = parent.join(name);
        fs::create_dir(&path).expect("a temporary folder can be written");
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Makes a folder among the temporary files, usually on a disk.
    pub(super) fn on_disk() -> Self {
        Self::new(&std::env::temp_dir())
    }

    /// Makes a folder on a file system that does not report the alignment of direct I/O.
    fn in_memory() -> Self {
        Self::new(Path::new("/dev/shm"))
    }

    fn config(&self, name: &str, size: u64) -> FileConfig {
        FileConfig {
            path: self.0.join(name),
            size: Some(size),
            no_space: NoSpace::Fail,
            block_size: 512,
            read_only: false,
            raw: false,
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Part of the data of a command.
#[derive(Debug, Clone, Copy)]
enum DataPart {
    /// Offset in the host's memory and length.
    Memory(usize, u32),
    Bucket(u32),
}

/// Minimal controller around a stack.
struct Host {
    slab: Slab,
    stack: Stack,
    memory: SharedRegion,
    done: Vec<Command>,
    statuses: HashMap<u16, Status>,
    /// Results that replace the kernel's next ones.
    answers: VecDeque<i32>,
    /// Number of results from the kernel so far.
    events: u64,
    /// Time at which all results arrive. `None` for the reactor's time.
    still_ns: Option<u64>,
}

impl Host {
    fn new(target: File) -> Self {
        Self {
            slab: Slab::new(Limits::new(256, 0)).expect("memory"),
            stack: Stack::of(Box::new(target)),
            memory: SharedRegion::new("host", MEMORY).expect("memory"),
            done: Vec::new(),
            statuses: HashMap::new(),
            answers: VecDeque::new(),
            events: 0,
            still_ns: None,
        }
    }

    fn submit(&mut self, cid: u16, request: Request, data: &[DataPart], now_ns: u64) {
        let origin = Origin { cid, ..Origin::default() };
        let command = self.slab.admit(&SubmissionEntry::default(), origin).expect("room");
        let parts = data.iter().map(|part| match *part {
            DataPart::Memory(offset, length) => self.memory.segment(offset, length),
            DataPart::Bucket(length) => Segment::bit_bucket(length),
        });
        let slot = self.slab.slot_mut(&command);
        slot.request = request;
        parts.for_each(|segment| slot.data.push(segment).expect("few segments"));
        self.stack.submit(self.stack.root(), command, &mut self.slab, now_ns);
        self.settle(now_ns);
    }

    fn settle(&mut self, now_ns: u64) {
        self.stack.run_completions(&mut self.slab, now_ns, &mut self.done);
        for command in self.done.drain(..) {
            let slot = self.slab.slot(&command);
            let before = self.statuses.insert(slot.origin.cid, slot.status);
            assert_eq!(before, None, "a command finishes once");
            self.slab.release(command);
        }
    }
}

impl Task for Host {
    fn turn(&mut self, now_ns: u64) -> usize {
        self.stack.expire(&mut self.slab, now_ns);
        self.settle(now_ns);
        0
    }

    fn event(&mut self, token: u64, result: i32, _more: bool, now_ns: u64) {
        assert_eq!(token & !0xffff_ffff, PREFIX);
        let result = self.answers.pop_front().unwrap_or(result);
        let now_ns = self.still_ns.unwrap_or(now_ns);
        self.events += 1;
        self.stack.event(NodeId(0), Ticket(token as u32), result, &mut self.slab, now_ns);
        self.settle(now_ns);
    }

    fn arm(&mut self, _now_ns: u64) -> Arm {
        Arm::Asleep { until: self.stack.deadline_ns() }
    }
}

const PREFIX: u64 = 0x0203_0000_0000;

/// A drive on a reactor, from the view of a test.
struct Drive {
    reactor: ReactorHandle,
    task: TaskId,
}

type Command3 = (u16, Request, Vec<DataPart>);

impl Drive {
    fn new(prepared: PreparedFile) -> Self {
        let reactor = ReactorHandle::start(ReactorConfig::default()).expect("io_uring works here");
        let build = move |task, io: Io| -> Box<dyn Task> {
            Box::new(Host::new(prepared.build(task, &io, PREFIX).expect("room for two files")))
        };
        let task = reactor.call(move |local| local.add(build)).expect("an answer");
        Self { reactor, task }
    }

    fn with<R: Send + 'static>(&self, f: impl FnOnce(&mut Host, u64) -> R + Send + 'static) -> R {
        let task = self.task;
        let run = move |local: &mut sluice_reactor::Local| {
            let now_ns = local.now_ns();
            f(local.task_mut::<Host>(task).expect("the host is there"), now_ns)
        };
        self.reactor.call(run).expect("an answer")
    }

    fn submit(&self, commands: Vec<Command3>) {
        self.with(move |host, now_ns| {
            for (cid, request, data) in commands {
                host.submit(cid, request, &data, now_ns);
            }
        });
    }

    /// Returns the status of a command, once it is finished.
    fn status(&self, cid: u16) -> Status {
        let start = Instant::now();
        loop {
            if let Some(status) = self.with(move |host, _| host.statuses.remove(&cid)) {
                return status;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "command {cid} never finishes");
            thread::sleep(Duration::from_micros(200));
        }
    }

    fn run(&self, request: Request, data: Vec<DataPart>) -> Status {
        self.submit(vec![(u16::MAX, request, data)]);
        self.status(u16::MAX)
    }

    fn flush(&self) -> Status {
        self.run(Request { operation: Operation::Flush, ..Request::default() }, Vec::new())
    }

    fn fill(&self, offset: usize, bytes: Vec<u8>) {
        self.with(move |host, _| host.memory.write(offset, &bytes));
    }

    fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        self.with(move |host, _| {
            let mut bytes = vec![0; length];
            host.memory.read(offset, &mut bytes);
            bytes
        })
    }

    fn stop(self) {
        self.reactor.stop();
    }
}

fn request(operation: Operation, offset: u64, length: u64) -> Request {
    Request { operation, offset, length, ..Request::default() }
}

fn write(offset: u64, length: u64) -> Request {
    request(Operation::Write, offset, length)
}

fn read(offset: u64, length: u64) -> Request {
    request(Operation::Read, offset, length)
}

fn one(offset: usize, length: u32) -> Vec<DataPart> {
    vec![DataPart::Memory(offset, length)]
}

fn open(config: &FileConfig) -> PreparedFile {
    PreparedFile::open(config).expect("the file can be opened")
}
