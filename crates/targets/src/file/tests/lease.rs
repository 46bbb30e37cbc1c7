//! A target that loses its lease.

use super::super::lease::tests::{QUICK, blank, overwrite};
use super::*;

/// Checks that commands fail, the waiting ones included, and do not reach the file any more.
#[test]
fn commands_fail_when_the_lease_is_lost() {
    let folder = Folder::on_disk();
    let (lease, config) = (blank(&folder), folder.config("image", MIB));
    let prepared = PreparedFile::open_timed(&config, Some(&lease), QUICK).expect("nobody has the lease");
    let control = prepared.control();
    assert!(control.has_lease() && !open(&folder.config("other", MIB)).control().has_lease());
    let drive = Drive::new(prepared);
    control.resize(2 * MIB).expect("the lease is held");
    drive.fill(0, vec![1; 4096]);
    assert_eq!(drive.run(write(0, 4096), one(0, 4096)), Status::SUCCESS);
    drive.fill(0, vec![2; 4096]);
    // The holder may write its claim once more over the other.
    let lost = loop {
        overwrite(&lease);
        let status = drive.run(read(0, 4096), one(8192, 4096));
        if status != Status::SUCCESS {
            break status;
        }
    };
    assert_eq!(lost, Status::INTERNAL_PATH_ERROR, "the host can take the path to the other daemon");
    assert_eq!(drive.run(write(0, 4096), one(0, 4096)), Status::INTERNAL_PATH_ERROR);
    assert_eq!(drive.run(request(Operation::Deallocate, 0, 4096), Vec::new()), Status::INTERNAL_PATH_ERROR);
    assert_eq!(drive.flush(), Status::INTERNAL_PATH_ERROR);
    let refused = control.resize(MIB).expect_err("it is another's").to_string();
    assert!(refused.contains("is lost"), "{refused}");
    drive.stop();
    assert_eq!(fs::read(config.path).expect("the image")[..4096], [1; 4096]);
}
