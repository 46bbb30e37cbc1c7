//! Findings about the configuration, the folders and the daemon.

use super::Finding;
use crate::check::check;
use rustix::fs::statvfs;
use sluice_api::Version;
use sluice_api::client::Client;
use sluice_control::config::{Config, load};
use sluice_spec::error::ApiError;
use sluice_spec::paths::is_writable_folder;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Free bytes of the state folder below which a change of the drives may fail.
const ROOM: u64 = 64 << 20;

/// Mode bit that lets every user write to a folder.
const EVERY_USER: u32 = 0o002;

/// Requests the daemon's version.
pub(super) fn daemon(client: &Client) -> Result<Version, ApiError> {
    crate::cli::converse(client.get::<Version>("/v1/version"))
}

pub(super) fn examine(
    config: Option<&Path>,
    daemon: &Result<Version, ApiError>,
    socket: &Path,
) -> Vec<Finding> {
    let mut findings = vec![configuration(config)];
    let loaded = config.map_or_else(|| Ok(Config::default()), load);
    if let Ok(places) = loaded.and_then(|config| config.daemon.places()) {
        findings.push(folder("state folder", &places.state));
        findings.push(folder("sockets folder", &places.sockets));
    }
    findings.push(api(daemon, socket, env!("CARGO_PKG_VERSION")));
    findings
}

fn configuration(file: Option<&Path>) -> Finding {
    let topic = "configuration";
    let Some(file) = file else {
        return Finding::ok(topic, "there is no file: every key has its default");
    };
    match check(file, None) {
        Ok(_) => Finding::ok(topic, format!("nothing is wrong with {}", file.display())),
        Err(error) => Finding::missing(
            topic,
            error.error.lines().next().unwrap_or_default(),
            format!("sluice serve --check -c {} lists all faults", file.display()),
        ),
    }
}

/// Examines a folder of the daemon: its owner, mode and free room.
fn folder(topic: &'static str, path: &Path) -> Finding {
    let shown = path.display();
    let Ok(found) = path.metadata() else {
        return match is_writable_folder(path) {
            Ok(()) => Finding::ok(topic, format!("the daemon will create {shown}")),
            Err(error) => Finding::missing(
                topic,
                error.error,
                "start the daemon as a service, or configure another folder",
            ),
        };
    };
    if found.mode() & EVERY_USER != 0 {
        return Finding::missing(
            topic,
            format!("every user may write to {shown}, so the daemon refuses it"),
            format!("chmod o-w {shown}"),
        );
    }
    match statvfs(path).map(|room| room.f_bavail * room.f_frsize) {
        Ok(room) if room < ROOM => Finding::missing(
            topic,
            format!("{shown} has {} KiB free, and changes of drives are stored there", room >> 10),
            "delete files of that file system, or grow it",
        ),
        _ => Finding::ok(
            topic,
            format!("{shown} belongs to user {}, with the mode {:o}", found.uid(), found.mode() & 0o7777),
        ),
    }
}

/// Examines the daemon's answer.
fn api(daemon: &Result<Version, ApiError>, socket: &Path, own: &str) -> Finding {
    match daemon {
        Ok(Version { version, pid }) if version == own => {
            Finding::ok("daemon", format!("version {version} answers, process {pid}"))
        }
        Ok(Version { version, .. }) => Finding::slower(
            "daemon",
            format!("the daemon has the version {version}, and this tool {own}"),
            "systemctl restart sluice, without running virtual machines",
        ),
        Err(error) => Finding::missing(
            "daemon",
            format!("none answers at {}: {}", socket.display(), error.error),
            "systemctl start sluice, or `sluice serve`",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;
    use std::fs::{Permissions, create_dir, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_versions_are_compared() {
        let of = |version: &str| Ok(Version { version: version.into(), pid: 7 });
        assert_eq!(api(&of("1.0"), Path::new("/s"), "1.0").state, State::Ok);
        assert_eq!(api(&of("0.9"), Path::new("/s"), "1.0").state, State::Slower);
        let found = api(&Err(ApiError::invalid("no such file")), Path::new("/s"), "1.0");
        assert_eq!(found.state, State::Missing);
        assert!(found.text.contains("/s") && found.text.contains("no such file"), "{found:?}");
    }

    #[test]
    fn a_folder_for_every_user_is_refused() {
        let root = tempfile::tempdir().expect("a folder");
        let path = root.path().join("state");
        assert!(folder("state folder", &path).text.contains("will create"));
        create_dir(&path).expect("room on the disk");
        assert_eq!(folder("state folder", &path).state, State::Ok);
        set_permissions(&path, Permissions::from_mode(0o777)).expect("it is ours");
        let found = folder("state folder", &path);
        assert_eq!(found.state, State::Missing);
        assert_eq!(found.remedy, Some(format!("chmod o-w {}", path.display())));
    }

    #[test]
    fn the_first_fault_of_a_configuration_is_reported() {
        let root = tempfile::tempdir().expect("a folder");
        let file = root.path().join("sluice.toml");
        write(&file, "[daemon]\nblok = 1\n").expect("room on the disk");
        let found = configuration(Some(&file));
        assert_eq!(found.state, State::Missing);
        assert!(found.text.contains("blok"), "{found:?}");
        assert_eq!(configuration(None).state, State::Ok);
    }
}
