//! Idle daemons use no processor, and timers still expire. Every function, target and place is tested without
//! a host, after a host has left, and with an idle host.

use crate::common::{Daemon, LIMIT, namespace, wait_for};
use crate::sdk::{compile, sdk};
use crate::tcp_host::Host as TcpHost;
use sluice_host::{Controller, Mode};
use sluice_nvme_tcp::Digests;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

const NQN: &str = "nqn.2026-11.example.sluice:idle";

/// Time in which processor time is measured. Most faults use processor time from then on.
const WINDOW: Duration = Duration::from_secs(2);

/// Names of drives, with functions that need no further layers or files.
const PLAIN: [(&str, &str); 5] = [
    ("pass", ""),
    ("delay", "{ kind = \"delay\", read_us = 100, write_us = 100 }"),
    ("fault", "{ kind = \"fault\", outcome = \"fail\", status = \"write_fault\", chance = 0.0 }"),
    ("range", "{ kind = \"range\", from = \"1MiB\" }"),
    ("two", "{ kind = \"delay\", read_us = 1 }, { kind = \"delay\", read_us = 1 }"),
];

/// A function that can run in several places.
struct Function {
    name: &'static str,
    options: &'static str,
    /// Further layers of the function: files, each with the suffix of its name and its size.
    layers: &'static [(&'static str, &'static str)],
}

const FUNCTIONS: [Function; 5] = [
    Function { name: "pass", options: "", layers: &[] },
    Function { name: "encrypt", options: "key_file = \"DIR/key\"", layers: &[] },
    Function { name: "replicate", options: "", layers: &[("second", "16MiB"), ("log", "4MiB")] },
    Function { name: "mirror", options: "", layers: &[("second", "16MiB"), ("log", "4MiB")] },
    Function { name: "snapshot", options: "size = \"16MiB\"", layers: &[] },
];

const PLACES: [&str; 2] = ["daemon", "process"];

fn drive(name: &str, size: &str, functions: &str) -> String {
    format!(
        "[[drive]]\nname = \"{name}\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"{name}.img\"\nsize = \"{size}\"\n\
         functions = [ {functions} ]\n"
    )
}

fn of_function(folder: &Path, function: &Function, place: &str) -> (String, String) {
    let name = format!("{}-{place}", function.name);
    let layers: Vec<_> = function
        .layers
        .iter()
        .map(|(what, size)| format!("{{ target = \"file\", path = \"{name}.{what}\", size = \"{size}\" }}"))
        .collect();
    let layers =
        if layers.is_empty() { String::new() } else { format!(", layers = [ {} ]", layers.join(", ")) };
    let Function { name: kind, options, .. } = function;
    let options = options.replace("DIR", &folder.display().to_string());
    let text = format!(
        "{{ kind = \"uif\", function = \"{kind}\", place = \"{place}\", options = {{ {options} }}{layers} }}"
    );
    let size = if *kind == "snapshot" { "64MiB" } else { "16MiB" };
    (drive(&name, size, &text), name)
}

/// Returns drives with every function, target and place, and their names.
fn drives(folder: &Path, address: SocketAddr) -> (String, Vec<String>) {
    let (mut text, mut names) = (format!("[tcp]\nlisten = [\"{address}\"]\n"), Vec::new());
    let mut add = |(more, name): (String, String)| {
        text += &more;
        names.push(name);
    };
    for (name, functions) in PLAIN {
        add((drive(name, "16MiB", functions), name.to_owned()));
    }
    for place in PLACES {
        FUNCTIONS.iter().for_each(|function| add(of_function(folder, function, place)));
    }
    for target in ["memory", "null"] {
        let more = format!(
            "[[drive]]\nname = \"{target}\"\n[[drive.namespace]]\ntarget = \"{target}\"\nsize = \"16MiB\"\n"
        );
        add((more, target.to_owned()));
    }
    let program = compile(folder, &sdk().join("c/examples/xor.c"));
    let text_of = |command: String| {
        format!("{{ kind = \"uif\", command = [{command}], options = {{ byte = \"1\" }} }}")
    };
    add((drive("c", "16MiB", &text_of(format!("{:?}", program.display().to_string()))), "c".to_owned()));
    text += &format!(
        "[[drive]]\nname = \"network\"\n[drive.tcp]\nnqn = \"{NQN}\"\n[[drive.namespace]]\ntarget = \"memory\"\n\
         size = \"16MiB\"\n"
    );
    (text, names)
}

fn start() -> (Daemon, Vec<String>, SocketAddr) {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
    let mut daemon = Daemon::start("");
    daemon.stop();
    let folder = daemon.folder.path();
    let key = folder.join("key");
    std::fs::write(&key, (0..64).collect::<Vec<u8>>()).expect("room on the disk");
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).expect("it is ours");
    let (text, names) = drives(folder, address);
    daemon.declare("", &text);
    daemon.restart();
    for name in &names {
        let shown = daemon.ok(&["drive", "show", name]);
        assert!(shown.contains("state:     ready"), "{shown}\n{}", daemon.log());
    }
    (daemon, names, address)
}

/// Returns the nanoseconds of processor time that each thread of a process has used, by its name and number.
fn threads(pid: u32) -> BTreeMap<String, u64> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return BTreeMap::new() };
    let used = |path: &Path| {
        let name = std::fs::read_to_string(path.join("comm")).ok()?;
        let times = std::fs::read_to_string(path.join("schedstat")).ok()?;
        let used = times.split_ascii_whitespace().next()?.parse().ok()?;
        Some((format!("{} of {pid} ({})", name.trim(), path.display()), used))
    };
    tasks.flatten().filter_map(|task| used(&task.path())).collect()
}

/// Returns the processor times of a daemon's threads, and of those of the processes it started.
fn everything(daemon: &Daemon) -> BTreeMap<String, u64> {
    let children = std::fs::read_dir("/proc").expect("Linux").flatten().filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let parent: u32 = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()?;
        (parent == daemon.pid()).then_some(pid)
    });
    children.chain([daemon.pid()]).flat_map(threads).collect()
}

/// Waits for an interval in which all threads together use less than `thousandths` of a processor. A thread
/// that spins allows no such interval.
fn is_idle(daemon: &Daemon, what: &str, thousandths: u64) {
    let began = Instant::now();
    loop {
        let (before, at) = (everything(daemon), Instant::now());
        std::thread::sleep(WINDOW);
        let (after, passed) = (everything(daemon), at.elapsed());
        let used = |(name, ns): (&String, &u64)| (ns - before.get(name).unwrap_or(&0), name.clone());
        let mut used: Vec<(u64, String)> = after.iter().map(used).filter(|(ns, _)| *ns > 0).collect();
        used.sort_by(|one, other| other.cmp(one));
        let all: u64 = used.iter().map(|(ns, _)| ns).sum();
        if all * 1000 < passed.as_nanos() as u64 * thousandths {
            break;
        }
        assert!(began.elapsed() < LIMIT, "{what}: {all} ns of {passed:?}: {:?}", &used[..used.len().min(5)]);
    }
    let reactors = daemon.ok(&["reactor", "list", "-o", "json"]);
    let reactors: serde_json::Value = serde_json::from_str(&reactors).expect("JSON");
    for reactor in reactors["reactors"].as_array().expect("a list") {
        assert_eq!(reactor["overdue"], 0, "{what}: a drive is woken for a time at which it does nothing");
    }
}

/// Checks that resyncs without anything to copy and a comparison end, which needs the functions' timers.
fn timers_go_off(daemon: &Daemon, what: &str) {
    for place in PLACES {
        for function in ["replicate", "mirror"] {
            let drive = format!("{function}-{place}");
            let tell = |text: &str| daemon.ok(&["function", "tell", &drive, text]);
            let is_whole = || {
                let status = tell("status");
                status.contains("\"in sync\"") && status.contains("\"dirty_bytes\":0")
            };
            wait_for(&format!("{what}: the first resync of {drive}"), is_whole);
            tell("check");
            wait_for(&format!("{what}: the comparison of {drive}"), || {
                tell("status").contains("\"running\":false")
            });
            tell("resync all");
            wait_for(&format!("{what}: another resync of {drive}"), is_whole);
        }
    }
}

/// Returns hosts of all drives, which have used them.
fn hosts(daemon: &Daemon, names: &[String], mode: Mode) -> Vec<Controller> {
    let use_it = |name: &String| {
        let mut host = daemon.host_with(name, mode);
        let mut disk = namespace(&mut host, 1);
        for at in (0..1024).step_by(256) {
            let (data, mut back) = ([at as u8 + 1; 4096], [0; 4096]);
            disk.write(at, &data).expect("it is in range");
            disk.read(at, &mut back).expect("it is in range");
            assert!(name == "null" || back == data, "{name}");
        }
        disk.flush().expect("nothing fails");
        host
    };
    names.iter().map(use_it).collect()
}

#[test]
fn what_has_nothing_to_do_uses_no_processor_and_its_timers_go_off() {
    let (daemon, names, address) = start();
    timers_go_off(&daemon, "without a host");
    is_idle(&daemon, "without a host", 10);
    drop(hosts(&daemon, &names, Mode::Trapped));
    drop(TcpHost::start(address, NQN, Digests::default(), 2));
    timers_go_off(&daemon, "after hosts have left");
    is_idle(&daemon, "after hosts have left", 10);
    let idle = hosts(&daemon, &names, Mode::Trapped);
    let network = TcpHost::start(address, NQN, Digests::default(), 2);
    timers_go_off(&daemon, "with hosts that idle");
    is_idle(&daemon, "with hosts that idle", 10);
    drop((idle, network));
    // Mapped doorbells are polled by a timer, which has a cost for each drive.
    let idle = hosts(&daemon, &names, Mode::Mapped);
    is_idle(&daemon, "with hosts whose doorbells are looked at", 100);
    drop(idle);
}

/// Checks remote drives. Such a drive sends a Keep Alive now and then, and tries to connect again where its
/// peer is gone.
#[test]
fn remote_drives_use_no_processor_whether_their_peers_are_there_or_gone() {
    let far = || {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
        let served = "target = \"memory\"\nsize = \"16MiB\"\n";
        let drive = format!(
            "[[drive]]\nname = \"network\"\n[drive.tcp]\nnqn = \"{NQN}\"\n[[drive.namespace]]\n{served}"
        );
        (Daemon::start(&format!("[tcp]\nlisten = [\"{port}\"]\n{drive}")), port)
    };
    let ((_there, first), (mut gone, second)) = (far(), far());
    let remote = |(name, address): (&str, SocketAddr)| {
        format!(
            "[[drive]]\nname = \"{name}\"\n[[drive.namespace]]\ntarget = \"nvme-tcp\"\n\
             nvme_tcp = {{ address = \"{address}\", subnqn = \"{NQN}\" }}\n"
        )
    };
    let names = ["there", "gone"];
    let daemon = Daemon::start(&[(names[0], first), (names[1], second)].map(remote).concat());
    let names = names.map(str::to_owned);
    is_idle(&daemon, "without a host", 10);
    let idle = hosts(&daemon, &names, Mode::Trapped);
    is_idle(&daemon, "with hosts that idle", 10);
    gone.stop();
    let is_lost = || daemon.ok(&["drive", "show", "gone"]).contains("lost");
    wait_for("the loss of a peer", is_lost);
    is_idle(&daemon, "with a peer that is gone", 10);
    drop(idle);
    is_idle(&daemon, "with a peer that is gone, after hosts have left", 10);
}
