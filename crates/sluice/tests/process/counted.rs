//! Metrics of a daemon whose drives have a predetermined load.

use crate::common::{Daemon, namespace, wait_for};
use crate::load::block_on;
use sluice_api::client::Client;

pub(crate) fn metrics(daemon: &Daemon) -> String {
    block_on(Client::new(daemon.api()).get_text("/metrics")).expect("metrics")
}

/// Returns the only sample of that name, if it is there.
fn find(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    let line = lines.next()?;
    assert!(lines.next().is_none(), "{text}");
    Some(line.rsplit_once(' ').and_then(|(_, value)| value.parse().ok()).expect("a number"))
}

/// Returns the only sample of that name. A page does not wait for a busy function, whose samples come with a
/// later one.
fn sample(daemon: &Daemon, name: &str) -> u64 {
    let mut found = None;
    wait_for(name, || {
        found = find(&metrics(daemon), name);
        found.is_some()
    });
    found.expect("it was there")
}

fn assert_samples(daemon: &Daemon, expected: &[(&str, u64)]) {
    for (name, value) in expected {
        wait_for(&format!("{name} of {value}"), || find(&metrics(daemon), name) == Some(*value));
    }
}

#[test]
fn commands_and_bytes_of_a_drive_are_counted_once() {
    let daemon =
        Daemon::start("[[drive]]\nname = \"d\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n");
    assert_samples(&daemon, &[("sluice_drive_connected", 0), ("sluice_drive_commands_total", 0)]);
    let mut host = daemon.host("d");
    let mut disk = namespace(&mut host, 1);
    for _ in 0..5 {
        disk.write(0, &[7; 4096]).expect("it is in range");
    }
    for _ in 0..3 {
        disk.read(0, &mut [0; 8192]).expect("it is in range");
    }
    disk.flush().expect("nothing is wrong");
    disk.read(2048, &mut [0; 512]).expect_err("it is behind the end");
    let expected = [
        ("sluice_drive_open", 1),
        ("sluice_drive_connected", 1),
        ("sluice_drive_commands_in_flight", 0),
        ("sluice_drive_remote_queues", 0),
        ("sluice_drive_commands_total", 10),
        ("sluice_drive_errors_total", 1),
        ("sluice_drive_classified", 0),
        ("sluice_drive_classifier_errors_total", 0),
        ("sluice_drive_read_bytes_total", 3 * 8192),
        ("sluice_drive_written_bytes_total", 5 * 4096),
    ];
    assert_samples(&daemon, &expected);
}

#[test]
fn chunks_versions_and_copies_of_a_store_are_counted() {
    let daemon = Daemon::start(
        "[[drive]]\nname = \"d\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"2MiB\"\nfunctions = [ { kind = \"uif\", \
         function = \"snapshot\", place = \"daemon\", options = { size = \"4MiB\", chunk = \"64KiB\" } } ]\n",
    );
    let mut host = daemon.host("d");
    let mut disk = namespace(&mut host, 1);
    let write = |disk: &mut sluice_host::Namespace, chunk: u64| disk.write(chunk * 128, &[7; 4096]);
    (0..3).for_each(|chunk| write(&mut disk, chunk).expect("there is room"));
    disk.flush().expect("nothing is wrong");
    let all = sample(&daemon, "sluice_function_store_chunks");
    let before = [
        ("sluice_function_chunks_mapped", 3),
        ("sluice_function_store_chunks_free", all - 3),
        ("sluice_function_versions", 0),
        // The unwritten part of a new chunk is filled with zeros.
        ("sluice_function_copies_total", 3),
        ("sluice_function_store_low", 0),
        ("sluice_function_capacity_exceeded_total", 0),
        ("sluice_function_metadata_failures_total", 0),
    ];
    assert_samples(&daemon, &before);
    daemon.ok(&["snapshot", "create", "d", "monday"]);
    // The chunk belongs to the version, too. The first of two writes to a part of it copies it, and the
    // second does not.
    (0..2).for_each(|_| write(&mut disk, 0).expect("there is room"));
    disk.flush().expect("nothing is wrong");
    let frozen = [
        ("sluice_function_versions", 1),
        ("sluice_function_copies_total", 4),
        ("sluice_function_store_chunks_free", all - 4),
    ];
    assert_samples(&daemon, &frozen);
    let refused = (3..64).filter(|chunk| write(&mut disk, *chunk).is_err()).count() as u64;
    let full = [
        ("sluice_function_store_low", 1),
        ("sluice_function_store_chunks_free", 0),
        ("sluice_function_capacity_exceeded_total", refused),
    ];
    assert!(refused > 0, "64 chunks and a version do not fit into 2 MiB");
    assert_samples(&daemon, &full);
    let text = metrics(&daemon);
    for described in ["# TYPE sluice_function_copies_total counter", "# TYPE sluice_function_versions gauge"]
    {
        assert!(text.contains(described), "{text}");
    }
    assert!(text.contains("# HELP sluice_function_versions Versions of the drive."), "{text}");
}

#[test]
fn losses_and_copied_bytes_of_a_mirror_are_counted() {
    let layer = |path: &str| format!("{{ target = \"file\", path = \"{path}\", size = \"4MiB\" }}");
    let daemon = Daemon::start(&format!(
        "[[drive]]\nname = \"d\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"first\"\nsize = \"4MiB\"\nfunctions = [ {{ kind = \
         \"uif\", function = \"mirror\", place = \"daemon\", layers = [ {}, {} ] }} ]\n",
        layer("second"),
        layer("set-log")
    ));
    let is_in_sync = || sample(&daemon, "sluice_function_degraded") == 0;
    wait_for("a set in sync", is_in_sync);
    let expect = |pairs: &[(&str, u64)]| assert_samples(&daemon, pairs);
    let before = sample(&daemon, "sluice_function_resync_bytes_total");
    let healthy = [
        ("sluice_function_stale_bytes", 0),
        ("sluice_function_losses_total", 0),
        ("sluice_function_source_errors_total", 0),
        ("sluice_function_check_different_pieces", 0),
        ("sluice_function_check_unreadable_pieces", 0),
        ("sluice_function_log_broken", 0),
    ];
    expect(&healthy);
    daemon.ok(&["function", "tell", "d", "fail 1"]);
    let mut host = daemon.host("d");
    let mut disk = namespace(&mut host, 1);
    disk.write(0, &[7; 4096]).expect("a member is there");
    // A member that was taken out is copied whole.
    expect(&[("sluice_function_degraded", 1), ("sluice_function_stale_bytes", 4 << 20)]);
    daemon.ok(&["function", "tell", "d", "resync 1"]);
    wait_for("a set in sync", is_in_sync);
    expect(&[("sluice_function_stale_bytes", 0), ("sluice_function_resync_bytes_total", before + (4 << 20))]);
    // A byte of another member is changed without the function.
    wait_for("a clean set", || sample(&daemon, "sluice_function_dirty_bytes") == 0);
    let second = daemon.folder.path().join("second");
    let mut image = std::fs::read(&second).expect("it is there");
    image[3 << 20] ^= 1;
    std::fs::write(&second, image).expect("room");
    daemon.ok(&["function", "tell", "d", "check"]);
    wait_for("the comparison", || {
        daemon.ok(&["function", "tell", "d", "status"]).contains(r#""running":false"#)
    });
    expect(&[("sluice_function_check_different_pieces", 1), ("sluice_function_check_unreadable_pieces", 0)]);
}

/// Returns the value of a sample with these labels.
fn labelled(text: &str, sample: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn commands_of_each_namespace_queue_and_layer_are_counted() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    let memory = "target = \"memory\"\nsize = \"1MiB\"\n";
    daemon.declare(
        "",
        &format!(
            "[metrics]\nlatency = true\nlayers = true\nslow_ms = 60000\n[[drive]]\nname = \"d\"\n[[drive.namespace]]\n{memory}\
             functions = [ {{ kind = \"pass\" }} ]\n[[drive.namespace]]\n{memory}"
        ),
    );
    daemon.restart();
    let mut host = daemon.host("d");
    let mut first = namespace(&mut host, 1);
    for _ in 0..5 {
        first.write(0, &[7; 4096]).expect("it is in range");
    }
    for _ in 0..3 {
        first.read(0, &mut [0; 8192]).expect("it is in range");
    }
    first.flush().expect("nothing is wrong");
    first.read(2048, &mut [0; 512]).expect_err("it is behind the end");
    let queue = host.create_queue_pair(2, sluice_host::QueueLayout::default(), None).expect("a queue pair");
    let mut second = sluice_host::Namespace::open(&mut host, 2, queue).expect("it is active");
    (0..2).for_each(|_| second.read(0, &mut [0; 512]).expect("it is in range"));
    let families = [
        ("commands", [10, 2]),
        ("errors", [1, 0]),
        ("read_bytes", [3 * 8192, 1024]),
        ("written_bytes", [5 * 4096, 0]),
    ];
    wait_for("all commands", || {
        labelled(&metrics(&daemon), "sluice_namespace_commands_total{drive=\"d\",nsid=\"2\"}") == Some(2)
    });
    let text = metrics(&daemon);
    for (family, values) in families {
        for (nsid, value) in [(1, values[0]), (2, values[1])] {
            // Each namespace has a queue of its own, with its number.
            let of_namespace = format!("sluice_namespace_{family}_total{{drive=\"d\",nsid=\"{nsid}\"}}");
            let of_queue =
                format!("sluice_queue_{family}_total{{drive=\"d\",controller=\"0\",queue=\"{nsid}\"}}");
            for sample in [of_namespace, of_queue] {
                assert_eq!(labelled(&text, &sample), Some(value), "{sample}: {text}");
            }
        }
        assert_eq!(
            find(&text, &format!("sluice_drive_{family}_total")),
            Some(values[0] + values[1]),
            "{text}"
        );
    }
    for (layer, commands, read, written) in [
        ("nsid=\"1\",layer=\"0\",kind=\"memory\"", 9, 3 * 8192, 5 * 4096),
        ("nsid=\"1\",layer=\"1\",kind=\"pass\"", 9, 3 * 8192, 5 * 4096),
        ("nsid=\"2\",layer=\"0\",kind=\"memory\"", 2, 1024, 0),
    ] {
        for (family, value) in [("commands", commands), ("read_bytes", read), ("written_bytes", written)] {
            let sample = format!("sluice_layer_{family}_total{{drive=\"d\",{layer}}}");
            assert_eq!(labelled(&text, &sample), Some(value), "{sample}: {text}");
        }
    }
    for (nsid, operation, count) in [(1, "read", 4), (1, "write", 5), (1, "flush", 1), (2, "read", 2)] {
        let labels = format!("drive=\"d\",nsid=\"{nsid}\",operation=\"{operation}\"");
        let sample = format!("sluice_namespace_command_duration_seconds_count{{{labels}}}");
        assert_eq!(labelled(&text, &sample), Some(count), "{sample}: {text}");
    }
}

#[test]
fn parts_of_a_drive_are_not_counted_where_it_is_off() {
    let daemon =
        Daemon::start("[[drive]]\nname = \"d\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n");
    let mut host = daemon.host("d");
    namespace(&mut host, 1).write(0, &[7; 4096]).expect("it is in range");
    assert_samples(&daemon, &[("sluice_drive_commands_total", 1)]);
    let text = metrics(&daemon);
    for family in ["namespace_commands", "queue_commands", "layer_commands"] {
        assert!(text.contains(&format!("# TYPE sluice_{family}_total counter")), "{text}");
        assert!(!text.contains(&format!("sluice_{family}_total{{")), "{text}");
    }
}
