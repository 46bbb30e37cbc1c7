//! A thin pool on a file under drives of two reactors: data outlives the daemon, and a full pool is grown.

use crate::common::{Daemon, namespace, wait_for};
use crate::load::block_on;
use sluice_api::SharedList;
use sluice_api::client::Client;
use sluice_control::drives::SharedView;
use sluice_host::Namespace;
use sluice_nvme::Status;

const EXTENT: usize = 64 << 10;
const BLOCKS: u64 = EXTENT as u64 / 512;

fn declare(daemon: &Daemon, size: &str) {
    let path = daemon.folder.path().join("pool.img");
    let pool = format!(
        "[[shared]]\nname = \"thin\"\ntype = \"thin\"\npath = \"{}\"\nsize = \"{size}\"\n",
        path.display()
    );
    let drive = |number: usize| {
        format!(
            "[[drive]]\nname = \"disk{number}\"\nreactor = {number}\n[[drive.namespace]]\ntarget = \"thin\"\n\
             shared = \"thin\"\nvolume = \"v{number}\"\nsize = \"1TiB\"\n"
        )
    };
    daemon.declare("cores = [0, 1]", &format!("{pool}{}{}", drive(0), drive(1)));
}

fn pool(daemon: &Daemon) -> SharedView {
    let list: SharedList = block_on(Client::new(daemon.api()).get("/v1/shared")).expect("an answer");
    let [pool] = list.shared.try_into().expect("there is one");
    pool
}

/// Writes an extent; returns whether the pool had room for it.
fn write(disk: &mut Namespace, extent: u64, byte: u8) -> bool {
    match disk.write(extent * BLOCKS, &[byte; EXTENT]) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.status(), Some(Status::CAPACITY_EXCEEDED));
            false
        }
    }
}

fn check(disk: &mut Namespace, extent: u64, byte: u8) {
    let mut data = vec![0xee; EXTENT];
    disk.read(extent * BLOCKS, &mut data).expect("it reads");
    assert!(data.iter().all(|found| *found == byte), "extent {extent} is not all {byte}");
}

#[test]
fn a_thin_pool_outlives_a_killed_daemon_and_a_full_one_is_grown() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    declare(&daemon, "4MiB");
    daemon.restart();
    let size = pool(&daemon).size.0;
    assert_eq!((pool(&daemon).free.0, pool(&daemon).users), (size, 2));
    let mut hosts = [daemon.host("disk0"), daemon.host("disk1")];
    let [first, second] = &mut hosts;
    let (mut first, mut second) = (namespace(first, 1), namespace(second, 1));
    // Far ends of a large volume take one extent each.
    assert!(write(&mut first, 0, 1) && write(&mut first, (1 << 24) - 1, 2));
    let mut count = 0;
    while write(&mut second, count * 9, 3) {
        count += 1;
    }
    assert_eq!((count + 2) * EXTENT as u64, size);
    check(&mut second, 5, 0);
    let used: Vec<u64> = pool(&daemon).volumes.iter().map(|volume| volume.allocated.0).collect();
    assert_eq!(used, [2 * EXTENT as u64, count * EXTENT as u64]);
    let message = daemon.ok(&["shared", "list"]);
    let volume = message.lines().find(|line| line.starts_with("v0 ")).expect("the volumes are listed");
    assert_eq!(volume.split_whitespace().collect::<Vec<_>>(), ["v0", "thin", "1TiB", "128KiB", "yes"]);
    let metrics = block_on(Client::new(daemon.api()).get_text("/metrics")).expect("an answer");
    for line in [
        format!("sluice_shared_size_bytes{{shared=\"thin\",type=\"thin\"}} {size}"),
        "sluice_shared_users{shared=\"thin\",type=\"thin\"} 2".to_owned(),
        "sluice_volume_allocated_bytes{shared=\"thin\",volume=\"v0\"} 131072".to_owned(),
        format!("sluice_volume_size_bytes{{shared=\"thin\",volume=\"v1\"}} {}", 1_u64 << 40),
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in {metrics}");
    }
    // Another drive cannot have the same volume.
    let twice = r#"{"name": "more", "namespaces": [
        {"target": "thin", "shared": "thin", "volume": "v0", "size": "1GiB"}]}"#;
    let file = daemon.folder.path().join("more.json");
    std::fs::write(&file, twice).expect("room on the disk");
    let message = daemon.fails(&["drive", "create", "more", "--spec", &file.display().to_string()]);
    assert!(message.contains("volume `v0` is in use by another namespace"), "{message}");
    wait_for("the event of a full pool", || daemon.ok(&["events"]).contains("of the pool thin are left"));
    drop((first, second, hosts));
    daemon.crash();
    declare(&daemon, "8MiB");
    daemon.restart();
    let grown = pool(&daemon);
    assert_eq!((grown.size.0, grown.free.0), (size + (4 << 20), 4 << 20));
    let mut hosts = [daemon.host("disk0"), daemon.host("disk1")];
    let [first, second] = &mut hosts;
    let (mut first, mut second) = (namespace(first, 1), namespace(second, 1));
    check(&mut first, 0, 1);
    check(&mut first, (1 << 24) - 1, 2);
    (0..count).for_each(|extent| check(&mut second, extent * 9, 3));
    assert!(write(&mut first, 7, 4));
    second.deallocate(&[(0, BLOCKS as u32)]).expect("it is quick");
    check(&mut second, 0, 0);
    check(&mut first, 7, 4);
}
