//! Identify: contents of the structures, and refusals.

use crate::host::{Host, PAGE, entry, prps};
use crate::model::Model;
use sluice_command::{Characteristics, Deallocated};
use sluice_controller::{DoorbellMode, PCI_VENDOR};
use sluice_nvme::identify::{IdentifyController, IdentifyNamespace, IndependentNamespace};
use sluice_nvme::opcode::admin;
use sluice_nvme::{Cns, NSID_ALL, Status, SubmissionEntry};
use zerocopy::FromBytes;

fn controller(host: &mut Host) -> IdentifyController {
    IdentifyController::read_from_bytes(&host.identify(Cns::CONTROLLER, 0).expect("a page")).expect("a page")
}

fn namespace(host: &mut Host, nsid: u32) -> IdentifyNamespace {
    let page = host.identify(Cns::NAMESPACE, nsid).expect("a page");
    IdentifyNamespace::read_from_bytes(&page).expect("a page")
}

fn list(page: &[u8]) -> Vec<u32> {
    let nsids = page.as_chunks::<4>().0.iter().map(|nsid| u32::from_le_bytes(*nsid));
    nsids.take_while(|&nsid| nsid != 0).collect()
}

/// Conformance: Base 5.17.2.1, the fields of Identify Controller lie where the specification has them.
#[test]
fn controller_fields_lie_where_the_specification_has_them() {
    let mut host = Host::enabled(vec![Model::new(2048).namespace(1)]);
    let page = host.identify(Cns::CONTROLLER, 0).expect("a page");
    let u16_at = |at: usize| u16::from_le_bytes([page[at], page[at + 1]]);
    let u32_at = |at: usize| u32::from_le_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]]);
    assert_eq!(u16_at(0), PCI_VENDOR);
    assert_eq!(&page[4..24], b"S-1                 ");
    assert_eq!(&page[24..64], b"Model of a drive                        ");
    assert_eq!(&page[64..72], b"1.2     ");
    assert_eq!(page[77], 8, "MDTS: 1 MiB");
    assert_eq!(u16_at(78), 1, "CNTLID");
    assert_eq!(u32_at(80), 0x0002_0000, "VER");
    assert_eq!(u32_at(92), 0x100, "OAES");
    assert_eq!(page[111], 1, "CNTRLTYPE");
    assert_eq!(u16_at(256), 0x116, "OACS");
    assert_eq!((u16_at(316), page[318]), (1, 0), "EDSTT, DSTO");
    assert_eq!((page[258], page[259]), (3, 3), "ACL, AERL");
    assert_eq!((page[260], page[261], page[262]), (3, 0x36, 63), "FRMW, LPA, ELPE");
    assert_eq!(page[352..356], [1, 0, 0, 0], "PELS");
    assert_eq!((u16_at(266), u16_at(268)), (343, 353), "WCTEMP, CCTEMP");
    assert_eq!(u32_at(280), 2048 * 512, "TNVMCAP");
    assert_eq!(u16_at(320), 1, "KAS");
    assert_eq!((page[512], page[513]), (0x66, 0x44), "SQES, CQES");
    assert_eq!(u32_at(328), 0x4000_0006, "SANICAP");
    assert_eq!(u32_at(516), 128, "NN");
    assert_eq!(u16_at(520), 0x1ff, "ONCS");
    assert_eq!(u16_at(534), 0b101, "OCFS");
    assert_eq!(u16_at(522), 1, "FUSES");
    assert_eq!((page[524], page[525]), (0b1000, 0b101), "FNA, VWC");
    assert_eq!((u16_at(526), u16_at(528)), (7, 7), "AWUN, AWUPF");
    assert_eq!(u32_at(536), 0x5_0001, "SGLS");
    assert_eq!(&page[768..798], b"nqn.2026-01.org.example:drive\0");
}

/// Conformance: Base 5.17.2.1, OACS, ONCS and VWC say which optional commands there are.
#[test]
fn what_is_optional_follows_from_mode_and_targets() {
    let plain = Model::with(Characteristics::target(1 << 20, 512));
    let mut host = Host::new(vec![plain.namespace(1)]);
    host.controller.controller.set_doorbell_mode(DoorbellMode::Mapped);
    host.enable();
    let page = controller(&mut host);
    assert_eq!(page.oacs, 0x16, "no Doorbell Buffer Config");
    assert_eq!(page.oncs, 0x1fb, "no Dataset Management");
    assert_eq!(page.vwc, 0b100, "no volatile write cache");
    assert_eq!((page.awun, page.awupf), (0, 0));
}

/// Conformance: NVM 4.1.5.2, AWUN and AWUPF are what every namespace can do.
#[test]
fn capacity_and_atomicity_are_those_of_all_namespaces_together() {
    let large = Characteristics { atomic_write: 1 << 20, ..Characteristics::target(3 << 30, 512) };
    let mut host = Host::enabled(vec![
        Model::new(2048).namespace(1),
        // Nothing is read or written here, so its bytes are never touched.
        Model::with(large).namespace_of_blocks(2, 4096),
    ]);
    let page = controller(&mut host);
    assert_eq!(page.tnvmcap, [(3 << 30) + (1 << 20), 0]);
    assert_eq!(page.awun, 7);
    let page = namespace(&mut host, 2);
    assert_eq!((page.nsze, page.nvmcap, page.nawun), (3 << 18, [3 << 30, 0], 255));
}

/// Conformance: NVM 4.1.5.1, Identify Namespace says size, format, deallocation, optimal and atomic units.
#[test]
fn a_namespace_says_what_lies_below_it() {
    let below = Characteristics {
        optimal_write: 16 << 10,
        boundary: 128 << 10,
        atomic_boundary: 32 << 10,
        atomic_write: 8 << 10,
        deallocated: Deallocated::Zeroes,
        ..Characteristics::target(1 << 20, 512)
    };
    let mut host = Host::enabled(vec![Model::with(below).namespace_of_blocks(3, 4096)]);
    let page = namespace(&mut host, 3);
    assert_eq!((page.nsze, page.ncap, page.nuse), (256, 256, 256));
    assert_eq!((page.nsfeat, page.nlbaf, page.flbas), (0x12, 1, 1));
    assert_eq!((page.lbaf[1].ms, page.lbaf[1].lbads), (0, 12));
    assert_eq!(page.dlfeat, 0b1001);
    assert_eq!((page.nawun, page.nawupf, page.nacwu), (1, 1, 1));
    assert_eq!((page.nabsn, page.nabo, page.nabspf, page.noiob), (7, 0, 7, 32));
    assert_eq!((page.npwg, page.npwa, page.npdg, page.npda, page.nows), (3, 3, 3, 3, 3));
    assert_eq!((page.nmic, page.dps, page.mc, page.nsattr), (0, 0, 0, 0));
}

/// Conformance: NVM 4.1.5.1, atomic writes are not larger than the distance of the boundaries (NABSN).
#[test]
fn a_write_is_not_atomic_across_a_boundary() {
    let below = Characteristics {
        atomic_boundary: 4096,
        atomic_write: 1 << 20,
        ..Characteristics::target(1 << 20, 512)
    };
    let mut host = Host::enabled(vec![Model::with(below).namespace(1)]);
    let page = namespace(&mut host, 1);
    assert_eq!((page.nawun, page.nabsn, page.noiob), (7, 7, 0));
    // A boundary inside a block.
    let below = Characteristics { atomic_boundary: 6144, ..below };
    let mut host = Host::enabled(vec![Model::with(below).namespace_of_blocks(1, 4096)]);
    let page = namespace(&mut host, 1);
    assert_eq!((page.nawun, page.nabsn), (0, 0));
    // The preferred boundary tears no write.
    let below = Characteristics { boundary: 4096, atomic_boundary: 0, ..below };
    let mut host = Host::enabled(vec![Model::with(below).namespace(1)]);
    let page = namespace(&mut host, 1);
    assert_eq!((page.nawun, page.nabsn, page.noiob), (2047, 0, 8));
}

#[test]
fn boundaries_too_far_apart_for_their_field_are_named_in_part() {
    let below = Characteristics { boundary: 64 << 20, ..Characteristics::target(1 << 30, 512) };
    let mut host = Host::enabled(vec![Model::with(below).namespace(1)]);
    assert_eq!(namespace(&mut host, 1).noiob, 32_768);
}

/// Conformance: Base 5.17.2.8, NSATTR says that a namespace is write-protected.
#[test]
fn a_namespace_that_is_write_protected_says_so_twice() {
    let below = Characteristics { read_only: true, ..Characteristics::target(1 << 20, 512) };
    let mut host = Host::enabled(vec![Model::with(below).namespace(1)]);
    assert_eq!(namespace(&mut host, 1).nsattr, 1);
    let page = host.identify(Cns::INDEPENDENT_NAMESPACE, 1).expect("a page");
    let page = IndependentNamespace::read_from_bytes(&page).expect("a page");
    assert_eq!((page.nsattr, page.nstat), (1, 1));
}

/// Conformance: Base 5.17.2, an inactive NSID is identified with zeros, and an invalid one refused with Invalid Namespace or Format.
#[test]
fn an_inactive_nsid_has_zeros_and_an_invalid_one_an_error() {
    let mut host = Host::enabled(vec![Model::new(8).namespace(1)]);
    for cns in
        [Cns::NAMESPACE, Cns::ALLOCATED_NAMESPACE, Cns::INDEPENDENT_NAMESPACE, Cns::COMMAND_SET_NAMESPACE]
    {
        for inactive in [2, 128] {
            assert_eq!(host.identify(cns, inactive), Ok(vec![0; PAGE]), "{cns:?} of {inactive}");
        }
        for invalid in [0, 129, NSID_ALL - 1, NSID_ALL] {
            assert_eq!(
                host.identify(cns, invalid),
                Err(Status::INVALID_NAMESPACE),
                "{cns:?} of {invalid:#x}"
            );
        }
    }
    for nsid in [0, 129, NSID_ALL] {
        assert_eq!(host.identify(Cns::NAMESPACE_DESCRIPTORS, nsid), Err(Status::INVALID_NAMESPACE));
    }
    assert_eq!(host.identify(Cns::NAMESPACE_DESCRIPTORS, 2), Err(Status::INVALID_FIELD));
}

/// Conformance: Base 5.17.2.2, namespace lists have the NSIDs above the one named, in ascending order.
#[test]
fn namespace_lists_begin_after_the_nsid() {
    let namespaces = [1, 5, 128].map(|nsid| Model::new(8).namespace(nsid));
    let mut host = Host::enabled(namespaces.into());
    for cns in [Cns::ACTIVE_NAMESPACES, Cns::ALLOCATED_NAMESPACES, Cns::COMMAND_SET_ACTIVE_NAMESPACES] {
        let mut after = |nsid| host.identify(cns, nsid).map(|page| list(&page));
        assert_eq!(after(0), Ok(vec![1, 5, 128]));
        assert_eq!(after(1), Ok(vec![5, 128]));
        assert_eq!(after(127), Ok(vec![128]));
        assert_eq!(after(128), Ok(vec![]));
        assert_eq!(after(0xffff_fffd), Ok(vec![]));
        assert_eq!(after(0xffff_fffe), Err(Status::INVALID_NAMESPACE));
        assert_eq!(after(NSID_ALL), Err(Status::INVALID_NAMESPACE));
    }
}

/// Conformance: Base 5.17.2.3, a namespace has descriptors with UUID, NGUID and command set, and zeros behind them.
#[test]
fn descriptors_name_a_namespace_three_times() {
    let mut host = Host::enabled(vec![Model::new(8).namespace(9)]);
    let page = host.identify(Cns::NAMESPACE_DESCRIPTORS, 9).expect("a page");
    let mut nguid = [9; 16];
    nguid[8] = 0b1010;
    assert_eq!(&page[..4], &[3, 16, 0, 0]);
    assert_eq!(page[4..20], [9; 16]);
    assert_eq!(&page[20..24], &[2, 16, 0, 0]);
    assert_eq!(page[24..40], nguid);
    assert_eq!(&page[40..45], &[4, 1, 0, 0, 0]);
    assert!(page[45..].iter().all(|&byte| byte == 0));
    assert_eq!(namespace(&mut host, 9).nguid, nguid);
}

/// Conformance: Base 5.17.2, structures of a command set that is not supported, and unknown structures, are refused with Invalid Field in Command.
/// Conformance: Base 4.4.1, controller lists begin with the identifier named.
#[test]
fn command_sets_and_controllers() {
    let mut host = Host::enabled(vec![Model::new(8).namespace(1)]);
    let mut identify = |cns: Cns, nsid, cntid: u32, csi: u32| {
        let cdw10 = u32::from(cns.0) | cntid << 16;
        let entry = SubmissionEntry { nsid, cdw10, cdw11: csi << 24, ..entry(admin::IDENTIFY) };
        host.admin_read(entry, PAGE)
    };
    let first = |page: Result<Vec<u8>, Status>| page.map(|page| [page[0], page[1], page[2], page[3]]);
    for asked in [1, 0xffff] {
        assert_eq!(first(identify(Cns::COMMAND_SETS, 0, asked, 0)), Ok([1, 0, 0, 0]));
    }
    assert_eq!(first(identify(Cns::COMMAND_SETS, 0, 8, 0)), Err(Status::INVALID_FIELD));
    for (from, found) in [(0, [1, 0, 1, 0]), (1, [1, 0, 1, 0]), (2, [0; 4])] {
        assert_eq!(first(identify(Cns::CONTROLLERS, 0, from, 0)), Ok(found));
        assert_eq!(first(identify(Cns::ATTACHED_CONTROLLERS, 1, from, 0)), Ok(found));
    }
    assert_eq!(first(identify(Cns::ATTACHED_CONTROLLERS, 2, 0, 0)), Ok([0; 4]));
    assert_eq!(first(identify(Cns::ATTACHED_CONTROLLERS, NSID_ALL, 0, 0)), Err(Status::INVALID_FIELD));
    for cns in [Cns::COMMAND_SET_NAMESPACE, Cns::COMMAND_SET_CONTROLLER, Cns::COMMAND_SET_ACTIVE_NAMESPACES] {
        assert!(identify(cns, 1, 0, 0).is_ok());
        assert_eq!(first(identify(cns, 1, 0, 2)), Err(Status::INVALID_FIELD));
    }
    for unknown in [0x04, 0x09, 0x14, 0xff] {
        assert_eq!(first(identify(Cns(unknown), 1, 0, 0)), Err(Status::INVALID_FIELD));
    }
}

/// Conformance: NVM 4.1.5.4, DMRL, DMRSL and DMSL say what of a Dataset Management ends soon, for blocks of every size.
#[test]
fn limits_of_a_deallocation_are_those_of_the_slowest_namespace() {
    let limits = |host: &mut Host| {
        let cdw10 = u32::from(Cns::COMMAND_SET_CONTROLLER.0);
        let page =
            host.admin_read(SubmissionEntry { cdw10, ..entry(admin::IDENTIFY) }, PAGE).expect("a page");
        let word = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().expect("four bytes"));
        (page[3], word(4), word(8), word(12))
    };
    let with = |deallocate_limit| {
        let is =
            Characteristics { deallocated: Deallocated::Zeroes, ..Characteristics::target(1 << 20, 512) };
        Model::with(Characteristics { deallocate_limit, ..is })
    };
    assert_eq!(limits(&mut Host::enabled(vec![with(0).namespace(1)])), (0, 0, 0, 0), "none is told");
    assert_eq!(limits(&mut Host::enabled(vec![with(1 << 20).namespace(1)])), (64, 2048, 2048 * 64, 0));
    let three =
        vec![with(1 << 20).namespace(1), with(4 << 20).namespace_of_blocks(2, 4096), with(0).namespace(3)];
    assert_eq!(limits(&mut Host::enabled(three)), (64, 256, 256 * 64, 0));
}

/// Conformance: Base 5.17, the structure goes to the host's buffer and nowhere else.
#[test]
fn the_page_goes_wherever_the_host_wants_it_and_nowhere_else() {
    let mut host = Host::enabled(vec![Model::new(8).namespace(1)]);
    let buffer = host.allocate(3 * PAGE);
    host.write(buffer, &[0xee; 3 * PAGE]);
    let identify = SubmissionEntry { cdw10: 1, ..entry(admin::IDENTIFY) };
    let dptr = [buffer + 0x800, buffer + PAGE as u64];
    assert!(host.admin(SubmissionEntry { dptr, ..identify }).status().is_success());
    let bytes = host.read(buffer, 3 * PAGE);
    assert!(bytes[..0x800].iter().chain(&bytes[0x1800..]).all(|&byte| byte == 0xee));
    assert_eq!(&bytes[0x804..0x807], b"S-1");

    let mut status = |dptr, flags| host.admin(SubmissionEntry { dptr, flags, ..identify }).status();
    assert_eq!(status([buffer + 2, 0], 0), Status::PRP_OFFSET_INVALID);
    assert_eq!(status([buffer + 0x800, buffer + 4], 0), Status::PRP_OFFSET_INVALID);
    assert_eq!(status([0, 0], 0), Status::DATA_TRANSFER_ERROR);
    assert_eq!(status(prps(buffer, PAGE), 1 << 6), Status::INVALID_FIELD, "SGLs are not for admin commands");
    assert_eq!(status(prps(buffer, PAGE), 1), Status::INVALID_FIELD, "there are no fused commands");
}
