//! Single commands with the times of their stages.

use crate::common::{BINARY, Daemon, namespace, wait_for};
use crate::groups::of_two_reactors;
use crate::programs::{COUNTING, compile};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

const DRIVE: &str = "[[drive]]\nname = \"d\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n\
                     functions = [ { kind = \"delay\", read_us = 3000 } ]\n";

/// Starts a trace, and returns when it is on.
fn start(daemon: &Daemon, arguments: &[&str]) -> Child {
    let child = Command::new(BINARY)
        .args(["trace", "--api"])
        .arg(daemon.api())
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary is there");
    wait_for("the trace", || daemon.log().contains("its commands are traced"));
    child
}

fn lines(child: &mut Child) -> Vec<String> {
    let found = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok).collect();
    assert!(child.wait().expect("it ends").success());
    found
}

fn parsed(line: &str) -> serde_json::Value {
    serde_json::from_str(line).expect("JSON")
}

#[test]
fn commands_are_shown_with_the_times_of_their_stages() {
    let daemon = Daemon::start(DRIVE);
    let mut host = daemon.host("d");
    let mut disk = namespace(&mut host, 1);
    let mut child = start(&daemon, &["d", "--count", "2", "--json", "--every", "1"]);
    disk.write(8, &[7; 4096]).expect("it is in range");
    disk.read(16, &mut [0; 8192]).expect("it is in range");
    let found = lines(&mut child);
    let [write, read] = &found[..] else { panic!("{found:?}") };
    let (write, read) = (parsed(write), parsed(read));
    assert_eq!(
        (&write["operation"], &write["slba"], &write["blocks"]),
        (&"write".into(), &8.into(), &8.into())
    );
    assert_eq!(
        (&read["operation"], &read["slba"], &read["blocks"]),
        (&"read".into(), &16.into(), &16.into())
    );
    for command in [&write, &read] {
        assert_eq!(
            (&command["nsid"], &command["path"], &command["dropped"]),
            (&1.into(), &0.into(), &0.into())
        );
        assert!(command["error"].is_null() && command["classified_ns"].is_null(), "{command}");
        let time = |key: &str| command[key].as_u64().expect("a time");
        assert!(
            time("sent_ns") <= time("returned_ns") && time("returned_ns") <= time("completed_ns"),
            "{command}"
        );
    }
    assert!(read["returned_ns"].as_u64() >= Some(3_000_000), "the function delays it: {read}");
    assert!(read["sent_ns"].as_u64() < Some(3_000_000), "before the function: {read}");
}

#[test]
fn a_trace_of_slow_commands_leaves_out_all_others() {
    let daemon = Daemon::start(DRIVE);
    let mut host = daemon.host("d");
    let mut disk = namespace(&mut host, 1);
    let mut child = start(&daemon, &["d", "--count", "2", "--slow", "2900"]);
    for _ in 0..2 {
        disk.flush().expect("nothing is wrong");
        disk.read(0, &mut [0; 512]).expect("it is in range");
    }
    let found = lines(&mut child);
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(
        found[0].contains("OPERATION") && found[1..].iter().all(|line| line.contains(" read ")),
        "{found:?}"
    );
}

#[test]
fn a_trace_ends_with_its_time_and_with_its_drive() {
    let daemon = Daemon::start(DRIVE);
    let nothing = daemon.ok(&["trace", "d", "--seconds", "0"]);
    assert_eq!(nothing.lines().count(), 1, "{nothing}");
    assert!(daemon.fails(&["trace", "e"]).contains("there is no drive `e`"));
}

#[test]
fn a_trace_ends_with_its_drive() {
    let daemon = Daemon::start(DRIVE);
    daemon.ok(&["drive", "create", "f", "--null", "1MiB"]);
    let mut child = start(&daemon, &["f"]);
    assert!(daemon.fails(&["trace", "f"]).contains("traced already"));
    daemon.ok(&["drive", "delete", "f"]);
    assert_eq!(lines(&mut child).len(), 1, "only the heading");
}

#[test]
fn the_verdict_of_a_classifier_has_a_time() {
    let daemon = Daemon::start(DRIVE);
    let program = compile(daemon.folder.path(), "counting", COUNTING).display().to_string();
    daemon.ok(&["classifier", "attach", "d", &program]);
    let mut host = daemon.host("d");
    let mut disk = namespace(&mut host, 1);
    let mut child = start(&daemon, &["d", "--count", "2", "--json", "--every", "1"]);
    (0..2).for_each(|_| disk.write(8, &[7; 4096]).expect("it is in range"));
    let found = lines(&mut child);
    let command: serde_json::Value = serde_json::from_str(&found[0]).expect("JSON");
    let time = |key: &str| command[key].as_u64();
    assert!(time("classified_ns").is_some() && time("classified_ns") <= time("sent_ns"), "{command}");
}

#[test]
fn a_trace_goes_on_when_its_drive_moves_and_its_queues_stay_together() {
    let daemon = of_two_reactors("1MiB", "");
    let mut host = daemon.host("disk");
    let mut disk = namespace(&mut host, 1);
    let mut child = start(&daemon, &["disk", "--count", "3", "--json", "--every", "1"]);
    disk.write(0, &[1; 512]).expect("it is in range");
    let said = daemon.fails(&["drive", "move", "disk", "--queue", "1", "--reactor", "1"]);
    assert!(said.contains("its commands are traced"), "{said}");
    for (reactor, block) in [("1", 1), ("0", 2)] {
        daemon.ok(&["drive", "move", "disk", "--reactor", reactor]);
        disk.write(block, &[1; 512]).expect("it is in range");
    }
    let blocks: Vec<_> = lines(&mut child).iter().map(|line| parsed(line)["slba"].as_u64()).collect();
    assert_eq!(blocks, [Some(0), Some(1), Some(2)]);
    daemon.ok(&["drive", "move", "disk", "--queue", "1", "--reactor", "1"]);
}
