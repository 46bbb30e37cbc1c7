//! Sizes, blocks and obstacles of namespaces.

use super::{namespace, small, subsystem, try_namespace};
use crate::model::erasing;
use crate::model::namespace::{
    NamespaceError, atomic_boundary_blocks, atomic_write_blocks, boundary_blocks, is_offered, largest,
};
use crate::state::fused::CLAIMED;
use crate::state::reservation::HostId;
use crate::state::sanitize::CAPABILITIES;
use crate::state::uncorrectable::UncorrectableRanges;
use sluice_command::{Characteristics, Deallocated, Opcodes, Operation, Passthrough};
use sluice_nvme::Status;

fn target() -> Characteristics {
    Characteristics::target(1 << 20, 512)
}

#[test]
fn a_namespace_that_cannot_be_is_refused_in_words() {
    let with = |nsid, block_size, is| try_namespace(nsid, block_size, is).map(|it| it.blocks());
    let of_4096 = Characteristics::target(1 << 20, 4096);
    assert_eq!(with(1, 512, target()), Ok(2048));
    assert_eq!(with(128, 4096, of_4096), Ok(256));
    assert_eq!(with(1, 512, Characteristics::target(512, 512)), Ok(1));
    let refused = [
        (0, 512, target(), NamespaceError::Nsid(0), "NSID 0 is not possible; use 1 to 128"),
        (129, 512, target(), NamespaceError::Nsid(129), "NSID 129 is not possible; use 1 to 128"),
        (
            1,
            1024,
            target(),
            NamespaceError::BlockSize(1024),
            "block size 1024 is not possible; use 512 or 4096",
        ),
        (
            1,
            512,
            of_4096,
            NamespaceError::TargetBlockSize { namespace: 512, target: 4096 },
            "block size 512 is smaller than the target's 4096; use 4096",
        ),
        (
            1,
            4096,
            Characteristics::target(4095, 512),
            NamespaceError::TooSmall { size: 4095, block_size: 4096 },
            "4095 bytes are less than one block of 4096",
        ),
    ];
    for (nsid, block_size, is, error, words) in refused {
        assert_eq!(with(nsid, block_size, is), Err(error.clone()));
        assert_eq!(error.to_string(), words);
    }
}

/// Conformance: NVM 4.1.5.1, boundaries and atomic units are in blocks, and fit into their fields.
#[test]
fn boundaries_and_atomic_units_are_in_blocks() {
    // Boundary, boundary of atomic writes and atomic write in bytes; then the same in blocks of 512 bytes.
    let cases = [
        (0, 0, 512, [0, 0, 1]),
        (4096, 8192, 4096, [8, 16, 8]),
        (128 << 10, 4096, 64 << 10, [256, 8, 8]),
        (65_535 * 512, 65_536 * 512, 65_536 * 512, [65_535, 32_768, 32_768]),
        (65_536 * 512, 3 * 65_536 * 512, 512, [32_768, 32_768, 1]),
        (196_608 * 512, 65_540 * 512, 1024, [32_768, 4, 2]),
        (65_538 * 512, 768, 4096, [2, 1, 1]),
        (0, 0, 100, [0, 0, 1]),
    ];
    for (boundary, atomic_boundary, atomic_write, blocks) in cases {
        let is = Characteristics { boundary, atomic_boundary, atomic_write, ..target() };
        let namespace = namespace(1, 512, is);
        let found = [
            u64::from(boundary_blocks(&namespace, &is)),
            u64::from(atomic_boundary_blocks(&namespace, &is)),
            atomic_write_blocks(&namespace),
        ];
        assert_eq!(found, blocks, "{is:?}");
        assert_eq!(largest(&namespace), (blocks[2] * 512).min(16 << 10));
    }
    let is = Characteristics { boundary: 8192, atomic_boundary: 6144, atomic_write: 8192, ..target() };
    let namespace = namespace(1, 4096, is);
    assert_eq!((boundary_blocks(&namespace, &is), atomic_boundary_blocks(&namespace, &is)), (2, 1));
    assert_eq!((atomic_write_blocks(&namespace), largest(&namespace)), (1, 4096));
}

/// Checks all ranges of a small namespace in each of its states.
#[test]
fn blocks_are_refused_for_one_reason_after_the_other() {
    const BLOCKS: u64 = 8;
    let is = Characteristics::target(BLOCKS * 512 + 100, 512);
    for state in 0..16 {
        let (closed, claimed, held, bad) = (state & 1 != 0, state & 2 != 0, state & 4 != 0, state & 8 != 0);
        let mut namespace = namespace(1, 512, is);
        namespace.claim(claimed.then_some(1024..2048));
        assert_eq!(namespace.hold_back(if held { vec![0..512, 3584..4096] } else { vec![] }), []);
        let mut ranges = UncorrectableRanges::default();
        if bad {
            ranges.add(2048..3072);
        }
        namespace.set_uncorrectable(ranges);
        if closed {
            namespace.close(Status::FORMAT_IN_PROGRESS);
        }
        assert_eq!(namespace.is_plain(), state == 0);
        assert_eq!(namespace.is_claimed(), claimed || held);
        assert_eq!(namespace.check_open(), if closed { Err(Status::FORMAT_IN_PROGRESS) } else { Ok(()) });
        let mut ranges: Vec<_> = (0..=BLOCKS + 1).flat_map(|slba| (0..=3).map(move |n| (slba, n))).collect();
        ranges.extend([(u64::MAX, 1), (u64::MAX - 1, 1), (0, u64::MAX), (1, u64::MAX)]);
        for (slba, blocks) in ranges {
            let overlaps = |from: u64, to: u64| slba < to && from < slba + blocks;
            for operation in [Operation::Read, Operation::Write, Operation::Deallocate] {
                let expected = match slba.checked_add(blocks).filter(|end| *end <= BLOCKS) {
                    _ if closed => Err(Status::FORMAT_IN_PROGRESS),
                    None => Err(Status::LBA_OUT_OF_RANGE),
                    Some(_) if claimed && blocks > 0 && overlaps(2, 4) => Err(CLAIMED),
                    Some(_) if held && blocks > 0 && (overlaps(0, 1) || overlaps(7, 8)) => Err(CLAIMED),
                    Some(_) if bad && blocks > 0 && overlaps(4, 6) && operation == Operation::Read => {
                        Err(Status::UNRECOVERED_READ_ERROR)
                    }
                    Some(_) => Ok(()),
                };
                // No command has no blocks, and then only the end counts.
                if blocks > 0 {
                    let context = format!("state {state:04b}, {slba} and {blocks}, {operation:?}");
                    assert_eq!(namespace.check(operation, slba, blocks), expected, "{context}");
                }
            }
        }
        namespace.open();
        assert_eq!(namespace.is_plain(), state & !1 == 0);
    }
}

#[test]
fn a_namespace_changes_its_size_and_its_blocks() {
    let mut namespace = namespace(1, 512, target());
    assert!(!namespace.resize(1 << 20) && namespace.resize((1 << 20) + 512));
    assert_eq!((namespace.blocks(), namespace.bytes()), (2049, (1 << 20) + 512));
    assert!(!namespace.resize((1 << 20) + 1023), "the last bytes are no block");
    assert_eq!(namespace.check(Operation::Read, 2048, 1), Ok(()));
    namespace.set_block_size(4096);
    assert_eq!((namespace.blocks(), namespace.block_size(), namespace.block_shift()), (256, 4096, 12));
    assert_eq!(namespace.check(Operation::Read, 255, 1), Ok(()));
    assert_eq!(namespace.check(Operation::Read, 256, 1), Err(Status::LBA_OUT_OF_RANGE));
    namespace.close(Status::SANITIZE_FAILED);
    assert!(namespace.resize(8192) && !namespace.is_plain(), "it stays closed");
    namespace.leave();
    assert!(namespace.is_leaving());
    assert_eq!(namespace.check_open(), Err(Status::INVALID_FIELD));
    namespace.stay();
    assert_eq!((namespace.is_leaving(), namespace.check_open()), (false, Ok(())));
}

/// Checks each reason for which the commands of some controllers are checked.
#[test]
fn a_namespace_is_guarded_while_a_controller_may_be_refused() {
    let mut namespace = small(1);
    assert!(!namespace.is_guarded());
    for number in [0, 5, 31] {
        namespace.attach(1 << number, &[number]);
        assert!(!namespace.is_guarded() && namespace.is_attached(number));
        namespace.attach(1 << number, &[number, number ^ 1]);
        assert!(namespace.is_guarded() && !namespace.is_attached(number ^ 1));
        assert_eq!(namespace.attached(), 1 << number);
    }
    namespace.set_asymmetric(true);
    namespace.attach(1, &[0]);
    assert!(namespace.is_guarded());
    namespace.set_asymmetric(false);
    assert!(!namespace.is_guarded());
    assert_eq!(namespace.check_reservation(HostId::Unnamed(0), 1), Ok(()));
}

/// Checks which namespaces can be formatted and sanitized, and to which blocks.
#[test]
fn erasures_are_offered_where_they_reach_all_data() {
    let indices = |size, block_size, blocks: u32, fixed: bool| {
        let is = Characteristics::target(size, block_size);
        let namespace = namespace(1, blocks, is);
        let namespace = if fixed { namespace.fix_block_size() } else { namespace };
        erasing::formats(&namespace).collect::<Vec<_>>()
    };
    assert_eq!(indices(1 << 20, 512, 512, false), [(0, 512), (1, 4096)]);
    assert_eq!(indices(1 << 20, 4096, 4096, false), [(1, 4096)]);
    assert_eq!(indices(4095, 512, 512, false), [(0, 512)]);
    assert_eq!(indices(4096, 512, 512, false), [(0, 512), (1, 4096)]);
    assert_eq!(indices(1 << 20, 512, 512, true), [(0, 512)]);
    assert_eq!(indices(1 << 20, 512, 4096, true), [(1, 4096)]);
    let device = Characteristics {
        passthrough: Passthrough { admin: Opcodes::NONE, io: Opcodes::NONE.and(0x81) },
        ..target()
    };
    let cases = [
        (vec![], 0, true),
        (vec![small(1), small(2)], CAPABILITIES, true),
        (vec![small(1), namespace(2, 512, Characteristics { keeps_versions: true, ..target() })], 0, true),
        (vec![namespace(2, 512, Characteristics { read_only: true, ..target() }), small(3)], 0, true),
        (vec![small(1).forbid_erasing(), small(2)], 0, true),
        (vec![small(1), namespace(2, 512, device)], 0, false),
    ];
    for (number, (namespaces, capabilities, offers_fused)) in cases.into_iter().enumerate() {
        let subsystem = subsystem(namespaces);
        assert_eq!(erasing::capabilities(&subsystem), capabilities, "drive {number}");
        assert_eq!(is_offered(&subsystem), offers_fused, "drive {number}");
    }
    assert!(namespace(1, 512, device).is_block_size_fixed());
    let is = Characteristics::target(1 << 20 | 4095, 4096);
    let odd = subsystem(vec![namespace(3, 4096, is)]);
    assert_eq!([2, 3].map(|nsid| erasing::bytes_of(&odd, nsid)), [0, 1 << 20]);
}

/// Conformance: Base 3.2.1.5, a possible NSID without a namespace is inactive, and any other is invalid.
#[test]
fn figures_of_a_drive_are_those_of_its_namespaces() {
    use crate::model::Subsystem;
    use sluice_command::NodeId;
    for (nsid, status) in [
        (0, Status::INVALID_NAMESPACE),
        (1, Status::INVALID_FIELD),
        (128, Status::INVALID_FIELD),
        (129, Status::INVALID_NAMESPACE),
        (u32::MAX, Status::INVALID_NAMESPACE),
    ] {
        assert_eq!(Subsystem::status_of_inactive(nsid), status);
    }
    assert_eq!(Subsystem::token_prefix(1, NodeId(3)), 3 << 32);
    assert_eq!(Subsystem::token_prefix(128, NodeId(0)), 127 << 40);
    let limit = |deallocate_limit| Characteristics { deallocate_limit, ..target() };
    let limits = [0, 1 << 20, 1 << 19, 0];
    for count in 0..=limits.len() {
        let namespaces = (1..).zip(&limits[..count]).map(|(nsid, it)| namespace(nsid, 512, limit(*it)));
        let drive = subsystem(namespaces.collect());
        assert_eq!(drive.deallocate_limit(), [0, 0, 1 << 20, 1 << 19, 1 << 19][count]);
    }
    let cached = Characteristics { volatile_cache: true, ..target() };
    let zeroes = Characteristics { deallocated: Deallocated::Zeroes, ..target() };
    let mut drive = subsystem(vec![small(1), namespace(2, 512, cached), namespace(3, 512, cached)]);
    assert!(drive.cached_namespaces().eq([2, 3]) && drive.has_volatile_cache() && !drive.deallocates());
    drive.get_mut(2).expect("it is there").leave();
    assert!(drive.cached_namespaces().eq([3]));
    drive.put(namespace(7, 512, zeroes));
    assert!(
        drive.deallocates() && drive.get(7).is_some() && drive.get(6).is_none() && drive.get(0).is_none()
    );
    assert!(!subsystem(vec![small(1)]).has_volatile_cache());
}
