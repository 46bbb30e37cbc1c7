//! Controllers behind targets that are reset and get firmware while a host has commands in flight.

use crate::common::{Daemon, namespace, tool, wait_for};
use crate::load::under_load;
use crate::nvme::pattern;
use crate::targets::{far, free_port, identity, near, read, state};
use sluice_api::client::Client;
use sluice_api::{FirmwareRequest, TargetResetRequest};
use sluice_control::drives::{MaintenanceView, TargetState};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

/// Milliseconds that a daemon may add to a reset on a machine that tests have made slow. The figure of a quiet machine is
/// in docs/reference/durability.md.
const OWN_MS_MAX: f64 = 5_000.0;

/// Starts a relay to the port in the returned cell. Connections that are there keep their port.
fn relay(port: u16) -> (u16, Arc<AtomicU16>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (own, to) = (listener.local_addr().expect("a port").port(), Arc::new(AtomicU16::new(port)));
    let behind = Arc::clone(&to);
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(("127.0.0.1", behind.load(Relaxed))) else { continue };
            for (mut from, mut to) in [
                (client.try_clone().expect("a descriptor"), server.try_clone().expect("a descriptor")),
                (server, client),
            ] {
                std::thread::spawn(move || {
                    let _ = io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Write);
                });
            }
        }
    });
    (own, to)
}

fn path(what: &str) -> String {
    format!("/v1/drives/demo/targets/1/{what}")
}

#[test]
fn a_controller_is_reset_and_gets_firmware_under_load() {
    let port = free_port();
    let (_far, near) = (far(port, ""), near(port));
    let before = identity(&mut near.host("demo"));
    let image = near.folder.path().join("image");
    std::fs::write(&image, pattern(1, 100 << 10)).expect("room on the disk");
    let client = Client::new(near.api());
    let mut views = Vec::new();
    under_load(&near, || async {
        for round in 0..2 {
            let request = TargetResetRequest::default();
            views.push(client.post::<MaintenanceView>(&path("reset"), &request).await.expect("reset"));
            // A controller of the daemon holds the running firmware in its only slot, and takes an image without effect.
            let file = (round == 0).then(|| image.clone());
            let action = if round == 0 { 3 } else { 2 };
            let request = FirmwareRequest { file, slot: 1, action, back_s: None };
            views.push(client.post(&path("firmware"), &request).await.expect("activated"));
        }
    });
    for view in &views {
        eprintln!("device {} ms, own {} ms", view.device_ms, view.own_ms);
        assert!(view.own_ms < OWN_MS_MAX, "{view:?}");
        assert_eq!((view.state, view.queues, view.requests_events), (TargetState::Ready, 1, true));
        assert!(!view.firmware.is_empty() && view.firmware == view.firmware_before);
    }
    assert_eq!(views[1].image_bytes, Some(100 << 10));
    assert_eq!(identity(&mut near.host("demo")), before, "hosts see the same namespace");
    let events = near.ok(&["events"]);
    for what in ["target_reset", "firmware_progress", "firmware_committed", "100 % of 102400 bytes"] {
        assert!(events.contains(what), "{what}: {events}");
    }
    let said = near.ok(&["target", "reset", "demo"]);
    assert!(said.contains("commands waited: device") && said.contains("own"), "{said}");
    let mut host = near.host("demo");
    namespace(&mut host, 1).flush().expect("a reset in order loses no write");
}

#[test]
fn firmware_is_refused_by_name() {
    let port = free_port();
    let (_far, near) = (far(port, ""), near(port));
    let image = near.folder.path().join("image");
    let name = image.display().to_string();
    std::fs::write(&image, [1; 6]).expect("room on the disk");
    let refused = |words: &[&str], why: &str| {
        let said = near.fails(&[&["target", "firmware", "demo"], words].concat());
        assert!(said.contains(why), "{words:?}: {said}");
        assert_eq!(state(&near), TargetState::Ready, "commands go on");
    };
    refused(&["--file", &name], "multiple of 4");
    std::fs::write(&image, [1; 8192]).expect("room on the disk");
    refused(&["--file", &name], "Firmware Commit failed: Invalid Firmware Image");
    refused(&["--file", &name, "--slot", "1"], "Firmware Commit failed: Invalid Firmware Slot");
    refused(&["--file", &name, "--slot", "2"], "its slots are 1 to 1");
    refused(&["--file", &name, "--slot", "1", "--action", "2"], "leave --file out");
    refused(&["--slot", "1", "--action", "5"], "no commit action");
    let far_drive = _far.fails(&["target", "reset", "disk"]);
    assert!(far_drive.contains("no controller"), "{far_drive}");
}

/// Resets a controller, and finds another one at its address.
#[test]
fn another_controller_keeps_a_target_parked() {
    let (first, second) = (free_port(), free_port());
    let (_first, other) = (far(first, ""), far(second, ""));
    let (port, behind) = relay(first);
    let near = near(port);
    let mut host = near.host("demo");
    let mut disk = namespace(&mut host, 1);
    disk.write(8, &pattern(1, 4096)).expect("written");
    behind.store(second, Relaxed);
    let said = near.fails(&["target", "reset", "demo"]);
    assert!(said.contains("came back as another one") && said.contains("target resume"), "{said}");
    assert_eq!(state(&near), TargetState::Paused);
    assert!(near.ok(&["events"]).contains("stays paused"));
    behind.store(first, Relaxed);
    near.ok(&["target", "resume", "demo"]);
    wait_for("the controller", || state(&near) == TargetState::Ready);
    assert!(read(&mut disk, 8) == pattern(1, 4096));
    disk.write(8, &pattern(2, 4096)).expect("written");
    drop(other);
    // A controller that stays away is waited for no longer than given.
    let nothing = free_port();
    behind.store(nothing, Relaxed);
    let said = near.fails(&["target", "reset", "demo", "--back", "1"]);
    assert!(said.contains("did not come back within 1 s"), "{said}");
    assert_eq!(state(&near), TargetState::Paused);
    behind.store(first, Relaxed);
    near.ok(&["target", "resume", "demo"]);
    wait_for("the controller", || state(&near) == TargetState::Ready);
    assert!(read(&mut disk, 8) == pattern(2, 4096));
}

/// Resets a device that two drives share, of which the other one must be paused.
#[test]
fn a_shared_device_needs_all_its_drives_parked() {
    let below = Daemon::start(
        "[[drive]]\nname = \"disk\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"16MiB\"\n",
    );
    let socket = below.socket("disk");
    let range = |name: &str, first: u32| {
        format!(
            "[[drive]]\nname = \"{name}\"\n[[drive.namespace]]\ntarget = \"nvme\"\nnvme = {{ vfio_user = \"{}\", \
             namespace = 1, first_block = {first}, blocks = 16384 }}\n",
            socket.display()
        )
    };
    let near = Daemon::start(&format!("{}{}", range("demo", 0), range("next", 16384)));
    let (mut host, mut second) = (near.host("demo"), near.host("next"));
    let (mut disk, mut other) = (namespace(&mut host, 1), namespace(&mut second, 1));
    disk.write(0, &pattern(1, 4096)).expect("written");
    other.write(0, &pattern(2, 4096)).expect("written");
    let said = near.fails(&["target", "reset", "demo"]);
    assert!(said.contains("drive `next` is on the same device") && said.contains("pause next:1"), "{said}");
    near.ok(&["target", "pause", "next"]);
    near.ok(&["target", "reset", "demo"]);
    near.ok(&["target", "resume", "next"]);
    assert!(read(&mut disk, 0) == pattern(1, 4096) && read(&mut other, 0) == pattern(2, 4096));
}

/// Stops a daemon while it waits for a controller that does not come back from its reset.
#[test]
fn a_reset_in_progress_keeps_no_drive_from_its_last_flush() {
    let first = free_port();
    let _far = far(first, "");
    let (port, behind) = relay(first);
    let mut near = near(port);
    near.stop();
    let drives = std::fs::read_to_string(near.config()).expect("a configuration");
    let more = "[[drive]]\nname = \"other\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"other.img\"\nsize = \"1MiB\"\n";
    std::fs::write(near.config(), format!("{drives}{more}")).expect("room on the disk");
    near.restart();
    let mut host = near.host("other");
    namespace(&mut host, 1).write(0, &pattern(1, 4096)).expect("written");
    drop(host);
    behind.store(free_port(), Relaxed);
    let api = near.api();
    let reset = std::thread::spawn(move || tool(&api, &["target", "reset", "demo", "--back", "180"]));
    wait_for("the reset", || near.log().contains("it is reset by order"));
    near.stop();
    let said = reset.join().expect("no panic");
    assert!(String::from_utf8_lossy(&said.stderr).contains("the daemon is stopping"), "{said:?}");
    let log = near.log();
    assert!(log.contains("every command finished") && !log.contains("drive other was not flushed"), "{log}");
    behind.store(first, Relaxed);
    near.restart();
    wait_for("the controller", || state(&near) == TargetState::Ready);
}
