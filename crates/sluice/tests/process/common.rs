//! A daemon in a folder of its own, and the tool that calls it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sluice_host::{Controller, Mode, Namespace, QueueLayout, Settings, VfioUser};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_sluice");

/// Time limit, longer than any step takes; only a test that fails waits for it.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// Script that executes a program with another boot identifier of the machine.
const WITH_BOOT_ID: &str = "mount --bind \"$1\" /proc/sys/kernel/random/boot_id && shift && exec \"$@\"";

/// A `sluice serve` process, with its folder.
pub(crate) struct Daemon {
    pub(crate) folder: tempfile::TempDir,
    child: Option<Child>,
    /// Process that has taken over from `child`.
    successor: Mutex<Option<Successor>>,
    /// Process in whose network and user namespaces the daemon runs.
    inside: Option<u32>,
    /// File whose content the daemon reads as the machine's boot identifier. Needs root.
    pub(crate) boot: Option<PathBuf>,
}

impl Daemon {
    /// Starts a daemon with these drives declared.
    pub(crate) fn start(drives: &str) -> Self {
        Self::start_in(None, drives)
    }

    /// Starts a daemon in the namespaces of this process.
    pub(crate) fn start_in(inside: Option<u32>, drives: &str) -> Self {
        Self::start_at(tempfile::tempdir().expect("a folder"), inside, drives)
    }

    /// Starts a daemon in this folder and in the namespaces of this process.
    pub(crate) fn start_at(folder: tempfile::TempDir, inside: Option<u32>, drives: &str) -> Self {
        let mut daemon = Self { folder, child: None, successor: Mutex::default(), inside, boot: None };
        daemon.declare("", drives);
        daemon.restart();
        daemon
    }

    /// Writes the configuration for the next start.
    pub(crate) fn declare(&self, settings: &str, drives: &str) {
        let text = format!(
            "[daemon]\napi = \"api.sock\"\nstate = \"state\"\nsockets = \"drives\"\n{settings}\n{drives}"
        );
        std::fs::write(self.config(), text).expect("room on the disk");
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.folder.path().join("sluice.toml")
    }

    pub(crate) fn api(&self) -> PathBuf {
        self.folder.path().join("api.sock")
    }

    pub(crate) fn socket(&self, drive: &str) -> PathBuf {
        self.folder.path().join("drives").join(drive).join("cntrl")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).expect("it was started")
    }

    /// Starts the daemon again, and waits until it answers.
    pub(crate) fn restart(&mut self) {
        self.restart_by(&[]);
    }

    /// Starts the daemon by a program that executes it, such as `prlimit` with its options.
    pub(crate) fn restart_by(&mut self, program: &[&str]) {
        assert!(self.child.is_none(), "it runs");
        let log = File::create(self.folder.path().join("log")).expect("room on the disk");
        let mut command = match (self.inside, &self.boot) {
            (None, None) if !program.is_empty() => {
                let mut command = Command::new(program[0]);
                command.args(&program[1..]).arg(BINARY);
                command
            }
            (None, None) => Command::new(BINARY),
            (None, Some(boot)) => {
                let mut inside = Command::new("unshare");
                inside.args(["-m", "sh", "-c", WITH_BOOT_ID, "sh"]).arg(boot).arg(BINARY);
                inside
            }
            (Some(process), boot) => {
                let mut inside = Command::new("nsenter");
                inside.args(["-t", &process.to_string(), "-U", "-n", "--preserve-credentials"]);
                if let Some(boot) = boot {
                    inside.args(["unshare", "-m", "sh", "-c", WITH_BOOT_ID, "sh"]).arg(boot);
                }
                inside.arg(BINARY);
                inside
            }
        };
        let child = command
            .arg("serve")
            .arg("-c")
            .arg(self.config())
            .env_remove("SLUICE_API")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the binary is there");
        self.child = Some(child);
        wait_for("the API", || std::os::unix::net::UnixStream::connect(self.api()).is_ok());
    }

    /// Runs the tool with these words.
    pub(crate) fn run(&self, words: &[&str]) -> Output {
        tool(&self.api(), words)
    }

    /// Runs the tool, which has to succeed. Returns its standard output.
    pub(crate) fn ok(&self, words: &[&str]) -> String {
        let done = self.run(words);
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
        self.plain(&done.stdout)
    }

    /// Runs the tool, which has to fail. Returns its standard error.
    pub(crate) fn fails(&self, words: &[&str]) -> String {
        let done = self.run(words);
        assert_eq!(done.status.code(), Some(1), "{words:?}");
        assert!(done.stdout.is_empty(), "complaints go to standard error");
        self.plain(&done.stderr)
    }

    /// Returns output in which the folder is DIR, so that it is the same in every run.
    pub(crate) fn plain(&self, bytes: &[u8]) -> String {
        let folder = self.folder.path().display().to_string();
        String::from_utf8(bytes.to_vec()).expect("text").replace(&folder, "DIR")
    }

    /// Upgrades the daemon. Another process serves from then on. An upgrade is called off if commands take 2 s, which they
    /// do on a disk that others flush, too.
    pub(crate) fn upgrade(&self, words: &[&str]) {
        let is_slow = |why: &String| why.contains("something below may be slow");
        let mut upgraded = self.try_upgrade(words);
        for _ in 0..10 {
            if !upgraded.as_ref().is_err_and(is_slow) {
                break;
            }
            upgraded = self.try_upgrade(words);
        }
        upgraded.expect("upgraded");
    }

    pub(crate) fn try_upgrade(&self, words: &[&str]) -> Result<(), String> {
        let done = self.run(&[&["upgrade"][..], words].concat());
        if !done.status.success() {
            return Err(self.plain(&done.stderr));
        }
        let answer = self.plain(&done.stdout);
        let pid = answer.strip_prefix("process ").and_then(|rest| rest.split(' ').next()?.parse().ok());
        let pid = pid.and_then(Pid::from_raw).expect("an identifier");
        let handle = pidfd_open(pid, PidfdFlags::empty()).expect("it runs");
        let former = self.successor().replace(Successor { pid, handle });
        former.into_iter().for_each(|former| former.wait());
        Ok(())
    }

    fn successor(&self) -> MutexGuard<'_, Option<Successor>> {
        self.successor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pid(&self) -> u32 {
        match &*self.successor() {
            Some(successor) => successor.pid.as_raw_nonzero().get().cast_unsigned(),
            None => self.child.as_ref().expect("it runs").id(),
        }
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        self.signal_process(self.pid(), signal);
    }

    /// Returns the process that was started first.
    pub(crate) fn first_pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    pub(crate) fn signal_process(&self, pid: u32, signal: rustix::process::Signal) {
        let pid = Pid::from_raw(pid.cast_signed()).expect("a process");
        // It is not reaped yet, so that the identifier is its own.
        rustix::process::kill_process(pid, signal).expect("it is ours");
    }

    /// Kills the process that has the daemon's places, if there is one: a test may fail because an upgrade has
    /// succeeded.
    fn kill_owner(&self) {
        let owner = std::fs::read_to_string(self.folder.path().join("api.sock.lock")).unwrap_or_default();
        let Some(pid) = owner.trim().parse().ok().and_then(Pid::from_raw) else { return };
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let config = self.config().into_os_string().into_encoded_bytes();
        if words.split(|byte| *byte == 0).any(|word| word == config) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }

    /// Waits until the daemon has ended. Returns the status of the process that was started first.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        if let Some(successor) = self.successor().take() {
            successor.wait();
        }
        let mut child = self.child.take().expect("it runs");
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait().expect("it is ours") {
                return status;
            }
            if start.elapsed() > LIMIT {
                let _ = child.kill();
                panic!("it did not end:\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the daemon as an operator does, by SIGTERM.
    pub(crate) fn stop(&mut self) {
        self.signal(rustix::process::Signal::TERM);
        let status = self.wait();
        assert!(status.success(), "{status}:\n{}", self.log());
    }

    /// Ends the daemon as a crash does, by SIGKILL.
    pub(crate) fn crash(&mut self) {
        self.signal(rustix::process::Signal::KILL);
        self.wait();
    }

    /// Connects a host to a drive.
    pub(crate) fn host(&self, drive: &str) -> Controller {
        self.host_with(drive, Mode::Trapped)
    }

    /// Connects a host that rings its doorbells in this way.
    pub(crate) fn host_with(&self, drive: &str, mode: Mode) -> Controller {
        let start = Instant::now();
        let transport = loop {
            match VfioUser::connect(&self.socket(drive), mode, LIMIT) {
                // A process that another test is just starting may hold the last client's socket open for a
                // moment, until it executes its own program.
                Err(error) if is_taken(&error) && start.elapsed() < LIMIT => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                connected => break connected.expect("a client is let in"),
            }
        };
        Controller::start(Arc::new(transport), Settings { timeout: LIMIT, ..Settings::default() })
            .expect("the controller becomes ready")
    }
}

/// Returns whether the error is that another client has the socket.
fn is_taken(error: &sluice_host::Error) -> bool {
    matches!(error, sluice_host::Error::Connection(_) | sluice_host::Error::Refused(_, Errno::BUSY))
}

/// Process that a daemon has started in its place.
struct Successor {
    pid: Pid,
    handle: OwnedFd,
}

impl Successor {
    /// Waits until the process has ended.
    fn wait(&self) {
        let limit = Timespec::try_from(LIMIT).expect("a time");
        let ended = poll(&mut [PollFd::new(&self.handle, PollFlags::IN)], Some(&limit));
        assert_eq!(ended, Ok(1), "process {} has ended", self.pid);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(successor) = self.successor().take() {
            let _ = pidfd_send_signal(&successor.handle, Signal::KILL);
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.kill_owner();
    }
}

/// Runs the tool for the daemon at a socket.
pub(crate) fn tool(api: &Path, words: &[&str]) -> Output {
    Command::new(BINARY).args(words).env("SLUICE_API", api).output().expect("the binary is there")
}

/// Opens a namespace behind a queue pair of its own.
pub(crate) fn namespace(controller: &mut Controller, nsid: u32) -> Namespace {
    let queue = controller.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
    Namespace::open(controller, nsid, queue).expect("an active namespace")
}

/// Creates a file in memory that can be sealed. Returns it with its path, which is valid while this process
/// has it open.
pub(crate) fn sealable() -> (OwnedFd, String) {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create("image", flags).expect("there is memory");
    let path = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
    (memory, path)
}

pub(crate) fn wait_for(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < LIMIT, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}
