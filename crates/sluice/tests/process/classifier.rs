//! Classifiers on drives of a daemon: their effects, their limits, and how they are attached and detached.

use crate::common::{Daemon, namespace, wait_for};
use crate::programs::{COUNTING, ENDLESS, FORGING, IMPOSSIBLE, SHARED, TALKING, WILD, compile, compile_own};
use serde_json::Value;
use sluice_nvme::Status;
use std::path::Path;

const MEMORY: &str =
    "[[drive]]\nname = \"demo\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"64MiB\"\n";

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

fn show(daemon: &Daemon) -> Value {
    json(&daemon.ok(&["classifier", "show", "demo", "-o", "json"]))
}

/// Returns the numbers in a map, by key.
pub(crate) fn numbers(daemon: &Daemon, map: &str) -> Vec<u64> {
    let dump = json(&daemon.ok(&["classifier", "maps", "dump", "demo", map, "-o", "json"]));
    let number = |entry: &Value| {
        let digits = entry["value"].as_str().expect("hexadecimal");
        u64::from_str_radix(&digits[..16], 16).expect("hexadecimal").swap_bytes()
    };
    dump["entries"].as_array().expect("a list").iter().map(number).collect()
}

pub(crate) fn attach(daemon: &Daemon, name: &str, source: &str, more: &[&str]) -> String {
    let object = compile(daemon.folder.path(), name, source).display().to_string();
    daemon.ok(&[&["classifier", "attach", "demo", &object], more].concat())
}

#[test]
fn a_program_comes_is_seen_and_goes() {
    let daemon = Daemon::start(MEMORY);
    let mut host = daemon.host("demo");
    let mut disk = namespace(&mut host, 1);
    let complaint = daemon.fails(&["classifier", "show", "demo"]);
    assert!(complaint.contains("drive `demo` has no classifier"), "{complaint}");
    let shown = attach(&daemon, "counting", COUNTING, &[]);
    assert!(shown.contains("state:       attached") && shown.contains("machine code"), "{shown}");
    for block in 0..10 {
        disk.write(block, &[7; 512]).expect("it takes the first path");
    }
    assert_eq!(numbers(&daemon, "calls"), [10, 0, 10]);
    let status = show(&daemon);
    assert_eq!((&status["hooks"]["submission"], &status["traps"]), (&10.into(), &0.into()));
    assert_eq!(status["errors"], Value::Array(Vec::new()));
    let object = daemon.folder.path().join("counting.o").display().to_string();
    assert!(daemon.fails(&["classifier", "attach", "demo", &object]).contains("classifier replace demo"));
    // Maps of equal name and shape stay, unless fresh ones are requested.
    daemon.ok(&["classifier", "replace", "demo", &object]);
    assert_eq!(numbers(&daemon, "calls"), [10, 0, 10]);
    daemon.ok(&["classifier", "replace", "demo", &object, "--fresh-maps"]);
    assert_eq!(numbers(&daemon, "calls"), [0, 0, 0]);
    assert!(daemon.ok(&["drive", "show", "demo"]).contains("counting-"));
    daemon.ok(&["classifier", "detach", "demo"]);
    disk.read(0, &mut [0; 512]).expect("as without one");
    assert!(daemon.fails(&["classifier", "detach", "demo"]).contains("has no classifier"));
}

#[test]
fn maps_are_read_and_changed() {
    let daemon = Daemon::start(MEMORY);
    attach(&daemon, "counting", COUNTING, &[]);
    let maps = |words: &[&str]| daemon.ok(&[&["classifier", "maps"], words].concat());
    assert_eq!(
        maps(&["list", "demo"]),
        "NAME   KIND   KEY  VALUE  ENTRIES  ACCESS\ncalls  array    4      8        3  write\n"
    );
    maps(&["set", "demo", "calls", "1", "500"]);
    assert_eq!(maps(&["get", "demo", "calls", "1"]), "500\n");
    assert_eq!(maps(&["dump", "demo", "calls"]), "KEY  VALUE\n  1    500\n2 elements are zero\n");
    let fails = |words: &[&str]| daemon.fails(&[&["classifier", "maps"], words].concat());
    assert!(fails(&["get", "demo", "calls", "3"]).contains("no such key"));
    assert!(fails(&["get", "demo", "cals", "0"]).contains("has no map `cals`"));
    assert!(fails(&["set", "demo", "calls", "0", "hex:00"]).contains("not 8 bytes in hexadecimal"));
    assert!(fails(&["set", "demo", "calls", "x", "1"]).contains("`x` is not a key of 4 bytes"));
    assert!(fails(&["delete", "demo", "calls", "0"]).contains("the map cannot do this"));
}

#[test]
fn a_program_speaks_and_counts() {
    let daemon = Daemon::start(MEMORY);
    let mut host = daemon.host("demo");
    attach(&daemon, "talking", TALKING, &[]);
    let mut disk = namespace(&mut host, 1);
    disk.read(0, &mut [0; 512]).expect("it takes the first path");
    disk.write(0, &[0; 512]).expect("it takes the first path");
    // Showing the state removes nothing from it.
    for _ in 0..2 {
        let status = show(&daemon);
        assert_eq!(status["trace"].as_array().expect("a list").len(), 2);
        assert_eq!(status["trace"][1]["text"], "a command came");
        assert_eq!((&status["counters"][1], &status["counters"][2]), (&1.into(), &1.into()));
    }
}

#[test]
fn what_is_refused_is_said_with_its_place() {
    let daemon = Daemon::start(MEMORY);
    let refuse = |name: &str, source: &str| {
        let object = compile(daemon.folder.path(), name, source).display().to_string();
        daemon.fails(&["classifier", "attach", "demo", &object])
    };
    let complaint = refuse("forging", FORGING);
    assert!(complaint.contains("forging"), "{complaint}");
    assert!(complaint.contains(": instruction ") && complaint.contains("`ctx->nsid = 2;`"), "{complaint}");
    let complaint = refuse("none", "SEC(\"other\")\nsluice_verdict elsewhere(void) { return 0; }\n");
    assert!(complaint.contains("none") && complaint.contains("other"), "{complaint}");
    let nothing = daemon.folder.path().join("nothing.o").display().to_string();
    assert!(daemon.fails(&["classifier", "attach", "demo", &nothing]).contains("nothing.o does not exist"));
    assert!(daemon.fails(&["classifier", "show", "demo"]).contains("has no classifier"));
    let kept = std::fs::read_dir(daemon.folder.path().join("state/objects"));
    assert!(kept.is_ok_and(|mut kept| kept.next().is_none()), "nothing is left of them");
}

/// Checks that reads of a drive with this program fail. The program is detached after three of them, and the
/// other drive is not affected. Returns the classifier's status after the detachment.
fn misbehaves(name: &str, source: &str, reason: &str) -> Value {
    let other = MEMORY.replace("demo", "other");
    let mut daemon = Daemon::start(&format!("{MEMORY}{other}"));
    let (mut host, mut second) = (daemon.host("demo"), daemon.host("other"));
    let (mut disk, mut unharmed) = (namespace(&mut host, 1), namespace(&mut second, 1));
    attach(&daemon, name, source, &["--errors-max", "3"]);
    for round in 0..3 {
        disk.write(50, &[round; 512]).expect("writes are well");
        let error = disk.read(50, &mut [0; 512]).expect_err("the program fails it");
        assert!(error.status().is_some_and(|status| status.same_code(Status::INTERNAL_ERROR)), "{error}");
        let mut read = [0; 512];
        unharmed.write(50, &[round; 512]).expect("it has no classifier");
        unharmed.read(50, &mut read).expect("it has no classifier");
        assert_eq!(read, [round; 512]);
    }
    let mut read = [0; 512];
    disk.read(50, &mut read).expect("the program is detached");
    assert_eq!(read, [2; 512]);
    let status = show(&daemon);
    assert_eq!(status["detached"], serde_json::json!([1]));
    assert_eq!(status["errors"], serde_json::json!([{ "error": reason, "commands": 3 }]));
    let shown = daemon.ok(&["classifier", "show", "demo"]);
    assert!(shown.contains("detached for its errors from namespace 1"), "{shown}");
    let log = daemon.log();
    assert!(log.contains("the classifier made too many errors and was detached"), "{log}");
    // The program stays detached when the daemon is killed and started again.
    let state = daemon.folder.path().join("state/drives.state");
    let remembered = || std::fs::read_to_string(&state).is_ok_and(|text| text.contains("\"detached\""));
    wait_for("the detachment to be remembered", remembered);
    daemon.crash();
    daemon.restart();
    let mut host = daemon.host("demo");
    let mut disk = namespace(&mut host, 1);
    disk.write(50, &[2; 512]).expect("the drive is empty again");
    disk.read(50, &mut read).expect("the program is detached still");
    assert_eq!(show(&daemon)["detached"], serde_json::json!([1]));
    // A repaired program may be attached.
    let mended = compile(daemon.folder.path(), "mended", COUNTING).display().to_string();
    daemon.ok(&["classifier", "replace", "demo", &mended]);
    disk.read(50, &mut read).expect("it takes the first path");
    assert_eq!(numbers(&daemon, "calls"), [1, 0, 1]);
    assert_eq!(show(&daemon)["errors"], Value::Array(Vec::new()));
    status
}

#[test]
fn an_impossible_verdict_fails_commands_and_detaches() {
    let status = misbehaves("impossible", IMPOSSIBLE, "the verdict starts a leg that has no path");
    assert_eq!(status["traps"], 0);
}

#[test]
fn an_endless_loop_fails_commands_and_detaches() {
    let status = misbehaves("endless", ENDLESS, "the program ended without a verdict");
    assert_eq!(status["traps"], 3);
    let trap = status["last_trap"].as_str().expect("it ended that way");
    assert!(trap.contains("endless.c:") && trap.ends_with("the program ran for too long"), "{trap}");
}

#[test]
fn an_access_out_of_bounds_fails_commands_and_detaches() {
    let status = misbehaves("wild", WILD, "the program ended without a verdict");
    let trap = status["last_trap"].as_str().expect("it ended that way");
    assert!(trap.contains("wild.c:") && trap.contains("outside the program's memory"), "{trap}");
}

#[test]
fn what_was_attached_is_there_after_a_crash() {
    let mut daemon = Daemon::start(MEMORY);
    daemon.ok(&["drive", "create", "web", "--memory", "1MiB"]);
    let object = compile(daemon.folder.path(), "counting", COUNTING);
    let path = object.display().to_string();
    for drive in ["demo", "web"] {
        daemon.ok(&["classifier", "attach", drive, &path, "--errors-max", "9", "--precise-clock"]);
    }
    // The daemon has a copy of its own, so the object may go.
    std::fs::remove_file(&object).expect("it is there");
    daemon.crash();
    daemon.restart();
    for drive in ["demo", "web"] {
        let mut host = daemon.host(drive);
        namespace(&mut host, 1).write(0, &[1; 512]).expect("it takes the first path");
        let status = json(&daemon.ok(&["classifier", "show", drive, "-o", "json"]));
        assert_eq!((&status["hooks"]["submission"], &status["errors_max"]), (&1.into(), &9.into()));
        assert_eq!(status["precise_clock"], true);
    }
    assert_eq!(daemon.ok(&["reload"]), "no drive came or went\n", "demo is what it was declared to be");
    daemon.ok(&["classifier", "detach", "demo"]);
    daemon.crash();
    daemon.restart();
    assert!(daemon.fails(&["classifier", "show", "demo"]).contains("has no classifier"));
    daemon.ok(&["classifier", "show", "web"]);
}

#[test]
fn a_declared_program_decides_from_the_first_command_on() {
    let classifier = "[drive.classifier]\nobject = \"first.o\"\nerrors_max = 5\n";
    let drives = MEMORY.replace("[[drive.namespace]]", &format!("{classifier}[[drive.namespace]]"));
    let mut daemon = Daemon::start(&drives);
    let shown = daemon.ok(&["drive", "show", "demo"]);
    assert!(shown.contains("state:     failed") && shown.contains("DIR/first.o does not exist"), "{shown}");
    compile(daemon.folder.path(), "first", COUNTING);
    daemon.ok(&["drive", "open", "demo"]);
    let mut host = daemon.host("demo");
    namespace(&mut host, 1).read(0, &mut [0; 512]).expect("it takes the first path");
    assert_eq!(numbers(&daemon, "calls"), [1, 0, 1]);
    // An order through the API holds until the file changes.
    daemon.ok(&["classifier", "detach", "demo"]);
    daemon.stop();
    daemon.restart();
    assert!(daemon.fails(&["classifier", "show", "demo"]).contains("has no classifier"));
    daemon.stop();
    daemon.declare("", &drives.replace("errors_max = 5", "errors_max = 6"));
    daemon.restart();
    assert_eq!(show(&daemon)["errors_max"], 6);
    assert_eq!(show(&daemon)["precise_clock"], false);
}

#[test]
fn observe_counts_what_a_drive_does() {
    let daemon = Daemon::start(MEMORY);
    let mut host = daemon.host("demo");
    let object = compile_own(daemon.folder.path(), "observe").display().to_string();
    daemon.ok(&["classifier", "attach", "demo", &object]);
    let mut disk = namespace(&mut host, 1);
    for block in 0..7 {
        disk.write(block * 8, &[1; 4096]).expect("it is in range");
    }
    for _ in 0..5 {
        disk.read(0, &mut [0; 512]).expect("it is in range");
    }
    disk.flush().expect("it can be flushed");
    disk.compare(0, &[2; 512]).expect_err("it is something else");
    let map = |name: &str| numbers(&daemon, name);
    let opcodes = map("opcodes");
    assert_eq!((opcodes[0], opcodes[1], opcodes[2]), (1, 7, 5), "flushes, writes, reads");
    let sizes = map("sizes");
    assert_eq!((sizes[9], sizes[12]), (6, 7), "of 512 and of 4096 bytes");
    let sum = |name: &str| map(name).iter().sum::<u64>();
    assert_eq!((sum("read_ns"), sum("write_ns"), sum("other_ns")), (5, 7, 2));
    let bytes = daemon.ok(&["classifier", "maps", "get", "demo", "opcodes", "1"]);
    assert_eq!(bytes, format!("7,0,{}\n", 7 * 4096));
    assert!(map("started").is_empty(), "nothing is in flight");
    assert!(show(&daemon)["errors"].as_array().is_some_and(Vec::is_empty));
}

#[test]
fn the_namespaces_of_a_drive_have_one_set_of_maps() {
    let second = "[[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\nblock_size = 4096\n";
    let daemon = Daemon::start(&format!("{MEMORY}{second}"));
    attach(&daemon, "counting", COUNTING, &[]);
    let mut host = daemon.host("demo");
    let mut first = namespace(&mut host, 1);
    first.write(0, &[1; 512]).expect("it takes the first path");
    let queue = host.create_queue_pair(2, sluice_host::QueueLayout::default(), None).expect("a queue pair");
    let mut disk = sluice_host::Namespace::open(&mut host, 2, queue).expect("it is active");
    disk.write(0, &[1; 4096]).expect("it takes the first path");
    assert_eq!(numbers(&daemon, "calls"), [2, 0, 2]);
}

#[test]
fn a_deleted_drive_leaves_no_copies() {
    let daemon = Daemon::start("");
    let objects = daemon.folder.path().join("state/objects");
    let kept = |objects: &Path| std::fs::read_dir(objects).map_or(0, Iterator::count);
    let object = compile(daemon.folder.path(), "counting", COUNTING).display().to_string();
    daemon.ok(&["drive", "create", "web", "--null", "1MiB"]);
    daemon.ok(&["classifier", "attach", "web", &object]);
    assert_eq!(kept(&objects), 1);
    wait_for("the end of the drive", || daemon.run(&["drive", "delete", "web"]).status.success());
    // The previous version of the state file still names the object.
    daemon.ok(&["drive", "create", "web", "--null", "1MiB"]);
    daemon.ok(&["classifier", "attach", "web", &object]);
    daemon.ok(&["classifier", "detach", "web"]);
    daemon.ok(&["drive", "delete", "web"]);
    assert_eq!(kept(&objects), 0);
}

/// Checks that two drives on two reactors count in one map at the same time, and each in one of its own.
#[test]
fn a_shared_map_is_one_for_all_drives() {
    const COMMANDS: u64 = 2000;
    let names = ["demo", "other"];
    let drives =
        (0..2).map(|index| MEMORY.replace("\"demo\"", &format!("\"{}\"\nreactor = {index}", names[index])));
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("cores = [0, 1]", &drives.collect::<String>());
    daemon.restart();
    let object = compile(daemon.folder.path(), "shared", SHARED).display().to_string();
    for name in names {
        daemon.ok(&["classifier", "attach", name, &object]);
    }
    let count = |drive: &str, map: &str| {
        daemon.ok(&["classifier", "maps", "get", drive, map, "0"]).trim().parse::<u64>().expect("a number")
    };
    std::thread::scope(|scope| {
        for name in names {
            let mut host = daemon.host(name);
            scope.spawn(move || {
                let mut disk = namespace(&mut host, 1);
                for _ in 0..COMMANDS {
                    disk.read(0, &mut [0; 512]).expect("it takes the first path");
                }
            });
        }
    });
    for name in names {
        assert_eq!((count(name, "own"), count(name, "common")), (COMMANDS, 2 * COMMANDS));
    }
    // A shared map exists for as long as a drive has it. `--fresh-maps` is about the drive's own maps.
    daemon.ok(&["classifier", "replace", "demo", &object, "--fresh-maps"]);
    assert_eq!((count("demo", "own"), count("demo", "common")), (0, 2 * COMMANDS));
    daemon.ok(&["classifier", "detach", "demo"]);
    assert_eq!(count("other", "common"), 2 * COMMANDS);
    daemon.ok(&["classifier", "detach", "other"]);
    wait_for("the last program to retire", || {
        daemon.ok(&["classifier", "attach", "demo", &object]);
        let left = count("demo", "common");
        daemon.ok(&["classifier", "detach", "demo"]);
        left == 0
    });
}
