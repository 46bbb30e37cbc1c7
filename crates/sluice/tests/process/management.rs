//! Changes by hosts to a pool, which persist under the next daemon, with no others.

use crate::common::{Daemon, namespace, wait_for};
use sluice_host::{Controller, Error};
use sluice_nvme::identify::{IdentifyNamespace, SIZE};
use sluice_nvme::opcode::admin;
use sluice_nvme::{Cns, Status, SubmissionEntry};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

fn create(host: &mut Controller, blocks: u64) -> Result<u32, Error> {
    let mut data = IdentifyNamespace::new_zeroed();
    (data.nsze, data.ncap, data.nmic) = (blocks, blocks, 1);
    let entry = SubmissionEntry { opcode: admin::NAMESPACE_MANAGEMENT, ..Default::default() };
    host.admin_write(entry, data.as_bytes()).map(|completion| completion.dw0)
}

fn delete(host: &mut Controller, nsid: u32) -> Result<(), Error> {
    let opcode = admin::NAMESPACE_MANAGEMENT;
    host.admin(SubmissionEntry { opcode, nsid, cdw10: 1, ..Default::default() }).map(drop)
}

fn attach(host: &mut Controller, nsid: u32, cntlids: &[u16], attach: bool) -> Result<(), Error> {
    let mut list = vec![cntlids.len() as u16];
    list.extend(cntlids);
    list.resize(SIZE / size_of::<u16>(), 0);
    let (opcode, cdw10) = (admin::NAMESPACE_ATTACHMENT, u32::from(!attach));
    let entry = SubmissionEntry { opcode, nsid, cdw10, ..Default::default() };
    host.admin_write(entry, list.as_bytes()).map(drop)
}

fn allocated(host: &mut Controller) -> Vec<u32> {
    let page = host.identify(Cns::ALLOCATED_NAMESPACES, 0).expect("a list");
    let (nsids, _) = page.as_chunks::<4>();
    nsids.iter().map(|nsid| u32::from_le_bytes(*nsid)).take_while(|nsid| *nsid != 0).collect()
}

fn pool(folder: &Path) -> String {
    format!(
        "[[drive]]\nname = \"demo\"\n[drive.vfio_user]\nsockets = 2\n[drive.pool]\ntarget = \"file\"\n\
         size = \"16MiB\"\nfolder = \"{}\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n",
        folder.display()
    )
}

fn files(folder: &Path) -> BTreeSet<String> {
    // A daemon that was killed early has not created the folder.
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

fn is(error: &Error, status: Status) -> bool {
    error.status().is_some_and(|it| it.same_code(status))
}

/// Conformance: Base 8.11, namespaces and their attachments persist over power cycles.
#[test]
fn namespaces_survive_a_crash_and_are_gone_when_they_are_deleted() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let mut daemon = Daemon::start(&pool(&path));
    let mut host = daemon.host("demo");
    assert!(
        host.identity().is_some_and(|it| it.oacs & 8 != 0 && it.unvmcap[0] == 16 << 20 && it.vwc & 1 == 1)
    );
    assert_eq!(create(&mut host, 8 << 11).expect("there is room"), 2);
    let error = create(&mut host, 9 << 11).expect_err("there is not so much");
    assert!(is(&error, Status::NAMESPACE_INSUFFICIENT_CAPACITY), "{error}");
    assert_eq!(create(&mut host, 8 << 11).expect("there is room"), 3);
    attach(&mut host, 2, &[1, 2], true).expect("it can be attached");
    attach(&mut host, 3, &[2], true).expect("it can be attached");
    attach(&mut host, 1, &[2], false).expect("it can be detached");
    let mut disk = namespace(&mut host, 2);
    disk.write(16_000, &[0x5a; 8192]).expect("it is in range");
    disk.flush().expect("nothing is wrong");
    let nguid = disk.identity().nguid;
    drop((disk, host));
    daemon.crash();
    daemon.restart();
    let (mut host, mut other) = (daemon.host("demo"), daemon.host("demo/2"));
    assert_eq!(allocated(&mut host), [1, 2, 3], "{}", daemon.log());
    assert_eq!(host.active_namespaces().expect("a list"), [1, 2]);
    assert_eq!(other.active_namespaces().expect("a list"), [2, 3]);
    let mut disk = namespace(&mut other, 2);
    let mut blocks = [0; 8192];
    disk.read(16_000, &mut blocks).expect("it is in range");
    assert_eq!((blocks, disk.identity().nguid), ([0x5a; 8192], nguid));
    drop(disk);
    let shown = daemon.ok(&["drive", "show", "demo"]);
    assert!(shown.lines().filter(|line| line.contains("host")).count() >= 2, "{shown}");
    assert_eq!(files(&path).len(), 2);
    // The next namespace with the same blocks has another identity, and no data of the old one.
    delete(&mut host, 2).expect("it can be deleted");
    assert_eq!(create(&mut host, 8 << 11).expect("there is room"), 2);
    attach(&mut host, 2, &[1], true).expect("it can be attached");
    let mut disk = namespace(&mut host, 2);
    disk.read(16_000, &mut blocks).expect("it is in range");
    assert_eq!(blocks, [0; 8192]);
    assert_ne!(disk.identity().nguid, nguid);
    drop(disk);
    delete(&mut other, 3).expect("it can be deleted");
    drop((host, other));
    daemon.crash();
    daemon.restart();
    let mut host = daemon.host("demo");
    assert_eq!(allocated(&mut host), [1, 2]);
    let left = files(&path);
    assert!(left.len() == 1 && left.iter().all(|name| name.starts_with("demo-2-3-")), "{left:?}");
    // The operator deletes a namespace that a host has created, and hosts get an event.
    let delete_namespace = |nsid| ["drive", "delete-namespace", "demo", "--nsid", nsid];
    assert!(daemon.fails(&delete_namespace("1")).contains("not one that a host has created"));
    assert!(daemon.fails(&delete_namespace("3")).contains("no namespace 3"));
    assert!(daemon.fails(&delete_namespace("2")).contains("--force"));
    host.request_async_event().expect("it is sent");
    daemon.ok(&[&delete_namespace("2")[..], &["--force"]].concat());
    assert_eq!(allocated(&mut host), [1]);
    assert!(host.poll_async_event().expect("it is asked").is_some());
    wait_for("the file to go", || files(&path).is_empty());
    let error = delete(&mut host, 1).expect_err("it is the operator's");
    assert!(is(&error, Status::OPERATION_DENIED), "{error}");
}

/// Upgrades the daemon after hosts have created, attached and deleted namespaces, under hosts that go on.
#[test]
fn created_namespaces_go_to_another_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let memory = "[[drive.namespace]]\ntarget = \"memory\"";
    let pool = pool(&folder.path().join("pool")).replace(memory, "[[drive.namespace]]\ntarget = \"null\"");
    let daemon = Daemon::start(&pool);
    let (mut host, mut other) = (daemon.host("demo"), daemon.host("demo/2"));
    for nsid in [2, 3, 4] {
        assert_eq!(create(&mut host, 1 << 11).expect("there is room"), nsid);
    }
    attach(&mut host, 2, &[1, 2], true).expect("it can be attached");
    attach(&mut host, 4, &[2], true).expect("it can be attached");
    delete(&mut host, 3).expect("it can be deleted");
    let (mut disk, mut same) = (namespace(&mut host, 2), namespace(&mut other, 2));
    for round in 0..5_u8 {
        disk.write(16, &[round; 8192]).expect("it is in range");
        daemon.upgrade(&[]);
        let mut blocks = [0xff; 8192];
        same.read(16, &mut blocks).expect("it is in range");
        assert_eq!(blocks, [round; 8192]);
    }
    assert_eq!(allocated(&mut host), [1, 2, 4], "{}", daemon.log());
    assert_eq!(host.active_namespaces().expect("a list"), [1, 2]);
    assert_eq!(other.active_namespaces().expect("a list"), [1, 2, 4]);
    // The pool goes on, too.
    assert_eq!(create(&mut host, 8 << 11).expect("there is room"), 3);
    delete(&mut other, 4).expect("it can be deleted");
    daemon.upgrade(&[]);
    assert_eq!(allocated(&mut host), [1, 2, 3]);
    assert_eq!(files(&folder.path().join("pool")).len(), 2);
}

/// Checks that namespaces of hosts are kept if the configuration has lost their pool.
#[test]
fn a_drive_that_lost_its_pool_is_not_opened() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut daemon = Daemon::start(&pool(&folder.path().join("pool")));
    let mut host = daemon.host("demo");
    create(&mut host, 8).expect("there is room");
    drop(host);
    daemon.stop();
    let rest = "[[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n";
    daemon.declare("", &format!("[[drive]]\nname = \"demo\"\n{rest}"));
    daemon.restart();
    let shown = daemon.ok(&["drive", "show", "demo"]);
    assert!(shown.contains("in a pool that the drive does not have"), "{shown}");
    daemon.stop();
    daemon.declare("", &(pool(&folder.path().join("pool")) + rest));
    daemon.restart();
    let shown = daemon.ok(&["drive", "show", "demo"]);
    assert!(shown.contains("which the configuration declares now"), "{shown}");
    daemon.stop();
    daemon.declare("", &pool(&folder.path().join("pool")));
    daemon.restart();
    assert_eq!(allocated(&mut daemon.host("demo")), [1, 2]);
}

/// Checks that a daemon that is killed at any moment has a namespace with its file, or neither.
#[test]
fn a_kill_leaves_a_namespace_or_none() {
    const ROUNDS: u64 = 12;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let mut daemon = Daemon::start(&pool(&path));
    let mut known = BTreeSet::from([1]);
    for round in 0..ROUNDS {
        let mut host = daemon.host("demo");
        let mut is = known.clone();
        let at_work = std::thread::spawn(move || {
            for step in round.. {
                // The command that is in flight at the end may have been done, or not.
                let oldest = is.iter().copied().find(|nsid| *nsid > 1);
                let (done, nsid) = match oldest.filter(|_| is.len() > 4 || step % 3 == 2) {
                    Some(nsid) => (delete(&mut host, nsid).map(|()| is.remove(&nsid)), nsid),
                    None => {
                        let made = create(&mut host, 64);
                        let nsid = *made.as_ref().unwrap_or(&0);
                        (made.map(|nsid| is.insert(nsid)), nsid)
                    }
                };
                if done.is_err() {
                    return (is, nsid);
                }
            }
            unreachable!("the daemon is killed before")
        });
        std::thread::sleep(Duration::from_millis(3 + 7 * round));
        daemon.crash();
        let (acknowledged, doubtful) = at_work.join().expect("no panic");
        daemon.restart();
        let there: BTreeSet<u32> = allocated(&mut daemon.host("demo")).into_iter().collect();
        let differ: Vec<u32> = there.symmetric_difference(&acknowledged).copied().collect();
        let may_differ = match (doubtful, differ.as_slice()) {
            (_, []) => true,
            // The last command was a creation, of whose number there was no answer. In the next case it was a
            // deletion.
            (0, [nsid]) => there.contains(nsid),
            (doubtful, [nsid]) => doubtful == *nsid,
            _ => false,
        };
        assert!(may_differ, "{there:?} are there, and {acknowledged:?} should be\n{}", daemon.log());
        assert_eq!(files(&path).len(), there.len() - 1, "round {round}: {:?}", files(&path));
        known = there;
    }
}

/// Checks that a pool whose file system is not mounted is not taken for an empty one.
#[test]
fn a_pool_without_the_files_of_its_namespaces_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, away) = (folder.path().join("pool"), folder.path().join("away"));
    let mut daemon = Daemon::start(&pool(&path));
    let mut host = daemon.host("demo");
    create(&mut host, 8 << 11).expect("there is room");
    drop(host);
    daemon.stop();
    std::fs::rename(&path, &away).expect("it is there");
    std::fs::create_dir(&path).expect("room");
    daemon.restart();
    let refused = daemon.fails(&["drive", "open", "demo"]);
    assert!(refused.contains("namespace 2") && refused.contains("mount the file system"), "{refused}");
    assert!(files(&path).is_empty(), "nothing was made");
    std::fs::remove_dir(&path).expect("it is empty");
    std::fs::rename(&away, &path).expect("it is there");
    daemon.ok(&["drive", "open", "demo"]);
    assert_eq!(allocated(&mut daemon.host("demo")), [1, 2]);
    daemon.stop();
}
