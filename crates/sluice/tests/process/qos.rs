//! Limits of drives and of groups: changed while hosts work, kept over a restart, and shared by queues on several
//! reactors.

use crate::common::{Daemon, namespace, wait_for};
use crate::groups::{of_two_reactors, try_move};
use crate::load::block_on;
use sluice_api::client::Client;
use sluice_api::{GroupList, LimitsList};
use sluice_control::drives::{GroupView, LimitsView};
use sluice_functions::QosLimits;
use sluice_host::Namespace;
use std::time::{Duration, Instant};

fn disk(name: &str, qos: &str) -> String {
    format!(
        "[[drive]]\nname = \"{name}\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n\
         functions = [ {{ kind = \"qos\"{qos} }} ]\n"
    )
}

/// Returns the time of so many reads, one after the other.
fn reads(disk: &mut Namespace, count: u32) -> Duration {
    let began = Instant::now();
    (0..count).for_each(|_| disk.read(0, &mut [0; 4096]).expect("it waits, and does not fail"));
    began.elapsed()
}

fn limits(daemon: &Daemon, name: &str) -> LimitsView {
    let list: LimitsList =
        block_on(Client::new(daemon.api()).get(&format!("/v1/drives/{name}/limits"))).expect("an answer");
    let [limits] = list.limits.try_into().expect("there is one function with limits");
    limits
}

fn groups(daemon: &Daemon) -> Vec<GroupView> {
    block_on(Client::new(daemon.api()).get::<GroupList>("/v1/groups")).expect("an answer").groups
}

#[test]
fn a_limit_is_changed_under_load_and_kept_over_a_restart() {
    let mut daemon = Daemon::start(&disk("disk", ", limits = { iops = 40 }"));
    let mut host = daemon.host("disk");
    let mut drive = namespace(&mut host, 1);
    // The first passes at once, and a burst of 10 ms may be saved up.
    assert!(reads(&mut drive, 21) >= Duration::from_millis(488), "20 of 40 commands a second");
    assert!(limits(&daemon, "disk").waited >= 10);
    let shown = daemon.ok(&["drive", "limit", "disk", "--iops", "none", "--read-bandwidth", "40KiB"]);
    assert!(shown.contains("read-bandwidth 40KiB") && !shown.contains("iops"), "{shown}");
    assert!(reads(&mut drive, 11) >= Duration::from_millis(988), "ten of ten reads of 4 KiB a second");
    daemon.ok(&["drive", "limit", "disk", "--read-bandwidth", "none"]);
    let before = limits(&daemon, "disk").waited;
    reads(&mut drive, 100);
    assert_eq!(limits(&daemon, "disk").waited, before, "nothing waits without limits");
    daemon.ok(&["drive", "limit", "disk", "--write-iops", "7"]);
    let wrong = daemon.fails(&["drive", "limit", "disk", "--iops", "0"]);
    assert!(wrong.contains("nothing would ever pass"), "{wrong}");
    drop((drive, host));
    daemon.crash();
    daemon.restart();
    assert_eq!(limits(&daemon, "disk").limits, QosLimits { write_iops: Some(7), ..QosLimits::default() });
    // A new limit in the file replaces it.
    daemon.stop();
    daemon.declare("", &disk("disk", ", limits = { iops = 50 }"));
    daemon.restart();
    assert_eq!(limits(&daemon, "disk").limits, QosLimits { iops: Some(50), ..QosLimits::default() });
}

#[test]
fn a_created_drive_keeps_its_limits_and_one_without_has_none() {
    let mut daemon = Daemon::start("");
    let spec = r#"{ "name": "a", "namespaces": [ { "target": "memory", "size": "1MiB",
        "functions": [ { "kind": "qos" } ] } ] }"#;
    std::fs::write(daemon.folder.path().join("a.json"), spec).expect("room");
    let file = daemon.folder.path().join("a.json").display().to_string();
    daemon.ok(&["drive", "create", "a", "--spec", &file]);
    daemon.ok(&["drive", "create", "b", "--memory", "1MiB"]);
    daemon.ok(&["drive", "limit", "a", "--iops", "5", "--burst-ms", "100"]);
    assert_eq!(daemon.ok(&["drive", "limit", "b"]), "no function with limits\n");
    let refused = daemon.fails(&["drive", "limit", "b", "--iops", "5"]);
    assert!(
        refused.contains("has no function with limits") && refused.contains("kind = \"qos\""),
        "{refused}"
    );
    daemon.stop();
    daemon.restart();
    let expected = QosLimits { iops: Some(5), burst_ms: Some(100), ..QosLimits::default() };
    assert_eq!(limits(&daemon, "a").limits, expected);
}

#[test]
fn two_drives_of_a_group_share_its_limit() {
    let of = |name, more: &str| disk(name, &format!(", group = \"gold\"{more}"));
    let both = of("one", ", guarantee = { iops = 10 }") + &of("two", "");
    let declared = format!("[[group]]\nname = \"gold\"\nlimits = {{ iops = 40 }}\n{both}");
    let mut daemon = Daemon::start(&declared);
    let mut hosts = ["one", "two"].map(|name| daemon.host(name));
    let mut drives = hosts.each_mut().map(|host| namespace(host, 1));
    let began = Instant::now();
    std::thread::scope(|scope| {
        drives.iter_mut().for_each(|drive| drop(scope.spawn(|| reads(drive, 11))));
    });
    // A guaranteed command may pass two slots before its own.
    assert!(
        began.elapsed() >= Duration::from_millis(420),
        "21 of 40 commands a second, and the first at once"
    );
    let refused = daemon.fails(&["group", "set", "gold", "--iops", "9"]);
    assert!(refused.contains("less than the 10 that is guaranteed"), "{refused}");
    let refused = daemon.fails(&["group", "delete", "gold"]);
    assert!(refused.contains("is declared in"), "{refused}");
    daemon.ok(&["group", "set", "gold", "--iops", "none"]);
    daemon.ok(&["group", "set", "silver", "--bandwidth", "1MiB"]);
    let before = groups(&daemon)[0].waited;
    for drive in &mut drives {
        reads(drive, 50);
    }
    let found = groups(&daemon);
    assert_eq!((found[0].members, found[0].waited), (2, before));
    daemon.ok(&["group", "set", "gold", "--iops", "20"]);
    // Two of them may pass their slots, as above.
    assert!(reads(&mut drives[0], 11) >= Duration::from_millis(388), "ten of twenty a second");
    drop((drives, hosts));
    daemon.crash();
    daemon.restart();
    let names: Vec<_> = groups(&daemon).into_iter().map(|group| (group.name, group.limits.iops)).collect();
    assert_eq!(names, [("gold".to_owned(), Some(20)), ("silver".to_owned(), None)]);
    daemon.ok(&["group", "delete", "silver"]);
    assert!(daemon.fails(&["group", "show", "silver"]).contains("there is no group `silver`"));
    // A reload changes the limit in the file, and ends a group with its last member.
    daemon.declare("", &declared.replace("iops = 40", "iops = 30"));
    daemon.ok(&["reload"]);
    assert_eq!(groups(&daemon)[0].limits.iops, Some(30));
    daemon.declare("", "");
    daemon.ok(&["reload"]);
    wait_for("the end of the group", || {
        daemon.run(&["reload"]).status.success() && groups(&daemon).is_empty()
    });
    let unknown = format!(
        "{{ \"name\": \"x\", \"namespaces\": [ {{ \"target\": \"null\", \"size\": \"1MiB\", {} }} ] }}",
        "\"functions\": [ { \"kind\": \"qos\", \"group\": \"bronze\" } ]"
    );
    let file = daemon.folder.path().join("x.json");
    std::fs::write(&file, unknown).expect("room");
    let refused = daemon.fails(&["drive", "create", "x", "--spec", &file.display().to_string()]);
    assert!(refused.contains("there is no group `bronze`"), "{refused}");
}

/// Checks that the part of a drive on another reactor, which has a layer of its own, has the same budget.
#[test]
fn queues_on_two_reactors_share_one_limit() {
    let daemon = of_two_reactors("16MiB", "functions = [ { kind = \"qos\", limits = { iops = 40 } } ]\n");
    let mut host = daemon.host("disk");
    let mut queue = |id| {
        let queue =
            host.create_queue_pair(id, sluice_host::QueueLayout::default(), None).expect("a queue pair");
        Namespace::open(&mut host, 1, queue).expect("an active namespace")
    };
    let mut queues = [1, 2].map(&mut queue);
    block_on(try_move(&Client::new(daemon.api()), 2, 1)).expect("the function has a clone");
    let began = Instant::now();
    std::thread::scope(|scope| {
        queues.iter_mut().for_each(|queue| drop(scope.spawn(|| reads(queue, 11))));
    });
    assert!(
        began.elapsed() >= Duration::from_millis(488),
        "21 of 40 commands a second, and the first at once"
    );
    daemon.ok(&["drive", "limit", "disk", "--iops", "20"]);
    for queue in &mut queues {
        assert!(reads(queue, 6) >= Duration::from_millis(238 - 50), "both follow the change");
    }
    assert_eq!(limits(&daemon, "disk").waiting, 0);
}

#[test]
fn drives_of_two_classes_share_a_device_and_keep_their_data() {
    let drive = |name: &str, more: &str| {
        format!(
            "[[drive]]\nname = \"{name}\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"{name}.img\"\nsize = \"16MiB\"\n\
             functions = [ {{ kind = \"priority\", device = \"disk0\"{more} }} ]\n"
        )
    };
    let drives = drive("work", "") + &drive("backup", ", class = \"background\", background_percent = 20");
    let daemon = Daemon::start(&drives);
    let mut hosts = ["work", "backup"].map(|name| daemon.host(name));
    let mut drives = hosts.each_mut().map(|host| namespace(host, 1));
    std::thread::scope(|scope| {
        for (number, drive) in drives.iter_mut().enumerate() {
            scope.spawn(move || {
                let block = |at: u64| vec![at as u8 ^ (number as u8 + 1); 64 << 10];
                (0..64).for_each(|at| drive.write(at * 128, &block(at)).expect("it is in range"));
                drive.flush().expect("nothing is wrong");
                for at in 0..64 {
                    let mut data = vec![0; 64 << 10];
                    drive.read(at * 128, &mut data).expect("it is in range");
                    assert!(data == block(at), "block {at} of drive {number}");
                }
            });
        }
    });
    let refused = daemon.fails(&["drive", "limit", "work", "--iops", "5"]);
    assert!(refused.contains("has no function with limits"), "{refused}");
}

/// Checks that waiting commands, limits and groups go with an upgrade of the daemon.
#[test]
fn an_upgrade_keeps_limits_and_commands_that_wait() {
    let drives = format!(
        "[[group]]\nname = \"gold\"\nlimits = {{ iops = 1000 }}\n{}{}{}",
        disk("disk", ", group = \"gold\"").replace("\"memory\"", "\"file\"\npath = \"disk.img\""),
        disk("cached", "").replace("\"memory\"", "\"file\"\npath = \"cached.img\"").replace("qos", "cache"),
        disk("shared", "")
            .replace("\"memory\"", "\"file\"\npath = \"shared.img\"")
            .replace("qos", "priority"),
    );
    let daemon = Daemon::start(&drives);
    daemon.ok(&["drive", "limit", "disk", "--iops", "100"]);
    daemon.ok(&["group", "set", "gold", "--iops", "500"]);
    let names = ["disk", "cached", "shared"];
    let mut hosts = names.map(|name| daemon.host(name));
    let mut drives = hosts.each_mut().map(|host| namespace(host, 1));
    std::thread::scope(|scope| {
        for drive in &mut drives {
            scope.spawn(|| {
                for at in 0..150_u64 {
                    let data = vec![at as u8; 4096];
                    drive.write(at % 16 * 8, &data).expect("it waits, and does not fail");
                    let mut read = vec![0; 4096];
                    drive.read(at % 16 * 8, &mut read).expect("it waits, and does not fail");
                    assert!(read == data, "write {at}");
                }
            });
        }
        std::thread::sleep(Duration::from_millis(300));
        daemon.upgrade(&[]);
    });
    assert_eq!(limits(&daemon, "disk").limits.iops, Some(100));
    assert_eq!(groups(&daemon)[0].limits.iops, Some(500));
    assert_eq!(groups(&daemon)[0].members, 1);
}
