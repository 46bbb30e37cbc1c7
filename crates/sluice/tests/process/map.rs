//! Drives whose chunks lie at any place of two files each.

use crate::common::{Daemon, namespace};
use sluice_host::Namespace;
use sluice_nvme::Status;

const MIB: usize = 1 << 20;

/// Returns a drive over two files of 4 MiB with this table.
fn drive(name: &str, table: &str) -> String {
    format!(
        "[[drive]]\nname = \"{name}\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"{name}-0.img\"\n\
         size = \"4MiB\"\nfunctions = [ {{ kind = \"map\", chunk = \"1MiB\", {table}, layers = [ \
         {{ target = \"file\", path = \"{name}-1.img\", size = \"4MiB\" }} ] }} ]\n"
    )
}

fn drives() -> String {
    drive("mixed", "chunks = [ [0, 3], [1, 0], [], [0, 0], [0, 1] ]")
        + &drive("spread", "place = \"spread\", counts = [4, 4]")
}

fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 512 * 7 + at / MIB + seed) as u8).collect()
}

fn verify(daemon: &Daemon, mixed: &[u8], spread: &[u8]) {
    let mut host = daemon.host("spread");
    read(&mut namespace(&mut host, 1), 0, spread);
    let mut host = daemon.host("mixed");
    let mut disk = namespace(&mut host, 1);
    read(&mut disk, 0, &mixed[..2 * MIB]);
    read(&mut disk, 3 * MIB, &mixed[3 * MIB..]);
    let mut hole = vec![0; 4096];
    let at = |bytes: usize| (bytes / 512) as u64;
    for from in [2 * MIB, 3 * MIB - 4096, 2 * MIB - 2048] {
        let found = disk.read(at(from), &mut hole).expect_err("a hole");
        assert_eq!(found.status(), Some(Status::DEALLOCATED_OR_UNWRITTEN), "{found}");
    }
}

/// Compares the blocks from a byte on, in commands that cross chunks.
fn read(disk: &mut Namespace, from: usize, expected: &[u8]) {
    let mut data = vec![0; expected.len()];
    for (number, part) in data.chunks_mut(96 << 10).enumerate() {
        disk.read(((from + number * (96 << 10)) / 512) as u64, part).expect("it is in range");
    }
    assert!(data == expected, "the data from byte {from} on differs");
}

fn write(disk: &mut Namespace, from: usize, data: &[u8]) {
    for (number, part) in data.chunks(96 << 10).enumerate() {
        disk.write(((from + number * (96 << 10)) / 512) as u64, part).expect("it is in range");
    }
}

#[test]
fn data_is_where_the_table_says_after_a_restart_and_an_upgrade() {
    let mut daemon = Daemon::start(&drives());
    let (mixed, spread) = (pattern(1, 5 * MIB), pattern(2, 8 * MIB));
    let mut host = daemon.host("spread");
    write(&mut namespace(&mut host, 1), 0, &spread);
    drop(host);
    let mut host = daemon.host("mixed");
    let mut disk = namespace(&mut host, 1);
    write(&mut disk, 0, &mixed[..2 * MIB]);
    write(&mut disk, 3 * MIB, &mixed[3 * MIB..]);
    let found = disk.write((2 * MIB / 512) as u64 - 4, &[0xee; 4096]).expect_err("a hole");
    assert_eq!(found.status(), Some(Status::CAPACITY_EXCEEDED), "{found}");
    drop((disk, host));
    verify(&daemon, &mixed, &spread);
    daemon.upgrade(&[]);
    verify(&daemon, &mixed, &spread);
    daemon.stop();
    daemon.restart();
    verify(&daemon, &mixed, &spread);
    daemon.stop();
    let file = |name: &str| std::fs::read(daemon.folder.path().join(name)).expect("it is there");
    let chunk = |of: &[u8], number: usize| of[number * MIB..(number + 1) * MIB].to_vec();
    let (first, second) = (file("mixed-0.img"), file("mixed-1.img"));
    assert!(chunk(&first, 3) == chunk(&mixed, 0) && chunk(&second, 0) == chunk(&mixed, 1));
    assert!(first[..2 * MIB] == mixed[3 * MIB..]);
    assert!(second[MIB..].iter().all(|byte| *byte == 0), "no other chunk is written");
    let (first, second) = (file("spread-0.img"), file("spread-1.img"));
    for number in 0..8 {
        let of = if number % 2 == 0 { &first } else { &second };
        assert!(chunk(of, number / 2) == chunk(&spread, number), "chunk {number}");
    }
}

#[test]
fn the_table_is_shown() {
    let daemon = Daemon::start(&drives());
    let shown = daemon.ok(&["drive", "show", "mixed", "--map"]);
    let rows: Vec<Vec<&str>> = shown.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    let columns: Vec<&[&str]> = rows.iter().map(|row| &row[2..6]).collect();
    assert_eq!(
        columns,
        [
            ["0B", "1MiB", "0", "3MiB"],
            ["1MiB", "1MiB", "1", "0B"],
            ["2MiB", "1MiB", "-", "-"],
            ["3MiB", "2MiB", "0", "0B"]
        ]
    );
    assert!(rows[1][6].ends_with("mixed-1.img") && rows[2][6] == "hole", "{shown}");
    let json = daemon.ok(&["-o", "json", "drive", "show", "spread", "--map"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    assert_eq!(json.as_array().map(Vec::len), Some(8));
    assert_eq!((&json[3]["target"], &json[3]["target_from"]), (&1.into(), &MIB.into()));
}

#[test]
fn a_table_that_does_not_fit_is_refused() {
    let daemon = Daemon::start(&drives());
    let create = |path: &str, keys: &str| {
        let spec = format!(
            r#"{{ "name": "a", "namespaces": [ {{ "target": "file", "path": "{path}", "size": "4MiB",
                 "functions": [ {{ "kind": "map", {keys} }} ] }} ] }}"#
        );
        let file = daemon.folder.path().join("a.json");
        std::fs::write(&file, spec).expect("room");
        daemon.fails(&["drive", "create", "a", "--spec", &file.display().to_string()])
    };
    let new = daemon.folder.path().join("new.img").display().to_string();
    for (keys, words, remedy) in [
        (
            r#""chunk": "1MiB", "chunks": [[0, 4]]"#,
            "chunks: entry 0 is chunk 4 of target 0",
            "use chunks 0 to 3",
        ),
        (r#""chunk": "1MiB", "counts": [5]"#, "counts: entry 4 is chunk 4 of target 0", "use chunks 0 to 3"),
        (r#""chunk": "1MiB", "chunks": [[0, 1], [0, 1]]"#, "are both chunk 1 of target 0", "once"),
        (
            r#""chunk": "1536KiB", "counts": [1]"#,
            ".chunk: 1536KiB is not possible",
            "a power of two from 1MiB",
        ),
        (r#""chunk": "512KiB", "counts": [1]"#, ".chunk: 512KiB is not possible", "a power of two from 1MiB"),
    ] {
        let found = create(&new, keys);
        assert!(found.contains(words) && found.contains(remedy), "{keys}: {found}");
    }
    // A file has one drive, also with other chunks.
    let taken = daemon.folder.path().join("mixed-0.img").display().to_string();
    let found = create(&taken, r#""chunk": "1MiB", "chunks": [[0, 2]]"#);
    assert!(found.contains("in use"), "{found}");
}
