//! All bytes of configuration space, and the effects of writes.

use super::*;

const LAYOUT: Layout = Layout { bar0_size: 0x4000, vectors: 129, msix_table: 0x2000, msix_pending: 0x3000 };

fn space() -> ConfigSpace {
    ConfigSpace::new(&PciIdentity::default(), &LAYOUT)
}

fn read_u32(space: &ConfigSpace, offset: u64) -> u32 {
    let mut bytes = [0; 4];
    space.read(offset, &mut bytes, false);
    u32::from_le_bytes(bytes)
}

#[test]
fn an_nvme_controller_by_its_class() {
    assert_eq!(read_u32(&space(), 8) >> 8, 0x010802);
    assert_eq!(read_u32(&space(), 0), 0x51c0_1234);
}

#[test]
fn bar0_tells_its_size_and_keeps_its_address() {
    let mut space = space();
    assert_eq!(space.write(0x10, &[0xff; 8]), Effect::Nothing);
    assert_eq!(read_u32(&space, 0x10), 0xffff_c004);
    assert_eq!(read_u32(&space, 0x14), u32::MAX);
    assert_eq!(space.write(0x10, &0x12_3456_7890u64.to_le_bytes()), Effect::Nothing);
    assert_eq!(read_u32(&space, 0x10), 0x3456_4004);
    assert_eq!(read_u32(&space, 0x14), 0x12);
    assert_eq!(read_u32(&space, 0x18), 0);
}

fn capabilities(space: &ConfigSpace) -> Vec<u32> {
    let mut at = read_u32(space, 0x34) & 0xff;
    let mut ids = Vec::new();
    while at != 0 && ids.len() < 10 {
        ids.push(read_u32(space, u64::from(at)) & 0xff);
        at = read_u32(space, u64::from(at)) >> 8 & 0xff;
    }
    ids
}

#[test]
fn the_capability_list_ends_and_has_all_three() {
    assert_eq!(capabilities(&space()), [0x01, 0x11, 0x10]);
}

#[test]
fn a_function_without_vectors_has_its_pin_and_no_msix() {
    let mut space = ConfigSpace::new(&PciIdentity::default(), &Layout { vectors: 0, ..LAYOUT });
    assert_eq!(capabilities(&space), [0x01, 0x10]);
    assert_eq!(space.write(0x50, &[0xff; 12]), Effect::Nothing);
    assert!(!space.msix_enabled() && space.may_assert_intx(), "there is nothing to be enabled");
    assert_eq!(read_u32(&space, 0x3c) >> 8 & 0xff, 1, "pin A");
}

#[test]
fn msix_structures_are_where_the_layout_says() {
    let space = space();
    assert_eq!(read_u32(&space, 0x50) >> 16, 128);
    assert_eq!((read_u32(&space, 0x54), read_u32(&space, 0x58)), (0x2000, 0x3000));
}

#[test]
fn a_function_level_reset_is_asked_for_by_one_bit() {
    let mut space = space();
    assert_eq!(read_u32(&space, 0x64) >> 28 & 1, 1, "FLR is offered");
    assert_eq!(space.write(0x68, &0x7fffu16.to_le_bytes()), Effect::Nothing);
    assert_eq!(space.write(0x68, &0x8000u16.to_le_bytes()), Effect::Reset);
    assert_eq!(space.write(0x69, &[0x80]), Effect::Reset);
    assert_eq!(space.write(0x60, &[0xff; 16]), Effect::Reset);
    assert_eq!(read_u32(&space, 0x68) & 0x8000, 0, "the bit reads as zero");
}

#[test]
fn leaving_d3hot_is_a_reset_and_entering_it_is_not() {
    let mut space = space();
    assert_eq!(space.write(0x44, &[0]), Effect::Nothing);
    assert_eq!(space.write(0x44, &[3]), Effect::Nothing);
    assert_eq!(space.write(0x44, &[3]), Effect::Nothing);
    assert_eq!(space.write(0x44, &[0]), Effect::Reset);
}

#[test]
fn a_reset_forgets_what_was_written() {
    let mut space = space();
    let before: Vec<u32> = (0..64).map(|dword| read_u32(&space, dword * 4)).collect();
    let _ = space.write(0, &[0xff; 256]);
    assert_ne!(read_u32(&space, 4), before[1]);
    space.reset();
    assert_eq!((0..64).map(|dword| read_u32(&space, dword * 4)).collect::<Vec<_>>(), before);
}

#[test]
fn accesses_at_any_place_and_length_agree() {
    let mut space = space();
    let mut whole = [0; 4096];
    space.read(0, &mut whole, false);
    for length in [1, 2, 4, 7, 8] {
        for offset in 0..=4096 - length {
            let mut part = vec![0xaa; length];
            space.read(offset as u64, &mut part, false);
            assert_eq!(part, whole[offset..offset + length]);
        }
    }
    assert_eq!(space.write(200, &[0xff; 3000]), Effect::Nothing);
    assert!(whole[256..].iter().all(|&byte| byte == 0));
    space.read(u64::MAX, &mut whole[..1], false);
}

#[test]
fn the_interrupt_pin_shows_in_the_status_and_can_be_disabled() {
    let mut space = space();
    let mut status = [0; 2];
    space.read(6, &mut status, true);
    assert_eq!(u16::from_le_bytes(status), 0x18);
    assert!(space.may_assert_intx());
    let _ = space.write(4, &0x400u16.to_le_bytes());
    assert!(!space.may_assert_intx());
    let _ = space.write(4, &0u16.to_le_bytes());
    let _ = space.write(0x52, &0x8000u16.to_le_bytes());
    assert!(!space.may_assert_intx());
}

/// A dword at its offset, and the bits of it that a write changes.
type Dword = (usize, u32, u32);

/// Dwords of the function with these vectors that are not zero.
fn expected(vectors: u16) -> Vec<Dword> {
    let mut dwords = vec![
        (0x00, 0x51c0_1234, 0),
        (0x04, 0x0010_0000, 0x0546),
        (0x08, 0x0108_0201, 0),
        (0x0c, 0, 0xff),
        (0x10, 4, 0xffff_c000),
        (0x14, 0, u32::MAX),
        (0x2c, 0x51c0_1234, 0),
        (0x34, 0x40, 0),
        (0x3c, 0x0100, 0xff),
        (0x40, if vectors > 0 { 0x0003_5001 } else { 0x0003_6001 }, 0),
        (0x44, 0, 3),
        (0x60, 0x0002_0010, 0),
        (0x64, 0x1000_8000, 0),
        (0x68, 0x2810, 0x78ff),
        (0x6c, 0x43, 0),
        (0x70, 0x0043_0000, 0x43),
        (0x84, 0x10, 0),
        (0x88, 0, 0x10),
        (0x8c, 0xe, 0),
        (0x90, 3, 0),
    ];
    if vectors > 0 {
        let msix = 0x6011 | u32::from(vectors - 1) << 16;
        dwords.extend([(0x50, msix, 0xc000_0000), (0x54, 0x2000, 0), (0x58, 0x3000, 0)]);
    }
    dwords
}

/// Compares all bytes after power-on, and after writes of ones and of zeros, with a list of the registers.
#[test]
fn each_register_has_its_value_and_its_writable_bits() {
    for vectors in [0, 1, 129] {
        let mut space = ConfigSpace::new(&PciIdentity::default(), &Layout { vectors, ..LAYOUT });
        let dwords = expected(vectors);
        let image = |of: fn(&Dword) -> u32| {
            let mut image = [0; HEADER_SIZE];
            for dword in &dwords {
                image[dword.0..dword.0 + 4].copy_from_slice(&of(dword).to_le_bytes());
            }
            image
        };
        let (fresh, ones, zeros) = (image(|it| it.1), image(|it| it.1 | it.2), image(|it| it.1 & !it.2));
        assert_eq!(*space.bytes(), fresh);
        let _ = space.write(0, &[0xff; 5000]);
        assert_eq!(*space.bytes(), ones);
        let written = *space.bytes();
        let _ = space.write(0, &[0; HEADER_SIZE]);
        assert_eq!(*space.bytes(), zeros);
        // A function of another process has its read-only bytes from here.
        space.resume(&[0xff; HEADER_SIZE]);
        assert_eq!(*space.bytes(), written);
        space.resume(&[0; HEADER_SIZE]);
        assert_eq!(*space.bytes(), zeros);
        space.reset();
        assert_eq!(*space.bytes(), fresh);
    }
    let identity = PciIdentity { vendor: 1, device: 2, subsystem_vendor: 3, subsystem: 4, revision: 5 };
    let space = ConfigSpace::new(&identity, &LAYOUT);
    let read = [0, 8, 0x2c].map(|offset| read_u32(&space, offset));
    assert_eq!(read, [0x0002_0001, 0x0108_0205, 0x0004_0003]);
}

/// Checks the power states other than D0 and D3hot: no step between them is a reset.
#[test]
fn a_reset_comes_only_from_d3hot_to_d0() {
    for (old, new) in (0..4u8).flat_map(|old| (0..4u8).map(move |new| (old, new))) {
        let mut space = space();
        let _ = space.write(0x44, &[old]);
        let is_reset = space.write(0x44, &[new]) == Effect::Reset;
        assert_eq!(is_reset, (old, new) == (3, 0), "from {old} to {new}");
    }
    let mut space = space();
    let _ = space.write(0x44, &[3]);
    // The upper bits are not the state.
    assert_eq!(space.write(0x44, &[0xfc]), Effect::Reset);
}

#[test]
fn msix_and_the_pin_have_one_bit_each() {
    let mut space = space();
    assert!(!space.msix_enabled());
    let _ = space.write(0x52, &0x4000u16.to_le_bytes());
    assert!(!space.msix_enabled() && space.may_assert_intx(), "the function mask");
    let _ = space.write(0x52, &0x8000u16.to_le_bytes());
    assert!(space.msix_enabled());
    let _ = space.write(0x52, &[0; 2]);
    let _ = space.write(4, &(!0x400u16).to_le_bytes());
    assert!(space.may_assert_intx(), "all other bits of the command register");
    let mut read = [0; 16];
    space.read(0, &mut read, true);
    assert_eq!(read[6], 0x18);
    space.read(6, &mut read[..1], false);
    assert_eq!(read[0], 0x10);
}
