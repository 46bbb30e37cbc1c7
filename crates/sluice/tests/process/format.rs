//! A new format of a namespace that persists.

use crate::common::{Daemon, namespace};
use sluice_host::{Controller, Error};
use sluice_nvme::opcode::admin;
use sluice_nvme::{Status, SubmissionEntry};

fn format(host: &mut Controller, lbaf: u32) -> Result<(), Error> {
    let entry = SubmissionEntry { opcode: admin::FORMAT_NVM, nsid: 1, cdw10: lbaf, ..Default::default() };
    host.admin(entry).map(drop)
}

/// Conformance: Base 5.14, a new format is kept whatever happens to the controller.
#[test]
fn a_block_size_survives_a_crash_and_what_was_there_is_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk.img");
    let mut daemon = Daemon::start(&format!(
        "[[drive]]\nname = \"demo\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"{}\"\nsize = \"40MiB\"\n",
        path.display()
    ));
    let mut host = daemon.host("demo");
    let mut disk = namespace(&mut host, 1);
    disk.write(0, &[7; 8192]).expect("it is in range");
    disk.write(80_000, &[7; 8192]).expect("it is in range");
    drop(disk);
    format(&mut host, 1).expect("it can be formatted");
    assert!(std::fs::read(&path).expect("the target").iter().all(|&byte| byte == 0));
    drop(host);
    let mut host = daemon.host("demo");
    let mut disk = namespace(&mut host, 1);
    assert_eq!((disk.block_size(), disk.identity().nsze), (4096, 10_240));
    disk.write(10_239, &[9; 4096]).expect("it is the last block");
    disk.flush().expect("nothing is wrong");
    drop((disk, host));
    daemon.crash();
    daemon.restart();
    let mut host = daemon.host("demo");
    let mut disk = namespace(&mut host, 1);
    assert_eq!((disk.block_size(), disk.identity().nsze), (4096, 10_240), "{}", daemon.log());
    let mut block = [0; 4096];
    disk.read(10_239, &mut block).expect("it is in range");
    assert_eq!(block, [9; 4096]);
    assert!(daemon.ok(&["drive", "show", "demo"]).contains("4096"));
    drop(disk);
    format(&mut host, 0).expect("it can be formatted");
    drop(host);
    let mut host = daemon.host("demo");
    assert_eq!(namespace(&mut host, 1).block_size(), 512);
    let error = format(&mut host, 2).expect_err("there is no such format");
    assert!(error.status().is_some_and(|status| status.same_code(Status::INVALID_FORMAT)), "{error}");
}
