//! Limits of commands: the last value that is accepted, and the first that is not.

use crate::copy::{NAMED, copy, enable_named_ranges};
use crate::host::{Host, PAGE, entry};
use crate::management::attachment;
use crate::model::Model;
use crate::shared::Pair;
use sluice_controller::{Attached, Attachment, CAPSULES_MAX, KnownAs, Pool, QueuePair, TRANSFER_MAX};
use sluice_nvme::opcode::admin;
use sluice_nvme::{Status, SubmissionEntry};

/// Checks that MSRC is 128 source ranges.
#[test]
fn a_copy_has_so_many_ranges_and_no_more() {
    let mut host = Host::with_io(&Model::new(1024));
    enable_named_ranges(&mut host);
    for (count, status) in [(128, Status::SUCCESS), (129, Status::COMMAND_SIZE_LIMIT_EXCEEDED)] {
        let ranges: Vec<_> = (0..count).map(|slba| (1, slba, 1)).collect();
        let command = copy(&mut host, NAMED, 512, &ranges);
        assert_eq!(host.io(command), status, "{count} ranges");
    }
}

/// Checks that an image has at most 64 MiB, and a piece of it at most MDTS.
#[test]
fn a_firmware_image_is_so_large_and_no_larger() {
    const IMAGE: u32 = 64 << 20;
    let mut host = Host::enabled(vec![Model::new(8).namespace(1)]);
    let image = host.allocate(PAGE);
    let mut download = |bytes: u32, offset: u32| {
        let (cdw10, cdw11) = (bytes / 4 - 1, offset / 4);
        host.dw0(SubmissionEntry { dptr: [image, 0], cdw10, cdw11, ..entry(admin::FIRMWARE_DOWNLOAD) })
    };
    assert_eq!(download(PAGE as u32, IMAGE - PAGE as u32), Ok(0));
    assert_eq!(download(PAGE as u32, IMAGE - PAGE as u32 + 4), Err(Status::INVALID_FIELD));
    // No list of pages lies at 0: only a length within the limits comes as far as the list.
    assert_ne!(download(TRANSFER_MAX, 0), Err(Status::INVALID_FIELD));
    assert_eq!(download(TRANSFER_MAX + 4, 0), Err(Status::INVALID_FIELD));
}

/// Checks that a list of attachments has at most 256 hosts.
#[test]
fn a_namespace_is_attached_to_so_many_hosts_and_no_more() {
    for (others, status) in [(255, Status::SUCCESS), (256, Status::NAMESPACE_ATTACHMENT_LIMIT_EXCEEDED)] {
        let listed = (0..others).map(|host| KnownAs::Nqn(format!("nqn.of-{host}").into())).collect();
        let namespace = Model::new(64).namespace(1).created(true);
        let mut pair = Pair::with(vec![namespace.attached_to(Attachment { to_others: false, listed })]);
        let host = pair.host(0);
        host.controller.subsystem.set_pool(Pool { size: 1 << 20, volatile_cache: false });
        let Attached { controller, subsystem } = &mut host.controller;
        controller.set_present(subsystem, true);
        host.enable();
        let attach = attachment(host, 1, &[1], true);
        assert_eq!(host.admin(attach).status(), status, "beside {others}");
    }
}

/// Checks that queues have the numbers 1 to 128, and can be deleted when none of their commands is in flight.
#[test]
fn a_queue_pair_has_its_limits() {
    let mut host = Host::enabled(vec![Model::new(8).namespace(1)]);
    let (sq, cq) = (host.allocate(16 * PAGE), host.allocate(16 * PAGE));
    let pair = |id, entries| QueuePair { id, entries, sq, cq };
    let mut create = |id, entries| {
        let Host { controller, space, .. } = &mut host;
        let result = controller.controller.create_queue_pair(&pair(id, entries), space);
        (result, result.is_ok() && controller.controller.delete_queue_pair(id))
    };
    let most = u32::from(CAPSULES_MAX);
    for (id, entries) in [(1, 2), (1, most), (128, 2)] {
        assert_eq!(create(id, entries), (Ok(()), true), "queue {id} of {entries}");
    }
    for id in [0, 129] {
        assert_eq!(create(id, 2), (Err(Status::INVALID_QUEUE_IDENTIFIER), false), "queue {id}");
    }
}
