//! Events of the drives, and the table of their work.

use crate::common::{BINARY, Daemon, namespace, wait_for};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

const DRIVE: &str = "[[drive]]\nname = \"d\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n";

/// Returns the kinds and drives of all events.
fn events(daemon: &Daemon) -> Vec<(String, String)> {
    let lines = daemon.ok(&["-o", "json", "events"]);
    let event = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let word = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        assert!(event["number"].is_u64() && event["time_ms"].is_u64() && !word("text").is_empty(), "{line}");
        (word("event"), word("drive"))
    };
    lines.lines().map(event).collect()
}

fn has(daemon: &Daemon, event: &str, drive: &str) -> bool {
    events(daemon).contains(&(event.to_owned(), drive.to_owned()))
}

#[test]
fn drives_and_clients_come_and_go_as_events() {
    let missing = "[[drive]]\nname = \"e\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"missing\"\n";
    let daemon = Daemon::start(&format!("{DRIVE}{missing}"));
    wait_for("the first look", || has(&daemon, "drive_opened", "d") && has(&daemon, "drive_failed", "e"));
    let host = daemon.host("d");
    wait_for("a client", || has(&daemon, "client_connected", "d"));
    drop(host);
    wait_for("no client", || has(&daemon, "client_gone", "d"));
    daemon.ok(&["drive", "create", "f", "--null", "1MiB"]);
    wait_for("a drive", || has(&daemon, "drive_added", "f"));
    daemon.ok(&["drive", "delete", "f"]);
    wait_for("no drive", || has(&daemon, "drive_removed", "f"));
    let all = events(&daemon);
    let kinds: Vec<&str> =
        all.iter().filter(|(_, drive)| drive == "d").map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["drive_added", "drive_opened", "client_connected", "client_gone"]);
    let last = daemon.ok(&["-o", "json", "events", "--since", &(all.len() - 1).to_string()]);
    assert!(last.lines().count() == 1 && last.contains("drive_removed"), "{last}");
}

#[test]
fn a_follower_sees_events_until_the_daemon_stops() {
    let mut daemon = Daemon::start(DRIVE);
    let mut follower = Command::new(BINARY)
        .args(["events", "-f", "--api"])
        .arg(daemon.api())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary is there");
    let mut lines = BufReader::new(follower.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    let mut next = |kind: &str| lines.by_ref().find(|line| line.contains(kind)).expect(kind);
    assert!(next("drive_opened").contains("  d  "));
    daemon.ok(&["drive", "create", "f", "--null", "1MiB"]);
    assert!(next("drive_added").contains("  f  "));
    daemon.stop();
    assert!(follower.wait().expect("it ends with the daemon").success());
}

#[test]
fn top_shows_the_work_of_an_interval() {
    let daemon = Daemon::start(&format!("[metrics]\nlatency = true\n{DRIVE}"));
    let mut host = daemon.host("d");
    let mut disk = namespace(&mut host, 1);
    let busy = std::sync::atomic::AtomicBool::new(true);
    let shown = std::thread::scope(|scope| {
        scope.spawn(|| {
            while busy.load(std::sync::atomic::Ordering::Relaxed) {
                disk.write(0, &[7; 4096]).expect("it is in range");
            }
        });
        let shown = daemon.ok(&["-o", "json", "top", "--interval", "0.5"]);
        busy.store(false, std::sync::atomic::Ordering::Relaxed);
        shown
    });
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let drive = &shown["drives"][0];
    let number = |value: &serde_json::Value| value.as_f64().expect("a number");
    assert!(
        drive["drive"] == "d" && drive["state"] == "connected" && number(&drive["iops"]) > 0.0,
        "{shown}"
    );
    let bytes = number(&drive["write_mb_s"]) * 1e6 / number(&drive["iops"]);
    assert!((bytes - 4096.0).abs() < 1.0 && number(&drive["read_mb_s"]) == 0.0, "{shown}");
    assert!(
        number(&drive["p99_ns"]) >= number(&drive["p50_ns"]) && number(&drive["p50_ns"]) > 0.0,
        "{shown}"
    );
    assert!(number(&shown["reactors"][0]["busy"]) > 0.0, "{shown}");
    let table = daemon.ok(&["top", "--interval", "0.2"]);
    assert!(table.contains("P99-US") && !table.contains('\u{1b}'), "no terminal: {table}");
    let refused = daemon.run(&["top", "--interval", "0"]);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("seconds"));
}
