//! Files that are created once. Other storage behind the same name appears to hosts and to other daemons as
//! another namespace.

use crate::common::{Daemon, namespace, wait_for};
use std::net::TcpListener;
use std::path::Path;

fn drive(name: &str, path: &str, more: &str) -> String {
    format!(
        "[[drive]]\nname = \"{name}\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"{path}\"\nsize = \"8MiB\"\n{more}\n"
    )
}

fn layer(path: &str) -> String {
    format!("{{ target = \"file\", path = \"{path}\", size = \"8MiB\" }}")
}

/// Returns a drive of each kind that has files, all of them in the folder `disk`.
fn all_kinds() -> (Vec<&'static str>, String) {
    let functions = |function: &str, layers: &str| {
        format!(
            "functions = [ {{ kind = \"uif\", function = \"{function}\", place = \"daemon\", layers = [ {layers} ] }} ]"
        )
    };
    let layers = |names: &[&str]| {
        names.iter().map(|name| layer(&format!("disk/{name}"))).collect::<Vec<_>>().join(", ")
    };
    let concat = format!("functions = [ {{ kind = \"concat\", layers = [ {} ] }} ]", layers(&["second"]));
    let drives = [
        drive("plain", "disk/plain", ""),
        drive("concat", "disk/first", &concat),
        drive("mirror", "disk/mirror", &functions("mirror", &layers(&["mirror-copy", "mirror-log"]))),
        drive(
            "snapshot",
            "disk/store",
            "functions = [ { kind = \"uif\", function = \"snapshot\", place = \"daemon\", \
             options = { size = \"4MiB\" } } ]",
        ),
        drive("replicate", "disk/primary", &functions("replicate", &layers(&["copy", "log"]))),
    ];
    (vec!["plain", "concat", "mirror", "snapshot", "replicate"], drives.concat())
}

fn nguid(daemon: &Daemon, drive: &str) -> [u8; 16] {
    let mut host = daemon.host(drive);
    namespace(&mut host, 1).identity().nguid
}

fn write(daemon: &Daemon, drive: &str, byte: u8) {
    let mut host = daemon.host(drive);
    let mut disk = namespace(&mut host, 1);
    disk.write(8, &[byte; 4096]).expect("it is in range");
    disk.flush().expect("nothing is wrong");
}

fn read(daemon: &Daemon, drive: &str) -> u8 {
    let mut host = daemon.host(drive);
    let mut bytes = [1; 4096];
    namespace(&mut host, 1).read(8, &mut bytes).expect("it is in range");
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

#[test]
fn a_missing_mount_gives_no_drive_a_new_file() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    let (names, drives) = all_kinds();
    let disk = daemon.folder.path().join("disk");
    let mounted = daemon.folder.path().join("mounted");
    std::fs::create_dir(&disk).expect("room");
    daemon.declare("", &drives);
    daemon.restart();
    names.iter().for_each(|name| write(&daemon, name, 7));
    daemon.stop();
    std::fs::rename(&disk, &mounted).expect("it is there");
    std::fs::create_dir(&disk).expect("room");
    daemon.restart();
    for name in &names {
        let refused = daemon.fails(&["drive", "open", name]);
        assert!(refused.contains("has had it open") && refused.contains("--make-anew"), "{refused}");
    }
    assert_eq!(std::fs::read_dir(&disk).expect("it is there").count(), 0, "nothing was made");
    std::fs::remove_dir(&disk).expect("it is empty");
    std::fs::rename(&mounted, &disk).expect("it is there");
    for name in &names {
        daemon.ok(&["drive", "open", name]);
        assert_eq!(read(&daemon, name), 7, "{name}");
    }
    daemon.stop();
    std::fs::remove_file(disk.join("plain")).expect("it is there");
    daemon.restart();
    daemon.fails(&["drive", "open", "plain"]);
    daemon.ok(&["drive", "open", "plain", "--make-anew"]);
    assert_eq!(read(&daemon, "plain"), 0);
    daemon.stop();
}

#[test]
fn a_drive_without_room_for_its_file_leaves_none() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("", &drive("plain", "it.img", ""));
    daemon.restart_by(&["prlimit", "--fsize=1048576:unlimited"]);
    let refused = daemon.fails(&["drive", "open", "plain"]);
    assert!(refused.contains("File too large"), "{refused}");
    assert!(!daemon.folder.path().join("it.img").exists());
    daemon.stop();
}

#[test]
fn identifiers_follow_the_storage() {
    let mut daemon = Daemon::start("");
    let folder = daemon.folder.path().to_owned();
    let at = |name: &str| folder.join(name).display().to_string();
    let create = |daemon: &Daemon, path: &str| {
        daemon.ok(&["drive", "create", "it", "--file", path, "--size", "8MiB"]);
        nguid(daemon, "it")
    };
    let delete =
        |daemon: &Daemon| wait_for("it goes", || daemon.run(&["drive", "delete", "it"]).status.success());
    let first = create(&daemon, &at("a"));
    daemon.stop();
    daemon.restart();
    assert_eq!(nguid(&daemon, "it"), first, "it is the same after a restart");
    delete(&daemon);
    let second = create(&daemon, &at("b"));
    assert_ne!(second, first, "deleted and created with another file");
    delete(&daemon);
    std::fs::remove_file(at("a")).expect("it is there");
    assert_ne!(create(&daemon, &at("a")), first, "deleted and created with a file made anew");
    delete(&daemon);
    daemon.ok(&["drive", "create", "it", "--memory", "8MiB"]);
    let memory = nguid(&daemon, "it");
    daemon.stop();
    daemon.restart();
    assert_ne!(nguid(&daemon, "it"), memory, "memory is new");
    daemon.stop();
}

/// Restarts a daemon whose drive has other storage then, while another daemon's drive is on it.
fn exchange(target: &str, over: &str, change: impl FnOnce(&Path)) {
    const NQN: &str = "nqn.2026-11.example.sluice:exchanged";
    let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
    let (vfio_user, tcp) = match over {
        "nvme" => (String::new(), String::new()),
        _ => (format!("[tcp]\nlisten = [\"{address}\"]\n"), format!("[drive.tcp]\nnqn = \"{NQN}\"\n")),
    };
    let mut far = Daemon::start(&format!(
        "{vfio_user}[[drive]]\nname = \"disk\"\n{tcp}[[drive.namespace]]\n{target}\nsize = \"8MiB\"\n"
    ));
    let peer = match over {
        "nvme" => {
            format!("nvme = {{ vfio_user = \"{}\", on_loss = \"fail\" }}", far.socket("disk").display())
        }
        _ => format!("nvme_tcp = {{ address = \"{address}\", subnqn = \"{NQN}\", fast_io_fail_s = 0 }}"),
    };
    let near = Daemon::start(&format!(
        "[[drive]]\nname = \"remote\"\n[[drive.namespace]]\ntarget = \"{over}\"\n{peer}\n"
    ));
    let mut host = near.host("remote");
    let mut disk = namespace(&mut host, 1);
    disk.write(8, &[7; 4096]).expect("nothing is wrong");
    disk.flush().expect("nothing is wrong");
    far.stop();
    change(far.folder.path());
    far.restart();
    wait_for("the log", || near.log().contains("another"));
    disk.read(8, &mut [0; 4096]).expect_err("what is there is another's");
    disk.write(8, &[8; 4096]).expect_err("what is there is another's");
    disk.flush().expect_err("what is there is another's");
    drop((disk, host));
    assert!(near.ok(&["drive", "list"]).contains("remote"), "{}", near.log());
}

fn another_file(folder: &Path) {
    std::fs::remove_file(folder.join("it.img")).expect("it is there");
    std::fs::write(folder.join("it.img"), vec![0; 8 << 20]).expect("room");
}

#[test]
fn a_subsystem_that_comes_back_with_other_storage_is_a_lost_one() {
    exchange("target = \"memory\"", "nvme-tcp", |_| ());
    exchange("target = \"file\"\npath = \"it.img\"", "nvme-tcp", another_file);
}

#[test]
fn a_device_that_comes_back_with_other_storage_is_a_lost_one() {
    exchange("target = \"memory\"", "nvme", |_| ());
    exchange("target = \"file\"\npath = \"it.img\"", "nvme", another_file);
}

#[test]
fn an_empty_state_folder_beside_used_storage_is_refused() {
    let mut daemon = Daemon::start(&drive("plain", "it.img", ""));
    write(&daemon, "plain", 7);
    daemon.stop();
    std::fs::remove_dir_all(daemon.folder.path().join("state")).expect("it is there");
    daemon.restart();
    let refused = daemon.fails(&["drive", "open", "plain"]);
    assert!(refused.contains("has been served before") && refused.contains("--adopt"), "{refused}");
    daemon.ok(&["drive", "open", "plain", "--adopt"]);
    assert_eq!(read(&daemon, "plain"), 7);
    daemon.stop();
    daemon.restart();
    assert_eq!(read(&daemon, "plain"), 7);
    daemon.stop();
}
