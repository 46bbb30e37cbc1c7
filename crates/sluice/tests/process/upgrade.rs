//! Upgrades of the daemon under hosts with commands in flight: no command is lost, none fails, and every block has
//! the written data.

use crate::classifier::{attach, numbers};
use crate::common::{BINARY, Daemon, LIMIT, namespace, wait_for};
use crate::groups::{of_two_reactors, try_move};
use crate::load::{Load, block_on};
use crate::programs::COUNTING;
use crate::travel::{CONTROLLER_KEY, HOST_KEY, HOSTNQN, secret};
use crate::tunnel::KEY;
use crate::volatile::LoopDevice;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::process::Signal;
use sluice_api::client::Client;
use sluice_host::{Deadline, Namespace, QueueLayout};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

const DRIVES: &str = "[[drive]]\nname = \"demo\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"disk.img\"\n\
                      size = \"16MiB\"\n[[drive]]\nname = \"other\"\n[[drive.namespace]]\ntarget = \"null\"\n\
                      size = \"1GiB\"\n";

const NQN: &str = "nqn.2026-11.example.sluice:disk";

/// Returns the number of upgrades in a row, which `SLUICE_UPGRADES` can raise.
fn upgrades() -> usize {
    std::env::var("SLUICE_UPGRADES").ok().and_then(|count| count.parse().ok()).unwrap_or(20)
}

/// Runs a load of a drive while the daemon is changed.
fn load_during(load: &mut Load, change: impl FnOnce() + Send) {
    load_during_all(std::slice::from_mut(load), |_| change());
}

/// Runs several loads while the daemon is changed in several steps, which `change` counts. Returns the longest time
/// without a completion of each step.
fn load_during_all(loads: &mut [Load], change: impl FnOnce(&AtomicUsize) + Send) -> Vec<Duration> {
    let (steps, mut longest) = (AtomicUsize::new(0), Vec::new());
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| change(&steps));
        let mut last = vec![Instant::now(); loads.len()];
        while !changing.is_finished() {
            longest.resize(steps.load(SeqCst) + 1, Duration::ZERO);
            for (load, last) in loads.iter_mut().zip(&mut last) {
                let before = load.completed;
                load.turn(true);
                if load.completed > before {
                    let pause = longest.last_mut().expect("there is one of this step");
                    *pause = last.elapsed().max(*pause);
                    *last = Instant::now();
                }
            }
            std::thread::yield_now();
        }
        assert!(changing.join().is_ok(), "a change failed");
    });
    longest
}

/// Upgrades the daemon again and again under load, and prints the pauses.
fn upgrade_under_load(daemon: &Daemon, loads: &mut [Load], count: usize) {
    let mut pauses = load_during_all(loads, |steps| {
        (0..count).for_each(|_| {
            daemon.upgrade(&[]);
            steps.fetch_add(1, SeqCst);
        });
    });
    pauses.sort_unstable();
    let part = |percent: usize| pauses[(pauses.len() - 1) * percent / 100].as_micros();
    println!(
        "{count} upgrades; pauses of {}, {} and {} us (p50, p99, longest)",
        part(50),
        part(99),
        part(100)
    );
    loads.iter_mut().for_each(Load::end);
    assert!(!daemon.log().contains("ERROR"), "{}", daemon.log());
}

/// Writes a script that takes the place of a new version. Returns its path.
pub(crate) fn script(daemon: &Daemon, name: &str, text: &str) -> String {
    let path = daemon.folder.path().join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("room on the disk");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    path.display().to_string()
}

#[test]
fn no_command_is_lost_in_upgrades_and_events_arrive_after_them() {
    let mut daemon = Daemon::start(DRIVES);
    let first = daemon.pid();
    let mut host = daemon.host("demo");
    host.request_async_event().expect("the limit is not reached");
    let mut load = Load::new(&mut host, 1, 0);
    upgrade_under_load(&daemon, std::slice::from_mut(&mut load), upgrades());
    assert_ne!(daemon.pid(), first);
    assert_eq!(host.poll_async_event().expect("a controller"), None, "nothing has happened");
    daemon.ok(&["drive", "resize", "demo", "--size", "32MiB"]);
    let event = host.wait_async_event(&Deadline::after(LIMIT, "an event")).expect("an event");
    assert_eq!((event.kind, event.info, event.log_page), (2, 0, 4), "a notice: namespace attribute changed");
    daemon.upgrade(&[]);
    let shown = daemon.ok(&["drive", "show", "demo"]);
    assert!(shown.contains("32.0 MiB") || shown.contains("32MiB"), "{shown}");
    drop(host);
    // The last process ends as any daemon does, and the next one starts.
    daemon.stop();
    assert!(!daemon.socket("demo").exists());
    daemon.restart();
    daemon.host("demo");
}

#[test]
fn a_new_version_that_fails_changes_nothing() {
    let daemon = Daemon::start(DRIVES);
    let mut host = daemon.host("demo");
    let mut load = Load::new(&mut host, 1, 0);
    let pid = daemon.pid();
    load_during(&mut load, || {
        for (name, text, problem) in [
            ("ends", "exit 1", "the new process failed when it was greeted: the other process has ended"),
            (
                "mute",
                "exec sleep 100",
                "the new process failed when it was greeted: the other process did not",
            ),
            ("prints", "echo hello >&0; sleep 1", "it is no daemon of this kind"),
        ] {
            let binary = script(&daemon, name, text);
            let complaint = daemon.fails(&["upgrade", "--binary", &binary]);
            assert!(complaint.contains(problem), "{name}: {complaint}");
            assert!(complaint.contains("the daemon goes on as it was"), "{complaint}");
        }
        let complaint = daemon.fails(&["upgrade", "--binary", "/nowhere"]);
        assert!(complaint.contains("/nowhere cannot be started"), "{complaint}");
    });
    load.end();
    assert_eq!(daemon.pid(), pid);
    daemon.ok(&["drive", "create", "third", "--null", "1GiB"]);
}

#[test]
fn a_new_process_may_fail_at_any_step() {
    let daemon = Daemon::start(DRIVES);
    let mut host = daemon.host("demo");
    let mut load = Load::new(&mut host, 1, 0);
    let mut problems = BTreeSet::new();
    load_during(&mut load, || {
        // With few descriptors the process fails early, with more of them later.
        let is_done = (4..200).step_by(3).any(|count| {
            let text = format!("exec prlimit --nofile={count} {BINARY} \"$@\"");
            let binary = script(&daemon, "version", &text);
            match daemon.try_upgrade(&["--binary", &binary]) {
                Ok(()) => true,
                Err(complaint) => {
                    // The file of the drive is locked by the old process as before.
                    let image = fs::File::open(daemon.folder.path().join("disk.img")).expect("it is there");
                    let locked = flock(&image, FlockOperation::NonBlockingLockExclusive);
                    assert_eq!(locked, Err(Errno::WOULDBLOCK), "{complaint}");
                    problems.insert(complaint);
                    false
                }
            }
        });
        assert!(is_done, "some number is enough");
    });
    load.end();
    println!("{problems:#?}");
    let is_of = |words: &str| problems.iter().any(|problem| problem.contains(words));
    assert!(is_of("failed when it was greeted") && is_of("refused drive demo"), "{problems:#?}");
}

#[test]
fn a_configuration_that_does_not_fit_is_refused() {
    let daemon = Daemon::start(DRIVES);
    let mut host = daemon.host("demo");
    let mut load = Load::new(&mut host, 1, 0);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let metrics = format!("[metrics]\nlisten = \"{}\"\n", taken.local_addr().expect("an address"));
    let (demo, other) = DRIVES.split_at(DRIVES.rfind("[[drive]]").expect("two drives"));
    load_during(&mut load, || {
        for (settings, drives, problem) in [
            ("nonsense = 1", DRIVES, "the new process failed when it was greeted"),
            ("", other, "the new process refused drive demo: it is not in the configuration or the state"),
            ("", &demo.replace("demo", "othe2"), "the new process refused drive demo"),
            ("", &DRIVES.replace("disk.img", "disk2.img"), "declares it otherwise: a restart is needed"),
            (&metrics, DRIVES, "for metrics: Address already in use"),
        ] {
            daemon.declare(settings, drives);
            let complaint = daemon.fails(&["upgrade"]);
            assert!(complaint.contains(problem), "{complaint}");
        }
        daemon.declare("", DRIVES);
        daemon.upgrade(&[]);
    });
    load.end();
}

/// Upgrades a daemon whose drives are on another daemon, and encrypted. The other daemon is killed afterwards: nothing
/// that was acknowledged is lost, so no loss is reported.
#[test]
fn drives_on_others_and_functions_without_state_are_opened_anew() {
    let (drives, address) = for_hosts();
    let mut lower = Daemon::start(&drives);
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("key");
    fs::write(&key, [0x5a; 64]).expect("room on the disk");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("it is ours");
    let encrypted = |name: &str, place: &str| {
        format!(
            "[[drive]]\nname = \"{name}\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"{name}.img\"\nsize = \"16MiB\"\n\
             functions = [ {{ kind = \"uif\", function = \"encrypt\", place = \"{place}\", options = {{ key_file = \"{}\" }} }} ]\n",
            key.display()
        )
    };
    let drives = remote("demo", &address, "") + &encrypted("here", "daemon") + &encrypted("there", "process");
    let upper = Daemon::start(&drives);
    let mut hosts = ["demo", "here", "there"].map(|drive| upper.host(drive));
    let mut loads = hosts.each_mut().map(|host| Load::new(host, 1, 0));
    upgrade_under_load(&upper, &mut loads, 5);
    let queue = hosts[0].create_queue_pair(2, QueueLayout::default(), None).expect("a queue pair");
    let mut disk = Namespace::open(&mut hosts[0], 1, queue).expect("an active namespace");
    lower.crash();
    lower.restart();
    disk.flush().expect("nothing is lost");
    disk.write(0, &[1; 512]).expect("written");
}

/// Returns a drive on a file of 16 MiB with this function, which has these files of 16 MiB besides.
fn with_function(name: &str, function: &str, layers: &[&str]) -> String {
    let file = |of: &str| format!("target = \"file\", path = \"{name}-{of}.img\", size = \"16MiB\"");
    let layers: Vec<_> = layers.iter().map(|of| format!("{{ {} }}", file(of))).collect();
    let namespace = file("first").replace(", ", "\n");
    let layers =
        if layers.is_empty() { String::new() } else { format!(", layers = [ {} ]", layers.join(", ")) };
    format!(
        "[[drive]]\nname = \"{name}\"\n[[drive.namespace]]\n{namespace}\n\
         functions = [ {{ kind = \"uif\", {function}{layers} }} ]\n"
    )
}

/// Returns drives with each function that keeps state, in both places, and their names.
fn with_state() -> (String, Vec<String>) {
    let mut drives = Vec::new();
    for place in ["daemon", "process"] {
        for (function, more, layers) in [
            ("mirror", "", &["second", "log"][..]),
            ("replicate", "", &["second", "log"]),
            (
                "parity",
                ", labels = true, options = { parity = \"1\", chunk = \"16KiB\" }",
                &["second", "third", "log"],
            ),
            ("snapshot", ", options = { size = \"8MiB\" }", &[]),
            ("atomic", "", &["log"]),
        ] {
            let name = format!("{function}-{place}");
            let function = format!("function = \"{function}\", place = \"{place}\"{more}");
            drives.push((with_function(&name, &function, layers), name));
        }
    }
    drives.into_iter().unzip()
}

/// Upgrades a daemon whose drives have functions that keep state, also with successors that fail after they have opened
/// some of the drives. The function in the failed process has changed the state, and the former process goes on with it.
#[test]
fn functions_that_keep_state_go_on_in_another_process() {
    let (drives, names) = with_state();
    let daemon = Daemon::start(&drives);
    assert!(!daemon.log().contains("not open"), "{}", daemon.log());
    let mut hosts: Vec<_> = names.iter().map(|name| daemon.host(name)).collect();
    let mut loads: Vec<_> = hosts.iter_mut().map(|host| Load::new(host, 1, 0)).collect();
    upgrade_under_load(&daemon, &mut loads, 5);
    load_during_all(&mut loads, |_| {
        let mut outcomes = BTreeSet::new();
        for count in (60..1000).step_by(20) {
            let text = format!("exec prlimit --nofile={count} {BINARY} \"$@\"");
            match daemon.try_upgrade(&["--binary", &script(&daemon, "version", &text)]) {
                Ok(_) => break,
                Err(why) => outcomes.insert(why),
            };
        }
        assert!(outcomes.len() > 3, "some drives have gone to and fro: {outcomes:?}");
    });
    loads.iter_mut().for_each(Load::end);
    // The functions answer, each in the process that has the drive.
    for name in &names {
        let status = daemon.ok(&["function", "tell", name, "metrics"]);
        println!("{name}: {status}");
    }
    for name in names.iter().filter(|name| name.starts_with("mirror") || name.starts_with("replicate")) {
        let image =
            |of: &str| fs::read(daemon.folder.path().join(format!("{name}-{of}.img"))).expect("it is there");
        wait_for("equal copies", || image("first") == image("second"));
    }
}

/// Upgrades a daemon with a drive on a device. No other process gets the device or the file below it, neither after
/// upgrades nor after one that failed.
#[test]
fn block_devices_stay_claimed() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = |name: &str| {
        let path = folder.path().join(name);
        File::create(&path).and_then(|file| file.set_len(16 << 20)).expect("room on the disk");
        path
    };
    let (below, other) = (image("below"), image("other"));
    let Some(device) = LoopDevice::over_file(&below) else { return };
    let drive = |name: &str, path: &Path| {
        format!(
            "[[drive]]\nname = \"{name}\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"{}\"\n",
            path.display()
        )
    };
    let mut daemon = Daemon::start(&(drive("device", &device.path) + &drive("file", &other)));
    let mut hosts = ["device", "file"].map(|name| daemon.host(name));
    let mut loads = hosts.each_mut().map(|host| Load::new(host, 1, 0));
    let is_claimed = |when: &str| {
        let exclusive = OFlags::EXCL.bits().cast_signed();
        let opened = File::options().read(true).custom_flags(exclusive).open(&device.path);
        assert_eq!(opened.err().and_then(|error| error.raw_os_error()), Some(16), "{when}");
        for path in [&below, &other] {
            let locked =
                flock(File::open(path).expect("it is there"), FlockOperation::NonBlockingLockExclusive);
            assert_eq!(locked, Err(Errno::WOULDBLOCK), "{when}: {}", path.display());
        }
    };
    is_claimed("before");
    upgrade_under_load(&daemon, &mut loads, 5);
    is_claimed("after upgrades");
    // With few descriptors the new process fails, some times after it has opened the device.
    for count in (40..120).step_by(4) {
        let text = format!("exec prlimit --nofile={count} {BINARY} \"$@\"");
        if daemon.try_upgrade(&["--binary", &script(&daemon, "version", &text)]).is_ok() {
            break;
        }
        is_claimed("after an upgrade that failed");
    }
    daemon.upgrade(&[]);
    is_claimed("after another upgrade");
    daemon.stop();
    let exclusive = OFlags::EXCL.bits().cast_signed();
    wait_for("the device is free", || {
        File::options().read(true).custom_flags(exclusive).open(&device.path).is_ok()
    });
}

/// Stops the daemon in the middle of upgrades. One process ends in order, whichever has the drives then.
#[test]
fn a_daemon_may_be_stopped_during_an_upgrade() {
    for pause in [0, 5, 10, 20, 40, 80] {
        let mut daemon = Daemon::start(DRIVES);
        let words = std::thread::scope(|scope| {
            let upgrading = scope.spawn(|| daemon.try_upgrade(&[]));
            std::thread::sleep(Duration::from_millis(pause));
            let child = daemon.first_pid();
            daemon.signal_process(child, Signal::TERM);
            upgrading.join().expect("it ends")
        });
        if words.is_ok() {
            daemon.stop();
        } else {
            assert!(daemon.wait().success(), "{words:?}\n{}", daemon.log());
        }
        assert!(!daemon.api().exists() && !daemon.socket("demo").exists(), "after {pause} ms: {words:?}");
    }
}

#[test]
fn maps_of_a_classifier_go_with_the_drive() {
    let daemon = Daemon::start(DRIVES);
    attach(&daemon, "counting", COUNTING, &[]);
    let mut host = daemon.host("demo");
    let mut load = Load::new(&mut host, 1, 0);
    load_during(&mut load, || (0..5).for_each(|_| daemon.upgrade(&[])));
    load.end();
    // Each command was counted by the process that it came to.
    assert_eq!(numbers(&daemon, "calls"), [load.submitted, 0, load.submitted]);
}

/// Returns the part of the configuration for hosts on the network, with a drive on a file, and its address.
fn for_hosts() -> (String, String) {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let address = format!("127.0.0.1:{port}");
    let drives = format!(
        "[tcp]\nlisten = [\"{address}\"]\n[[drive]]\nname = \"disk\"\n[drive.tcp]\nnqn = \"{NQN}\"\n[drive.vfio_user]\n\
         sockets = 1\n[[drive.namespace]]\ntarget = \"file\"\npath = \"disk.img\"\nsize = \"16MiB\"\n"
    );
    (drives, address)
}

fn remote(name: &str, address: &str, more: &str) -> String {
    format!(
        "[[drive]]\nname = \"{name}\"\n[[drive.namespace]]\ntarget = \"nvme-tcp\"\n\
         nvme_tcp = {{ address = \"{address}\", subnqn = \"{NQN}\"{more} }}\n"
    )
}

#[test]
fn hosts_on_the_network_stay_connected() {
    let (drives, address) = for_hosts();
    let lower = Daemon::start(&drives);
    let upper = Daemon::start(&format!(
        "{}{}",
        remote("demo", &address, ", digests = [\"header\", \"data\"]"),
        remote("plain", &address, ", keep_alive_s = 2"),
    ));
    let mut hosts = ["demo", "plain"].map(|drive| upper.host(drive));
    let mut loads = [0, 1].map(|share| Load::new(&mut hosts[share as usize], 1, share));
    let view = |daemon: &Daemon, drive: &str| -> serde_json::Value {
        serde_json::from_str(&daemon.ok(&["drive", "show", drive, "-o", "json"])).expect("JSON")
    };
    let before = view(&lower, "disk");
    upgrade_under_load(&lower, &mut loads, upgrades());
    for drive in ["demo", "plain"] {
        let device = &view(&upper, drive)["devices"][0];
        assert!(device["connected"] == true && device["losses"] == 0, "{device}");
    }
    let after = view(&lower, "disk");
    assert_eq!(before["hosts"], after["hosts"]);
    assert!(before["hosts"].as_array().is_some_and(|hosts| hosts.len() == 2), "{before}");
    assert!(!upper.log().contains("is there again"), "{}", upper.log());
    // New hosts are let in by the last process.
    let further = Daemon::start(&remote("further", &address, ""));
    namespace(&mut further.host("further"), 1).write(8 << 10, &[7; 4096]).expect("written");
    // An event arrives after all that. The request for it is as old as the connection.
    lower.ok(&["drive", "resize", "disk", "--size", "32MiB"]);
    wait_for("the event", || upper.log().matches("reports changed namespaces").count() == 2);
}

/// Upgrades the daemon of a host that has authenticated. Without its key in the configuration the upgrade is refused.
#[test]
fn an_authenticated_host_stays_connected() {
    let (drives, address) = for_hosts();
    let mut lower = Daemon::start("");
    let [host, controller] =
        [("host", HOST_KEY), ("controller", CONTROLLER_KEY)].map(|(name, key)| secret(&lower, name, key));
    let keys = format!("dhchap = {{ key = \"{host}\", controller_key = \"{controller}\" }}");
    let hosts = format!("[[drive.tcp.hosts]]\nnqn = \"{HOSTNQN}\"\n{keys}\n[drive.vfio_user]");
    let drives = drives.replace("[drive.vfio_user]", &hosts);
    lower.stop();
    lower.declare("", &drives);
    lower.restart();
    let upper = Daemon::start(&remote("demo", &address, &format!(", hostnqn = \"{HOSTNQN}\", {keys}")));
    let mut demo = upper.host("demo");
    let mut load = Load::new(&mut demo, 1, 0);
    let show = || lower.ok(&["drive", "show", "disk", "-o", "json"]);
    let is_authenticated = |shown: &str| {
        let view: serde_json::Value = serde_json::from_str(shown).expect("JSON");
        view["authenticated"].as_array().is_some_and(|hosts| hosts.len() == 1)
    };
    assert!(is_authenticated(&show()), "{}", show());
    upgrade_under_load(&lower, std::slice::from_mut(&mut load), 5);
    assert!(is_authenticated(&show()), "{}", show());
    assert!(!upper.log().contains("is there again"), "{}", upper.log());
    let without = drives.replace(&keys, "");
    lower.declare("", &without);
    let complaint = lower.fails(&["upgrade"]);
    assert!(complaint.contains("declares it otherwise"), "{complaint}");
}

/// Upgrades the daemon of a host over TLS, which has to connect again: its load goes on.
#[test]
fn a_host_over_tls_connects_again() {
    let (drives, address) = for_hosts();
    let mut lower = Daemon::start("");
    let keys = secret(&lower, "keys", KEY);
    let drives = drives
        .replace("listen = [", "listen_tls = [")
        .replace("[drive.vfio_user]", &format!("tls_keys = \"{keys}\"\n[drive.vfio_user]"));
    lower.stop();
    lower.declare("", &drives);
    lower.restart();
    let more = format!(", hostnqn = \"{HOSTNQN}\", tls_keys = \"{keys}\"");
    let upper = Daemon::start(&remote("demo", &address, &more));
    let mut demo = upper.host("demo");
    let mut load = Load::new(&mut demo, 1, 0);
    upgrade_under_load(&lower, std::slice::from_mut(&mut load), 3);
    wait_for("the log", || upper.log().contains("is there again"));
    assert!(!lower.log().contains("ERROR"), "{}", lower.log());
}

/// Upgrades a daemon of two reactors while queues of the drive are on both: they come home first.
#[test]
fn queues_on_two_reactors_come_home_first() {
    let daemon = of_two_reactors("16MiB", "");
    let mut host = daemon.host("disk");
    let mut loads = [1, 2].map(|qid| Load::new(&mut host, qid, u64::from(qid)));
    load_during_all(&mut loads, |_| {
        for _ in 0..3 {
            let client = Client::new(daemon.api());
            let moved = block_on(try_move(&client, 2, 1)).expect("a queue can move");
            assert!(!moved.remote_queues.is_empty(), "{moved:?}");
            daemon.upgrade(&[]);
        }
    });
    loads.iter_mut().for_each(Load::end);
}

/// Returns the private memory of a process in KiB.
fn memory_kib(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Private_Dirty:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or_default()
}

/// Makes a daemon with 128 drives, each with a client at work, and upgrades it. Prints what a drive takes.
#[test]
fn many_drives_are_handed_over_together() {
    const DRIVES: usize = 128;
    let daemon = Daemon::start("");
    let names: Vec<String> = (0..DRIVES).map(|number| format!("d{number}")).collect();
    let client = Client::new(daemon.api());
    let before = memory_kib(daemon.pid());
    let began = Instant::now();
    block_on(async {
        for name in &names {
            let spec = serde_json::json!({ "name": name, "namespaces": [
                { "target": "file", "path": daemon.folder.path().join(format!("{name}.img")), "size": "1MiB" },
            ] });
            let made = client.post::<serde_json::Value>("/v1/drives", &spec).await;
            assert!(made.is_ok(), "{made:?}");
        }
    });
    let made = began.elapsed();
    assert!(!daemon.log().contains("not open"), "{}", daemon.log());
    let mut hosts: Vec<_> = names.iter().map(|name| daemon.host(name)).collect();
    let attached = began.elapsed() - made;
    let mut loads: Vec<_> = hosts.iter_mut().map(|host| Load::new(host, 1, 0)).collect();
    upgrade_under_load(&daemon, &mut loads, 2);
    println!(
        "{DRIVES} drives: {} us each to make, {} us to attach, {} KiB",
        made.as_micros() / DRIVES as u128,
        attached.as_micros() / DRIVES as u128,
        memory_kib(daemon.pid()).saturating_sub(before) / DRIVES as u64,
    );
}
