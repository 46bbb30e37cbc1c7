//! Targets that are paused, resumed, lost and replaced while a host has commands in flight.

use crate::common::{Daemon, namespace, wait_for};
use crate::load::under_load;
use crate::nvme::{Load, PAGES, pattern};
use crate::programs::compile;
use sluice_api::client::Client;
use sluice_api::{PauseRequest, TargetReplaceRequest};
use sluice_control::drives::{TargetState, TargetView};
use sluice_host::{Controller, Namespace};
use sluice_nvme::{Cns, Status};
use sluice_spec::TargetSpec;
use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

pub(crate) const NQN: &str = "nqn.2026-11.example.sluice:disk";

/// Returns a drive on a file, whose hosts give up a command after `host_timeout_s`.
fn on_file(host_timeout_s: u32) -> String {
    format!(
        "[[drive]]\nname = \"demo\"\nhost_timeout_s = {host_timeout_s}\n[[drive.namespace]]\ntarget = \"file\"\n\
         path = \"a.img\"\nsize = \"16MiB\"\nfunctions = [ {{ kind = \"pass\" }} ]\n"
    )
}

/// Starts a daemon with a drive on a file, for hosts on the network, at this port.
pub(crate) fn far(port: u16, more: &str) -> Daemon {
    Daemon::start(&format!(
        "[tcp]\nlisten = [\"127.0.0.1:{port}\"]\n[[drive]]\nname = \"disk\"\n[drive.tcp]\nnqn = \"{NQN}{more}\"\n\
         [[drive.namespace]]\ntarget = \"file\"\npath = \"disk.img\"\nsize = \"16MiB\"\n"
    ))
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port()
}

/// Returns a drive on a far one. Its lost connection is cleared up soon.
pub(crate) fn near(port: u16) -> Daemon {
    Daemon::start(&format!(
        "[[drive]]\nname = \"demo\"\nhost_timeout_s = 6\n[[drive.namespace]]\ntarget = \"nvme-tcp\"\n\
         nvme_tcp = {{ address = \"127.0.0.1:{port}\", subnqn = \"{NQN}\", keep_alive_s = 1, timeout_s = 1 }}\n"
    ))
}

/// Returns the identifiers of a namespace: its Identify Namespace data, and its list of descriptors.
pub(crate) fn identity(host: &mut Controller) -> (u64, Vec<u8>, Vec<u8>) {
    let namespace = host.identify_namespace(1).expect("it is there");
    let descriptors = host.identify(Cns::NAMESPACE_DESCRIPTORS, 1).expect("a list");
    (namespace.nsze, [&namespace.nguid[..], &namespace.eui64[..]].concat(), descriptors.to_vec())
}

pub(crate) fn state(daemon: &Daemon) -> TargetState {
    let list: serde_json::Value =
        serde_json::from_str(&daemon.ok(&["target", "list", "demo", "-o", "json"])).expect("JSON");
    serde_json::from_value(list["targets"][0]["state"].clone()).expect("a state")
}

pub(crate) fn read(disk: &mut Namespace, slba: u64) -> Vec<u8> {
    let mut data = vec![0; 4096];
    disk.read(slba, &mut data).expect("read");
    data
}

/// Copies an image with its data, but not its identity.
fn copy(from: &Path, to: &Path) {
    std::fs::copy(from, to).expect("room on the disk");
}

#[test]
fn a_target_is_paused_and_replaced_under_load() {
    let mut daemon = Daemon::start(&on_file(30));
    let (a, b) = (daemon.folder.path().join("a.img"), daemon.folder.path().join("b.img"));
    let client = Client::new(daemon.api());
    let before = identity(&mut daemon.host("demo"));
    under_load(&daemon, || async {
        let path = |what: &str| format!("/v1/drives/demo/targets/1{what}");
        for round in 0..6 {
            let view: TargetView =
                client.post(&path("/pause"), &PauseRequest::default()).await.expect("paused");
            assert_eq!((view.state, view.idle), (TargetState::Paused, Some(true)));
            if round % 2 == 0 {
                let _: TargetView = client.post(&path("/resume"), &()).await.expect("it goes on");
                continue;
            }
            let (from, to) = if round % 4 == 1 { (&a, &b) } else { (&b, &a) };
            copy(from, to);
            let target = TargetSpec::file(to.clone());
            let mut request = TargetReplaceRequest { target, different_storage: false };
            client.put::<TargetView>(&path(""), &request).await.expect_err("it may be other data");
            request.different_storage = true;
            let view: TargetView = client.put(&path(""), &request).await.expect("replaced");
            assert_eq!(view.state, TargetState::Ready);
        }
    });
    assert_eq!(identity(&mut daemon.host("demo")), before, "hosts see the same namespace");
    // Three replacements end on the second file.
    let mut host = daemon.host("demo");
    namespace(&mut host, 1).write(8000, &pattern(1, 4096)).expect("written");
    drop(host);
    daemon.stop();
    assert!(std::fs::read(&b).expect("an image")[8000 * 512..][..4096] == pattern(1, 4096));
    daemon.restart();
    let mut host = daemon.host("demo");
    assert_eq!(identity(&mut host), before);
    assert!(read(&mut namespace(&mut host, 1), 8000) == pattern(1, 4096));
}

/// Submits a write again and again, as a host does, until it succeeds. Returns how often it was interrupted.
fn write_until_done(daemon: &Daemon, seed: u64) -> usize {
    let mut host = daemon.host("demo");
    let mut disk = namespace(&mut host, 1);
    let mut interrupted = 0;
    loop {
        match disk.write(0, &pattern(seed, 4096)) {
            Ok(()) => return interrupted,
            Err(error) => {
                let status = error.status();
                assert!(status.is_some_and(|it| it.same_code(Status::COMMAND_INTERRUPTED)), "{error}");
                interrupted += 1;
            }
        }
    }
}

/// Pauses a target for longer than its host waits, over a restart, and with a limit.
#[test]
fn a_pause_may_be_longer_than_the_patience_of_a_host() {
    let mut daemon = Daemon::start(&on_file(6));
    let said = daemon.ok(&["target", "pause", "demo"]);
    assert!(said.contains("paused; nothing is in it"), "{said}");
    assert!(daemon.fails(&["target", "pause", "demo:1"]).contains("is paused already"));
    assert!(daemon.fails(&["target", "pause", "demo:2"]).contains("has no namespace 2"));
    daemon.crash();
    daemon.restart();
    assert_eq!(state(&daemon), TargetState::Paused);
    std::thread::scope(|threads| {
        let writing = threads.spawn(|| write_until_done(&daemon, 1));
        std::thread::sleep(Duration::from_secs(11));
        assert!(!writing.is_finished(), "nothing reaches the target");
        daemon.ok(&["target", "resume", "demo"]);
        assert!(writing.join().expect("no panic") >= 2, "each four to five seconds");
    });
    assert_eq!(state(&daemon), TargetState::Ready);
    daemon.ok(&["target", "pause", "demo", "--fail-after", "1"]);
    let mut host = daemon.host("demo");
    let mut disk = namespace(&mut host, 1);
    // A command like the one that was interrupted last may be taken for it.
    let error = disk.write(64, &pattern(2, 4096)).expect_err("it fails then");
    assert_eq!(error.status().map(|it| it.same_code(Status::INTERNAL_PATH_ERROR)), Some(true), "{error}");
    daemon.ok(&["target", "resume", "demo"]);
    disk.write(0, &pattern(3, 4096)).expect("it goes on");
}

/// Loses a far daemon for good. A command that waits for it goes on at a copy of its storage.
#[test]
fn a_lost_target_is_replaced_under_a_host_that_waits() {
    let (first, second) = (free_port(), free_port());
    let mut lost = far(first, "");
    let near = near(first);
    let before = identity(&mut near.host("demo"));
    let mut host = near.host("demo");
    namespace(&mut host, 1).write(8, &pattern(7, 4096)).expect("written");
    drop(host);
    lost.crash();
    wait_for("the loss", || state(&near) == TargetState::Lost);
    let copied = far(second, "-copy");
    copied.ok(&["target", "pause", "disk"]);
    copy(&lost.folder.path().join("disk.img"), &copied.folder.path().join("disk.img"));
    copied.ok(&["target", "resume", "disk"]);
    std::thread::scope(|threads| {
        let writing = threads.spawn(|| write_until_done(&near, 1));
        std::thread::sleep(Duration::from_secs(6));
        assert!(!writing.is_finished(), "it waits");
        let (address, nqn) = (format!("127.0.0.1:{second}"), format!("{NQN}-copy"));
        let words = ["target", "replace", "demo", "--nvme-tcp", &address, "--subnqn", &nqn];
        assert!(near.fails(&words).contains("--different-storage"));
        let said = near.ok(&[&words[..], &["--different-storage"]].concat());
        assert!(said.contains("ready"), "{said}");
        writing.join().expect("no panic");
    });
    assert_eq!(identity(&mut near.host("demo")), before);
    let mut host = near.host("demo");
    let mut disk = namespace(&mut host, 1);
    assert!(read(&mut disk, 8) == pattern(7, 4096));
    assert!(read(&mut disk, 0) == pattern(1, 4096));
    disk.flush().expect("nothing is lost: the operator has copied it");
    let events = near.ok(&["events"]);
    assert!(events.contains("target_lost") && events.contains("target_replaced"), "{events}");
}

/// Finds the same storage at another address, without a word that it is the same.
#[test]
fn the_same_storage_may_be_elsewhere() {
    let (first, second) = (free_port(), free_port());
    let mut moved = far(first, "");
    let near = near(first);
    let mut host = near.host("demo");
    let mut disk = namespace(&mut host, 1);
    disk.write(8, &pattern(7, 4096)).expect("written");
    moved.stop();
    let config = std::fs::read_to_string(moved.config()).expect("a configuration");
    let config = config.replace(&first.to_string(), &second.to_string());
    std::fs::write(moved.config(), config).expect("room on the disk");
    moved.restart();
    let address = format!("127.0.0.1:{second}");
    near.ok(&["target", "replace", "demo", "--nvme-tcp", &address, "--subnqn", NQN]);
    assert!(read(&mut disk, 8) == pattern(7, 4096));
    disk.write(8, &pattern(8, 4096)).expect("written");
}

/// Creates a drive over the function `encrypt` in this place.
fn encrypted(daemon: &Daemon, place: &str) {
    let (folder, spec) = (daemon.folder.path(), daemon.folder.path().join("spec.toml"));
    let key = folder.join("key");
    let private = Permissions::from_mode(0o600);
    std::fs::write(&key, [7; 64]).and_then(|()| std::fs::set_permissions(&key, private)).expect("room");
    let text = format!(
        "name = \"{place}\"\nhost_timeout_s = 6\n[[namespace]]\ntarget = \"file\"\npath = \"{}\"\nsize = \"1MiB\"\n\
         functions = [ {{ kind = \"uif\", function = \"encrypt\", place = \"{place}\", options = {{ key_file = \"{}\" }} }} ]\n",
        folder.join(place).display(),
        key.display()
    );
    std::fs::write(&spec, text).expect("room on the disk");
    daemon.ok(&["drive", "create", place, "--spec", &spec.display().to_string()]);
}

/// Pauses the target below a function, in the daemon and in a process.
#[test]
fn commands_come_back_from_a_function_over_a_paused_target() {
    let daemon = Daemon::start("");
    for place in ["process", "daemon"] {
        encrypted(&daemon, place);
        let mut host = daemon.host(place);
        let mut disk = namespace(&mut host, 1);
        disk.write(0, &pattern(1, 4096)).expect("written");
        daemon.ok(&["target", "pause", place]);
        let interrupted = |error: sluice_host::Error| {
            let status = error.status();
            assert!(status.is_some_and(|it| it.same_code(Status::COMMAND_INTERRUPTED)), "{error}");
        };
        interrupted(disk.write(8, &pattern(2, 4096)).expect_err("it is paused"));
        interrupted(disk.read(0, &mut [0; 4096]).expect_err("it is paused"));
        daemon.ok(&["target", "resume", place]);
        disk.write(8, &pattern(2, 4096)).expect("written");
        assert!(read(&mut disk, 0) == pattern(1, 4096) && read(&mut disk, 8) == pattern(2, 4096));
    }
}

/// Ends hosts whose commands wait: one that resets its controller, and one that is gone.
#[test]
fn a_host_may_go_while_its_commands_wait() {
    let daemon = Daemon::start(&on_file(30));
    daemon.ok(&["target", "pause", "demo"]);
    for is_reset in [true, false] {
        let mut host = daemon.host("demo");
        let mut load = Load::new(&mut host);
        load.write_all();
        let in_flight = || {
            let view: serde_json::Value =
                serde_json::from_str(&daemon.ok(&["drive", "show", "demo", "-o", "json"])).expect("JSON");
            view["in_flight"].as_u64().expect("a number")
        };
        wait_for("the commands", || in_flight() == PAGES as u64);
        if is_reset {
            host.disable().expect("the controller is reset");
        } else {
            drop((host, load));
        }
        wait_for("their end", || in_flight() == 0);
    }
    let refused = daemon.fails(&["upgrade"]);
    assert!(refused.contains("a target of it is paused"), "{refused}");
    daemon.ok(&["target", "resume", "demo"]);
    let mut host = daemon.host("demo");
    namespace(&mut host, 1).write(0, &pattern(1, 4096)).expect("written");
}

/// Drive whose path 1 leads to a copy, and path 2 straight to the target.
const PATHS: &str = r#"
[[drive]]
name = "demo"
host_timeout_s = 6
[[drive.namespace]]
target = "file"
path = "a.img"
size = "1MiB"
functions = [ { kind = "pass" } ]
paths = [ { name = "copy", target = "memory" }, { name = "quick", below = 1 } ]
"#;

/// Classifier that sends all commands straight to the target.
const QUICK: &str = r#"
SEC("classifier")
sluice_verdict quick(struct sluice_context *ctx)
{
    return SLUICE_SEND(2);
}
"#;

/// Pauses a target that a program reaches past the functions over it.
#[test]
fn no_path_leads_past_a_pause() {
    let mut daemon = Daemon::start(PATHS);
    let object = compile(daemon.folder.path(), "quick", QUICK).display().to_string();
    daemon.ok(&["classifier", "attach", "demo", &object]);
    let interrupted = |daemon: &Daemon| {
        let mut host = daemon.host("demo");
        let error = namespace(&mut host, 1).write(8, &pattern(2, 4096)).expect_err("it is paused");
        let status = error.status();
        assert!(status.is_some_and(|it| it.same_code(Status::COMMAND_INTERRUPTED)), "{error}");
    };
    let mut host = daemon.host("demo");
    namespace(&mut host, 1).write(0, &pattern(1, 4096)).expect("written");
    drop(host);
    assert!(daemon.ok(&["target", "pause", "demo"]).contains("nothing is in it"));
    interrupted(&daemon);
    daemon.crash();
    daemon.restart();
    interrupted(&daemon);
    let (a, b) = (daemon.folder.path().join("a.img"), daemon.folder.path().join("b.img"));
    copy(&a, &b);
    let b = b.display().to_string();
    daemon.ok(&["target", "replace", "demo", "--file", &b, "--different-storage"]);
    let mut host = daemon.host("demo");
    let mut disk = namespace(&mut host, 1);
    disk.write(8, &pattern(3, 4096)).expect("it goes on");
    assert!(read(&mut disk, 0) == pattern(1, 4096) && read(&mut disk, 8) == pattern(3, 4096));
    disk.flush().expect("flushed");
    let image = |path: &Path| std::fs::read(path).expect("an image")[4096..8192].to_vec();
    assert!(image(Path::new(&b)) == pattern(3, 4096) && image(&a) != pattern(3, 4096));
}

/// Replaces the target of a stripe, which has no state, and not that of a mirror, which recognizes its members.
#[test]
fn a_function_without_a_state_gets_another_target() {
    let layered = |name: &str, function: &str| {
        format!(
            "[[drive]]\nname = \"{name}\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"{name}.img\"\n\
             size = \"1MiB\"\nfunctions = [ {{ {function} }} ]\n"
        )
    };
    let daemon = Daemon::start(&format!(
        "{}{}",
        layered(
            "demo",
            "kind = \"stripe\", layers = [ { target = \"file\", path = \"other.img\", size = \"1MiB\" } ]"
        ),
        layered(
            "both",
            "kind = \"uif\", function = \"mirror\", layers = [ { target = \"file\", path = \
             \"second.img\", size = \"1MiB\" }, { target = \"file\", path = \"log.img\", size = \"1MiB\" } ]"
        ),
    ));
    let folder = daemon.folder.path();
    let mut host = daemon.host("demo");
    let mut disk = namespace(&mut host, 1);
    let data = pattern(1, 512 << 10);
    for (index, part) in data.chunks(4096).enumerate() {
        disk.write(index as u64 * 8, part).expect("written");
    }
    let place = |name: &str| folder.join(name).display().to_string();
    daemon.ok(&["target", "pause", "demo"]);
    copy(&folder.join("demo.img"), &folder.join("new.img"));
    daemon.ok(&["target", "replace", "demo", "--file", &place("new.img"), "--different-storage"]);
    for (index, part) in data.chunks(4096).enumerate() {
        assert!(read(&mut disk, index as u64 * 8) == part, "{index}");
    }
    daemon.ok(&["target", "pause", "both"]);
    daemon.ok(&["target", "resume", "both"]);
    let said = daemon.fails(&["target", "replace", "both", "--file", &place("new2.img"), "--size", "1MiB"]);
    assert!(said.contains("recognizes the storage below it") && said.contains("function tell"), "{said}");
}
