//! Cutting off the end of a file.

use super::super::shorten::{BOUNDS, LONG, has_data, next, shorten};
use super::{Folder, MIB};
use std::fs::File as OsFile;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

fn new(folder: &Folder) -> OsFile {
    let mut options = OsFile::options();
    options.read(true).write(true).create_new(true).open(folder.0.join("end")).expect("a file")
}

#[test]
fn chunks_get_shorter_where_they_take_long_and_longer_where_they_do_not() {
    let (shortest, longest) = BOUNDS;
    assert_eq!(next(MIB, LONG * 2), MIB / 2);
    assert_eq!(next(shortest, LONG * 9), shortest);
    assert_eq!([next(MIB, LONG), next(MIB, LONG / 2)], [MIB; 2]);
    assert_eq!(next(MIB, Duration::ZERO), 2 * MIB);
    assert_eq!(next(longest, Duration::ZERO), longest);
}

#[test]
fn what_is_before_the_new_end_stays_and_all_else_goes() {
    let folder = Folder::on_disk();
    let file = new(&folder);
    let size = 64 * MIB;
    file.set_len(size).expect("it can be sparse");
    for offset in (0..size).step_by(MIB as usize) {
        file.write_all_at(&[7; 4096], offset).expect("there is room");
    }
    let wanted = 3 * MIB + 512;
    shorten(&file, size, wanted).expect("it becomes shorter");
    let meta = file.metadata().expect("it is there");
    assert_eq!(meta.len(), wanted);
    assert!(meta.blocks() * 512 < 4 * MIB, "{} blocks", meta.blocks());
    let mut bytes = [0; 4096];
    file.read_exact_at(&mut bytes, 2 * MIB).expect("read");
    assert_eq!(bytes, [7; 4096]);
    file.set_len(size).expect("it can be sparse");
    file.read_exact_at(&mut bytes, wanted).expect("read");
    assert_eq!(bytes, [0; 4096]);
}

#[test]
fn a_hole_is_cut_off_at_once() {
    let folder = Folder::on_disk();
    let file = new(&folder);
    let size = 1 << 42;
    file.set_len(size).expect("it can be sparse");
    assert!(!has_data(&file, MIB).expect("the file system says"));
    shorten(&file, size, MIB).expect("it becomes shorter");
    assert_eq!(file.metadata().expect("it is there").len(), MIB);
}
