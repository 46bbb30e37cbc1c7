//! Memory pages of other sizes than 4 KiB (CC.MPS).

use crate::host::{CC_ENABLED, Host, entry, io as io_entry};
use crate::model::Model;
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::register::{self, csts};
use sluice_nvme::{Status, SubmissionEntry};
use zerocopy::IntoBytes;

const KIB: usize = 1024;

/// Largest page size, in the unit of CC.MPS.
const MPS_64_KIB: u32 = 4;

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8).collect()
}

/// Conformance: Base 3.1.3.5, pages of each size up to CAP.MPSMAX can be chosen, and PRPs name such.
#[test]
fn data_lies_in_pages_of_the_size_that_was_chosen() {
    for mps in 0..=MPS_64_KIB {
        let page = (4 * KIB) << mps;
        let model = Model::new(4096);
        let mut host = Host::enabled_with_pages(vec![model.namespace(1)], mps);
        host.create_pair(1, 64);
        let data = pattern(1 << 20);
        // The buffer has every second page of the host, the last first, from the middle of the first on.
        let memory = host.allocate(2 * data.len() + 4 * page);
        let count = data.len() / page + 1;
        let pages: Vec<u64> = (0..count).rev().map(|n| memory + (2 * n * page) as u64).collect();
        let first = page / 2;
        host.write(pages[0] + first as u64, &data[..page - first]);
        for (chunk, page) in data[page - first..].chunks(page).zip(&pages[1..]) {
            host.write(*page, chunk);
        }
        // The list begins two entries before the end of its page, so that it goes on in another.
        let lists = host.allocate(2 * page);
        let (begin, next) = (lists + (page - 16) as u64, lists + page as u64);
        host.write(begin, [pages[1], next].as_bytes());
        host.write(next, pages[2..].as_bytes());
        let dptr = [pages[0] + first as u64, begin];
        let write = SubmissionEntry { dptr, ..io_entry(io::WRITE, 0, 2048, 0) };
        assert_eq!(host.io(write), Status::SUCCESS, "{page} bytes");
        assert!(model.disk().bytes[..data.len()] == data, "pages of {page} bytes");
    }
}

/// Conformance: Base 3.1.3.8, admin queues begin at a memory page, whatever its size.
#[test]
fn queues_begin_with_a_page() {
    let mut host = Host::new(vec![Model::new(8).namespace(1)]);
    host.align(64 * KIB);
    // The first queue begins with a page of 64 KiB, the other does not.
    host.configure_admin_queues();
    host.write_register(register::CC, CC_ENABLED | MPS_64_KIB << 7);
    host.run();
    assert_eq!(host.csts(), csts::CFS);

    let mut host = Host::enabled_with_pages(vec![Model::new(8).namespace(1)], MPS_64_KIB);
    let address = host.allocate(128 * KIB);
    let create = |address| SubmissionEntry {
        dptr: [address, 0],
        cdw10: 1 | 15 << 16,
        cdw11: 1,
        ..entry(admin::CREATE_IO_CQ)
    };
    let refused = host.admin(create(address + 4096)).status();
    assert_eq!(refused, Status::PRP_OFFSET_INVALID);
    assert_eq!(host.admin(create(address)).status(), Status::SUCCESS);
}
