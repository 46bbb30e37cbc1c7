//! Questions about the Device Self-test, and its log page.

use crate::model::{Controller, Subsystem};
use crate::state::chunk;
use crate::state::self_test::Running;
use sluice_nvme::log::{SelfTestLog, SelfTestResult};
use zerocopy::FromZeros;

pub(crate) fn bytes_of(subsystem: &Subsystem, nsid: u32) -> u64 {
    let there = subsystem.get(nsid).filter(|namespace| !namespace.is_leaving());
    there.map_or(0, |namespace| namespace.blocks() << namespace.block_shift())
}

/// Returns false while the drive is held or not ready. A paused self-test sets no timer.
pub(crate) fn may_read(controller: &Controller, subsystem: &Subsystem) -> bool {
    let is_up = controller.registers.is_ready() && !controller.registers.is_shutting_down();
    is_up && !subsystem.is_held()
}

/// Returns the Device Self-test log page.
pub(crate) fn log(controller: &Controller, subsystem: &Subsystem) -> SelfTestLog {
    let mut page = SelfTestLog::new_zeroed();
    page.results.iter_mut().for_each(|result| result.status = SelfTestResult::UNUSED);
    page.results.iter_mut().zip(&controller.self_test.results).for_each(|(to, from)| *to = *from);
    if let Some(running) = &controller.self_test.running {
        page.current = running.kind as u8;
        page.completion = percent(subsystem, running);
    }
    page
}

fn percent(subsystem: &Subsystem, running: &Running) -> u8 {
    let Some(&nsid) = running.nsids.get(running.done) else { return 99 };
    let bytes = bytes_of(subsystem, nsid);
    let places = running.kind.places().min(bytes.div_ceil(chunk::CHUNK as u64)).max(1);
    let within = (running.place * 100 / places).min(99);
    ((running.done as u64 * 100 + within) / running.nsids.len() as u64) as u8
}
