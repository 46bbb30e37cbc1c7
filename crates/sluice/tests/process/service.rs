//! The daemon as the package starts it: by its unit, with its configuration.

use crate::common::{BINARY, Daemon, tool};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

fn packaged(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Writes the packaged configuration with its places in a folder, and returns the file.
fn configuration(folder: &Path, text: &str) -> PathBuf {
    let here = |path: &str| format!("\"{}{path}", folder.display());
    let text = ["/run/sluice", "/var/lib/sluice"]
        .iter()
        .fold(text.to_owned(), |text, path| text.replace(&format!("\"{path}"), &here(path)));
    let file = folder.join("sluice.toml");
    std::fs::write(&file, text).expect("room on the disk");
    file
}

/// Returns the configuration with all keys that are comments. A sentence has a blank behind its `#`.
fn with_examples(text: &str) -> String {
    let key = |line: &str| {
        line.strip_prefix('#').filter(|rest| !rest.is_empty() && !rest.starts_with(' ')).map(str::to_owned)
    };
    text.lines().map(|line| key(line).unwrap_or_else(|| line.to_owned()) + "\n").collect()
}

fn is_right(file: &Path) {
    let done = tool(Path::new("none"), &["serve", "--check", "-c", &file.display().to_string()]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn the_packaged_configuration_works_untouched() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = packaged("sluice.toml");
    is_right(&configuration(folder.path(), &text));
    let config = sluice_control::config::parse(&text, Path::new("/etc/sluice/sluice.toml"));
    assert!(config.expect("it is right").drives.is_empty());
}

#[test]
fn the_comments_of_the_packaged_configuration_are_right() {
    let folder = tempfile::tempdir().expect("a folder");
    let images = folder.path().join("var/lib/sluice/images");
    std::fs::create_dir_all(images).expect("room on the disk");
    let text = with_examples(&packaged("sluice.toml"));
    // This machine need not have the group, and its port may be taken.
    let text = text.replace("libvirt-qemu", "root").replace("127.0.0.1:4420", "127.0.0.1:0");
    let file = configuration(folder.path(), &text.replace("GiB", "MiB"));
    is_right(&file);
    let config = sluice_control::config::load(&file).expect("it is right");
    let names: Vec<&str> = config.drives.iter().map(|drive| drive.name.as_str()).collect();
    assert_eq!(names, ["disk", "scratch"]);
    assert!(config.drives[0].tcp.is_some(), "{text}");
}

#[test]
fn the_unit_is_one_of_systemds() {
    let folder = tempfile::tempdir().expect("a folder");
    let unit = packaged("sluice.service");
    let file = folder.path().join("sluice.service");
    std::fs::write(&file, unit.replace("/usr/bin/sluice", BINARY)).expect("room on the disk");
    // Each command of the unit is one of the program.
    let commands: Vec<&str> =
        unit.lines().filter_map(|line| line.split_once("=/usr/bin/sluice ")).map(|it| it.1).collect();
    assert_eq!(commands.len(), 2, "{commands:?}");
    for command in commands {
        let done = Command::new(BINARY)
            .args(command.split(' '))
            .arg("--help")
            .output()
            .expect("the binary is there");
        assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
    }
    match Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&file).output() {
        Ok(done) => {
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success() && !said.contains("sluice.service:"), "{said}");
        }
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
    }
}

/// Receives messages to the service manager up to this one.
fn wait_for_message(manager: &UnixDatagram, message: &str) {
    let mut bytes = [0; 4096];
    loop {
        let length = manager.recv(&mut bytes).expect("the daemon sends messages");
        if std::str::from_utf8(&bytes[..length]).is_ok_and(|text| text.lines().any(|line| line == message)) {
            return;
        }
    }
}

#[test]
fn the_service_manager_gets_pings() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    let socket = daemon.folder.path().join("notify");
    let manager = UnixDatagram::bind(&socket).expect("a socket");
    manager.set_read_timeout(Some(std::time::Duration::from_secs(60))).expect("a limit");
    let variable = format!("NOTIFY_SOCKET={}", socket.display());
    daemon.restart_by(&["env", "WATCHDOG_USEC=300000", &variable]);
    wait_for_message(&manager, "READY=1");
    (0..3).for_each(|_| wait_for_message(&manager, "WATCHDOG=1"));
    daemon.stop();
    wait_for_message(&manager, "STOPPING=1");
}

#[test]
fn the_manual_has_a_page_for_each_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let done = tool(Path::new("none"), &["manual", &folder.path().display().to_string()]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let page = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    assert!(page("sluice.1").contains("sluice\\-drive(1)"), "{}", page("sluice.1"));
    assert!(page("sluice-drive-create.1").contains("\\-\\-memory"));
    assert!(page("sluice-manual.1").is_empty() && page("sluice-help.1").is_empty());
}
