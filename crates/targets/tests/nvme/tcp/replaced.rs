//! Another namespace has the NSID of the one that a drive stands on: nothing of the drive's goes there.

use super::fake::{Fake, Trick, content};
use super::lone::Lone;
use crate::rig::{BLOCK, eventually};
use sluice_nvme::Status;
use sluice_targets::NvmeTcpConfig;
use std::time::Duration;

/// Creates a drive whose commands fail as soon as it has no connection.
fn rig(trick: Box<Trick>) -> Lone {
    Lone::new(Fake::start(trick), |config| NvmeTcpConfig { fast_io_fail: Some(Duration::ZERO), ..config })
}

fn read(disk: &mut sluice_host::Namespace) -> Result<(), Option<Status>> {
    let mut there = [0; BLOCK];
    disk.read(3, &mut there).map_err(|error| error.status())?;
    assert!(there[..] == content(3, BLOCK));
    Ok(())
}

fn is_path_error(result: Result<(), Option<Status>>) -> bool {
    result.is_err_and(|status| status.is_some_and(|status| status.same_code(Status::INTERNAL_PATH_ERROR)))
}

#[test]
fn another_namespace_is_not_taken_for_the_one_before_the_connection_was_lost() {
    let rig = rig(Box::new(|link, _| {
        link.access.replace_quietly(2);
        link.end();
        false
    }));
    let (_host, mut disk) = rig.disk();
    assert!(is_path_error(read(&mut disk)), "the command was lost with its connection");
    assert!(is_path_error(read(&mut disk)), "there is no other");
    rig.fake.access.replace_quietly(0);
    eventually("the namespace is there again", || read(&mut disk).is_ok());
}

#[test]
fn a_namespace_that_becomes_another_under_a_drive_is_left() {
    let rig = rig(Box::new(|_, _| true));
    let (_host, mut disk) = rig.disk();
    assert_eq!(read(&mut disk), Ok(()));
    // The controller reports a change that does not concern the namespace.
    rig.fake.access.replace(0);
    eventually("the notice is heard", || rig.control.status().events == 1);
    assert_eq!(read(&mut disk), Ok(()));
    rig.fake.access.replace(2);
    eventually("it is left", || is_path_error(read(&mut disk)));
    assert!(!rig.control.status().connected);
    rig.fake.access.replace_quietly(0);
    eventually("the namespace is there again", || read(&mut disk).is_ok());
    assert_eq!(rig.control.status().losses, 1);
}

#[test]
fn a_namespace_that_becomes_another_while_it_is_connected_to_is_left() {
    let fake = Fake::start(Box::new(|_, _| true));
    fake.access.replace_after_look(2);
    let rig = Lone::new(fake, |config| NvmeTcpConfig { fast_io_fail: Some(Duration::ZERO), ..config });
    let (_host, mut disk) = rig.disk();
    eventually("it is left", || is_path_error(read(&mut disk)));
    rig.fake.access.replace_quietly(0);
    eventually("the namespace is there again", || read(&mut disk).is_ok());
}
