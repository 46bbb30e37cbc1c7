//! The metadata alone: the power fails in each of its writes.

use super::disk::SharedDisk;
use crate::book::{Book, Change};
use crate::store::Store;
use sluice_functions::Random;

const DISK: usize = 4 << 20;

/// Volumes with their mappings, and the number of mappings of each extent.
type Picture = (Vec<(u32, String, u64, Vec<(u32, u32)>)>, Vec<u32>);

fn picture(book: &Book) -> Picture {
    let volumes = book.volumes().map(|(number, volume)| {
        (number, volume.name.clone(), volume.size, volume.map.iter().collect::<Vec<_>>())
    });
    (volumes.collect(), (0..book.extents()).map(|extent| book.references(extent)).collect())
}

/// Returns a change that the state allows.
fn change(book: &Book, random: &mut Random) -> Change {
    let volumes: Vec<u32> = book.volumes().map(|(number, _)| number).collect();
    let volume = match volumes.len() {
        0 => return Change::Create { volume: 0, name: "first".to_owned(), size: 1 << 20 },
        count => volumes[random.below(count as u64) as usize],
    };
    let name = format!("volume {}", random.below(1 << 40));
    let is_full = volumes.len() > 6;
    match random.below(40) {
        0 if !is_full => Change::Create {
            volume: book.next_number().expect("room"),
            name,
            size: random.between(1, 48) * crate::EXTENT,
        },
        1 if !is_full => Change::Clone { volume: book.next_number().expect("room"), name, from: volume },
        2 => Change::Delete { volume },
        3 => Change::Resize {
            volume,
            size: book.volume(volume).expect("it is there").size + random.below(3) * crate::EXTENT,
        },
        _ => {
            let size = book.volume(volume).expect("it is there").size;
            let logical = random.below(size / crate::EXTENT) as u32;
            let mut free = (0..book.extents()).filter(|extent| book.references(*extent) == 0);
            let physical = free.next_back().filter(|_| random.below(3) > 0);
            Change::Map { volume, logical, physical }
        }
    }
}

/// Runs changes until the power fails after `cut` writes. The opening must find `before`. Returns the
/// states of which one must be on the disk, and whether the power has failed.
fn run(
    disk: &SharedDisk,
    before: Option<Picture>,
    changes: u64,
    random: &mut Random,
) -> (Vec<Picture>, bool) {
    let size = disk.lock().size();
    let opened = match &before {
        // As in an upgrade of the daemon, which is called off at times.
        Some(before) if random.below(2) == 0 => {
            let count = disk.lock().count;
            let mut lent = (0..random.between(1, 2)).map(|_| Store::open_lent(disk.clone(), size));
            let (store, book) = lent.next_back().expect("one").expect("it is read");
            assert_eq!((disk.lock().count, &picture(&book)), (count, before), "nothing is written");
            Ok((store, book))
        }
        _ => Store::open(disk.clone(), size, 7),
    };
    let (mut store, mut book) = match opened {
        Ok(opened) => opened,
        Err(_) => {
            assert!(disk.lock().is_dead, "only a power cut refuses a pool");
            return (before.into_iter().collect(), true);
        }
    };
    if let Some(before) = before {
        assert_eq!(picture(&book), before, "an opening changes nothing");
    }
    for _ in 0..changes {
        // Several changes are one record, which is there as a whole or not at all.
        let mut later = book.clone();
        let record: Vec<Change> = (0..random.between(1, 4))
            .map(|_| {
                let change = change(&later, random);
                later.apply(&change, |_| {}).expect("it is allowed");
                change
            })
            .collect();
        match store.commit(&book, &record) {
            Ok(count) => assert_eq!(count, record.len()),
            Err(_) => {
                assert!(disk.lock().is_dead);
                return (vec![picture(&book), picture(&later)], true);
            }
        }
        book = later;
    }
    (vec![picture(&book)], false)
}

/// Opens the pool and returns its state.
fn reopened(disk: &SharedDisk) -> Picture {
    disk.lock().restart();
    let size = disk.lock().size();
    let (_, book) = Store::open(disk.clone(), size, 8).unwrap_or_else(|why| panic!("it loads: {why:?}"));
    assert_eq!(book.mappings(), book.volumes().map(|(_, volume)| volume.mapped).sum::<u64>());
    picture(&book)
}

#[test]
fn a_power_cut_in_any_write_leaves_the_state_before_or_after_it() {
    for seed in 0..2 {
        let mut cut = 0;
        loop {
            let disk = SharedDisk::new(DISK, 1 << 20, 0xa5, Random::new(seed));
            // The power fails, and in half of the runs fails again while the pool is opened.
            disk.lock().cut_after(cut);
            let mut random = Random::new(seed);
            let (states, is_cut) = run(&disk, None, 150, &mut random);
            if random.below(2) == 0 {
                disk.lock().restart();
                disk.lock().cut_after(random.below(4));
                let size = disk.lock().size();
                drop(Store::open(disk.clone(), size, 9));
            }
            let found = reopened(&disk);
            let is_made = !states.is_empty();
            assert!(!is_made && found.0.is_empty() || states.contains(&found), "seed {seed}, cut {cut}");
            if !is_cut {
                assert!(cut > 150, "there are {cut} writes, which include checkpoints");
                break;
            }
            // It works on.
            let (states, is_cut) = run(&disk, Some(found), 5, &mut random);
            assert!(!is_cut);
            assert_eq!(states, [reopened(&disk)]);
            cut += 1;
        }
    }
}

#[test]
fn a_disk_of_other_content_is_left_alone() {
    // A btrfs begins at 64 KiB, a UFS at 256 KiB.
    for blank in [0, 1 << 16, 1 << 18, (1 << 20) - 1] {
        let disk = SharedDisk::new(DISK, blank, 0xa5, Random::new(1));
        let refused = Store::open(disk.clone(), DISK as u64, 7).expect_err("it is not ours");
        assert!(format!("{refused:?}").contains("something else than a pool"));
        assert_eq!(disk.lock().count, 0, "nothing is written");
    }
    for size in [0, 4096, 1 << 16, (1 << 20) - 4096] {
        let disk = SharedDisk::new(size, size, 0, Random::new(1));
        let refused = Store::open(disk, size as u64, 7).expect_err("it is too small");
        assert!(format!("{refused:?}").contains("bytes at least"));
    }
}

/// Checks the image of a pool in version 1 of the format.
#[test]
fn golden_image() {
    let disk = SharedDisk::new(DISK, DISK, 0, Random::new(1));
    let (mut store, mut book) =
        Store::open(disk.clone(), DISK as u64, 0x1122_3344_5566_7788).expect("it is made");
    let changes = [
        Change::Create { volume: 0, name: "a".to_owned(), size: 1 << 20 },
        Change::Map { volume: 0, logical: 3, physical: Some(5) },
        Change::Clone { volume: 1, name: "b".to_owned(), from: 0 },
        Change::Map { volume: 1, logical: 3, physical: None },
        Change::Resize { volume: 1, size: 2 << 20 },
    ];
    store.commit(&book, &changes).expect("it is written");
    for change in &changes {
        book.apply(change, |_| {}).expect("it is allowed");
    }
    // The opening writes a checkpoint with all of it to the other half.
    drop(store);
    Store::open(disk.clone(), DISK as u64, 1).expect("it loads");
    let mut image = vec![0; DISK];
    disk.lock().read(0, &mut image);
    assert_eq!(crc32c::crc32c(&image), GOLDEN, "the format differs from version 1");
    assert_eq!(&image[..8], b"SluiceTP");
}

const GOLDEN: u32 = 2_071_139_522;

#[test]
fn a_damaged_checkpoint_is_not_replaced_by_an_earlier_one() {
    let disk = SharedDisk::new(DISK, DISK, 0, Random::new(1));
    let (mut store, book) = Store::open(disk.clone(), DISK as u64, 7).expect("it is made");
    let halves = store.layout().halves();
    let change = Change::Create { volume: 0, name: "a".to_owned(), size: 1 << 20 };
    store.commit(&book, &[change]).expect("it is written");
    drop(store);
    drop(Store::open(disk.clone(), DISK as u64, 7).expect("it loads, and writes another checkpoint"));
    let mut headers = [vec![0; 4096], vec![0; 4096]];
    for (half, header) in headers.iter_mut().enumerate() {
        disk.lock().read(halves.header_at(half), header);
    }
    let half = headers.iter().position(|header| header[0] != 0).expect("one counts");
    assert!(headers[1 - half].iter().all(|byte| *byte == 0), "the other one is void");
    headers[half][60] ^= 1;
    disk.lock().write(halves.header_at(half), &headers[half]);
    let writes = disk.lock().count;
    let refused = Store::open(disk.clone(), DISK as u64, 7).expect_err("it is damaged");
    assert!(format!("{refused:?}").contains("no checkpoint is complete"), "{refused:?}");
    assert_eq!(disk.lock().count, writes, "nothing is written");
}

#[test]
fn a_volume_has_whole_extents() {
    let most = 64 << 40;
    for (size, is_right) in [
        (0, false),
        (crate::EXTENT - 512, false),
        (crate::EXTENT, true),
        (crate::EXTENT + 512, false),
        (most, true),
        (most + crate::EXTENT, false),
    ] {
        let mut book = Book::new(8);
        let created = book.apply(&Change::Create { volume: 0, name: "a".to_owned(), size }, |_| {});
        assert_eq!(created.is_ok(), is_right, "{size}");
        let mut book = Book::new(8);
        let create = Change::Create { volume: 0, name: "a".to_owned(), size: crate::EXTENT };
        book.apply(&create, |_| {}).expect("it is made");
        let resized = book.apply(&Change::Resize { volume: 0, size }, |_| {});
        assert_eq!(resized.is_ok(), is_right, "{size}");
    }
}
