//! `serve --check`: reports all faults at once, and changes nothing.

use crate::common::{Daemon, tool, wait_for};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Output;

fn check(folder: &Path, text: &str) -> Output {
    let file = folder.join("sluice.toml");
    let settings = "[daemon]\napi = \"api.sock\"\nstate = \"state\"\nsockets = \"drives\"\n";
    std::fs::write(&file, format!("{settings}{text}")).expect("room on the disk");
    tool(&folder.join("api.sock"), &["serve", "-c", &file.display().to_string(), "--check"])
}

fn drive(name: &str, namespace: &str) -> String {
    format!("[[drive]]\nname = \"{name}\"\n[[drive.namespace]]\n{namespace}\n")
}

/// Returns every file below a folder, with its content.
fn contents(folder: &Path) -> BTreeMap<std::path::PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("it is a folder") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => drop(found.insert(path.clone(), Vec::new()).is_none().then(|| contents(&path))),
            false => drop(found.insert(path.clone(), std::fs::read(&path).expect("it is ours"))),
        }
    }
    found
}

#[test]
fn all_faults_are_said_at_once_and_nothing_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).expect("room");
    image("shared.img", &[0; 8192]);
    image("small.img", &[0; 4096]);
    image("odd.img", &[0; 1000]);
    image(
        "disk.qcow2",
        b"QFI\xfb and tables after it, of more than a block, so that the size is none of its faults",
    );
    image("prog.c", b"int main(void) { return 0; }");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().map(|address| (taken, address)).expect("an address");
    let text = [
        format!("[tcp]\nlisten = [\"{}\"]\n", taken.1),
        drive("one", "target = \"file\"\npath = \"shared.img\""),
        drive("two", "target = \"file\"\npath = \"shared.img\""),
        drive("new", "target = \"file\"\npath = \"new.img\"\nsize = \"1MiB\""),
        drive("newer", "target = \"file\"\npath = \"./new.img\"\nsize = \"1MiB\""),
        drive("missing", "target = \"file\"\npath = \"missing.img\""),
        drive("nowhere", "target = \"file\"\npath = \"no/such/folder/x.img\"\nsize = \"1MiB\""),
        drive("small", "target = \"file\"\npath = \"small.img\"\nsize = \"1MiB\"\nread_only = true"),
        drive("huge", "target = \"memory\"\nsize = \"900TiB\""),
        drive("image", "target = \"file\"\npath = \"disk.qcow2\""),
        drive("odd", "target = \"file\"\npath = \"odd.img\""),
        drive("none", "target = \"null\"\nsize = 0"),
        drive(
            "key",
            "target = \"null\"\nsize = \"1MiB\"\nfunctions = [ { kind = \"uif\", function = \"encrypt\", \
             options = { key_file = \"/no/such.key\" } } ]",
        ),
        drive(
            "program",
            "target = \"null\"\nsize = \"1MiB\"\nfunctions = [ { kind = \"uif\", command = [\"/no/such/program\"] } ]",
        ),
        drive("socket", "target = \"nvme\"\nnvme = { vfio_user = \"no-such-socket\" }"),
        "[[drive]]\nname = \"classified\"\nclassifier = { object = \"prog.c\" }\n[[drive.namespace]]\n\
         target = \"null\"\nsize = \"1MiB\"\n"
            .to_owned(),
        "[[drive]]\nname = \"listed\"\ntcp = { tls_keys = \"/no/such.keys\" }\n[[drive.namespace]]\n\
         target = \"null\"\nsize = \"1MiB\"\n"
            .to_owned(),
    ]
    .concat();
    check(folder.path(), &text);
    let before = contents(folder.path());
    let done = check(folder.path(), &text);
    assert_eq!(done.status.code(), Some(1));
    let said = String::from_utf8_lossy(&done.stderr).replace(&folder.path().display().to_string(), "DIR");
    for expected in [
        format!("tcp.listen: cannot listen on {}", taken.1),
        "drive `two`, namespace 1: DIR/shared.img is the file of drive `one`, namespace 1 already".to_owned(),
        "drive `newer`, namespace 1: DIR/./new.img is the file of drive `new`, namespace 1 already"
            .to_owned(),
        "drive `missing`, namespace 1: DIR/missing.img does not exist".to_owned(),
        "drive `nowhere`, namespace 1: DIR/no/such/folder/x.img cannot be made".to_owned(),
        "drive `small`, namespace 1: DIR/small.img has 4096 bytes".to_owned(),
        "drive `huge`, namespace 1: there is no room for 900TiB of memory: that is more than a process"
            .to_owned(),
        "drive `image`, namespace 1: DIR/disk.qcow2 is a qcow image".to_owned(),
        "size: a namespace of no bytes is not possible".to_owned(),
        "drive `key`, namespace 1, function encrypt: key file /no/such.key: cannot be opened".to_owned(),
        "drive `program`, namespace 1, function /no/such/program: cannot find the program".to_owned(),
        "drive `socket`, namespace 1: cannot find the socket DIR/no-such-socket".to_owned(),
        "drive `classified`: classifier DIR/prog.c is text, as the source of a program is".to_owned(),
        "the daemon listens nowhere with TLS".to_owned(),
        "drive `listed`: key file /no/such.keys".to_owned(),
    ] {
        assert!(said.contains(&expected), "{expected} is not in\n{said}");
    }
    // The last drive has two faults: one in its description, and one in a file that it names.
    assert_eq!(said.matches("error: ").count(), 15, "{said}");
    assert!(contents(folder.path()) == before, "it changed something");
}

#[test]
fn a_configuration_that_is_in_use_by_its_daemon_is_right() {
    let drives = drive("disk", "target = \"file\"\npath = \"disk.img\"\nsize = \"1MiB\"");
    let daemon = Daemon::start(&drives);
    let done = daemon.ok(&["serve", "-c", &daemon.config().display().to_string(), "--check"]);
    assert!(done.contains("note: a daemon runs there"), "{done}");
    assert!(done.contains("nothing is wrong with it; it declares 1 drive"), "{done}");
    daemon.ok(&["drive", "show", "disk"]);
}

/// Checks that the state folder is examined: it has the drives that the API created, and the files that are
/// created once.
#[test]
fn what_the_daemon_remembers_is_looked_at() {
    let declared = drive("disk", "target = \"file\"\npath = \"disk.img\"\nsize = \"1MiB\"");
    let mut daemon = Daemon::start(&declared);
    let folder = daemon.folder.path().to_owned();
    let made = folder.join("made.img").display().to_string();
    daemon.ok(&["drive", "create", "made", "--file", &made, "--size", "1MiB"]);
    daemon.ok(&["drive", "create", "other", "--memory", "1MiB"]);
    // A guest may write any data, also the signature of an image format.
    crate::common::namespace(&mut daemon.host("disk"), 1).write(0, &signed()).expect("written");
    daemon.stop();
    let config = daemon.config().display().to_string();
    let check = || tool(&daemon.api(), &["serve", "-c", &config, "--check"]);
    let before = contents(&folder);
    assert!(check().status.success(), "{}", String::from_utf8_lossy(&check().stderr));
    std::fs::remove_file(folder.join("disk.img")).expect("it was made");
    std::fs::remove_file(&made).expect("it was made");
    let done = check();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("drive `disk`: ") && said.contains("disk.img does not exist, but"), "{said}");
    assert!(said.contains("drive `made`: ") && said.contains("made.img does not exist, but"), "{said}");
    assert_eq!(said.matches("error: ").count(), 2, "{said}");
    let after = contents(&folder);
    assert!(before.iter().all(|(path, bytes)| path.ends_with("disk.img")
        || path.ends_with("made.img")
        || after.get(path) == Some(bytes)));
    // The API has already given this name to a drive.
    daemon.declare("", &(declared + &drive("other", "target = \"null\"\nsize = \"1MiB\"")));
    let said = tool(&daemon.api(), &["serve", "-c", &config, "--check"]).stderr;
    assert!(String::from_utf8_lossy(&said).contains("other"), "{}", String::from_utf8_lossy(&said));
}

/// Returns a block that begins like a qcow image.
fn signed() -> [u8; 512] {
    let mut block = [0; 512];
    block[..4].copy_from_slice(b"QFI\xfb");
    block
}

#[test]
fn what_may_be_a_mistake_is_noted() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("odd.img"), [0; 1000]).expect("room on the disk");
    // The address is of a network for documentation, and no machine has it.
    let text = "[tcp]\nlisten = [\"192.0.2.1:4420\"]\n".to_owned()
        + &drive("odd", "target = \"file\"\npath = \"odd.img\"");
    let done = check(folder.path(), &text);
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
    assert!(said.contains("no interface has the address 192.0.2.1:4420 now"), "{said}");
    assert!(said.contains("the last 488 bytes of"), "{said}");
}

#[test]
fn a_drive_that_failed_is_not_served() {
    let drives = drive("well", "target = \"null\"\nsize = \"1MiB\"")
        + &drive("one", "target = \"file\"\npath = \"one.img\"")
        + &drive("two", "target = \"file\"\npath = \"two.img\"");
    let daemon = Daemon::start(&drives);
    wait_for("the count", || daemon.log().contains("serving 1 of 3 drives, 2 failed, on 1 reactor"));
}
