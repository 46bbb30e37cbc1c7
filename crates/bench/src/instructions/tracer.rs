//! Counts the instructions of threads of another process by stepping through them.

use super::mark::Mark;
use nix::errno::Errno;
use nix::sys::personality::{self, Persona};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use sluice_spec::error::ApiError;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::str::FromStr;

/// A child process whose threads stop at marks, before and after the counted work.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    said: BufReader<ChildStdout>,
}

/// A thread of the child process.
#[derive(Debug)]
pub(super) struct Thread(Pid);

/// State in which a thread came to rest.
enum Rest {
    At(Mark),
    /// Stop after one step.
    Stepped,
    Ended,
}

impl Process {
    /// Starts a program whose addresses are the same in every run.
    pub(super) fn start(mut command: Command) -> Result<Self, ApiError> {
        let usual = personality::get().map_err(refused)?;
        // The setting is inherited by the child, and kept across its exec.
        personality::set(usual | Persona::ADDR_NO_RANDOMIZE).map_err(refused)?;
        let spawned = command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        personality::set(usual).map_err(refused)?;
        let cannot = |what: &str| ApiError::internal(format!("cannot start a process: {what}"));
        let mut child = spawned.map_err(|error| cannot(&error.to_string()))?;
        let said = child.stdout.take().ok_or_else(|| cannot("it says nothing"))?;
        Ok(Self { child, said: BufReader::new(said) })
    }

    /// Returns the first thread of the process, at its first mark.
    pub(super) fn main_thread(&self) -> Result<Thread, ApiError> {
        Thread::at_mark(Pid::from_raw(self.child.id().cast_signed()))
    }

    /// Reads the next line of the process, which consists of numbers.
    pub(super) fn numbers<const COUNT: usize, T: FromStr>(&mut self) -> Result<[T; COUNT], ApiError> {
        let mut line = String::new();
        let failed = || ApiError::internal("the counted process ended before it said what it should");
        self.said.read_line(&mut line).map_err(|_| failed())?;
        let numbers = line.split_whitespace().map_while(|word| word.parse().ok());
        numbers.collect::<Vec<T>>().try_into().map_err(|_| failed())
    }

    /// Waits for the end of the process, which must be a good one.
    pub(super) fn end(mut self) -> Result<(), ApiError> {
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            other => Err(ApiError::internal(format!("the counted process failed: {other:?}"))),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process has ended already, unless something went wrong.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Thread {
    /// Returns a thread that is, or soon will be, at its first mark.
    pub(super) fn at_mark(id: Pid) -> Result<Self, ApiError> {
        let thread = Self(id);
        match thread.rest()? {
            Rest::At(_) => {}
            _ => return Err(ApiError::internal("the counted process did not stop where it should")),
        }
        // The thread must not outlive this process, also after SIGKILL.
        ptrace::setoptions(id, Options::PTRACE_O_EXITKILL).map_err(refused)?;
        Ok(thread)
    }

    /// Counts the instructions up to the next mark. Returns the mark as well.
    ///
    /// A string instruction is one instruction, however often it repeats: the processor stops at each
    /// repetition, with the program counter where it was.
    pub(super) fn count(&self) -> Result<(u64, Mark), ApiError> {
        let (mut count, mut last) = (0, None);
        loop {
            ptrace::step(self.0, None).map_err(refused)?;
            let at = match self.rest()? {
                Rest::At(mark) => return Ok((count, mark)),
                Rest::Stepped => self.program_counter()?,
                Rest::Ended => return Err(ApiError::internal("the counted process ended in the middle")),
            };
            count += u64::from(last != Some(at));
            last = Some(at);
        }
    }

    /// Lets the thread run to its next mark; returns `None` if it has ended instead.
    pub(super) fn run_on(&self) -> Result<Option<Mark>, ApiError> {
        ptrace::cont(self.0, None).map_err(refused)?;
        match self.rest()? {
            Rest::At(mark) => Ok(Some(mark)),
            Rest::Stepped => Err(ApiError::internal("the counted process stopped where it should not")),
            Rest::Ended => Ok(None),
        }
    }

    /// Ends the tracing of the thread.
    pub(super) fn let_go(self) -> Result<(), ApiError> {
        ptrace::detach(self.0, None).map_err(refused)
    }

    fn rest(&self) -> Result<Rest, ApiError> {
        let status = waitpid(self.0, Some(WaitPidFlag::__WALL)).map_err(refused)?;
        let rest = match status {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => Some(Rest::Stepped),
            WaitStatus::Stopped(_, signal) => Mark::of(signal).map(Rest::At),
            WaitStatus::Exited(_, 0) => Some(Rest::Ended),
            _ => None,
        };
        rest.ok_or_else(|| ApiError::internal(format!("the counted process failed: {status:?}")))
    }

    fn program_counter(&self) -> Result<u64, ApiError> {
        let registers = ptrace::getregs(self.0).map_err(refused)?;
        #[cfg(target_arch = "x86_64")]
        return Ok(registers.rip);
        #[cfg(not(target_arch = "x86_64"))]
        return Ok(registers.pc);
    }
}

fn refused(errno: Errno) -> ApiError {
    let problem = ApiError::internal(format!("cannot step through another process: {errno}"));
    match errno {
        Errno::EPERM | Errno::ENOSYS => {
            problem.hint("ptrace(2) and personality(2) must be allowed; containers often forbid them")
        }
        _ => problem,
    }
}
