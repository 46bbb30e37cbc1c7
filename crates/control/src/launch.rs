//! The rights that a function's process loses before its program starts. They are the same for every program.
//!
//! The daemon starts this program first, as the function's user. It gives up all rights that it can and
//! executes the function's program in its own process, so a hostile program never has more. The remaining
//! rights are those of the user of the process: an untrusted function needs a user of its own.

use landlock::{
    ABI, Access, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, path_beneath_rules,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};
use std::ffi::OsString;
use std::fs::read_dir;
use std::io;
use std::path::{Path, PathBuf};

/// Bytes of address space: enough for the arena, an interpreter and the memory of a key derivation.
pub const ADDRESS_SPACE: u64 = 8 << 30;

/// Maximum number of open files of a process.
pub const FILES: u64 = 256;

/// Maximum number of processes and threads of a user that only functions have.
pub const PROCESSES: u64 = 256;

/// Restrictions of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restrictions {
    /// Files and folders that the process can neither open nor list, by Landlock. Folders above them cannot
    /// be listed, either.
    pub hidden: Vec<PathBuf>,
    /// Words of the command. Where a word names a file, its folder can be listed, since interpreters search
    /// there for the rest of a program. All folders below that folder can be listed, too, even hidden ones;
    /// their files stay hidden.
    pub command: Vec<OsString>,
    /// Whether the process has a user other than the daemon's, so that the processes of that user can be
    /// counted.
    pub has_own_user: bool,
}

impl Restrictions {
    /// Restricts this thread for good. Call it in a process with one thread, before it executes another
    /// program.
    ///
    /// A kernel without Landlock hides no file.
    ///
    /// # Errors
    /// The kernel refuses a restriction that it supports.
    pub fn apply(&self) -> io::Result<()> {
        set_no_new_privs(true)?;
        drop_capabilities()?;
        self.limit()?;
        if self.hidden.is_empty() {
            return Ok(());
        }
        allow_files(&all_but(&self.hidden), &folders_of(&self.command)).map_err(io::Error::other)
    }

    fn limit(&self) -> io::Result<()> {
        let processes = self.has_own_user.then_some((Resource::Nproc, PROCESSES));
        let limits = [
            (Resource::As, ADDRESS_SPACE),
            (Resource::Nofile, FILES),
            (Resource::Core, 0),
            // The daemon recognizes functions and their child processes by this limit.
            (Resource::Msgqueue, 0),
        ];
        for (resource, most) in limits.into_iter().chain(processes) {
            let there = getrlimit(resource).maximum.unwrap_or(u64::MAX);
            let most = Some(most.min(there));
            setrlimit(resource, Rlimit { current: most, maximum: most })?;
        }
        Ok(())
    }
}

/// Drops all capabilities. No program that is executed later gains any, not even as root.
fn drop_capabilities() -> io::Result<()> {
    for capability in CapabilitySet::all().iter() {
        // The kernel refuses users without CAP_SETPCAP, and capabilities that it does not support.
        let _ = remove_capability_from_bounding_set(capability);
    }
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
}

/// The newest Landlock ABI that is requested; an older kernel applies the rules that it supports.
const LANDLOCK: ABI = ABI::V5;

/// Restricts this thread and its later threads to the files and folders of `allowed`, with all below them.
/// The thread can also list `listed` and all folders below.
fn allow_files(allowed: &[PathBuf], listed: &[PathBuf]) -> Result<(), RulesetError> {
    let all = AccessFs::from_all(LANDLOCK);
    let rules = Ruleset::default().handle_access(all)?.create()?;
    let rules = rules.add_rules(path_beneath_rules(allowed, all))?;
    rules.add_rules(path_beneath_rules(listed, AccessFs::ReadDir))?.restrict_self().map(drop)
}

/// Returns the folders of files that words of a command name. For a link it also returns the folder of its
/// target.
fn folders_of(command: &[OsString]) -> Vec<PathBuf> {
    let files = command.iter().map(Path::new).filter(|path| path.is_file());
    let folders = files.flat_map(|path| {
        let real = path.canonicalize().ok();
        [Some(path), real.as_deref()].map(|path| path.and_then(Path::parent)?.canonicalize().ok())
    });
    folders.flatten().collect()
}

/// Returns whether the limits of a process, as shown in /proc, are those of a function. The process cannot
/// raise them again, and its children inherit them.
pub fn is_limited(limits: &str) -> bool {
    limits.lines().any(|line| {
        let values = line.strip_prefix("Max msgqueue size").unwrap_or_default();
        values.split_whitespace().take(2).eq(["0", "0"])
    })
}

/// Returns every path that has none of `hidden` in it or below it, as few as possible. Entries that are
/// created later beside these paths are not included.
fn all_but(hidden: &[PathBuf]) -> Vec<PathBuf> {
    let hidden: Vec<_> = hidden.iter().filter_map(|path| path.canonicalize().ok()).collect();
    let mut allowed = Vec::new();
    add_all_but(Path::new("/"), &hidden, &mut allowed);
    allowed
}

fn add_all_but(path: &Path, hidden: &[PathBuf], allowed: &mut Vec<PathBuf>) {
    if hidden.iter().any(|it| path.starts_with(it)) {
        return;
    }
    if !hidden.iter().any(|it| it.starts_with(path)) {
        return allowed.push(path.to_owned());
    }
    // A folder that this user cannot list stays hidden as a whole.
    for entry in read_dir(path).into_iter().flatten().flatten() {
        // A symbolic link has no rights of its own.
        if entry.file_type().is_ok_and(|kind| !kind.is_symlink()) {
            add_all_but(&entry.path(), hidden, allowed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_the_hidden_is_allowed() {
        let folder = std::env::temp_dir().join(format!("sluice-launch-{}", std::process::id()));
        for name in ["a/secret/deep", "a/beside", "b"] {
            std::fs::create_dir_all(folder.join(name)).expect("room on the disk");
        }
        std::os::unix::fs::symlink(folder.join("a/secret"), folder.join("link")).expect("room on the disk");
        let real = folder.canonicalize().expect("it is there");
        let allowed = all_but(&[folder.join("link"), folder.join("nowhere")]);
        let reaches = |path: &Path| allowed.iter().any(|it| path.starts_with(it));
        for name in ["a/beside", "a/beside/later", "b"] {
            assert!(reaches(&real.join(name)), "{name}");
        }
        for name in ["a/secret", "a/secret/deep", "a", "link", ""] {
            assert!(!reaches(&real.join(name)), "{name}");
        }
        assert!(reaches(Path::new("/proc")) && !reaches(Path::new("/")));
        assert!(all_but(&[]).iter().eq([Path::new("/")]));
        std::fs::remove_dir_all(folder).expect("it is ours");
    }

    #[test]
    fn folders_of_the_programs_files_can_be_listed() {
        let folder = std::env::temp_dir().join(format!("sluice-launch-of-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("real")).expect("room on the disk");
        std::fs::write(folder.join("real/guard.py"), "").expect("room on the disk");
        std::os::unix::fs::symlink("real/guard.py", folder.join("guard")).expect("room on the disk");
        let words = ["/nowhere/python3".into(), "--key".into(), folder.join("guard").into_os_string()];
        let real = folder.canonicalize().expect("it is there");
        assert_eq!(folders_of(&words), [real.clone(), real.join("real")]);
        assert!(folders_of(&[folder.clone().into_os_string()]).is_empty());
        std::fs::remove_dir_all(folder).expect("it is ours");
    }

    #[test]
    fn functions_are_recognized_by_their_limits() {
        let of =
            |values: &str| format!("Limit  Soft  Hard  Units\nMax msgqueue size         {values} bytes\n");
        assert!(is_limited(&of("0                    0                   ")));
        assert!(!is_limited(&of("0                    819200              ")));
        assert!(!is_limited(&of("819200               819200              ")) && !is_limited(""));
        let own = std::fs::read_to_string("/proc/self/limits").expect("it is mounted");
        assert!(!is_limited(&own), "{own}");
    }
}
