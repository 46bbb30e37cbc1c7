//! Durable state of the daemon: drives created through the API, and changes of declared drives made through
//! it.
//!
//! Changes that hosts made to a drive are in a file per drive (`hosts`); the rest is in the state file.
//!
//! The state file is one header line and a JSON body. It is replaced as a whole: written beside, synced, and
//! renamed over the old file, which stays as the previous version (`replace`). A file that is torn or was
//! tampered with is refused, never dropped.

mod applying;
mod budget;
mod history;
mod hosts;
mod objects;
mod pool;
mod replace;
mod reserved;
mod storage;
mod text;
mod unflushed;

pub use applying::Applying;
pub use budget::StoreBudget;
pub use hosts::{HostFile, HostState};
pub use objects::KeptObject;
pub use pool::{Attached, Created, Pooled};
pub use reserved::{Reserved, SavedRegistrant};
pub use storage::{Identified, KnownStorage, Storage};
pub use unflushed::Unflushed;

use crate::exclusive::Exclusive;
use crate::listen::make_folder;
pub use replace::{Disk, FileSystem};
use replace::{Failure, Replacer, Version};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use sluice_functions::QosLimits;
use sluice_spec::error::ApiError;
use sluice_spec::size::Size;
use sluice_spec::{AnaSpec, ClassifierSpec, DriveSpec, Layout, TargetSpec};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum size of a state file that is read, bytes.
const BYTES_MAX: u64 = 64 << 20;

/// The state file.
const STATE: &str = "drives.state";

/// The folder of the files of drives' hosts.
const HOSTS: &str = "hosts";

/// The content of the state file. It holds records of hosts only in the single-file format of older daemons.
/// The next start moves these records into files per drive ([`HostState`]).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Saved {
    /// Drives created through the API, as they are now.
    pub drives: Vec<DriveSpec>,
    /// Sizes given through the API to namespaces of declared drives.
    pub resized: Vec<Resized>,
    /// Classifiers given through the API to declared drives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classified: Vec<Classified>,
    /// Functions moved, attached and detached through the API in namespaces of declared drives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arranged: Vec<Arranged>,
    /// Limits given through the API to namespaces of declared drives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limited: Vec<Limited>,
    /// Groups created or changed through the API.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<SavedGroup>,
    /// Thin pools grown through the API.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grown: Vec<GrownPool>,
    /// Classifiers that were detached for their errors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub detached: Vec<Detached>,
    /// Drives with a file of their hosts' changes.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub hosted: BTreeSet<String>,
    /// Namespaces whose block size a host changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub formatted: Vec<Formatted>,
    /// Namespaces whose format a host started and that has not ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub formatting: Vec<Formatting>,
    /// Namespaces with blocks that a host marked by Write Uncorrectable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uncorrectable: Vec<Uncorrectable>,
    /// Drives with a sanitize operation, completed or not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sanitized: Vec<Sanitized>,
    /// Reservations that persist through power loss.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<Reserved>,
    /// States of ANA groups that were set through the API.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ana: Vec<Access>,
    /// Namespaces created by hosts, and attachments of namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<Pooled>,
    /// Jobs that the operator has paused, by identifier.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub paused: BTreeSet<String>,
    /// Targets that were replaced through the API in namespaces of declared drives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<Replaced>,
    /// Targets that the operator has paused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paused_targets: Vec<PausedTarget>,
    /// State from before an apply that has not ended. The next daemon goes back to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applying: Option<Box<Applying>>,
    /// Storage that drives have opened. None if an older daemon without such records wrote the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
}

impl Saved {
    /// Restores the requested state of one drive from `former`. Changes that hosts made meanwhile stay, and
    /// so do the requests for other drives.
    pub fn take_back(&mut self, drive: &str, former: &Saved) {
        take_back(&mut self.drives, &former.drives, |it| it.name == drive);
        take_back(&mut self.resized, &former.resized, |it| it.drive == drive);
        take_back(&mut self.limited, &former.limited, |it| it.drive == drive);
        take_back(&mut self.classified, &former.classified, |it| it.drive == drive);
        take_back(&mut self.arranged, &former.arranged, |it| it.drive == drive);
        take_back(&mut self.detached, &former.detached, |it| it.drive == drive);
        take_back(&mut self.ana, &former.ana, |it| it.drive == drive);
        take_back(&mut self.replaced, &former.replaced, |it| it.drive == drive);
        take_back(&mut self.paused_targets, &former.paused_targets, |it| it.drive == drive);
    }
}

/// Restores the records that belong to a drive.
fn take_back<T: Clone + PartialEq>(now: &mut Vec<T>, former: &[T], is_own: impl Fn(&T) -> bool) {
    let owned = |records: &[T]| records.iter().filter(|it| is_own(it)).cloned().collect::<Vec<_>>();
    let own = owned(former);
    if owned(now) != own {
        now.retain(|it| !is_own(it));
        now.extend(own);
    }
}

/// The states of a drive's ANA groups that are not optimized, in the order they were set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    pub drive: String,
    pub states: Vec<AnaSpec>,
}

/// A namespace of a declared drive that was resized through the API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resized {
    pub drive: String,
    pub nsid: u32,
    /// Size in the configuration at that time. If the configuration has another size now, it was changed
    /// later, and its size applies.
    pub declared: Option<Size>,
    pub size: Size,
}

/// A namespace of a declared drive whose target was replaced through the API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replaced {
    pub drive: String,
    pub nsid: u32,
    /// Target in the configuration at that time; as with [`Resized`].
    pub declared: TargetSpec,
    pub target: TargetSpec,
}

/// A target that the operator has paused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PausedTarget {
    pub drive: String,
    pub nsid: u32,
    /// Seconds after which commands fail; they wait for ever if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail_after_s: Option<u32>,
}

/// A namespace of a declared drive whose limits were changed through the API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limited {
    pub drive: String,
    pub nsid: u32,
    /// Number of the function among those of the namespace with limits, counted from 1.
    pub number: usize,
    /// Limits in the configuration at that time; as with [`Resized`].
    pub declared: QosLimits,
    pub limits: QosLimits,
}

/// A group that was created or changed through the API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedGroup {
    pub name: String,
    /// Limits in the configuration at that time, as with [`Resized`]; none for a group that was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declared: Option<QosLimits>,
    pub limits: QosLimits,
}

/// A thin pool that was grown through the API, and whose size in the configuration is smaller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrownPool {
    pub name: String,
    /// File or block device of the pool.
    pub path: PathBuf,
    pub size: Size,
}

/// A declared drive whose classifier was attached, replaced or detached through the API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Classified {
    pub drive: String,
    /// Classifier in the configuration at that time; as with [`Resized`].
    pub declared: Option<ClassifierSpec>,
    pub classifier: Option<ClassifierSpec>,
}

/// A namespace of a declared drive whose functions were moved, attached or detached through the API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arranged {
    pub drive: String,
    pub nsid: u32,
    /// Layout in the configuration at that time; as with [`Resized`].
    pub declared: Layout,
    #[serde(rename = "arrangement")]
    pub layout: Layout,
}

/// A drive whose classifier was detached for its errors. The record applies as long as the program is the
/// same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Detached {
    pub drive: String,
    pub classifier: ClassifierSpec,
    /// Digest of the object file, since another file may have the same name by now.
    pub digest: String,
    pub namespaces: Vec<u32>,
}

/// A namespace that a host formatted with a block size other than that of its specification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Formatted {
    pub drive: String,
    pub nsid: u32,
    /// Block size in the drive's specification at that time, bytes; as with [`Resized`].
    pub declared: u32,
    /// Block size that the host chose, bytes.
    pub block_size: u32,
}

/// A namespace whose Format NVM has not completed. The next daemon starts the format again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Formatting {
    pub drive: String,
    pub nsid: u32,
    /// Block size after the format, bytes.
    pub block_size: u32,
    /// Targets of the drive when the format started. No other target is erased.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
}

/// Blocks that a host marked by Write Uncorrectable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Uncorrectable {
    pub drive: String,
    pub nsid: u32,
    /// Begin and end of each range, bytes.
    pub ranges: Vec<[u64; 2]>,
}

/// The last sanitize operation of a drive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sanitized {
    pub drive: String,
    /// Command dword 10.
    pub cdw10: u32,
    /// Command dword 11, the overwrite pattern.
    pub pattern: u32,
    pub state: SanitizedState,
    /// Targets of the drive when the operation started; as with [`Formatting`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
}

/// State of a sanitize operation. A running operation starts again with the next daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SanitizedState {
    Running,
    Done,
    Failed,
    GivenUp,
}

/// The folder of the state file, locked by this daemon.
#[derive(Debug)]
pub struct StateFile {
    folder: PathBuf,
    replacer: Mutex<Replacer>,
    /// The folder with the files of drives' hosts. It is open from the start, so that no store needs a
    /// descriptor for it.
    hosts: Arc<File>,
    disk: Arc<dyn Disk>,
    /// Copies of object files that are not removed while a change is in progress.
    kept_objects: Mutex<Vec<PathBuf>>,
    _exclusive: Exclusive,
}

impl StateFile {
    /// Locks the folder for this daemon, and creates it if it does not exist.
    pub fn open(folder: &Path) -> Result<Self, ApiError> {
        Self::open_on(folder, Arc::new(FileSystem))
    }

    pub fn open_on(folder: &Path, disk: Arc<dyn Disk>) -> Result<Self, ApiError> {
        make_folder(folder, 0o700)?;
        let what = format!("the state folder {}", folder.display());
        let exclusive = Exclusive::take(&folder.join("lock"), &what)?;
        let hosts = folder.join(HOSTS);
        make_folder(&hosts, 0o700)?;
        let open = |path: &Path| {
            File::open(path)
                .map(Arc::new)
                .map_err(|error| ApiError::io("open the state folder", path, &error))
        };
        let (held, hosts) = (open(folder)?, open(&hosts)?);
        let replacer = Replacer::new(folder, STATE, held, Arc::clone(&disk));
        Ok(Self {
            folder: folder.to_owned(),
            replacer: Mutex::new(replacer),
            hosts,
            disk,
            kept_objects: Mutex::default(),
            _exclusive: exclusive,
        })
    }

    fn hosts_folder(&self) -> PathBuf {
        self.folder.join(HOSTS)
    }

    fn replacer_of_hosts(&self, name: &str) -> Replacer {
        Replacer::new(&self.hosts_folder(), name, Arc::clone(&self.hosts), Arc::clone(&self.disk))
    }

    fn replacer(&self) -> MutexGuard<'_, Replacer> {
        self.replacer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> PathBuf {
        self.replacer().current.clone()
    }

    fn previous(&self) -> PathBuf {
        self.replacer().previous.clone()
    }

    /// Returns the state that was stored last, or an empty state if none was ever stored.
    pub fn load(&self) -> Result<Saved, ApiError> {
        let (current, previous) = (self.current(), self.previous());
        let found = find(&current, &previous)?;
        // Records of hosts are stored only after the state file lists their drives.
        if found.is_none() && self.has_host_records() {
            return Err(damaged(&current, &previous, "it is missing"));
        }
        let (saved, version) = found.unwrap_or((Saved::default(), Version::None));
        self.replacer().found(version);
        Ok(saved)
    }

    /// Reads the state that a daemon with this folder would [load](Self::load). Creates, locks and changes no
    /// file.
    pub fn peek(folder: &Path) -> Result<Saved, ApiError> {
        let [current, previous] =
            [STATE.to_owned(), format!("{STATE}.previous")].map(|name| folder.join(name));
        Ok(find(&current, &previous)?.map(|(saved, _)| saved).unwrap_or_default())
    }

    /// Replaces the stored state. When this returns, the state survives a power cut.
    ///
    /// # Errors
    /// The next start finds the former state, unless the state is not [settled](Self::is_settled) now.
    pub fn store(&self, saved: &Saved) -> Result<(), ApiError> {
        self.put(saved, false)
    }

    /// Replaces the stored state with a state that applies even if it cannot be stored now. An example is a
    /// request that failed after it was stored. If this fails, the state is not [settled](Self::is_settled).
    pub fn store_owed(&self, saved: &Saved) -> Result<(), ApiError> {
        self.put(saved, true)
    }

    /// Returns false while the next start may find a state other than that in memory. The next store that
    /// succeeds, of any state, settles it.
    pub fn is_settled(&self) -> bool {
        self.replacer().is_settled()
    }

    fn put(&self, saved: &Saved, owed: bool) -> Result<(), ApiError> {
        let bytes = text::encode(saved);
        // A larger file could not be read again, so it must not be written.
        if bytes.len() as u64 > BYTES_MAX {
            return Err(ApiError::conflict(format!(
                "the drives together need {} bytes of the state file, which has at most {BYTES_MAX}",
                bytes.len()
            ))
            .hint("nothing was changed; delete drives, or describe them in fewer words"));
        }
        let mut replacer = self.replacer();
        let was_settled = replacer.is_settled();
        replacer.put(&bytes, owed).map_err(|failure| match failure {
            Failure::Unchanged(error) => ApiError::io("store the state in", &self.folder, &error)
                .hint("nothing was changed; make room on the disk or let the daemon's user write there"),
            Failure::Unknown(error) => {
                let problem = self.unknown(&error);
                // Log the error once, and not at each retry.
                if was_settled {
                    tracing::error!("{}", problem.in_one_line());
                }
                problem
            }
        })
    }

    fn unknown(&self, error: &io::Error) -> ApiError {
        ApiError::io("store the state in", &self.folder, error).hint(
            "this change was not made, but a restart may make it: what was stored before could not be put back. \
             Mend the disk of the state folder, or give the daemon room there and free descriptors, before the \
             daemon is restarted; it tries each second, and logs when the stored state is right again",
        )
    }
}

/// Reads the state file. Returns none if no state was ever stored.
fn find(current: &Path, previous: &Path) -> Result<Option<(Saved, Version)>, ApiError> {
    match read(current) {
        Ok(bytes) => {
            let saved = text::decode(&bytes).map_err(|why| damaged(current, previous, &why))?;
            Ok(Some((saved, Version::of(&bytes))))
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(ApiError::io("read the state file", current, &error))
        }
        // The first store makes no previous version, and later stores never remove the current one.
        Err(_) if previous.exists() => Err(damaged(current, previous, "it is missing")),
        Err(_) => Ok(None),
    }
}

fn damaged(current: &Path, previous: &Path, why: &str) -> ApiError {
    let problem = ApiError::internal(format!("the state file {} cannot be used: {why}", current.display()));
    let former = read(previous).ok().and_then(|bytes| text::decode(&bytes).ok());
    match former {
        Some(former) => problem.hint(format!(
            "the version before the last change is whole ({} created drives); to go back to it: mv {} {}",
            former.drives.len(),
            previous.display(),
            current.display()
        )),
        None => problem.hint(format!(
            "restore it from a backup; to start without the drives it had, move {} away",
            current.display()
        )),
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Creates or empties a file that only the daemon's user can read, since it may hold options of functions.
/// Refuses a symbolic link.
fn create_private(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    File::options().write(true).create(true).truncate(true).mode(0o600).custom_flags(flags).open(path)
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
