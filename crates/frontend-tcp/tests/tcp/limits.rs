//! Limits of queues: the last valid value, and the first invalid one.

use crate::host::{Connect, Link};
use crate::rig::{DISK, Rig};
use sluice_nvme::Status;
use sluice_nvme::fabrics::InvalidParameter;
use sluice_nvme_tcp::Digests;

#[test]
fn a_queue_has_from_2_to_128_entries() {
    let rig = Rig::new();
    for entries in [2, 128] {
        let mut link = Link::open(rig.address, Digests::NONE);
        let response = link.connect(&Connect { entries, ..Connect::admin(DISK) });
        assert_eq!(response.status(), Status::SUCCESS, "{entries} entries");
    }
    for entries in [1, 129] {
        let mut link = Link::open(rig.address, Digests::NONE);
        let response = link.connect(&Connect { entries, ..Connect::admin(DISK) });
        let refused = (Status::CONNECT_INVALID_PARAMETERS, InvalidParameter::SQSIZE.dw0());
        assert_eq!((response.status(), response.dw0), refused, "{entries} entries");
    }
}
