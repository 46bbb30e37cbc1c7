//! Tests of the format. The function is tested in `crates/sim`, against the model.

use super::format::{self, BLOCK, Found, Layout, Sums};

#[test]
fn everything_has_a_place_of_its_own() {
    for size in [20 << 20, (20 << 20) + 4096, 1 << 40] {
        let layout = Layout::of(size);
        let data = layout.drive_bytes();
        assert!(layout.data_at() + data <= size && data > size / 10 * 9, "{size}: {layout:?}");
        let last = data / BLOCK - 1;
        assert_eq!(layout.place(last), (layout.sectors - 1, layout.per_sector() as usize - 1));
    }
    assert_eq!(Layout::of(4096).sectors, 0);
}

/// Compares the formats with their bytes, which every later version must read.
#[test]
fn the_formats_are_these_bytes() {
    let layout = Layout { sectors: 3 };
    let mut block = vec![0xff; 4096];
    format::write_superblock(&mut block, 0x1122, layout);
    let mut expected = vec![0; 4096];
    expected[..12].copy_from_slice(b"sluiceCK\x01\0\0\0");
    expected[16..18].copy_from_slice(&[0x22, 0x11]);
    expected[24] = 3;
    let checksum = crc32c::crc32c(&expected[16..]);
    expected[12..16].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(block, expected);
    assert_eq!(format::read_superblock(&block), Found::Good { salt: 0x1122, layout });
    assert_eq!(format::read_superblock(&[0; 4096]), Found::Blank);
    block[20] ^= 1;
    assert_eq!(format::read_superblock(&block), Found::Other);
    let mut copies = vec![0; 8192];
    assert_eq!(format::latest(&copies, 5, 7), Some((0, &[0; 4096][..])), "it was never written");
    for (copy, sequence) in [(1, 1), (0, 2)] {
        let sector = &mut copies[copy * 4096..][..4096];
        format::set_sums(sector, 2, Sums { new: 0x0403_0201, old: sequence as u32 });
        format::seal(sector, 5, 7, sequence);
    }
    assert_eq!(copies[..4], *b"CkS1");
    assert_eq!(copies[8..24], [7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(copies[40..48], [1, 2, 3, 4, 2, 0, 0, 0]);
    let latest = |copies: &[u8], salt, number| format::latest(copies, salt, number).map(|found| found.0);
    assert_eq!(latest(&copies, 5, 7), Some(2));
    assert_eq!((latest(&copies, 5, 8), latest(&copies, 6, 7)), (None, None));
    // Of a torn write, the copy before counts.
    copies[500] ^= 1;
    assert_eq!(latest(&copies, 5, 7), Some(1));
    copies[4096 + 500] ^= 1;
    assert_eq!(latest(&copies, 5, 7), None);
}

/// Checks that the same data has another checksum at another place, and zeros none.
#[test]
fn a_checksum_is_of_its_place() {
    let data = [0x5a; BLOCK as usize];
    assert_ne!(format::sum(1, 2, &data), format::sum(1, 3, &data));
    assert_ne!(format::sum(1, 2, &data), format::sum(2, 2, &data));
    assert_eq!(format::sum(1, 2, &[0; BLOCK as usize]), format::ZEROS);
}
