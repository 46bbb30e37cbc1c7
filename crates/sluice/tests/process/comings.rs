//! Changes by hosts while a part of their drive moves.

use crate::common::namespace;
use crate::load::Load;
use sluice_host::{Controller, QueueLayout};
use sluice_nvme::SubmissionEntry;
use sluice_nvme::opcode::admin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Guard that ends moves, also those of a test that fails.
pub(crate) struct Stop<'a>(pub(crate) &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

pub(crate) fn reset(host: &mut Controller) {
    host.disable().expect("it is reset");
    host.enable().expect("it is ready again");
}

/// Resets the controller with commands in flight, and writes after that.
pub(crate) fn begin_anew(host: &mut Controller, loads: [Load; 2]) {
    drop(loads.map(Load::into_queue));
    reset(host);
    let mut disk = namespace(host, 1);
    disk.write(0, &[7; 4096]).expect("written");
    disk.flush().expect("flushed");
}

/// Deletes a queue, creates and deletes another, and formats the namespace.
pub(crate) fn recreate_and_format(host: &mut Controller, mut loads: [Load; 2]) {
    loads.iter_mut().for_each(Load::end);
    let [load, _other] = loads;
    host.delete_queue_pair(load.into_queue()).expect("deleted");
    let queue = host.create_queue_pair(3, QueueLayout::default(), None).expect("another");
    host.delete_queue_pair(queue).expect("deleted");
    let format = SubmissionEntry { opcode: admin::FORMAT_NVM, nsid: 1, ..Default::default() };
    host.admin(format).expect("formatted");
}
