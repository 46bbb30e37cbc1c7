//! Default places of files and sockets: the system's for root, the user's own for others.

use crate::error::ApiError;
use rustix::fs::{Access, OFlags, access};
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Environment variable with the API socket, for the tool, and for a daemon that is started from the same
/// shell. The variable is used where neither the command line nor the configuration names the socket.
const API_VARIABLE: &str = "SLUICE_API";

/// The folders and sockets of one daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Socket of the API.
    pub api: PathBuf,
    /// Folder of the drives' sockets: a drive's is `sockets/NAME/cntrl`.
    pub sockets: PathBuf,
    /// Folder of the state file.
    pub state: PathBuf,
}

impl Places {
    /// Fills in places that are not given. For an ordinary user this needs the folders of a login session;
    /// the error names a missing folder.
    pub fn resolve(
        api: Option<PathBuf>,
        sockets: Option<PathBuf>,
        state: Option<PathBuf>,
    ) -> Result<Self, ApiError> {
        let bases = Bases::of_this_process();
        Ok(Self {
            api: match api.or_else(named_api) {
                Some(api) => api,
                None => bases.run("daemon.api")?.join("api.sock"),
            },
            sockets: sockets.map_or_else(|| bases.run("daemon.sockets").map(|run| run.join("drives")), Ok)?,
            state: state.map_or_else(|| bases.state(), Ok)?,
        })
    }

    /// Returns the first socket of a drive.
    pub fn drive_socket(&self, name: &str) -> PathBuf {
        self.drive_sockets(name, 1).swap_remove(0)
    }

    /// Returns the sockets of a drive that has `count` of them, one for each controller.
    pub fn drive_sockets(&self, name: &str, count: usize) -> Vec<PathBuf> {
        let folder = self.sockets.join(name);
        (1..=count).map(|number| socket_folder(&folder, number).join("cntrl")).collect()
    }
}

/// Returns the folder of socket `number`, counted from one, of the drive with this folder. Sockets after the
/// first have folders of their own inside of it.
pub fn socket_folder(folder: &Path, number: usize) -> PathBuf {
    match number {
        1 => folder.to_owned(),
        _ => folder.join(number.to_string()),
    }
}

/// Returns the API socket that the tool uses unless its command line names one.
pub fn default_api() -> PathBuf {
    named_api().unwrap_or_else(usual_api)
}

fn named_api() -> Option<PathBuf> {
    std::env::var_os(API_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Returns the first of the usual places that exists, or else the first.
fn usual_api() -> PathBuf {
    let own = Bases::of_this_process().run.map(|run| run.join("api.sock"));
    let system = Path::new(SYSTEM_RUN).join("api.sock");
    let candidates: Vec<PathBuf> = own.into_iter().chain([system.clone()]).collect();
    let existing = candidates.iter().find(|path| path.exists()).or(candidates.first());
    existing.cloned().unwrap_or(system)
}

/// Opens a regular file for reading. For other kinds of files it returns an error without waiting for their
/// other end.
pub fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// Checks that this process can create files in a folder, or the folder itself.
pub fn is_writable_folder(folder: &Path) -> Result<(), ApiError> {
    let existing =
        folder.ancestors().find(|above| above.symlink_metadata().is_ok()).unwrap_or(Path::new("/"));
    if !existing.is_dir() {
        return Err(ApiError::invalid(format!("{} is not a folder", existing.display()))
            .hint("move it away, or configure another"));
    }
    access(existing, Access::WRITE_OK | Access::EXEC_OK).map_err(|errno| {
        let what = if existing == folder { "write to the folder" } else { "make a folder in" };
        ApiError::io(what, existing, &errno.into())
            .hint("let the daemon's user write there, or configure another")
    })
}

const SYSTEM_RUN: &str = "/run/sluice";
const SYSTEM_STATE: &str = "/var/lib/sluice";

/// Parent folders of the default places, for one user.
#[derive(Debug, PartialEq, Eq)]
struct Bases {
    run: Option<PathBuf>,
    state: Option<PathBuf>,
}

impl Bases {
    fn of_this_process() -> Self {
        let variable =
            |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        if rustix::process::geteuid().is_root() {
            Self { run: Some(SYSTEM_RUN.into()), state: Some(SYSTEM_STATE.into()) }
        } else {
            let runtime = variable("XDG_RUNTIME_DIR").or_else(own_runtime_folder);
            Self::of_user(runtime, variable("XDG_STATE_HOME"), variable("HOME"))
        }
    }

    fn of_user(runtime: Option<PathBuf>, state: Option<PathBuf>, home: Option<PathBuf>) -> Self {
        let state = state.or_else(|| home.map(|home| home.join(".local/state")));
        Self { run: runtime.map(|path| path.join("sluice")), state: state.map(|path| path.join("sluice")) }
    }

    fn run(&self, key: &str) -> Result<PathBuf, ApiError> {
        self.run.clone().ok_or_else(|| {
            ApiError::invalid(format!(
                "this user has no login session, whose folder (XDG_RUNTIME_DIR) is the usual place for {key}"
            ))
            .hint(format!(
                "set {key} in the configuration file, run the daemon as a service or as root, or have a session kept \
                 for the user with `loginctl enable-linger`"
            ))
        })
    }

    fn state(&self) -> Result<PathBuf, ApiError> {
        self.state.clone().ok_or_else(|| {
            ApiError::invalid(
                "neither XDG_STATE_HOME nor HOME is set, so there is no usual place for daemon.state",
            )
            .hint("set daemon.state in the configuration file")
        })
    }
}

/// Returns the folder that a session manager keeps for this user, for a process outside of any session, as
/// one of `su`.
fn own_runtime_folder() -> Option<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let folder = PathBuf::from(format!("/run/user/{uid}"));
    folder.metadata().is_ok_and(|found| found.is_dir() && found.uid() == uid).then_some(folder)
}

/// File with the kernel's identifier of this start of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Returns the identifier of this start of the machine; `None` if the kernel gives none.
pub fn boot_id() -> Option<String> {
    let text = std::fs::read_to_string(BOOT_ID).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_gets_the_places_of_the_session() {
        let bases = Bases::of_user(Some("/run/user/7".into()), None, Some("/home/u".into()));
        assert_eq!(bases.run("daemon.api"), Ok("/run/user/7/sluice".into()));
        assert_eq!(bases.state(), Ok("/home/u/.local/state/sluice".into()));
        let bases = Bases::of_user(None, Some("/s".into()), Some("/home/u".into()));
        assert_eq!(bases.state(), Ok("/s/sluice".into()));
        let problem = bases.run("daemon.api").expect_err("nowhere to put it");
        assert!(problem.error.contains("no login session"), "{problem}");
        assert!(
            problem.hint.is_some_and(|hint| hint.starts_with("set daemon.api in the configuration file"))
        );
    }

    #[test]
    fn what_is_given_needs_no_session() {
        let places = Places::resolve(Some("/a".into()), Some("/b".into()), Some("/c".into()));
        let places = places.expect("nothing left to default");
        assert_eq!(places.drive_socket("demo"), Path::new("/b/demo/cntrl"));
    }
}
