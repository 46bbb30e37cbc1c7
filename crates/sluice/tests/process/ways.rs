//! Several paths to the same storage, all of which belong to one drive.

use crate::common::Daemon;
use crate::volatile::LoopDevice;
use std::path::Path;
use std::process::Command;

fn create(daemon: &Daemon, name: &str, path: &Path) -> Result<(), String> {
    let done = daemon.run(&["drive", "create", name, "--file", &path.display().to_string()]);
    match done.status.success() {
        true => Ok(()),
        false => Err(daemon.plain(&done.stderr)),
    }
}

/// Checks that each of two daemons refuses the storage of the other one's drive, by every path.
#[test]
fn a_file_and_the_loop_devices_over_it_are_one_drives() {
    let [daemon, other] = [Daemon::start(""), Daemon::start("")];
    let file = daemon.folder.path().join("disk.img");
    std::fs::File::create(&file).and_then(|file| file.set_len(16 << 20)).expect("room on the disk");
    let Some(first) = LoopDevice::over_file(&file) else { return };
    let Some(second) = LoopDevice::over_file(&file) else { return };
    // The second node is of the first device.
    let node = daemon.folder.path().join("node");
    let number = std::fs::metadata(&first.path)
        .map(|meta| std::os::unix::fs::MetadataExt::rdev(&meta))
        .expect("it is there");
    let [major, minor] = [rustix::fs::major(number), rustix::fs::minor(number)].map(|it| it.to_string());
    let made = Command::new("mknod").arg(&node).args(["b", &major, &minor]).status();
    assert!(made.expect("coreutils are installed").success());
    let all = [&file, &first.path, &second.path, &node];
    for (number, served) in all.into_iter().enumerate() {
        let name = format!("drive-{number}");
        create(&daemon, &name, served).expect("nothing else is served");
        for asked in all {
            for by in [&daemon, &other] {
                let complaint = create(by, "thief", asked).expect_err("two drives have the same data");
                assert!(complaint.contains("in use by another drive"), "{complaint}");
            }
        }
        if served == &first.path {
            let complaint = create(&other, "thief", &second.path).expect_err("two drives have the same data");
            let same = format!("{} has the same data as DIR/disk.img", second.path.display());
            let folder = daemon.folder.path().display().to_string();
            assert!(complaint.replace(&folder, "DIR").contains(&same), "{complaint}");
        }
        daemon.ok(&["drive", "delete", &name]);
    }
}
