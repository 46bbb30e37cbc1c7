//! A file system that fills up and gets room again: a small one of our own, in a mount namespace.

use std::process::Command as Process;

use super::*;

/// Set where this test runs a second time, inside its own mount namespace.
const INSIDE: &str = "SLUICE_TEST_SMALL_FILE_SYSTEM";

#[test]
fn a_parked_write_goes_on_when_there_is_room() {
    if let Some(mount) = std::env::var_os(INSIDE) {
        return fill_up_and_make_room(Path::new(&mount));
    }
    let folder = Folder::in_memory();
    let (_, module) = module_path!().split_once("::").expect("a module in a crate");
    let this_test = format!("{module}::a_parked_write_goes_on_when_there_is_room");
    let script = "mount -t tmpfs -o size=2m none \"$1\" || exit 77; shift; exec \"$@\"";
    let program = std::env::current_exe().expect("a test has a program");
    let status = Process::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(&folder.0)
        .arg(program)
        .args(["--exact", &this_test])
        .env(INSIDE, &folder.0)
        .status()
        .expect("util-linux is installed");
    // 1: no user namespaces here; 77: no mount in one. Then there is no small file system to be had.
    if matches!(status.code(), Some(1 | 77)) {
        return eprintln!("not tested: this machine lets ordinary users mount nothing");
    }
    assert!(status.success());
}

fn fill_up_and_make_room(mount: &Path) {
    let ballast = mount.join("ballast");
    fs::write(&ballast, vec![1; 1 << 20]).expect("half of it");
    let path = mount.join("image");
    let config = FileConfig {
        path,
        size: Some(16 * MIB),
        no_space: NoSpace::Park,
        block_size: 512,
        read_only: false,
        raw: false,
    };
    let drive = Drive::new(open(&config));
    drive.fill(0, vec![7; 2 << 20]);
    // The write needs more room than there is: it stops half way, and waits.
    drive.submit(vec![(1, write(0, 1536 * KIB), one(0, 1536 << 10))]);
    let start = Instant::now();
    while drive.with(|host, _| host.stack.deadline_ns()).is_none() {
        assert!(start.elapsed() < Duration::from_secs(20), "it never finds the file system full");
        thread::sleep(Duration::from_millis(1));
    }
    assert!(drive.with(|host, _| host.statuses.is_empty()));
    fs::remove_file(&ballast).expect("it is there");
    assert_eq!(drive.status(1), Status::SUCCESS);
    assert_eq!(drive.run(read(0, 1536 * KIB), one(4 << 20, 1536 << 10)), Status::SUCCESS);
    assert!(drive.bytes(4 << 20, 1536 << 10).iter().all(|&byte| byte == 7));
    // When the namespace goes, the waiting command ends for lack of room, and is not retried.
    drive.submit(vec![(2, write(4 * MIB, 1536 * KIB), one(0, 1536 << 10))]);
    let start = Instant::now();
    while drive.with(|host, _| host.stack.deadline_ns()).is_none() {
        assert!(start.elapsed() < Duration::from_secs(20), "it never finds the file system full");
        thread::sleep(Duration::from_millis(1));
    }
    drive.with(|host, now_ns| {
        host.stack.end_waiting(Controllers::of_bits(1), Status::CAPACITY_EXCEEDED, &mut host.slab, now_ns);
        assert_eq!(host.stack.deadline_ns(), None);
    });
    assert_eq!(drive.status(2), Status::CAPACITY_EXCEEDED);
    drive.stop();
}
