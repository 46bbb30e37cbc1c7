//! Checks of drives that change nothing: no file is created, no socket bound, no remote machine connected, no
//! process started.

use super::classifier::{Programs, SharedMaps};
use super::drive::known_hosts;
use super::labels::Labels;
use super::remote::tls_keys;
use super::shared::check_room;
use super::target::{file_config, file_problem};
use super::thin_pool::examine;
use super::{dhchap, drive::in_words};
use rustix::fs::{Access, FlockOperation, access, flock};
use rustix::io::Errno;
use sluice_control::listen::check_length;
use sluice_crypt::Given;
use sluice_functions::make;
use sluice_memory::machine;
use sluice_spec::error::ApiError;
use sluice_spec::paths::{Places, is_writable_folder};
use sluice_spec::{
    DriveSpec, FunctionSpec, NvmeSpec, NvmeTcpSpec, Provenance, SharedKind, SharedSpec, StackSpec, Target,
    UifSpec,
};
use sluice_targets::{FileIdentity, Memory, probe_lease};
use sluice_uif::Options;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Examination of one drive after the other, which gathers their faults.
#[derive(Debug)]
pub struct Examination<'a> {
    places: &'a Places,
    /// Whether a resource in use counts as a fault: true if no daemon runs here that may be its user.
    pub in_use: bool,
    /// Files that drives write to, each with its drive.
    files: HashMap<FileIdentity, String>,
    pub faults: Vec<ApiError>,
    /// Findings that do not keep a drive from opening, but may be mistakes.
    pub notes: Vec<String>,
}

impl<'a> Examination<'a> {
    pub fn new(places: &'a Places, in_use: bool) -> Self {
        Self { places, in_use, files: HashMap::new(), faults: Vec::new(), notes: Vec::new() }
    }

    /// Stores the fault of an outcome, if it is one, with its subject `about`.
    pub fn note<T>(&mut self, about: &str, outcome: Result<T, ApiError>) -> Option<T> {
        outcome.map_err(|problem| self.faults.push(problem.about(about))).ok()
    }

    /// Checks that the machine has the memory of the pools, and the files of thin ones. A daemon that runs has taken
    /// its pools already, so only the memory of the whole machine counts then.
    pub fn pools(&mut self, pools: &[SharedSpec]) {
        let memory = if self.in_use { machine::available_memory() } else { machine::memory() };
        self.faults.extend(check_room(pools, memory).err());
        for pool in pools.iter().filter(|pool| pool.kind == SharedKind::Thin) {
            self.note(&format!("shared `{}`", pool.name), examine(pool, self.in_use));
        }
    }

    /// Checks a drive whose description is valid by itself.
    pub fn drive(&mut self, drive: &DriveSpec) {
        let name = format!("drive `{}`", drive.name);
        for stack in drive.stacks() {
            self.stack(&drive.name, &format!("{name}, {}", stack.about), &stack);
        }
        if let Some(classifier) = &drive.classifier {
            let loaded = Programs::load(classifier, 1, &[], &SharedMaps::default());
            self.note(&name, loaded);
        }
        if let Some(tcp) = &drive.tcp {
            if let Some(keys) = &tcp.tls_keys {
                self.note(&name, tls_keys(Some(keys)));
            }
            let uses_credential =
                tcp.hosts.iter().filter_map(|host| host.dhchap()).any(|dhchap| dhchap.uses_credential());
            if !self.lacks_credentials(&name, uses_credential) {
                self.note(&name, known_hosts(drive));
            }
        }
        if let Some(folder) = drive.pool.as_ref().and_then(|pool| pool.folder.as_deref()) {
            self.note(&format!("{name}, pool"), is_writable_folder(folder));
        }
        for socket in self.places.drive_sockets(&drive.name, drive.sockets()) {
            let socket = check_length(&socket).and_then(|()| self.check_socket(&socket));
            self.note(&name, socket);
        }
    }

    fn stack(&mut self, drive: &str, about: &str, stack: &StackSpec) {
        let target = stack.spec.target().map_err(ApiError::from);
        if let Some(target) = self.note(about, target) {
            self.target(about, &target, stack.spec.block_size);
        }
        self.note(about, Labels::check(&stack.spec, drive));
        for function in &stack.spec.functions {
            if let FunctionSpec::Uif(uif) = function {
                self.function(&format!("{about}, function {}", uif.about()), uif);
            }
        }
    }

    fn target(&mut self, about: &str, target: &Target, block_size: u32) {
        match target {
            Target::Null { .. } | Target::MemoryPool { .. } | Target::Thin { .. } => {}
            Target::Memory { size } => {
                let mapped = Memory::new(size.0).map(drop);
                self.note(about, mapped.map_err(|error| super::target::no_memory(*size, &error)));
            }
            Target::File(file) => {
                if let Some(lease) = &file.lease {
                    self.note(about, probe_lease(lease).map_err(|error| file_problem(&error)));
                }
                let found = file_config(file, block_size).probe(self.in_use);
                let Some(found) = self.note(about, found.map_err(|error| file_problem(&error))) else {
                    return;
                };
                if found.tail > 0 {
                    let (path, tail) = (file.path.display(), found.tail);
                    self.notes.push(format!("{about}: the last {tail} bytes of {path} fill no block of {block_size}, and are not seen"));
                }
                if !file.read_only {
                    self.own(about, &file.path, found.identity);
                }
            }
            Target::Nvme(nvme) => {
                self.note(about, check_device(nvme));
            }
            Target::NvmeTcp(remote) => self.remote(about, remote),
        }
    }

    /// Adds a fault if another drive already writes to the file.
    fn own(&mut self, about: &str, path: &Path, identity: FileIdentity) {
        match self.files.get(&identity) {
            None => drop(self.files.insert(identity, about.to_owned())),
            Some(owner) => {
                let problem = format!("{} is the file of {owner} already", path.display());
                self.faults.push(
                    ApiError::conflict(problem)
                        .about(about)
                        .hint("give each a file of its own, or say read_only = true where it is only read"),
                );
            }
        }
    }

    fn remote(&mut self, about: &str, remote: &NvmeTcpSpec) {
        if let Some(keys) = &remote.tls_keys {
            self.note(about, tls_keys(Some(keys)));
        }
        let Some(spec) = &remote.dhchap else { return };
        if !self.lacks_credentials(about, spec.uses_credential()) {
            self.note(about, dhchap::terms(spec));
        }
    }

    fn function(&mut self, about: &str, spec: &UifSpec) {
        let Some(provenance) = self.note(about, spec.provenance().map_err(ApiError::from)) else { return };
        match provenance {
            Provenance::Here(kind) | Provenance::Own(kind) => {
                if self.lacks_credentials(about, spec.options.contains_key("credential")) {
                    return;
                }
                let options = Options::new(spec.options.clone());
                let made = make(&kind, &options, &Given::default()).map(drop);
                self.note(about, made.map_err(ApiError::invalid));
            }
            Provenance::Program(path, _) => {
                self.note(about, check_program(&path));
            }
            Provenance::Socket(path) => {
                self.note(about, check_listener(&path));
            }
        }
    }

    /// Returns whether a credential is needed that systemd passes to the daemon, and not to this process.
    fn lacks_credentials(&mut self, about: &str, uses_credential: bool) -> bool {
        let lacks = uses_credential && std::env::var_os("CREDENTIALS_DIRECTORY").is_none();
        if lacks {
            self.notes
                .push(format!("{about}: its credential can only be looked at from within the daemon's unit"));
        }
        lacks
    }

    /// Checks that the socket of a drive can be created.
    fn check_socket(&self, socket: &Path) -> Result<(), ApiError> {
        match socket.symlink_metadata() {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(ApiError::conflict(format!("{} exists and is not a socket", socket.display()))
                    .hint("move it away, or configure another folder for sockets"));
            }
            _ => {}
        }
        let Some(Ok(folder)) = socket.parent().filter(|_| self.in_use).map(File::open) else { return Ok(()) };
        // The serving process holds this lock for as long as it serves the socket.
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                Err(ApiError::conflict(format!("another process serves {}", socket.display()))
                    .hint("stop that one, or configure another folder for sockets"))
            }
            _ => Ok(()),
        }
    }
}

/// Checks that a device exists and is of the right kind. The device is not opened, because it may allow only
/// one user.
fn check_device(nvme: &NvmeSpec) -> Result<(), ApiError> {
    if let Some(socket) = &nvme.vfio_user {
        return check_listener(socket);
    }
    if let Some(path) = &nvme.generic {
        let found = path.metadata().map_err(|error| ApiError::io("look at", path, &error))?;
        if !found.file_type().is_char_device() {
            return Err(ApiError::invalid(format!("{} is not a character device", path.display()))
                .hint("a namespace that the kernel drives is a device such as /dev/ng0n1"));
        }
        return access(path, Access::READ_OK | Access::WRITE_OK)
            .map_err(|errno| ApiError::io("open", path, &errno.into()));
    }
    let address = nvme.pci.clone().unwrap_or_default();
    match Path::new("/sys/bus/pci/devices").join(&address).exists() {
        true => Ok(()),
        false => {
            Err(in_words(&format!("there is no PCI function {address}"))
                .hint("`lspci -D` lists those there are"))
        }
    }
}

fn check_program(path: &Path) -> Result<(), ApiError> {
    let found = path.metadata().map_err(|error| ApiError::io("find the program", path, &error))?;
    let may_run = found.is_file() && access(path, Access::EXEC_OK).is_ok();
    match may_run {
        true => Ok(()),
        false => Err(ApiError::invalid(format!("{} is not a program", path.display()))
            .hint("name a file that the daemon's user may execute")),
    }
}

/// Checks that the path is a socket. Does not connect, because the listener might accept only one connection.
fn check_listener(path: &Path) -> Result<(), ApiError> {
    let found = path.metadata().map_err(|error| ApiError::io("find the socket", path, &error))?;
    match found.file_type().is_socket() {
        true => Ok(()),
        false => Err(ApiError::invalid(format!("{} is not a socket", path.display()))
            .hint("name the socket that the other process listens at")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(path: &Path) -> Result<(), ApiError> {
        let spec = serde_json::json!({ "generic": path });
        check_device(&serde_json::from_value(spec).expect("it is a device's"))
    }

    #[test]
    fn a_generic_device_is_a_character_device() {
        assert!(generic(Path::new("/dev/null")).is_ok());
        let file = tempfile::NamedTempFile::new().expect("room");
        let folder = file.path().parent().expect("it has one");
        for path in [file.path(), folder] {
            let refused = generic(path).expect_err("it is none").error;
            assert!(refused.ends_with("is not a character device"), "{refused}");
        }
        assert!(generic(&folder.join("no such device")).is_err());
    }
}
