//! Exact output of the tool.

use crate::common::{BINARY, Daemon, tool};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const TWO: &str = r#"
[[drive]]
name = "demo"
serial = "S1"
[[drive.namespace]]
target = "memory"
size = "64MiB"
functions = [ { kind = "delay", read_us = 100 }, { kind = "pass" } ]
[[drive.namespace]]
target = "null"
size = "1GiB"
block_size = 4096
"#;

#[test]
fn lists_and_shows() {
    let daemon = Daemon::start(TWO);
    daemon.ok(&["drive", "create", "web-1", "--null", "1TiB", "--doorbells", "mapped"]);
    assert_eq!(
        daemon.ok(&["drive", "list"]),
        "\
NAME   STATE  ORIGIN    NAMESPACES        SIZE  REACTOR  SOCKET
demo   ready  declared           2  64MiB+1GiB        0  DIR/drives/demo/cntrl
web-1  ready  created            1        1TiB        0  DIR/drives/web-1/cntrl
"
    );
    assert_eq!(
        daemon.ok(&["drive", "show", "demo"]),
        "\
name:      demo
state:     ready
origin:    declared
serial:    S1
subnqn:    nqn.2014-08.org.nvmexpress:uuid:3580d361-e983-8814-8299-db2370e63d7e
socket:    DIR/drives/demo/cntrl
reactor:   0
doorbells: auto
in flight: 0
commands:  0 (0 failed)
read:      0 bytes
written:   0 bytes
migratable: no

NSID   SIZE  BLOCK  TARGET  PATH  FUNCTIONS
   1  64MiB    512  memory     -  delay, pass
   2   1GiB   4096  null       -  -
"
    );
}

#[test]
fn programs_get_json() {
    let daemon = Daemon::start(TWO);
    let versions: serde_json::Value =
        serde_json::from_str(&daemon.ok(&["version", "-o", "json"])).expect("it is JSON");
    assert_eq!(versions["daemon"]["version"], versions["tool"]);
    let list: serde_json::Value =
        serde_json::from_str(&daemon.ok(&["drive", "list", "-o", "json"])).expect("JSON");
    let demo = &list["drives"][0];
    assert_eq!(demo["namespaces"][0]["size"], 64 << 20);
    assert_eq!(
        demo["namespaces"][0]["functions"][0],
        serde_json::json!({"kind": "delay", "read_us": 100, "write_us": 0, "flush_us": 0})
    );
    assert_eq!(demo["state"], "ready");
    let attach = daemon.ok(&["-o", "json", "drive", "attach", "demo"]);
    let attach: serde_json::Value = serde_json::from_str(&attach).expect("JSON");
    assert_eq!(attach["arguments"][0], "-device");
    // No machine with this drive can be migrated. The field is there also if it is false.
    assert_eq!((&demo["migratable"], &attach["migratable"]), (&false.into(), &false.into()));
    assert_eq!(attach["refuse_migration"][0], "-blockdev");
    let device = attach["arguments"][1].as_str().expect("a word");
    let device: serde_json::Value = serde_json::from_str(device).expect("QEMU's JSON");
    assert_eq!(device["socket"]["path"], "DIR/drives/demo/cntrl");
    let deleted = daemon.fails(&["drive", "delete", "demo", "-o", "json"]);
    assert!(deleted.starts_with("error: "), "complaints are words in any form: {deleted}");
}

#[test]
fn attaches() {
    const STAYS: &str = "# a machine with this drive must not be migrated, saved or restored: the guest would lose the drive\n";
    let daemon = Daemon::start(TWO);
    assert_eq!(
        daemon.ok(&["drive", "attach", "demo", "--print", "qemu"]),
        "# guest memory must be shared, SIZE being as large as the guest's: \
         -object memory-backend-memfd,id=mem0,size=SIZE,share=on -machine memory-backend=mem0\n"
            .to_owned()
            + STAYS
            + "# QEMU refuses with an image of `qemu-img create -f qcow stay.qcow 1M`: \
         -blockdev driver=qcow,node-name=stay,file.driver=file,file.filename=stay.qcow\n\
         -device '{\"driver\":\"vfio-user-pci\",\"socket\":{\"type\":\"unix\",\"path\":\"DIR/drives/demo/cntrl\"}}'\n"
    );
    assert_eq!(
        daemon.ok(&["drive", "attach", "demo", "--print", "cloud-hypervisor"]),
        "# guest memory must be shared, SIZE being as large as the guest's: --memory size=SIZE,shared=on\n"
            .to_owned()
            + STAYS
            + "--user-device socket=DIR/drives/demo/cntrl\n"
    );
}

#[test]
fn errors_say_what_to_do() {
    let daemon = Daemon::start(TWO);
    for (words, complaint) in [
        (&["drive", "show", "dmeo"][..], "error: there is no drive `dmeo`\nhint: did you mean `demo`?\n"),
        (
            &["drive", "show", "x/y"],
            "error: there is no drive `x/y`\nhint: `sluice drive list` shows what there is\n",
        ),
        (
            &["drive", "create", "demo", "--null", "1MiB"],
            "error: there is a drive `demo` already\nhint: choose another name, or delete that one first\n",
        ),
        (
            &["drive", "create", "a b", "--null", "1MiB"],
            "error: name: `a b` cannot be a name\n\
             hint: use letters, digits, `-`, `_` and `.`, a letter or digit first\n",
        ),
        (
            &["drive", "resize", "demo", "--nsid", "3", "--size", "1MiB"],
            "error: drive `demo` has no namespace 3\nhint: its namespaces are 1 to 2\n",
        ),
        (
            &["drive", "delete", "demo"],
            "error: drive `demo` is declared in DIR/sluice.toml, and would be back after a restart\n\
             hint: remove its [[drive]] from DIR/sluice.toml and run `sluice reload`\n",
        ),
    ] {
        assert_eq!(daemon.fails(words), complaint);
    }
}

#[test]
fn no_daemon_is_said_to_be_none() {
    let done = tool(Path::new("/nonexistent/api.sock"), &["drive", "list"]);
    assert_eq!(done.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&done.stderr),
        "error: no daemon answers at /nonexistent/api.sock\n\
         hint: start one with `sluice serve -c FILE`, or name its socket with --api or SLUICE_API\n"
    );
    let done = tool(Path::new("/nonexistent/api.sock"), &["version"]);
    assert!(done.status.success(), "the tool has a version without a daemon");
    let versions = String::from_utf8_lossy(&done.stdout).into_owned();
    let tool = env!("CARGO_PKG_VERSION");
    assert_eq!(versions, format!("tool:   {tool}\ndaemon: none answers at /nonexistent/api.sock\n"));
}

#[test]
fn a_wrong_command_line_is_explained() {
    let refuse = |words: &[&str]| {
        let done = tool(Path::new("/nonexistent"), words);
        assert_eq!(done.status.code(), Some(2), "{words:?}");
        String::from_utf8_lossy(&done.stderr).into_owned()
    };
    assert!(refuse(&["drive", "create", "a"]).contains("--memory <SIZE>"));
    assert!(
        refuse(&["drive", "create", "a", "--null", "64M"]).contains("`64M` has two meanings: say MiB or MB")
    );
    assert!(
        refuse(&["drive", "create", "a", "--null", "1MiB", "--memory", "1MiB"])
            .contains("cannot be used with")
    );
    assert!(refuse(&["drive", "lsit"]).contains("list"));
}

#[test]
fn a_configuration_is_checked_without_a_daemon() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("s.toml");
    let check = |text: &str| {
        std::fs::write(&file, text).expect("room on the disk");
        tool(&folder.path().join("api"), &["serve", "-c", &file.display().to_string(), "--check"])
    };
    assert!(check(TWO).status.success());
    let wrong = check(&TWO.replace("block_size", "blok_size"));
    assert_eq!(wrong.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&wrong.stderr),
        format!(
            "error: {}:12: blok_size: there is no such key here\nhint: did you mean `block_size`?\n",
            file.display()
        )
    );
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let done = tool(Path::new("/nonexistent"), &["completions", shell]);
        let script = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success() && script.contains("cloud-hypervisor"), "{shell}");
    }
}

#[test]
fn benchmarks_are_a_program_beside_this_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let binary = folder.path().join("sluice");
    if std::fs::hard_link(BINARY, &binary).is_err() {
        std::fs::copy(BINARY, &binary).expect("it is copied");
    }
    let run = |words: &[&str]| {
        let command = std::process::Command::new(&binary).args(words).env("PATH", "").output();
        command.expect("the binary is there")
    };
    let missing = run(&["bench", "idle"]);
    let error = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(!missing.status.success() && error.contains("cannot start sluice-bench"), "{error}");
    assert!(error.contains("hint: sluice-bench belongs beside `sluice`"), "{error}");
    let program = folder.path().join("sluice-bench");
    std::fs::write(&program, "#!/bin/sh\necho \"$@\"\nexit 3\n").expect("it is written");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("a program");
    let done = run(&["-o", "json", "bench", "idle", "--drives", "100", "--help"]);
    assert_eq!(String::from_utf8_lossy(&done.stdout), "--output json idle --drives 100 --help\n");
    assert_eq!(done.status.code(), Some(3));
}

#[test]
fn a_drive_is_created_as_a_file_says() {
    let daemon = Daemon::start("");
    let file = daemon.folder.path().join("drive.json");
    let spec = r#"{"namespaces":[{"target":"null","size":"1MiB","functions":[{"kind":"pass"}]},{"target":"memory","size":"2MiB"}]}"#;
    std::fs::write(&file, spec).expect("room on the disk");
    let path = file.display().to_string();
    assert!(daemon.ok(&["drive", "create", "two", "--spec", &path]).contains("memory"));
    std::fs::write(&file, spec.replace("size", "sise")).expect("room on the disk");
    let complaint = daemon.fails(&["drive", "create", "three", "--spec", &path]);
    assert!(complaint.ends_with("hint: did you mean `size`?\n"), "{complaint}");
    std::fs::write(&file, "[[namespaces]]\ntarget = \"null\"\nsize = \"1MiB\"\n").expect("room on the disk");
    assert!(daemon.ok(&["drive", "create", "four", "--spec", &path]).contains("null"));
    std::fs::write(&file, "[[namespaces]]\ntarget = null\n").expect("room on the disk");
    let complaint = daemon.fails(&["drive", "create", "five", "--spec", &path]);
    assert!(complaint.contains("line 2"), "{complaint}");
}
