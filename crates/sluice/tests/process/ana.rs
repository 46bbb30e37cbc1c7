//! Paused targets that hosts see in the ANA state of their namespace.

use crate::common::{Daemon, namespace, wait_for};
use crate::load::under_load;
use crate::nvme::pattern;
use crate::targets::{NQN, free_port, near, read, state};
use sluice_api::TargetReplaceRequest;
use sluice_api::client::Client;
use sluice_control::drives::{TargetState, TargetView};
use sluice_host::{Controller, Namespace, QueueLayout, entry};
use sluice_nvme::{AnaState, FeatureId, LogId, NSID_ALL, Status};
use sluice_spec::TargetSpec;
use std::time::Duration;

/// Asynchronous Event Configuration: ANA Change Notices. Type and information of such a notice.
const ANA_NOTICES: u32 = 1 << 11;
const ANA_CHANGE: (u8, u8) = (2, 3);

/// Starts a daemon with a drive of two namespaces, which hosts with multipath use.
fn shared(port: u16) -> Daemon {
    let namespace = |number: u32| {
        format!(
            "[[drive.namespace]]\ntarget = \"file\"\npath = \"{number}.img\"\nsize = \"16MiB\"\nana_group = {number}\n"
        )
    };
    Daemon::start(&format!(
        "[tcp]\nlisten = [\"127.0.0.1:{port}\"]\n[[drive]]\nname = \"disk\"\nabsence = {{ answer = \"ana\" }}\n\
         tcp = {{ nqn = \"{NQN}\" }}\nvfio_user = {{ sockets = 1 }}\n{}{}",
        namespace(1),
        namespace(2)
    ))
}

/// Returns the states of the groups in the ANA log page.
fn states(host: &mut Controller) -> Vec<AnaState> {
    let mut page = [0; 16 + 2 * 40];
    host.get_log_page(LogId::ASYMMETRIC_NAMESPACE_ACCESS, NSID_ALL, 0, &mut page).expect("a page");
    // Each group has one namespace.
    [16, 16 + 36].map(|at| AnaState::of(page[at + 16] & 0xf).expect("a state")).into()
}

#[test]
fn hosts_see_a_pause_in_the_state_of_the_group() {
    let mut daemon = shared(free_port());
    let mut host = daemon.host("disk");
    let configured = entry::set_features(FeatureId::ASYNC_EVENTS, 0, ANA_NOTICES);
    host.admin(configured).expect("the notice is supported");
    host.request_async_event().expect("requested");
    let mut disk = namespace(&mut host, 1);
    let queue = host.create_queue_pair(2, QueueLayout::default(), None).expect("a queue pair");
    let mut other = Namespace::open(&mut host, 2, queue).expect("an active namespace");
    disk.write(0, &pattern(1, 4096)).expect("written");
    assert_eq!(states(&mut host), [AnaState::Optimized; 2]);
    daemon.ok(&["target", "pause", "disk"]);
    let mut notice = None;
    wait_for("the notice", || {
        notice = notice.or(host.poll_async_event().expect("it is there").map(|it| (it.kind, it.info)));
        notice.is_some()
    });
    assert_eq!(notice, Some(ANA_CHANGE));
    assert_eq!(states(&mut host), [AnaState::Inaccessible, AnaState::Optimized]);
    let error = disk.write(0, &pattern(2, 4096)).expect_err("hosts take another path");
    let is_refused = |it: Status| it.same_code(Status::ASYMMETRIC_ACCESS_INACCESSIBLE);
    assert!(error.status().is_some_and(is_refused), "{error}");
    other.write(0, &pattern(3, 4096)).expect("of another group");
    drop((disk, other, host));
    daemon.crash();
    daemon.restart();
    let mut host = daemon.host("disk");
    assert_eq!(states(&mut host), [AnaState::Inaccessible, AnaState::Optimized], "also after a restart");
    daemon.ok(&["target", "resume", "disk"]);
    assert_eq!(states(&mut host), [AnaState::Optimized; 2]);
    let mut disk = namespace(&mut host, 1);
    assert!(read(&mut disk, 0) == pattern(1, 4096));
    disk.write(0, &pattern(2, 4096)).expect("it goes on");
    // A state that the operator has set is there again after a pause.
    daemon.ok(&["drive", "ana", "disk", "--state", "non-optimized", "--group", "1"]);
    daemon.ok(&["target", "pause", "disk"]);
    assert_eq!(states(&mut host)[0], AnaState::Inaccessible);
    daemon.ok(&["target", "resume", "disk"]);
    assert_eq!(states(&mut host)[0], AnaState::NonOptimized);
}

/// Serves a daemon as the host. Its own host has no error while the target is paused and replaced.
#[test]
fn a_daemon_as_host_waits_for_the_group() {
    let port = free_port();
    let far = shared(port);
    let near = near(port);
    let client = Client::new(far.api());
    let folder = far.folder.path().to_owned();
    under_load(&near, || async {
        let path = |what: &str| format!("/v1/drives/disk/targets/1{what}");
        for (from, to) in [("1.img", "b.img"), ("b.img", "1.img")] {
            let _: TargetView = client.post(&path("/pause"), &serde_json::json!({})).await.expect("paused");
            std::thread::sleep(Duration::from_millis(300));
            std::fs::copy(folder.join(from), folder.join(to)).expect("room on the disk");
            let target = TargetSpec::file(folder.join(to));
            let request = TargetReplaceRequest { target, different_storage: true };
            let view: TargetView = client.put(&path(""), &request).await.expect("replaced");
            assert_eq!(view.state, TargetState::Ready);
        }
    });
    assert_eq!(state(&near), TargetState::Ready);
    let said = near.ok(&["drive", "show", "demo"]);
    assert!(!said.contains("inaccessible"), "{said}");
}

#[test]
fn a_drive_with_one_way_or_a_shared_group_is_refused_at_its_key() {
    let daemon = Daemon::start("");
    let path = daemon.folder.path().join("drives.toml");
    let namespaces = "[[drive.namespace]]\ntarget = \"null\"\nsize = \"1MiB\"\n".repeat(2);
    for (ways, why) in [
        ("", "answer: there is just one way"),
        ("vfio_user = { sockets = 2 }\n", "ana_group: each namespace needs"),
    ] {
        let text = format!("[[drive]]\nname = \"a\"\nabsence = {{ answer = \"ana\" }}\n{ways}{namespaces}");
        std::fs::write(&path, text).expect("room on the disk");
        let said = daemon.fails(&["apply", "-f", &path.display().to_string()]);
        assert!(said.contains(why), "{said}");
    }
}
