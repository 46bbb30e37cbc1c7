//! Tests of the parts of a layer's description: the identity of its storage, its opcodes, and its requests.

use sluice_command::{Characteristics, Controllers, Opcodes, Operation, Passthrough, Request, Storage};

/// Compares identities with numbers that logs on disks have: a set whose members have others is copied whole.
#[test]
fn storage_has_the_same_number_in_all_versions() {
    let (one, other) = (Storage::named(b"nqn.a"), Storage::named(b"nqn.b"));
    assert_eq!(one, Storage { id: 0x0c30_ee29_2212_494b_0000_030b_11a3_a92a, is_new: false });
    assert_eq!(Storage::named(b"").id, 1);
    assert_eq!(one.part(7).id, 0x0b46_b046_1680_3084_0003_be9e_b461_26a9);
    let both = Storage::of_all([one, other].into_iter());
    assert_eq!(both.id, 0x2e57_94df_f7cd_5e3f_0033_ca1e_8a43_8b75);
    assert_ne!(Storage::of_all([other, one].into_iter()), both);
    assert_eq!(Storage::of_all([one].into_iter()), one);
    assert_eq!(Storage::of_all(std::iter::empty()), Storage { id: 0, is_new: true });
}

/// Checks storage without a number, and storage that may have one: neither has one as a part or as a whole.
#[test]
fn unknown_storage_stays_unknown() {
    let (one, none) = (Storage::named(b"a"), Storage::default());
    assert_eq!((none.part(3).id, Storage::UNSEEN.part(3)), (0, Storage::UNSEEN));
    for parts in [[one, none], [none, one], [none, none]] {
        assert_eq!(Storage::of_all(parts.into_iter()).id, 0);
    }
    for parts in [[one, Storage::UNSEEN], [Storage::UNSEEN, one], [none, Storage::UNSEEN]] {
        assert_eq!(Storage::of_all(parts.into_iter()), Storage::UNSEEN);
    }
    let new = |is_new| Storage { is_new, ..one };
    for (first, second) in [(false, false), (false, true), (true, false), (true, true)] {
        assert_eq!(Storage::of_all([new(first), new(second)].into_iter()).is_new, first && second);
        assert_eq!(new(first).part(2).is_new, first);
    }
}

#[test]
fn a_layer_over_another_is_one_deeper_and_passes_nothing() {
    let passthrough = Passthrough { io: Opcodes::NONE.and(9), admin: Opcodes::NONE.and(0xc0) };
    let below =
        Characteristics { requests: 3, passthrough, fan_out: 2, ..Characteristics::target(4096, 512) };
    let above = Characteristics { depth: 2, requests: 0, passthrough: Passthrough::NONE, ..below };
    assert_eq!(format!("{:?}", below.over()), format!("{above:?}"));
    assert_eq!(Characteristics { depth: u8::MAX, ..below }.over().depth, u8::MAX);
    let other = Passthrough { io: Opcodes::NONE.and(9).and(4), admin: Opcodes::NONE.and(1) };
    let both = passthrough.union(other);
    assert!(both.io.iter().eq([4, 9]) && both.admin.iter().eq([1, 0xc0]));
}

#[test]
fn operations_have_data_and_change_it() {
    for (operation, modifies, has_data) in [
        (Operation::Read, false, true),
        (Operation::Write, true, true),
        (Operation::Flush, false, false),
        (Operation::WriteZeroes, true, false),
        (Operation::Deallocate, true, false),
    ] {
        let request = Request { operation, offset: 512, length: 1024, ..Request::default() };
        assert_eq!((operation.modifies(), request.has_data(), request.end()), (modifies, has_data, 1536));
        assert_eq!(Request { offset: u64::MAX, ..request }.end(), u64::MAX);
    }
}

#[test]
fn controllers_come_and_go() {
    let mut set = Controllers::of_bits(0);
    for controller in [0, 5, 31] {
        assert!(set.is_empty() && !set.has(controller));
        set.insert(controller);
        set.insert(3);
        assert!(set.has(controller) && set.has(3) && !set.has(4) && !set.is_empty());
        set.remove(controller);
        set.remove(4);
        assert!(!set.has(controller) && set.has(3));
        set.remove(3);
    }
}
