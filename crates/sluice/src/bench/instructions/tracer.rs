//! Counts another process's instructions by stepping through them.

use crate::problem::Problem;
use nix::errno::Errno;
use nix::sys::personality::{self, Persona};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use std::process::{Child, Command, Stdio};

/// A process of our own that stops itself before and after what is to be counted.
#[derive(Debug)]
pub(super) struct Tracee {
    child: Child,
    pid: Pid,
}

/// Where a process came to rest.
enum Rest {
    /// At one of its own stops.
    Stopped,
    /// After one step.
    Stepped,
    Ended,
}

impl Tracee {
    /// Starts a program whose addresses are the same in every run, and waits for its first stop.
    pub(super) fn start(mut command: Command) -> Result<Self, Problem> {
        let usual = personality::get().map_err(refused)?;
        // Inherited by the child, and kept across its exec.
        personality::set(usual | Persona::ADDR_NO_RANDOMIZE).map_err(refused)?;
        let spawned = command.env_clear().stdin(Stdio::null()).spawn();
        personality::set(usual).map_err(refused)?;
        let child = spawned.map_err(|error| Problem::internal(format!("cannot start a process: {error}")))?;
        let pid = Pid::from_raw(child.id().cast_signed());
        let tracee = Self { child, pid };
        match tracee.rest()? {
            Rest::Stopped => {}
            _ => return Err(Problem::internal("the counted process did not stop where it should")),
        }
        // It must not outlive us, whatever ends us.
        ptrace::setoptions(pid, Options::PTRACE_O_EXITKILL).map_err(refused)?;
        Ok(tracee)
    }

    /// Instructions from one stop to the next.
    ///
    /// A string instruction is one instruction, however often it repeats: the processor stops at each
    /// repetition, with the program counter where it was.
    pub(super) fn count(&self) -> Result<u64, Problem> {
        let (mut count, mut last) = (0, None);
        loop {
            ptrace::step(self.pid, None).map_err(refused)?;
            let at = match self.rest()? {
                Rest::Stopped => return Ok(count),
                Rest::Stepped => self.program_counter()?,
                Rest::Ended => return Err(Problem::internal("the counted process ended in the middle")),
            };
            count += u64::from(last != Some(at));
            last = Some(at);
        }
    }

    /// Lets it run to its next stop. False if it has ended instead.
    pub(super) fn run_on(&self) -> Result<bool, Problem> {
        ptrace::cont(self.pid, None).map_err(refused)?;
        Ok(matches!(self.rest()?, Rest::Stopped))
    }

    fn rest(&self) -> Result<Rest, Problem> {
        match waitpid(self.pid, None).map_err(refused)? {
            WaitStatus::Stopped(_, Signal::SIGSTOP) => Ok(Rest::Stopped),
            WaitStatus::Stopped(_, Signal::SIGTRAP) => Ok(Rest::Stepped),
            WaitStatus::Exited(_, 0) => Ok(Rest::Ended),
            other => Err(Problem::internal(format!("the counted process failed: {other:?}"))),
        }
    }

    fn program_counter(&self) -> Result<u64, Problem> {
        let registers = ptrace::getregs(self.pid).map_err(refused)?;
        #[cfg(target_arch = "x86_64")]
        return Ok(registers.rip);
        #[cfg(not(target_arch = "x86_64"))]
        return Ok(registers.pc);
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        // It has ended already, unless something went wrong.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn refused(errno: Errno) -> Problem {
    let problem = Problem::internal(format!("cannot step through another process: {errno}"));
    match errno {
        Errno::EPERM | Errno::ENOSYS => {
            problem.hint("ptrace(2) and personality(2) must be allowed; containers often forbid them")
        }
        _ => problem,
    }
}
