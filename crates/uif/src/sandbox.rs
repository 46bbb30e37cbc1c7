//! Confinement of a function process before its first command.
//!
//! The process keeps the memory and the sockets it has. It can open no file but those below the paths it
//! names, and only to read them (Landlock). It can make no other system calls than those of its loop
//! (seccomp); another one kills it. A kernel without Landlock confines it by system calls alone.

use landlock::{
    ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetCreatedAttr, path_beneath_rules,
};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
    apply_filter_all_threads,
};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

/// Newest rules of Landlock that are requested; an older kernel applies the rules it has.
const LANDLOCK: ABI = ABI::V5;

/// Makes this process not dumpable: other processes cannot read its memory, and it leaves no core. Call
/// before it opens a key.
pub fn hide() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Confines this process for good: system calls of all its threads, and files of this thread and those it
/// starts. Start other threads afterwards. `readable` are files and directories that later drives need
/// opened; `serves_many` permits later drives.
pub fn confine(readable: &[PathBuf], serves_many: bool) -> io::Result<()> {
    limit_files(readable).map_err(io::Error::other)?;
    limit_calls(serves_many).map_err(io::Error::other)
}

fn limit_files(readable: &[PathBuf]) -> Result<(), landlock::RulesetError> {
    let rules = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .create()?;
    let readable = path_beneath_rules(readable, AccessFs::ReadFile | AccessFs::ReadDir);
    rules.add_rules(readable)?.restrict_self().map(drop)
}

/// System calls of the loop, of the allocator and of the end of a process.
#[rustfmt::skip]
const LOOP: &[i64] = &[
    // Doorbells, sockets, sleep and time.
    libc::SYS_read, libc::SYS_write, libc::SYS_close, libc::SYS_ppoll, libc::SYS_futex, libc::SYS_clock_gettime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    // Memory.
    libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mremap, libc::SYS_mprotect, libc::SYS_madvise, libc::SYS_brk,
    libc::SYS_getrandom,
    // Signals, and the end.
    libc::SYS_rt_sigreturn, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigaction, libc::SYS_sigaltstack,
    libc::SYS_restart_syscall, libc::SYS_gettid, libc::SYS_getpid, libc::SYS_exit, libc::SYS_exit_group,
];

/// System calls to let in another drive.
#[rustfmt::skip]
const DRIVES: &[i64] = &[
    libc::SYS_accept4, libc::SYS_sendto, libc::SYS_recvmsg,
    // The files that its options name, and memory for keys.
    libc::SYS_openat, libc::SYS_fstat, libc::SYS_newfstatat, libc::SYS_statx, libc::SYS_lseek, libc::SYS_geteuid,
    libc::SYS_memfd_secret, libc::SYS_ftruncate, libc::SYS_mlock,
];

/// Permitted commands of fcntl(2); some are used when a descriptor is closed with assertions.
#[rustfmt::skip]
const FCNTL: &[i32] = &[
    libc::F_DUPFD_CLOEXEC, libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_GET_SEALS, libc::F_ADD_SEALS,
];

fn limit_calls(serves_many: bool) -> Result<(), seccompiler::Error> {
    let drives = if serves_many { DRIVES } else { &[] };
    let mut rules: BTreeMap<_, _> = LOOP.iter().chain(drives).map(|call| (*call, Vec::new())).collect();
    let only = |argument, value| {
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)?;
        SeccompRule::new(vec![condition])
    };
    // A process may end only itself: the daemon may have the same user.
    rules.insert(libc::SYS_tgkill, vec![only(0, std::process::id().into())?]);
    // Other commands of this call could have signals sent for the process.
    let commands = FCNTL.iter().map(|command| only(1, u64::from(command.cast_unsigned())));
    rules.insert(libc::SYS_fcntl, commands.collect::<Result<_, _>>()?);
    let machine = TargetArch::try_from(std::env::consts::ARCH)?;
    let filter = SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, machine)?;
    let program: seccompiler::BpfProgram = filter.try_into()?;
    apply_filter_all_threads(&program)
}
