//! A lease on a disk that two machines share.

use crate::common::{Daemon, namespace, wait_for};
use rustix::process::Signal;
use sluice_nvme::Status;
use std::path::Path;

/// Creates a drive on a file of the daemon's own, because two daemons of one machine already exclude each
/// other from one file.
fn create(daemon: &Daemon, lease: &Path) -> Result<(), String> {
    let folder = daemon.folder.path();
    let spec = folder.join("it.toml");
    let text = format!(
        "[[namespaces]]\ntarget = \"file\"\npath = \"{}\"\nsize = \"8MiB\"\nlease = \"{}\"\n",
        folder.join("it.img").display(),
        lease.display()
    );
    std::fs::write(&spec, text).expect("room on the disk");
    let done = daemon.run(&["drive", "create", "it", "--spec", &spec.display().to_string()]);
    match done.status.success() {
        true => Ok(()),
        false => Err(daemon.plain(&done.stderr)),
    }
}

#[test]
fn a_daemon_that_stood_still_finds_its_lease_taken() {
    let [first, second] = [Daemon::start(""), Daemon::start("")];
    let lease = first.folder.path().join("lease");
    let refused = create(&first, &lease).expect_err("there is no such file");
    assert!(refused.contains("its lease") && refused.contains("cannot be opened"), "{refused}");
    std::fs::write(&lease, [0; 4096]).expect("room on the disk");
    create(&first, &lease).expect("nobody has the lease");
    let mut host = first.host("it");
    let mut disk = namespace(&mut host, 1);
    disk.write(0, &[1; 4096]).expect("it is in range");
    let refused = create(&second, &lease).expect_err("the lease is renewed");
    let words = format!("is held by process {} on host", first.pid());
    assert!(refused.contains(&words), "{refused}");
    first.signal(Signal::STOP);
    let taken = create(&second, &lease);
    first.signal(Signal::CONT);
    taken.expect("the lease stands still");
    let failed = disk.write(0, &[2; 4096]).expect_err("it is another's now");
    assert!(failed.to_string().contains(&format!("{:?}", Status::INTERNAL_PATH_ERROR)), "{failed}");
    wait_for("the log says so", || first.log().contains("is lost"));
    // A lease that was released in order can be taken at once.
    second.ok(&["drive", "delete", "it"]);
    drop((disk, host));
    wait_for("the drive goes", || first.run(&["drive", "delete", "it"]).status.success());
    wait_for("the lease is given back", || create(&first, &lease).is_ok());
}
