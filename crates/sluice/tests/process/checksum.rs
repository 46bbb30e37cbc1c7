//! Blocks that change on a disk: found by checksums, and repaired from the other members.

use crate::common::{Daemon, namespace, wait_for};

const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;
const BYTES: usize = 2 * MIB;
const CHECKSUM: &str = "{ kind = \"uif\", function = \"checksum\", place = \"daemon\" }";

/// Returns a drive whose members have checksums.
fn drive(function: &str, members: usize, log: &str) -> String {
    let member = |name: usize| {
        format!(
            "{{ target = \"file\", path = \"m{name}\", size = \"8MiB\", block_size = 4096, functions = [ {CHECKSUM} ] }}"
        )
    };
    let log = format!("{{ target = \"file\", path = \"mlog\", size = \"{log}\" }}");
    let layers: Vec<String> = (1..members).map(member).chain([log]).collect();
    format!(
        "[[drive]]\nname = \"disk\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"m0\"\nsize = \"8MiB\"\nblock_size = 4096\n\
         functions = [ {{ kind = \"uif\", function = \"{function}\", place = \"daemon\", layers = [ {} ] }}, {CHECKSUM} ]\n",
        layers.join(", ")
    )
}

fn pattern() -> Vec<u8> {
    (0..BYTES / BLOCK).flat_map(|block| [(block % 251 + 1) as u8; BLOCK]).collect()
}

fn read_all(daemon: &Daemon) -> Vec<u8> {
    let mut host = daemon.host("disk");
    let mut disk = namespace(&mut host, 1);
    let mut whole = vec![0; BYTES];
    for (index, piece) in whole.chunks_mut(64 << 10).enumerate() {
        disk.read((index * (64 << 10) / BLOCK) as u64, piece).expect("it is in range");
    }
    whole
}

/// Returns whether the function that has members is in sync.
fn is_in_sync(daemon: &Daemon) -> bool {
    (0..8).any(|number| {
        let told = daemon.run(&["function", "tell", "disk", "--function", &number.to_string(), "status"]);
        let status = String::from_utf8_lossy(&told.stdout).into_owned();
        let is_clean = !status.contains("\"dirty_bytes\":") || status.contains("\"dirty_bytes\":0,");
        status.contains("\"state\":\"in sync\"") && is_clean
    })
}

/// Changes a bit of a block in a member's file, and waits until the host has read everything and it is as before.
fn is_repaired(function: &str, members: usize, log: &str) {
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("", &drive(function, members, log));
    daemon.restart();
    let opened = daemon.run(&["drive", "open", "disk"]);
    assert!(opened.status.success(), "{}", String::from_utf8_lossy(&opened.stderr));
    {
        let mut host = daemon.host("disk");
        let mut disk = namespace(&mut host, 1);
        for (index, piece) in pattern().chunks(64 << 10).enumerate() {
            disk.write((index * (64 << 10) / BLOCK) as u64, piece).expect("it is in range");
        }
        disk.flush().expect("nothing is wrong");
    }
    wait_for("the first copy", || is_in_sync(&daemon));
    daemon.stop();
    let path = daemon.folder.path().join("m0");
    let good = std::fs::read(&path).expect("it is there");
    // The seventh block has 7 in each byte, on this member or, as a parity of others, on none.
    let at =
        (0..good.len() / BLOCK).map(|block| block * BLOCK).find(|at| good[*at..*at + BLOCK] == [7; BLOCK]);
    let at = at.expect("the member has it");
    let mut wrong = good.clone();
    wrong[at + 100] ^= 0x10;
    std::fs::write(&path, &wrong).expect("room");
    daemon.restart();
    assert!(read_all(&daemon) == pattern(), "{function}");
    wait_for("the repair", || std::fs::read(&path).expect("it is there")[at..at + BLOCK] == [7; BLOCK]);
    assert!(read_all(&daemon) == pattern(), "{function}");
    wait_for("the members", || is_in_sync(&daemon));
    daemon.stop();
}

#[test]
fn a_mirror_repairs_a_block_that_has_changed() {
    is_repaired("mirror", 2, "512KiB");
}

#[test]
fn a_parity_repairs_a_block_that_has_changed() {
    is_repaired("parity", 3, "4MiB");
}
