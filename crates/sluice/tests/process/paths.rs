//! Further paths of a namespace, and a classifier that chooses between them.

use crate::common::{Daemon, namespace};
use crate::programs::compile;

/// Drive whose path 1 leads to a copy, and path 2 past the fault.
const DRIVE: &str = r#"
[[drive]]
name = "demo"
[[drive.namespace]]
target = "memory"
size = "1MiB"
functions = [ { kind = "fault", outcome = "fail", status = "write_fault", operations = ["write"], from = 4096, to = 8192 } ]
paths = [ { name = "copy", target = "memory", functions = [ { kind = "pass" } ] }, { name = "quick", below = 1 } ]
"#;

/// Classifier that sends writes to the copy and past the fault at once, and reads to the copy.
const MIRROR: &str = r#"
SEC("classifier")
sluice_verdict mirror(struct sluice_context *ctx)
{
    if (ctx->opcode == SLUICE_WRITE)
        return SLUICE_ALL(SLUICE_FIRST_ERROR) | SLUICE_START(SLUICE_LEG(1) | SLUICE_LEG(2));
    if (ctx->opcode == SLUICE_READ)
        return SLUICE_SEND(1);
    return SLUICE_SEND(0);
}
"#;

#[test]
fn a_program_writes_to_two_paths_and_reads_from_one() {
    let daemon = Daemon::start(DRIVE);
    let shown = daemon.ok(&["drive", "show", "demo"]);
    assert!(shown.ends_with("paths of namespace 1: 0 the whole stack, 1 copy, 2 quick\n"), "{shown}");
    let mut host = daemon.host("demo");
    let mut disk = namespace(&mut host, 1);
    disk.write(0, &[9; 512]).expect("not in the range of the fault");
    disk.write(10, &[1; 512]).expect_err("in the range of the fault");
    let object = compile(daemon.folder.path(), "mirror", MIRROR).display().to_string();
    daemon.ok(&["classifier", "attach", "demo", &object]);
    let mut read = [7; 512];
    disk.read(0, &mut read).expect("the copy answers");
    assert_eq!(read, [0; 512], "it never saw the first write");
    for block in [10, 2047] {
        disk.write(block, &[block as u8; 512]).expect("past the fault");
        disk.read(block, &mut read).expect("the copy answers");
        assert_eq!(read, [block as u8; 512]);
    }
    // All paths are as large as the namespace.
    daemon.ok(&["drive", "resize", "demo", "--size", "2MiB"]);
    disk.write(4095, &[3; 512]).expect("the new blocks are there");
    disk.read(4095, &mut read).expect("in the copy, too");
    assert_eq!(read, [3; 512]);
    daemon.ok(&["classifier", "detach", "demo"]);
    for (block, byte) in [(0, 9), (10, 10), (4095, 3)] {
        disk.read(block, &mut read).expect("from the first path");
        assert_eq!(read, [byte; 512]);
    }
}

#[test]
fn a_path_to_a_file_has_that_file() {
    let drive =
        DRIVE.replace(r#"target = "memory", functions"#, r#"target = "file", path = "copy.img", functions"#);
    let daemon = Daemon::start(&drive);
    let object = compile(daemon.folder.path(), "mirror", MIRROR).display().to_string();
    daemon.ok(&["classifier", "attach", "demo", &object]);
    let mut host = daemon.host("demo");
    let mut disk = namespace(&mut host, 1);
    disk.write(100, &[5; 512]).expect("both paths are well");
    disk.flush().expect("the first path is flushed");
    let image = std::fs::read(daemon.folder.path().join("copy.img")).expect("it was made");
    assert_eq!((image.len(), &image[100 * 512..101 * 512]), (1 << 20, &[5; 512][..]));
    daemon.ok(&["drive", "create", "other", "--null", "1MiB"]);
    let taken = daemon.folder.path().join("copy.img").display().to_string();
    let complaint = daemon.fails(&["drive", "create", "thief", "--file", &taken]);
    assert!(complaint.contains("copy.img is in use by another drive"), "{complaint}");
}
