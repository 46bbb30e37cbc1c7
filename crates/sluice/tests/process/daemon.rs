//! The daemon as a process, with hosts on its drives.

use crate::common::{Daemon, LIMIT, namespace, sealable, tool, wait_for};
use rustix::fs::{SealFlags, fcntl_add_seals};
use rustix::process::Signal;
use sluice_host::{Controller, Deadline, DmaBuffer, Namespace, QueueLayout, entry, identify};
use sluice_nvme::Status;
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;

const MEMORY: &str =
    "[[drive]]\nname = \"demo\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"64MiB\"\n";

fn with_function(function: &str) -> String {
    format!("{MEMORY}functions = [ {function} ]\n")
}

fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|index| (index as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[test]
fn what_one_client_writes_the_next_one_reads() {
    let daemon = Daemon::start(MEMORY);
    let written = pattern(1, 256 << 10);
    let mut host = daemon.host("demo");
    let identity = *host.identity().expect("it was identified");
    assert_eq!(identify::text(&identity.sn), "SL07F72FB3AF456330");
    assert_eq!(identify::text(&identity.mn), "Sluice Virtual NVMe Drive");
    let mut disk = namespace(&mut host, 1);
    assert_eq!(disk.identity().nsze, (64 << 20) / 512);
    disk.write(7, &written).expect("it is in range");
    drop((disk, host));
    let mut host = daemon.host("demo");
    let mut read = vec![0; written.len()];
    namespace(&mut host, 1).read(7, &mut read).expect("it is in range");
    assert!(read == written);
    let shown = daemon.ok(&["drive", "show", "demo"]);
    assert!(shown.contains("written:   262144 bytes"), "{shown}");
    assert!(shown.contains("state:     connected"), "{shown}");
}

#[test]
fn a_guest_is_told_of_a_new_size() {
    let daemon = Daemon::start(MEMORY);
    let mut host = daemon.host("demo");
    host.request_async_event().expect("the limit is not reached");
    daemon.ok(&["drive", "resize", "demo", "--size", "128MiB"]);
    let event = host.wait_async_event(&Deadline::after(LIMIT, "an event")).expect("an event");
    assert_eq!((event.kind, event.info, event.log_page), (2, 0, 4), "a notice: namespace attribute changed");
    let mut disk = namespace(&mut host, 1);
    assert_eq!(disk.identity().nsze, (128 << 20) / 512);
    let last = (128 << 20) / 512 - 1;
    disk.write(last, &pattern(2, 512)).expect("the new blocks are there");
    let complaint = daemon.fails(&["drive", "resize", "demo", "--size", "64MiB"]);
    assert!(complaint.contains("--shrink"), "{complaint}");
    daemon.ok(&["drive", "resize", "demo", "--size", "64MiB", "--shrink"]);
    let error = disk.write(last, &pattern(2, 512)).expect_err("they are gone");
    assert!(error.status().is_some_and(|status| status.same_code(Status::LBA_OUT_OF_RANGE)), "{error}");
}

/// Checks that the guest sees the size of the file, also when the file cannot be shrunk.
#[test]
fn a_drive_whose_file_cannot_be_made_smaller_stays_as_large_as_it_was() {
    let (image, path) = sealable();
    let file = format!("target = \"file\"\npath = \"{path}\"");
    let daemon = Daemon::start(&MEMORY.replace("target = \"memory\"", &file));
    fcntl_add_seals(&image, SealFlags::SHRINK).expect("it has none");
    let mut host = daemon.host("demo");
    let complaint = daemon.fails(&["drive", "resize", "demo", "--size", "32MiB", "--shrink"]);
    assert!(complaint.contains("cannot be resized"), "{complaint}");
    let mut disk = namespace(&mut host, 1);
    assert_eq!(disk.identity().nsze, (64 << 20) / 512);
    disk.write((64 << 20) / 512 - 1, &pattern(2, 512)).expect("it is there still");
    let shown = daemon.ok(&["drive", "show", "demo"]);
    assert!(shown.contains("64MiB") && !shown.contains("32MiB"), "{shown}");
}

#[test]
fn functions_do_what_the_configuration_says() {
    let fault = r#"{ kind = "fault", outcome = "fail", status = "write_fault", operations = ["write"], from = 512, to = 1024 }"#;
    let daemon = Daemon::start(&with_function(&format!("{{ kind = \"pass\", watch = true }}, {fault}")));
    let mut host = daemon.host("demo");
    let mut disk = namespace(&mut host, 1);
    disk.write(0, &pattern(0, 512)).expect("not in the range");
    let error = disk.write(1, &pattern(0, 512)).expect_err("in the range");
    assert!(error.status().is_some_and(|status| status.same_code(Status::WRITE_FAULT)), "{error}");
    disk.read(1, &mut [0; 512]).expect("reads pass");
    assert!(daemon.ok(&["drive", "show", "demo"]).contains("pass, fault"));
}

#[test]
fn created_drives_survive_a_crash() {
    let mut daemon = Daemon::start(MEMORY);
    daemon.ok(&["drive", "create", "web", "--memory", "1MiB", "--block-size", "4096"]);
    daemon.ok(&["drive", "create", "gone", "--null", "1GiB"]);
    daemon.ok(&["drive", "resize", "web", "--size", "2MiB"]);
    daemon.ok(&["drive", "delete", "gone"]);
    assert!(!daemon.socket("gone").exists());
    let image = daemon.folder.path().join("x.img").display().to_string();
    daemon.ok(&["drive", "create", "file", "--file", &image, "--size", "1MiB"]);
    // Several rounds are needed: the kernel releases a killed daemon's sockets and locks after a while.
    for _ in 0..5 {
        daemon.crash();
        assert!(daemon.socket("web").exists() && daemon.api().exists(), "as crashes leave them");
        daemon.restart();
        let list = daemon.ok(&["drive", "list"]);
        assert!(!list.contains("failed"), "{list}{}", daemon.log());
    }
    let mut host = daemon.host("web");
    let disk = namespace(&mut host, 1);
    assert_eq!((disk.block_size(), disk.identity().nsze), (4096, 512));
    assert!(!daemon.ok(&["drive", "list"]).contains("gone"));
}

#[test]
fn a_drive_that_is_created_can_be_used_at_once() {
    let daemon = Daemon::start("");
    for round in 0..20 {
        daemon.ok(&["drive", "create", "d", "--memory", "1MiB"]);
        let mut host = daemon.host("d");
        namespace(&mut host, 1).write(0, &pattern(round, 512)).expect("it is in range");
        let complaint = daemon.fails(&["drive", "delete", "d"]);
        assert!(complaint.contains("has a client"), "{complaint}");
        drop(host);
        wait_for("the client's end", || daemon.run(&["drive", "delete", "d"]).status.success());
    }
}

#[test]
fn a_forced_delete_disconnects() {
    let daemon = Daemon::start("");
    daemon.ok(&["drive", "create", "d", "--memory", "1MiB"]);
    let mut host = daemon.host("d");
    daemon.ok(&["drive", "delete", "d", "--force"]);
    assert!(host.identify_namespace(1).is_err());
    assert!(!daemon.socket("d").exists());
}

#[test]
fn a_drain_waits_for_commands_in_flight_and_tells_the_guest() {
    let mut daemon = Daemon::start(&with_function("{ kind = \"delay\", read_us = 300000 }"));
    let mut host = daemon.host("demo");
    // The request is in flight for ever, and the stop must not wait for it.
    host.request_async_event().expect("the limit is not reached");
    let interrupt = host.interrupt(1).expect("wired");
    let mut queue = host.create_queue_pair(1, QueueLayout::default(), Some(1)).expect("created");
    let data = host.memory().allocate(4096).expect("memory");
    let cid = queue.submit_prp(entry::read(1, 0, 1), data.range(0, 512)).expect("room in the queue");
    queue.ring().expect("a doorbell");
    wait_for("the command", || daemon.ok(&["drive", "show", "demo"]).contains("in flight: 1"));
    daemon.stop();
    interrupt.wait(&Deadline::after(LIMIT, "the last interrupt")).expect("it was sent");
    let mut completed = Vec::new();
    queue.reap(|completion| completed.push((completion.cid, completion.status().is_success())));
    assert_eq!(completed, [(cid, true)]);
    assert!(host.read32(0).is_err(), "and then it was disconnected");
    let log = daemon.log();
    assert!(log.contains("told to stop by SIGTERM") && log.contains("every command finished"), "{log}");
    assert!(!daemon.socket("demo").exists() && !daemon.api().exists());
}

/// Checks that hosts cannot connect at the end of a daemon. A host that finds no such subsystem does not come
/// back, but a host that cannot connect does.
#[test]
fn a_daemon_that_stops_lets_no_host_in_on_the_network() {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let hang = with_function(r#"{ kind = "fault", outcome = "hang", operations = ["read"] }"#);
    let far =
        "[[drive]]\nname = \"far\"\ntcp = {}\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n";
    let tcp = format!("[tcp]\nlisten = [\"127.0.0.1:{port}\"]\n");
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("drain_s = 1000", &format!("{tcp}{far}{hang}"));
    daemon.restart();
    let _held = with_a_read_that_hangs(&daemon);
    let come = || TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.kind());
    come().expect("hosts are let in");
    daemon.signal(Signal::TERM);
    wait_for("a word of it", || daemon.log().contains("waiting for 1 command of drive demo"));
    assert_eq!(come().map(drop), Err(ErrorKind::ConnectionRefused));
    daemon.signal(Signal::INT);
    daemon.wait();
}

/// Connects a host to a drive whose reads hang, and sends one.
fn with_a_read_that_hangs(daemon: &Daemon) -> (DmaBuffer, Namespace, Controller) {
    let mut host = daemon.host("demo");
    let mut disk = namespace(&mut host, 1);
    let data = host.memory().allocate(4096).expect("memory");
    disk.queue().submit_prp(entry::read(1, 0, 1), data.range(0, 512)).expect("room in the queue");
    disk.queue().ring().expect("a doorbell");
    wait_for("the command", || daemon.ok(&["drive", "show", "demo"]).contains("in flight: 1"));
    (data, disk, host)
}

#[test]
fn a_drain_has_its_limits() {
    let hang = with_function(r#"{ kind = "fault", outcome = "hang", operations = ["read"] }"#);
    let mut daemon = Daemon::start("");
    for (settings, signals) in [("drain_s = 0", 1), ("drain_s = 1000", 2)] {
        daemon.stop();
        daemon.declare(settings, &hang);
        daemon.restart();
        let _held = with_a_read_that_hangs(&daemon);
        daemon.signal(Signal::TERM);
        if signals == 2 {
            wait_for("a word of it", || daemon.log().contains("waiting for 1 command of drive demo"));
            daemon.signal(Signal::INT);
        }
        assert_eq!(daemon.wait().code(), Some(1));
        let log = daemon.log();
        assert!(log.contains("did not wait any longer for 1 command of drive demo"), "{log}");
        daemon.declare("", "");
        daemon.restart();
    }
}

#[test]
fn two_daemons_do_not_share() {
    let daemon = Daemon::start(MEMORY);
    let second = |settings: &str| {
        let config = daemon.folder.path().join("second.toml");
        std::fs::write(&config, format!("[daemon]\n{settings}\n{MEMORY}")).expect("room on the disk");
        let done =
            tool(&daemon.folder.path().join("unused"), &["serve", "-c", &config.display().to_string()]);
        assert_eq!(done.status.code(), Some(1));
        daemon.plain(&done.stderr)
    };
    let state = second("api = \"other.sock\"\nstate = \"state\"\nsockets = \"others\"");
    assert!(state.contains("error: the state folder DIR/state is in use by process"), "{state}");
    assert!(state.contains("hint: "), "{state}");
    let api = second("api = \"api.sock\"\nstate = \"other\"\nsockets = \"others\"");
    assert!(api.contains("error: the API socket DIR/api.sock is in use by process"), "{api}");
    let sockets = second("api = \"other.sock\"\nstate = \"other\"\nsockets = \"drives\"");
    assert!(sockets.contains("error: the sockets folder DIR/drives is in use by process"), "{sockets}");
    assert!(daemon.ok(&["drive", "list"]).contains("demo"), "the first is well");
}

#[test]
fn sockets_have_the_mode_that_is_configured() {
    let mut daemon = Daemon::start(MEMORY);
    let mode =
        |daemon: &Daemon| sluice_control::listen::mode_of(&daemon.socket("demo")).expect("it is there");
    assert_eq!(mode(&daemon), 0o600);
    daemon.stop();
    daemon.declare("socket_mode = \"0660\"", MEMORY);
    daemon.restart();
    assert_eq!(mode(&daemon), 0o660);
    let folder = daemon.socket("demo").parent().map(sluice_control::listen::mode_of).expect("a folder");
    assert_eq!(folder.expect("it is there"), 0o755, "whoever may connect can get there");
}

/// Returns a group that a file can be given to: any, if the user is root.
fn other_group(folder: &std::path::Path) -> u32 {
    const ANY: u32 = 12_345;
    let given = std::os::unix::fs::chown(folder, None, Some(ANY));
    if given.is_ok() { ANY } else { rustix::process::getegid().as_raw() }
}

#[test]
fn sockets_have_the_group_that_is_configured() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    let group = other_group(&daemon.folder.path().join("drives"));
    let drive = MEMORY.replace("[[drive.namespace]]", "[drive.vfio_user]\nsockets = 2\n[[drive.namespace]]");
    daemon.declare(&format!("socket_group = \"{group}\""), &drive);
    daemon.restart();
    let socket = daemon.socket("demo");
    let folder = socket.parent().expect("a folder");
    for (path, mode) in [
        (socket.as_path(), 0o660),
        (folder, 0o750),
        (&folder.join("2"), 0o750),
        (&folder.join("2/cntrl"), 0o660),
    ] {
        let of = |path: &std::path::Path| std::fs::symlink_metadata(path).expect("it is there").gid();
        assert_eq!(
            (of(path), sluice_control::listen::mode_of(path).expect("it is there")),
            (group, mode),
            "{path:?}"
        );
    }
    // A configured mode overrides the usual one of a group.
    daemon.stop();
    daemon.declare(&format!("socket_group = \"{group}\"\nsocket_mode = \"0666\""), &drive);
    daemon.restart();
    let mode = |path: &std::path::Path| sluice_control::listen::mode_of(path).expect("it is there");
    assert_eq!((mode(&socket), mode(folder)), (0o666, 0o755));
}

#[test]
fn files_keep_what_was_written_and_who_comes_second_is_refused() {
    let mut daemon = Daemon::start("");
    let image = daemon.folder.path().join("x.img").display().to_string();
    let written = pattern(3, 1 << 20);
    daemon.ok(&["drive", "create", "a", "--file", &image, "--size", "16MiB"]);
    let mut host = daemon.host("a");
    let mut disk = namespace(&mut host, 1);
    disk.write(100, &written).expect("it is in range");
    let complaint = daemon.fails(&["drive", "create", "b", "--file", &image]);
    assert!(
        complaint.contains("namespace 1 of drive `b`: DIR/x.img is in use by another drive"),
        "{complaint}"
    );
    daemon.ok(&["drive", "resize", "a", "--size", "32MiB"]);
    assert_eq!(std::fs::metadata(&image).expect("it is there").len(), 32 << 20);
    disk.write((32 << 20) / 512 - 1, &written[..512]).expect("the new blocks are there");
    drop((disk, host));
    daemon.stop();
    daemon.restart();
    let mut host = daemon.host("a");
    let mut disk = namespace(&mut host, 1);
    assert_eq!(disk.identity().nsze, (32 << 20) / 512);
    let mut read = vec![0; written.len()];
    disk.read(100, &mut read).expect("it is in range");
    assert!(read == written);
    drop((disk, host));
    wait_for("the client's end", || daemon.run(&["drive", "delete", "a"]).status.success());
    assert!(std::fs::metadata(&image).is_ok(), "files stay");
    daemon.ok(&["drive", "create", "b", "--file", &image]);
    assert!(daemon.ok(&["drive", "show", "b"]).contains("32MiB"));
}

#[test]
fn a_missing_file_does_not_hold_up_the_others() {
    let broken =
        "[[drive]]\nname = \"broken\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"later.img\"\n";
    let daemon = Daemon::start(&format!("{MEMORY}{broken}"));
    let shown = daemon.ok(&["drive", "show", "broken"]);
    assert!(shown.contains("state:     failed"), "{shown}");
    assert!(shown.contains("DIR/later.img does not exist"), "{shown}");
    namespace(&mut daemon.host("demo"), 1).write(0, &pattern(0, 512)).expect("it is well");
    let complaint = daemon.fails(&["drive", "attach", "broken"]);
    assert!(complaint.contains("`sluice drive open broken` tries again"), "{complaint}");
    assert!(daemon.fails(&["drive", "open", "broken"]).contains("does not exist"));
    std::fs::write(daemon.folder.path().join("later.img"), vec![0; 1 << 20]).expect("room on the disk");
    assert!(daemon.ok(&["drive", "open", "broken"]).contains("state:     ready"));
    namespace(&mut daemon.host("broken"), 1).write(0, &pattern(0, 512)).expect("it is in range");
}

#[test]
fn an_idle_daemon_sleeps() {
    let daemon = Daemon::start(MEMORY);
    let _host = daemon.host("demo");
    let turns = || {
        let list = daemon.ok(&["reactor", "list", "-o", "json"]);
        let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
        list["reactors"][0]["turns"].as_u64().expect("a number")
    };
    // An idle reactor makes no turns, but there is no limit on when it becomes idle.
    let mut before = turns();
    wait_for("rest", || before == std::mem::replace(&mut before, turns()));
}

#[test]
fn a_damaged_state_file_stops_the_start_and_nothing_is_lost() {
    let mut daemon = Daemon::start("");
    daemon.ok(&["drive", "create", "a", "--null", "1MiB"]);
    daemon.ok(&["drive", "create", "b", "--null", "1MiB"]);
    daemon.stop();
    let state = daemon.folder.path().join("state/drives.state");
    let whole = std::fs::read(&state).expect("it is there");
    std::fs::write(&state, &whole[..whole.len() / 2]).expect("room on the disk");
    let refused = tool(&daemon.api(), &["serve", "-c", &daemon.config().display().to_string()]);
    let words = daemon.plain(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1));
    assert!(words.contains("error: the state file DIR/state/drives.state cannot be used"), "{words}");
    assert!(words.contains("mv DIR/state/drives.state.previous DIR/state/drives.state"), "{words}");
    std::fs::write(&state, &whole).expect("room on the disk");
    daemon.restart();
    assert_eq!(daemon.ok(&["drive", "list"]).lines().count(), 3);
}

/// Checks the state file of a daemon of version 8125aff: three drives that were created, one with two namespaces
/// and an attached function; and the size of a declared drive, and of a created one, after a resize.
#[test]
fn the_state_of_an_earlier_version_is_used() {
    let earlier = include_bytes!("../fixtures/state-version1");
    let declared = MEMORY.replace("demo", "declared").replace("64MiB", "1MiB");
    let mut daemon = Daemon::start(&declared);
    daemon.stop();
    std::fs::write(daemon.folder.path().join("state/drives.state"), earlier).expect("room on the disk");
    // The second round has the state as this version stores it.
    for round in ["first", "second"] {
        daemon.restart();
        let list = daemon.ok(&["drive", "list"]);
        let rows: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
        for drive in [
            ["declared", "ready", "declared", "1", "2MiB"],
            ["nothing", "ready", "created", "1", "8MiB"],
            ["plain", "ready", "created", "1", "6MiB"],
            ["two", "ready", "created", "2", "2MiB+2MiB"],
        ] {
            assert!(rows.iter().any(|row| row[..5] == drive), "{round}: {drive:?} in\n{list}");
        }
        let plain = daemon.ok(&["drive", "show", "plain", "-o", "json"]);
        assert!(plain.contains("\"serial\": \"S1\"") && plain.contains("\"block_size\": 4096"), "{plain}");
        assert!(daemon.ok(&["drive", "show", "nothing"]).contains("mapped"));
        let two = daemon.ok(&["drive", "show", "two"]);
        assert!(two.contains("pass") && two.contains("concat"), "{two}");
        daemon.ok(&["drive", "create", round, "--null", "1MiB"]);
        daemon.stop();
    }
}

#[test]
fn a_reload_follows_the_configuration_file() {
    let mut daemon = Daemon::start(MEMORY);
    let host = daemon.host("demo");
    let second = MEMORY.replace("demo", "second");
    daemon.declare("", &second);
    let complaint = daemon.run(&["reload"]);
    assert_eq!(complaint.status.code(), Some(1));
    assert_eq!(daemon.plain(&complaint.stdout), "drive second added\n");
    let complaint = daemon.plain(&complaint.stderr);
    assert!(complaint.contains("drive `demo` is no longer declared, but has a client"), "{complaint}");
    drop(host);
    wait_for("the client's end", || daemon.ok(&["drive", "show", "demo"]).contains("state:     ready"));
    assert_eq!(daemon.ok(&["reload"]), "drive demo removed\n");
    assert_eq!(daemon.ok(&["reload"]), "no drive came or went\n");
    namespace(&mut daemon.host("second"), 1).write(0, &pattern(0, 512)).expect("it is well");
    // SIGHUP reloads, too. An invalid file changes nothing.
    daemon.declare("", &format!("{MEMORY}{second}"));
    daemon.signal(Signal::HUP);
    wait_for("the drive", || daemon.ok(&["drive", "list"]).contains("demo"));
    daemon.declare("", "[[drive]]\nnom = 1\n");
    assert!(daemon.fails(&["reload"]).contains("sluice.toml:7: nom: there is no such key here"));
    daemon.signal(Signal::HUP);
    wait_for("a word of it", || daemon.log().contains("not reloaded: "));
    assert_eq!(daemon.ok(&["drive", "list"]).lines().count(), 3);
    daemon.stop();
}
