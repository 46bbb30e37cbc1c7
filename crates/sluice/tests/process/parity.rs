//! Drives with parities: a crash, a lost member, and its replacement.

use crate::common::{BINARY, Daemon, namespace, wait_for};
use std::process::Command;

const MIB: usize = 1 << 20;
const MEMBER: usize = 8 * MIB;
/// Bytes that one request of the host moves.
const STEP: usize = 96 << 10;

/// Returns a drive of so many members, with labels.
fn drive(members: usize, parity: usize) -> String {
    drive_with(members, parity, "")
}

/// Does the same, with more options.
fn drive_with(members: usize, parity: usize, more: &str) -> String {
    let layer =
        |name: String, size: &str| format!("{{ target = \"file\", path = \"{name}\", size = \"{size}\" }}");
    // Both places are the same to the host.
    let place = if parity == 2 { "process" } else { "daemon" };
    let layers = (1..members).map(|member| layer(format!("m{member}"), "8MiB"));
    let layers: Vec<String> = layers.chain([layer("mlog".to_owned(), "4MiB")]).collect();
    format!(
        "[[drive]]\nname = \"disk\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"m0\"\nsize = \"8MiB\"\n\
         functions = [ {{ kind = \"uif\", function = \"parity\", place = \"{place}\", labels = true, \
         options = {{ parity = \"{parity}\", chunk = \"16KiB\"{more} }}, layers = [ {} ] }} ]\n",
        layers.join(", ")
    )
}

fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes / 512).flat_map(|block| [(block * 7 + block / 256 + seed) as u8; 512]).collect()
}

fn write(daemon: &Daemon, from: usize, bytes: &[u8], flush: bool) {
    let mut host = daemon.host("disk");
    let mut disk = namespace(&mut host, 1);
    for (index, piece) in bytes.chunks(STEP).enumerate() {
        disk.write(((from + index * STEP) / 512) as u64, piece)
            .unwrap_or_else(|error| panic!("{index}: {error:?} {}", daemon.log()));
    }
    if flush {
        disk.flush().expect("nothing is wrong");
    }
}

fn read_all(daemon: &Daemon, bytes: usize) -> Vec<u8> {
    let mut host = daemon.host("disk");
    let mut disk = namespace(&mut host, 1);
    let mut whole = vec![0; bytes];
    for (index, piece) in whole.chunks_mut(STEP).enumerate() {
        disk.read((index * STEP / 512) as u64, piece).expect("it is in range");
    }
    whole
}

fn status(daemon: &Daemon) -> String {
    daemon.ok(&["function", "tell", "disk", "status"])
}

fn member(words: &[&str]) {
    let done = Command::new(BINARY).arg("member").args(words).output().expect("the binary is there");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

fn survives(members: usize, parity: usize) {
    let bytes = (members - parity) * MEMBER;
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("", &drive(members, parity));
    daemon.restart();
    let mut whole = pattern(bytes, 0);
    write(&daemon, 0, &whole, true);
    // Acknowledged writes outlive the daemon, flushed or not.
    let (from, changed) = (5 * MIB + 512, pattern(3 * MIB, 9));
    write(&daemon, from, &changed, false);
    whole[from..from + changed.len()].copy_from_slice(&changed);
    daemon.crash();
    daemon.restart();
    assert!(read_all(&daemon, bytes) == whole, "after a crash");
    assert!(status(&daemon).contains("in sync"), "{}", status(&daemon));
    daemon.crash();
    // Members are lost while the daemon is away, and new disks take their places.
    let folder = daemon.folder.path().to_owned();
    let at = |name: &str| folder.join(name).display().to_string();
    for lost in 0..parity {
        let (path, index) = (at(&format!("m{lost}")), lost.to_string());
        std::fs::write(&path, "").expect("room");
        member(&["replace", "--set", &at("m2"), "--index", &index, &path]);
    }
    daemon.restart();
    assert!(read_all(&daemon, bytes) == whole, "without the lost members");
    wait_for("the members to be computed", || status(&daemon).contains("\"state\":\"in sync\""));
    daemon.stop();
    // The new disks have everything: another member is lost now.
    let last = at(&format!("m{}", members - 1));
    std::fs::write(&last, "").expect("room");
    member(&["replace", "--set", &at("m0"), "--index", &(members - 1).to_string(), &last]);
    daemon.restart();
    assert!(read_all(&daemon, bytes) == whole, "from the new disks");
    wait_for("the members to be computed", || status(&daemon).contains("\"state\":\"in sync\""));
    daemon.ok(&["function", "tell", "disk", "check"]);
    wait_for("the comparison", || status(&daemon).contains("\"running\":false"));
    assert!(status(&daemon).contains("\"different\":0,\"unreadable\":0"), "{}", status(&daemon));
    daemon.stop();
}

#[test]
fn a_drive_with_one_parity_survives_crashes_and_a_lost_member() {
    survives(3, 1);
}

#[test]
fn a_drive_with_two_parities_survives_crashes_and_two_lost_members() {
    survives(5, 2);
}

/// Gives a drive in use a second parity, loses two members after a crash, and takes the parity back.
#[test]
fn a_drive_in_use_gets_a_second_parity() {
    let bytes = 2 * MEMBER;
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("", &drive_with(4, 1, ", spare = \"true\""));
    daemon.restart();
    let mut whole = pattern(bytes, 0);
    write(&daemon, 0, &whole, true);
    assert!(status(&daemon).contains("\"parity\":1,\"spares\":1"), "{}", status(&daemon));
    let told = daemon.ok(&["function", "tell", "disk", "parities 2"]);
    assert!(told.contains("\"parity\":2,\"spares\":0,\"changing\":false"), "{told}");
    let (from, changed) = (5 * MIB + 512, pattern(3 * MIB, 9));
    write(&daemon, from, &changed, false);
    whole[from..from + changed.len()].copy_from_slice(&changed);
    daemon.crash();
    daemon.restart();
    assert!(read_all(&daemon, bytes) == whole, "after a crash");
    wait_for("the second parity", || status(&daemon).contains("\"state\":\"in sync\""));
    assert!(status(&daemon).contains("\"parity\":2"), "{}", status(&daemon));
    daemon.stop();
    let folder = daemon.folder.path().to_owned();
    let at = |name: &str| folder.join(name).display().to_string();
    for lost in ["0", "1"] {
        let path = at(&format!("m{lost}"));
        std::fs::write(&path, "").expect("room");
        member(&["replace", "--set", &at("m2"), "--index", lost, &path]);
    }
    daemon.restart();
    assert!(read_all(&daemon, bytes) == whole, "without two members");
    wait_for("the members to be computed", || status(&daemon).contains("\"state\":\"in sync\""));
    daemon.ok(&["function", "tell", "disk", "check"]);
    wait_for("the comparison", || status(&daemon).contains("\"running\":false"));
    assert!(status(&daemon).contains("\"different\":0,\"unreadable\":0"), "{}", status(&daemon));
    let told = daemon.ok(&["function", "tell", "disk", "parities 1"]);
    assert!(told.contains("\"parity\":1,\"spares\":1"), "{told}");
    daemon.stop();
    daemon.restart();
    assert!(status(&daemon).contains("\"parity\":1,\"spares\":1"), "{}", status(&daemon));
    assert!(read_all(&daemon, bytes) == whole, "with one parity again");
    daemon.stop();
}

/// Checks the size of the drive, that of its data columns, and the refusal of another number of parities.
#[test]
fn another_shape_is_refused() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("", &drive(4, 1));
    daemon.restart();
    write(&daemon, 0, &pattern(MIB, 1), true);
    assert!(daemon.ok(&["drive", "show", "disk"]).contains("24MiB"));
    daemon.stop();
    daemon.declare("", &drive(4, 2));
    daemon.restart();
    wait_for("the refusal", || {
        let said = daemon.run(&["function", "tell", "disk", "status"]);
        String::from_utf8_lossy(&said.stderr).contains("the log is of an array of 4 members with 1 parities")
            || daemon.log().contains("the log is of an array of 4 members with 1 parities")
            || daemon.log().contains("parity 1 of")
    });
    daemon.stop();
    daemon.declare("", &drive(4, 1));
    daemon.restart();
    assert!(read_all(&daemon, MIB) == pattern(MIB, 1));
}

/// Exchanges two members, and brings an older copy of one back: the first is refused, the second is computed anew.
#[test]
fn a_wrong_member_is_refused_and_an_older_one_is_computed() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("", &drive(3, 1));
    daemon.restart();
    write(&daemon, 0, &pattern(MIB, 1), true);
    daemon.stop();
    let folder = daemon.folder.path().to_owned();
    let exchange = || {
        std::fs::rename(folder.join("m1"), folder.join("aside")).expect("it can");
        std::fs::rename(folder.join("m2"), folder.join("m1")).expect("it can");
        std::fs::rename(folder.join("aside"), folder.join("m2")).expect("it can");
    };
    let older = std::fs::read(folder.join("m1")).expect("it is there");
    exchange();
    daemon.restart();
    let error = daemon.fails(&["drive", "open", "disk"]);
    assert!(error.contains("member 2") && error.contains("is in the place of member 1"), "{error}");
    daemon.stop();
    exchange();
    daemon.restart();
    write(&daemon, 0, &pattern(MIB, 2), true);
    daemon.stop();
    std::fs::write(folder.join("m1"), older).expect("room");
    daemon.restart();
    assert!(read_all(&daemon, MIB) == pattern(MIB, 2), "nothing of the older copy is read");
    assert!(daemon.log().contains("older copy"), "{}", daemon.log());
    wait_for("the member to be computed", || status(&daemon).contains("\"state\":\"in sync\""));
    daemon.stop();
}
