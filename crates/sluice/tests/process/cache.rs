//! A cache in front of a file, under a load that verifies its data.

use crate::common::{Daemon, namespace};
use crate::counted::metrics;
use crate::load::Load;

const DRIVE: &str = "[[drive]]\nname = \"disk\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"disk.img\"\n\
                     size = \"16MiB\"\nfunctions = [ { kind = \"cache\", size = \"1MiB\" } ]\n";

fn count(daemon: &Daemon, name: &str) -> u64 {
    let start = format!("sluice_cache_{name}_total{{drive=\"disk\",nsid=\"1\",number=\"1\"}} ");
    let text = metrics(daemon);
    let found = text.lines().find_map(|line| line.strip_prefix(&start)?.parse().ok());
    found.expect("the metric is there")
}

#[test]
fn a_cache_returns_what_was_written_and_loses_nothing_with_the_daemon() {
    let mut daemon = Daemon::start(DRIVE);
    let mut host = daemon.host("disk");
    let mut loads: Vec<Load> = (1..=3).map(|qid| Load::new(&mut host, qid, u64::from(qid))).collect();
    while loads.iter().any(|load| load.completed < 2000) {
        loads.iter_mut().for_each(|load| load.turn(true));
    }
    loads.iter_mut().for_each(Load::end);
    assert!(count(&daemon, "hits") >= 2000, "a place is read right after it was written");
    assert!(count(&daemon, "writes") >= 2000);
    drop((loads, host));
    let written: Vec<u8> = (0..64 << 10).map(|n| (n / 512) as u8).collect();
    let mut host = daemon.host("disk");
    let mut disk = namespace(&mut host, 1);
    disk.write(8192, &written).expect("it is in range");
    drop((disk, host));
    daemon.crash();
    daemon.restart();
    let mut host = daemon.host("disk");
    let mut disk = namespace(&mut host, 1);
    for reads in 0..2 {
        let mut data = vec![0; written.len()];
        disk.read(8192, &mut data).expect("it is in range");
        assert!(data == written, "read {reads}");
    }
    assert!(count(&daemon, "misses") >= 1 && count(&daemon, "hits") >= 1);
}

#[test]
fn a_cache_that_changes_could_bypass_is_refused() {
    let daemon = Daemon::start("");
    let create = |functions: &str| {
        let spec = format!(
            r#"{{ "name": "a", "namespaces": [ {{ "target": "memory", "size": "1MiB", "functions": [ {functions} ] }} ] }}"#
        );
        let file = daemon.folder.path().join("a.json");
        std::fs::write(&file, spec).expect("room");
        daemon.fails(&["drive", "create", "a", "--spec", &file.display().to_string()])
    };
    let below = create(r#"{ "kind": "cache" }, { "kind": "uif", "function": "snapshot" }"#);
    assert!(below.contains("snapshot below the cache can change data by itself"), "{below}");
    let small = create(r#"{ "kind": "cache", "size": "4KiB" }"#);
    assert!(small.contains("use 1MiB to 64GiB"), "{small}");
}
