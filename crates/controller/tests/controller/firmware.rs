//! Firmware commands: an image is accepted and dropped, and the one slot is read-only.

use crate::host::{Host, PAGE, entry};
use crate::model::Model;
use sluice_nvme::opcode::admin;
use sluice_nvme::{Status, SubmissionEntry};

fn download(host: &mut Host, dptr: u64, dwords: u32, offset: u32) -> Result<u32, Status> {
    let (dptr, cdw10) = ([dptr, 0], dwords.wrapping_sub(1));
    host.dw0(SubmissionEntry { dptr, cdw10, cdw11: offset, ..entry(admin::FIRMWARE_DOWNLOAD) })
}

fn commit(host: &mut Host, slot: u32, action: u32) -> Result<u32, Status> {
    host.dw0(SubmissionEntry { cdw10: slot | action << 3, ..entry(admin::FIRMWARE_COMMIT) })
}

/// Conformance: Base 5.12, an image that is not valid is refused with Invalid Firmware Image.
#[test]
fn an_image_is_taken_and_refused() {
    let mut host = Host::enabled(vec![Model::new(8).namespace(1)]);
    let (image, nowhere) = (host.allocate(PAGE), host.nowhere());
    assert_eq!(download(&mut host, image, 1024, 0), Ok(0));
    assert_eq!(download(&mut host, image, 1024, 1024), Ok(0));
    assert_eq!(download(&mut host, nowhere, 1024, 0), Err(Status::DATA_TRANSFER_ERROR));
    assert_eq!(download(&mut host, image, 0, 0), Err(Status::INVALID_FIELD), "2^32 dwords");
    assert_eq!(download(&mut host, image, 1024, u32::MAX), Err(Status::INVALID_FIELD));
    for action in [0, 1] {
        assert_eq!(commit(&mut host, 0, action), Err(Status::INVALID_FIRMWARE_IMAGE));
        assert_eq!(commit(&mut host, 1, action), Err(Status::INVALID_FIRMWARE_SLOT), "read-only");
        assert_eq!(commit(&mut host, 2, action), Err(Status::INVALID_FIRMWARE_SLOT), "not there");
    }
}

/// Conformance: Base 5.12, a slot that is not there or is empty is refused with Invalid Firmware Slot.
#[test]
fn what_runs_may_be_activated_and_nothing_else() {
    let mut host = Host::enabled(vec![Model::new(8).namespace(1)]);
    for action in [2, 3] {
        assert_eq!(commit(&mut host, 1, action), Ok(0));
        assert_eq!(commit(&mut host, 0, action), Err(Status::INVALID_FIRMWARE_SLOT));
        assert_eq!(commit(&mut host, 7, action), Err(Status::INVALID_FIRMWARE_SLOT));
    }
    for action in [4, 5, 6, 7] {
        assert_eq!(commit(&mut host, 1, action), Err(Status::INVALID_FIELD));
    }
}
