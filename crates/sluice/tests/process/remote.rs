//! A daemon whose drives are on a drive of another daemon, over NVMe/TCP.

use crate::common::{Daemon, namespace, tool, wait_for};
use crate::nvme::{Load, PAGES, image, pattern};
use crate::tunnel::KEY;
use sluice_nvme::Status;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

const NQN: &str = "nqn.2026-11.example.sluice:disk";

/// Starts a daemon with a drive on a file, for hosts. Returns it with its address.
fn lower() -> (Daemon, String) {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let address = format!("127.0.0.1:{port}");
    let daemon = Daemon::start(&format!(
        "[tcp]\nlisten = [\"{address}\"]\n[[drive]]\nname = \"disk\"\n[drive.tcp]\nnqn = \"{NQN}\"\n\
         [[drive.namespace]]\ntarget = \"file\"\npath = \"disk.img\"\nsize = \"16MiB\"\n"
    ));
    (daemon, address)
}

fn drive(address: &str, more: &str) -> String {
    format!(
        "[[drive]]\nname = \"remote\"\n[[drive.namespace]]\ntarget = \"nvme-tcp\"\n\
         nvme_tcp = {{ address = \"{address}\", subnqn = \"{NQN}\"{more} }}\n"
    )
}

/// Checks a machine that starts late: after a power cut, machines start in any order.
#[test]
fn a_machine_that_starts_late_is_waited_for() {
    let (mut lower, address) = lower();
    lower.stop();
    let upper = Daemon::start(&drive(&address, ""));
    assert!(upper.ok(&["drive", "show", "remote"]).contains("cannot be connected to"));
    lower.restart();
    wait_for("the drive", || upper.ok(&["drive", "show", "remote"]).contains("state:     ready"));
    let mut host = upper.host("remote");
    namespace(&mut host, 1).write(0, &[1; 4096]).expect("written");
}

/// Kills the other daemon again and again, with commands in flight. The guest sees a pause and no error, and
/// every acknowledged write is there.
#[test]
fn the_other_daemon_may_be_killed_under_load() {
    let (mut lower, address) = lower();
    let upper = Daemon::start(&drive(&address, ", digests = [\"header\", \"data\"]"));
    let mut host = upper.host("remote");
    let mut load = Load::new(&mut host);
    let device = || -> serde_json::Value {
        let view: serde_json::Value =
            serde_json::from_str(&upper.ok(&["drive", "show", "remote", "-o", "json"])).expect("JSON");
        view["devices"][0].clone()
    };
    for losses in 1..=4 {
        load.write_all();
        lower.crash();
        lower.restart();
        load.finish();
        let image = image(&lower);
        for page in 0..PAGES {
            let there = &image[page * 4096..][..4096];
            assert!(there == Load::content(load.round, page), "round {}, page {page}", load.round);
        }
        // A daemon that is killed before the upper one is connected to it is no loss, and all writes may have
        // been done by its predecessor.
        wait_for("the loss, and a new connection", || {
            let device = device();
            device["connected"] == true && device["losses"].as_u64() >= Some(losses)
        });
    }
    wait_for("the log", || upper.log().contains("an NVMe/TCP controller is there again"));
    wait_for("the bytes", || device()["bytes_copied"].as_u64() > Some(0));
}

/// Returns a drive on the network whose storage is a drive elsewhere, and its address.
fn middle(below: &str, more: &str) -> (Daemon, String) {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let address = format!("127.0.0.1:{port}");
    let namespace = drive(below, "").replace("[[drive]]\nname = \"remote\"\n", "");
    let daemon = Daemon::start(&format!(
        "[tcp]\nlisten = [\"{address}\"]\n[[drive]]\nname = \"middle\"\n{more}[drive.tcp]\nnqn = \"{NQN}\"\n{namespace}"
    ));
    (daemon, address)
}

/// Checks that a host gets a command back before the host gives it up, and that another daemon, which waits
/// for ever, submits the command again.
#[test]
fn a_command_whose_storage_is_away_comes_back_to_its_host() {
    const TIMEOUT: &str = "host_timeout_s = 6\n";
    let (mut lowest, below) = lower();
    let (middle, address) = middle(&below, TIMEOUT);
    let upper = Daemon::start(
        &drive(&address, "").replace("[[drive.namespace]]", "host_timeout_s = 0\n[[drive.namespace]]"),
    );
    let near = Daemon::start(
        &drive(&below, "").replace("[[drive.namespace]]", &format!("{TIMEOUT}[[drive.namespace]]")),
    );
    let mut patient = upper.host("remote");
    let mut patient = namespace(&mut patient, 1);
    patient.write(0, &pattern(1, 4096)).expect("written");
    let mut host = near.host("remote");
    let mut disk = namespace(&mut host, 1);
    disk.write(8, &pattern(2, 4096)).expect("written");
    lowest.crash();
    std::thread::scope(|threads| {
        let waiting = threads.spawn(|| patient.write(0, &pattern(3, 4096)));
        let status = disk.write(8, &pattern(4, 4096)).expect_err("its storage is away").status();
        assert!(status.is_some_and(|it| it.same_code(Status::COMMAND_INTERRUPTED)), "{status:?}");
        // The daemon in the middle has given the other write back meanwhile.
        let interrupted = || {
            let view: serde_json::Value =
                serde_json::from_str(&middle.ok(&["drive", "show", "middle", "-o", "json"])).expect("JSON");
            view["counters"]["errors"].as_u64() > Some(0)
        };
        wait_for("an interrupted write", interrupted);
        lowest.restart();
        waiting.join().expect("no panic").expect("it is submitted until its storage is there");
    });
    wait_for("the next write", || disk.write(8, &pattern(4, 4096)).is_ok());
    let image = image(&lowest);
    assert!(image[..4096] == pattern(3, 4096) && image[4096..8192] == pattern(4, 4096));
}

#[test]
fn a_remote_drive_is_made_while_the_daemon_runs() {
    let (lower, address) = lower();
    let upper = Daemon::start("");
    let spec = upper.folder.path().join("spec.json");
    let text = format!(
        r#"{{"name":"remote","namespaces":[{{"target":"nvme-tcp","nvme_tcp":{{"address":"{address}","subnqn":"{NQN}"}}}}]}}"#
    );
    std::fs::write(&spec, text).expect("room on the disk");
    for round in 0..2 {
        upper.ok(&["drive", "create", "remote", "--spec", &spec.display().to_string()]);
        let mut host = upper.host("remote");
        namespace(&mut host, 1).write(round * 8, &pattern(round, 4096)).expect("written");
        drop(host);
        let shown = upper.ok(&["drive", "show", "remote"]);
        assert!(shown.contains(&format!("{NQN} at {address}")) && shown.contains("there"), "{shown}");
        let complaint = upper.fails(&["drive", "resize", "remote", "--size", "1MiB"]);
        assert!(complaint.contains("an nvme-tcp target has the size of its namespace there"), "{complaint}");
        upper.ok(&["drive", "delete", "remote"]);
    }
    assert!(image(&lower)[..8192] == [pattern(0, 4096), pattern(1, 4096)].concat());
}

#[test]
fn a_remote_drive_may_have_several_paths() {
    let free = || TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
    let [one, other] = [free(), free()].map(|address| address.to_string());
    let lower = Daemon::start(&format!(
        "[tcp]\nlisten = [\"{one}\", \"{other}\"]\n[[drive]]\nname = \"disk\"\n[drive.tcp]\n\
         nqn = \"{NQN}\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"disk.img\"\nsize = \"16MiB\"\n"
    ));
    // The third address has no listener.
    let upper = Daemon::start(&format!(
        "[[drive]]\nname = \"remote\"\n[[drive.namespace]]\ntarget = \"nvme-tcp\"\nnvme_tcp = {{ subnqn = \"{NQN}\", \
         policy = \"queue-depth\", addresses = [ \"{one}\", \"{other}\", \"127.0.0.1:1\" ] }}\n"
    ));
    let mut host = upper.host("remote");
    let mut disk = namespace(&mut host, 1);
    for round in 0..8 {
        disk.write(round * 8, &pattern(round, 4096)).expect("written");
    }
    disk.flush().expect("flushed");
    let written: Vec<u8> = (0..8).flat_map(|round| pattern(round, 4096)).collect();
    assert!(image(&lower)[..written.len()] == written);
    let shown = upper.ok(&["drive", "show", "remote"]);
    let states = [(&*one, "there"), (&*other, "there"), ("127.0.0.1:1", "lost")];
    for (address, state) in states {
        let row = shown.lines().find(|row| row.contains(&format!("{NQN} at {address} ")));
        assert!(row.is_some_and(|row| row.contains(state)), "{shown}");
    }
}

#[test]
fn what_is_at_an_address_is_listed() {
    let (lower, address) = lower();
    let shown = lower.ok(&["discover", &address]);
    assert!(shown.contains(NQN) && shown.contains("nvm") && shown.contains("tcp"), "{shown}");
    let found: serde_json::Value =
        serde_json::from_str(&lower.ok(&["discover", &address, "-o", "json"])).expect("JSON");
    assert!(found.as_array().is_some_and(|all| all.iter().any(|it| it["subnqn"] == NQN)), "{found}");
    let nobody = tool(&lower.api(), &["discover", "127.0.0.1:1"]);
    let complaint = String::from_utf8_lossy(&nobody.stderr).into_owned();
    assert!(!nobody.status.success() && complaint.contains("see that its server runs"), "{complaint}");
}

/// Conformance: TCP 3.6.1, the discovery service speaks TLS with hosts that have a key for its name.
#[test]
fn what_is_at_an_address_is_listed_over_tls() {
    let address =
        TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").to_string();
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, key: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, key).expect("room on the disk");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("it is ours");
        path.display().to_string()
    };
    let keys = file("keys", KEY);
    let lower = Daemon::start(&format!(
        "[tcp]\nlisten_tls = [\"{address}\"]\ndiscovery_keys = \"{keys}\"\n\
         [[drive]]\nname = \"disk\"\n[drive.tcp]\nnqn = \"{NQN}\"\ntls_keys = \"{keys}\"\n\
         [[drive.namespace]]\ntarget = \"null\"\nsize = \"16MiB\"\n"
    ));
    let shown = lower.ok(&["discover", &address, "--tls-keys", &keys]);
    assert!(shown.lines().any(|line| line.starts_with(NQN) && line.ends_with("yes")), "{shown}");
    let complaint = lower.fails(&["discover", &address]);
    assert!(complaint.contains("TLS alone is spoken there; name a file"), "{complaint}");
    let other = file("other", "NVMeTLSkey-1:01:ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj/jBqb2:");
    let complaint = lower.fails(&["discover", &address, "--tls-keys", &other]);
    assert!(complaint.contains("the other end refuses the TLS handshake"), "{complaint}");
    let theirs = file("theirs", &format!("nqn.2024-01.org.example:another {KEY}"));
    let complaint = lower.fails(&["discover", &address, "--tls-keys", &theirs]);
    assert!(complaint.contains("the file of keys has none for the host"), "{complaint}");
}

/// Checks local and remote targets in one drive: each file has its part of the data.
#[test]
fn a_drive_is_made_of_near_and_far() {
    const CHUNK: usize = 16 << 10;
    const NEAR: usize = 1 << 20;
    for kind in ["stripe", "concat"] {
        let (lower, address) = lower();
        let chunk = if kind == "stripe" { ", chunk = \"16KiB\"" } else { "" };
        let upper = Daemon::start(&format!(
            "[[drive]]\nname = \"both\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"near.img\"\n\
             size = \"1MiB\"\nfunctions = [ {{ kind = \"{kind}\"{chunk}, layers = [ {{ target = \"nvme-tcp\", \
             nvme_tcp = {{ address = \"{address}\", subnqn = \"{NQN}\" }} }} ] }} ]\n"
        ));
        let mut host = upper.host("both");
        let mut both = namespace(&mut host, 1);
        let size = if kind == "stripe" { 2 * NEAR } else { NEAR + (16 << 20) };
        assert_eq!(both.identity().nsze, size as u64 / 512, "{kind}");
        let data = pattern(7, 2 * NEAR);
        both.write(0, &data).expect("written");
        both.flush().expect("flushed");
        let mut back = vec![0; data.len()];
        both.read(0, &mut back).expect("read");
        assert!(back == data, "{kind}");
        let near = std::fs::read(upper.folder.path().join("near.img")).expect("the near half");
        let far = image(&lower);
        let (left, right): (Vec<u8>, Vec<u8>) = match kind {
            "stripe" => {
                let of = |first| data.chunks(CHUNK).skip(first).step_by(2).flatten().copied().collect();
                (of(0), of(1))
            }
            _ => (data[..NEAR].to_vec(), data[NEAR..].to_vec()),
        };
        assert!(near == left && far[..NEAR] == right, "{kind}");
        both.write_zeroes(100, 3900, false).expect("zeroed, over both");
        both.read(0, &mut back).expect("read");
        assert!(back[100 * 512..4000 * 512].iter().all(|byte| *byte == 0), "{kind}");
        assert!(back[..100 * 512] == data[..100 * 512] && back[4000 * 512..] == data[4000 * 512..], "{kind}");
        let complaint = upper.fails(&["drive", "resize", "both", "--size", "4MiB"]);
        assert!(complaint.contains("has the size of the layers that it is made of"), "{complaint}");
    }
}
