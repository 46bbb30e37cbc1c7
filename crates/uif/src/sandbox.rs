//! What a function process gives up before its first command: nearly everything.
//!
//! It keeps the memory and the sockets it has. It can open no file but those below the paths it names, and
//! only to read them (Landlock); it can make no other system calls than those of its loop (seccomp), and
//! one that does is killed. A kernel without Landlock confines it by system calls alone.

use landlock::{
    ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetCreatedAttr, path_beneath_rules,
};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
    apply_filter,
};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

/// The newest rules of Landlock that are asked for; older kernels get what they have.
const LANDLOCK: ABI = ABI::V5;

/// Nobody looks into this process from now on, and it leaves no core. Before it opens a key.
pub fn hide() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Confines this thread and those it starts, for good. `readable` are files, and folders with all below
/// them, that later drives need opened; `serves_many` says that there will be later drives.
pub fn confine(readable: &[PathBuf], serves_many: bool) -> io::Result<()> {
    let landlock = || -> Result<(), landlock::RulesetError> {
        Ruleset::default()
            .handle_access(AccessFs::from_all(LANDLOCK))?
            .handle_access(AccessNet::from_all(LANDLOCK))?
            .create()?
            .add_rules(path_beneath_rules(readable, AccessFs::ReadFile | AccessFs::ReadDir))?
            .restrict_self()
            .map(drop)
    };
    landlock().map_err(io::Error::other)?;
    limit_calls(serves_many).map_err(io::Error::other)
}

/// What the loop, the allocator and the end of a process need.
const LOOP: &[i64] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_ppoll,
    libc::SYS_close,
    libc::SYS_futex,
    libc::SYS_clock_gettime,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigaction,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_tgkill,
    libc::SYS_exit,
    libc::SYS_exit_group,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

/// What letting another drive in needs besides.
const DRIVES: &[i64] = &[
    libc::SYS_accept4,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_lseek,
    libc::SYS_openat,
    libc::SYS_geteuid,
    libc::SYS_memfd_secret,
    libc::SYS_ftruncate,
    libc::SYS_mlock,
];

/// What may be asked of a descriptor: also by its end, with assertions.
const FCNTL: &[i32] = &[
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_GET_SEALS,
    libc::F_ADD_SEALS,
];

fn limit_calls(serves_many: bool) -> Result<(), seccompiler::Error> {
    let drives = if serves_many { DRIVES } else { &[] };
    let mut rules: BTreeMap<_, _> = LOOP.iter().chain(drives).map(|call| (*call, Vec::new())).collect();
    // A process may end itself, and nobody else: the daemon may have the same user.
    let itself = std::process::id().into();
    let itself = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, itself)?;
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![itself])?]);
    // Nor have signals sent for it, which other commands of this call would do.
    let commands = FCNTL.iter().map(|command| {
        let command = u64::from(command.cast_unsigned());
        let command = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, command)?;
        SeccompRule::new(vec![command])
    });
    rules.insert(libc::SYS_fcntl, commands.collect::<Result<_, _>>()?);
    let machine = TargetArch::try_from(std::env::consts::ARCH)?;
    let filter = SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, machine)?;
    let program: seccompiler::BpfProgram = filter.try_into()?;
    apply_filter(&program)
}
